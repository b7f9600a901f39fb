"""Table 4: one component after another, each tuned on validation tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewcal.bank import BaseBank
from fewcal.methods import Method
from fewcal.methods.logistic import GaussianizedLogisticRegression
from fewcal.paper.blocks import Section, Table, Value, Verdict, accuracy_cell, cited, gain_cell
from fewcal.paper.budget import Case
from fewcal.paper.measured import (
    Axes,
    Choice,
    Measured,
    Setting,
    choose_on_val,
    difference,
    gain_text,
    grid,
    join,
    measure,
    val_runner,
)
from fewcal.paper.published import dataset_title, published
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.settings import SCALES, gdc, setting_text
from fewcal.params import GDCParams
from fewcal.presets import get_preset
from fewcal.render import Cell
from fewcal.tuning.trials import TrialRunner

STEPS = {
    "gaussianization": "Gaussianization",
    "top-k": "Top-k selection",
    "weights": "Distance-weighted random variable",
    "alpha1": "Shrinkage with α1",
    "alpha1+alpha2": "Shrinkage with α1 and α2",
    "all": "All parameters tuned together",
}
WITHOUT_K = "without-k"
_BETAS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_MANY = tuple(float(v) for v in range(0, 700, 100))
# On features as they come the paper's ranges for α1 and α2/α1; at unit scale wider ones, which small values belong to.
_SHRINKAGE: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "features as they come": (_MANY, _MANY),
    "unit scale": ((0.0, 0.1, 1.0, 10.0, 100.0, 400.0),) * 2,
}


class AblationRecord(Measured):
    """Each step at each scale ("scale: step") on novel tasks, and what it chose on validation tasks."""

    chosen: dict[str, Choice]


class SupportOnly(GaussianizedLogisticRegression):
    """Logistic regression on Gaussianized support points alone, at unit scale or not."""

    name = "lr-gauss"

    def __init__(self, beta: float, center: bool = False, l2: bool = False) -> None:
        super().__init__(beta=beta)
        self.center, self.l2 = center, l2

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"center": self.center, "l2": self.l2}

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        self.set_space(bank.transformed(beta=self.beta, center=self.center, l2=self.l2).transform, bank)
        return self


def ablation(case: Case) -> AblationRecord:
    """Each step adds one component and tunes what it has on validation tasks, with n = 750 as in the paper.

    The head is L2-regularised logistic regression (L-BFGS) at every step. A step may keep the winner of the step
    before where its ranges hold it.
    """
    runner = val_runner(case)
    parts: list[Measured] = []
    chosen: dict[str, Choice] = {}
    for scale, change in SCALES.items():
        base = get_preset("paper").with_changes(**change, n=750, n_per="class", head="lbfgs", alpha1=0.0, m=0.0)
        search = _Search(case, runner, base, change)
        made: dict[str, Method] = {}
        for step, choice in _steps(search, _SHRINKAGE[scale]).items():
            chosen[f"{scale}: {step}"] = choice
            make = search.support_only if step == "gaussianization" else search.calibrated
            made[f"{scale}: {step}"] = make(choice["chosen"])
        parts.append(measure(made, case))
    return {**join(*parts), "chosen": chosen}


@dataclass(frozen=True)
class _Search:
    """What the steps at one scale share: the same validation tasks, the same number of trials."""

    case: Case
    runner: TrialRunner
    base: GDCParams
    change: Mapping[str, bool]

    def support_only(self, setting: Setting) -> Method:
        return SupportOnly(setting["beta"], **self.change)

    def calibrated(self, setting: Setting) -> Method:
        return gdc(self.base.with_changes(**setting))

    def find(self, axes: Axes, keep: Choice | None = None) -> Choice:
        """The best of a grid, or of `keep` and a grid."""
        budget = self.case.budget
        settings = ([keep["chosen"]] if keep else []) + grid(axes, budget.trials, budget.seed)
        settings = [one for i, one in enumerate(settings) if one not in settings[:i]]
        return choose_on_val(self.case, settings, self.calibrated, self.runner)


def _steps(search: _Search, alphas: tuple[Sequence[float], Sequence[float]]) -> dict[str, Choice]:
    """What each step chose."""
    bases = len(search.runner.bank)
    ks = range(1, min(20, bases) + 1)
    first = choose_on_val(search.case, [{"beta": b} for b in _BETAS], search.support_only, search.runner)
    beta: Axes = {"beta": (first["chosen"]["beta"],)}
    plain: Axes = {"alpha1": (0.0,), "alpha2_ratio": (0.0,)}
    out = {"gaussianization": first}
    out["top-k"] = search.find({**beta, "k": ks, "m": (0.0,), **plain})
    out["weights"] = search.find({**beta, "k": ks, "m": (1.0,), **plain})
    shrink: Axes = {**beta, "k": ks, "m": (1.0,), "alpha1": alphas[0]}
    out["alpha1"] = search.find({**shrink, "alpha2_ratio": (0.0,)}, out["weights"])
    out["alpha1+alpha2"] = search.find({**shrink, "alpha2_ratio": alphas[1]}, out["alpha1"])
    powers = tuple(i / 4 for i in range(13))
    every: Axes = {**beta, "k": ks, "m": powers, "alpha1": alphas[0], "alpha2_ratio": alphas[1]}
    out["all"] = search.find(every, out["alpha1+alpha2"])
    out[WITHOUT_K] = search.find({**every, "k": (bases,)})
    return out


def show_ablation(records: Records[AblationRecord]) -> Section:
    """Accuracy and gain of each step, at both scales."""
    section = Section()
    header = ["step", "chosen on validation", "accuracy %", "gain", "paper %", "paper's gain", "paper's choice"]
    for (dataset, shot), record in records.items():
        for scale in SCALES:
            where = f"{dataset_title(dataset)}, {shot}-shot, {scale}"
            rows, verdicts = _step_rows(record, scale, where)
            rows.append(_without_k(record, scale))
            whole = difference(record, f"{scale}: all", f"{scale}: gaussianization")
            verdicts.append(
                Verdict.of("ablation: all components together add accuracy", where, whole, "tuned or rescaled")
            )
            tried = record["chosen"][f"{scale}: all"]
            tasks = len(record["correct"][f"{scale}: {WITHOUT_K}"])
            caption = (
                f"{where}: {tasks} novel tasks; at most {tried['tried']} settings a step on {tried['tasks']} "
                "validation tasks (the paper: 100 on 200)"
            )
            section.verdicts += verdicts
            section.blocks.append(Table(header, rows, caption))
    return section


def _step_rows(record: AblationRecord, scale: str, where: str) -> tuple[list[list[Value]], list[Verdict]]:
    cites = {row["step"]: row for row in published()["table4"]["rows"]}
    rows: list[list[Value]] = []
    verdicts = []
    before: str | None = None
    for step, title in STEPS.items():
        key, cite = f"{scale}: {step}", cites[step]
        gain = None if before is None else difference(record, key, before)
        rows.append(
            [
                title,
                setting_text(record["chosen"][key]["chosen"]),
                accuracy_cell(record, key),
                gain_cell(gain),
                cited(cite["accuracy"], cite["plus_minus"], "Table 4"),
                Cell(None) if cite["gain"] is None else Cell(f"+{cite['gain']:.1f}", mark="cited"),
                Cell(cite["tuned"], mark="cited"),
            ]
        )
        if gain is not None:
            verdicts.append(Verdict.of(f"ablation: {title} adds accuracy", where, gain, "tuned or rescaled"))
        before = key
    return rows, verdicts


def _without_k(record: AblationRecord, scale: str) -> list[Value]:
    key = f"{scale}: {WITHOUT_K}"
    lost = difference(record, key, f"{scale}: all")
    source = published()["table4"]["without_k"]
    return [
        "All tuned, but k = all base classes",
        setting_text(record["chosen"][key]["chosen"]),
        accuracy_cell(record, key),
        Cell(f"{gain_text(lost)} to all tuned", sort=lost.difference),
        cited(source["accuracy"], None, source["source"]),
        Cell(None),
        Cell(None),
    ]


EXPERIMENTS = (
    Experiment(
        "table4",
        "Ablation: one component after another",
        "Table 4",
        "Each component adds accuracy, 0.4 to 1.5 points, 4 in all (Stanford Dogs, 1-shot).",
        ablation,
        show_ablation,
        ("dogs",),
        (1,),
        ("base", "val", "novel"),
        elsewhere=True,
        cost="5 min",
    ),
)
