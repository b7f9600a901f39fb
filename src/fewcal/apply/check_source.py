"""`fewcal check`: the check of labelled pictures, texts or features, as a record, as lines and as a page.

found = check_source("photos")
found.check.accuracy
found.write_html("check.html")
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fewcal._utils.types import JSON, StrPath
from fewcal.apply.check import FOLDS, ExampleCheck, check_examples
from fewcal.apply.contact_sheet import counted, percent, thumbnail
from fewcal.apply.predict import make_classifier, model_settings
from fewcal.apply.reading import Reading, load_bank, read_examples
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.features.sources.items import Items
from fewcal.features.sources.texts import Texts
from fewcal.render.page import Cell, Page, Value

THUMBNAIL = 240  # pixels of the longer side
SHOWN = 60  # suspects, and groups of duplicates, with their pictures


@dataclass(frozen=True, eq=False)
class SourceCheck:
    """A check and what was checked.

    items : the examples that could be read; None where these are rows of features
    source : where they come from
    method : in words, what answered
    """

    check: ExampleCheck
    items: Items | None
    source: str
    method: str

    @property
    def kind(self) -> str:
        return "row" if self.items is None else self.items.kind

    def name(self, row: int) -> str:
        """What to call an example: its file, its text, or its row."""
        if self.items is None:
            return str(row)
        return self.items.texts[row] if isinstance(self.items, Texts) else self.items.names[row]

    def summary(self) -> str:
        """How many examples are answered correctly, in a line."""
        check = self.check
        if check.accuracy is None:
            return "no class has two different examples; add examples"
        shown = f"{check.right} of {counted(check.tested, 'example')}"
        return f"{shown} are answered correctly when they are left out ({check.accuracy:.1%})"

    def to_dict(self) -> dict[str, JSON]:
        """Plain values for JSON, examples by their names."""
        facts = self.check.to_dict() | {"source": self.source, "method": self.method}
        facts["suspects"] = [one.to_dict() | {self.kind: self.name(one.row)} for one in self.check.suspects]
        facts["duplicates"] = [[self.name(row) for row in group] for group in self.check.duplicates]
        return facts

    def write_html(self, path: StrPath) -> None:
        """A page with recall, labels to look at, near duplicates and confusions."""
        check_page(self).write(path)


def check_source(
    support: StrPath,
    *,
    extractor: str | None = None,
    bank: StrPath | BaseBank | None = None,
    preset: str | None = None,
    settings: Sequence[str] = (),
    folds: int = FOLDS,
    seed: int = 0,
    reading: Reading | None = None,
) -> SourceCheck:
    """Check labelled pictures, texts or features by cross-validation; see `check_examples`.

    Parameters
    ----------
    support : a folder with a folder for each class, a list, a file of texts, or a file of labelled features
    extractor : of pictures or texts; None takes the usual one
    bank : base classes from the same extractor, or None
    reading : how items become features
    """
    how = reading or Reading()
    model_settings(settings, preset)  # refuses what is wrong before anything is read
    bank = load_bank(bank)
    examples = read_examples(support, extractor, bank, how)
    with warnings.catch_warnings():
        warnings.simplefilter("once", FewcalWarning)  # every fold is a fit
        make = partial(make_classifier, bank, preset, settings, how.device, seed)
        check = check_examples(examples.x, examples.names, make, folds=folds, seed=seed)
    method = "no base classes" if bank is None else f"{len(bank)} base classes"
    return SourceCheck(check, examples.items, str(support), method)


def check_page(found: SourceCheck) -> Page:
    """The check as one HTML file."""
    check, kind = found.check, found.kind
    examples = sum(one.examples for one in check.classes)
    page = Page(
        f"{counted(examples, 'example')}, {len(check.classes)} classes",
        f"{found.source}; cross-validation, {found.method}",
    )
    page.heading("Recall by class")
    page.text(f"{found.summary()}. Classes come first that another example helps most.")
    page.table(
        ["class", "examples", "tested", "recall %", "mostly confused with"],
        [
            [one.name, one.examples, one.tested, percent(one.recall), one.confused]
            for one in sorted(check.classes, key=lambda one: check.needs.index(one.name))
        ],
        "Classes",
    )
    likely = [one for one in check.suspects if one.likely]
    page.heading("Labels to look at")
    page.text(
        "Left out, these examples are surely answered otherwise. Where one label of twenty is wrong, about 40% of "
        "these are wrong."
        if likely
        else "None: no example contradicts its label."
    )
    _gallery(page, found, [(one.row, f"{one.label}, rather {one.answer}") for one in likely])
    page.heading("Near duplicates")
    if not check.duplicates:
        page.text("None.")
    for group in check.duplicates[:SHOWN]:
        _gallery(page, found, [(row, _label(found, row)) for row in group])
    page.heading("Answered otherwise")
    header = [kind, "label", "answer", "answer %", "label %"]
    rows: list[list[Value]] = [
        [
            found.name(one.row),
            one.label,
            Cell(one.answer, mark="warn" if one.likely else ""),
            percent(one.answer_probability),
            percent(one.label_probability),
        ]
        for one in check.suspects
    ]
    page.table(header, rows, "Examples that are answered otherwise when they are left out")
    page.heading("Confusions")
    names = [one.name for one in check.classes]
    cells: list[list[Value]] = [
        [name, *(int(n) or None for n in row)] for name, row in zip(names, check.confusion, strict=True)
    ]
    page.table(["class", *names], cells, "Examples of each class (rows) by their answers (columns)", sortable=False)
    return page


def _gallery(page: Page, found: SourceCheck, rows: Sequence[tuple[int, str]]) -> None:
    """Examples with their captions: pictures side by side, texts and rows in a list."""
    if not isinstance(found.items, Items) or found.items.kind != "picture":
        page.items([f"{found.name(row)}: {caption}" for row, caption in rows])
        return
    page.gallery(
        [
            (thumbnail(found.items, row, THUMBNAIL), found.name(row), f"{caption}; {Path(found.name(row)).name}")
            for row, caption in rows[:SHOWN]
        ]
    )


def _label(found: SourceCheck, row: int) -> str:
    return "" if found.items is None else (found.items.labels or [])[row]
