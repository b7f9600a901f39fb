"""Glyphs, the embedded dataset: letters of many scripts, drawn from the fonts inside the matplotlib wheel.

A class is a character, an example is that character in one of its fonts under a random distortion. Base classes are
Latin and Cyrillic letters, validation classes Greek and Armenian, novel classes Georgian, Hebrew, Arabic and others:
no novel script is seen in base. Characters of one shape (Latin A, Greek Α, Cyrillic А) appear once, in the first split
that has them. Nothing is downloaded; the pictures depend on the seed alone. A small Conv-4 trained on the base classes
ships with the package (`tools/train_glyphs.py`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewcal.errors import InputError
from fewcal.features.backbone_networks import Backbone
from fewcal.features.backbones import load_checkpoint
from fewcal.features.featureset import SPLITS, FeatureSet, FeatureSplit

SIZE = 32  # pixels of a picture's side
WEIGHTS = Path(__file__).with_name("weights") / "glyphs-conv4.safetensors"

# First words of Unicode names. A shape that several scripts share belongs to the first.
SCRIPTS: dict[str, tuple[str, ...]] = {
    "base": ("LATIN", "CYRILLIC"),
    "val": ("GREEK", "COPTIC", "ARMENIAN"),
    "novel": ("GEORGIAN", "HEBREW", "ARABIC", "TIFINAGH", "LAO", "NKO"),
}
# Of all fonts in the wheel those whose letters are letters: not the maths symbols, and not "Last Resort", which draws
# a box for everything.
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
MIN_FONTS = 2
MAX_COSINE = 0.93  # of two drawings; above it they are one shape
_DRAWN, _BOX = 64, 44  # a drawing's side, and the square within it that the character fills
_POINTS = 96
_NONE_OF_UNICODE = "\uffff"  # no font has it: what is drawn for it is the box of a missing glyph


@dataclass(frozen=True, eq=False)
class Glyph:
    """A character and its drawings (fonts, 64, 64) uint8, ink 255, each filling the same square."""

    character: str
    drawings: np.ndarray = field(repr=False)
    fonts: tuple[str, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """Its Unicode name in small letters, which is the name of its class."""
        return unicodedata.name(self.character).lower()


def render_character(character: str, font: str) -> np.ndarray | None:
    """Return the drawing `(64, 64)` uint8 of a character in one of `FONTS`, None where the font has no such glyph.

    >>> int(render_character("A", "DejaVuSans").max())
    255
    >>> render_character("\\u10d0", "cmr10") is None  # no Georgian in Computer Modern
    True
    """
    face = _face(font)
    if ord(character) not in face.characters:
        return None
    drawing = face.draw(character)
    return None if drawing is None or (face.missing is not None and np.array_equal(drawing, face.missing)) else drawing


@lru_cache(maxsize=1)
def glyph_classes() -> dict[str, list[Glyph]]:
    """Return the classes of each split: letters with drawings of their own shape in two fonts or more.

    >>> classes = glyph_classes()
    >>> [glyph.name for glyph in classes["base"][:2]]
    ['latin capital letter a', 'latin capital letter b']
    """
    found: dict[str, list[Glyph]] = {}
    seen: list[np.ndarray] = []  # shapes of the classes so far
    for split in SPLITS:
        found[split] = []
        for character in _candidates(SCRIPTS[split]):
            drawn = {font: d for font in FONTS if (d := render_character(character, font)) is not None}
            if len(drawn) < MIN_FONTS:
                continue
            drawings = np.stack(list(drawn.values()))
            shapes = _shapes(drawings)
            # Whatever the font: the italic of one letter may be the upright of another.
            if any((earlier @ shapes.T > MAX_COSINE).any() for earlier in seen):
                continue
            seen.append(shapes)
            found[split].append(Glyph(character, drawings, tuple(drawn)))
    return found


@dataclass(frozen=True)
class Distortion:
    """How far an example may stray from the drawing of its font; each is drawn again for every picture."""

    angle: float = 0.3  # standard deviation of the rotation, in radians
    shear: float = 0.25  # standard deviation of the slant, in radians
    stretch: float = 0.2  # standard deviation of the logarithm of width and of height
    shift: float = 0.2  # largest shift, as a share of half the picture
    bend: float = 0.09  # standard deviation of a smooth displacement, in the same unit
    stroke: tuple[float, float] = (-0.5, 2.0)  # range of the widening on each side, in pixels of the drawing
    blur: float = 1.0  # largest standard deviation of the blur, in pixels of the picture
    noise: float = 0.15  # largest standard deviation of the noise, where paper is 0 and ink 1


def draw_examples(glyph: Glyph, rows: int, seed: int = 0, distortion: Distortion | None = None) -> np.ndarray:
    """Return distorted pictures `(rows, 32, 32)` uint8 of a glyph; they depend on seed and glyph alone.

    >>> examples = draw_examples(glyph_classes()["base"][0], rows=3, seed=0)
    >>> examples.shape, str(examples.dtype)
    ((3, 32, 32), 'uint8')
    """
    d = distortion or Distortion()
    rng = np.random.default_rng([seed, ord(glyph.character)])
    source = torch.from_numpy(glyph.drawings[rng.integers(len(glyph.drawings), size=rows)]).float()[:, None] / 255
    image = _restroke(source, _column(rng.uniform(*d.stroke, rows)))
    image = F.grid_sample(image, _grid(rng, rows, d), align_corners=False)
    image = F.avg_pool2d(image, _DRAWN // SIZE)
    image = _blur(image, _column(rng.uniform(0, d.blur, rows)))
    paper, ink = _column(rng.uniform(0, 0.2, rows)), _column(rng.uniform(0.7, 1, rows))
    noise = torch.from_numpy(rng.standard_normal((rows, 1, SIZE, SIZE), np.float32))
    image = paper + (ink - paper) * image + _column(rng.uniform(0, d.noise, rows)) * noise
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)[:, 0].numpy()


def _column(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))[:, None, None, None]


def _restroke(image: Tensor, pixels: Tensor) -> Tensor:
    """Widen the strokes of image `(R, 1, H, W)` by `pixels (R, 1, 1, 1)` on each side; negative ones thin them."""
    sign = torch.where(pixels < 0, -1.0, 1.0)
    image, left = sign * image, pixels.abs()
    while bool((left > 0).any()):
        image = image + left.clamp(0, 1) * (F.max_pool2d(image, 3, stride=1, padding=1) - image)
        left = left - 1
    return sign * image


def _grid(rng: np.random.Generator, rows: int, d: Distortion) -> Tensor:
    """Return the place `(rows, 64, 64, 2)` in -1..1 that each pixel of a distorted drawing comes from."""
    angle, shear = rng.normal(0, d.angle, rows), rng.normal(0, d.shear, rows)
    wide, high = np.exp(-rng.normal(0, d.stretch, (2, rows)))
    cos, sin = np.cos(angle), np.sin(angle)
    across, down = rng.uniform(-d.shift, d.shift, (2, rows))
    rows_of_matrix = (
        [wide * cos, wide * (shear * cos - sin), across],
        [high * sin, high * (shear * sin + cos), down],
    )
    matrix = np.array(rows_of_matrix).transpose(2, 0, 1)
    grid = F.affine_grid(torch.from_numpy(matrix.astype(np.float32)), [rows, 1, _DRAWN, _DRAWN], align_corners=False)
    bend = torch.from_numpy(rng.normal(0, d.bend, (rows, 2, 4, 4)).astype(np.float32))
    smooth = F.interpolate(bend, size=(_DRAWN, _DRAWN), mode="bicubic", align_corners=False)
    return grid + smooth.permute(0, 2, 3, 1)


def _blur(image: Tensor, sigma: Tensor) -> Tensor:
    """Blur image `(R, 1, H, W)` by a Gaussian, each picture by its own sigma `(R, 1, 1, 1)` in pixels."""
    at = torch.arange(-3, 4, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (at / sigma.reshape(-1, 1).clamp_min(0.05)) ** 2)
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    rows = len(image)
    x = image.reshape(1, rows, *image.shape[2:])
    x = F.conv2d(x, kernel.reshape(rows, 1, 7, 1), padding=(3, 0), groups=rows)
    x = F.conv2d(x, kernel.reshape(rows, 1, 1, 7), padding=(0, 3), groups=rows)
    return x.reshape(image.shape)


def _candidates(scripts: Sequence[str]) -> list[str]:
    """Return letters of these scripts that are not composed of others, in the order of scripts, then of Unicode."""
    points = [*range(0x41, 0x3000), *range(0xA640, 0xA800)]
    by_script: dict[str, list[str]] = {script: [] for script in scripts}
    for c in map(chr, points):
        script = unicodedata.name(c, "").split(" ")[0]
        if script in by_script and unicodedata.category(c) in ("Lu", "Ll", "Lo") and not unicodedata.decomposition(c):
            by_script[script].append(c)
    return [c for script in scripts for c in by_script[script]]


def _shapes(drawings: np.ndarray) -> np.ndarray:
    """Return drawings `(…, 64, 64)` at a quarter of their resolution as unit vectors `(…, 256)`."""
    x = drawings.reshape(-1, 16, 4, 16, 4).mean(axis=(2, 4), dtype=np.float32).reshape(-1, 256)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


class _Face:
    """One font: its characters and their drawings."""

    def __init__(self, name: str) -> None:
        try:
            import matplotlib
            from matplotlib.ft2font import FT2Font
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise InputError(
                f"glyphs are drawn by Pillow with the fonts of matplotlib, and {error.name} is missing; "
                "pip install 'fewcal[plots]'"
            ) from error
        file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
        if not file.is_file():
            raise InputError(
                f"matplotlib {matplotlib.__version__} has no font {file}; install matplotlib from its wheel"
            )
        self._image, self._pen = Image, ImageDraw.Draw
        # The basic layout draws a character alone and the same way whatever libraries are there.
        self._font = ImageFont.truetype(str(file), _POINTS, layout_engine=ImageFont.Layout.BASIC)
        points = FT2Font(str(file)).get_charmap()
        # Computer Modern's own encodings put other signs on the codes beyond ASCII.
        self.characters = frozenset(p for p in points if not name.startswith("cm") or p < 128)
        self.missing = self.draw(_NONE_OF_UNICODE)

    def draw(self, character: str) -> np.ndarray | None:
        """(64, 64) uint8; None where there is no ink."""
        picture = self._image.new("L", (3 * _POINTS, 3 * _POINTS))
        self._pen(picture).text((_POINTS, 2 * _POINTS), character, fill=255, font=self._font, anchor="ls")
        if (edges := picture.getbbox()) is None:
            return None
        picture = picture.crop(edges)
        scale = _BOX / max(picture.size)
        width, height = (max(1, round(scale * side)) for side in picture.size)
        picture = picture.resize((width, height), self._image.Resampling.BOX)
        canvas = self._image.new("L", (_DRAWN, _DRAWN))
        canvas.paste(picture, ((_DRAWN - width) // 2, (_DRAWN - height) // 2))
        return np.asarray(canvas)


_face = lru_cache(maxsize=len(FONTS))(_Face)


# ---- the dataset ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GlyphPictures:
    """Pictures `(R, 32, 32)` uint8 of one split, ink bright on dark, with labels `(R,)` into `glyphs`."""

    pictures: np.ndarray
    labels: np.ndarray
    glyphs: list[Glyph] = field(repr=False)

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return [glyph.name for glyph in self.glyphs]


def glyph_pictures(split: str, rows: int = 30, seed: int = 0, distortion: Distortion | None = None) -> GlyphPictures:
    """Return `rows` pictures of every class of a split: base, val or novel."""
    if split not in SPLITS:
        raise InputError(f"glyphs have no split {split!r}; choose {', '.join(SPLITS)}")
    if rows < 1:
        raise InputError(f"rows is {rows}; every class needs at least one picture")
    glyphs = glyph_classes()[split]
    pictures = np.concatenate([draw_examples(glyph, rows, seed, distortion) for glyph in glyphs])
    return GlyphPictures(pictures, np.repeat(np.arange(len(glyphs)), rows), glyphs)


def extract_glyphs(pictures: np.ndarray, model: Backbone | None = None) -> np.ndarray:
    """Return features `(R, 256)` of pictures `(R, 32, 32)` uint8, by the Conv-4 in the package where none is given."""
    model = load_glyph_model() if model is None else model
    model.eval()
    with torch.no_grad():
        parts = [model(torch.from_numpy(part[:, None])) for part in np.array_split(pictures, -(-len(pictures) // 512))]
    return torch.cat(parts).numpy()


def load_glyph_model() -> Backbone:
    """Return the Conv-4 that ships with the package."""
    return load_checkpoint(WEIGHTS, "conv4")[0]


def glyph_features(pictures: dict[str, GlyphPictures], model: Backbone | None = None) -> FeatureSet:
    """Return features of the splits in `pictures`.

    >>> pictures = {"novel": glyph_pictures("novel", rows=1)}
    >>> glyph_features(pictures).dimension
    256
    """
    found = {
        split: FeatureSplit.from_arrays(extract_glyphs(p.pictures, model), p.labels, p.classes, f"glyphs, {split}")
        for split, p in pictures.items()
    }
    return FeatureSet(found.get("base"), found.get("val"), found.get("novel"))
