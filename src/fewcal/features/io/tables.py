"""Small tables of text (CSV with a header) and the spelling of names in them."""

from __future__ import annotations

import csv
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fewcal.errors import FileFormatError, InputError

DELIMITED = ("csv", "tsv")
# What separates columns: spreadsheets of many countries write semicolons into a CSV file.
_DELIMITERS = ",;\t"


def csv_header(path: Path) -> list[str]:
    """The names of the columns of a CSV file, in small letters."""
    return [name.strip().lower() for name in next(iter(_rows(path, 1)), [])]


def read_csv(
    path: Path, need: Sequence[str] = (), remedy: str = "its first line must name the columns"
) -> dict[str, list[str]]:
    """The columns of a CSV file with a header, as text; `need` names those that must be there.

    Commas, semicolons or tabs separate columns, whichever the header has most of outside of quotes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "list.csv"
    ...     _ = file.write_text("path,label\\na.jpg,cat\\n")
    ...     read_csv(file, ["path"])
    {'path': ['a.jpg'], 'label': ['cat']}
    """
    if not path.is_file():
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


def encoding_of(path: Path) -> str:
    """UTF-8, or UTF-16 where the first bytes say so: spreadsheets (as "Unicode text") and PowerShell write that."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig"


def _rows(path: Path, most: int | None = None) -> list[list[str]]:
    """The first rows of a CSV file, or all of them; empty lines are left out."""
    try:
        with path.open(encoding=encoding_of(path), newline="") as file:
            header = next((line for line in file if line.strip()), "")
            file.seek(0)
            delimiter = max(_DELIMITERS, key=re.sub('"[^"]*"', "", header).count)
            return list(islice((row for row in csv.reader(file, delimiter=delimiter) if row), most))
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error.reason}); save it as CSV UTF-8") from error
    except csv.Error as error:
        raise FileFormatError(f"{path} cannot be read as CSV ({error})") from error


def class_name(text: str) -> str:
    """A class name in one spelling: macOS and Linux write the same accented letters in different ways.

    >>> class_name("cafe" + chr(0x301)) == "caf" + chr(0xE9)
    True
    """
    return unicodedata.normalize("NFC", text.strip())
