"""GDCSampler: balanced data in the original features, from a single row where SMOTE cannot."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from imblearn.over_sampling import SMOTE, RandomOverSampler
from imblearn.pipeline import make_pipeline
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV

from fewcal import BaseBank, GDCParams
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators.sampler import GDCSampler
from fewcal.gaussianize import Gaussianization, fit_gaussianization


def rare(rows: int = 1, *, signed: bool = True, dim: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes of 60 rows and one of `rows`, with a common covariance."""
    rng = np.random.default_rng(seed)
    mix = np.linspace(0.2, 1.5, dim)
    means = 2 * rng.normal(size=(4, dim)) + (0 if signed else 8)
    counts = [60, 60, 60, rows]
    X = np.concatenate([m + mix * rng.normal(size=(n, dim)) for m, n in zip(means, counts, strict=True)])
    return X, np.repeat(["a", "b", "c", "rare"], counts)


@pytest.mark.parametrize("signed", [True, False])
def test_one_row_where_smote_cannot(signed: bool) -> None:
    X, y = rare(1, signed=signed)
    with pytest.raises(ValueError, match="n_neighbors"):
        SMOTE(random_state=0).fit_resample(X, y)
    X_new, y_new = GDCSampler(random_state=0).fit_resample(X, y)
    assert Counter(y_new) == {"a": 60, "b": 60, "c": 60, "rare": 60}
    assert (X_new[: len(X)] == X).all()
    assert (y_new[: len(y)] == y).all()
    made = X_new[len(X) :]
    assert len(np.unique(made, axis=0)) == 59
    # The new rows lie about the one row there is and spread as the other classes do.
    assert np.abs(made.mean(axis=0) - X[-1]).max() < 0.6
    np.testing.assert_allclose(made.std(axis=0), X[y == "a"].std(axis=0), rtol=0.5)
    if not signed:
        assert made.min() >= 0


def test_the_grown_class_has_the_right_covariance() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3)) * [0.5, 1.0, 2.0]
    spread = []
    for seed in range(30):  # five rows and their noise together have the covariance of the class, on average
        few = rng.normal(size=(5, 3)) * [0.5, 1.0, 2.0]
        sampler = GDCSampler(random_state=seed)
        made = sampler.fit_resample(np.concatenate([X, few]), np.repeat([0, 1], [4000, 5]))[0][4005:]
        spread.append(np.cov(made.T))
    np.testing.assert_allclose(np.sqrt(np.diag(np.mean(spread, axis=0))), [0.5, 1.0, 2.0], rtol=0.15)


def test_scale_of_the_columns_is_kept() -> None:
    X, y = rare(2)
    scale = 10.0 ** np.arange(-3, 3)
    for sign in (1.0, -1.0):  # shifted to be ≥ 0, and signed
        shifted = X - X.min(axis=0) if sign > 0 else X
        one = GDCSampler(random_state=0, params={"k": 3, "beta": 1.0}).fit_resample(shifted, y)[0]
        other = GDCSampler(random_state=0, params={"k": 3, "beta": 1.0}).fit_resample(shifted * scale, y)[0]
        np.testing.assert_allclose(other / scale, one, rtol=1e-3, atol=1e-3)


def test_common_offset_of_the_columns_is_kept() -> None:
    X, y = rare(2)
    params = {"k": 3, "beta": 1.0}
    near, far = (GDCSampler(random_state=0, params=params).fit_resample(X + offset, y)[0] for offset in (0.0, 1e8))
    np.testing.assert_allclose(far - 1e8, near, atol=1e-3)


def test_it_helps_a_classifier() -> None:
    scores: dict[str, list[float]] = {"ours": [], "random": []}
    for seed in range(6):
        X, y = rare(200, dim=16, seed=seed)
        train = np.flatnonzero((y != "rare") | (np.cumsum(y == "rare") <= 2))
        test = np.flatnonzero(y == "rare")[2:]
        queries = np.concatenate([X[test], X[y == "a"]])
        truth = np.concatenate([y[test], y[y == "a"]])
        for name, sampler in (("ours", GDCSampler(random_state=0)), ("random", RandomOverSampler(random_state=0))):
            clf = LogisticRegression(max_iter=500).fit(*sampler.fit_resample(X[train], y[train]))
            scores[name].append(balanced_accuracy_score(truth, clf.predict(queries)))
    assert np.mean(scores["ours"]) >= np.mean(scores["random"])


def test_bank_shifts_the_rows_towards_their_relatives() -> None:
    rng = np.random.default_rng(0)
    base = np.concatenate([rng.normal(size=(50, 4)) + m for m in ([0, 0, 0, 0], [8, 8, 8, 8])])
    bank = BaseBank().fit(base, np.repeat(["near", "far"], 50))
    X = np.concatenate([rng.normal(size=(40, 4)) - 5, [[1.0, 1.0, 1.0, 1.0]]])
    y = np.repeat([0, 1], [40, 1])
    settings: dict[str, Any] = {"bank": bank, "params": {"beta": 1.0, "k": 1}, "random_state": 0}
    moved = GDCSampler(**settings).fit_resample(X, y)[0][41:]
    still = GDCSampler(shift=0, **settings).fit_resample(X, y)[0][41:]
    np.testing.assert_allclose(still - moved, (still - moved)[:1].repeat(39, axis=0), atol=1e-5)
    assert (moved.mean(axis=0) < still.mean(axis=0)).all()
    sampler = GDCSampler(**settings)
    sampler.fit_resample(X, y)
    assert sampler.base_classes_ == ["near", "far"]
    assert sampler.params_.k == 1


