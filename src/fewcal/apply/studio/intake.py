"""What may enter a project: files of its folder, dropped files, texts; sizes are limited, no path leaves the folder."""

from __future__ import annotations

import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fewcal._utils.atomic import atomic_path
from fewcal._utils.text import storable
from fewcal.apply.studio.store import HOME, Found, Item
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.tables import class_name
from fewcal.features.sources.pictures import check_size, class_folders, is_picture, picture_files
from fewcal.features.sources.texts import EXTENSIONS, text_rows

DROPPED = "dropped"  # folder for files that come through the page


@dataclass(frozen=True)
class Limits:
    """What one request may bring.

    upload_bytes : of one file; pixels : of one picture; text_length : characters of one text; items : of a project
    """

    upload_bytes: int = 50_000_000
    pixels: int = 100_000_000
    text_length: int = 20_000
    items: int = 50_000


def inside(folder: Path, name: str) -> Path:
    """The file that an item's name means, or an error where it would lie outside of the folder.

    >>> inside(Path("/data"), "../etc/passwd")
    Traceback (most recent call last):
    fewcal.errors.InputError: '../etc/passwd' lies outside of the project's folder
    """
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root) or path == root:
        raise InputError(f"{name!r} lies outside of the project's folder")
    return path


@contextmanager
def scratch_file(folder: Path, name: str) -> Iterator[Path]:
    """A file of this name that is only there inside of the block; a disk that is full is an error in one line."""
    home = folder / HOME
    try:
        with tempfile.TemporaryDirectory(dir=home, suffix=".tmp", ignore_cleanup_errors=True) as place:
            yield Path(place) / name
    except OSError as error:
        raise InputError(f"cannot write {name} into {home}: {error.strerror or error}; make room") from error


def sweep(folder: Path) -> None:
    """Remove what killed processes left half written; only for the process that holds the project."""
    for place in (folder / HOME, folder / DROPPED):
        for path in place.glob("*.tmp"):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def safe_file_name(name: str, fallback: str = "file", limit: int = 100) -> str:
    """A name that every file system takes as one name in one folder, similar to the one given.

    >>> safe_file_name("../../a:b?.jpg"), safe_file_name("CON"), safe_file_name("  "), safe_file_name("é/è.png")
    ('a_b_.jpg', '_CON', 'file', 'è.png')
    """
    name = unicodedata.normalize("NFC", name).replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join("_" if c in '<>:"|?*' or unicodedata.category(c)[0] == "C" else c for c in name).strip(" .")
    stem, dot, suffix = kept.rpartition(".")
    if not dot:
        stem, suffix = kept, ""
    # Bytes count, not characters: most file systems stop at 255.
    while len((stem + dot + suffix).encode()) > limit and stem:
        stem = stem[:-1]
    kept = (stem + dot + suffix)[:limit] or fallback
    reserved = {"CON", "PRN", "AUX", "NUL", *(f"{d}{i}" for d in ("COM", "LPT") for i in range(1, 10))}
    return f"_{kept}" if kept.partition(".")[0].upper() in reserved else kept


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """The name, or where it is taken the first one with a number that is free.

    >>> free_name("a.png", {"a.png", "a (2).png"}.__contains__)
    'a (3).png'
    """
    stem, suffix = Path(name).stem, Path(name).suffix
    return next(one for n in count(1) if not taken(one := name if n == 1 else f"{stem} ({n}){suffix}"))


