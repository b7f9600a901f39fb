"""Pictures: the one place where they are opened, and their sources.

`read_picture` opens one with Pillow, by an explicit list of formats, within limits of pixels and memory. A source is a
folder with one folder for each class, a CSV list (`path`, optional `label` and `split`), an `.npz` pack of encoded
pictures, or a single file; `find_pictures` lists it without opening the pictures.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TypeAlias

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.memory import available_memory
from fewcal._utils.npz import read_npz
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.regular import open_regular, require_source
from fewcal.features.io.tables import class_name
from fewcal.features.sources.items import Items, decoded, refuse_bad
from fewcal.features.sources.listing import class_folders, files_below, is_shown, list_files  # noqa: F401

if TYPE_CHECKING:
    from PIL.Image import Image

# Decoders that may be tried, whatever a file is called. Pillow has others that start programs (EPS) or take vectors.
FORMATS = ["PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "AVIF", "JPEG2000", "TGA"]
# A small file can claim to be of any size. This is Pillow's own limit, kept also where somebody lifted that.
MAX_PIXELS = 178_956_970
# The share of the free memory that one picture may take: several are decoded at once.
MEMORY_SHARE = 1 / 16
# Memory of a pixel while a picture is decoded, and of one that is transparent or has more than 8 bits a channel.
PIXEL_BYTES, DEEP_PIXEL_BYTES = 12, 20
FREE_BYTES = 2**26  # below this no picture is refused for its memory
# Encoded bytes, a file, an array uint8 (H, W, 3), or an image of Pillow.
Picture: TypeAlias = "bytes | memoryview | StrPath | np.ndarray | Image"
TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")
CHUNK = 16  # pictures that a thread decodes in one go where all are wanted


# ---- one picture ----------------------------------------------------------------------------------------------------


def read_picture(
    picture: Picture,
    use: Callable[[Image], np.ndarray],
    min_side: int | None = None,
    name: str | None = None,
) -> np.ndarray:
    """Return `use(image)` of a picture as an upright RGB image of Pillow.

    EXIF rotation is applied; grey, palette, CMYK and 16-bit pictures become RGB; what is transparent becomes white; of
    an animation the first frame is taken. With `min_side` a big JPEG is decoded at a fraction of its size, as long as
    the shorter side keeps that many pixels: 20 megapixels then cost what one does.
    """
    with _opened(picture, name, MAX_PIXELS) as image:
        full = image.width * image.height
        _draft(image, min_side)
        _refuse_memory(image, full)
        upright = _upright_rgb(image)
        upright.load()  # while it is open
    return use(upright)


def decode(picture: Picture, min_side: int | None = None, name: str | None = None) -> np.ndarray:
    """Return one encoded picture as RGB, uint8 `(H, W, 3)`, upright; see `read_picture`.

    >>> from io import BytesIO
    >>> from PIL import Image
    >>> file = BytesIO()
    >>> Image.new("L", (4, 2), 255).save(file, "PNG")
    >>> decode(file.getvalue()).shape
    (2, 4, 3)
    """
    return read_picture(picture, np.asarray, min_side, name)


def decode_fitted(picture: Picture, size: int | None, crop: float | None = 1.0, name: str | None = None) -> np.ndarray:
    """Return a picture as a square `(size, size, 3)`, or the whole of it where size is None; see `square`.

    >>> decode_fitted(np.zeros((40, 60, 3), np.uint8), 8).shape
    (8, 8, 3)
    """
    if size is None:
        return decode(picture, None, name)
    return read_picture(picture, lambda image: np.asarray(square(image, size, crop)), 2 * size, name)


def check_size(picture: Picture, name: str, max_pixels: int = MAX_PIXELS, min_side: int | None = None) -> int:
    """Return how many pixels decoding a picture holds, by its header; more than `max_pixels` on disk are refused.

    With `min_side` a big JPEG counts at the fraction of its size at which `read_picture` decodes it.
    """
    with _opened(picture, name, max_pixels) as image:
        full = image.width * image.height
        _draft(image, min_side)
        return full if "progressive" in image.info else image.width * image.height


@contextmanager
def _opened(picture: Picture, name: str | None, max_pixels: int) -> Iterator[Image]:
    """Open a picture, of which the header alone is read yet; every error names it."""
    name = name or (str(picture) if isinstance(picture, str | os.PathLike) else "a picture")
    pillow = require_pillow()
    if isinstance(picture, np.ndarray) and (picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3):
        raise InputError(f"{name} is {picture.dtype} of shape {picture.shape}; it must be uint8 (height, width, 3)")
    try:
        if not isinstance(picture, bytes | memoryview | str | os.PathLike):
            yield pillow.fromarray(picture) if isinstance(picture, np.ndarray) else picture.copy()
            return
        with (
            io.BytesIO(picture) if isinstance(picture, bytes | memoryview) else open_regular(Path(picture)) as file,
            pillow.open(file, formats=_formats(file)) as image,
        ):
            if image.width * image.height > max_pixels:
                raise InputError(f"{name} has {image.width}×{image.height} pixels; the limit is {max_pixels:,}")
            yield image
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name} does not exist") from None
    except PermissionError:
        raise InputError(f"{name} may not be read; check its permissions") from None
    except Exception as error:
        # Decoders of damaged files raise whatever they stumble over: struct.error, SyntaxError, OverflowError, …
        raise InputError(f"{name} cannot be read as a picture ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if "DecompressionBomb" in type(error).__name__:
        return f"it has more than {MAX_PIXELS:,} pixels"
    reason = one_line(error)
    return "not a picture, or of an unknown format" if "cannot identify image file" in reason else reason


def _formats(file: BinaryIO) -> list[str]:
    """Return the formats to try; HEIC, which telephones write, takes a plugin of Pillow's."""
    head = file.read(32)
    file.seek(0)
    if not head:
        raise ValueError("the file is empty")
    if head[4:8] == b"ftyp" and any(brand in head for brand in (b"heic", b"heix", b"hevc", b"heim")):
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            raise ValueError("HEIC takes the package pillow-heif, or save it as JPEG") from None
        register_heif_opener()
        return ["HEIF"]
    return FORMATS


