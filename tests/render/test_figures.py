"""Figures: the same bytes for the same data, letters large enough, and the paper's facts in what is computed."""

from __future__ import annotations

import builtins
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from fewcal.episodes import EpisodeSpec
from fewcal.errors import InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.experiments import FIGURES
from fewcal.paper.experiments.drift import PAPER_DISTANCE, RESCALED, overlap
from fewcal.paper.experiments.mean_curve import mean_curve_data
from fewcal.paper.experiments.tsne import tsne_data
from fewcal.paper.experiments.weights import draw_weights, merge_weights, weights_data
from fewcal.paper.measured import quiet
from fewcal.paper.sampled import energy_distance
from fewcal.paper.settings import LBFGS, PRINTED, paper_params
from fewcal.render import figures
from fewcal.render.figures import save, style
from small_features import feature_set


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return feature_set()


ROW = paper_params("dogs", 1).with_changes(n=6, k=3)
SMALL: dict[str, dict[str, Any]] = {
    "tsne": {
        "methods": {"DC": DC(n=12), "GDC, as printed": GDC(PRINTED.params(ROW), cap_k=True)},
        "spec": EpisodeSpec(way=3, shot=2, query=4),
        "tasks": (0,),
        "shown": 10,
        "scored": 3,
        "iterations": 250,
    },
    "mean-curve": {},
    "drift": {"row": ROW, "shown": 6, "measured": 6, "iterations": 250, "powers": (0, 1, 4)},
    "accuracy-n": {"row": ROW, "tasks": 4, "counts": (1, 5)},
    "alphas": {"row": ROW, "tasks": 3, "alpha1": (0, 10), "ratios": (0, 1, 10)},
    "effect-k": {"row": ROW, "tasks": 3},
    "weights": {"tasks": 3},
}


@pytest.fixture(scope="module")
def data(features: FeatureSet) -> dict[str, dict[str, Any]]:
    return {name: FIGURES[name].compute(features, seed=3, **SMALL[name]) for name in FIGURES}


@pytest.fixture(scope="module")
def drawn(data: dict[str, dict[str, Any]]) -> dict[str, Figure]:
    return {name: FIGURES[name].draw(found) for name, found in data.items()}


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_of_the_paper_is_data_then_picture(
    name: str, data: dict[str, dict[str, Any]], drawn: dict[str, Figure], features: FeatureSet, tmp_path: Path
) -> None:
    figure = FIGURES[name]
    found = data[name]
    (path,) = figures.save(drawn[name], tmp_path / name, ["svg"])
    # Through JSON and back it is the same figure, to the byte.
    again = json.loads(json.dumps(found, allow_nan=False))
    assert path.read_bytes() == figures.svg_bytes(figure.draw(again))
    assert figure.compute(features, seed=3, **SMALL[name]) == found
    words = figure.say(found)
    assert len(words) > 40
    assert "nan" not in words
    width = float(re.search(rb'width="([0-9.]+)pt"', path.read_bytes())[1])  # type: ignore[index]
    assert width <= 72 * figures.PAGE


def test_letters_are_legible_in_a_column(drawn: dict[str, Figure]) -> None:
    from matplotlib.text import Text

    for name, figure in drawn.items():
        texts = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
        assert min(t.get_fontsize() for t in texts) >= 7, name


def test_points_of_a_task(data: dict[str, dict[str, Any]], features: FeatureSet) -> None:
    found = data["tsne"]
    (task,) = found["tasks"]
    for panel in task["panels"].values():
        kinds = panel["kinds"]
        assert (kinds.count("support"), kinds.count("sample"), kinds.count("query")) == (6, 30, 12)
        assert len(panel["points"]) == len(panel["classes"]) == len(kinds)
        assert [panel["classes"].count(c) for c in range(3)] == [2 + 10 + 4] * 3
    assert set(task["class_names"]) <= set(features.split("novel").classes)
    assert "n=6 a support point" in found["settings"]["GDC, as printed"]
    other = tsne_data(features, seed=4, **SMALL["tsne"])
    assert other["tasks"] != found["tasks"]


def test_the_energy_distance_does_not_reward_leaving_the_sampling_out(features: FeatureSet) -> None:
    """Strength 0 gives n copies of the support point; points of the class itself are far nearer."""
    y = torch.randn(2, 300, 6, generator=torch.Generator().manual_seed(1))
    copies = y[:, :1].expand(-1, 50, -1)
    itself, width = energy_distance(y[:, :150], y[:, 150:])
    alone, none = energy_distance(copies, y[:, 150:])
    wide, _ = energy_distance(8 * y[:, :150], y[:, 150:])
    shifted, _ = energy_distance(y[:, :150] + 2, y[:, 150:])
    assert (itself.abs() < 0.05).all()
    assert torch.allclose(width, torch.ones(2), atol=0.1)
    assert none.max() < 1e-3
    assert torch.minimum(torch.minimum(alone, wide), shifted).min() > 0.5
    assert torch.allclose(energy_distance(copies, y[:, 150:])[0], energy_distance(y[:, :1], y[:, 150:])[0], atol=1e-3)
    # In the record: a GDC without strength is as near as its support points alone.
    nothing = GDC(ROW.with_changes(strength=0.0))
    arguments = SMALL["tsne"] | {"methods": {"nothing": nothing}, "spec": EpisodeSpec(3, 1, 4)}
    near = tsne_data(features, seed=3, **arguments)["nearness"]["nothing"]
    assert near["distance"] == pytest.approx(near["support"], abs=1e-3)


