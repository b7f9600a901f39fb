"""Classifiers in files, in Python and on the command line."""

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
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression

from fewcal import FewShotClassifier, GDCClassifier
from fewcal.apply.saved import fit_model, load_model, predict_source
from fewcal.cli import main
from fewcal.errors import FileFormatError, InputError
from fewcal.estimators import load_classifier
from fewcal.estimators.saved import classifier_facts
from fewcal.features import FeatureSplit
from fewcal.features.extractors import as_extractor
from limits import PATIENCE
from small_worlds import make_world
from studio_project import COLOURS, colour_extractor, write_picture

WORLD = make_world(2, signed=True, dim=20, rows=(8, 12), shots=3, tasks=1)
X, Y, Q = WORLD.support[0], np.array(["ant", "bee", "cat"])[WORLD.labels[0]], WORLD.query[0]
CLOSED = {"l2": True, "k": 3, "alpha1": 0.5, "alpha2_ratio": 0.1, "head": "closed_form"}
CLASSIFIERS: dict[str, Any] = {
    "hgdc": lambda bank: FewShotClassifier(bank, scatter=5.0),
    "support-only": lambda bank: FewShotClassifier(),
    "gdc": lambda bank: GDCClassifier(bank, **CLOSED),
    "gdc, sgd": lambda bank: GDCClassifier(bank, n=5, random_state=7),
    "gdc without a bank": lambda bank: GDCClassifier(**CLOSED),
}


@pytest.fixture(params=CLASSIFIERS)
def fitted(request: pytest.FixtureRequest) -> Any:
    return CLASSIFIERS[request.param](WORLD.bank()).fit(X, Y)


