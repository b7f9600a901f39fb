"""Texts of others in places that would act on them: a terminal, a spreadsheet."""

from __future__ import annotations

import re

# Control characters but tab and line feed, and those that turn the direction of writing: a terminal obeys them.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]|[\ud800-\udfff]")
# What makes a spreadsheet take a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def printable(text: str) -> str:
    r"""A text without characters that a terminal would obey; each is shown as its escape.

    Single halves of characters, which file names that are not UTF-8 have, cannot be printed either.

    >>> printable("\x1b[2Jcat")
    '\\x1b[2Jcat'
    """
    return _CONTROLS.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


def one_line(words: object, most: int = 160) -> str:
    r"""An error, or what a file holds, within a message of one line: cut off after so many characters.

    >>> one_line("first\n  second"), one_line("long " * 100, 9), one_line(ValueError())
    ('first second', 'long long…', 'ValueError')
    """
    text = " ".join(str(words).split()) or type(words).__name__
    return text if len(text) <= most else f"{text[:most]}…"


def storable(text: str) -> str:
    r"""A text that every file can hold: half characters, of names that are not UTF-8, are shown as their escapes.

    >>> storable("caf\udce9"), storable("café")
    ('caf\\udce9', 'café')
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def csv_text(text: str) -> str:
    """A text for a cell of a CSV file that a spreadsheet does not take for a formula: with an apostrophe before it.

    >>> csv_text("=1+1"), csv_text("cat"), csv_text("-0.5")
    ("'=1+1", 'cat', '-0.5')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) is not None
