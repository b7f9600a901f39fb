"""Points in the plane: tasks and their samples."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np

from fewcal.render.figures.style import (
    COLUMN,
    MARKERS,
    PAGE,
    PHONE,
    colour_of,
    drawn,
    new_axes,
    new_grid,
    new_panels,
    short,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path

# In a legend: the paper's mark of a support point, + in a circle.
_SUPPORT = "+ in a circle"


class Panel(TypedDict):
    """Points (P, 2) with their classes (P,) and kinds (P,): "support", "sample" or "query"."""

    points: list[list[float]]
    classes: list[int]
    kinds: list[str]


class TaskView(TypedDict):
    """A task in the plane: examples (S, 2) and queries (Q, 2) with their classes, and class means (N, 2)."""

    support: list[list[float]]
    labels: list[int]
    queries: list[list[float]]
    truth: list[int]
    right: list[bool]
    before: list[list[float]]
    after: list[list[float]]


class Cloud(TypedDict):
    """Samples (n, 2) and their mean (2,)."""

    points: list[list[float]]
    mean: list[float]


@drawn
def embedding_panels(panels: Mapping[str, Panel], class_names: Sequence[str] = ()) -> Figure:
    """Support, sampled and query points in the plane, a panel for each method, two in a row (figures 1 and 4).

    Support points are + in a black circle, samples o, semi-transparent, queries *. The number beside a support point is
    its class.
    """
    figure, axes = new_panels(len(panels), 3.1, 0.5)
    for axis, (name, panel) in zip([axis for line in axes for axis in line], panels.items(), strict=False):
        points, classes = np.asarray(panel["points"], float), np.asarray(panel["classes"])
        for c in np.unique(classes):
            colour, kinds = colour_of(int(c)), np.where(classes == c, panel["kinds"], "")
            axis.scatter(
                *_xy(points[kinds == "sample"]), s=14, c=colour, alpha=0.25, linewidths=0, marker="o", zorder=1
            )
            _queries(axis, points[kinds == "query"], colour)
            own = points[kinds == "support"]
            _support(axis, own, colour)
            _numbered(axis, own[:1], int(c))
        _map_axis(axis)
        axis.set_title(name)
    marks = {"support": (_SUPPORT, 9, 1.0), "sampled": ("o", 4.5, 0.35), "query": ("*", 8, 1.0)}
    _map_legend(figure, marks, class_names)
    return figure


@drawn
def task_map(view: TaskView, class_names: Sequence[str]) -> Figure:
    """One task in the plane that its calibrated means span best: where calibration moved them, and what went wrong.

    `right (Q,)` are the queries with right answers; `before` and `after` are the class means.
    """
    figure, axis = new_axes(PHONE, 4.0)
    support, queries, before, after = (
        np.asarray(points, float).reshape(-1, 2)
        for points in (view["support"], view["queries"], view["before"], view["after"])
    )
    labels, truth, right = np.asarray(view["labels"]), np.asarray(view["truth"]), np.asarray(view["right"], bool)
    for c in range(len(after)):
        colour = colour_of(c)
        _queries(axis, queries[(truth == c) & right], colour)
        axis.scatter(*_xy(queries[(truth == c) & ~right]), s=22, c=colour, linewidths=1.2, marker="x", zorder=2)
        _support(axis, support[labels == c], colour)
        axis.annotate("", after[c], before[c], arrowprops={"arrowstyle": "->", "color": "black", "lw": 0.9}, zorder=4)
        axis.scatter(*_xy(after[c]), s=60, c=colour, edgecolors="black", linewidths=1, marker="D", zorder=5)
    _numbered(axis, after, *range(len(after)))
    _map_axis(axis)
    marks = {
        "example": (_SUPPORT, 9, 1.0),
        "calibrated mean": ("D", 5, 1.0),
        "query, right": ("*", 8, 1.0),
        "query, wrong": ("x", 5, 1.0),
    }
    _map_legend(figure, marks, class_names, width=58, columns=2)
    return figure


Points: TypeAlias = np.ndarray | Sequence[Sequence[float]] | Sequence[float]


def _xy(points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of points (P, 2), or of one point (2,)."""
    plane = np.asarray(points, float)
    return plane[..., 0], plane[..., 1]


