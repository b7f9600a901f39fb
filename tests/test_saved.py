"""Classifiers in files, and classes or examples that come later."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression

from conftest import ProcessGroup
from fewcal import BaseBank, GDCClassifier
from fewcal.errors import FileFormatError, InputError
from fewcal.estimators.saved import read_fit


def task(world: ProcessGroup, number: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return world.support[number], np.array(["ant", "bee", "cat"])[world.labels[number]], world.query[number]


@pytest.fixture(params=["default", "plain", "plain, l2", "joint", "sgd"])
def fitted(request: pytest.FixtureRequest, world: ProcessGroup) -> tuple[GDCClassifier, np.ndarray]:
    settings = {
        "default": {"bank": world.bank()},
        "plain": {},
        "plain, l2": {"beta": 0.5, "l2": True},
        "joint": {"bank": world.bank(), "preset": "paper", "head": "closed_form", "k": 3},
        "sgd": {"bank": world.bank(), "head": "sgd", "random_state": 7},
    }[request.param]
    x, y, query = task(world)
    return GDCClassifier(**settings).fit(x, y), query


def test_a_loaded_classifier_answers_the_same(fitted: tuple[GDCClassifier, np.ndarray], tmp_path: Path) -> None:
    classifier, query = fitted
    path = classifier.save(tmp_path / "a.fewcal", extractor="net@0123")
    loaded = GDCClassifier.load(path)
    np.testing.assert_allclose(loaded.predict_proba(query), classifier.predict_proba(query), atol=2e-5)
    assert loaded.predict(query).tolist() == classifier.predict(query).tolist()
    assert loaded.classes_.tolist() == ["ant", "bee", "cat"]
    assert loaded.extractor_ == "net@0123"
    assert loaded.n_features_in_ == query.shape[1]
    # A second journey changes nothing at all.
    again = GDCClassifier.load(loaded.save(tmp_path / "b.fewcal"))
    assert np.array_equal(again.predict_proba(query), loaded.predict_proba(query))
    assert again.extractor_ == "net@0123"


def test_more_examples_are_a_new_fit_on_all(fitted: tuple[GDCClassifier, np.ndarray], world: ProcessGroup) -> None:
    classifier, query = fitted
    x, y, _ = task(world)
    more, names, _ = task(world, 1)
    names = np.where(names == "cat", "mouse", names)  # known classes and a new one
    whole = GDCClassifier(**classifier.get_params()).fit(np.concatenate([x, more]), np.concatenate([y, names]))
    assert np.array_equal(classifier.add_examples(more, names).predict_proba(query), whole.predict_proba(query))
    assert classifier.classes_.tolist() == ["ant", "bee", "cat", "mouse"]
    stream = GDCClassifier(**classifier.get_params())
    stream.partial_fit(x, y, classes=["ant", "bee", "cat", "mouse"]).partial_fit(more, names)
    assert np.array_equal(stream.predict_proba(query), whole.predict_proba(query))


def test_a_class_added_after_loading_is_a_new_fit(world: ProcessGroup, tmp_path: Path) -> None:
    x, y, query = task(world)
    more = task(world, 1)[0][:2]
    bank = world.bank()
    loaded = GDCClassifier.load(GDCClassifier(bank).fit(x, y).save(tmp_path / "a.fewcal")).add_class(more, "mouse")
    whole = GDCClassifier(bank).fit(np.concatenate([x, more]), [*y, "mouse", "mouse"])
    np.testing.assert_allclose(loaded.predict_proba(query), whole.predict_proba(query), atol=2e-5)


def test_only_moments_of_the_bank_are_kept_unless_asked(world: ProcessGroup, tmp_path: Path) -> None:
    x, y, query = task(world)
    classifier = GDCClassifier(world.bank()).fit(x, y)
    small, large = classifier.save(tmp_path / "small"), classifier.save(tmp_path / "large", keep_bank=True)
    assert "bank.rows" not in load_file(small)
    assert "bank.rows" in load_file(large)
    assert read_fit(large).bank.fingerprint == world.bank().fingerprint
    # What needs rows keeps them.
    joint = GDCClassifier(world.bank(), preset="paper", head="closed_form", k=3).fit(x, y)
    assert "bank.rows" in load_file(joint.save(tmp_path / "joint"))
    # Rejection and explanation come from moments as well.
    loaded = GDCClassifier.load(small)
    np.testing.assert_allclose(loaded.outlier_pvalue(query), classifier.outlier_pvalue(query), atol=0.01)
    assert loaded.explain().classes[0].bases == classifier.explain().classes[0].bases


def test_integer_labels_and_column_names_survive(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [0.0, 1.0, 0.2], "b": [1.0, 0.0, 0.9]})
    loaded = GDCClassifier.load(GDCClassifier().fit(frame, [3, 7, 3]).save(tmp_path / "a"))
    assert loaded.predict(frame).tolist() == [3, 7, 3]
    assert loaded.predict(frame).dtype.kind == "i"
    assert loaded.feature_names_in_.tolist() == ["a", "b"]


def test_files_of_others_damaged_and_newer_ones_are_refused(world: ProcessGroup, tmp_path: Path) -> None:
    x, y, _ = task(world)
    good = GDCClassifier().fit(x, y).save(tmp_path / "good")
    with pytest.raises(InputError, match="no classifier at"):
        GDCClassifier.load(tmp_path / "missing")
    world.bank().save(tmp_path / "bank")
    with pytest.raises(FileFormatError, match="is a fewcal bank, but not"):
        GDCClassifier.load(tmp_path / "bank")
    save_file({"x": torch.zeros(2)}, str(tmp_path / "foreign"))
    with pytest.raises(FileFormatError, match="not a fewcal classifier"):
        GDCClassifier.load(tmp_path / "foreign")
    for size in (0, 9, 200, good.stat().st_size - 1):
        (tmp_path / "cut").write_bytes(good.read_bytes()[:size])
        with pytest.raises(FileFormatError, match="truncated"):
            GDCClassifier.load(tmp_path / "cut")
    tensors = load_file(good)
    header = good.read_bytes()
    meta = json.loads(json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]["fewcal"])
    changes: list[tuple[dict[str, object], str]] = [
        ({"version": 99}, "upgrade fewcal"),
        ({"classes": ["ant"]}, "damaged"),
        ({"label_type": "nonsense"}, "damaged"),
        ({"params": {"no such": 1}}, "damaged"),
    ]
    for change, told in changes:
        changed = meta | change
        save_file(tensors, str(tmp_path / "bad"), metadata={"fewcal": json.dumps(changed)})
        with pytest.raises(FileFormatError, match=told):
            GDCClassifier.load(tmp_path / "bad")
    for name, wrong in {"support": torch.full((6, 3), torch.nan), "labels": torch.zeros(6, dtype=torch.int32)}.items():
        save_file(tensors | {name: wrong}, str(tmp_path / "bad"), metadata={"fewcal": json.dumps(meta)})
        with pytest.raises(FileFormatError, match="damaged"):
            GDCClassifier.load(tmp_path / "bad")


def test_what_cannot_be_added_or_saved_is_told(world: ProcessGroup, tmp_path: Path) -> None:
    x, y, _ = task(world)
    classifier = GDCClassifier().fit(x, y)
    with pytest.raises(InputError, match="there is a class 'ant' already"):
        classifier.add_class(x[:1], "ant")
    with pytest.raises(InputError, match="labels of one type"):
        classifier.add_examples(x[:1], [3])
    with pytest.raises(InputError, match="one label per row"):
        classifier.add_examples(x[:2], ["ant"])
    with pytest.raises(ValueError, match="features"):
        classifier.add_examples(x[:1, :2], ["ant"])
    with pytest.raises(InputError, match="'dog', which is not among"):
        classifier.partial_fit(x[:1], ["dog"], classes=["ant", "bee"])
    assert classifier.support_[0].shape == x.shape  # nothing was added on the way
    other = GDCClassifier(world.bank(), head=LogisticRegression(), preset="paper", k=3).fit(x, y)
    with pytest.raises(InputError, match="named head"):
        other.save(tmp_path / "a")
    with pytest.raises(InputError, match="random_state"):
        GDCClassifier(random_state=np.random.RandomState(0)).fit(x, y).save(tmp_path / "a")


def test_a_transform_without_a_bank_is_that_of_the_gaussianizer(relu_world: ProcessGroup) -> None:
    from sklearn.pipeline import make_pipeline

    from fewcal import Gaussianizer

    x, y, query = task(relu_world)
    pipeline = make_pipeline(Gaussianizer(beta=0.5, l2=True), GDCClassifier()).fit(x, y)
    own = GDCClassifier(beta=0.5, l2=True).fit(x, y)
    assert np.array_equal(own.predict_proba(query), pipeline.predict_proba(query))


def test_a_raw_bank_is_not_needed_where_a_built_one_is(world: ProcessGroup, tmp_path: Path) -> None:
    """A bank of moments is saved as it is."""
    x, y, query = task(world)
    p = GDCClassifier(world.bank()).fit(x, y).params_
    assert p is not None
    space = world.bank().transformed(beta=p.beta, kind=p.kind, center=p.center, l2=p.l2, moments=True)
    moments = BaseBank.load(space.subset(torch.arange(len(space))).save(tmp_path / "bank"))
    classifier = GDCClassifier(moments).fit(x, y)
    loaded = GDCClassifier.load(classifier.save(tmp_path / "a"))
    np.testing.assert_allclose(loaded.predict_proba(query), classifier.predict_proba(query), atol=2e-5)
