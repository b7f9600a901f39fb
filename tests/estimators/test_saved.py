"""Classifiers in files, and classes or examples that come later."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from conftest import SmallData
from fewcal import BaseBank, GDCClassifier
from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal.apply.saved import fit_model, load_model, predict_source
from fewcal.cli import main
from fewcal.errors import FileFormatError, InputError
from fewcal.estimators.saved import moments_only, read_fit
from fewcal.features import FeatureSplit
from fewcal.features.extractors import as_extractor
from limits import PATIENCE
from studio_project import COLOURS, colour_extractor, write_picture


def task(world: SmallData, number: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return world.support[number], np.array(["ant", "bee", "cat"])[world.labels[number]], world.query[number]


@pytest.fixture(params=["default", "plain", "plain, l2", "joint", "sgd"])
def fitted(request: pytest.FixtureRequest, world: SmallData) -> tuple[GDCClassifier, np.ndarray]:
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


def test_more_examples_are_a_new_fit_on_all(fitted: tuple[GDCClassifier, np.ndarray], world: SmallData) -> None:
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


def test_the_first_batch_may_hold_one_class_of_those_to_come(world: SmallData, tmp_path: Path) -> None:
    x, y, query = task(world)
    order = np.argsort(y, kind="stable")
    x, y = x[order], np.asarray(y)[order]
    one = int((y == y[0]).sum())
    stream = GDCClassifier(world.bank()).partial_fit(x[:1], y[:1], classes=np.unique(y))
    if one > 1:
        stream.partial_fit(x[1:one], y[1:one])
    for ask in (
        stream.predict,
        stream.predict_proba,
        lambda _: stream.save(tmp_path / "a"),
        lambda _: stream.explain(),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet; call partial_fit with rows of a second class"):
            ask(query)
    with pytest.raises(ValueError, match="features"):
        stream.partial_fit(x[:1, :2], y[:1])
    stream.partial_fit(x[one:], y[one:])
    whole = GDCClassifier(world.bank()).fit(x, y)
    assert np.array_equal(stream.predict_proba(query), whole.predict_proba(query))
    for classes in (None, ["ant"]):  # nothing says that another class will come
        with pytest.raises(InputError, match="one class only"):
            GDCClassifier().partial_fit(x[:1], ["ant"], classes=classes)


def test_a_class_added_after_loading_is_a_new_fit(world: SmallData, tmp_path: Path) -> None:
    x, y, query = task(world)
    more = task(world, 1)[0][:2]
    bank = world.bank()
    loaded = GDCClassifier.load(GDCClassifier(bank).fit(x, y).save(tmp_path / "a.fewcal")).add_class(more, "mouse")
    whole = GDCClassifier(bank).fit(np.concatenate([x, more]), [*y, "mouse", "mouse"])
    np.testing.assert_allclose(loaded.predict_proba(query), whole.predict_proba(query), atol=2e-5)


def test_only_moments_of_the_bank_are_kept_unless_asked(world: SmallData, tmp_path: Path) -> None:
    x, y, query = task(world)
    classifier = GDCClassifier(world.bank(), "whitened").fit(x, y)
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


def test_a_classifier_of_before_there_was_a_cap_and_flags_were_strict(world: SmallData, tmp_path: Path) -> None:
    x, y, queries = task(world)
    made = GDCClassifier(world.bank(), preset="whitened").fit(x, y)
    meta, tensors = read_tensors(made.save(tmp_path / "new.fewcal"))
    old = {name: int(value) if isinstance(value, bool) else value for name, value in meta["params"].items()}
    old |= {"trust": made.params_.trust, "whiten": made.params_.whiten}  # numbers or words, and no flags
    del old["max_spread"]
    write_tensors(tmp_path / "old.fewcal", tensors, {**meta, "params": old})
    again = GDCClassifier.load(tmp_path / "old.fewcal")
    assert again.params_ == made.params_
    np.testing.assert_array_equal(again.predict_proba(queries), made.predict_proba(queries))


def test_files_of_others_damaged_and_newer_ones_are_refused(world: SmallData, tmp_path: Path) -> None:
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
    (tmp_path / "flipped").write_bytes(header[:-1] + bytes([header[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="is not what was written"):
        GDCClassifier.load(tmp_path / "flipped")
    del meta["checksums"]  # as files of earlier versions are, which are read
    save_file(tensors, str(tmp_path / "earlier"), metadata={"fewcal": json.dumps(meta)})
    assert GDCClassifier.load(tmp_path / "earlier").classes_.tolist() == sorted(set(y))
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


def test_what_cannot_be_added_or_saved_is_told(world: SmallData, tmp_path: Path) -> None:
    x, y, _ = task(world)
    classifier = GDCClassifier().fit(x, y)
    with pytest.raises(InputError, match="there is a class 'ant' already"):
        classifier.add_class(x[:1], np.array(y)[0])  # a text of NumPy's, named as any other
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


def test_a_transform_without_a_bank_is_that_of_the_gaussianizer(relu_world: SmallData) -> None:
    from sklearn.pipeline import make_pipeline

    from fewcal import Gaussianizer

    x, y, query = task(relu_world)
    pipeline = make_pipeline(Gaussianizer(beta=0.5, l2=True), GDCClassifier()).fit(x, y)
    own = GDCClassifier(beta=0.5, l2=True).fit(x, y)
    assert np.array_equal(own.predict_proba(query), pipeline.predict_proba(query))


def test_a_raw_bank_is_not_needed_where_a_built_one_is(world: SmallData, tmp_path: Path) -> None:
    """A bank of moments is saved as it is."""
    x, y, query = task(world)
    p = GDCClassifier(world.bank()).fit(x, y).params_
    assert p is not None
    moments = BaseBank.load(moments_only(world.bank(), p).save(tmp_path / "bank"))
    classifier = GDCClassifier(moments).fit(x, y)
    loaded = GDCClassifier.load(classifier.save(tmp_path / "a"))
    np.testing.assert_allclose(loaded.predict_proba(query), classifier.predict_proba(query), atol=2e-5)


# ---- the command line -----------------------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


@pytest.fixture
def album(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, colour in COLOURS.items():
        for i in range(2):
            write_picture(tmp_path / "photos" / name / f"{i}.png", colour, i)
            write_picture(tmp_path / "new" / f"{name}-{i}.png", colour, 50 + i)
    monkeypatch.setattr("fewcal.apply.saved.get_extractor", lambda *_: colour_extractor())
    return tmp_path


def test_fit_predict_and_info_from_the_command_line(album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = album / "colours.fewcal", album / "answers.csv"
    assert run("fit", "--support", album / "photos", "--out", model, "--json", album / "fit.json") == 0
    facts = json.loads((album / "fit.json").read_text())
    assert facts["examples"] == {"blue": 2, "green": 2, "red": 2}
    assert facts["extractor"] == colour_extractor().stamp
    assert run("predict", "--model", model, album / "new", "--out", out, "--json", album / "p.json") == 0
    assert json.loads((album / "p.json").read_text())["predictions"] == {"blue": 2, "green": 2, "red": 2}
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(row["prediction"] == row["item"].partition("-")[0] for row in rows)
    assert run("model", "info", model) == 0
    assert "colour" in capsys.readouterr().out
    shutil.copytree(album / "photos", album / "known")
    capsys.readouterr()
    assert run("predict", "--model", model, "--query", album / "known") == 0  # the folders name the classes
    assert "6 of 6 answers are right (100.0%)" in capsys.readouterr().out
    assert run("predict", "--model", model) == 2
    assert run("predict", album / "new") == 2
    assert run("predict", "--model", model, album / "new", "--out", album / "p.xls") == 2
    assert "written as .parquet or .csv" in capsys.readouterr().err


def test_a_model_of_another_extractor_is_refused(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = fit_model(album / "photos")
    classifier.save(album / "m.fewcal")
    other = as_extractor(lambda x: x.reshape(len(x), -1, 3).max(axis=1), name="mean colour", size=9)
    monkeypatch.setattr("fewcal.apply.saved.get_extractor", lambda *_: other)
    with pytest.raises(InputError, match="the extractor here is"):
        load_model(album / "m.fewcal")


def test_features_need_no_extractor(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random((3, 4)), rng.random((3, 4)) + 3]).astype(np.float32)
    FeatureSplit.from_arrays(x, [0, 0, 0, 1, 1, 1], ["a", "b"]).save(tmp_path / "S.npz")
    fit_model(tmp_path / "S.npz").save(tmp_path / "m")
    classifier, extractor = load_model(tmp_path / "m")
    assert extractor is None
    assert predict_source(classifier, None, tmp_path / "S.npz")["prediction"].tolist() == [*"aaabbb"]
    FeatureSplit.from_arrays(x[:, :3], None).save(tmp_path / "Q.npz")
    with pytest.raises(InputError, match="the model takes 4"):
        predict_source(classifier, None, tmp_path / "Q.npz")


def test_serve_answers_and_stops_in_order(album: Path) -> None:
    pytest.importorskip("uvicorn")
    classifier = fit_model(album / "photos")
    classifier.extractor_ = None
    classifier.save(album / "m.fewcal")
    command = [sys.executable, "-m", "fewcal", "serve", str(album / "m.fewcal"), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert address is not None
        request = urllib.request.Request(
            f"{address[0]}/predict/embeddings",
            json.dumps({"rows": [list(COLOURS["green"])]}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert json.load(answer)["predictions"][0]["class"] == "green"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0
