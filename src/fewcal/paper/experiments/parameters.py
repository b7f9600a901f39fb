"""Figure 3 and section 4.5: accuracy against n, against α1 and α2, and against k.

Each with the published row as printed first, its SGD head included, then with other heads or scales. Records hold the
accuracy of every task; means and intervals are computed where they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict

import numpy as np

from fewcal.evaluation import Protocol
from fewcal.evaluation.stats import Paired, paired, summarise
from fewcal.features import FeatureSet
from fewcal.methods import Method
from fewcal.paper.blocks import Verdict
from fewcal.paper.budget import Case
from fewcal.paper.control import SupportOnly
from fewcal.paper.evaluations import Evaluations
from fewcal.paper.measured import quiet
from fewcal.paper.registry import Figure, figure_experiment
from fewcal.paper.sampled import base_of, sentence
from fewcal.paper.settings import LBFGS, PRINTED, UNIT, UNIT_CLOSED, Variant, gdc, paper_params, params_text
from fewcal.params import GDCParams
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure

UNIT_LBFGS = Variant("unit scale, L-BFGS", "tuned or rescaled", {**UNIT, "head": "lbfgs"})
N_VARIANTS = (PRINTED, LBFGS, UNIT_LBFGS)
ALPHA_VARIANTS = (PRINTED, UNIT_LBFGS)
K_VARIANTS = (PRINTED, UNIT_CLOSED)
# The paper's best without k: m = 1.5, α1 = 600, α2 = 0 and all base classes.
WITHOUT_K = {"alpha1": 600.0, "alpha2_ratio": 0.0}
# The control for normalisation, on novel tasks.
ALONE = "alone"
# Saturated is what changes by no more than this.
_LEVEL = 0.01
# Tasks of a setting, at most; the paper has 200.
_MOST = 1000

# Accuracy of every task for each value on an axis.
Curve: TypeAlias = list[list[float]]
Tasks: TypeAlias = Mapping[str, int]  # by variant


class AccuracyNData(TypedDict):
    """Accuracy by the number of samples, for each variant and split; `alone` is the control on novel tasks."""

    n: list[int]
    panels: dict[str, dict[str, Curve]]
    alone: NotRequired[dict[str, list[float]]]  # not in records of before 2026-11-16
    settings: dict[str, str]
    shot: int


class AlphasData(TypedDict):
    """Accuracy on a grid for each variant, rows by α2/α1 and columns by α1."""

    alpha1: list[float]
    ratios: list[float]
    panels: dict[str, list[Curve]]
    alone: NotRequired[dict[str, list[float]]]
    settings: dict[str, str]
    shot: int
    split: str


class EffectKData(TypedDict):
    """Accuracy by the number of neighbours, with m and without; `without` is the paper's best setting without k."""

    k: list[int]
    row_k: int
    panels: dict[str, dict[str, Curve]]
    without: dict[str, list[float]]
    alone: NotRequired[dict[str, list[float]]]
    settings: dict[str, str]
    shot: int
    split: str


# ---- figure 3, left: n ----------------------------------------------------------------------------------------------


def accuracy_n_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    row: GDCParams | None = None,
    tasks: Tasks | int = 50,
    counts: Sequence[int] = (10, 50, 100, 250, 500, 750, 1000),
    splits: Sequence[str] = ("val", "novel"),
    device: str = "cpu",
    evaluations: Evaluations | None = None,
) -> AccuracyNData:
    """Accuracy of the published row with a rising number n of samples, on each split, 1-shot."""
    row = row or paper_params("dogs", 1)
    out: AccuracyNData = {"n": list(counts), "panels": {}, "alone": {}, "settings": {}, "shot": 1}
    for variant in N_VARIANTS:
        params = variant.params(row)
        methods: dict[str, Method] = {str(n): gdc(params.with_changes(n=n)) for n in counts}
        methods[ALONE] = SupportOnly(params)
        panel = {}
        for split in splits:
            protocol = Protocol(shot=1, tasks=_of(tasks, variant), seed=seed, split=split)
            found = _accuracies(methods, features, protocol, device, evaluations)
            out["alone"][variant.name] = found.pop(ALONE)  # the last split is that of verdicts
            panel[{"val": "validation"}.get(split, split)] = list(found.values())
        out["panels"][variant.name] = panel
        out["settings"][variant.name] = params_text(params).replace(f"n={row.n} a support point; ", "")
    return out


def draw_accuracy_n(data: AccuracyNData) -> matplotlib.figure.Figure:
    """A panel for each variant, a line with its band for each split."""
    return figures.accuracy_panels(data["n"], _lines(data["panels"]), xlabel="samples n a support point", log=True)