@pytest.fixture(params=["hgdc", "gdc"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A class, and a file of it."""
    made = CLASSIFIERS[request.param](WORLD.bank()).fit(X, Y)
    return type(made), made.save(tmp_path / "good")


def test_a_loaded_classifier_answers_the_same(fitted: Any, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "a.fewcal", extractor="net@0123")
    for loaded in (type(fitted).load(path), load_classifier(path)):
        np.testing.assert_allclose(loaded.predict_proba(Q), fitted.predict_proba(Q), atol=1e-6)
        assert loaded.predict(Q).tolist() == fitted.predict(Q).tolist()
        assert loaded.classes_.tolist() == ["ant", "bee", "cat"]
        assert (loaded.extractor_, loaded.n_features_in_) == ("net@0123", 20)
    again = type(fitted).load(loaded.save(tmp_path / "b.fewcal"))
    np.testing.assert_array_equal(again.predict_proba(Q), loaded.predict_proba(Q))
    assert again.extractor_ == "net@0123"


def test_a_loaded_classifier_takes_a_class_as_the_saved_one_does(fitted: Any, tmp_path: Path) -> None:
    loaded = type(fitted).load(fitted.save(tmp_path / "a.fewcal"))
    if fitted.bank is not None and isinstance(loaded, GDCClassifier):
        with pytest.raises(InputError, match=r"no base classes to fit again with; use set_params\(bank=\.\.\.\)"):
            loaded.add_class(Q[:2], "mouse")
        loaded.set_params(bank=fitted.bank)
    loaded.add_class(Q[:2], "mouse")
    np.testing.assert_allclose(loaded.predict_proba(Q), fitted.add_class(Q[:2], "mouse").predict_proba(Q), atol=1e-5)


def test_a_loaded_classifier_has_temperature_outliers_and_explanation(tmp_path: Path) -> None:
    made = FewShotClassifier(WORLD.bank()).fit(X, Y).set_temperature(3.0)
    loaded = FewShotClassifier.load(made.save(tmp_path / "a"))
    assert loaded.temperature_ == 3.0
    np.testing.assert_allclose(loaded.outlier_pvalue(Q), made.outlier_pvalue(Q), atol=1e-6)
    assert str(loaded.explain()) == str(made.explain())
    gdc = GDCClassifier.load(GDCClassifier(WORLD.bank(), **CLOSED).fit(X, Y).save(tmp_path / "b"))
    with pytest.raises(InputError, match="no base classes to explain answers by"):
        gdc.explain()


def test_a_file_holds_no_base_rows(fitted: Any, tmp_path: Path) -> None:
    assert len(load_file(fitted.save(tmp_path / "a"))["support"]) == len(X)
    assert max(len(t) for t in load_file(tmp_path / "a").values() if t.ndim) < len(WORLD.x)
    facts = classifier_facts(tmp_path / "a")
    assert (facts["classes"], facts["features"]) == (3, 20)
    assert facts["examples"] == {"ant": 3, "bee": 3, "cat": 3}


@pytest.mark.parametrize("cls", [FewShotClassifier, lambda: GDCClassifier(**{**CLOSED, "k": 1})])
def test_integer_labels_and_column_names_survive(cls: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [0.0, 1.0, 0.2, 0.9], "b": [1.0, 0.0, 0.9, 0.1]})
    made = cls().fit(frame, [3, 7, 3, 7])
    loaded = type(made).load(made.save(tmp_path / "a"))
    assert loaded.predict(frame).tolist() == [3, 7, 3, 7]
    assert loaded.predict(frame).dtype.kind == "i"
    assert loaded.feature_names_in_.tolist() == ["a", "b"]


def test_a_file_of_another_kind_is_refused(saved: tuple[Any, Path], tmp_path: Path) -> None:
    cls, good = saved
    other = GDCClassifier if cls is FewShotClassifier else FewShotClassifier
    with pytest.raises(FileFormatError, match=f"has a {cls.__name__}, not a {other.__name__}"):
        other.load(good)
    with pytest.raises(InputError, match="no classifier at"):
        cls.load(tmp_path / "missing")
    WORLD.bank().save(tmp_path / "bank")
    with pytest.raises(FileFormatError, match="is a fewcal bank, but not"):
        cls.load(tmp_path / "bank")
    save_file({"x": torch.zeros(2)}, str(tmp_path / "foreign"))
    with pytest.raises(FileFormatError, match="not a fewcal classifier"):
        cls.load(tmp_path / "foreign")


def test_a_cut_or_changed_file_is_refused(saved: tuple[Any, Path], tmp_path: Path) -> None:
    cls, good = saved
    content, bad = good.read_bytes(), tmp_path / "bad"
    for size in (0, 9, 200, len(content) - 1):
        bad.write_bytes(content[:size])
        with pytest.raises(FileFormatError, match="truncated"):
            cls.load(bad)
    bad.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="is not what was written"):
        cls.load(bad)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "upgrade fewcal"),
        ({"version": "one"}, "damaged"),
        ({"kind": "tree"}, "model of no kind"),
        ({"classes": ["ant"]}, "damaged"),
        ({"label_type": "nonsense"}, "damaged"),
        ({"settings": {"no such": 1}}, "damaged"),
        ({"settings": None}, "damaged"),
        ({"support": torch.full((9, 20), torch.nan)}, "damaged"),
        ({"support": torch.zeros(9, 3)}, "damaged"),
        ({"labels": torch.zeros(9, dtype=torch.int32)}, "damaged"),
        ({"labels": torch.full((9,), 5)}, "damaged"),
        ({"origin": torch.zeros(3), "weight": torch.zeros(1, 2, 3)}, "damaged"),
        ({"base_means": torch.full((9, 20), torch.inf), "bias": torch.zeros(1, 9)}, "damaged"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_parts_that_do_not_fit_are_refused(
    saved: tuple[Any, Path], change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    cls, good = saved
    tensors, content = load_file(good), good.read_bytes()
    meta = json.loads(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["fewcal"])
    del meta["checksums"]
    meta |= {name: value for name, value in change.items() if not isinstance(value, torch.Tensor)}
    tensors |= {name: value for name, value in change.items() if isinstance(value, torch.Tensor) and name in tensors}
    save_file(tensors, str(tmp_path / "bad"), metadata={"fewcal": json.dumps(meta)})
    with pytest.raises(FileFormatError, match=words) as caught:
        cls.load(tmp_path / "bad")
    assert "\n" not in str(caught.value)


def test_a_head_of_scikit_learn_is_not_saved(tmp_path: Path) -> None:
    made = GDCClassifier(WORLD.bank(), **{**CLOSED, "head": LogisticRegression(), "n": 5}).fit(X, Y)
    with pytest.raises(InputError, match="named head"):
        made.save(tmp_path / "a")
    assert not (tmp_path / "a").exists()


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
    for module in ("reading", "saved"):
        monkeypatch.setattr(f"fewcal.apply.{module}.get_extractor", lambda *_: colour_extractor())
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
    x = np.concatenate([rng.random((3, 4)), rng.random((3, 4)) + np.array([3, 0, 0, 3])]).astype(np.float32)
    FeatureSplit.from_arrays(x, [0, 0, 0, 1, 1, 1], ["a", "b"]).save(tmp_path / "S.npz")
    fit_model(tmp_path / "S.npz").save(tmp_path / "m")
    classifier, extractor = load_model(tmp_path / "m")
    assert extractor is None
    assert predict_source(classifier, None, tmp_path / "S.npz")[0]["prediction"].tolist() == [*"aaabbb"]
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
