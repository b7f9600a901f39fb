"""Pictures: where they lie, and one of them as an array.

A source is a folder with one folder for each class, a CSV list (`path`, optional `label` and `split`), an `.npz` pack
of encoded pictures, or a single file. `find_pictures` lists a source without opening the pictures; `Pictures.load`
decodes one; `decoded` decodes many with a pool of threads (Pillow lets go of the interpreter while it decodes).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Self

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.memory import available_memory
from fewcal._utils.npz import read_npz
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.tables import DELIMITED, class_name, read_csv
from fewcal.features.sources.items import Items, decoded, refuse_bad

if TYPE_CHECKING:
    import PIL.Image

# By extension, so that listing opens nothing. Formats that Pillow cannot read (HEIC without its plugin) are in it on
# purpose: such a file is reported as unreadable, not skipped in silence.
EXTENSIONS = frozenset(
    "avif bmp gif heic heif jfif jp2 jpe jpeg jpg pbm pgm png pnm ppm tga tif tiff webp".split()  # noqa: SIM905
)
# A small file can claim to be of any size. This is Pillow's own limit, kept also where somebody lifted that.
MOST_PIXELS = 178_956_970
# What one picture may take of the memory that is left: several are decoded at once.
MEMORY_SHARE = 1 / 16
# Bytes that a pixel takes while a picture is decoded, and more if it is transparent or has more than 8 bits a channel.
_BYTES, _MORE_BYTES = 12, 20
_SMALL = 2**26  # below this no picture is asked for its memory
_TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")
_TOGETHER = 16  # pictures that a thread decodes in one go where all are wanted
_IGNORED_FOLDERS = {"__MACOSX", "@eaDir"}


# ---- one picture ----------------------------------------------------------------------------------------------------


def decode(picture: bytes | StrPath, at_least: int | None = None, name: str | None = None) -> np.ndarray:
    """One encoded picture as RGB, uint8 `(H, W, 3)`, upright.

    EXIF rotation is applied; grey, palette, CMYK and 16-bit pictures become RGB; what is transparent becomes white; of
    an animation the first frame is taken. With `at_least` a big JPEG is decoded at a fraction of its size, as long as
    the shorter side keeps that many pixels: 20 megapixels then cost what one does.

    >>> from io import BytesIO
    >>> from PIL import Image
    >>> file = BytesIO()
    >>> Image.new("L", (4, 2), 255).save(file, "PNG")
    >>> decode(file.getvalue()).shape
    (2, 4, 3)
    """
    return _read(picture, at_least, name, np.asarray)


def decode_fitted(
    picture: bytes | StrPath, size: int | None, crop: float | None = 1.0, name: str | None = None
) -> np.ndarray:
    """`fitted(decode(picture, 2 * size), size, crop)` without an array of the whole picture; with size None, all of it.

    >>> from io import BytesIO
    >>> from PIL import Image
    >>> file = BytesIO()
    >>> Image.new("RGB", (40, 60)).save(file, "JPEG")
    >>> decode_fitted(file.getvalue(), 8).shape
    (8, 8, 3)
    """
    if size is None:
        return decode(picture, None, name)
    return _read(picture, 2 * size, name, lambda image: np.asarray(_square(image, size, crop)))


def _read(
    picture: bytes | StrPath, at_least: int | None, name: str | None, use: Callable[[PIL.Image.Image], np.ndarray]
) -> np.ndarray:
    """What `use` makes of the picture, upright and in RGB, while it is open; see `decode`."""
    with _opened(picture, name or ("a picture" if isinstance(picture, bytes) else str(picture))) as image:
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(f"{width}×{height} pixels, more than {MOST_PIXELS:,}")
        if at_least is not None and image.format == "JPEG":
            scale = at_least / min(width, height)
            image.draft(None, (int(width * scale) + 1, int(height * scale) + 1))
        _check_memory(image, width, height)
        return use(_upright_rgb(image))


@contextmanager
def _opened(picture: bytes | StrPath, name: str) -> Iterator[PIL.Image.Image]:
    """The picture, of which the header alone is read yet; what goes wrong with it ends in an error that names it."""
    Image = _pillow()
    try:
        with (
            io.BytesIO(picture) if isinstance(picture, bytes) else Path(picture).open("rb") as file,
            Image.open(file, formats=_formats(file)) as image,
        ):
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
        return f"it has more than {MOST_PIXELS:,} pixels"
    reason = one_line(error)
    return "not a picture, or of an unknown format" if "cannot identify image file" in reason else reason


def _formats(file: BinaryIO) -> list[str] | None:
    """Formats to try: one, where the first bytes tell WebP, which Pillow tries after many others; None for all.

    HEIC, which telephones write, is read by a plugin of Pillow's where that is installed.
    """
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
    return ["WEBP"] if head.startswith(b"RIFF") and head[8:12] == b"WEBP" else None


def _check_memory(image: PIL.Image.Image, width: int, height: int) -> None:
    """Refuse a picture that would take more than its share of the memory that is left; nothing is decoded yet.

    A JPEG is decoded at a fraction of its size, which `image.size` says; a progressive one is held whole before.
    """
    deep = image.mode in _TRANSPARENT or image.mode.startswith(("I", "F")) or "transparency" in image.info
    wanted = image.width * image.height * (_MORE_BYTES if deep else _BYTES)
    if "progressive" in image.info:
        wanted += 6 * width * height
    if wanted <= _SMALL:
        return
    left = available_memory()
    if left is not None and wanted > left * MEMORY_SHARE:
        raise ValueError(
            f"{width}×{height} pixels take {wanted / 1e9:.1f} GB, more than 1/{1 / MEMORY_SHARE:.0f} of the memory "
            "that is free; make it smaller"
        )


def check_size(picture: bytes | StrPath, name: str, most_pixels: int = MOST_PIXELS) -> int:
    """Pixels of a picture by its header: nothing is decoded. What is no picture or has too many is refused."""
    with _opened(picture, name) as image:
        width, height = image.size
        if width * height > most_pixels:
            raise InputError(f"{name} has {width}×{height} pixels; at most {most_pixels:,} are taken")
        return width * height


def _upright_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    from PIL import Image, ImageOps

    if getattr(image, "is_animated", False):
        image.seek(0)
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits a pixel: Pillow would cut off what is above 255
        grey: np.ndarray = np.asarray(image).astype(np.float32)
        if image.mode.startswith("I") and grey.max(initial=0) > 255:
            grey = grey / 257
        elif image.mode == "F" and grey.max(initial=0) <= 1:
            grey = grey * 255
        image = Image.fromarray(np.nan_to_num(grey).clip(0, 255).astype(np.uint8))
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def fitted(picture: np.ndarray, size: int, crop: float | None = 1.0) -> np.ndarray:
    """A picture `(H, W, 3)` as a square `(size, size, 3)`, bicubic.

    `crop` is the share of the shorter side that the square in the middle takes; `None` squashes the whole picture
    into the square.

    >>> fitted(np.zeros((40, 60, 3), np.uint8), 8).shape
    (8, 8, 3)
    """
    return np.asarray(_square(_pillow().fromarray(picture), size, crop))


def _square(image: PIL.Image.Image, size: int, crop: float | None) -> PIL.Image.Image:
    box, (width, height) = None, image.size
    if crop is not None:
        side = max(min(height, width) * crop, min(1, height, width))
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    if (height, width) == (size, size) and crop in (None, 1.0):
        return image
    return image.resize((size, size), _pillow().Resampling.BICUBIC, box, reducing_gap=3.0)


def encoded(picture: np.ndarray, longest: int = 160, quality: int = 80) -> bytes:
    """A picture `(H, W, 3)` as the bytes of a JPEG whose longer side has at most `longest` pixels."""
    Image = _pillow()
    image = Image.fromarray(picture)
    image.thumbnail((longest, longest))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("pictures need the package Pillow: pip install 'fewcal[images]'") from error
    return Image


# ---- many pictures --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pictures(Items):
    """Pictures by their files, or as pieces of a pack; names are paths relative to the source."""

    _paths: list[Path] | None = None
    _pack: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # all bytes, first and last byte of each picture

    kind: ClassVar[str] = "picture"

    def load(self, i: int, at_least: int | None = None) -> np.ndarray:
        """Picture i as uint8 `(H, W, 3)`; see `decode`."""
        return decode(self._encoded(i), at_least, self.names[i])

    def square(self, i: int, size: int | None, crop: float | None = 1.0) -> np.ndarray:
        """Picture i as uint8 `(size, size, 3)`; see `decode_fitted`."""
        return decode_fitted(self._encoded(i), size, crop, self.names[i])

    def check(self, i: int) -> None:
        """Refuse picture i if its header already tells that it cannot be read."""
        check_size(self._encoded(i), self.names[i])

    def _encoded(self, i: int) -> bytes | Path:
        if self._paths is not None:
            return self._paths[i]
        assert self._pack is not None
        data, first, last = self._pack
        return data[first[i] : last[i]].tobytes()

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """Some of them, in the order given."""
        at, pack = [int(i) for i in indices], self._pack
        return replace(
            super().take(at),
            _paths=None if self._paths is None else [self._paths[i] for i in at],
            _pack=None if pack is None else (pack[0], pack[1][at], pack[2][at]),
        )

    def arrays(self, size: int, crop: float | None = None, workers: int | None = None) -> np.ndarray:
        """All of them as one array `(R, size, size, 3)` uint8, squashed to squares unless `crop` is given."""
        out = np.empty((len(self), size, size, 3), np.uint8)

        def some(start: int) -> list[InputError]:  # a thread that is asked for one small picture at a time mostly waits
            errors = []
            for i in range(start, min(start + _TOGETHER, len(self))):
                try:
                    out[i] = self.square(i, size, crop)
                except InputError as error:
                    errors.append(error)
            return errors

        found = decoded(range(0, len(self), _TOGETHER), some, workers)
        refuse_bad([error for errors in found if isinstance(errors, list) for error in errors], len(self))
        return out


# ---- sources --------------------------------------------------------------------------------------------------------


def find_pictures(source: StrPath, labelled: bool = True) -> Pictures:
    """List the pictures of a source: a folder, a CSV list, an `.npz` pack, or one picture.

    With `labelled` a folder must hold one folder for each class. Without, every picture below it is taken, and the
    folder right above a picture counts as its label where all pictures lie in folders.
    """
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a folder of pictures, a CSV list or an .npz pack")
    if path.is_dir():
        return _labelled_folder(path) if labelled else _loose_folder(path)
    suffix = path.suffix.lower().lstrip(".")
    if suffix in DELIMITED:
        return _listed(path, labelled)
    if suffix == "npz":
        return _packed(path)
    if suffix in EXTENSIONS and not labelled:
        return Pictures([path.name], None, None, str(path), [path])
    wanted = "a folder with one folder a class" if labelled else "a picture, a folder of pictures"
    raise InputError(f"{path} is no source of pictures; give {wanted}, a CSV list or an .npz pack")


def picture_files(folder: Path) -> list[Path]:
    """All picture files below a folder, sorted by their path; hidden ones and those of other kinds are skipped.

    Links to folders are followed, but no folder is entered twice, nor one that holds the present one: links may form
    a circle.
    """
    found: list[Path] = []
    entered: set[Path] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        here = Path(root).resolve()
        if here in entered:
            folders.clear()
            continue
        entered.add(here)
        found += [Path(root, f) for f in files if is_picture(f)]
        folders[:] = sorted(f for f in folders if _shown(f) and not _holds(Path(root, f), here))
    return sorted(found, key=lambda p: _name(p, folder))


def is_picture(name: str) -> bool:
    """Whether a file of this name is taken for a picture."""
    return _shown(name) and Path(name).suffix.lower()[1:] in EXTENSIONS


def class_folders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted; hidden ones, and links back to the folder or above it, are skipped."""
    here = folder.resolve()
    found = (p for p in folder.iterdir() if p.is_dir() and _shown(p.name) and not _holds(p, here))
    return sorted(found, key=lambda p: p.name)


