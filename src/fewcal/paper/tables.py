"""Tables of rows that are methods on the same tasks: one way from a plan of rows to tables, pictures and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewcal.evaluation.stats import summarise
from fewcal.paper.blocks import Block, Experiment, Place, Records, Section, Table, cited_cell, gain_cell
from fewcal.paper.measure import Case, Measured, Plan, TableRecord, measure
from fewcal.paper.published import citation, published
from fewcal.paper.settings import VARIANTS, setting_text
from fewcal.paper.statements import Claim, judge
from fewcal.render import Cell
from fewcal.render.page import Value

# The row that each other one is compared with: the one above it.
ABOVE = "the row above"


@dataclass(frozen=True)
class RowTable:
    """How rows become a record, and a record becomes a section.

    Attributes
    ----------
    plan : callable(case) → Plan
    claims : callable(dataset, shot) → list of Claim
        Judged in every variant that has the first row of it.
    control : str
        Label of the control.
    reference : str
        Label of the row that others are compared with in a second table, or `ABOVE`.
    source : str
        The table of `published.json` whose rows stand beside the measured ones, by label.
    levels : bool
        Whether accuracies are shown; differences alone are, where there are too many.
    draw : callable(place, measured) → blocks
        Pictures; where there are some, they stand in place of tables.
    """

    plan: Callable[[Case], Plan]
    claims: Callable[[str, int], Sequence[Claim]]
    control: str = ""
    reference: str = ""
    source: str = ""
    levels: bool = True
    draw: Callable[[Place, TableRecord, Measured], list[Block]] | None = None
    words: str = ""

    def compute(self, case: Case) -> TableRecord:
        """The record of a case."""
        return measure(case, self.plan(case), self.claims(case.dataset, case.shot or 1), self.control)

    def show(self, records: Records) -> Section:
        """Tables by variant, pictures, and a verdict for each claim, place and variant."""
        found = {place: Measured.load(record) for place, record in records.items()}
        section = Section()
        variants = dict.fromkeys(key.partition(": ")[0] for m in found.values() for key in m.accuracy)
        if self.draw is not None:
            for place, measured in found.items():
                section.blocks += self.draw(place, records[place], measured)
        else:
            for variant in variants:
                section.blocks += self._tables(variant, records, found)
        for place, record in records.items():
            section.blocks += _texts(place, record)
            section.verdicts += [
                v for variant in variants for v in self._verdicts(place, variant, record, found[place])
            ]
        if self.words:
            section.blocks.append(self.words)
        return section

    def experiment(self, name: str, title: str, source: str, claim: str, **more: Any) -> Experiment:
        """It as an experiment."""
        return Experiment(name, title, source, claim, self.compute, self.show, **more)

    def _verdicts(self, place: Place, variant: str, record: TableRecord, measured: Measured) -> list[Any]:
        if variant not in VARIANTS:
            return []
        own = set(measured.labels(variant))
        return [
            judge(
                claim,
                lambda label: measured.of(variant, label),
                place.title,
                variant,
                self.control if measured.has(variant, [self.control]) else "",
                record["looks"],
            )
            for claim in self.claims(place.dataset, place.shot or 1)
            if claim.above[0] in own and measured.has(variant, claim.labels)
        ]

    def _tables(self, variant: str, records: Records, found: dict[Place, Measured]) -> list[Block]:
        labels = list(dict.fromkeys(label for m in found.values() for label in m.labels(variant)))
        titles = [place.title for place in records]
        cited = [label for label in published().get(self.source, {}) if self.levels and variant in VARIANTS]
        if self.source == "table7":
            cited = labels
        rows: list[list[Value]] = []
        for label in dict.fromkeys([*(c for c in cited if c not in labels), *labels]):
            paper = [citation(self.source, label, p.dataset, p.shot or 1) if label in cited else None for p in records]
            if any(paper):
                rows.append([f"{label} (paper)", *map(cited_cell, paper)])
            if label in labels and (self.levels or label == self.reference):
                rows.append([label, *(_level(m, variant, label) for m in found.values())])
        words = f"{variant}: {VARIANTS[variant].words}" if variant in VARIANTS else variant
        blocks: list[Block] = [Table(["accuracy in %", *titles], rows, f"{words[:1].upper()}{words[1:]}")]
        gains: list[list[Value]] = []
        for i, label in enumerate(labels):
            other = labels[i - 1] if self.reference == ABOVE else self.reference
            if other and label != other and (i > 0 or self.reference != ABOVE):
                cells = [
                    gain_cell(m.difference(variant, label, other))
                    if label in m.labels(variant) and m.has(variant, [other])
                    else Cell(None)
                    for m in found.values()
                ]
                gains.append([label, *cells])
        if any(cell.text for row in gains for cell in row[1:] if isinstance(cell, Cell)):
            caption = f"{words[:1].upper()}{variant[1:]}: points, paired, 95% half-width; ▲ and ▼ are beyond it"
            blocks.append(Table([f"minus {self.reference}", *titles], gains, caption))
        return blocks


def mean_text(accuracy: np.ndarray) -> str:
    """Mean ± 95% half-width in per cent.

    >>> mean_text(np.array([0.25, 0.5, 0.75, 0.5]))
    '50.00 ± 32.48'
    """
    s = summarise(accuracy)
    return f"{100 * s.mean:.2f}" + (f" ± {100 * s.ci95:.2f}" if math.isfinite(s.ci95) else "")


def _level(measured: Measured, variant: str, label: str) -> Cell:
    if label not in measured.labels(variant):
        return Cell(None)
    accuracy = measured.of(variant, label)
    return Cell(mean_text(accuracy), sort=float(accuracy.mean()), title=f"{len(accuracy)} tasks")


def _texts(place: Place, record: TableRecord) -> list[str]:
    """Settings, choices and notes of a record."""
    out = [f"{place.title}, {variant}: {text}." for variant, text in record["settings"].items()]
    chosen = [
        f"{key}: {setting_text(c['setting'])} ({c['trials']} trials of {c['tasks']} tasks)"
        for key, c in record["choices"].items()
    ]
    if chosen:
        out.append(f"{place.title}, tuned on validation classes: {'; '.join(chosen)}.")
    counts = sorted({len(row["right"]) for row in record["rows"].values()})
    seconds = sum(row["seconds"] for row in record["rows"].values())
    out.append(f"{place.title}: {' or '.join(map(str, counts))} tasks for a row, {seconds:.0f} seconds in all.")
    return out + [f"{place.title}: {note}." for note in record["notes"]]
