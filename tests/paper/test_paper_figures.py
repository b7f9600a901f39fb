"""Figures of the paper as experiments: verdicts by group, from records whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fewcal.episodes import EpisodeSpec
from fewcal.features.synthetic import make_features
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.blocks import Picture
from fewcal.paper.budget import WHOLE, Budget, Case
from fewcal.paper.experiments import EXPERIMENTS, drift, mean_curve, parameters, tsne, weights
from fewcal.paper.settings import GROUPS, PRINTED, UNIT_SCALE, paper_params

pytestmark = pytest.mark.usefixtures("two_epochs")

FIGURE_NAMES = ("tsne", "mean-curve", "drift", "weights", "accuracy-n", "alphas", "effect-k")
EFFORT = Budget(tasks=4, sampled=3, sgd=1, study=3, trials=2, trial_tasks=3)


def around(mean: float, count: int = 20, width: float = 0.01) -> list[float]:
    """Numbers with this mean, so close together that an interval has one side only."""
    return (mean + width * np.cos(np.pi * np.arange(count))).tolist()


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_every_figure_is_computed_as_printed_first(name: str) -> None:
    variants = EXPERIMENTS[name].variants
    assert variants[0] is PRINTED
    assert len({v.name for v in variants}) == len(variants)
    assert all(v.group in GROUPS for v in variants)


def test_figures_1_and_4_are_judged_by_the_energy_distance() -> None:
    def near(distance: float, width: float) -> dict[str, list[float]]:
        return {"distance": around(distance), "width": around(width), "support": around(1.0)}

    record: Any = {
        "nearness": {
            "DC": near(0.7, 2.8),
            "GDC, as printed": near(1.3, 4.9),
            "GDC, unit scale": near(0.7, 13.0),
            "GDC, unit scale, tuned": near(0.1, 0.9),
        },
        "shot": 1,
    }
    found = tsne.judge(record, "miniImageNet")
    assert [v.group for v in found] == ["as printed"] * 2 + ["tuned or rescaled"] * 4
    assert [v.holds for v in found] == [False, False, None, False, True, True]
    assert "energy distance 1.30, DC 0.70 (difference +0.60 ± 0.00); the support point alone: 1.00" in found[0].found
    assert found[0].where == "miniImageNet, 1-shot, as printed"


def test_figures_1_and_4_have_a_picture_and_a_setting_each() -> None:
    row = paper_params("mini", 1).with_changes(n=8, k=3)
    methods: dict[str, DC | GDC] = {"DC": DC(n=8), "GDC, as printed": GDC(row)}
    features = make_features(base=8, val=6, novel=6, rows=24, dim=8)
    spec = EpisodeSpec(3, 1, 4)
    record = tsne.tsne_data(features, methods=methods, spec=spec, shown=5, scored=3, iterations=250)
    section = tsne.show({("mini", WHOLE): record})
    pictures = [b for b in section.blocks if isinstance(b, Picture)]
    assert [p.stem for p in pictures] == ["tsne-mini-figure1", "tsne-mini-figure4"]
    assert all("α1=3000, α2=10·α1" in p.caption and "at their own scale" in p.caption for p in pictures)
    assert len(section.verdicts) == 2
    # All of the n points are scored, whatever is drawn.
    fewer = tsne.tsne_data(features, methods=methods, spec=spec, shown=2, scored=3, iterations=250)
    assert fewer["nearness"] == record["nearness"]


def test_figure_2_is_judged_left_and_right() -> None:
    (left,) = mean_curve.judge(mean_curve.mean_curve_data(), "")
    assert (left.holds, left.group) == (True, "as printed")
    far_m1 = {"DC": 0.5, "m = 0": 1 / 3, "m = 1": 0.29, "m = 4": 0.03}
    record: Any = {
        "moves": {
            PRINTED.name: _moves({**far_m1, "m = 1": 0.003, "m = 4": 0.0}, 0.01),
            UNIT_SCALE.name: _moves({**far_m1, "m = 4": 0.38}, 0.97),
            drift.RESCALED.name: _moves(far_m1, 0.5),
        }
    }
    found = drift.judge(record, "miniImageNet → CUB")
    assert [v.holds for v in found] == [True, False, False, False, True, True, True, True, None]
    assert [v.group for v in found] == ["as printed"] * 3 + ["tuned or rescaled"] * 6


def _moves(shift: dict[str, float], shared: float) -> dict[str, Any]:
    moved = {name: around(s, width=1e-4) for name, s in shift.items()}
    return {"shift": moved, "overlap": around(shared), "distance": around(1.0)}


def test_figure_3_is_judged_by_paired_tasks() -> None:
    # With each variant accuracy is 0.5 at n = 100 and 0.6 from 750 on; the last drops by two points at 1000.
    rise = [around(0.5), around(0.6), around(0.6)]
    record: Any = {
        "n": [100, 750, 1000],
        "panels": {v.name: {"novel": rise} for v in parameters.N_VARIANTS},
        "alone": {v.name: around(0.55) for v in parameters.N_VARIANTS},
        "shot": 1,
    }
    last = parameters.N_VARIANTS[-1].name
    record["panels"][last] = {"novel": [around(0.6), around(0.5), around(0.48)]}
    found = parameters.judge_accuracy_n(record, "Stanford Dogs")
    assert [v.holds for v in found] == [True, True, True, True, False, False]
    assert [v.above_control for v in found] == [True] * 4 + [False] * 2  # of n = 750

    # By α2/α1, α1: a rise up to α1 = 200, a drop to 600, and no change with α2.
    column = [around(0.5), around(0.6), around(0.55)]
    record = {
        "alpha1": [0, 200, 600],
        "ratios": [0, 100],
        "panels": {v.name: [column, column] for v in parameters.ALPHA_VARIANTS},
        "alone": {v.name: around(0.55) for v in parameters.ALPHA_VARIANTS},
        "shot": 1,
    }
    found = parameters.judge_alphas(record, "Stanford Dogs")
    assert [v.holds for v in found] == [True, True, None] * 2
    assert all(v.above_control for v in found)  # of α1 = 200
    del record["alone"]  # as records were before
    assert not any(v.control for v in parameters.judge_alphas(record, "Stanford Dogs"))
    assert {v.group for v in found} == {"as printed", "tuned or rescaled"}


def test_the_effect_of_k_is_judged_at_the_published_k() -> None:
    panel = {"m = 1.5": [around(0.5), around(0.6), around(0.5)], "m = 0 (equal weights)": [around(0.9)] * 3}
    record: Any = {
        "k": [1, 10, 70],
        "row_k": 10,
        "panels": {v.name: panel for v in parameters.K_VARIANTS},
        "without": {v.name: around(0.7) for v in parameters.K_VARIANTS},
        "alone": {v.name: around(0.65) for v in parameters.K_VARIANTS},
        "shot": 1,
    }
    found = parameters.judge_effect_k(record, "Stanford Dogs")
    assert [v.holds for v in found] == [True, False] * 2
    assert [v.above_control for v in found] == [False] * 4
    assert "k = 10 is above all 70 base classes" in found[0].claim


def test_figure_5_has_meta_tiered_above_mini_and_needs_both() -> None:
    features = make_features(base=12, val=6, novel=6, rows=20, dim=8)
    case = Case(features, "mini", WHOLE, EFFORT)
    mini = weights.weights(case)
    alone = weights.show_weights({("mini", WHOLE): mini})
    assert [v.holds for v in alone.verdicts] == [None, None]
    assert alone.verdicts[0].found == "no features of meta-tieredImageNet were given"
    small = {
        name: {**data, "panels": {k: [v / 20 for v in values] for k, values in data["panels"].items()}}
        for name, data in mini["variants"].items()
    }
    meta: Any = {"variants": small, "settings": mini["settings"]}
    both = weights.show_weights({("mini", WHOLE): mini, ("meta-tiered", WHOLE): meta})
    to_mini = both.verdicts[::2]
    assert [v.found.split(" ")[0] for v in to_mini] == ["20"] * 4
    assert [v.group for v in to_mini] == ["as printed"] * 2 + ["tuned or rescaled"] * 2
    printed, unit = (b for b in both.blocks if isinstance(b, Picture))
    titles = [axis.get_title() for axis in printed.figure.axes]
    assert titles == [f"{d}, {s}-shot" for d in ("meta-tieredImageNet", "miniImageNet") for s in (1, 5)]
    assert "m=3, k=30" in printed.caption
    assert "centred unit vectors" in unit.caption
