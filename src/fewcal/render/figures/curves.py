"""Numbers against parameters: lines, heat maps, histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fewcal.errors import InputError
from fewcal.render.figures.style import (
    COLUMN,
    LINES,
    PAGE,
    colour_of,
    drawn,
    look_of,
    new_axes,
    new_grid,
    new_panels,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Means and half-widths along an axis, and accuracies by row and column; None is left out.
Line: TypeAlias = tuple[Sequence[float | None], Sequence[float | None]]
Grid: TypeAlias = Sequence[Sequence[float | None]]


@drawn
def mean_curve(base_mean: Sequence[float], estimates: Mapping[str, Sequence[float]]) -> Figure:
    """The estimate X' against the base mean in one dimension, the support point at 0 (the paper's figure 2, left)."""
    figure, axis = new_axes(COLUMN, 2.5)
    for i, (name, values) in enumerate(estimates.items()):
        axis.plot(base_mean, values, **look_of(i), markevery=max(len(values) // 8, 1), label=name)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set(xlabel="base mean μ₁ (support point at 0)", ylabel="estimate X′")
    axis.grid(True)
    axis.legend()
    return figure


@drawn
def accuracy_panels(
    x: Sequence[float], panels: Mapping[str, Mapping[str, Line]], *, xlabel: str, log: bool = False
) -> Figure:
    """Accuracy against a parameter, a panel for each setting on one axis (figure 3, left; effect of k)."""
    width = COLUMN if len(panels) == 1 else PAGE
    figure, axes = new_grid(width, 2.5, columns=len(panels), sharey=True)
    for axis, (title, series) in zip(axes[0], panels.items(), strict=True):
        for i, (name, (means, halves)) in enumerate(series.items()):
            y, half = percent(means), percent(halves)
            axis.plot(x, y, **look_of(i), label=name)
            axis.fill_between(x, y - half, y + half, color=colour_of(i), alpha=0.18, linewidth=0)
        if log:
            axis.set_xscale("log", base=10 if max(x) > 200 else 2)
            axis.set_xticks(list(x), _apart(x, 0.11 if len(panels) == 1 else 0.17))
            axis.minorticks_off()
        axis.set(xlabel=xlabel, title=title)
        axis.grid(True)
        axis.legend()
    axes[0][0].set_ylabel("accuracy %")
    return figure


def _apart(x: Sequence[float], gap: float = 0.11) -> list[str]:
    """Labels of ticks on a logarithmic axis; those that would touch the one before stay empty.

    >>> _apart([1, 10, 100, 110])
    ['1', '10', '100', '']
    """
    out, last = [], -math.inf
    for v in x:
        place = math.log(v / x[0]) / max(math.log(x[-1] / x[0]), 1e-9)
        out.append(f"{v:g}" if place - last > gap else "")
        last = place if out[-1] else last
    return out


@drawn
def heat_maps(
    panels: Mapping[str, Grid], columns: Sequence[float], rows: Sequence[float], *, xlabel: str, ylabel: str
) -> Figure:
    """Accuracy on grids, a panel with its own colours for each setting; the best cell has a frame (figure 3, right)."""
    width = COLUMN + 0.5 if len(panels) == 1 else PAGE
    figure, axes = new_grid(width, 0.36 * len(rows) + 0.9, columns=len(panels))
    for axis, (title, values) in zip(axes[0], panels.items(), strict=True):
        share = np.array([[np.nan if v is None else v for v in row] for row in values], float) * 100
        if share.shape != (len(rows), len(columns)):
            raise InputError(f"the heat map has {share.shape} values for {len(rows)} rows and {len(columns)} columns")
        image = axis.imshow(share, cmap="cividis", aspect="auto", origin="lower")
        _cell_texts(axis, image, share)
        axis.set_xticks(range(len(columns)), [f"{v:g}" for v in columns])
        axis.set_yticks(range(len(rows)), [f"{v:g}" for v in rows])
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        figure.colorbar(image, ax=axis, label="accuracy %", pad=0.02)
    return figure


def _cell_texts(axis: Axes, image: AxesImage, share: np.ndarray) -> None:
    """The number in each cell, and a frame around the best."""
    from matplotlib.patches import Rectangle

    for i, j in np.ndindex(*share.shape):
        if not math.isnan(share[i, j]):
            dark = np.dot(image.to_rgba(share[i, j])[:3], (0.3, 0.59, 0.11)) < 0.5
            axis.text(
                j, i, f"{share[i, j]:.1f}", ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
    if not np.isnan(share).all():
        i, j = np.unravel_index(np.nanargmax(share), share.shape)
        axis.add_patch(Rectangle((j - 0.47, i - 0.46), 0.94, 0.92, fill=False, edgecolor="#D55E00", linewidth=2))


@drawn
def weight_histograms(panels: Mapping[str, Sequence[float]], marks: Mapping[str, float] | None = None) -> Figure:
    """Histograms of weights, a panel for each setting, all on one logarithmic axis (the paper's figure 5).

    `marks` are values with a name, drawn as lines: what DC gives each base class.
    """
    data = {name: np.asarray(v, float) for name, v in panels.items()}
    marks = marks or {}
    every = np.concatenate([v[v > 0] for v in data.values()] + [np.array(list(marks.values()) or [1e-3])])
    low, high = math.floor(2 * math.log10(every.min())) / 2, math.ceil(2 * math.log10(every.max())) / 2
    bins = np.logspace(low, max(high, low + 0.5), 60)
    figure, axes = new_panels(len(data), 1.6, 0.5, sharex=True)
    flat = [axis for line in axes for axis in line]
    for axis, (name, values) in zip(flat, data.items(), strict=False):
        share = np.full(len(values), 100 / max(len(values), 1))
        axis.hist(np.clip(values, bins[0], None), bins=bins.tolist(), color=colour_of(0), weights=share)
        for i, (word, at) in enumerate(marks.items()):
            axis.axvline(at, color=colour_of(1), linestyle=LINES[(1 + i) % len(LINES)], label=word)
        axis.set(xscale="log", title=name, ylabel="% of weights")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter("")
        axis.grid(True, axis="y")
        if marks:
            axis.set_ylim(top=1.3 * axis.get_ylim()[1])  # room for the words above the bars
            axis.legend(loc="upper left")
    for axis in axes[-1]:
        axis.set_xlabel("share wᵢ/(1+Σw) of a base class")
    return figure
