"""Figures of a finished run: accuracies, differences, confidence, tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fewcal.render.figures.style import PHONE, colour_of, drawn, look_of, new_axes, new_grid, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawn
def accuracy_intervals(methods: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Accuracy of each method: thick line for the interval over tasks, thin for that over classes.

    A method has `accuracy`, and maybe `ci95` (half-width) and `low`, `high` (over classes).
    """
    figure, axis = new_axes(PHONE, 0.34 * len(methods) + 1.1)
    for y, m in enumerate(methods.values()):
        mean = 100 * float(m["accuracy"] or 0.0)
        low, high, half = m.get("low"), m.get("high"), m.get("ci95")
        if low is not None and high is not None:
            axis.plot([100 * low, 100 * high], [y, y], color=colour_of(y), linewidth=1)
        if half is not None:
            axis.plot([mean - 100 * half, mean + 100 * half], [y, y], color=colour_of(y), linewidth=5, alpha=0.5)
        axis.plot(mean, y, **look_of(y) | {"markersize": 6, "linestyle": "none"})
        axis.annotate(f"{mean:.1f}", (mean, y), (0, 6), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(methods)), [short(n, 30) for n in methods])
    axis.set_ylim(len(methods) - 0.4, -0.7)
    axis.set_xlabel("accuracy %\n(thick: 95% over tasks,\nthin: 95% over classes)")
    axis.grid(True, axis="x")
    return figure


@drawn
def difference_forest(differences: Sequence[tuple[str, str, float, float]]) -> Figure:
    """Paired differences with their 95% intervals, each `(a, b, a − b, half-width)`. Filled where 0 is outside."""
    names = [f"{short(a, 30)} − {short(b, 30)}" for a, b, _, _ in differences]
    long = max(map(len, names), default=0) > 28
    figure, axis = new_axes(PHONE, (0.42 if long else 0.3) * len(differences) + 1.0)
    for y, (_, _, difference, half) in enumerate(differences):
        middle, half = 100 * difference, 0.0 if math.isnan(half) else 100 * half
        clear = abs(middle) > half
        colour = colour_of(0 if middle > 0 else 1) if clear else "#555555"
        marker = "o" if not clear else ">" if middle > 0 else "<"
        axis.plot([middle - half, middle + half], [y, y], color=colour, linewidth=1.6)
        axis.plot(middle, y, marker=marker, markersize=6, color=colour, markerfacecolor=colour if clear else "white")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), [n.replace(" − ", "\n− ") for n in names] if long else names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlabel("difference in points\n(with its 95% interval)")
    axis.grid(True, axis="x")
    return figure


@drawn
def reliability(bins: Mapping[str, np.ndarray]) -> Figure:
    """Share of right answers against confidence; perfect calibration is the diagonal.

    Each method has numbers of answers, of right ones, and summed confidences of equal bins, (3, B). A bin with fewer
    than 1 in 1000 of the answers is left out.
    """
    figure, axis = new_axes(PHONE, 3.4)
    axis.plot([0, 100], [0, 100], color="#777777", linewidth=0.9, linestyle=":")
    for i, (name, b) in enumerate(bins.items()):
        counts, correct, confidence = b
        kept = counts > counts.sum() / 1000
        x, y = 100 * confidence[kept] / counts[kept], 100 * correct[kept] / counts[kept]
        axis.plot(x, y, **look_of(i), label=short(name, 30))
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
        axis.set_ylabel(short(name, 30), rotation=0, ha="right", va="center")
        axis.yaxis.set_ticks([])
    axes[-1][0].set_xlabel("accuracy of a task %\n(line: mean; height: share of the tasks)")
    return figure