def _holds(folder: Path, inner: Path) -> bool:
    """Whether a link leads to `inner` (resolved) itself or to a folder above it."""
    return folder.is_symlink() and inner.is_relative_to(folder.resolve())


def _shown(name: str) -> bool:
    return not name.startswith(".") and name not in _IGNORED_FOLDERS


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _labelled_folder(folder: Path) -> Pictures:
    names, labels, paths, empty = [], [], [], []
    for below in class_folders(folder):
        files = picture_files(below)
        if not files:
            empty.append(below.name)
        names += [_name(p, folder) for p in files]
        labels += [class_name(below.name)] * len(files)
        paths += files
    loose = [p.name for p in sorted(folder.iterdir()) if p.is_file() and is_picture(p.name)]
    if loose:
        more = f" and {len(loose) - 1} more" if len(loose) > 1 else ""
        what = "put the pictures of each class into a folder of its own" if not names else "move them into one"
        raise InputError(f"{folder}: {loose[0]}{more} in no class folder; {what}")
    if not names:
        kinds = f" (its folders {', '.join(empty[:3])} hold none)" if empty else ""
        raise InputError(f"{folder} holds no pictures{kinds}; put the pictures of each class into a folder of its own")
    if empty:
        raise InputError(f"{folder}: the class folder {empty[0]!r} holds no pictures; add some or remove it")
    inner = {name.split("/")[1] for name in names if name.count("/") > 1}
    if len(set(labels)) == 1 and len(inner) > 1:
        raise InputError(
            f"{folder} has one class folder only, {labels[0]!r}, with folders in it; give {folder / labels[0]}"
        )
    return Pictures(names, labels, None, str(folder), paths)