def say_accuracy_n(data: AccuracyNData) -> str:
    """The ends of each line."""
    parts = []
    for name, panel in data["panels"].items():
        ends = [
            f"{split} {100 * np.mean(curve[0]):.1f}% at n = {data['n'][0]}, {100 * np.mean(curve[-1]):.1f}% at "
            f"n = {data['n'][-1]}"
            for split, curve in panel.items()
        ]
        tasks = len(next(iter(panel.values()))[0])
        parts.append(f"{sentence(name)} ({data['settings'][name]}; {tasks} tasks a point): {', '.join(ends)}")
    return (
        f"{data['shot']}-shot. {'. '.join(parts)}. The paper sees a rise up to n = 750 and saturation there. `default` "
        "draws no points and has no n."
    )


def judge_accuracy_n(data: AccuracyNData, where: str) -> list[Verdict]:
    """Whether accuracy rises from n = 100 to n = 750, and stays there."""
    out = []
    for variant in N_VARIANTS:
        at = dict(zip(data["n"], data["panels"][variant.name]["novel"], strict=True))
        if not {100, 750, 1000} <= at.keys():
            continue
        place = f"{where}, {data['shot']}-shot, {variant.name}"
        control = _control(data, variant, np.array(at[750]))
        rise = paired(np.array(at[750]), np.array(at[100]))
        out.append(Verdict.of("accuracy with n = 750 is above that with n = 100", place, rise, variant.group, control))
        more = paired(np.array(at[1000]), np.array(at[750]))
        low, high = more.difference - more.ci95, more.difference + more.ci95
        holds = True if low > -_LEVEL and high < _LEVEL else False if low > _LEVEL or high < -_LEVEL else None
        claim = "beyond n = 750 accuracy changes by less than a point"
        out.append(replace(Verdict.of(claim, place, more, variant.group, control), holds=holds))
    return out


# ---- figure 3, right: α1 and α2 -------------------------------------------------------------------------------------


def alphas_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    row: GDCParams | None = None,
    tasks: Tasks | int = 50,
    alpha1: Sequence[float] = (0, 100, 200, 400, 600),
    ratios: Sequence[float] = (0, 100, 200, 400, 600),
    split: str = "novel",
    device: str = "cpu",
    evaluations: Evaluations | None = None,
) -> AlphasData:
    """Accuracy of the published row on a grid of α1 and α2/α1 (the ranges of the paper's ablation), 1-shot."""
    row = row or paper_params("dogs", 1)
    out: AlphasData = {
        "alpha1": list(alpha1),
        "ratios": list(ratios),
        "panels": {},
        "alone": {},
        "settings": {},
        "shot": 1,
        "split": split,
    }
    for variant in ALPHA_VARIANTS:
        params = variant.params(row)
        methods: dict[str, Method] = {
            f"{r:g}/{a:g}": gdc(params.with_changes(alpha1=float(a), alpha2_ratio=float(r)))
            for r in ratios
            for a in alpha1
            if a > 0 or r == ratios[0]  # without α1 there is no α2 = r·α1
        }
        methods[ALONE] = SupportOnly(params)
        protocol = Protocol(shot=1, tasks=_of(tasks, variant), seed=seed, split=split)
        found = _accuracies(methods, features, protocol, device, evaluations)
        out["panels"][variant.name] = [
            [found[f"{r:g}/{a:g}" if a > 0 else f"{ratios[0]:g}/0"] for a in alpha1] for r in ratios
        ]
        out["alone"][variant.name] = found[ALONE]
        words = params_text(params)
        out["settings"][variant.name] = words.replace(f"α1={row.alpha1:g}, α2={row.alpha2_ratio:g}·α1, ", "")
    return out


def draw_alphas(data: AlphasData) -> matplotlib.figure.Figure:
    """A heat map for each variant."""
    return figures.heat_maps(
        {name: np.mean(grid, axis=-1).tolist() for name, grid in data["panels"].items()},
        data["alpha1"],
        data["ratios"],
        xlabel="α₁",
        ylabel="α₂ / α₁",
    )


