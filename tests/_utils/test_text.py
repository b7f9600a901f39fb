"""Texts of others: a terminal does not obey them, a spreadsheet does not compute them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewcal._utils.tables import table
from fewcal._utils.text import csv_text, printable


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1"])
def test_formulas_begin_with_an_apostrophe(text: str) -> None:
    assert csv_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "cat", "a=b", "-1", "+0.5", "-1e-3", "'=1", " =1"])
def test_other_cells_stay(text: str) -> None:
    assert csv_text(text) == text


@given(st.text(st.characters()))
def test_nothing_printable_moves_the_cursor(text: str) -> None:
    shown = printable(text)
    assert not any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 for c in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize("text", ["naïve café", "日本語", "a\tb\nc", "🐱"])
def test_ordinary_texts_stay(text: str) -> None:
    assert printable(text) == text


def test_names_that_are_not_utf8() -> None:
    assert printable(b"caf\xe9.png".decode("utf-8", "surrogateescape")) == "caf\\udce9.png"


def test_a_name_of_two_lines_is_one_row_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    table(["name"], [["new\nline.png"]])
    assert "new\\nline.png" in capsys.readouterr().out