def _loose_folder(folder: Path) -> Pictures:
    paths = picture_files(folder)
    if not paths:
        raise InputError(f"{folder} holds no pictures; known are {', '.join(sorted(EXTENSIONS))}")
    above = [p.relative_to(folder).parts[0] if p.parent != folder else None for p in paths]
    labels = None if None in above else [class_name(str(a)) for a in above]
    return Pictures([_name(p, folder) for p in paths], labels, None, str(folder), paths)


def _listed(path: Path, labelled: bool) -> Pictures:
    table = read_csv(path, need=["path", "label"] if labelled else ["path"])
    paths = [path.parent / p for p in table["path"]]
    labels = [class_name(x) for x in table["label"]] if "label" in table else None
    if labels is not None and "" in labels:
        if labelled:
            raise InputError(f"{path}: row {labels.index('') + 2} has no label; every picture needs a class")
        labels = None
    return Pictures(list(table["path"]), labels, table.get("split"), str(path), paths)


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
        if (
            len(codes) != count
            or len(names) != count
            or (classes and not 0 <= codes.min() <= codes.max() < len(classes))
        ):
            raise FileFormatError(
                f"{path} is a damaged pack: labels, names and classes do not fit its {count} pictures"
            )
        labels = [classes[int(c)] if classes else str(c) for c in codes]
        if classes:  # file names may repeat across classes
            names = [f"{label}/{name}" for label, name in zip(labels, names, strict=True)]
    return Pictures(names, labels, None, str(path), None, (data, offsets[:-1], offsets[1:]))


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
