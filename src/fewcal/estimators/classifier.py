"""GDCClassifier: few-shot classification by distribution calibration, for scikit-learn users."""

from __future__ import annotations

from sklearn.base import BaseEstimator, ClassifierMixin

from fewcal.estimators.few_shot import FewShotClassifier


class GDCClassifier(ClassifierMixin, BaseEstimator, FewShotClassifier):
    """Few-shot classification by distribution calibration, with the statistics of well-known base classes.

    Parameters
    ----------
    bank : BaseBank, path, tuple (X, y) or None, default=None
        The base classes: a bank, the path of a saved one, or base rows and labels. Spaces derived from a `BaseBank` are
        remembered in it and clones share it, so build it once for repeated fits; a tuple is turned into a bank at
        every `fit`. `None`: see Notes.
    preset : str, path or GDCParams, default="default"
        Where parameters come from that are not given here: a name (`fewcal.list_presets()`) or a preset file as
        `fewcal tune` writes it.
    model : {"weighted", "hierarchical"}, default=None
        The paper's calibration, or that of the preset `default`.
    sharpness, floor, scatter : default=None
        Of the hierarchical model, beside beta, kind, eps, max_spread, whiten, strength and trust.
    beta, kind, eps, center, max_spread, l2, whiten, transform_base : default=None
        Gaussianization. This and every following parameter is that of `GDCParams`; `None` takes it from the preset.
    metric, delta, mahalanobis_ridge, mahalanobis_shift, k, m, distance_scale, distance_scale_of : default=None
        Neighbours and weights. A k of the preset is brought down to the number of base classes; one given here must
        not exceed it.
    strength, shot_decay, trust, query_strength : default=None
        How much the base classes may say.
    cov, cov_weights, common_size, alpha1, alpha2_ratio, off_diagonal, psd, constant : default=None
        Covariance and its shrinkage.
    n, n_per, head, C : default=None
        Samples and the classifier trained on them; `head` is a name in `fewcal.heads.HEADS` or a scikit-learn
        classifier.
    device : str, torch.device or None, default=None
        Where to compute: None for the CPU, "cuda", or "auto". What is learned is kept on the CPU, so that it can be
        pickled and loaded anywhere.
    random_state : int, RandomState instance or None, default=0
        Seed of the sampled points and of SGD; the closed form draws none.
    unit, unit_of, query_pull : default="deprecated"
        Old names of distance_scale, distance_scale_of and query_strength, for this release.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    params_ : GDCParams or None
        The parameters in force; None without a bank.
    support_ : tuple of ndarray
        The rows and labels it was fitted on, as they were given.
    extractor_ : str or None
        After `load`: name and fingerprint of what made the features, if the file says so.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Notes
    -----
    Without base classes (`bank=None`), and where a bank does not help, `fewcal.methods.bankless` answers: rows of unit
    length, a linear discriminant with the scatter of the support, and logistic regression. Of the parameters, `beta`,
    `kind`, `eps`, `center` and `l2` transform the features before, if any of them is given (`beta=1` where it is not);
    the others have no effect there, and a warning says so. When a bank is not used or has little say, `fit` warns once
    and `explain()` tells why.

    Probabilities are the softmax of the decision values.

    Examples
    --------
    >>> import numpy as np
    >>> from fewcal import BaseBank
    >>> rng = np.random.default_rng(0)
    >>> centres = rng.random((72, 32)) * 4
    >>> rows = lambda classes, n: np.concatenate([centres[c] + rng.random((n, 32)) for c in classes])
    >>> bank = BaseBank().fit(rows(range(70), 30), np.repeat(np.arange(70), 30))
    >>> clf = GDCClassifier(bank).fit(rows([70, 71], 1), ["cat", "dog"])
    >>> clf.predict(rows([70, 71], 2)).tolist()
    ['cat', 'cat', 'dog', 'dog']
    >>> clf.explain().points[0].label
    'cat'
    """