def _draft(image: Image, min_side: int | None) -> None:
    """Let a JPEG be decoded at a fraction of its size, with at least so many pixels on its shorter side."""
    if min_side is not None and image.format == "JPEG":
        scale = min_side / min(image.size)
        image.draft(None, (int(image.width * scale) + 1, int(image.height * scale) + 1))


def _refuse_memory(image: Image, full: int) -> None:
    """Refuse a picture that would take more than its share of the memory that is free; nothing is decoded yet.

    `image.size` is that of a JPEG's draft; a progressive one is held whole, `full` pixels, before.
    """
    deep = image.mode in TRANSPARENT or image.mode.startswith(("I", "F")) or "transparency" in image.info
    wanted = image.width * image.height * (DEEP_PIXEL_BYTES if deep else PIXEL_BYTES)
    wanted += 6 * full if "progressive" in image.info else 0
    if wanted <= FREE_BYTES:
        return
    free = available_memory()
    if free is not None and wanted > free * MEMORY_SHARE:
        raise ValueError(
            f"{image.width}×{image.height} pixels take {wanted / 1e9:.1f} GB, more than 1/{1 / MEMORY_SHARE:.0f} of "
            "the memory that is free; make it smaller"
        )


def _upright_rgb(image: Image) -> Image:
    from PIL import Image as pillow
    from PIL import ImageOps

    if getattr(image, "is_animated", False):
        image.seek(0)
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits a pixel: Pillow would cut off what is above 255
        grey: np.ndarray = np.asarray(image).astype(np.float32)
        if image.mode.startswith("I") and grey.max(initial=0) > 255:
            grey = grey / 257
        elif image.mode == "F" and grey.max(initial=0) <= 1:
            grey = grey * 255
        image = pillow.fromarray(np.nan_to_num(grey).clip(0, 255).astype(np.uint8))
    if image.mode in TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def square(image: Image, size: int, crop: float | None) -> Image:
    """Return the square in the middle of an image, bicubic.

    `crop` is the share of the shorter side that the square takes; None squashes the whole image into the square.
    """
    box, (width, height) = None, image.size
    if crop is not None:
        side = max(min(height, width) * crop, min(1, height, width))
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    if (height, width) == (size, size) and crop in (None, 1.0):
        return image
    return image.resize((size, size), require_pillow().Resampling.BICUBIC, box, reducing_gap=3.0)


