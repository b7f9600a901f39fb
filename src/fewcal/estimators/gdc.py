"""GDCClassifier: the paper's GDC, for scikit-learn users."""

from __future__ import annotations

import os
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import Tags
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.estimators.base import TaskClassifier
from fewcal.estimators.inputs import cap_k, given_params, resolve_bank, resolve_params, seed_from
from fewcal.estimators.saved import FileMeta, FileTensors, head_from_file
from fewcal.gaussianize import Gaussianization
from fewcal.heads.base import TaskBatch
from fewcal.heads.linear import LinearHead
from fewcal.methods.base import Contributions, Method
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams


class GDCClassifier(TaskClassifier):
    """Generalized distribution calibration as in the paper; `FewShotClassifier` is what fewcal recommends.

    Parameters
    ----------
    bank : BaseBank, path, tuple (X, y) or None, default=None
        The base classes: a bank, the path of a saved one, or base rows and labels. `None`: the classes of `y` that have
        two rows or more.
    preset : str, path or GDCParams, default="paper"
        Where parameters come from that are not given here: a name (`fewcal.list_presets()`) or a preset file as
        `fewcal tune` writes it.
    beta, kind, eps, center, l2, transform_base : default=None
        Gaussianization. This and every following parameter is that of `GDCParams`; `None` takes it from the preset.
    metric, delta, mahalanobis_ridge, mahalanobis_shift : default=None
        Distances.
    k, m, distance_scale, distance_scale_of, strength : default=None
        Neighbours and weights. A k of the preset is limited to the number of base classes; one given here must not
        exceed it.
    cov, cov_weights, common_size, alpha1, alpha2_ratio, off_diagonal, psd, constant : default=None
        Covariance and its shrinkage.
    n, n_per, head, C : default=None
        Samples and the classifier trained on them; `head` is a name in `fewcal.heads.HEADS` or a scikit-learn
        classifier.
    device : str, torch.device or None, default=None
        Where to compute: None for the CPU, "cuda", or "auto".
    random_state : int, RandomState instance or None, default=0
        Seed of the sampled points and of SGD; the closed form draws none.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    params_ : GDCParams
        The parameters in force.
    support_ : tuple of ndarray
        The rows and labels it was fitted on, as they were given.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Examples
    --------
    >>> import numpy as np
    >>> from fewcal import BaseBank
    >>> rng = np.random.default_rng(0)
    >>> centres = rng.random((22, 32)) * 4
    >>> rows = lambda classes, n: np.concatenate([centres[c] + rng.random((n, 32)) for c in classes])
    >>> bank = BaseBank().fit(rows(range(20), 30), np.repeat(np.arange(20), 30))
    >>> clf = GDCClassifier(bank, preset="paper/cub/1shot").fit(rows([20, 21], 1), ["cat", "dog"])
    >>> clf.predict(rows([20, 21], 2)).tolist()
    ['cat', 'cat', 'dog', 'dog']
    """

    file_kind = "gdc"
    params_: GDCParams
    contributions_: Contributions | None
    # Whether it was read from a file and fitted with a bank, which files do not have.
    had_bank_ = False

    def __init__(
        self,
        bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | None = None,
        preset: str | os.PathLike[str] | GDCParams = "paper",
        *,
        beta: float | None = None,
        kind: str | None = None,
        eps: float | None = None,
        center: bool | None = None,
        l2: bool | None = None,
        transform_base: bool | None = None,
        metric: str | None = None,
        delta: float | None = None,
        mahalanobis_ridge: float | None = None,
        mahalanobis_shift: bool | None = None,
        k: int | None = None,
        m: float | None = None,
        distance_scale: float | bool | None = None,
        distance_scale_of: str | None = None,
        strength: float | None = None,
        cov: str | None = None,
        cov_weights: str | None = None,
        common_size: int | None = None,
        alpha1: float | None = None,
        alpha2_ratio: float | None = None,
        off_diagonal: str | None = None,
        psd: str | None = None,
        constant: float | None = None,
        n: int | None = None,
        n_per: str | None = None,
        head: object = None,
        C: float | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        # Every argument as it is, which is what scikit-learn asks of a constructor.
        arguments = dict(locals())
        del arguments["self"]
        self.__dict__.update(arguments)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # α1 and α2 of the paper are for features of its own: on others they hide the classes.
        tags.classifier_tags.poor_score = True
        return tags

    def _method(self, X: np.ndarray, y: np.ndarray) -> Method:
        given = given_params(self)
        params = resolve_params(self.preset, given)
        if self.bank is None and self.had_bank_:
            raise InputError("the file has no base classes to fit again with; use set_params(bank=...) first")
        bank = self._own_classes(X, y) if self.bank is None else resolve_bank(self.bank, self.device)
        if bank.dim != X.shape[1]:
            raise InputError(f"X has {X.shape[1]} features and the bank {bank.dim}; use the same extractor for both")
        if "k" not in given:
            params = cap_k(params, bank, quiet=self.bank is None)
        method = GDC(params).prepare(bank)
        self.params_ = params
        return method

    def _fitted(self, method: Method, batch: TaskBatch) -> None:
        self.contributions_ = method.contributions(batch)  # now: the bank may grow

    def _contributions(self) -> Contributions | None:
        if self.contributions_ is None:
            raise InputError("the file has no base classes to explain answers by; fit again with the bank")
        return self.contributions_

    def _own_classes(self, X: np.ndarray, y: np.ndarray) -> BaseBank:
        names, counts = np.unique(y, return_counts=True)
        several = np.isin(y, names[counts > 1])
        if not several.any():
            raise InputError("no class has two rows, so that there are no base classes; give a bank")
        return BaseBank().fit(X[several], y[several], device=self.device)

    def seed(self) -> int:
        return seed_from(self.random_state)

    # ---- files ------------------------------------------------------------------------------------------------------

    def file_parts(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """Return the values and tensors that a file holds beside the support."""
        head, row_map = self.head_, self.row_map_
        if not isinstance(head, LinearHead) or not isinstance(row_map, Gaussianization):
            raise InputError("a classifier with a scikit-learn head cannot be saved; use a named head")
        meta: dict[str, object] = {"settings": self.params_.as_dict(), "transform": row_map.settings()}
        meta |= {"bank": self.bank is not None or self.had_bank_, "seed": self.seed()}
        parts = {f"transform.{name}": t for name, t in row_map.tensors().items()}
        return meta, {"weight": head.weight, "bias": head.bias, **parts}

    @classmethod
    def from_parts(cls, meta: FileMeta, tensors: FileTensors) -> Self:
        """Make the classifier of a file, not fitted yet."""
        params = GDCParams().with_changes(**meta["settings"])
        made = cls(preset=params, random_state=int(meta["seed"]))
        made.params_, made.had_bank_ = params, bool(meta["bank"])
        return made

    def restore(self, X: np.ndarray, y: np.ndarray, meta: FileMeta, tensors: FileTensors) -> None:
        """Take the head of the file."""
        self.support_, self.classes_ = (X, y), np.unique(y)
        self.row_map_ = Gaussianization.from_settings(meta["transform"], tensors)
        self.head_ = head_from_file(tensors, len(self.classes_), X.shape[1])
        self.contributions_ = None
