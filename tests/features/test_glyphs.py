"""Glyphs: which characters become classes, what their pictures look like, and the network that ships with them."""

from __future__ import annotations

import importlib
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewcal.errors import InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import glyphs
from fewcal.features.glyphs import (
    FONTS,
    SCRIPTS,
    SIZE,
    Distortion,
    Glyph,
    draw_examples,
    extract_glyphs,
    glyph_classes,
    glyph_features,
    glyph_pictures,
    load_glyph_model,
    render_character,
)

STILL = Distortion(angle=0, shear=0, stretch=0, shift=0, bend=0, stroke=(0, 0), blur=0, noise=0)


def _all() -> list[Glyph]:
    return [glyph for split in glyph_classes().values() for glyph in split]


# ---- classes --------------------------------------------------------------------------------------------------------


def test_no_script_is_in_two_splits_and_names_are_those_of_unicode() -> None:
    classes = glyph_classes()
    for split, found in classes.items():
        assert len(found) > 50
        assert {glyph.name.split()[0].upper() for glyph in found} == set(SCRIPTS[split])
    words = [script for scripts in SCRIPTS.values() for script in scripts]
    assert len(words) == len(set(words))
    assert len({glyph.name for glyph in _all()}) == len(_all())
    assert all(unicodedata.lookup(g.name) == g.character for g in _all())


def test_no_class_is_a_missing_glyph() -> None:
    for glyph in _all():
        assert len(glyph.fonts) >= 2
        assert all(drawing.max() > 200 for drawing in glyph.drawings)  # there is ink
        for font, drawing in zip(glyph.fonts, glyph.drawings, strict=True):
            missing = glyphs._face(font).missing
            assert missing is None or not np.array_equal(missing, drawing)


def test_fonts_without_a_character_draw_none() -> None:
    # Computer Modern has no Georgian, and on codes above ASCII its own signs; no font has a private character.
    assert render_character("ა", "cmr10") is None
    assert render_character("ж", "cmr10") is None
    assert all(render_character("\ue123", font) is None for font in FONTS)
    assert render_character(" ", "DejaVuSans") is None  # there, but without ink
    boxes = [glyphs._face(font).missing for font in FONTS]
    assert sum(box is not None for box in boxes) > 10  # so the comparison above does compare


@pytest.mark.parametrize("twins", ["AΑА", "BΒВ", "OΟОՕ", "oοо", "Xx", "PΡР", "ssѕ"])
def test_characters_that_look_the_same_are_one_class(twins: str) -> None:
    kept = {glyph.character for glyph in _all()}
    assert len(kept & set(twins)) <= 1


def test_no_two_classes_are_alike_in_any_font() -> None:
    shapes = [glyphs._shapes(glyph.drawings) for glyph in _all()]
    owner = np.repeat(np.arange(len(shapes)), [len(s) for s in shapes])
    x = np.concatenate(shapes)
    for i, own in enumerate(shapes):
        assert (own @ x[owner != i].T).max() <= glyphs.MAX_COSINE


# ---- pictures -------------------------------------------------------------------------------------------------------


def test_pictures_depend_on_seed_and_glyph_alone() -> None:
    first, second = glyph_classes()["novel"][:2]
    assert np.array_equal(draw_examples(first, 4, 7), draw_examples(first, 4, 7))
    assert not np.array_equal(draw_examples(first, 4, 7), draw_examples(first, 4, 8))
    assert not np.array_equal(draw_examples(first, 4, 7), draw_examples(second, 4, 7))
    whole = glyph_pictures("novel", rows=2, seed=7)
    assert np.array_equal(whole.pictures[:2], draw_examples(first, 2, 7))
    assert whole.pictures.shape == (2 * len(whole.classes), SIZE, SIZE)
    assert np.bincount(whole.labels).tolist() == [2] * len(whole.classes)


def test_without_distortion_a_picture_is_the_drawing_of_one_of_its_fonts() -> None:
    glyph = glyph_classes()["base"][0]
    small = glyph.drawings.reshape(-1, SIZE, 2, SIZE, 2).mean(axis=(2, 4)).reshape(len(glyph.drawings), -1)
    for picture in draw_examples(glyph, 6, seed=0, distortion=STILL).reshape(6, -1).astype(float):
        # Up to the brightness of ink and paper.
        assert max(np.corrcoef(picture, drawing)[0, 1] for drawing in small) > 0.999


