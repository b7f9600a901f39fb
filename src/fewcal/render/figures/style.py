"""Size, colours, markers and files of all figures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
COLUMN, PAGE = 3.35, 6.9  # inches
PHONE = 3.85  # what a page 400 pixels wide shows as it is: letters of 8 points are not made smaller there
# Okabe and Ito's colours without the yellow, which is too pale for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))
FORMATS = ("svg", "pdf", "png")

_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that figures look the same everywhere
    "text.parse_math": False,  # names of classes may hold dollars
    **dict.fromkeys(("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8),
    "axes.titlesize": 9,
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
# Dates and versions would make every file differ from the last.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib with these settings, for the length of a `with` block."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need matplotlib; install it with `pip install 'fewcal[plots]'`") from error
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def save(figure: Figure, stem: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
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


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG."""
    return _bytes(figure, "svg")


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
    return buffer.getvalue()


def drawn(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in this style, and settle the layout once: every saving would move it a little further."""

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            figure = function(*args, **kwargs)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure

    return styled


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure and its only axes."""
    figure, [[axis]] = new_grid(width, height)
    return figure, axis


def new_grid(
    width: float, height: float, rows: int = 1, columns: int = 1, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[list[Axes]]]:
    """A figure and its axes, row by row, by no global state: nothing stays open and threads do not meet."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).tolist()


def new_panels(count: int, height: float, extra: float, sharex: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """So many panels of a height, two in a row; a place that is left over is hidden."""
    columns = min(2, count)
    lines = -(-count // columns)
    figure, axes = new_grid(PAGE if columns > 1 else COLUMN, height * lines + extra, lines, columns, sharex=sharex)
    for axis in [axis for line in axes for axis in line][count:]:
        axis.set_visible(False)
    return figure, axes


def colour_of(i: int) -> str:
    """The colour of series i."""
    return COLOURS[i % len(COLOURS)]


def look_of(i: int) -> dict[str, Any]:
    """Colour, marker and line of series i, for `Axes.plot`."""
    return {"color": colour_of(i), "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}


def percent(values: Iterable[float | None]) -> np.ndarray:
    """Shares in per cent; what is unknown (None) becomes NaN and is not drawn."""
    return 100 * np.array([np.nan if v is None else v for v in values], float)


def short(name: str, width: int = 22) -> str:
    """A name that fits into a legend."""
    return name if len(name) <= width else name[: width - 1] + "…"
