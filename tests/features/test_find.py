"""Sources of examples and queries: found and checked before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from fewcal.errors import InputError
from fewcal.features.sources.find import find_pair
from fewcal.features.sources.items import Items


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_sources_of_texts_and_of_other_extractors(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\none,a\ntwo,b\n", encoding="utf-8")
    examples, queries = find_pair(tmp_path / "t.csv")
    assert isinstance(examples, Items)
    assert (examples.kind, examples.labels, queries) == ("text", ["a", "b"], None)
    examples, queries = find_pair(photos, photos, "timm:whatever")
    assert isinstance(examples, Items)
    assert isinstance(queries, Items)
    assert find_pair(photos, photos, "hf:whatever") == (photos, photos)


@pytest.mark.parametrize("wrong", ["empty", "one class", "no classes"])
def test_a_support_that_cannot_do_is_refused(photos: Path, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "empty").mkdir()
    (photos / "b").rename(tmp_path / "b")
    source = {"empty": tmp_path / "empty", "one class": photos, "no classes": photos / "a"}[wrong]
    with pytest.raises(InputError, match=r"holds no pictures|one class only, 'a'|in no class folder"):
        find_pair(source)


def test_unreadable_headers_are_refused_before_a_model_is_loaded(photos: Path) -> None:
    (photos / "a" / "1.png").write_bytes(b"nothing")
    (photos / "b" / "0.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"2 of 6 cannot be used; .*: a/1.png .*b/0.png"):
        find_pair(photos)
    examples, _ = find_pair(photos, skip_bad=True)
    assert isinstance(examples, Items)
    assert len(examples) == 6
