"""Small tables of text (CSV with a header) and the spelling of names in them."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.regular import open_regular

DELIMITED = ("csv", "tsv")
# Separators of columns: spreadsheets of many countries write semicolons into a CSV file.
DELIMITERS = ",;\t"


def read_text(path: Path, remedy: str = "save it as UTF-8") -> str:
    """Return a file's text: UTF-8, or UTF-16 by its first bytes, as spreadsheets and PowerShell write it."""
    with open_regular(path) as file:
        data = file.read()
    try:
        return data.decode("utf-16" if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error.reason}); {remedy}") from error


def csv_header(path: Path) -> list[str]:
    """Return the names of the columns of a CSV file, in small letters."""
    return [name.strip().lower() for name in next(iter(_rows(path, 1)), [])]


def read_csv(
    path: Path, need: Sequence[str] = (), remedy: str = "its first line must name the columns"
) -> dict[str, list[str]]:
    """Return the columns of a CSV file with a header, as text; `need` names those that must be there.

    Commas, semicolons or tabs separate columns, whichever the header has most of outside of quotes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "list.csv"
    ...     _ = file.write_text("path,label\\na.jpg,cat\\n")
    ...     read_csv(file, ["path"])
    {'path': ['a.jpg'], 'label': ['cat']}
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    rows = _rows(path)
    if not rows:
        raise FileFormatError(f"{path} is empty; it needs a header and at least one row")
    header = [name.strip().lower() for name in rows[0]]
    if missing := [name for name in need if name not in header]:
        first = ", ".join(rows[0][:6])[:120]
        raise FileFormatError(f"{path} has no column {missing[0]!r} (its first line: {first}); {remedy}")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise FileFormatError(
                f"{path}: row {number} has {len(row)} fields and the header {len(header)}; "
                "put a text that holds what separates columns between quotes"
            )
    if len(rows) == 1:
        raise FileFormatError(f"{path} has a header but no rows")
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(header)}


def _rows(path: Path, count: int | None = None) -> list[list[str]]:
    """Return the first rows of a CSV file, or all; empty lines are left out."""
    text = read_text(path, "save it as CSV UTF-8")
    header = next((line for line in io.StringIO(text) if line.strip()), "")
    delimiter = max(DELIMITERS, key=re.sub('"[^"]*"', "", header).count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return list(islice((row for row in reader if row), count))
    except csv.Error as error:
        raise FileFormatError(f"{path} cannot be read as CSV ({error})") from error


def class_name(text: str) -> str:
    """Return a class name in one spelling: macOS and Linux write the same accented letters in different ways.

    >>> class_name("cafe" + chr(0x301)) == "caf" + chr(0xE9)
    True
    """
    return unicodedata.normalize("NFC", text.strip())
