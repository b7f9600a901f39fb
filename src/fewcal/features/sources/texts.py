"""Texts: a CSV or JSON-lines file with a text and a label in each row, or plain text with one text a line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.tables import DELIMITED, class_name, encoding_of, read_csv
from fewcal.features.sources.items import Items

EXTENSIONS = (*DELIMITED, "jsonl", "ndjson", "txt")
COLUMNS_REMEDY = "name the columns with --text-column and --label-column, or add a header line"


@dataclass(frozen=True, eq=False)
class Texts(Items):
    """Texts in memory; their names say the row of the file."""

    texts: list[str] = field(default_factory=list)

    kind: ClassVar[str] = "text"

    def load(self, i: int, at_least: int | None = None) -> str:
        """Text i; an empty one is refused."""
        text = self.texts[i].strip()
        if not text:
            raise InputError(f"{self.names[i]} is empty")
        return text

    def check(self, i: int) -> None:
        """Refuse an empty text."""
        self.load(i)

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """Some of them, in the order given."""
        return replace(super().take(indices), texts=[self.texts[int(i)] for i in indices])

    def fingerprint(self) -> str:
        """A digest of texts and labels."""
        return hashlib.sha256(
            (super().fingerprint() + "\0".join(self.texts)).encode("utf-8", "surrogatepass")
        ).hexdigest()


def find_texts(source: StrPath, labelled: bool = True, text: str = "text", label: str = "label") -> Texts:
    """The texts of a file: CSV with a header, JSON lines, or plain text (one a line, no labels); or of a folder with
    one plain text file, or a folder of such files, for each class. Empty lines are left out. `text` and `label` are the
    names of columns or keys; `split` may be there too.
    """
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a .csv, .jsonl or .txt file of texts")
    if path.is_dir():
        return _folder(path)
    texts, labels, splits = text_rows(path, labelled, text, label)
    if labels is not None and "" in labels:
        if labelled:
            raise InputError(f"{path}: text {labels.index('') + 1} has no label; every text needs a class")
        labels = None
    names = [f"{path.name}: text {i + 1}" for i in range(len(texts))]
    return Texts(names, labels, splits, str(path), texts)


def text_rows(
    path: Path, labelled: bool = False, text: str = "text", label: str = "label"
) -> tuple[list[str], list[str] | None, list[str] | None]:
    """Texts, labels ("" where a row has none) and splits of a file, as `find_texts` reads it."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in EXTENSIONS:
        raise InputError(f"{path} is no source of texts; give a .csv, .jsonl or .txt file")
    need = [text, label] if labelled else [text]
    if kind == "txt":
        if labelled:
            raise InputError(f"{path} has no labels; give a .csv or .jsonl file with the columns {text} and {label}")
        table = {text: [line for line in _lines(path) if line.strip()]}
    else:
        lower = [n.lower() for n in need]
        table = read_csv(path, lower, COLUMNS_REMEDY) if kind in DELIMITED else _json_lines(path, need)
    if kind in DELIMITED:
        text, label = text.lower(), label.lower()  # headers are read without regard to case
    labels = [class_name(x) for x in table[label]] if label in table else None
    return table[text], labels, table.get("split")


def split_lines(text: str) -> list[str]:
    """The lines of a text; `splitlines` would also split at form feeds and U+2028, which belong to texts.

    >>> split_lines("a\\u2028b\\r\\nc\\fd")
    ['a\\u2028b', 'c\\x0cd']
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _lines(path: Path) -> list[str]:
    try:
        lines = split_lines(path.read_text(encoding=encoding_of(path)))
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise FileFormatError(f"{path} is empty; write one text a line")
    return lines


def _json_lines(path: Path, need: list[str]) -> dict[str, list[str]]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # a line as deep as no text is
            reason = one_line(error)
            raise FileFormatError(f"{path}: line {number} is not JSON ({reason})") from error
        if not isinstance(row, dict):
            raise FileFormatError(f'{path}: line {number} is no object; write {{"{need[0]}": "…"}} on each line')
        if missing := [n for n in need if n not in row]:
            raise FileFormatError(
                f"{path}: line {number} has no {missing[0]!r} (it has: {', '.join(row)[:120] or 'nothing'})"
            )
        rows.append(row)
    keys = set(rows[0]).intersection(*rows)
    return {key: ["" if row[key] is None else str(row[key]) for row in rows] for key in keys}


def class_text_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Classes and their plain text files: `class.txt`, or all in the folder of a class."""
    with os.scandir(folder) as found:  # which knows folders without asking: there may be many thousands of pictures
        places = sorted((place for place in found if not place.name.startswith(".")), key=lambda place: place.name)
    for place in places:
        if place.is_dir():
            files = (p for p in Path(place.path).iterdir() if p.suffix.lower() == ".txt" and not p.name.startswith("."))
            yield from ((class_name(place.name), file) for file in sorted(files))
        elif place.name.lower().endswith(".txt"):
            yield class_name(Path(place.name).stem), Path(place.path)


def _folder(folder: Path) -> Texts:
    found = list(class_text_files(folder))
    if not found:
        raise InputError(f"{folder} holds no .txt files; give a .csv or .jsonl file, or one .txt file for each class")
    names, labels, texts = [], [], []
    for label, file in found:
        for number, line in enumerate(_lines(file), 1):
            if not line.strip():
                continue
            names.append(f"{file.relative_to(folder).as_posix()}: line {number}")
            labels.append(label)
            texts.append(line)
    return Texts(names, labels, None, str(folder), texts)