def _queries(axis: Axes, points: np.ndarray, colour: str) -> None:
    axis.scatter(*_xy(points), s=34, c=colour, linewidths=0.3, edgecolors="white", marker="*", zorder=2)


def _support(axis: Axes, points: Points, colour: str, size: float = 110) -> None:
    """The paper's mark of a support point: + in a black circle."""
    axis.scatter(*_xy(points), s=size, facecolors="white", edgecolors="black", linewidths=1.2, zorder=3)
    axis.scatter(*_xy(points), s=0.58 * size, c=colour, linewidths=2, marker="+", zorder=4)


def _numbered(axis: Axes, points: np.ndarray, *numbers: int) -> None:
    for (x, y), number in zip(points, numbers, strict=True):
        label = axis.annotate(str(number + 1), (x, y), (6, 5), textcoords="offset points", weight="bold", zorder=6)
        label.set_bbox({"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0})


def _map_axis(axis: Axes) -> None:
    axis.set(xticks=[], yticks=[])
    axis.spines[["top", "right"]].set_visible(True)


def _map_legend(
    figure: Figure,
    marks: Mapping[str, tuple[str, float, float]],
    class_names: Sequence[str],
    width: int = 105,
    columns: int | None = None,
) -> None:
    """What each mark means, each `(marker, size, alpha)`, and the numbers of the classes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], linestyle="none", color="black", markersize=size, alpha=alpha, label=label,
            marker=_circled_plus() if marker == _SUPPORT else marker,
            markerfacecolor="none" if marker == _SUPPORT else "black",
        )
        for label, (marker, size, alpha) in marks.items()
    ]  # fmt: skip
    names = textwrap.fill("; ".join(f"{i + 1}\u00a0{short(n, 40)}" for i, n in enumerate(class_names)), width)
    columns = columns or len(marks)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, title=names or None, title_fontsize=8)


def _circled_plus() -> Path:
    from matplotlib.path import Path

    lines = [Path([[-0.6, 0], [0.6, 0]]), Path([[0, -0.6], [0, 0.6]])]
    return Path.make_compound_path(Path.unit_circle(), *lines)


@drawn
def drifting_samples(panels: Mapping[str, tuple[Mapping[str, Cloud], Sequence[float]]]) -> Figure:
    """Clouds of samples with their means (*) and the support point (+ in a circle) (the paper's figure 2, right).

    A panel for each setting, each `(clouds by name, support point)`.
    """
    from matplotlib.lines import Line2D

    figure, axes = new_grid(PAGE if len(panels) > 1 else COLUMN, 2.7, columns=len(panels))
    names = list(dict.fromkeys(name for clouds, _ in panels.values() for name in clouds))
    for axis, (title, (clouds, support)) in zip(axes[0], panels.items(), strict=True):
        for i, cloud in enumerate(clouds.values()):
            colour, marker = colour_of(i), MARKERS[i % len(MARKERS)]
            axis.scatter(*_xy(cloud["points"]), s=10, c=colour, alpha=0.35, linewidths=0, marker=marker)
            axis.scatter(*_xy(cloud["mean"]), s=150, c=colour, edgecolors="black", linewidths=0.7, marker="*", zorder=3)
        _support(axis, support, "black", 130)
        _map_axis(axis)
        axis.set_title(title)
    handles = [
        Line2D([], [], linestyle="none", color=colour_of(i), marker=MARKERS[i % len(MARKERS)], markersize=5, label=name)
        for i, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(names), 5), columnspacing=1)
    return figure
