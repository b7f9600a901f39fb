"""The contact sheet of `fewcal classify`: one page to look through the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal.apply.predict import NONE_OF_THESE, AnswerRow
from fewcal.features.sources.items import Items
from fewcal.features.sources.pictures import encoded
from fewcal.render.page import Cell, Page, Value

if TYPE_CHECKING:
    from fewcal.apply.classify import Answers

# A sheet with more pictures than this is slow to open.
MAX_PICTURES = 600
DOUBTFUL = 0.5
_COLUMNS = ["answer", "probability %", "second best", "second best %"]


def contact_sheet(answers: Answers) -> Page:
    """Every query under its answer, the doubtful ones last; texts as a table."""
    query, support = answers.query, answers.support
    page = Page(
        f"{counted(len(query), query.kind)}, {len(support.classes)} classes",
        f"{answers.extractor.name}; {answers.method}; {counted(len(support), 'example')}",
    )
    page.heading("Answers")
    examples = {c: (support.labels or []).count(c) for c in support.classes}
    counts = answers.counts()
    page.table(
        ["class", "examples", f"{query.kind}s"], [[c, examples.get(c, 0), n] for c, n in counts.items()], sortable=False
    )
    for line in answers.in_words():
        page.text(f"{line}.")
    if query.kind != "picture":
        _texts(page, answers)
    else:
        _pictures(page, answers, counts, examples)
    return page


def _texts(page: Page, answers: Answers) -> None:
    support = answers.support
    truth_column = [] if answers.truth is None else ["true class"]
    rows: list[list[Value]] = []
    for i, (item, answer, p, second, q) in enumerate(answers.rows()):
        truth: list[Value] = [] if answers.truth is None else [answers.truth[i]]
        wrong = bool(truth) and truth[0] != answer and answer != NONE_OF_THESE
        shown = Cell(answer, mark="wrong" if wrong else "warn" if p < DOUBTFUL else "")
        rows.append([item, shown, percent(p), second, percent(q), *truth])
    page.table([support.kind, *_COLUMNS, *truth_column], rows)
    page.heading("Examples")
    page.table([support.kind, "class"], [[str(support.load(i)), c] for i, c in enumerate(support.labels or [])])


def _pictures(page: Page, answers: Answers, counts: dict[str, int], examples: dict[str, int]) -> None:
    query, support, rows = answers.query, answers.support, answers.rows()
    shown = range(min(len(rows), MAX_PICTURES))
    if len(shown) < len(rows):
        page.note(f"Only the first {len(shown)} of {len(rows)} pictures are shown; the table has all of them.")
    for name in counts:
        mine = _in_order([i for i in shown if rows[i][1] == name], rows)
        page.heading(name)
        if name in examples:
            with page.details(counted(examples[name], "example")):
                own = [i for i, c in enumerate(support.labels or []) if c == name][:24]
                page.gallery([(thumbnail(support, i), support.names[i], Path(support.names[i]).name) for i in own])
        if not mine:
            page.text("None.")
            continue
        page.gallery([(thumbnail(query, i), rows[i][0], _caption(answers, rows[i], i)) for i in mine])
    page.heading("Table")
    page.table(
        ["picture", *_COLUMNS],
        [[r[0], Cell(r[1], mark="warn" if r[2] < DOUBTFUL else ""), percent(r[2]), r[3], percent(r[4])] for r in rows],
    )


def _in_order(mine: list[int], rows: list[AnswerRow]) -> list[int]:
    """The most certain first; of those that are none of the classes, what resembles one least."""
    return sorted(mine, key=lambda i: rows[i][4] if np.isnan(rows[i][2]) else -rows[i][2])


def counted(number: int, what: str) -> str:
    """A number of things in words.

    >>> counted(1, "example"), counted(2, "example")
    ('1 example', '2 examples')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def percent(p: float | None) -> float | None:
    """A share in per cent with one digit."""
    return None if p is None else round(100 * p, 1)


def _caption(answers: Answers, row: AnswerRow, i: int) -> str:
    item, name, p, second, q = row
    is_other = f"is {answers.truth[i]}; " if answers.truth is not None and answers.truth[i] != name else ""
    warning = "⚠ " if is_other and name != NONE_OF_THESE else ""
    sure = "nearest is" if p != p else f"{100 * p:.0f}%, then"
    return f"{warning}{is_other}{sure} {second} {100 * q:.0f}%; {Path(item).name}"


def thumbnail(items: Items, i: int, pixels: int = 160) -> bytes:
    """Picture i of the items as a JPEG with so many pixels on its longer side."""
    picture = items.load(i, 2 * pixels)
    assert isinstance(picture, np.ndarray)
    return encoded(picture, pixels)