@settings(max_examples=25, deadline=None)
@given(st.just(0.0) | st.floats(0.1, 3) | st.floats(-2, -0.1), st.integers(0, 1000))
def test_strokes_grow_and_shrink_by_their_pixels(pixels: float, seed: int) -> None:
    glyph = glyph_classes()["base"][seed % 200]
    image = torch.from_numpy(glyph.drawings[:1]).float()[:, None] / 255
    changed = glyphs._restroke(image, torch.full((1, 1, 1, 1), pixels))
    assert float(changed.min()) >= 0
    assert float(changed.max()) <= 1
    gain = float((changed - image).sum())
    assert gain * pixels >= 0
    assert (abs(gain) > 0.1) == (abs(pixels) > 0.01)


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1.2))
def test_blur_keeps_the_ink_and_spreads_it_by_sigma(sigma: float) -> None:
    image = torch.zeros(1, 1, SIZE, SIZE)
    image[0, 0, 16, 16] = 1
    out = glyphs._blur(image, torch.full((1, 1, 1, 1), sigma))[0, 0]
    assert float(out.sum()) == pytest.approx(1, abs=1e-5)
    at = torch.arange(SIZE) - 16.0
    variance = float((out.sum(dim=0) * at**2).sum())
    # Cut at three pixels, and sampled at whole ones: exact for neither a very small nor a very large sigma.
    assert variance == pytest.approx(sigma**2, abs=0.12)


def test_distorted_examples_differ_and_keep_their_ink_inside() -> None:
    glyph = glyph_classes()["base"][3]
    quiet = Distortion(noise=0)
    examples = draw_examples(glyph, 40, seed=3, distortion=quiet).astype(float)
    assert len({e.tobytes() for e in examples}) == 40
    spread = examples.max(axis=(1, 2)) - examples.min(axis=(1, 2))
    assert (spread > 40).all()  # no picture is blank


def test_bad_values_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="no split 'test'; choose base, val, novel"):
        glyph_pictures("test")
    with pytest.raises(InputError, match="at least one picture"):
        glyph_pictures("val", rows=0)


def test_missing_packages_and_fonts_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import matplotlib

    with monkeypatch.context() as m:
        m.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
        with pytest.raises(InputError, match=r"has no font .*DejaVuSans.ttf; install matplotlib from its wheel"):
            glyphs._Face("DejaVuSans")
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "PIL", None)
        with pytest.raises(InputError, match=r"PIL is missing; pip install 'fewcal\[plots\]'"):
            glyphs._Face("DejaVuSans")


# ---- features -------------------------------------------------------------------------------------------------------


def test_features_reproduce_and_do_not_depend_on_their_neighbours() -> None:
    pictures = glyph_pictures("val", rows=2).pictures
    model = load_glyph_model()
    features = extract_glyphs(pictures, model)
    assert features.shape == (len(pictures), 256)
    assert (features >= 0).all()
    np.testing.assert_array_equal(features, extract_glyphs(pictures))
    np.testing.assert_allclose(features[3:5], extract_glyphs(pictures[3:5], model), rtol=1e-4, atol=1e-4)


def test_unseen_scripts_are_read_far_above_chance_and_not_perfectly() -> None:
    features = glyph_features({"val": glyph_pictures("val", rows=16)})
    result = evaluate("ncm", features, Protocol(tasks=200, split="val"))
    assert 0.55 < result.accuracy("ncm").mean() < 0.85


def test_training_is_reproducible_and_leaves_the_global_generator_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    tool = importlib.import_module("train_glyphs")
    few = {split: found[:6] for split, found in glyph_classes().items()}
    for module in (glyphs, tool):
        monkeypatch.setattr(module, "glyph_classes", lambda: few)
    state = torch.random.get_rng_state()
    for name in ("a", "b"):
        tool.main([str(tmp_path / name), "--epochs", "3", "--rows", "20"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[:3] == losses[3:]
    assert losses[2] < losses[0]
