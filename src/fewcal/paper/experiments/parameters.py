"""Figure 3 and section 4.5: accuracy against n, against α1 and α2, and against k."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from fewcal.evaluation import Protocol, evaluate
from fewcal.evaluation.stats import summarise
from fewcal.features import FeatureSet
from fewcal.methods import Method
from fewcal.methods.gdc import GDC
from fewcal.paper.measured import quiet
from fewcal.paper.registry import Figure, few_tasks, figure_experiment
from fewcal.paper.sampled import SAMPLED, SCALED, SCALED_SAMPLED, base_of
from fewcal.paper.settings import gdc
from fewcal.params import GDCParams
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure


class MeanAndHalf(TypedDict):
    """A mean accuracy and its 95% half-width, None of a single task."""

    mean: float
    half: float | None


class Series(TypedDict):
    """Means and half-widths along an axis."""

    mean: list[float]
    half: list[float | None]


class AccuracyNData(TypedDict):
    """Accuracy by the number of samples, on each split."""

    n: list[int]
    series: dict[str, Series]
    tasks: int
    shot: int


class AlphasData(TypedDict):
    """Accuracy on a grid, rows by α2/α1 and columns by α1; the largest half-width."""

    alpha1: list[float]
    ratios: list[float]
    accuracy: list[list[float]]
    half: float
    tasks: int
    shot: int
    split: str


class EffectKData(TypedDict):
    """Accuracy by the number of neighbours, with m and without."""

    k: list[int]
    series: dict[str, Series]
    tasks: int
    shot: int
    split: str


def accuracy_n_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    tasks: int = 200,
    shot: int = 1,
    counts: Sequence[int] = (1, 3, 10, 30, 100, 250, 500, 750, 1000),
    params: GDCParams = SAMPLED,
    splits: Sequence[str] = ("val", "novel"),
    device: str = "cpu",
) -> AccuracyNData:
    """Accuracy for a rising number n of samples, on each split."""
    methods = {str(n): gdc(params.with_changes(n=n)) for n in counts}
    series = {}
    for split in splits:
        found = _accuracies(methods, features, Protocol(shot=shot, tasks=tasks, seed=seed, split=split), device)
        series[{"val": "validation"}.get(split, split)] = _series(found.values())
    return {"n": list(counts), "series": series, "tasks": tasks, "shot": shot}


def draw_accuracy_n(data: AccuracyNData) -> matplotlib.figure.Figure:
    """A line with its band for each split."""
    series = {name: (s["mean"], s["half"]) for name, s in data["series"].items()}
    return figures.accuracy_lines(data["n"], series, xlabel="samples n per support point", log=True)


def say_accuracy_n(data: AccuracyNData) -> str:
    """Where the gain ends."""
    ends = []
    for name, s in data["series"].items():
        best = max(s["mean"])
        # The first n that is within the noise of the best.
        enough = next(n for n, v, h in zip(data["n"], s["mean"], s["half"], strict=True) if v + (h or 0) / 2 >= best)
        ends.append(
            f"{name}: {100 * s['mean'][0]:.1f}% at n = {data['n'][0]}, {100 * best:.1f}% at best, within the noise "
            f"of that from n = {enough} on"
        )
    return f"{data['tasks']} tasks, {data['shot']}-shot. {'; '.join(ends)}. The paper sees saturation at n = 750."


def alphas_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    tasks: int = 200,
    shot: int = 1,
    alpha1: Sequence[float] = (0, 1, 10, 100, 400, 1000),
    ratios: Sequence[float] = (0, 1, 10, 100, 400),
    params: GDCParams = SCALED_SAMPLED,
    split: str = "novel",
    device: str = "cpu",
) -> AlphasData:
    """Accuracy on a grid of α1 and α2/α1, with samples, since the closed form has no answer without shrinkage."""
    methods = {
        f"{r:g}/{a:g}": gdc(params.with_changes(alpha1=float(a), alpha2_ratio=float(r)))
        for r in ratios
        for a in alpha1
        if a > 0 or r == ratios[0]  # without α1 there is no α2 = r·α1
    }
    found = _accuracies(methods, features, Protocol(shot=shot, tasks=tasks, seed=seed, split=split), device)
    grid = [[found[f"{r:g}/{a:g}" if a > 0 else f"{ratios[0]:g}/0"]["mean"] for a in alpha1] for r in ratios]
    half = max(f["half"] or 0.0 for f in found.values())
    return {
        "alpha1": list(alpha1),
        "ratios": list(ratios),
        "accuracy": grid,
        "half": half,
        "tasks": tasks,
        "shot": shot,
        "split": split,
    }


def draw_alphas(data: AlphasData) -> matplotlib.figure.Figure:
    """The heat map."""
    return figures.heat_map(
        data["accuracy"],
        data["alpha1"],
        data["ratios"],
        xlabel="α₁ (towards the diagonal)",
        ylabel="α₂ / α₁ (towards correlation)",
    )


def say_alphas(data: AlphasData) -> str:
    """The best cell and what shrinkage brings."""
    grid = np.array(data["accuracy"], float)
    i, j = np.unravel_index(grid.argmax(), grid.shape)
    return (
        f"{data['tasks']} {data['split']} tasks, {data['shot']}-shot, half-widths up to {100 * data['half']:.1f} "
        f"points. Without shrinkage {100 * grid[0, 0]:.1f}%; the best cell is α₁ = {data['alpha1'][j]:g}, "
        f"α₂ = {data['ratios'][i]:g}·α₁ with {100 * grid[i, j]:.1f}%. "
        f"The paper finds a rise and then a drop beyond α₁ = 200 on its features of Dogs."
    )


def effect_k_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    tasks: int = 200,
    shot: int = 1,
    k: Sequence[int] | None = None,
    params: GDCParams = SCALED,
    m: float | None = None,
    split: str = "novel",
    device: str = "cpu",
) -> EffectKData:
    """Accuracy for a rising number k of neighbours, with distance-dependent weights (m) and without (m = 0)."""
    most = len(base_of(features).classes)
    ks = [v for v in (k or (1, 2, 4, 8, 16, 32, 64, 128, 256)) if v < most] + [most]
    with_m = params.m if m is None else m
    methods = {
        f"{power:g}/{v}": GDC(params.with_changes(m=float(power), k=v))
        for power in dict.fromkeys((0.0, with_m))
        for v in ks
    }
    found = _accuracies(methods, features, Protocol(shot=shot, tasks=tasks, seed=seed, split=split), device)
    series = {
        f"m = {power:g}" + (" (equal weights)" if power == 0 else ""): _series(found[f"{power:g}/{v}"] for v in ks)
        for power in dict.fromkeys((0.0, with_m))
    }
    return {"k": ks, "series": series, "tasks": tasks, "shot": shot, "split": split}


def draw_effect_k(data: EffectKData) -> matplotlib.figure.Figure:
    """A line with and one without m."""
    series = {name: (s["mean"], s["half"]) for name, s in data["series"].items()}
    return figures.accuracy_lines(data["k"], series, xlabel="base classes k", log=True)


def say_effect_k(data: EffectKData) -> str:
    """The best k and what all base classes give."""
    parts = []
    for name, s in data["series"].items():
        best = int(np.argmax(s["mean"]))
        parts.append(
            f"{name}: best {100 * s['mean'][best]:.1f}% at k = {data['k'][best]}, {100 * s['mean'][-1]:.1f}% with all "
            f"{data['k'][-1]} base classes"
        )
    return (
        f"{data['tasks']} {data['split']} tasks, {data['shot']}-shot. {'; '.join(parts)}. "
        "The paper finds that m does not replace k: without k it loses 0.9 points on Dogs."
    )


def _accuracies(
    methods: Mapping[str, Method], features: FeatureSet, protocol: Protocol, device: str
) -> dict[str, MeanAndHalf]:
    base_of(features)
    with quiet():
        results = evaluate(methods, features, protocol, device)
    out: dict[str, MeanAndHalf] = {}
    for name in methods:
        s = summarise(results.accuracy(name))
        out[name] = {"mean": s.mean, "half": None if math.isnan(s.ci95) else s.ci95}
    return out


def _series(found: Iterable[MeanAndHalf]) -> Series:
    both = list(found)
    return {"mean": [f["mean"] for f in both], "half": [f["half"] for f in both]}


EXPERIMENTS = (
    figure_experiment(
        Figure("accuracy-n", "Accuracy against n", "figure 3, left", accuracy_n_data, draw_accuracy_n, say_accuracy_n),
        "Accuracy rises with n until 750.",
        "dogs",
        needs=("base", "val", "novel"),
        packages=("scipy",),
        arguments=few_tasks,
        cost="1 min",
    ),
    figure_experiment(
        Figure("alphas", "Accuracy against α1 and α2", "figure 3, right", alphas_data, draw_alphas, say_alphas),
        "Accuracy rises with α1 and α2, then drops beyond α1 = 200.",
        "dogs",
        packages=("scipy",),
        arguments=few_tasks,
        cost="1 min",
    ),
    figure_experiment(
        Figure("effect-k", "The effect of k", "section 4.5", effect_k_data, draw_effect_k, say_effect_k),
        "m does not make k superfluous: without k 0.9 points are lost.",
        "dogs",
        packages=("scipy",),
        arguments=few_tasks,
        cost="seconds",
    ),
)
