"""Texts: a CSV or JSON-lines file with a text and a label in each row, or plain text with one text a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.regular import require_source
from fewcal.features.io.tables import DELIMITED, class_name, read_csv, read_text
from fewcal.features.sources.items import Items
from fewcal.features.sources.listing import files_below

EXTENSIONS = (*DELIMITED, "jsonl", "ndjson", "txt")


@dataclass(frozen=True, eq=False)
class Texts(Items):
    """Texts in memory, named by the row of their file; `content` holds them."""

    kind: ClassVar[str] = "text"

    def load(self, i: int, min_side: int | None = None) -> str:
        """Return text i; an empty one is refused."""
        text = str(self.content[i]).strip()
        if not text:
            raise InputError(f"{self.names[i]} is empty")
        return text

    def check(self, i: int) -> None:
        """Refuse an empty text."""
        self.load(i)

    @property
    def texts(self) -> list[str]:
        """The texts themselves."""
        return list(self.content)

    def fingerprint(self) -> str:
        """Return a digest of texts and labels."""
        text = super().fingerprint() + "\0".join(self.texts)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def find_texts(source: StrPath, labelled: bool = True, text: str = "text", label: str = "label") -> Texts:
    """Return the texts of a file, or of a folder with a plain text file, or a folder of such files, for each class.

    A file is CSV with a header, JSON lines, or plain text (one a line, no labels); empty lines are left out. `text` and
    `label` are the names of columns or keys; `split` may be there too.
    """
    path = Path(source)
    require_source(path, "give a .csv, .jsonl or .txt file of texts")
    if path.is_dir():
        return _folder(path)
    texts, labels, splits = text_rows(path, labelled, text, label)
    if labels is not None and "" in labels:
        if labelled:
            raise InputError(f"{path}: text {labels.index('') + 1} has no label; every text needs a class")
        labels = None
    return Texts([f"{path.name}: text {i + 1}" for i in range(len(texts))], labels, splits, str(path), texts)


def text_rows(
    path: Path, labelled: bool = False, text: str = "text", label: str = "label"
) -> tuple[list[str], list[str] | None, list[str] | None]:
    """Return texts, labels ("" where a row has none) and splits of a file, as `find_texts` reads it."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in EXTENSIONS:
        raise InputError(f"{path} is no source of texts; give a .csv, .jsonl or .txt file")
    if kind == "txt":
        if labelled:
            raise InputError(f"{path} has no labels; give a .csv or .jsonl file with the columns {text} and {label}")
        return [line for _, line in _lines(path)], None, None
    if kind in DELIMITED:  # headers are read without regard to case
        text, label = text.lower(), label.lower()
    need = [text, label] if labelled else [text]
    remedy = "name the columns with --text-column and --label-column, or add a header line"
    table = read_csv(path, need, remedy) if kind in DELIMITED else _json_lines(path, need)
    labels = [class_name(x) for x in table[label]] if label in table else None
    return table[text], labels, table.get("split")


def split_lines(text: str) -> list[str]:
    """Return the lines of a text; `splitlines` would also split at form feeds and U+2028, which belong to texts.

    >>> split_lines("a\\u2028b\\r\\nc\\fd")
    ['a\\u2028b', 'c\\x0cd']
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a file that are not empty, with their numbers."""
    lines = [(number, line) for number, line in enumerate(split_lines(read_text(path)), 1) if line.strip()]
    if not lines:
        raise FileFormatError(f"{path} is empty; write one text a line")
    return lines


def _json_lines(path: Path, need: list[str]) -> dict[str, list[str]]:
    rows = []
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # a line as deep as no text is
            raise FileFormatError(f"{path}: line {number} is not JSON ({one_line(error)})") from error
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
    """Yield classes and their plain text files: `class.txt`, or all below the folder of a class."""
    for file in files_below(folder, ("txt",)):
        inside = file.relative_to(folder).parts
        yield class_name(inside[0] if len(inside) > 1 else file.stem), file


def _folder(folder: Path) -> Texts:
    files = list(class_text_files(folder))
    if not files:
        raise InputError(f"{folder} holds no .txt files; give a .csv or .jsonl file, or one .txt file for each class")
    found = [
        (f"{file.relative_to(folder).as_posix()}: line {number}", label, line)
        for label, file in files
        for number, line in _lines(file)
    ]
    names, labels, texts = (list(column) for column in zip(*found, strict=True))
    return Texts(names, labels, None, str(folder), texts)
