"""The paper's setting as printed, its variants, and verdicts counted by group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fewcal.methods.hierarchical import HierarchicalGDC

from fewcal.evaluation.stats import paired
from fewcal.features.synthetic import make_features
from fewcal.methods.gdc import GDC
from fewcal.paper.blocks import Verdict, count_by_group, verdict_table
from fewcal.paper.budget import Budget, Case
from fewcal.paper.settings import (
    CLOSED_FORM,
    DEFAULT,
    GROUP_WORDS,
    GROUPS,
    LBFGS,
    PRINTED,
    UNIT_CLOSED,
    UNIT_SCALE,
    VARIANTS,
    paper_params,
)
from fewcal.presets import get_preset

USUAL = Budget.of(100)


def test_as_printed_is_the_published_row_and_nothing_else() -> None:
    for dataset, shot in (("mini", 5), ("dogs", 1)):
        row = get_preset(f"paper/{dataset}/{shot}shot")
        assert PRINTED.params(paper_params(dataset, shot)) == row
        assert (row.n, row.n_per, row.cov, row.head, row.center, row.l2) == (750, "point", "joint", "sgd", False, False)


def test_variants_change_what_their_names_say_and_no_more() -> None:
    row = paper_params("cub", 1)
    changed = {
        v.name: {k for k, value in v.params(row).as_dict().items() if value != row.as_dict()[k]}
        for v in (PRINTED, UNIT_SCALE, CLOSED_FORM, LBFGS, UNIT_CLOSED)
    }
    assert changed == {
        "as printed": set(),
        "unit scale": {"center", "l2"},
        "closed form": {"head"},
        "L-BFGS": {"head"},
        "unit scale, closed form": {"center", "l2", "head"},
    }
    assert DEFAULT.params(row) == get_preset("default")
    assert isinstance(DEFAULT.method(row), HierarchicalGDC)
    assert isinstance(PRINTED.method(row), GDC)
    assert [v.group for v in VARIANTS] == ["as printed", *["tuned or rescaled"] * 4, "default"]
    assert len({v.text(row) for v in VARIANTS}) == len(VARIANTS)


def test_verdicts_are_counted_by_group() -> None:
    verdicts = [
        Verdict("a", "x", "", True, "as printed"),
        Verdict("b", "x", "", False, "as printed"),
        Verdict("c", "x", "", None, "tuned or rescaled"),
        Verdict("d", "x", "", True, "default"),
    ]
    counted = count_by_group(verdicts)
    assert tuple(counted) == GROUPS == tuple(GROUP_WORDS)
    assert list(counted["as printed"].values()) == [1, 1, 0]
    assert list(counted["tuned or rescaled"].values()) == [0, 0, 1]
    assert list(counted["default"].values()) == [1, 0, 0]


def test_a_verdict_has_its_control_beside_it() -> None:
    a, b, control = (
        np.array(v, float) for v in ([0.6, 0.7, 0.8, 0.7, 0.7], [0.3, 0.4, 0.5, 0.5, 0.4], [0.9, 0.9, 0.9, 1.0, 0.9])
    )
    verdict = Verdict.of("a is above b", "x", paired(a, b), "default", paired(a, control))
    assert (verdict.holds, verdict.above_control) == (True, False)
    assert verdict.control.startswith("−22.00 ± ")
    table = verdict_table([verdict, Verdict("c", "x", "", None, "default")], "")
    assert table.header[-1] == "minus the control"
    assert [len(r) for r in table.rows] == [len(table.header)] * 2
    assert "minus the control" not in verdict_table([Verdict("c", "x", "", None, "default")], "").header


@pytest.mark.parametrize(
    ("dim", "shot", "tasks", "study"),
    [(640, 1, 40, 20), (640, 5, 8, 4), (170, 1, 80, 40), (640, 50, 4, 2), (10, 1, 100, 61)],
)
def test_tasks_of_sgd_follow_their_cost(dim: int, shot: int, tasks: int, study: int) -> None:
    features = make_features(base=3, val=2, novel=2, rows=4, dim=dim)
    case = Case(features, "x", shot, replace(USUAL, sgd=40, sgd_study=20))
    assert (case.sgd_tasks(), case.sgd_tasks(study=True)) == (tasks, study)
    whole = Case(features, "x", shot, replace(USUAL, sgd=100, sgd_study=70))
    assert (whole.sgd_tasks(), whole.sgd_tasks(study=True)) == (100, 70)
