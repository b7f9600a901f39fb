"""What may enter a project: files of its folder, dropped files, texts; sizes are limited, no path leaves the folder."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fewcal._utils.atomic import atomic_path
from fewcal._utils.text import storable
from fewcal.apply.studio.store import Item
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features.io.tables import class_name
from fewcal.features.sources.pictures import check_size, class_folders, is_picture, picture_files
from fewcal.features.sources.texts import EXTENSIONS, find_texts

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


def safe_file_name(name: str, fallback: str = "file", most: int = 100) -> str:
    """A name that every file system takes as one name in one folder, similar to the one given.

    >>> safe_file_name("../../a:b?.jpg"), safe_file_name("CON"), safe_file_name("  "), safe_file_name("é/è.png")
    ('a_b_.jpg', '_CON', 'file', 'è.png')
    """
    name = unicodedata.normalize("NFC", name).replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join("_" if c in '<>:"|?*' or unicodedata.category(c)[0] == "C" else c for c in name).strip(" .")
    stem, dot, suffix = kept.rpartition(".")
    if not dot:
        stem, suffix = kept, ""
    # Bytes count, not characters: most file systems stop at 255 of them.
    while len((stem + dot + suffix).encode()) > most and stem:
        stem = stem[:-1]
    kept = (stem + dot + suffix)[:most] or fallback
    reserved = {"CON", "PRN", "AUX", "NUL", *(f"{d}{i}" for d in ("COM", "LPT") for i in range(1, 10))}
    return f"_{kept}" if kept.partition(".")[0].upper() in reserved else kept


def scan(folder: Path) -> list[tuple[str, str | None]]:
    """Names and texts of what lies in a folder: its pictures, or where there are none its text files' texts.

    Text files may also lie in folders of classes, as `fewcal classify` takes them, but no deeper: a folder of something
    else has many. A table of something else, or a file that cannot be read, is left out with a warning.
    """
    root = folder.resolve()
    pictures = [p for p in picture_files(folder) if p.resolve().is_relative_to(root)]  # links may lead elsewhere
    if pictures:
        names = [p.relative_to(folder).as_posix() for p in pictures]
        kept = [name for name in names if storable(name) == name]
        if lost := [name for name in names if storable(name) != name]:
            some = f"{lost[0]} and {len(lost) - 1} more" if len(lost) > 1 else lost[0]
            warnings.warn(f"left out: {some}, whose names are not UTF-8; rename them", FewcalWarning, stacklevel=2)
        return [(name, None) for name in kept]
    places = [folder, *class_folders(folder)]
    files = sorted(p for place in places for p in place.iterdir() if is_text_file(p.name) and p.is_file())
    found: list[tuple[str, str | None]] = []
    for file in (p for p in files if p.resolve().is_relative_to(root)):
        try:
            found += texts_of(file, storable(file.relative_to(folder).as_posix()))
        except (InputError, FileFormatError) as error:
            warnings.warn(f"left out: {error}", FewcalWarning, stacklevel=2)
    return found


def unknown_texts(
    found: Iterable[tuple[str, str | None]], known: Mapping[str, str | None]
) -> list[tuple[str, str | None]]:
    """What of a folder is not known by its name; of a file of texts that is known, the texts that it did not have.

    Lines move when a file is edited: names say their number, so texts count. A number that is taken becomes a free one.

    >>> unknown_texts([("a.txt: 1", "new"), ("a.txt: 2", "old")], {"a.txt: 1": "old"})
    [('a.txt: 2', 'new')]
    """
    had: dict[str, set[str | None]] = {}
    for name, text in known.items():
        had.setdefault(_file(name), set()).add(text)
    taken, out = set(known), []
    numbers: dict[str, count[int]] = {}
    for name, text in found:
        file = _file(name)
        if text is not None and file in had:
            if text in had[file]:
                continue
            had[file].add(text)
            if name in taken:
                free = (f"{file}: {n}" for n in numbers.setdefault(file, count(1)))
                name = next(other for other in free if other not in taken)
        taken.add(name)
        out.append((name, text))
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


def is_text_file(name: str) -> bool:
    """Whether a file of this name is taken for a file of texts."""
    return not name.startswith(".") and Path(name).suffix.lower()[1:] in EXTENSIONS


def texts_of(file: Path, shown: str) -> list[tuple[str, str | None]]:
    """The texts of a .txt (one a line), .csv or .jsonl file (column or key `text`), with names; empty ones left out."""
    found = find_texts(file, labelled=False)
    rows = [(f"{shown}: {i + 1}", _whole(text)) for i, text in enumerate(found.texts)]
    return [(name, text) for name, text in rows if text]


def _whole(text: str) -> str:
    """A text without white space around it; half of a character, as cutting a text leaves it, is shown as unknown."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text).strip()


def checked_texts(texts: Sequence[str], limits: Limits) -> list[str]:
    """Texts without white space around them, empty ones left out; too long ones are refused."""
    kept = [t for text in texts if (t := _whole(text))]
    if long := [t for t in kept if len(t) > limits.text_length]:
        raise InputError(f"a text has {len(long[0])} characters; at most {limits.text_length} are taken")
    return kept


def keep_picture(folder: Path, name: str, data: bytes, limits: Limits) -> str:
    """Write a dropped picture into the project, under a name that is free, and give its item name.

    The same picture dropped twice is kept once.
    """
    name = safe_file_name(name, "picture")
    if not is_picture(name):
        raise InputError(f"{name!r} is no picture by its name; drop .jpg, .png, .webp and the like")
    check_size(data, name, limits.pixels)
    target, number = inside(folder, f"{DROPPED}/{name}"), 1
    while target.exists():
        if target.stat().st_size == len(data) and target.read_bytes() == data:
            break
        number += 1
        target = inside(folder, f"{DROPPED}/{Path(name).stem} ({number}){Path(name).suffix}")
    else:
        with atomic_path(target) as temporary:
            temporary.write_bytes(data)
    return target.relative_to(folder.resolve()).as_posix()
