"""Figure 2, left: X' in one dimension as the base class moves away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import torch

from fewcal.calibrate import weights_from_distances
from fewcal.features import FeatureSet
from fewcal.paper.blocks import Verdict
from fewcal.paper.registry import Figure, figure_experiment
from fewcal.paper.settings import PRINTED
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure


class MeanCurveData(TypedDict):
    """Means of the base class, and the estimates of each method for them."""

    base_mean: list[float]
    estimates: dict[str, list[float]]


def mean_curve_data(
    features: FeatureSet | None = None, *, seed: int = 0, powers: Sequence[float] = (0, 1, 4), far: float = 4.0
) -> MeanCurveData:
    """X' against the mean of one base class, the support point at 0 (eq. 5-8 with k = 1). Needs no features."""
    mu = torch.linspace(0, far, 81, dtype=torch.float64)
    estimates = {"DC": (mu / 2).tolist()}
    for m in powers:
        w = weights_from_distances(mu.square(), m)
        estimates[f"GDC, m = {m:g}"] = (w * mu / (1 + w)).tolist()
    return {"base_mean": mu.tolist(), "estimates": estimates}


def draw_mean_curve(data: MeanCurveData) -> matplotlib.figure.Figure:
    """A line for DC and for each m."""
    return figures.mean_curve(data["base_mean"], data["estimates"])


def say_mean_curve(data: MeanCurveData) -> str:
    """Where each estimate ends."""
    ends = ", ".join(f"{values[-1]:.3f} for {name}" for name, values in data["estimates"].items())
    return (
        "Equations 5 to 8 with k = 1 and squared distances, computed without features. "
        f"With the base mean at {data['base_mean'][-1]:g} the estimates are {ends}: DC drifts with the base class, a "
        "high m comes back to the support point. With m = 0 the weight is 1/(1 + d⁰) = ½, not DC's 1; up to a distance "
        "of 1 a higher m moves the estimate further, not less."
    )


def judge(data: MeanCurveData, where: str) -> list[Verdict]:
    """Whether X' returns to the support point with m = 4 and drifts away with DC: arithmetic, no interval."""
    high, dc = data["estimates"]["GDC, m = 4"], data["estimates"]["DC"]
    top = max(range(len(high)), key=high.__getitem__)
    found = (
        f"base mean at {data['base_mean'][-1]:g}: X' = {high[-1]:.4f} with m = 4, {dc[-1]:g} with DC; the largest with "
        f"m = 4 is {high[top]:.2f}, at a base mean of {data['base_mean'][top]:.2f} (exact)"
    )
    holds = high[-1] < 0.05 * dc[-1] and dc == sorted(dc)
    claim = "as the base class moves away, X' of DC goes with it, and with m = 4 it returns to the support point"
    return [Verdict(claim, "one dimension, no features", found, holds, PRINTED.group)]


FIGURE = Figure(
    "mean-curve", "X' as the base class moves away", "figure 2, left", mean_curve_data, draw_mean_curve, say_mean_curve
)
EXPERIMENTS = (
    figure_experiment(
        FIGURE,
        "As m rises, X' comes back to the support point.",
        "dogs",
        judge=judge,
        variants=(PRINTED,),
        control="none: arithmetic in one dimension, no features",
        cost="seconds",
    ),
)
