"""Table 4: one component after another; with the published values, and with values tuned on validation tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fewcal.methods import Method, make_method
from fewcal.paper.blocks import Section, Table, Value, Verdict, accuracy_cell, cited, gain_cell
from fewcal.paper.budget import Case
from fewcal.paper.control import SupportOnly
from fewcal.paper.experiments.comparison import dc_arguments, dc_setting, tune_dc
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
)
from fewcal.paper.published import dataset_title, published
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.settings import HGDC, LBFGS, PRINTED, UNIT, UNIT_SCALE, Variant, gdc, paper_params, setting_text
from fewcal.params import GDCParams
from fewcal.presets import get_preset
from fewcal.render import Cell

STEPS = {
    "gaussianization": "Gaussianization",
    "top-k": "Top-k selection",
    "weights": "Distance-weighted random variable",
    "alpha1": "Shrinkage with α1",
    "alpha1+alpha2": "Shrinkage with α1 and α2",
    "all": "All parameters tuned together",
}
WITHOUT_K = "without-k"
DC_ROW, DC_TUNED, ALONE = "DC, its published setting", "DC, tuned on validation", "Support alone, as `default`"
_BETAS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_MANY = tuple(float(v) for v in range(0, 700, 100))
# On features as they come the paper's ranges for α1 and α2/α1; at unit scale wider ones, which small values belong to.
_OWN_RANGES: tuple[Sequence[float], Sequence[float]] = (_MANY, _MANY)
_UNIT_RANGES: tuple[Sequence[float], Sequence[float]] = ((0.0, 0.1, 1.0, 10.0, 100.0, 400.0),) * 2


@dataclass(frozen=True)
class Panel:
    """One ablation: a variant of the setting, with the published values of each step or with tuned ones."""

    name: str
    variant: Variant
    tuned: bool


PUBLISHED = (Panel("as printed", PRINTED, False), Panel("published values, unit scale", UNIT_SCALE, False))
TUNED = (
    Panel("tuned, SGD", Variant("tuned, SGD", "tuned or rescaled"), True),
    Panel("tuned, L-BFGS", LBFGS, True),
    Panel("tuned, unit scale, L-BFGS", Variant("", "tuned or rescaled", {**UNIT, "head": "lbfgs"}), True),
)
PANELS = (*PUBLISHED, *TUNED)


class AblationRecord(Measured):
    """Each step of each panel ("panel: step") on novel tasks, DC and `default`; what each step uses."""

    chosen: dict[str, Choice]


def ablation(case: Case) -> AblationRecord:
    """Each step adds one component, with n = 750 points a support point.

    As printed: the values of table 4, SGD. Tuned: each step tunes what it has on validation tasks, and may keep the
    winner of the step before where its ranges hold it; as many settings for each step, drawn at random from the paper's
    ranges (the paper: 100 by TPE on 200 tasks).
    """
    row = paper_params(case.dataset, case.shot)
    chosen: dict[str, Choice] = {}
    parts: list[Measured] = []
    for panel in PANELS:
        base = panel.variant.params(get_preset("paper").with_changes(n=750, alpha1=0.0, m=0.0))
        search = _search(case, base)
        ranges = _UNIT_RANGES if base.l2 else _OWN_RANGES
        steps = _tuned_steps(search, ranges) if panel.tuned else _published_steps(search.bases)
        made: dict[str, Method] = {}
        for step, choice in steps.items():
            chosen[f"{panel.name}: {step}"] = choice
            made[f"{panel.name}: {step}"] = (search.alone if step == "gaussianization" else search.calibrated)(
                choice["chosen"]
            )
        few = case.sgd_tasks(study=panel.variant is not PRINTED)
        parts.append(measure(made, case, few if base.head == "sgd" else case.budget.sampled))
    chosen[DC_TUNED] = tune_dc(case)
    sampled: dict[str, Method] = {
        DC_ROW: make_method("dc", **dc_setting(case.dataset, case.shot)),
        DC_TUNED: make_method("dc", **dc_arguments(chosen[DC_TUNED]["chosen"])),
    }
    parts.append(measure(sampled, case, case.budget.sampled))
    parts.append(measure({HGDC.name: HGDC.method(row), ALONE: SupportOnly(HGDC.params(row))}, case))
    return {**join(*parts), "chosen": chosen}


def _published_steps(bases: int) -> dict[str, Choice]:
    """The values that the paper prints for each step; nothing is tried."""
    printed = published()["table4"]
    settings = {row["step"]: row["setting"] for row in printed["rows"]}
    settings[WITHOUT_K] = {**printed["without_k"]["setting"], "k": bases}
    return {
        step: {
            "chosen": {name: _number(name, v) for name, v in one.items()},
            "val": float("nan"),
            "tried": 0,
            "tasks": 0,
        }
        for step, one in settings.items()
    }


def _number(name: str, value: float) -> float:
    return int(value) if name == "k" else float(value)


@dataclass(frozen=True)
class _Search:
    """What the steps of one panel share: the same validation tasks, the same number of trials."""

    case: Case
    base: GDCParams
    trials: int
    tasks: int

    @property
    def bases(self) -> int:
        return len(self.case.features.split("base").classes)

    def alone(self, setting: Setting) -> Method:
        return SupportOnly(self.base.with_changes(**setting))

    def calibrated(self, setting: Setting) -> Method:
        return gdc(self.base.with_changes(**setting))

    def find(self, axes: Axes, keep: Choice | None = None) -> Choice:
        """The best of a grid, or of `keep` and a grid."""
        settings = ([keep["chosen"]] if keep else []) + grid(axes, self.trials, self.case.budget.seed)
        settings = [one for i, one in enumerate(settings) if one not in settings[:i]]
        return choose_on_val(self.case, settings[: self.trials], self.calibrated, self.tasks)


def _search(case: Case, base: GDCParams) -> _Search:
    budget = case.budget
    if base.head == "sgd":
        return _Search(case, base, budget.sgd_trials, budget.sgd_trial_tasks)
    return _Search(case, base, budget.trials, case.sampled_trial_tasks)


def _tuned_steps(search: _Search, alphas: tuple[Sequence[float], Sequence[float]]) -> dict[str, Choice]:
    """What each step chose."""
    ks = range(1, min(20, search.bases) + 1)
    first = choose_on_val(search.case, [{"beta": b} for b in _BETAS], search.alone, search.tasks)
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
    out[WITHOUT_K] = search.find({**every, "k": (search.bases,)})
    return out


def show_ablation(records: Records[AblationRecord]) -> Section:
    """Accuracy and gain of each step, a table for each panel, the printed one first."""
    section = Section()
    header = ["step", "values", "accuracy %", "gain", "paper %", "paper's gain"]
    for (dataset, shot), record in records.items():
        where = f"{dataset_title(dataset)}, {shot}-shot"
        for panel in PANELS:
            rows, verdicts = _step_rows(record, panel, f"{where}, {panel.name}")
            rows += _reference_rows(record, panel)
            section.verdicts += verdicts
            section.blocks.append(Table(header, rows, _caption(record, panel, where)))
        gain = difference(record, HGDC.name, ALONE)
        claim = "calibration adds accuracy to the support alone"
        section.verdicts.append(Verdict.of(claim, f"{where}, {HGDC.name}", gain, "HGDC", gain))
    section.blocks.append(
        "Gaussianization is the support alone, in the space and with the head of its panel: the control for "
        "normalisation of every step. 64.33% is the last step with m = 1.5 here, and the squared Euclidean distance "
        "with m = 1 in table 5 of the paper."
    )
    return section


def _caption(record: AblationRecord, panel: Panel, where: str) -> str:
    base = panel.variant.params(get_preset("paper"))
    scale = "centred unit vectors" if base.l2 else "features at their own scale"
    tasks = len(record["correct"][f"{panel.name}: all"])
    tried = record["chosen"][f"{panel.name}: all"]
    values = (
        f"at most {tried['tried']} settings a step on {tried['tasks']} validation tasks, drawn at random from the "
        "paper's ranges (the paper: 100 by TPE on 200)"
        if panel.tuned
        else "the values of table 4, nothing tuned"
    )
    return (
        f"{where}, {panel.name}: {values}; n=750 a support point; joint covariance; {base.head} head; {scale}; "
        f"{tasks} novel tasks"
    )


def _step_rows(record: AblationRecord, panel: Panel, where: str) -> tuple[list[list[Value]], list[Verdict]]:
    cites = {row["step"]: row for row in published()["table4"]["rows"]}
    rows: list[list[Value]] = []
    verdicts = []
    group = panel.variant.group
    first, before = f"{panel.name}: gaussianization", ""
    for step, title in STEPS.items():
        key, cite = f"{panel.name}: {step}", cites[step]
        gain = difference(record, key, before) if before else None
        rows.append(
            [
                title,
                setting_text(record["chosen"][key]["chosen"]),
                accuracy_cell(record, key),
                gain_cell(gain),
                cited(cite["accuracy"], cite["plus_minus"], "Table 4"),
                Cell(None) if cite["gain"] is None else Cell(f"+{cite['gain']:.1f}", mark="cited"),
            ]
        )
        if gain is not None:
            claim = f"ablation: {title} adds accuracy"
            verdicts.append(Verdict.of(claim, where, gain, group, difference(record, key, first)))
        before = key
    last, without = f"{panel.name}: all", f"{panel.name}: {WITHOUT_K}"
    whole = difference(record, last, first)
    verdicts.append(Verdict.of("ablation: all components together add accuracy", where, whole, group, whole))
    k = difference(record, last, without)
    verdicts.append(Verdict.of("m does not replace k: all tuned is above k = all", where, k, group, whole))
    return rows, verdicts


def _reference_rows(record: AblationRecord, panel: Panel) -> list[list[Value]]:
    """All base classes for k, DC and `default` below the steps, each against all tuned."""
    last, without = f"{panel.name}: all", f"{panel.name}: {WITHOUT_K}"
    dc = DC_TUNED if panel.tuned else DC_ROW
    source = published()["table4"]["without_k"]
    cells = {
        "All tuned, but k = all base classes": (without, cited(source["accuracy"], None, source["source"])),
        dc: (dc, Cell(None)),
        f"GDC, {HGDC.name}": (HGDC.name, Cell(None)),
    }
    rows: list[list[Value]] = []
    for title, (key, cite) in cells.items():
        lost = difference(record, key, last)
        values = setting_text(record["chosen"][key]["chosen"]) if key in record["chosen"] else ""
        change = Cell(f"{gain_text(lost)} to all tuned", sort=lost.difference)
        rows.append([title, values, accuracy_cell(record, key), change, cite, Cell(None)])
    return rows


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
        cost="3 min",
        variants=(PRINTED, UNIT_SCALE, LBFGS, HGDC),
    ),
)
