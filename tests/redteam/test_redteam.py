"""The fast part of the red team: some damaged files of every format; `make redteam` has thousands."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from commands import DISTURBANCES, LINES, disturbed, interrupted
from formats import FORMATS, Format
from fuzz import BAD, _outcome, fuzz, mutated
from kills import COMMANDS, Command, disturb, fill_disk, race
from limits_of_size import MAX_GROWTH, leak, thousand_classes
from memory import COMMANDS as LIMITED
from memory import LIMITS, limited

from fewcal.evaluation.executors import torch_threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Children are forked, and threads do not survive a fork."""
    with torch_threads(1):
        yield


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_damaged_files_are_refused_in_a_line(form: Format) -> None:
    tally = fuzz(form, 20, seed=1)
    assert sum(tally.counts.values()) == 20
    assert {name: tally.counts[name] for name in BAD} == dict.fromkeys(BAD, 0), tally.examples


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_many_damaged_files_are_refused_in_a_line(form: Format) -> None:
    tally = fuzz(form, 300, seed=2)
    assert {name: tally.counts[name] for name in BAD} == dict.fromkeys(BAD, 0), tally.examples


def test_the_same_seed_damages_in_the_same_way() -> None:
    data = bytes(range(200))
    assert mutated(data, random.Random("a 0 1")) == mutated(data, random.Random("a 0 1"))
    assert len({mutated(data, random.Random(f"a 0 {i}")) for i in range(50)}) > 40


def test_the_red_team_sees_what_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that crash, hang, leak errors or take damage for content are counted as such."""
    monkeypatch.setattr("fuzz.SECONDS", 2.0)

    def reader(answer: object) -> Format:
        calls = iter(["first"])

        def read(folder: object) -> object:
            return next(calls, None) or (answer() if callable(answer) else answer)

        def make(folder):  # type: ignore[no-untyped-def]
            (folder / "file").write_bytes(b"content")
            return folder / "file"

        return Format("toy", make, read, sealed=True)

    import ctypes

    assert fuzz(reader(lambda: 1 / 0), 3).counts == {"traceback": 3}
    assert fuzz(reader("something else"), 3).counts == {"wrong": 3}
    assert fuzz(reader("first"), 3).counts == {"same": 3}
    assert fuzz(reader(lambda: time.sleep(3600)), 1).counts == {"hang": 1}
    assert fuzz(reader(lambda: ctypes.string_at(0)), 2).counts == {"crash": 2}
    assert _outcome(lambda: b"other", b"truth", sealed=False) == "other"


FAST = ["evaluate", "extract"]
ALL = [c if c.name in FAST else pytest.param(c, marks=pytest.mark.slow) for c in COMMANDS]


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_killed_commands_go_on_to_the_same_end(command: Command) -> None:
    found = disturb(command, 1, seed=1)
    assert (found.identical, found.lost, found.errors) == (1, 0, 0)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.name in FAST], ids=lambda command: command.name)
def test_a_full_disk_loses_nothing(command: Command) -> None:
    found = fill_disk(command, 2, seed=1)
    assert (found.identical, found.lost, found.errors) == (2, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITED)
def test_little_memory_is_enough_or_told_in_a_line(name: str) -> None:
    found = limited(LIMITED[name])
    assert found.counts["done"] + found.counts["refused"] == len(LIMITS), found.examples


def test_two_at_once_have_one_winner() -> None:
    found = race(2)
    assert (found.identical, found.errors) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("what", DISTURBANCES)
def test_disturbed_command_line_ends_with_the_undisturbed_result(what: str, name: str) -> None:
    found = disturbed(name, 1, 1, DISTURBANCES[what])
    assert (found.identical, found.errors) == (1, 0)


def test_interrupted_command_line_continues_without_a_traceback() -> None:
    found = disturbed("evaluate", 1, 1, interrupted)
    assert (found.identical, found.errors) == (1, 0)


def test_service_with_a_thousand_classes_answers_them_all() -> None:
    assert thousand_classes(2) == 0


def test_many_fits_leave_no_memory_behind() -> None:
    assert leak(200) < MAX_GROWTH
