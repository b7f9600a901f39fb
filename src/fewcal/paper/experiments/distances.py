"""Table 5 (appendix A): the effect of distances."""

from __future__ import annotations

from fewcal.methods import Method
from fewcal.paper.blocks import Section, Table, Value, Verdict, accuracy_cell, cited, gain_cell
from fewcal.paper.budget import Case
from fewcal.paper.measured import Axes, Choice, Measured, Setting, choose_on_val, difference, grid, measure, val_runner
from fewcal.paper.published import dataset_title, published
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.settings import gdc, setting_text, unit_scale
from fewcal.params import GDCParams
from fewcal.presets import get_preset

DISTANCES = {
    "mahalanobis": "Squared Mahalanobis with log",
    "sqeuclidean": "Squared Euclidean",
    "delta": "Squared δ distance",
    "scaled": "Scaled Euclidean, m tuned",
}
_AXES: Axes = {
    "k": (1, 2, 4, 8, 12, 16),
    "alpha1": (0.1, 1.0, 10.0, 100.0, 400.0),
    "alpha2_ratio": (0.0, 1.0, 10.0, 100.0),
}
# δ = 1 and m = 1 are the squared Euclidean distance: these two start from its winner.
_MORE: dict[str, Axes] = {
    "delta": {"delta": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)},
    "scaled": {"m": (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)},
}


class DistancesRecord(Measured):
    """Each distance on novel tasks, and what was chosen for it on validation tasks."""

    chosen: dict[str, Choice]


def distances(case: Case) -> DistancesRecord:
    """GDC at unit scale, closed form, with each distance; k, α1 and α2, then δ or m, tuned on validation tasks."""
    base = unit_scale(get_preset("paper")).with_changes(beta=1.0, m=1.0)
    runner = val_runner(case)
    made: dict[str, Method] = {}
    chosen: dict[str, Choice] = {}
    plain = grid(_AXES, case.budget.trials, case.budget.seed)
    for name in ("sqeuclidean", "mahalanobis", "delta", "scaled"):
        own = base.with_changes(metric="sqeuclidean" if name == "scaled" else name)

        def make(setting: Setting, own: GDCParams = own) -> Method:
            return gdc(own.with_changes(**setting))

        more = [chosen["sqeuclidean"]["chosen"] | one for one in grid(_MORE[name], 99, 0)] if name in _MORE else plain
        chosen[name] = choose_on_val(case, more, make, runner)
        made[name] = make(chosen[name]["chosen"])
    return {**measure(made, case), "chosen": chosen}


def show_distances(records: Records[DistancesRecord]) -> Section:
    """Accuracy with each distance, and the difference to the plain squared Euclidean one."""
    section = Section()
    cites = {row["distance"]: row["accuracy"] for row in published()["distances"]["rows"]}
    for (dataset, shot), record in records.items():
        where = f"{dataset_title(dataset)}, {shot}-shot"
        rows: list[list[Value]] = []
        for name, title in DISTANCES.items():
            gain = None if name == "sqeuclidean" else difference(record, name, "sqeuclidean")
            rows.append(
                [
                    title,
                    setting_text(record["chosen"][name]["chosen"]),
                    accuracy_cell(record, name),
                    gain_cell(gain),
                    cited(cites[name], None, "Appendix A"),
                ]
            )
        header = ["distance", "chosen on validation", "accuracy %", "minus squared Euclidean", "paper %"]
        tasks = len(record["correct"]["scaled"])
        section.blocks.append(Table(header, rows, f"{where}, unit scale, closed form, {tasks} novel tasks"))
        for name in ("mahalanobis", "delta"):
            claim = f"the scaled Euclidean distance is above: {DISTANCES[name]}"
            section.verdicts.append(Verdict.of(claim, where, difference(record, "scaled", name), "tuned or rescaled"))
        claim = "a tuned m is above m = 1"
        section.verdicts.append(
            Verdict.of(claim, where, difference(record, "scaled", "sqeuclidean"), "tuned or rescaled")
        )
    return section


EXPERIMENTS = (
    Experiment(
        "distances",
        "The effect of distances",
        "Appendix A, table 5",
        "No advantage of Mahalanobis or δ over the scaled Euclidean distance; a tuned m is better than m = 1.",
        distances,
        show_distances,
        ("dogs",),
        (1,),
        ("base", "val", "novel"),
        elsewhere=True,
        cost="1 min",
    ),
)