def say_alphas(data: AlphasData) -> str:
    """The best cell and what shrinkage brings."""
    parts = []
    for name, grid in data["panels"].items():
        mean = np.mean(grid, axis=-1)
        i, j = np.unravel_index(mean.argmax(), mean.shape)
        tasks = len(grid[0][0])
        half = max(summarise(np.array(cell)).ci95 for line in grid for cell in line) if tasks > 1 else np.nan
        sure = f", half-widths up to {100 * half:.1f} points" if tasks > 1 else ""
        parts.append(
            f"{sentence(name)} ({data['settings'][name]}; {tasks} {data['split']} tasks{sure}): without shrinkage "
            f"{100 * mean[0, 0]:.1f}%, best {100 * mean[i, j]:.1f}% at α₁ = {data['alpha1'][j]:g}, "
            f"α₂ = {data['ratios'][i]:g}·α₁"
        )
    return f"{data['shot']}-shot. {'. '.join(parts)}. The paper finds a rise, then a drop beyond α₁ = 200."


def judge_alphas(data: AlphasData, where: str) -> list[Verdict]:
    """Whether accuracy rises up to α1 = 200, drops beyond, and rises with α2; averages over the other axis."""
    out: list[Verdict] = []
    if not {0, 200, 600} <= set(data["alpha1"]):
        return out
    none, middle, last = (data["alpha1"].index(v) for v in (0, 200, 600))
    for variant in ALPHA_VARIANTS:
        grid = np.array(data["panels"][variant.name])  # (ratio, α1, task)
        place = f"{where}, {data['shot']}-shot, {variant.name}"
        column = grid.mean(axis=0)
        line = np.delete(grid, none, axis=1).mean(axis=1)
        gains = {
            "accuracy with α1 = 200 is above that without shrinkage": paired(column[middle], column[none]),
            "accuracy drops beyond α1 = 200 (to 600)": paired(column[middle], column[last]),
            "accuracy with an α2 (100 to 600 times α1) is above that with α2 = 0": paired(
                line[1:].mean(axis=0), line[0]
            ),
        }
        control = _control(data, variant, column[middle])
        out += [Verdict.of(claim, place, gain, variant.group, control) for claim, gain in gains.items()]
    return out


# ---- section 4.5: k -------------------------------------------------------------------------------------------------


def effect_k_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    row: GDCParams | None = None,
    tasks: Tasks | int = 50,
    k: Sequence[int] = (1, 4, 30),
    split: str = "novel",
    device: str = "cpu",
    evaluations: Evaluations | None = None,
) -> EffectKData:
    """Accuracy of the published row with a rising number k of neighbours, with its m and without (m = 0), 1-shot."""
    row = row or paper_params("dogs", 1)
    most = len(base_of(features).classes)
    own = min(row.k, most)
    ks = [*sorted({v for v in (*k, own) if v < most}), most]
    powers = tuple(dict.fromkeys((row.m, 0.0)))
    out: EffectKData = {
        "k": ks,
        "row_k": own,
        "panels": {},
        "without": {},
        "alone": {},
        "settings": {},
        "shot": 1,
        "split": split,
    }
    for variant in K_VARIANTS:
        params = variant.params(row)
        methods: dict[str, Method] = {f"{m:g}/{v}": gdc(params.with_changes(m=m, k=v)) for m in powers for v in ks}
        methods["without"] = gdc(params.with_changes(k=most, **WITHOUT_K))
        methods[ALONE] = SupportOnly(params)
        protocol = Protocol(shot=1, tasks=_of(tasks, variant), seed=seed, split=split)
        found = _accuracies(methods, features, protocol, device, evaluations)
        out["panels"][variant.name] = {
            f"m = {m:g}" + (" (equal weights)" if m == 0 else ""): [found[f"{m:g}/{v}"] for v in ks] for m in powers
        }
        out["without"][variant.name], out["alone"][variant.name] = found["without"], found[ALONE]
        out["settings"][variant.name] = params_text(params).replace(f"m={row.m:g}, k={row.k}, ", "")
    return out


def draw_effect_k(data: EffectKData) -> matplotlib.figure.Figure:
    """A panel for each variant, a line with and one without m."""
    return figures.accuracy_panels(data["k"], _lines(data["panels"]), xlabel="base classes k", log=True)


def say_effect_k(data: EffectKData) -> str:
    """The best k and what all base classes give."""
    parts = []
    for variant, panel in data["panels"].items():
        tasks = len(data["without"][variant])
        parts.append(f"{sentence(variant)} ({data['settings'][variant]}; {tasks} {data['split']} tasks)")
        for name, curve in panel.items():
            mean = np.mean(curve, axis=-1)
            best = int(mean.argmax())
            parts.append(
                f"{name}: best {100 * mean[best]:.1f}% at k = {data['k'][best]}, {100 * mean[-1]:.1f}% with all "
                f"{data['k'][-1]} base classes"
            )
    return (
        f"{data['shot']}-shot. {'. '.join(parts)}. The paper finds that m does not replace k: without k it loses 0.9 "
        "points on Dogs."
    )


