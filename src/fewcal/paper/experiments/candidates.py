"""Table 7 (appendix F): the three candidates of the paper's search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fewcal.methods import Method
from fewcal.paper.blocks import Section, Table, Value, Verdict, accuracy_cell, cited
from fewcal.paper.budget import Case
from fewcal.paper.control import SupportOnly
from fewcal.paper.measured import Measured, difference, join, mean_accuracy, measure, val_accuracy
from fewcal.paper.published import DATASETS, Candidate, candidate, dataset_title
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.settings import (
    CLOSED_FORM,
    HGDC,
    PRINTED,
    UNIT_CLOSED,
    UNIT_SCALE,
    Variant,
    paper_params,
    setting_text,
)
from fewcal.render import Cell

CANDIDATES = (1, 2, 3)
VARIANTS = (PRINTED, UNIT_SCALE, CLOSED_FORM, UNIT_CLOSED)
ALONE = "support alone"


class CandidatesRecord(Measured):
    """Each candidate in each variant on novel tasks, and at unit scale on validation tasks where there are some."""

    val: list[float] | None


def candidates(case: Case) -> CandidatesRecord:
    """The paper's three candidates with their exact parameters: as printed (SGD), and in variants.

    On validation tasks as well, in closed form at unit scale, to see what picking the best of three on novel classes
    adds.
    """
    own = {number: paper_params(case.dataset, case.shot, "paper", number) for number in CANDIDATES}
    parts = []
    for variants, tasks in (
        ((PRINTED, UNIT_SCALE), case.sgd_tasks(study=True)),
        ((CLOSED_FORM, UNIT_CLOSED), case.study_tasks),
    ):
        made: dict[str, Method] = {_key(n, v): v.method(row) for v in variants for n, row in own.items()}
        made |= {f"{ALONE}, {v.name}": SupportOnly(v.params(own[1])) for v in variants}
        parts.append(measure(made, case, tasks))
    parts.append(measure({HGDC.name: HGDC.method(own[1])}, case, case.study_tasks))
    val = None
    if case.features.val is not None:
        val = [val_accuracy(UNIT_CLOSED.method(row), case) for row in own.values()]
    return {**join(*parts), "val": val}


def _key(number: int, variant: Variant) -> str:
    return f"{number}, {variant.name}"


def show_candidates(records: Records[CandidatesRecord]) -> Section:
    """Each candidate beside what the paper reports for it."""
    section = Section()
    rows: list[list[Value]] = []
    for (dataset, shot), record in records.items():
        where = f"{dataset_title(dataset)}, {shot}-shot"
        for number in CANDIDATES:
            if (cite := candidate(dataset, shot, number)) is not None:
                cells = [accuracy_cell(record, _key(number, v), title=_tasks(record, number, v)) for v in VARIANTS]
                paper = cited(cite["accuracy"], cite["plus_minus"], "Appendix F")
                rows.append([f"{where}, {number}", Cell(_parameters(cite), mark="cited"), paper, *cells])
        rows.append([f"{where}, `default`", "", None, accuracy_cell(record, HGDC.name), *[None] * 3])
        for v in VARIANTS:
            gain = difference(record, _key(1, v), _key(3, v))
            control = difference(record, _key(1, v), f"{ALONE}, {v.name}")
            claim = f"the first candidate is above the third ({v.name})"
            section.verdicts.append(Verdict.of(claim, where, gain, v.group, control))
    header = ["candidate", "its parameters", "paper %", *(f"{v.name} %" for v in VARIANTS)]
    counts = sorted({len(r["correct"][_key(1, PRINTED)]) for r in records.values()})
    caption = (
        "Candidates of appendix F with their exact parameters. As printed: n=750 a support point, joint covariance, "
        f"SGD head, features at their own scale, on {' or '.join(map(str, counts))} tasks; each other column changes "
        "what its name says; `default` has no candidates and stands in the first column"
    )
    section.blocks.append(Table(header, rows, caption))
    section.blocks += _optimism(list(records.values()))
    return section


def _tasks(record: CandidatesRecord, number: int, variant: Variant) -> str:
    return f"{len(record['correct'][_key(number, variant)])} tasks"


def _optimism(records: Sequence[CandidatesRecord]) -> list[str]:
    """What looking at the novel classes adds, in words; nothing without validation classes."""
    found = []
    for record in records:
        if record["val"] is not None:
            novel = [mean_accuracy(record, _key(n, UNIT_CLOSED)) for n in CANDIDATES]
            found.append(max(novel) - novel[int(np.argmax(record["val"]))])
    if not found:
        return []
    return [
        "The paper reports the best of three on the novel classes. In closed form at unit scale that is above the "
        f"candidate that validation tasks would have chosen by {100 * float(np.mean(found)):.2f} points on average "
        f"(at most {100 * max(found):.2f}): what looking at the novel classes adds by itself."
    ]


def _parameters(c: Candidate) -> str:
    setting = {"m": c["m"], "k": c["k"], "alpha1": c["alpha1"], "alpha2_ratio": c["alpha2_ratio"], "beta": c["beta"]}
    return f"{setting_text(setting)}, n={c['n']}"


EXPERIMENTS = (
    Experiment(
        "candidates",
        "The three candidates of the search",
        "Appendix F, table 7",
        "The three best settings on validation classes, in this order on novel classes.",
        candidates,
        show_candidates,
        tuple(DATASETS),
        cost="3 min",
        variants=(*VARIANTS, HGDC),
    ),
)
