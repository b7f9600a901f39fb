"""Figures: the same bytes for the same data, letters large enough, and the paper's facts in what is computed."""

from __future__ import annotations

import builtins
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fewcal.errors import InputError
from fewcal.render import figures
from fewcal.render.figures import save, style


def paper_figures() -> dict[str, Figure]:
    """The paper's figures from plain data."""
    panel = {"points": [[0, 0], [1, 0], [0, 1]], "classes": [0, 0, 0], "kinds": ["support", "sample", "query"]}
    cloud = {"mean": [0, 0], "points": [[0, 1], [1, 0]]}
    line = {"novel": ([0.5, 0.6], [0.01, None])}
    return {
        "tsne": figures.embedding_panels({"DC": panel, "GDC": panel}, ["bird"]),
        "drift": figures.drifting_samples({"as printed": ({"DC": cloud, "m = 0": cloud}, [0, 0])}),
        "mean-curve": figures.mean_curve([0, 1], {"DC": [0, 0.5]}),
        "accuracy-n": figures.accuracy_panels([10, 750], {"as printed": line, "unit": line}, xlabel="n", log=True),
        "alphas": figures.heat_maps({"as printed": [[0.5, 0.6]]}, [0, 100], [0], xlabel="a", ylabel="b"),
        "weights": figures.weight_histograms({f"{d}, 1-shot": [0.1, 0.01] for d in "abcd"}, {"DC: 0.33": 0.33}),
    }


def test_figures_of_the_paper_fit_a_page_with_legible_letters(tmp_path: Path) -> None:
    from matplotlib.text import Text

    for name, figure in paper_figures().items():
        (path,) = figures.save(figure, tmp_path / name, ["svg"])
        assert path.read_bytes() == figures.svg_bytes(paper_figures()[name])
        width = float(re.search(rb'width="([0-9.]+)pt"', path.read_bytes())[1])  # type: ignore[index]
        assert width <= 72 * figures.PAGE
        texts = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
        assert min(t.get_fontsize() for t in texts) >= 7, name


def test_weight_histograms_stand_two_by_two() -> None:
    drawn = paper_figures()["weights"]
    assert [axis.get_subplotspec().rowspan.start for axis in drawn.axes] == [0, 0, 1, 1]
    ticks = [t.get_text() for t in drawn.axes[-1].get_xticklabels() if t.get_text()]
    assert all(float(t) > 0 for t in ticks)


# ---- figures of a run -----------------------------------------------------------------------------------------------


def test_figures_of_a_run() -> None:
    drawn = {
        "intervals": figures.accuracy_intervals(
            {"a": {"accuracy": 0.5, "ci95": 0.01, "low": 0.4, "high": 0.6}, "b": {"accuracy": 0.6, "ci95": None}}
        ),
        "forest": figures.difference_forest([("a", "b", 0.1, 0.01), ("a", "c", -0.1, 0.2), ("b", "c", -0.1, math.nan)]),
        "reliability": figures.reliability({"a": np.array([[0, 10], [0, 6], [0, 7]])}),
        "tasks": figures.task_distribution({"a": np.array([0.2, 0.4, 1.0]), "b" * 60: np.array([1.0, 1.0, 1.0])}),
    }
    for figure in drawn.values():
        assert figures.svg_bytes(figure) == figures.svg_bytes(figure)
    labels = [t.get_text() for t in drawn["forest"].axes[0].get_yticklabels()]
    assert labels == ["a − b", "a − c", "b − c"]
    # A bin without answers is not drawn; the other lies at 70% confidence and 60% right.
    line = drawn["reliability"].axes[0].lines[1]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([70.0], [60.0])


def test_lines_and_heat_maps_leave_out_what_is_unknown() -> None:
    lines = figures.accuracy_panels([1, 2, 3], {"": {"a": ([0.5, None, 0.6], [0.1, None, None])}}, xlabel="k")
    assert np.isnan(lines.axes[0].lines[0].get_ydata()).tolist() == [False, True, False]
    labels = {"xlabel": "x", "ylabel": "y"}
    some = figures.heat_maps({"": [[0.5, None], [0.6, 0.7]]}, [1, 2], [3, 4], **labels)
    assert sorted(t.get_text() for t in some.axes[0].texts) == ["50.0", "60.0", "70.0"]
    assert figures.heat_maps({"": [[None]]}, [1], [1], **labels).axes[0].texts[:] == []
    with pytest.raises(InputError, match="heat map has"):
        figures.heat_maps({"": [[0.5]]}, [1, 2], [3], **labels)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(
        w * (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4)
        for w, v in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


def test_colours_stand_out_from_white_and_from_each_other() -> None:
    assert all(1.05 / (luminance(c) + 0.05) > 2 for c in style.COLOURS)
    rgb = [np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)], float) for c in style.COLOURS]
    # Red-blind and green-blind sight, by Viénot, Brettel and Mollon 1999, roughly: red and green become one.
    for mix in ((0.56, 0.44, 0.0), (0.3, 0.7, 0.0)):
        seen = [np.array([np.dot(mix, c), c[2]]) for c in rgb]
        gaps = [math.dist(a, b) for i, a in enumerate(seen) for b in seen[:i]]
        assert min(gaps) > 12
    assert len(style.MARKERS) == len(style.LINES) == len(style.COLOURS)


def test_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = figures.mean_curve([0, 1], {"a": [0, 1]})
    with pytest.raises(InputError, match="format 'gif' is unknown"):
        figures.save(figure, tmp_path / "x", ["gif"])
    assert list(tmp_path.iterdir()) == []
    real = builtins.__import__

    def no_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(InputError, match=r"pip install 'fewcal\[plots\]'"):
        figures.mean_curve([0, 1], {"a": [0, 1]})


def test_saving_again_gives_the_same_bytes(tmp_path: Path) -> None:
    figure = figures.accuracy_intervals({"a": {"accuracy": 0.5, "ci95": 0.01}})
    first = figures.save(figure, tmp_path / "first")
    second = figures.save(figure, tmp_path / "second")
    assert [p.suffix for p in first] == [".svg", ".pdf", ".png"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    with Image.open(first[2]) as image:
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_dollars_in_names_are_no_formula(tmp_path: Path) -> None:
    with style.style():
        figure = Figure()
        figure.suptitle(r"$\undefinedmacro$")
        [path] = save(figure, tmp_path / "x", ["png"])
    assert path.stat().st_size > 0