def test_the_mean_in_one_dimension() -> None:
    found = mean_curve_data()
    mu = np.array(found["base_mean"])
    assert np.allclose(found["estimates"]["DC"], mu / 2)
    assert np.allclose(found["estimates"]["GDC, m = 0"], mu / 3)  # w = 1/(1 + d⁰) = ½
    assert np.allclose(found["estimates"]["GDC, m = 1"], mu / (2 + mu**2))
    high = np.array(found["estimates"]["GDC, m = 4"])
    assert high[-1] < 1e-3 < high.max()


def test_samples_move_less_as_m_rises(data: dict[str, dict[str, Any]]) -> None:
    found = data["drift"]
    assert list(found["panels"]) == ["as printed", "unit scale", RESCALED.name]
    for moves in found["moves"].values():
        assert moves["shift"]["DC"] == pytest.approx([0.5] * 6, abs=1e-4)
        assert moves["shift"]["m = 0"] == pytest.approx([1 / 3] * 6, abs=1e-4)
        # eq. 8 with k = 1: s = w/(1 + w) = 1/(2 + d^m)
        assert moves["shift"]["m = 4"] == pytest.approx([1 / (2 + d**4) for d in moves["distance"]], abs=1e-3)
        assert all(0 <= o <= 1 for o in moves["overlap"])
    assert np.median(found["moves"][RESCALED.name]["distance"]) == pytest.approx(PAPER_DISTANCE, rel=1e-3)
    assert all(len(c["points"]) == 6 for c in found["panels"]["as printed"]["clouds"].values())
    assert len(FIGURES) == len(SMALL)


def test_the_mass_that_two_normal_distributions_share() -> None:
    grid = torch.linspace(-60, 60, 200_001, dtype=torch.float64)

    def density(mean: float, sd: float) -> torch.Tensor:
        return torch.exp(-0.5 * ((grid - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))

    for one, other in (((0.0, 1.0), (1.5, 1.0)), ((0.0, 1.0), (2.0, 3.0)), ((5.0, 4.0), (0.0, 0.5)), ((1.0, 2.0),) * 2):
        area = float(torch.trapezoid(torch.minimum(density(*one), density(*other)), grid))
        found = overlap(*(torch.tensor([v]) for v in (*one, *other)))
        assert float(found) == pytest.approx(area, abs=1e-4)


def test_accuracies_are_those_of_an_evaluation(data: dict[str, dict[str, Any]], features: FeatureSet) -> None:
    method = GDC(ROW.with_changes(n=5))
    with quiet():
        results = evaluate({"x": method}, features, Protocol(tasks=4, seed=3, split="val"))
    found = data["accuracy-n"]["panels"]
    assert found["as printed"]["validation"][1] == pytest.approx(results.accuracy("x").tolist(), abs=1e-6)
    assert found[LBFGS.name] != found["as printed"]
    k = data["effect-k"]
    assert k["k"] == [1, 3, 4, 8]
    assert [len(curve) for panel in k["panels"].values() for curve in panel.values()] == [4] * 4


def test_without_alpha1_there_is_no_alpha2(data: dict[str, dict[str, Any]]) -> None:
    for grid in data["alphas"]["panels"].values():
        assert np.array(grid).shape == (3, 2, 3)
        assert grid[0][0] == grid[1][0] == grid[2][0]


def test_weights_are_shares(data: dict[str, dict[str, Any]]) -> None:
    found = data["weights"]
    assert [len(v) for v in found["panels"].values()] == [3 * 5 * 8, 3 * 25 * 8]  # k is brought down to 8 classes
    for means in found["means"].values():
        assert means == sorted(means, reverse=True)  # the nearest weighs most
        assert sum(means) < 1
    merged = merge_weights({"a": found, "b": found})
    assert list(merged["panels"]) == ["a, 1-shot", "a, 5-shot", "b, 1-shot", "b, 5-shot"]
    drawn = draw_weights(merged)
    assert [axis.get_title() for axis in drawn.axes] == list(merged["panels"])
    rows = [axis.get_subplotspec().rowspan.start for axis in drawn.axes]
    assert rows == [0, 0, 1, 1]  # the paper's 2 × 2: a feature set in each row
    ticks = [t.get_text() for t in drawn.axes[-1].get_xticklabels() if t.get_text()]
    assert all(float(t) > 0 for t in ticks)


def test_figures_need_base_classes(features: FeatureSet) -> None:
    with pytest.raises(InputError, match="need base classes"):
        weights_data(FeatureSet(None, None, features.novel))


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