def encoded(picture: np.ndarray, longest: int = 160, quality: int = 80) -> bytes:
    """Return a picture `(H, W, 3)` as a JPEG whose longer side has `longest` pixels, or fewer."""
    image = require_pillow().fromarray(picture)
    image.thumbnail((longest, longest))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def require_pillow() -> ModuleType:
    """Return the module `PIL.Image`, or raise an error that names the extra."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("pictures need the package Pillow: pip install 'fewcal[images]'") from error
    return Image


# ---- many pictures --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pictures(Items):
    """Pictures by their files, as bytes of a pack, or in memory: `content` holds what `decode` takes."""

    kind: ClassVar[str] = "picture"
    # HEIC also where its plugin is missing: such a file is reported as unreadable, not skipped in silence.
    extensions: ClassVar[frozenset[str]] = frozenset(
        "avif bmp gif heic heif jfif jp2 jpe jpeg jpg pbm pgm png pnm ppm tga tif tiff webp".split()  # noqa: SIM905
    )

    def load(self, i: int, min_side: int | None = None) -> np.ndarray:
        """Return picture i as uint8 `(H, W, 3)`; see `decode`."""
        return decode(self.content[i], min_side, self.names[i])

    def check(self, i: int) -> None:
        """Refuse picture i where its header is not that of a picture."""
        check_size(self.content[i], self.names[i])

    def arrays(self, size: int, crop: float | None = None, workers: int | None = None) -> np.ndarray:
        """Return all pictures as one array `(R, size, size, 3)` uint8, squashed to squares unless `crop` is given."""
        out = np.empty((len(self), size, size, 3), np.uint8)

        def fill(start: int) -> list[InputError]:  # several at once: a thread with one small picture mostly waits
            errors = []
            for i in range(start, min(start + CHUNK, len(self))):
                try:
                    out[i] = decode_fitted(self.content[i], size, crop, self.names[i])
                except InputError as error:
                    errors.append(error)
            return errors

        found = decoded(range(0, len(self), CHUNK), fill, workers)
        refuse_bad([error for errors in found if isinstance(errors, list) for error in errors], len(self))
        return out


def find_pictures(source: StrPath, labelled: bool = True) -> Pictures:
    """List the pictures of a source: a folder, a CSV list, an `.npz` pack, or one picture.

    With `labelled` a folder must hold one folder for each class. Without, every picture below it is taken, and the
    folder right above a picture counts as its label where all pictures lie in folders.
    """
    path = Path(source)
    require_source(path, "give a folder of pictures, a CSV list or an .npz pack")
    if path.suffix.lower() == ".npz" and path.is_file():
        return _packed(path)
    return list_files(Pictures, path, labelled)


def picture_files(folder: Path) -> list[Path]:
    """Return all picture files below a folder; see `files_below`."""
    return files_below(folder, Pictures.extensions)


def is_picture(name: str) -> bool:
    """Return whether a file of this name counts as a picture."""
    return is_shown(name) and Path(name).suffix.lower()[1:] in Pictures.extensions


def _packed(path: Path) -> Pictures:
    arrays = read_npz(path, ("data", "offsets", "labels", "classes", "names"))
    if missing := [k for k in ("data", "offsets") if k not in arrays]:
        raise FileFormatError(f"{path} is no pack of pictures: no array {missing[0]!r}; it needs data and offsets")
    data, offsets = arrays["data"], arrays["offsets"].astype(np.int64)
    count = len(offsets) - 1
    if data.dtype != np.uint8 or count < 1 or offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise FileFormatError(f"{path} is a damaged pack: its offsets do not fit its {len(data)} bytes")
    raw = arrays.get("names", np.array([f"picture {i}" for i in range(count)]))
    names = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in raw]
    labels = None
    if "labels" in arrays:
        codes = arrays["labels"]
        classes = [class_name(str(c)) for c in arrays["classes"]] if "classes" in arrays else None
        inside = classes is None or 0 <= codes.min() <= codes.max() < len(classes)
        if not len(codes) == len(names) == count or not inside:
            raise FileFormatError(
                f"{path} is a damaged pack: labels, names and classes do not fit its {count} pictures"
            )
        labels = [classes[int(c)] if classes else str(c) for c in codes]
        if classes:  # file names may repeat across classes
            names = [f"{label}/{name}" for label, name in zip(labels, names, strict=True)]
    whole = memoryview(data.tobytes())  # whose slices are no copies
    return Pictures(names, labels, None, str(path), [whole[a:b] for a, b in pairwise(offsets.tolist())])


def write_pack(path: StrPath, pictures: Sequence[bytes], labels: Sequence[str], names: Sequence[str]) -> None:
    """Write encoded pictures as one `.npz` pack that `find_pictures` reads."""
    classes = sorted(set(labels))
    arrays = {
        "data": np.frombuffer(b"".join(pictures), np.uint8),
        "offsets": np.cumsum([0, *(len(p) for p in pictures)]),
        "labels": np.array([classes.index(label) for label in labels], np.int32),
        "classes": np.array(classes),
        "names": np.array(list(names)),
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
