"""What a finished run shows: accuracies, differences, confidence, tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fewcal.render.figures.style import LINES, MARKERS, PHONE, colour_of, drawn, new_axes, new_grid, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawn
def accuracy_intervals(methods: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Accuracy of each method: thick line for the interval over tasks, thin for that over classes.

    A method has `accuracy`, and maybe `ci95` (half-width) and `low`, `high` (over classes).
    """
    figure, axis = new_axes(PHONE, 0.34 * len(methods) + 1.0)
    for y, m in enumerate(methods.values()):
        mean = 100 * float(m["accuracy"] or 0.0)
        low, high, half = m.get("low"), m.get("high"), m.get("ci95")
        if low is not None and high is not None:
            axis.plot([100 * low, 100 * high], [y, y], color=colour_of(y), linewidth=1)
        if half is not None:
            axis.plot([mean - 100 * half, mean + 100 * half], [y, y], color=colour_of(y), linewidth=5, alpha=0.5)
        axis.plot(mean, y, color=colour_of(y), marker=MARKERS[y % 7], markersize=6, linestyle="none")
        axis.annotate(f"{mean:.1f}", (mean, y), (0, 6), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(methods)), [short(n) for n in methods])
    axis.set_ylim(len(methods) - 0.4, -0.7)
    axis.set_xlabel("accuracy %\n(thick: 95% over tasks; thin: 95% over classes)")
    axis.grid(True, axis="x")
    return figure


class Difference(Protocol):
    """A paired difference a − b with its 95% half-width, NaN where there is none."""

    @property
    def a(self) -> str: ...

    @property
    def b(self) -> str: ...

    @property
    def difference(self) -> float: ...

    @property
    def ci95(self) -> float: ...


@drawn
def difference_forest(differences: Sequence[Difference]) -> Figure:
    """Paired differences a − b with their 95% intervals. Filled where 0 is outside."""
    names = [f"{short(d.a)} − {short(d.b)}" for d in differences]
    long = max(map(len, names), default=0) > 28
    if long:
        names = [name.replace(" − ", "\n− ") for name in names]
    figure, axis = new_axes(PHONE, (0.42 if long else 0.3) * len(differences) + 1.0)
    for y, d in enumerate(differences):
        middle, half = 100 * d.difference, 0.0 if math.isnan(d.ci95) else 100 * d.ci95
        clear = abs(middle) > half
        colour = "#555555" if not clear else colour_of(0 if middle > 0 else 1)
        axis.plot([middle - half, middle + half], [y, y], color=colour, linewidth=1.6)
        marker = "o" if not clear else (">" if middle > 0 else "<")
        axis.plot(middle, y, marker=marker, markersize=6, color=colour, markerfacecolor=colour if clear else "white")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(differences)), names)
    axis.set_ylim(len(differences) - 0.4, -0.6)
    axis.set_xlabel("difference in points,\nwith 95% interval on the same tasks")
    axis.grid(True, axis="x")
    return figure


@drawn
def reliability(bins: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """How often answers were right, against the confidence they were given with; perfect calibration is the diagonal.

    Each method has `counts`, `correct` and `confidence` (sums) of equal bins. A bin with fewer than 1 in 1000 of the
    answers is left out.
    """
    figure, axis = new_axes(PHONE, 3.4)
    axis.plot([0, 100], [0, 100], color="#777777", linewidth=0.9, linestyle=":")
    for i, (name, b) in enumerate(bins.items()):
        counts = np.asarray(b["counts"], float)
        kept = counts > counts.sum() / 1000
        x = 100 * np.asarray(b["confidence"], float)[kept] / counts[kept]
        y = 100 * np.asarray(b["correct"], float)[kept] / counts[kept]
        axis.plot(x, y, color=colour_of(i), linestyle=LINES[i % 7], marker=MARKERS[i % 7], label=short(name))
    axis.set(xlabel="confidence %", ylabel="right answers %", xlim=(0, 102), ylim=(0, 102))
    axis.grid(True)
    axis.legend(loc="upper left")
    return figure


@drawn
def task_distribution(accuracies: Mapping[str, np.ndarray], levels: int = 20) -> Figure:
    """How accuracies are spread over tasks, a row for each method, with the mean as a line."""
    lowest = min((float(np.min(a)) for a in accuracies.values()), default=0.0)
    edges = np.linspace(math.floor(20 * lowest) / 20 - 1e-9, 1 + 1e-9, levels + 1) * 100
    figure, axes = new_grid(PHONE, 0.62 * len(accuracies) + 0.9, max(len(accuracies), 1), sharex=True, sharey=True)
    for i, ((axis,), (name, values)) in enumerate(zip(axes, accuracies.items(), strict=False)):
        share = np.full(len(values), 100 / max(len(values), 1))
        axis.hist(100 * np.asarray(values), bins=edges.tolist(), weights=share, color=colour_of(i), alpha=0.75)
        axis.axvline(100 * float(np.mean(values)), color="black", linewidth=1.2)
        axis.set_ylabel(short(name), rotation=0, ha="right", va="center")
        axis.yaxis.set_ticks([])
    axes[-1][0].set_xlabel("accuracy of a task %\n(line: mean; height: share of the tasks)")
    return figure
