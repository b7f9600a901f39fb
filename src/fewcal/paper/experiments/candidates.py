"""Table 7 (appendix F): the three candidates of the paper's search."""

from __future__ import annotations

import numpy as np

from fewcal.methods import Method
from fewcal.paper.blocks import Section, Table, Value, Verdict, accuracy_cell, cited
from fewcal.paper.budget import Case
from fewcal.paper.measured import Measured, difference, mean_accuracy, measure, val_runner
from fewcal.paper.published import DATASETS, Candidate, candidate, dataset_title
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.settings import gdc, paper_params, setting_text, unit_scale
from fewcal.render import Cell

CANDIDATES = (1, 2, 3)


class CandidatesRecord(Measured):
    """Each candidate at both scales on novel tasks, and at unit scale on validation tasks where there are some."""

    val: list[float] | None


def candidates(case: Case) -> CandidatesRecord:
    """The paper's three candidates with their exact parameters, closed form: as they come and at unit scale.

    On validation tasks as well, to see what picking the best of three on novel classes adds.
    """
    own = {number: paper_params(case.dataset, case.shot, "paper", number) for number in CANDIDATES}
    made: dict[str, Method] = {}
    for number, params in own.items():
        made[f"{number}, as it comes"] = gdc(params.with_changes(head="closed_form"))
        made[f"{number}, unit scale"] = gdc(unit_scale(params))
    val = None
    if case.features.val is not None:
        runner = val_runner(case)
        val = [float(runner.accuracy(gdc(unit_scale(params))).mean()) for params in own.values()]
    return {**measure(made, case, case.study_tasks), "val": val}


def show_candidates(records: Records[CandidatesRecord]) -> Section:
    """Each candidate beside what the paper reports for it."""
    section = Section()
    rows: list[list[Value]] = []
    optimism = []
    for (dataset, shot), record in records.items():
        where = f"{dataset_title(dataset)}, {shot}-shot"
        for number in CANDIDATES:
            if (cite := candidate(dataset, shot, number)) is not None:
                keys = [f"{number}, as it comes", f"{number}, unit scale"]
                rows.append(
                    [
                        f"{where}, {number}",
                        Cell(_parameters(cite), mark="cited"),
                        *(accuracy_cell(record, key) for key in keys),
                        cited(cite["accuracy"], cite["plus_minus"], "Appendix F"),
                    ]
                )
        gain = difference(record, "1, unit scale", "3, unit scale")
        claim = "the first candidate is above the third (unit scale)"
        section.verdicts.append(Verdict.of(claim, where, gain, "tuned or rescaled"))
        if record["val"] is not None:
            novel = [mean_accuracy(record, f"{n}, unit scale") for n in CANDIDATES]
            optimism.append(max(novel) - novel[int(np.argmax(record["val"]))])
    header = ["candidate", "its parameters", "closed form, as it comes %", "closed form, unit scale %", "paper %"]
    section.blocks.append(Table(header, rows, "Candidates of appendix F with their exact parameters"))
    if optimism:
        section.blocks.append(
            "The paper reports the best of three on the novel classes. At unit scale that is above the candidate that "
            f"validation tasks would have chosen by {100 * float(np.mean(optimism)):.2f} points on average "
            f"(at most {100 * max(optimism):.2f}): what looking at the novel classes adds by itself."
        )
    return section


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
    ),
)