def judge_effect_k(data: EffectKData, where: str) -> list[Verdict]:
    """Whether the published k is above all base classes, in the same row and against the paper's best without k."""
    out = []
    for variant in K_VARIANTS:
        curve = next(iter(data["panels"][variant.name].values()))  # that of the row's own m
        own = np.array(curve[data["k"].index(data["row_k"])])
        place = f"{where}, {data['shot']}-shot, {variant.name}"
        control = _control(data, variant, own)
        claims = {
            f"m does not replace k: k = {data['row_k']} is above all {data['k'][-1]} base classes": curve[-1],
            "the published row is above the paper's best without k (α1 = 600, α2 = 0)": data["without"][variant.name],
        }
        out += [
            Verdict.of(claim, place, paired(own, np.array(other)), variant.group, control)
            for claim, other in claims.items()
        ]
    return out


# ---- what they share ------------------------------------------------------------------------------------------------


def _control(data: AccuracyNData | AlphasData | EffectKData, variant: Variant, own: np.ndarray) -> Paired | None:
    """What the printed value of an axis brings to the support alone."""
    alone = data.get("alone", {}).get(variant.name)
    return None if alone is None else paired(own, np.array(alone))


def _of(tasks: Tasks | int, variant: Variant) -> int:
    return tasks if isinstance(tasks, int) else tasks[variant.name]


def _accuracies(
    methods: Mapping[str, Method],
    features: FeatureSet,
    protocol: Protocol,
    device: str,
    evaluations: Evaluations | None,
) -> dict[str, list[float]]:
    """Accuracy of every task by method."""
    base_of(features)
    with quiet():
        found = (evaluations or Evaluations()).run(methods, features, protocol, device)
    queries = protocol.way * protocol.query
    return {name: np.round(np.array(one.correct) / queries, 6).tolist() for name, one in found.items()}


def _lines(panels: Mapping[str, Mapping[str, Curve]]) -> dict[str, dict[str, tuple[list[float], list[float | None]]]]:
    """Means and half-widths of curves; there is no width of a single task."""
    out: dict[str, dict[str, tuple[list[float], list[float | None]]]] = {}
    for variant, panel in panels.items():
        out[variant] = {}
        for name, curve in panel.items():
            made = [summarise(np.array(one)) for one in curve]
            out[variant][name] = ([s.mean for s in made], [s.ci95 if s.n > 1 else None for s in made])
    return out


def arguments(variants: Sequence[Variant], part: float) -> Callable[[Case], dict[str, object]]:
    """The row of the dataset, and tasks for each variant: `part` of the budget of SGD, and not more than needed."""

    def given(case: Case) -> dict[str, object]:
        budget = case.budget
        tasks = {}
        for variant in variants:
            head = variant.params(paper_params(case.dataset, 1)).head
            # Dozens of settings: where something is spared, half of the tasks of other tables.
            drawn = budget.sampled if case.spares_nothing else -(-budget.sampled // 2)
            most = {"sgd": case.sgd_tasks(part), "lbfgs": drawn}.get(str(head), budget.study)
            tasks[variant.name] = min(most, _MOST)
        return {
            "row": paper_params(case.dataset, 1),
            "tasks": tasks,
            "device": case.device,
            "evaluations": case.evaluations,
        }

    return given


EXPERIMENTS = (
    figure_experiment(
        Figure("accuracy-n", "Accuracy against n", "figure 3, left", accuracy_n_data, draw_accuracy_n, say_accuracy_n),
        "Accuracy rises with n until 750.",
        "dogs",
        needs=("base", "val", "novel"),
        arguments=arguments(N_VARIANTS, 0.5),
        judge=judge_accuracy_n,
        variants=N_VARIANTS,
        cost="1 min",
    ),
    figure_experiment(
        Figure("alphas", "Accuracy against α1 and α2", "figure 3, right", alphas_data, draw_alphas, say_alphas),
        "Accuracy rises with α1 and α2, then drops beyond α1 = 200.",
        "dogs",
        arguments=arguments(ALPHA_VARIANTS, 0.25),
        judge=judge_alphas,
        variants=ALPHA_VARIANTS,
        cost="2 min",
    ),
    figure_experiment(
        Figure("effect-k", "The effect of k", "section 4.5", effect_k_data, draw_effect_k, say_effect_k),
        "m does not make k superfluous: without k 0.9 points are lost.",
        "dogs",
        arguments=arguments(K_VARIANTS, 0.5),
        judge=judge_effect_k,
        variants=K_VARIANTS,
        cost="1 min",
    ),
)
