"""Pictures that are read while torch is imported: the same ones, and what is wrong with a source told without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from fewcal.errors import InputError
from fewcal.features.extractors import require_extractor
from fewcal.features.sources.ahead import MOST, PicturesAhead, reading_ahead
from fewcal.features.sources.find import found_ahead
from fewcal.features.sources.items import Items
from fewcal.features.sources.pictures import find_pictures


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_squares_are_the_same_bytes_and_handed_out_once(photos: Path) -> None:
    plain = find_pictures(photos)
    with reading_ahead([plain], 8, 0.5) as (ahead,):
        assert isinstance(ahead, PicturesAhead)
        assert len(ahead.begun) == len(plain) == 6
        for _ in range(2):  # the second time they are read anew
            for i in range(6):
                assert np.array_equal(ahead.square(i, 8, 0.5), plain.square(i, 8, 0.5))
            assert not ahead.begun
        some = ahead.take([4, 1])
        assert some.names == [plain.names[4], plain.names[1]]
        assert np.array_equal(some.square(0, 8, 0.5), plain.square(4, 8, 0.5))


def test_other_squares_are_read_when_they_are_asked_for(photos: Path) -> None:
    plain = find_pictures(photos)
    with reading_ahead([plain], 8, 0.5) as (ahead,):
        assert isinstance(ahead, PicturesAhead)
        assert np.array_equal(ahead.square(2, 9, 0.5), plain.square(2, 9, 0.5))
        assert len(ahead.begun) == 6


def test_no_more_than_some_are_held(photos: Path) -> None:
    plain = find_pictures(photos)
    many = plain.take([0] * (MOST + 5))
    with reading_ahead([many, plain], 8, 0.5) as (first, second):
        assert isinstance(first, PicturesAhead)
        assert isinstance(second, PicturesAhead)
        assert (len(first.begun), len(second.begun)) == (MOST, 0)
        assert np.array_equal(first.square(MOST + 1, 8, 0.5), plain.square(0, 8, 0.5))


def test_one_that_cannot_be_read_is_told_where_it_is_asked_for(photos: Path) -> None:
    whole = (photos / "a" / "1.png").read_bytes()
    (photos / "a" / "1.png").write_bytes(whole[: len(whole) // 2])  # of which the header does not tell
    with found_ahead(photos, photos, "efficientnet-lite0") as (known, asked):
        assert isinstance(known, PicturesAhead)
        assert isinstance(asked, PicturesAhead)
        assert asked.labels is not None
        square = require_extractor("efficientnet-lite0").square
        assert square is not None
        known.square(0, *square)
        with pytest.raises(InputError, match=r"a/1\.png cannot be read as a picture"):
            known.square(1, *square)


def test_sources_of_texts_and_of_other_extractors(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\none,a\ntwo,b\n", encoding="utf-8")
    with found_ahead(tmp_path / "t.csv") as (known, asked):
        assert isinstance(known, Items)
        assert (known.kind, known.labels, asked) == ("text", ["a", "b"], None)
    with found_ahead(photos, photos, "timm:whatever") as (known, asked):
        assert isinstance(known, Items)
        assert not isinstance(known, PicturesAhead)
        assert isinstance(asked, Items)
    with found_ahead(photos, photos, "hf:whatever") as found:
        assert found == (photos, photos)


@pytest.mark.parametrize("wrong", ["empty", "one class", "no classes"])
def test_a_support_that_cannot_do_is_refused(photos: Path, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "empty").mkdir()
    (photos / "b").rename(tmp_path / "b")
    source = {"empty": tmp_path / "empty", "one class": photos, "no classes": photos / "a"}[wrong]
    with (
        pytest.raises(InputError, match=r"holds no pictures|one class only, 'a'|in no class folder"),
        found_ahead(source),
    ):
        pass


def test_what_headers_tell_is_told_before_anything_is_read(photos: Path) -> None:
    (photos / "a" / "1.png").write_bytes(b"nothing")
    (photos / "b" / "0.png").write_bytes(b"")
    with (
        pytest.raises(InputError, match=r"2 of 6 cannot be used; .*: a/1.png .*b/0.png"),
        found_ahead(photos),
    ):
        pass
    with found_ahead(photos, skip_bad=True) as (known, _):
        assert len(known) == 6