def scan(folder: Path, kind: str | None = None) -> tuple[list[Found], list[str]]:
    """Names and texts of what lies in a folder, and in words what is left out of it.

    A project of neither kind yet takes the pictures, or where there are none the texts. Text files may also lie in
    folders of classes, as `fewcal classify` takes them, but no deeper: a folder of something else has many. A table of
    something else, a file that cannot be read, and what is of the other kind is left out.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not there any more; bring it back, or start the studio elsewhere")
    root = folder.resolve()
    pictures, texts = (  # links may lead elsewhere
        [p.relative_to(folder) for p in files if p.resolve().is_relative_to(root)]
        for files in (picture_files(folder), _text_files(folder))
    )
    kind = kind or ("picture" if pictures else "text")
    found, notes = _pictures(pictures) if kind == "picture" else _texts(folder, texts)
    if others := texts if kind == "picture" else pictures:
        other = "texts" if kind == "picture" else "pictures"
        rule = f"this project holds {kind}s; put {other} into a folder of their own"
        notes.append(f"left out: {_some([p.as_posix() for p in others])}; {rule}")
    return found, [storable(note) for note in notes]


def _text_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place in (folder, *class_folders(folder)):
        with suppress(PermissionError):  # a folder of somebody else's, which is passed over for pictures, too
            found += [p for p in place.iterdir() if is_text_file(p.name) and p.is_file()]
    return sorted(found)


def _pictures(files: Sequence[Path]) -> tuple[list[Found], list[str]]:
    names = [p.as_posix() for p in files]
    lost = [name for name in names if storable(name) != name]
    notes = [f"left out: {_some(lost)}, whose names are not UTF-8; rename them"] if lost else []
    return [Found(name) for name in names if storable(name) == name], notes


def _texts(folder: Path, files: Sequence[Path]) -> tuple[list[Found], list[str]]:
    found: list[Found] = []
    notes = []
    for file in files:
        try:
            found += texts_of(folder / file, storable(file.as_posix()))
        except (InputError, FileFormatError) as error:
            notes.append(f"left out: {error}")
    return found, notes


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def unseen_texts(found: Iterable[Found], present: Mapping[str, str | None]) -> list[Found]:
    """What of a folder is new by its name; of a file of texts that was read before, the texts that it did not have.

    Lines move when a file is edited: names hold their number, so texts count. A number in use becomes a free one.

    >>> unseen_texts([Found("a.txt: 1", "new"), Found("a.txt: 2", "old")], {"a.txt: 1": "old"})
    [Found(name='a.txt: 2', text='new', named=None)]
    """
    texts = {(_file(name), text) for name, text in present.items()}
    files, names, out = {file for file, _ in texts}, set(present), []
    for name, text, named in found:
        file = _file(name)
        if text is not None and file in files:
            if (file, text) in texts:
                continue
            texts.add((file, text))
            if name in names:
                name = next(free for n in count(1) if (free := f"{file}: {n}") not in names)
        names.add(name)
        out.append(Found(name, text, named))
    return out


def _file(name: str) -> str:
    """The file of a text, by the name of the text."""
    return name.rpartition(": ")[0]


def classes_by_folder(items: Iterable[Item]) -> dict[str, list[int]]:
    """Items by the folder they lie in, as `fewcal classify` reads classes; nothing unless there are two.

    Files that were dropped, and those that cannot be read, are in none.

    >>> classes_by_folder([Item(1, "robin/1.jpg", None, "ready", None), Item(2, "wren/a/1.jpg", None, "waiting", None)])
    {'robin': [1], 'wren': [2]}
    """
    found: dict[str, list[int]] = {}
    for item in items:
        folder, below, _ = item.name.partition("/")
        if below and item.state != "failed" and folder != DROPPED:
            found.setdefault(class_name(folder), []).append(item.id)
    return found if len(found) > 1 else {}


def classes_by_label(items: Iterable[Item]) -> dict[str, list[int]]:
    """Texts by the class that their file names for them.

    >>> classes_by_label([Item(1, "a.csv: 1", "hail", "ready", None, "weather"), Item(2, "b", "?", "ready", None)])
    {'weather': [1]}
    """
    found: dict[str, list[int]] = {}
    for item in items:
        if item.named and item.state != "failed":
            found.setdefault(item.named, []).append(item.id)
    return found


def is_text_file(name: str) -> bool:
    """Whether a file of this name is read as a file of texts."""
    return not name.startswith(".") and Path(name).suffix.lower()[1:] in EXTENSIONS


def texts_of(file: Path, shown: str) -> list[Found]:
    """The texts of a .txt (one a line), .csv or .jsonl file (column or key `text`), with names; empty ones left out.

    A column or key `label` names classes; rows may be without one.
    """
    texts, labels, _ = text_rows(file)
    named = [_whole(label) or None for label in labels or [""] * len(texts)]
    rows = [Found(f"{shown}: {i + 1}", _whole(texts[i]), named[i]) for i in range(len(texts))]
    return [row for row in rows if row.text]


def _whole(text: str) -> str:
    """A text without white space around it; half of a character, as cutting a text leaves it, is shown as unknown."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text).strip()


def checked_texts(texts: Sequence[str], limits: Limits) -> list[str]:
    """Texts without white space around them, empty ones left out; too long ones are refused."""
    kept = [t for text in texts if (t := _whole(text))]
    if long := [t for t in kept if len(t) > limits.text_length]:
        raise InputError(f"a text has {len(long[0])} characters; the limit is {limits.text_length}")
    return kept


def keep_picture(folder: Path, name: str, data: bytes, limits: Limits) -> str:
    """Write a dropped picture into the project, under a name that is free, and give its item name.

    The same picture dropped twice is kept once.
    """
    name = safe_file_name(name, "picture")
    if not is_picture(name):
        raise InputError(f"{name!r} is no picture by its name; drop .jpg, .png, .webp and the like")
    check_size(data, name, limits.pixels)

    def taken(name: str) -> bool:
        target = inside(folder, f"{DROPPED}/{name}")
        return target.exists() and (target.stat().st_size != len(data) or target.read_bytes() != data)

    name = f"{DROPPED}/{free_name(name, taken)}"
    target = inside(folder, name)
    if not target.exists():
        with atomic_path(target) as temporary:
            temporary.write_bytes(data)
    return name
