"""Extractors in pipelines of scikit-learn, and DataFrames as sources."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from fewcal import Embed, classify
from fewcal.errors import InputError
from fewcal.features.extractors import as_extractor, get_extractor
from fewcal.features.sources.find import find_items, labelled_items
from fewcal.features.sources.kinds import default_extractor, kind_of

LENGTH = as_extractor(lambda texts: [[len(t)] for t in texts], name="length", kind="text")
COLOURS = as_extractor(lambda x: x.mean(axis=(1, 2)), name="colours", size=8)
TEXTS = ["bread and butter", "soup with onions", "rain and wind", "sun and clouds"] * 3
TOPICS = ["food", "food", "weather", "weather"] * 3


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for i in range(6):
        shade = np.full((12, 9 + i, 3), 40 * i) + rng.integers(0, 9, (12, 9 + i, 3))
        Image.fromarray(shade.astype(np.uint8)).save(tmp_path / f"{i}.png")
    return [str(tmp_path / f"{i}.png") for i in range(6)]


def test_pipelines_of_embed_and_a_classifier_learn_texts() -> None:
    model = make_pipeline(Embed("wordllama"), LogisticRegression())
    assert model.fit(TEXTS, TOPICS).predict(["cheese and ham", "storm and snow"]).tolist() == ["food", "weather"]
    assert cross_val_score(model, np.array(TEXTS), TOPICS, cv=3).mean() > 0.9
    search = GridSearchCV(model, {"embed__extractor": ["wordllama", LENGTH]}, cv=3).fit(np.array(TEXTS), TOPICS)
    assert search.best_params_ == {"embed__extractor": "wordllama"}
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert clone(model).get_params()["embed__extractor"] == "wordllama"


def test_embed_takes_pictures_by_path_array_image_and_bytes(paths: list[str]) -> None:
    expected = Embed(COLOURS).fit_transform(paths)
    assert expected.shape == (6, 3)
    images = [Image.open(path) for path in paths]
    for X in (np.array(paths), pd.Series(paths), images, [np.asarray(i) for i in images], [Path(p) for p in paths]):
        np.testing.assert_array_equal(Embed(COLOURS).transform(X), expected)
    np.testing.assert_array_equal(Embed(COLOURS).transform([Path(p).read_bytes() for p in paths]), expected)
    assert Embed(COLOURS).fit(paths).get_feature_names_out().tolist() == ["embed0", "embed1", "embed2"]
    both = Embed(["glyphs", "efficientnet-lite0"]).fit_transform(paths[:2])
    np.testing.assert_allclose(both, get_extractor("glyphs+efficientnet-lite0")(images[:2]), atol=1e-6)


def test_embed_takes_a_column_of_a_table(paths: list[str]) -> None:
    frame = pd.DataFrame({"file": paths, "text": TEXTS[:6], "price": range(6)})
    np.testing.assert_array_equal(Embed(COLOURS, column="file").transform(frame), Embed(COLOURS).transform(paths))
    columns = make_column_transformer((Embed(COLOURS), ["file"]), (Embed(LENGTH), "text"), ("passthrough", ["price"]))
    assert columns.fit_transform(frame).shape == (6, 5)
    assert Embed(LENGTH).transform(frame[["text"]].to_numpy()).shape == (6, 1)


def test_embed_refuses_what_it_cannot_use_in_one_line(paths: list[str]) -> None:
    frame = pd.DataFrame({"a": paths, "b": paths})
    for model, X, match in [
        (Embed(COLOURS), frame, "the table has the columns a, b; choose one"),
        (Embed(LENGTH), ["a", 3], "X has a int where a text is needed"),
        (Embed(COLOURS), [np.zeros((3, 3))], r"picture 1 is float64 of shape \(3, 3\); it must be uint8"),
        (Embed(COLOURS), ["nowhere.png"], "nowhere.png does not exist"),
        (Embed("no such"), TEXTS, "extractor 'no such' is unknown"),
    ]:
        with pytest.raises(InputError, match=match):
            model.fit(X).transform(X)


def test_tables_of_texts_and_paths_are_sources(paths: list[str]) -> None:
    texts = pd.DataFrame({"text": TEXTS, "label": TOPICS, "split": ["base"] * 12})
    assert (kind_of(texts), default_extractor(texts)) == ("text", "minilm")
    items = labelled_items(texts, "text")
    assert (items.classes, items.splits) == (["food", "weather"], ["base"] * 12)
    new = pd.DataFrame({"text": ["cheese and ham", "storm and snow"], "label": ["food", "weather"]})
    assert classify(texts, new, "wordllama").accuracy == 1
    pictures = pd.DataFrame({"path": paths})
    assert kind_of(pictures) == "picture"
    assert kind_of(pd.DataFrame({"path": ["a.wav", "b.FLAC"]})) == "recording"
    assert find_items(pictures, "picture", labelled=False).names == paths
    with pytest.raises(InputError, match="the table has no column 'label'"):
        labelled_items(pictures, "picture")
    with pytest.raises(InputError, match="the table has the columns x; call one 'text' or 'path'"):
        kind_of(pd.DataFrame({"x": [1]}))
    with pytest.raises(InputError, match=r"no extractor of recordings comes with fewcal; name a model"):
        default_extractor(pd.DataFrame({"path": ["a.wav"]}))