@pytest.mark.parametrize("cov", ["joint", "independent", "pooled"])
@pytest.mark.parametrize("cov_weights", ["with-support", "bases-only", "average"])
def test_every_covariance_gives_finite_rows(cov: str, cov_weights: str) -> None:
    X, y = rare(3)
    X_new, y_new = GDCSampler(params={"cov": cov, "cov_weights": cov_weights, "k": 3}, random_state=0).fit_resample(
        X, y
    )
    assert Counter(y_new)["rare"] == 60
    assert np.isfinite(X_new).all()


def test_base_classes_are_the_populated_ones() -> None:
    X, y = rare(5)
    sampler = GDCSampler(random_state=0)
    sampler.fit_resample(X, y)
    assert sampler.base_classes_ == ["a", "b", "c"]
    two = (y == "a") | (y == "rare")
    assert Counter(sampler.fit_resample(X[two], y[two])[1])["rare"] == 60
    assert sampler.base_classes_ == ["a"]


def test_strategy_randomness_and_containers() -> None:
    X, y = rare(2)
    columns = [f"f{i}" for i in range(X.shape[1])]
    make = lambda state, **kw: GDCSampler(random_state=state, **kw).fit_resample(X, y)[0]  # noqa: E731
    assert (make(0) == make(0)).all()
    assert (make(0)[len(X) :] != make(1)[len(X) :]).any()
    assert (make(None)[len(X) :] != make(None)[len(X) :]).any()
    assert len(make(0, sampling_strategy={"rare": 10})) == len(X) + 8
    assert len(GDCSampler(random_state=0).fit_resample(X[:180], y[:180])[0]) == 180  # balanced already
    frame, series = GDCSampler(random_state=0).fit_resample(
        pd.DataFrame(X, columns=columns), pd.Series(y, name="class")
    )
    assert frame.columns.tolist() == columns
    assert series.name == "class"
    np.testing.assert_allclose(frame.to_numpy(), make(0))
    assert GDCSampler(random_state=0).fit_resample(X.astype(np.float32), y)[0].dtype == np.float32
    assert sparse.issparse(GDCSampler(random_state=0).fit_resample(sparse.csr_matrix(X), y)[0])


def test_pipeline_grid_clone_and_pickle(tmp_path: Any) -> None:
    X, y = rare(8)
    pipe = make_pipeline(GDCSampler(random_state=0), LogisticRegression())
    grid = GridSearchCV(pipe, {"gdcsampler__params": [{"k": 1}, {"k": 2, "alpha1": 0.1}]}, cv=2, error_score="raise")
    assert grid.fit(X, y).best_score_ > 0.5
    sampler = GDCSampler(random_state=0)
    expected = sampler.fit_resample(X, y)[0]
    joblib.dump(sampler, tmp_path / "sampler.joblib")
    assert (joblib.load(tmp_path / "sampler.joblib").fit_resample(X, y)[0] == expected).all()
    assert (clone(sampler).fit_resample(X, y)[0] == expected).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": GDCParams(l2=True)}, "has l2=True, .* cannot be mapped back"),
        ({"preset": "authors"}, "preset='authors' has transform_base=False"),
        ({"preset": "papr"}, "preset 'papr' is unknown; did you mean 'paper'"),
        ({"params": {"beta": -1.0}}, "beta=-1.0 has no inverse for every sampled point; use a power from 0 to 2"),
        ({"shift": 2}, "shift=2 is out of range; use a number from 0 to 1"),
        ({"params": {"k": 4}}, "k=4 must be an integer from 1 to the number of base classes, 3"),
        ({"params": {"alpha1": -1}}, "alpha1=-1 is out of range"),
        ({"params": {"alfa1": 1}}, "no parameter 'alfa1'; did you mean 'alpha1'"),
        ({"params": 3}, "params=3 must be a mapping"),
        ({"bank": 3}, "bank=3 is not a bank"),
        ({"bank": (np.eye(4), [0, 0, 1, 1])}, "X has 6 features, but the bank has 4"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GDCSampler(**settings).fit_resample(*rare(1))


def test_bad_data_are_refused() -> None:
    X, y = rare(1)
    X[5, 2] = np.nan
    with pytest.raises(InputError, match="X has NaN in row 5"):
        GDCSampler().fit_resample(X, y)
    with pytest.raises(InputError, match=r"no class has two rows, .* give a bank"):
        GDCSampler(sampling_strategy={0: 5, 1: 5}).fit_resample(np.eye(2), [0, 1])


def test_preset_with_too_large_k_warns() -> None:
    preset = GDCParams(beta=0.5, k=8, alpha1=1.0, alpha2_ratio=0.0)
    with pytest.warns(FewcalWarning, match="has k=8 base classes and the bank 3"):
        GDCSampler(preset=preset, random_state=0).fit_resample(*rare(1))


def test_without_imbalanced_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "imblearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "fewcal.estimators.sampler")
    with pytest.raises(ImportError, match=r"pip install 'fewcal\[imblearn\]'"):
        importlib.import_module("fewcal.estimators.sampler")


@pytest.mark.parametrize("kind", ["tukey", "yeo-johnson", "none"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0, 1.7, 2.0])
@pytest.mark.parametrize("center", [False, True])
def test_inverse_undoes_the_transform(kind: str, beta: float, center: bool) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(50, 4)) * 3)
    x = x.abs() if kind == "tukey" else x
    there = fit_gaussianization(x, beta, kind, center)
    torch.testing.assert_close(there.inverse(there(x)), x, rtol=1e-6, atol=1e-6)


def test_inverse_of_unit_rows_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be undone"):
        Gaussianization("none", l2=True).inverse(torch.ones(1, 2))
