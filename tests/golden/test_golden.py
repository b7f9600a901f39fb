"""Presets and methods give the logits that they gave, to 1e-5 on any processor.

FEWCAL_GOLDEN_EXACT=1 asks for the same bits where values were computed on the same machine. The head of
`golden.values` tells how to rewrite values that are meant to change.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from golden import values
from golden.values import FILE, Golden, compute, difference, golden_names, load, save, this_machine, tolerance, update

STORED = load()
EXACT = os.environ.get("FEWCAL_GOLDEN_EXACT") == "1"


@pytest.mark.parametrize("name", golden_names())
def test_logits_of_a_name_are_the_stored_ones(name: str) -> None:
    assert name in STORED, f"PYTHONPATH=tests python -m golden.values --update '{name}'"
    stored, found = STORED[name], compute(name)
    assert found.shape == stored.logits.shape
    assert difference(found, stored.logits) <= tolerance(name)
    if EXACT:
        if stored.machine != this_machine():
            pytest.skip(f"the same to {tolerance(name):g}; bits are those of {stored.machine}")
        np.testing.assert_array_equal(found, stored.logits)


def test_stored_names_are_those_that_there_are() -> None:
    assert list(STORED) == golden_names()


def test_the_file_is_small() -> None:
    assert FILE.stat().st_size < 1 << 18


# ---- rewriting ------------------------------------------------------------------------------------------------------

NAMES = ["method/new@1shot", "method/old@1shot", "method/same@1shot"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stored zeros, where `new` has become ones and `gone` is no more."""
    file = tmp_path / "logits.npz"
    save({f"method/{name}@1shot": golden(0) for name in ("new", "old", "same", "gone")}, file)
    monkeypatch.setattr(values, "golden_names", lambda: NAMES)
    monkeypatch.setattr(values, "compute", lambda name: golden("new" in name).logits)
    return file


def golden(number: float) -> Golden:
    return Golden(np.full((2, 2, 6, 5), number, np.float32), "another machine")


def test_an_update_of_what_changed_rewrites_that_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert update(["*/new@*"], file) == 0
    after = load(file)
    assert {name: value.logits.max() for name, value in after.items()} == dict(zip(NAMES, (1, 0, 0), strict=True))
    assert [name for name, value in after.items() if value.machine == this_machine()] == ["method/new@1shot"]
    assert capsys.readouterr().out.splitlines() == [
        "method/new@1shot: differs by 1",
        "method/gone@1shot: in the file alone",
        "1 of 3 values written anew, 1 left out",
    ]


@pytest.mark.parametrize("patterns", [[], ["method/old@*"]])
def test_an_update_of_something_else_is_refused(file: Path, patterns: list[str]) -> None:
    before = file.read_bytes()
    assert update(patterns, file) == 1
    assert file.read_bytes() == before


def test_values_of_other_worlds_are_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "worlds_checksum", lambda: "other")
    assert load(file) == {}
    assert update(["*/new@*"], file) == 1
    assert update(["*"], file) == 0
    assert list(load(file)) == NAMES


def test_logits_that_are_no_numbers_differ(file: Path) -> None:
    assert difference(golden(np.nan).logits, golden(0).logits) == float("inf")
    assert difference(golden(0).logits, golden(np.nan).logits) == float("inf")
