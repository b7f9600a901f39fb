"""Figures: plain data in, a matplotlib figure out, the same bytes for the same data.

Colours are Okabe and Ito's, which people with any kind of colour vision can tell apart, and no figure tells by colour
alone: series also differ by marker and line. Letters are 8 points high at the width of a column (3.35 inches) or of a
page (6.9 inches) of a two-column paper. Accuracies come in as shares (0 to 1) and are shown in per cent.

>>> figure = accuracy_lines([1, 10, 100], {"validation": ([0.5, 0.6, 0.62], [0.01] * 3)}, xlabel="n", log=True)
>>> len(svg_bytes(figure)) > 1000
True
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal.errors import InputError

P = ParamSpec("P")
COLUMN, PAGE = 3.35, 6.9  # inches
# Okabe and Ito's colours without the yellow, which is too pale for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))
FORMATS = ("svg", "pdf", "png")

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that figures look the same everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": False,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "fewcal",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[Any]:
    """Matplotlib with these settings, for the length of a `with` block."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need matplotlib; install it with `pip install 'fewcal[plots]'`") from error
    with matplotlib.rc_context(_STYLE):
        yield matplotlib


def save(figure: Any, stem: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem.svg`, `stem.pdf` and `stem.png`; the same figure gives the same bytes."""
    out = []
    for kind in formats:
        if kind not in FORMATS:
            raise InputError(f"format {kind!r} is unknown; use {', '.join(FORMATS)}")
        path = Path(f"{stem}.{kind}")
        with atomic_path(path) as temporary:
            temporary.write_bytes(_bytes(figure, kind))
        out.append(path)
    return out


def svg_bytes(figure: Any) -> bytes:
    """The figure as SVG."""
    return _bytes(figure, "svg")


def _bytes(figure: Any, kind: str) -> bytes:
    # Dates and versions would make every file differ from the last.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def _drawn(function: Callable[P, Any]) -> Callable[P, Any]:
    """Draw in this style, and settle the layout once: every saving would move it a little further."""

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Any:
        with style():
            figure = function(*args, **kwargs)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure

    return styled


def _figure(width: float, height: float, **axes: Any) -> tuple[Any, Any]:
    """A figure and its axes, by no global state: nothing stays open and threads do not meet."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**axes)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _percent(values: Any) -> np.ndarray:
    """Shares in per cent; what is unknown (None) becomes NaN and is not drawn."""
    return 100 * np.array([np.nan if v is None else v for v in values], float)


# ---- the paper's figures --------------------------------------------------------------------------------------------


@_drawn
def embedding_panels(panels: Mapping[str, Mapping[str, Any]], class_names: Sequence[str] = ()) -> Any:
    """Support, sampled and query points in the plane, a panel for each method (the paper's figures 1 and 4).

    A panel has `points (P, 2)`, `classes (P,)` and `kinds (P,)`, each kind "support" (+ in a black circle), "sample"
    (o, semi-transparent) or "query" (*), and maybe a `title`. The number beside a support point is its class.
    """
    figure, axes = _figure(PAGE, PAGE / 2 / max(len(panels), 1) * 2 + 0.5, ncols=len(panels), squeeze=False)
    for axis, (name, panel) in zip(axes[0], panels.items(), strict=True):
        points, classes = np.asarray(panel["points"], float), np.asarray(panel["classes"])
        kinds = np.asarray(panel["kinds"])
        for c in np.unique(classes):
            colour = _colour(int(c))
            x, y = points[(classes == c) & (kinds == "sample")].T
            axis.scatter(x, y, s=14, c=colour, alpha=0.25, linewidths=0, marker="o", zorder=1)
            x, y = points[(classes == c) & (kinds == "query")].T
            axis.scatter(x, y, s=34, c=colour, linewidths=0.3, edgecolors="white", marker="*", zorder=2)
            own = points[(classes == c) & (kinds == "support")]
            _support(axis, own, colour)
            _numbered(axis, own[:1], int(c))
        _map_axis(axis)
        axis.set_title(panel.get("title", name))
    marks = {"support": (r"$\oplus$", 9, 1.0), "sampled": ("o", 4.5, 0.35), "query": ("*", 8, 1.0)}
    _map_legend(figure, marks, class_names)
    return figure


@_drawn
def task_map(view: Mapping[str, Any], class_names: Sequence[str]) -> Any:
    """One task in the plane that its calibrated means span best: where calibration moved them, and what went wrong.

    `support (S, 2)` and `queries (Q, 2)` with their classes `labels (S,)` and `truth (Q,)`; `right (Q,)` tells which
    queries were answered rightly; `before (N, 2)` and `after (N, 2)` are the class means.
    """
    figure, axis = _figure(5.6, 4.4)
    support, queries = np.asarray(view["support"], float), np.asarray(view["queries"], float)
    labels, truth, right = np.asarray(view["labels"]), np.asarray(view["truth"]), np.asarray(view["right"], bool)
    before, after = np.asarray(view["before"], float), np.asarray(view["after"], float)
    for c in range(len(after)):
        colour = _colour(c)
        own, good = truth == c, right
        axis.scatter(*queries[own & good].T, s=34, c=colour, linewidths=0.3, edgecolors="white", marker="*", zorder=2)
        axis.scatter(*queries[own & ~good].T, s=22, c=colour, linewidths=1.2, marker="x", zorder=2)
        _support(axis, support[labels == c], colour)
        axis.annotate("", after[c], before[c], arrowprops={"arrowstyle": "->", "color": "black", "lw": 0.9}, zorder=4)
        axis.scatter(*after[c], s=60, c=colour, edgecolors="black", linewidths=1, marker="D", zorder=5)
    _numbered(axis, after, *range(len(after)))
    _map_axis(axis)
    marks = {
        "example": (r"$\oplus$", 9, 1.0),
        "calibrated mean": ("D", 5, 1.0),
        "query, right": ("*", 8, 1.0),
        "query, wrong": ("x", 5, 1.0),
    }
    _map_legend(figure, marks, class_names, 90)
    return figure


def _support(axis: Any, points: np.ndarray, colour: str) -> None:
    """The paper's mark of a support point: + in a black circle."""
    axis.scatter(*points.T, s=110, facecolors="white", edgecolors="black", linewidths=1.2, zorder=3)
    axis.scatter(*points.T, s=60, c=colour, linewidths=2, marker="+", zorder=4)


def _numbered(axis: Any, points: np.ndarray, *numbers: int) -> None:
    for (x, y), number in zip(points, numbers, strict=True):
        label = axis.annotate(str(number + 1), (x, y), (6, 5), textcoords="offset points", weight="bold", zorder=6)
        label.set_bbox({"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0})


def _map_axis(axis: Any) -> None:
    axis.set(xticks=[], yticks=[])
    axis.spines[["top", "right"]].set_visible(True)


def _map_legend(
    figure: Any, marks: Mapping[str, tuple[str, float, float]], class_names: Sequence[str], width: int = 105
) -> None:
    """What each mark means, each `(marker, size, alpha)`, and the numbers of the classes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", color="black", marker=marker, markersize=size, alpha=alpha, label=label)
        for label, (marker, size, alpha) in marks.items()
    ]
    names = textwrap.fill("; ".join(f"{i + 1}\u00a0{_short(n, 40)}" for i, n in enumerate(class_names)), width)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(marks), title=names or None, title_fontsize=8)


def _short(name: str, width: int = 22) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


@_drawn
def mean_curve(base_mean: Sequence[float], estimates: Mapping[str, Sequence[float]]) -> Any:
    """The estimate X' against the base mean in one dimension, the support point at 0 (the paper's figure 2, left)."""
    figure, axis = _figure(COLUMN, 2.5)
    for i, (name, values) in enumerate(estimates.items()):
        every = max(len(values) // 8, 1)
        axis.plot(
            base_mean, values, color=_colour(i), linestyle=LINES[i % len(LINES)], marker=MARKERS[i % len(MARKERS)],
            markevery=every, label=name,
        )  # fmt: skip
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set(xlabel="base mean μ₁ (support point at 0)", ylabel="estimate X′")
    axis.grid(True)
    axis.legend()
    return figure


@_drawn
def drifting_samples(clouds: Mapping[str, Mapping[str, Any]], support: Sequence[float]) -> Any:
    """Clouds of samples with their means (*) and the support point (+ in a circle) (the paper's figure 2, right)."""
    figure, axis = _figure(COLUMN, 2.9)
    for i, (name, cloud) in enumerate(clouds.items()):
        x, y = np.asarray(cloud["points"], float).T
        marker = MARKERS[i % len(MARKERS)]
        axis.scatter(x, y, s=10, c=_colour(i), alpha=0.35, linewidths=0, marker=marker, label=name)
        mean = np.asarray(cloud["mean"], float)
        axis.scatter(*mean, s=150, c=_colour(i), edgecolors="black", linewidths=0.7, marker="*", zorder=3)
    axis.scatter(*support, s=130, facecolors="white", edgecolors="black", linewidths=1.2, zorder=4)
    axis.scatter(*support, s=80, c="black", linewidths=1.8, marker="+", zorder=5)
    axis.set(xticks=[], yticks=[])
    axis.spines[["top", "right"]].set_visible(True)
    legend = figure.legend(loc="outside lower center", ncols=min(len(clouds), 5), columnspacing=1, handletextpad=0.2)
    for handle in legend.legend_handles:
        handle.set_alpha(1)
        handle.set_sizes([24])
    return figure


@_drawn
def accuracy_lines(
    x: Sequence[float],
    series: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]],
    *,
    xlabel: str,
    log: bool = False,
) -> Any:
    """Accuracy against a parameter: lines with bands, each series `(means, half-widths)` (figure 3, left; effect of k).

    A value of None is left out.
    """
    figure, axis = _figure(COLUMN, 2.5)
    for i, (name, (means, halves)) in enumerate(series.items()):
        y, half = _percent(means), _percent(halves)
        axis.plot(x, y, color=_colour(i), linestyle=LINES[i % len(LINES)], marker=MARKERS[i % 7], label=name)
        axis.fill_between(x, y - half, y + half, color=_colour(i), alpha=0.18, linewidth=0)
    if log:
        axis.set_xscale("log", base=10 if max(x) > 200 else 2)
        axis.set_xticks(list(x), _apart(x))
        axis.minorticks_off()
    axis.set(xlabel=xlabel, ylabel="accuracy %")
    axis.grid(True)
    axis.legend()
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


@_drawn
def heat_map(
    values: Sequence[Sequence[float | None]],
    columns: Sequence[float],
    rows: Sequence[float],
    *,
    xlabel: str,
    ylabel: str,
) -> Any:
    """Accuracy on a grid, `values[row][column]`; the best cell has a frame (the paper's figure 3, right)."""
    share = np.array([[np.nan if v is None else v for v in row] for row in values], float) * 100
    if share.shape != (len(rows), len(columns)):
        raise InputError(f"the heat map has {share.shape} values for {len(rows)} rows and {len(columns)} columns")
    figure, axis = _figure(COLUMN + 0.5, 0.36 * len(rows) + 0.9)
    image = axis.imshow(share, cmap="cividis", aspect="auto", origin="lower")
    for i, j in np.ndindex(*share.shape):
        if not math.isnan(share[i, j]):
            dark = np.dot(image.to_rgba(share[i, j])[:3], (0.3, 0.59, 0.11)) < 0.5
            axis.text(
                j, i, f"{share[i, j]:.1f}", ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
    if not np.isnan(share).all():
        i, j = np.unravel_index(np.nanargmax(share), share.shape)
        from matplotlib.patches import Rectangle

        axis.add_patch(Rectangle((j - 0.47, i - 0.46), 0.94, 0.92, fill=False, edgecolor="#D55E00", linewidth=2))
    axis.set_xticks(range(len(columns)), [f"{v:g}" for v in columns])
    axis.set_yticks(range(len(rows)), [f"{v:g}" for v in rows])
    axis.set(xlabel=xlabel, ylabel=ylabel)
    figure.colorbar(image, ax=axis, label="accuracy %", pad=0.02)
    return figure


@_drawn
def weight_histograms(panels: Mapping[str, Sequence[float]], marks: Mapping[str, float] | None = None) -> Any:
    """Histograms of weights, a panel for each setting, all on one logarithmic axis (the paper's figure 5).

    `marks` are values with a name, drawn as lines: what DC gives each base class.
    """
    data = {name: np.asarray(v, float) for name, v in panels.items()}
    every = np.concatenate([v[v > 0] for v in data.values()] + [np.array(list((marks or {}).values()) or [1e-3])])
    low, high = math.floor(2 * math.log10(every.min())) / 2, math.ceil(2 * math.log10(every.max())) / 2
    bins = np.logspace(low, max(high, low + 0.5), 40)
    columns = min(2, len(data))
    lines = -(-len(data) // columns)
    width = PAGE if columns > 1 else COLUMN
    figure, axes = _figure(width, 1.6 * lines + 0.5, nrows=lines, ncols=columns, sharex=True, squeeze=False)
    for axis in axes.flat[len(data) :]:
        axis.set_visible(False)
    for axis, (name, values) in zip(axes.flat, data.items(), strict=False):
        axis.hist(
            np.clip(values, bins[0], None),
            bins=bins,
            color=_colour(0),
            weights=np.full(len(values), 100 / max(len(values), 1)),
        )
        for i, (word, at) in enumerate((marks or {}).items()):
            axis.axvline(at, color=_colour(1), linestyle=LINES[1 + i], label=word)
        axis.set(xscale="log", title=name, ylabel="% of weights")
        axis.grid(True, axis="y")
        if marks:
            axis.legend()
    for axis in axes[-1]:
        axis.set_xlabel("share $w_i/(1+\\sum w)$ of a base class")
    return figure


# ---- figures of a run -----------------------------------------------------------------------------------------------


@_drawn
def accuracy_intervals(methods: Mapping[str, Mapping[str, float | None]]) -> Any:
    """Accuracy of each method: thick line for the interval over tasks, thin for that over classes.

    A method has `accuracy`, and maybe `ci95` (half-width) and `low`, `high` (over classes).
    """
    figure, axis = _figure(5.6, 0.34 * len(methods) + 0.9)
    for y, m in enumerate(methods.values()):
        mean = 100 * float(m["accuracy"] or 0.0)
        low, high, half = m.get("low"), m.get("high"), m.get("ci95")
        if low is not None and high is not None:
            axis.plot([100 * low, 100 * high], [y, y], color=_colour(y), linewidth=1)
        if half is not None:
            axis.plot([mean - 100 * half, mean + 100 * half], [y, y], color=_colour(y), linewidth=5, alpha=0.5)
        axis.plot(mean, y, color=_colour(y), marker=MARKERS[y % 7], markersize=6, linestyle="none")
        axis.annotate(f"{mean:.1f}", (mean, y), (0, 6), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(methods)), [_short(n, 34) for n in methods])
    axis.set_ylim(len(methods) - 0.4, -0.7)
    axis.set_xlabel("accuracy % (thick: 95% over tasks; thin: 95% over classes)")
    axis.grid(True, axis="x")
    return figure


@_drawn
def difference_forest(differences: Sequence[Mapping[str, Any]]) -> Any:
    """Paired differences a − b with their 95% intervals: `a`, `b`, `difference`, `ci95`. Filled where 0 is outside."""
    figure, axis = _figure(5.6, 0.3 * len(differences) + 0.9)
    for y, d in enumerate(differences):
        middle, half = 100 * d["difference"], 100 * (d["ci95"] or 0.0)
        clear = abs(middle) > half
        colour = "#555555" if not clear else _colour(0 if middle > 0 else 1)
        axis.plot([middle - half, middle + half], [y, y], color=colour, linewidth=1.6)
        marker = "o" if not clear else (">" if middle > 0 else "<")
        axis.plot(middle, y, marker=marker, markersize=6, color=colour, markerfacecolor=colour if clear else "white")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(differences)), [f"{_short(d['a'])} − {_short(d['b'])}" for d in differences])
    axis.set_ylim(len(differences) - 0.4, -0.6)
    axis.set_xlabel("difference in points, with 95% interval on the same tasks")
    axis.grid(True, axis="x")
    return figure


@_drawn
def reliability(bins: Mapping[str, Mapping[str, Sequence[float]]]) -> Any:
    """How often answers were right, against the confidence they were given with; the diagonal is honest.

    Each method has `counts`, `correct` and `confidence` (sums) of equal bins. A bin with fewer than 1 in 1000 of the
    answers is left out.
    """
    figure, axis = _figure(4.2, 3.6)
    axis.plot([0, 100], [0, 100], color="#777777", linewidth=0.9, linestyle=":")
    for i, (name, b) in enumerate(bins.items()):
        counts = np.asarray(b["counts"], float)
        kept = counts > counts.sum() / 1000
        x = 100 * np.asarray(b["confidence"], float)[kept] / counts[kept]
        y = 100 * np.asarray(b["correct"], float)[kept] / counts[kept]
        axis.plot(x, y, color=_colour(i), linestyle=LINES[i % 7], marker=MARKERS[i % 7], label=_short(name))
    axis.set(xlabel="confidence %", ylabel="right answers %", xlim=(0, 102), ylim=(0, 102))
    axis.grid(True)
    axis.legend(loc="upper left")
    return figure


@_drawn
def task_distribution(accuracies: Mapping[str, np.ndarray], levels: int = 20) -> Any:
    """How accuracies are spread over tasks, a row for each method, with the mean as a line."""
    lowest = min((float(np.min(a)) for a in accuracies.values()), default=0.0)
    edges = np.linspace(math.floor(20 * lowest) / 20 - 1e-9, 1 + 1e-9, levels + 1) * 100
    figure, axes = _figure(
        5.6, 0.62 * len(accuracies) + 0.8, nrows=max(len(accuracies), 1), sharex=True, sharey=True, squeeze=False
    )
    for i, (axis, (name, values)) in enumerate(zip(axes[:, 0], accuracies.items(), strict=False)):
        share = np.full(len(values), 100 / max(len(values), 1))
        axis.hist(100 * np.asarray(values), bins=edges, weights=share, color=_colour(i), alpha=0.75)
        axis.axvline(100 * float(np.mean(values)), color="black", linewidth=1.2)
        axis.set_ylabel(_short(name, 34), rotation=0, ha="right", va="center")
        axis.yaxis.set_ticks([])
    axes[-1, 0].set_xlabel("accuracy of a task % (line: mean; height: share of the tasks)")
    return figure
