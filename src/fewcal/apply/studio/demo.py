"""`fewcal studio --demo`: letters of scripts that the network never saw, with Latin and Cyrillic as base classes.

All of it is drawn on the spot from fonts; nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewcal.apply.studio.project import StudioSettings
from fewcal.apply.studio.store import HOME
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.features.extractors import get_extractor
from fewcal.features.glyphs import Glyph, draw_examples, extract_glyphs, glyph_classes
from fewcal.features.sources.pictures import encoded

LETTERS, EACH = 6, 20
BASE_ROWS = 8  # drawings of each base letter: enough for means and a pooled covariance, and quick
SCALE = 3  # letters of 32 pixels are hard to see


def demo_settings(folder: Path) -> StudioSettings:
    """Draw the letters into a folder, unless they are there, and the base classes into its hidden part."""
    glyphs = glyph_classes()
    if not glyphs["base"]:
        raise InputError("the demo draws letters with matplotlib's fonts: pip install 'fewcal[plots]'")
    if not any(folder.glob("*.png")):
        _draw_letters(folder)
    extractor = get_extractor("glyphs")
    place = folder / HOME / "demo-bank.safetensors"
    if not place.exists():
        rows = [draw_examples(glyph, BASE_ROWS) for glyph in glyphs["base"]]
        names = np.repeat([glyph.name for glyph in glyphs["base"]], BASE_ROWS)
        bank = BaseBank().fit(extract_glyphs(np.concatenate(rows)), names)
        bank.source = f"{extractor.stamp} glyphs, base"
        bank.save(place)
    by_name = {glyph.name: glyph for glyph in glyphs["base"]}

    def base_picture(name: str) -> bytes | None:
        glyph = by_name.get(name)
        return None if glyph is None else encoded(shown(draw_examples(glyph, 1)[0]))

    return StudioSettings(extractor, BaseBank.load(place), str(place), base_picture=base_picture)


def demo_letters() -> list[Glyph]:
    """The letters to distinguish, from scripts far from each other."""
    novel = glyph_classes()["novel"]
    return [novel[i] for i in np.linspace(0, len(novel) - 1, LETTERS).astype(int)]


def shown(drawing: np.ndarray) -> np.ndarray:
    """A drawing `(32, 32)`, ink bright on dark, as a larger picture `(H, W, 3)`, dark on light."""
    large = np.repeat(np.repeat(255 - drawing, SCALE, axis=0), SCALE, axis=1)
    return np.repeat(large[:, :, None], 3, axis=2)


def _draw_letters(folder: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    drawings = np.concatenate([draw_examples(glyph, EACH, seed=1) for glyph in demo_letters()])
    folder.mkdir(parents=True, exist_ok=True)
    for number, i in enumerate(rng.permutation(len(drawings)), 1):  # neither names nor order show the class
        Image.fromarray(shown(drawings[i])).save(folder / f"letter-{number:03}.png")
