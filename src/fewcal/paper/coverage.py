"""The paper's tables and figures one by one: which experiment computes each, and what a run did for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from fewcal._utils.atomic import read_json
from fewcal.errors import FileFormatError, InputError
from fewcal.paper.blocks import Counts
from fewcal.paper.draw import Ran, Summary
from fewcal.paper.experiments import EXPERIMENTS
from fewcal.paper.published import dataset_title
from fewcal.paper.run import read_config
from fewcal.paper.settings import GROUPS, Group


@dataclass(frozen=True)
class Item:
    """A table, a figure or a passage of the paper with figures in it.

    Attributes
    ----------
    name : str
        As the paper numbers it.
    experiment : str
        What computes it; "" where there is nothing to compute, which `note` explains.
    datasets : tuple of str
        The paper's for it where the experiment has more; () for those of the experiment.
    note : str
    """

    name: str
    experiment: str
    datasets: tuple[str, ...] = ()
    note: str = ""


ITEMS = (
    Item("Table 1", "table1"),
    Item("Table 2", "table2"),
    Item("Table 3", "table3"),
    Item("Table 4", "table4"),
    Item("Table 5", "distances"),
    Item("Table 6", "", note="the categories of meta-tieredImageNet, which `fewcal data prepare` follows"),
    Item("Table 7", "candidates"),
    Item("Table 8", "weights", ("meta-tiered",)),
    Item("Table 9", "weights", ("mini",)),
    Item("Figure 1", "tsne"),
    Item("Figure 2, left", "mean-curve"),
    Item("Figure 2, right", "drift"),
    Item("Figure 3, left", "accuracy-n"),
    Item("Figure 3, right", "alphas"),
    Item("Figure 4", "tsne"),
    Item("Figure 5", "weights"),
    Item("Section 4.5, effect of k", "effect-k"),
    Item("Appendices A and E, off-diagonal sizes", "off-diagonal"),
)


class Covered(TypedDict):
    """What became of a table or figure of the paper in a run.

    `as_printed` is None where nothing ran, or where no setting is in question; `features` are those that it ran on,
    `not_given` those of the paper that it did not. Verdicts are those of the whole experiment, by group.
    """

    item: str
    experiment: str
    says: str
    ran: bool
    as_printed: bool | None
    variants: list[str]
    features: list[str]
    not_given: list[str]
    groups: dict[Group, Counts]
    note: str


def items_of(experiment: str) -> list[str]:
    """The tables and figures of the paper that an experiment computes.

    >>> items_of("weights")
    ['Table 8', 'Table 9', 'Figure 5']
    """
    return [item.name for item in ITEMS if item.experiment == experiment]


def read_summary(out: str | Path) -> Summary:
    """`summary.json` of a run that was drawn, with every experiment that is computed in it."""
    folder = Path(out)
    read_config(folder)
    file = folder / "summary.json"
    remedy = f"draw it with `fewcal paper run all --out {folder} --draw-only`"
    if not file.is_file():
        raise InputError(f"{folder} has no summary.json yet; {remedy}")
    found = read_json(file, remedy)
    if not isinstance(found.get("experiments"), dict) or not isinstance(found.get("groups"), dict):
        raise FileFormatError(f"{file} is not the summary of a run; {remedy}")
    computed = {name for name in EXPERIMENTS if any((folder / "results" / name).glob("*.json"))}
    if newer := sorted(computed - set(found["experiments"])):
        raise InputError(f"{folder} has results that its summary does not tell of ({', '.join(newer)}); {remedy}")
    return cast(Summary, found)


def coverage(experiments: Mapping[str, Ran]) -> list[Covered]:
    """Each table and figure of the paper, with what ran for it."""
    return [_covered(item, experiments.get(item.experiment)) for item in ITEMS]


def _covered(item: Item, ran: Ran | None) -> Covered:
    experiment = EXPERIMENTS.get(item.experiment)
    asked = item.datasets or (() if experiment is None else experiment.datasets)
    features = [] if ran is None else _own(ran["features"], item.datasets)
    there = ran is not None and bool(features)
    return {
        "item": item.name,
        "experiment": item.experiment,
        "says": "" if experiment is None else experiment.says,
        "ran": there,
        "as_printed": ran["as_printed"] if ran is not None and there and ran["variants"] else None,
        "variants": ran["variants"] if ran is not None and there else [],
        "features": features,
        "not_given": [d for d in asked if d not in features],
        "groups": ran["groups"] if ran is not None and there else {},
        "note": item.note,
    }


def _own(features: Sequence[str], datasets: Sequence[str]) -> list[str]:
    """The features of an item: its own datasets where it names some, else all that the experiment ran on."""
    return [f for f in features if not datasets or f in datasets]


# ---- as a table -----------------------------------------------------------------------------------------------------

HEADER = ["in the paper", "experiment", "as printed", "features", *GROUPS]


def coverage_rows(covered: Sequence[Covered]) -> list[list[str]]:
    """Rows under `HEADER`; a group has the numbers of statements that hold, do not hold, and cannot be told."""
    return [[c["item"], c["experiment"] or "–", _printed(c), _features(c), *_groups(c)] for c in covered]


def _printed(c: Covered) -> str:
    if not c["experiment"]:
        return c["note"]
    if not c["ran"]:
        return "not run"
    return {True: "yes", False: "no", None: "no setting in it"}[c["as_printed"]]


def _features(c: Covered) -> str:
    told = ", ".join(map(dataset_title, c["features"]))
    missing = ", ".join(map(dataset_title, c["not_given"])) if c["ran"] else ""
    return f"{told} (not {missing})" if missing else told


def _groups(c: Covered) -> list[str]:
    """Statements of each group as "2 hold, 1 does not, 0 open"; – where there is none."""
    return [counts_text(c["groups"].get(group)) for group in GROUPS]


def counts_text(counts: Counts | None) -> str:
    """
    >>> counts_text({"holds": 2, "does_not_hold": 1, "cannot_tell": 0})
    '2 hold, 1 not, 0 open'
    >>> counts_text(None)
    '–'
    """
    if counts is None or not sum((counts["holds"], counts["does_not_hold"], counts["cannot_tell"])):
        return "–"
    return f"{counts['holds']} hold, {counts['does_not_hold']} not, {counts['cannot_tell']} open"
