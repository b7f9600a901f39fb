"""GDCClassifier and Gaussianizer as scikit-learn users meet them."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from conftest import SmallData, make_world
from fewcal import BaseBank, Gaussianizer, GDCClassifier, GDCParams
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import spaces
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators import inputs
from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.gaussianize import fit_gaussianization
from fewcal.methods import GDC, TaskBatch
from fewcal.params import RENAMED
from fewcal.presets import get_preset

WORLD = make_world(1, signed=True, tasks=1, ways=4, shots=3)
NAMES = np.array(["ant", "bee", "cat", "dog"])


def task(world: SmallData = WORLD) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Support rows and names, query rows and names."""
    return world.support[0], NAMES[world.labels[0]], world.query[0], NAMES[world.query_labels[0]]


@pytest.fixture(scope="module")
def bank() -> BaseBank:
    return WORLD.bank()


# ---- GDCClassifier with a bank ---------------------------------------------------------------------------------------


def test_every_parameter_of_the_method_is_a_parameter() -> None:
    own = [p for p in signature(GDCClassifier).parameters if p not in ("bank", "preset", "device", "random_state")]
    assert own == [*(f.name for f in fields(GDCParams)), *RENAMED]


@pytest.mark.parametrize("head", ["closed_form", "lbfgs", "sgd"])
def test_it_is_the_method_of_the_core(bank: BaseBank, head: str) -> None:
    X, y, Q, _ = task()
    clf = GDCClassifier(bank, "whitened", head=head, l2=True, random_state=3).fit(X, y)
    method = GDC(get_preset("whitened").with_changes(head=head, k=len(bank)))
    method.prepare(bank)
    codes = torch.from_numpy(np.searchsorted(NAMES, y))[None]
    core = method.fit(TaskBatch(method.transform(torch.from_numpy(X))[None], codes, 4, TaskRandom(3)))
    logits = core.logits(method.transform(torch.from_numpy(Q))[None])[0]
    np.testing.assert_allclose(clf.decision_function(Q), logits.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(clf.predict_proba(Q), torch.softmax(logits, -1).numpy(), rtol=1e-4, atol=1e-6)
    assert (clf.predict(Q) == NAMES[logits.argmax(-1)]).all()


@pytest.mark.parametrize("head", [KNeighborsClassifier(3), LinearSVC(), LogisticRegression()])
def test_any_classifier_as_head(bank: BaseBank, head: Any) -> None:
    X, y, Q, truth = task()
    clf = GDCClassifier(bank, head=head, n=30).fit(X, y)
    assert clf.score(Q, truth) > 0.8
    assert clf.set_params(head__n_neighbors=1).head.n_neighbors == 1 if isinstance(head, KNeighborsClassifier) else True


def test_shapes_binary_and_multiclass(bank: BaseBank) -> None:
    X, y, Q, _ = task()
    clf = GDCClassifier(bank).fit(X, y)
    assert clf.decision_function(Q).shape == clf.predict_proba(Q).shape == (len(Q), 4)
    np.testing.assert_allclose(clf.predict_proba(Q).sum(axis=1), 1)
    two = np.isin(y, ["ant", "dog"])
    clf.fit(X[two], y[two])
    scores = clf.decision_function(Q)
    assert scores.shape == (len(Q),)
    assert ((scores > 0) == (clf.predict(Q) == "dog")).all()
    np.testing.assert_allclose(clf.predict_proba(Q)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-5)


def test_one_shot_unequal_shots_and_label_types(bank: BaseBank) -> None:
    X, y, Q, truth = task()
    first = [0, 3, 6, 9]
    assert GDCClassifier(bank).fit(X[first], y[first]).score(Q, truth) > 0.8
    unequal = [0, 1, 2, 3, 6, 7, 9]
    for head in ("closed_form", "lbfgs"):
        assert GDCClassifier(bank, head=head, n_per="class", n=50).fit(X[unequal], y[unequal]).score(Q, truth) > 0.8
    numbers = GDCClassifier(bank).fit(X, np.searchsorted(NAMES, y) * 10 - 5)
    assert numbers.classes_.tolist() == [-5, 5, 15, 25]
    assert (NAMES[(numbers.predict(Q) + 5) // 10] == GDCClassifier(bank).fit(X, y).predict(Q)).all()
    shuffled = np.random.default_rng(0).permutation(len(X))
    assert GDCClassifier(bank).fit(X[shuffled], y[shuffled]).classes_.tolist() == sorted(NAMES)


@pytest.mark.filterwarnings("error")  # one row for each class is no reason to suspect a regression
def test_hundreds_of_classes() -> None:
    world = make_world(5, tasks=1, ways=300, shots=1, queries=1, dim=24, spread=0.1)
    clf = GDCClassifier(world.bank(), "whitened", k=9, trust=1.0).fit(world.support[0], world.labels[0])
    assert clf.predict_proba(world.query[0]).shape == (300, 300)
    assert clf.score(world.query[0], world.query_labels[0]) > 0.9
    assert "more classes" in str(clf.explain())


def test_pandas_in(bank: BaseBank) -> None:
    X, y, Q, _ = task()
    columns = [f"f{i}" for i in range(X.shape[1])]
    clf = GDCClassifier(bank).fit(pd.DataFrame(X, columns=columns), pd.Series(y))
    assert clf.feature_names_in_.tolist() == columns
    assert clf.n_features_in_ == len(columns)
    assert (clf.predict(pd.DataFrame(Q, columns=columns)) == GDCClassifier(bank).fit(X, y).predict(Q)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(pd.DataFrame(Q, columns=columns[::-1]))


def test_the_classifier_of_the_command_line_is_the_same_without_scikit_learn(bank: BaseBank) -> None:
    X, y, Q, truth = task()
    full, bare = GDCClassifier(bank).fit(X, y), FewShotClassifier(bank).fit(X, y)
    assert np.array_equal(full.predict_proba(Q), bare.predict_proba(Q))
    assert full.score(Q, truth) == bare.score(Q, truth)
    assert FewShotClassifier(bank).set_params(k=3).k == 3
    with pytest.raises(InputError, match="did you mean 'preset'"):
        FewShotClassifier().set_params(prset="paper")
    with pytest.raises(NotFittedError, match="call fit first"):
        FewShotClassifier().predict(Q)
    script = """
import sys
import numpy as np
import fewcal.apply.classify, fewcal.apply.saved, fewcal.apply.studio.project, fewcal.apply.serve.model
from fewcal.estimators.few_shot import FewShotClassifier
rows = np.random.default_rng(0).random((4, 32), np.float32)
FewShotClassifier().fit(rows, np.array(["a", "b", "a", "b"])).predict_proba(rows)
print({"sklearn", "scipy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("made", [list, pd.DataFrame, lambda x: np.asfortranarray(x), lambda x: x.astype(np.float32)])
def test_arrays_are_answered_like_what_scikit_learn_makes_arrays_of(bank: BaseBank, made: Any) -> None:
    X, y, Q, _ = task()
    plain = GDCClassifier(bank).fit(X.astype(np.float64), y).predict_proba(Q.astype(np.float64))
    assert np.allclose(GDCClassifier(bank).fit(made(X), list(y)).predict_proba(made(Q)), plain, atol=1e-6)


def test_half_precision_is_answered_as_scikit_learn_would_hold_it(
    bank: BaseBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    support, names, queries, _ = task()
    half, asked = support.astype(np.float16), queries.astype(np.float16)
    expected = GDCClassifier(bank).fit(half.astype(np.float64), names)
    monkeypatch.setattr(inputs, "_validated", None)  # a millisecond that is not needed
    model = GDCClassifier(bank).fit(half, names)
    assert model.support_[0].dtype == np.float64
    assert (model.decision_function(asked) == expected.decision_function(asked.astype(np.float64))).all()


def test_column_names_are_remembered_and_forgotten(bank: BaseBank) -> None:
    X, y, Q, _ = task()
    columns = [f"f{i}" for i in range(X.shape[1])]
    clf = GDCClassifier(bank).fit(pd.DataFrame(X, columns=columns), y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        clf.predict(Q)
    clf.fit(X, y)
    assert not hasattr(clf, "feature_names_in_")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.predict(Q)


def test_bank_as_path_or_rows(bank: BaseBank, tmp_path: Path) -> None:
    X, y, Q, _ = task()
    expected = GDCClassifier(bank, "whitened").fit(X, y).decision_function(Q)
    path = bank.save(tmp_path / "bank.safetensors")
    for given in (path, str(path), (WORLD.x, WORLD.y)):
        got = GDCClassifier(given, "whitened").fit(X, y).decision_function(Q)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    smaller = BaseBank().fit(WORLD.x[:60], WORLD.y[:60])
    smaller.save(path)  # a new file under the same name is read again
    assert not np.allclose(GDCClassifier(path, "whitened").fit(X, y).decision_function(Q), expected)


def test_spaces_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, Q, _ = task()
    fresh = WORLD.bank()
    calls = []
    build = spaces.from_rows
    monkeypatch.setattr(spaces, "from_rows", lambda *a: (calls.append(1), build(*a))[1])
    clf = GDCClassifier(fresh)
    for _ in range(3):
        clf.fit(X, y)
        clone(clf).fit(X, y).predict(Q)
    assert clone(clf).bank is fresh
    assert len(calls) == 1


def test_randomness(bank: BaseBank) -> None:
    X, y, Q, _ = task()
    make = lambda state: GDCClassifier(bank, head="lbfgs", n=20, random_state=state).fit(X, y).decision_function(Q)  # noqa: E731
    assert (make(0) == make(0)).all()
    assert (make(0) != make(1)).any()
    assert (make(None) != make(None)).any()
    assert (make(np.random.RandomState(0)) == make(np.random.RandomState(0))).all()


def test_tools_of_scikit_learn(bank: BaseBank, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 12))
    X, y = make_blobs(60, centers=centres, cluster_std=0.35, random_state=0)
    names = NAMES[y]
    grid = GridSearchCV(
        GDCClassifier(bank), {"k": np.arange(1, 4), "m": [0.5, 2.0], "beta": [0.5, 1.0]}, cv=2, error_score="raise"
    )
    grid.fit(X, names)
    assert grid.best_score_ > 0.9
    assert cross_val_score(make_pipeline(Gaussianizer(center=True, l2=True), GDCClassifier()), X, names).mean() > 0.9
    for clf in (GDCClassifier(bank, head=KNeighborsClassifier(), n=10), GDCClassifier(bank), GDCClassifier()):
        clf.fit(X, names)
        joblib.dump(clf, tmp_path / "clf.joblib")
        loaded = joblib.load(tmp_path / "clf.joblib")
        assert (loaded.predict_proba(X) == clf.predict_proba(X)).all()
        assert (clone(clf).fit(X, names).predict_proba(X) == clf.predict_proba(X)).all()


def test_a_classifier_from_a_file_does_not_pickle_its_bank(tmp_path: Path) -> None:
    X, y, _, _ = task()
    world = make_world(1, signed=True, rows=(400, 500))
    path = world.bank().save(tmp_path / "bank.safetensors")
    joblib.dump(GDCClassifier(path).fit(X, y), tmp_path / "clf.joblib")
    assert (tmp_path / "clf.joblib").stat().st_size < path.stat().st_size / 5


def test_k_of_a_preset_is_capped(bank: BaseBank) -> None:
    X, y, _, _ = task()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewcalWarning)
        assert GDCClassifier(bank, "whitened", k=9, trust=1.0).fit(X, y).params_.k <= len(bank)
    with pytest.warns(FewcalWarning, match="asks for k=10 base classes and the bank has 9; k=9 is used"):
        clf = GDCClassifier(bank, "paper/dogs/1shot", head="lbfgs", n=10, alpha2_ratio=0).fit(X, y)
    assert clf.params_.k == 9
    with pytest.raises(InputError, match="k=10 must be an integer from 1 to the number of base classes, 9"):
        GDCClassifier(bank, k=10).fit(X, y)
    with pytest.raises(InputError, match="k=10"):
        GDCClassifier(bank, GDCParams(k=10)).fit(X, y)


# ---- explain ---------------------------------------------------------------------------------------------------------


def test_explain_by_hand() -> None:
    bank = BaseBank().fit(np.array([[0.0, 0], [2, 0], [9, 0], [11, 0]]), ["near", "near", "far", "far"])
    plain = GDCParams(beta=1.0, k=2, m=1.0, alpha1=1.0, alpha2_ratio=0.0, head="closed_form")
    found = GDCClassifier(bank, plain).fit([[0.0, 0.0], [10.0, 0.0]], ["a", "b"]).explain()
    a, b = found.points
    assert a.bases == ["near", "far"]
    assert a.distances == pytest.approx([1, 100])
    assert a.weights == pytest.approx([1 / 2, 1 / 101])
    total = 1 + 1 / 2 + 1 / 101
    assert a.shares == pytest.approx([0.5 / total, 1 / 101 / total])
    assert a.support_share == pytest.approx(1 / total)
    assert a.moved == pytest.approx((0.5 * 1 + 10 / 101) / total)
    assert found.typical_distance == pytest.approx(9)
    assert a.moved_relative == pytest.approx(a.moved / 9)
    assert b.bases == ["far", "near"]
    assert found.classes[1].shares == pytest.approx(b.shares)
    assert found.classes[1].moved == pytest.approx(b.moved)
    assert found.warnings == []


def test_explain_by_class_as_dict_frame_and_text(bank: BaseBank) -> None:
    X, y, _, _ = task()
    found = GDCClassifier(bank, k=3).fit(X, y).explain()
    assert [c.label for c in found.classes] == NAMES.tolist()
    assert [p.label for p in found.points] == y.tolist()
    for c in found.classes:
        mine = [p for p in found.points if p.label == c.label]
        assert c.support_share == pytest.approx(np.mean([p.support_share for p in mine]))
        assert c.shares == sorted(c.shares, reverse=True)
        assert sum(c.shares) + c.support_share == pytest.approx(1)
        assert c.moved <= np.mean([p.moved for p in mine]) + 1e-6
    assert json.loads(json.dumps(found.to_dict()))["points"][0]["label"] == "ant"
    frame = found.to_frame()
    assert len(frame) == len(X) * 3
    assert frame.groupby("row")["share"].sum().to_numpy() == pytest.approx(1 - frame.support_share[::3].to_numpy())
    assert "ant (3): itself" in str(found)


@pytest.mark.parametrize("rank", [None, 0])
def test_explain_warns_when_the_bases_are_too_far(rank: int | None) -> None:
    rng = np.random.default_rng(0)
    low = rng.normal(size=(6, 32))  # base and novel means share six directions; strangers lie elsewhere
    low /= np.linalg.norm(low, axis=1, keepdims=True)
    cloud = lambda mean, n: mean + 0.1 * rng.normal(size=(n, 32))  # noqa: E731
    rows = np.concatenate([cloud(rng.normal(size=6) @ low, 30) for _ in range(40)])
    labels = np.repeat(np.arange(40), 30)
    settings: dict[str, Any] = {} if rank is None else {"beta": 1.0, "center": True, "l2": True}
    transform = fit_gaussianization(torch.from_numpy(rows).float(), **settings) if settings else None
    bank = BaseBank(rank, transform=transform).fit(rows, labels)
    near = np.concatenate([cloud(rng.normal(size=6) @ low, 2) for _ in range(5)])
    elsewhere = np.linalg.svd(low)[2][6:]
    far = np.concatenate([cloud(3 * rng.normal(size=26) @ elsewhere, 2) for _ in range(5)])
    y = np.repeat(np.arange(5), 2)
    clf = GDCClassifier(bank, beta=1.0, center=True, l2=True)
    assert not any("too far to help" in w for w in clf.fit(near, y).explain().warnings)
    found = clf.fit(far, y).explain()
    assert any("too far to help" in w for w in found.warnings)
    assert "warning: 5 of 5 classes" in str(found)


def test_explain_warns_when_weights_vanish(bank: BaseBank) -> None:
    X, y, _, _ = task()
    found = GDCClassifier(bank, GDCParams(beta=1.0, m=4.0, k=2, alpha1=1.0, head="closed_form", alpha2_ratio=0)).fit(
        X, y
    )
    assert any("next to nothing" in w for w in found.explain().warnings)


def test_explain_reads_well_when_nothing_was_taken_from_the_bases(bank: BaseBank) -> None:
    X, y, _, _ = task()
    text = str(GDCClassifier(bank, trust=0.0).fit(X, y).explain())
    assert "ant (3): itself 100%; not moved" in text
    assert ", ;" not in text


def test_labels_of_mixed_types_are_refused(bank: BaseBank) -> None:
    X, y, _, _ = task()
    for position, odd in ((0, "int"), (1, "NoneType")):
        mixed = y.astype(object)
        mixed[position] = {"int": 7, "NoneType": None}[odd]
        with pytest.raises(InputError, match=rf"y mixes labels of several types \({odd}, str\)"):
            GDCClassifier(bank).fit(X, mixed)


def test_explain_counts_one_other(bank: BaseBank) -> None:
    X, y, _, _ = task()
    text = str(GDCClassifier(bank, k=4, trust=1.0).fit(X[::3], y[::3]).explain())
    assert ", 1 other " in text


# ---- without a bank --------------------------------------------------------------------------------------------------


def test_no_bank_one_shot_is_nearest_mean() -> None:
    X, y, Q, _ = task()
    first = [0, 3, 6, 9]
    clf = GDCClassifier().fit(X[first], y[first])
    nearest = np.square(Q[:, None] - X[first]).sum(-1).argmin(1)
    assert (clf.predict(Q) == y[first][nearest]).all()
    assert clf.params_ is None


def test_no_bank_probabilities_are_tempered() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)) + 0.7 * np.repeat([[1], [-1]], 1000, axis=0)
    y = np.repeat([1, 0], 1000)
    p = GDCClassifier().fit(x[::2], y[::2]).predict_proba(x[1::2])[:, 1]
    confident = p > 0.9
    assert abs(y[1::2][confident].mean() - p[confident].mean()) < 0.05


def test_no_bank_says_so() -> None:
    X, y, _, _ = task()
    found = GDCClassifier().fit(X, y).explain()
    assert "nothing was calibrated" in str(found)
    assert found.to_frame().empty
    assert found.to_dict()["points"] == []
    with pytest.warns(FewcalWarning, match="without base classes k, m have no effect"):
        GDCClassifier(k=3, m=1.0).fit(X, y)


def test_no_bank_with_identical_rows() -> None:
    clf = GDCClassifier().fit([[0.0, 1], [0, 1], [2, 3], [2, 3]], [0, 0, 1, 1])
    assert clf.predict([[0.0, 1.1], [2, 2.9]]).tolist() == [0, 1]
    assert np.isfinite(clf.predict_proba([[0.0, 1.1]])).all()


# ---- bad input -------------------------------------------------------------------------------------------------------

X0, Y0, Q0, _ = task()


def spoilt(value: float) -> np.ndarray:
    out = X0.copy()
    out[2, 1] = value
    return out


@pytest.mark.parametrize(
    ("settings", "X", "y", "message"),
    [
        ({}, spoilt(np.nan), Y0, "X has NaN in row 2; drop or impute"),
        ({}, spoilt(np.inf), Y0, "X has infinity in row 2; drop or impute"),
        ({}, X0[:, :5], Y0, "X has 5 features, but the bank has 12; both must come from the same feature extractor"),
        ({}, X0[:0], Y0[:0], "X has no rows"),
        ({}, X0[:3], Y0[:3], "y has one class only, 'ant'; give support rows of at least two classes"),
        ({}, X0, Y0[:-1], "X has 12 rows and y has 11 labels; give exactly one label per row"),
        ({}, X0.astype(str).astype(object) + "x", Y0, "X holds values that are not numbers"),
        ({"k": 0}, X0, Y0, "k=0 is out of range"),
        ({"k": 10}, X0, Y0, "k=10 must be an integer from 1 to the number of base classes, 9"),
        ({"k": 2.5}, X0, Y0, "k=2.5 must be a whole number"),
        ({"m": -1.0}, X0, Y0, "m=-1.0 is out of range; use a number ≥ 0"),
        ({"alpha1": -1.0}, X0, Y0, "alpha1=-1.0 is out of range; use a number ≥ 0"),
        ({"alpha2_ratio": float("nan")}, X0, Y0, "alpha2_ratio=nan is out of range"),
        ({"kind": "tukey", "beta": 0.5}, X0, Y0, "kind='tukey' with negative base features"),
        ({"preset": "papr"}, X0, Y0, "preset 'papr' is unknown; did you mean 'paper'"),
        ({"preset": 3}, X0, Y0, "preset=3 is not a preset; use a name, a preset file or GDCParams"),
        ({"head": "svm"}, X0, Y0, "head='svm' is unknown; use one of closed_form, lbfgs, sgd"),
        ({"head": 3}, X0, Y0, "head=3 is neither a name nor a classifier"),
        ({"bank": 7}, X0, Y0, "bank=7 is not a bank; use a BaseBank, a path"),
        ({"bank": "/nowhere/bank.safetensors"}, X0, Y0, "no bank at /nowhere/bank.safetensors"),
        ({"bank": (X0, Y0[:-1])}, X0, Y0, "base y has 11 labels for 12 rows"),
        ({"bank": (X0[:4], Y0[:4])}, X0, Y0, "1 base class.* with a single row: 'bee'"),
        ({"device": "gpu"}, X0, Y0, "device='gpu' is not a device"),
    ],
)
def test_bad_input_names_the_value_and_the_remedy(
    bank: BaseBank, settings: dict[str, Any], X: Any, y: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        GDCClassifier(**{"bank": bank, **settings}).fit(X, y)
    assert "\n" not in str(caught.value)


def test_bad_queries(bank: BaseBank) -> None:
    clf = GDCClassifier(bank).fit(X0, Y0)
    with pytest.raises(ValueError, match="X has 5 features, but GDCClassifier is expecting 12 features"):
        clf.predict(Q0[:, :5])
    with pytest.raises(InputError, match="X has NaN in row 2"):
        clf.predict(spoilt(np.nan))
    positive = make_world(1, tasks=1, ways=2, shots=1)
    clf = GDCClassifier(positive.bank(), "whitened", beta=0.5).fit(positive.support[0], positive.labels[0])
    with pytest.raises(InputError, match=r"X has negative features .* use kind='yeo-johnson'"):
        clf.predict(-positive.query[0])
    with pytest.raises(InputError, match="X has negative features"):
        clf.fit(-positive.support[0], positive.labels[0])


# ---- Gaussianizer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
def test_gaussianizer_is_the_core_and_has_a_way_back(signed: bool, beta: float) -> None:
    x = make_world(4, signed=signed).x.astype(np.float64)
    g = Gaussianizer(beta, center=True).fit(x)
    z = g.transform(x)
    np.testing.assert_allclose(
        z, fit_gaussianization(torch.from_numpy(x), beta, center=True)(torch.from_numpy(x)), atol=1e-5
    )
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(g.inverse_transform(z), x, atol=1e-6)
    assert g.kind_ == ("yeo-johnson" if signed else "tukey")


def test_gaussianizer_in_parts_types_and_names() -> None:
    x = make_world(4, signed=True).x
    whole = Gaussianizer(center=True, l2=True).fit(x)
    parts = Gaussianizer(center=True, l2=True)
    for chunk in np.array_split(x, 5):
        parts.partial_fit(chunk)
    assert parts.n_samples_seen_ == len(x)
    np.testing.assert_allclose(parts.transform(x), whole.transform(x), rtol=1e-5, atol=1e-6)
    assert whole.transform(x).dtype == np.float32
    assert whole.transform(x.astype(np.float64)).dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(whole.transform(x), axis=1), 1, rtol=1e-5)
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])
    out = Gaussianizer(beta=1.0).set_output(transform="pandas").fit_transform(frame)
    assert out.columns.tolist() == frame.columns.tolist()
    assert not hasattr(whole, "inverse_transform")
    with pytest.raises(AttributeError) as refused:
        whole.inverse_transform(x)
    assert "cannot be undone; use l2=False" in str(refused.value.__cause__)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 11}, "beta=11 is out of range"),
        ({"kind": "box-cox"}, "kind='box-cox' is unknown; use one of auto, tukey"),
        ({"eps": 0.0}, "eps=0.0 must be > 0"),
        ({"kind": "tukey"}, "kind='tukey' with negative base features"),
    ],
)
def test_gaussianizer_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Gaussianizer(**settings).fit(X0)


def test_gaussianizer_leaves_its_input_alone() -> None:
    x = np.abs(X0)
    before = x.copy()
    out = Gaussianizer(beta=1.0).fit_transform(x)
    out += 1
    assert (x == before).all()


@pytest.mark.parametrize("preset", ["default", "paper", "authors", "dc"])
def test_numbers_at_the_edges_are_answered_or_refused(relu_world: SmallData, preset: str) -> None:
    x, y, query = relu_world.support[0], relu_world.labels[0], relu_world.query[0]
    for scale in (1e-30, 1e-10, 1e10, 1e14):
        bank = BaseBank().fit(relu_world.x.astype(np.float64) * scale, relu_world.y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers = GDCClassifier(bank=bank, preset=preset).fit(x * scale, y).predict_proba(query * scale)
        assert np.isfinite(answers).all()
    for scale in (1e16, 1e25, 1e200):
        with pytest.raises(InputError, match=r"do not fit single precision|beyond what float32 holds"):
            BaseBank().fit(relu_world.x.astype(np.float64) * scale, relu_world.y)
        with pytest.raises(InputError, match="do not fit single precision"):
            GDCClassifier(preset="default").fit(x.astype(np.float64) * scale, y)


def test_rows_backwards(relu_world: SmallData) -> None:
    x, y, query = relu_world.support[0], relu_world.labels[0], relu_world.query[0]
    forwards = GDCClassifier(relu_world.bank()).fit(x.copy(), y)
    backwards = GDCClassifier(relu_world.bank()).fit(x[::-1], y[::-1])
    np.testing.assert_allclose(backwards.predict_proba(query[::-1])[::-1], forwards.predict_proba(query), atol=1e-4)
