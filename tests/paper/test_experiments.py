"""Tables and figures of the paper: what is run, what is shown beside the paper's figures, what is decided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewcal.episodes import EpisodeSpec
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper import comparisons, curves, fidelity, points, shares
from fewcal.paper.blocks import Picture, Place, Section, Table, cited_cell, to_markdown
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import EXPERIMENTS, ITEMS, choose
from fewcal.paper.measure import Case, Measured, Runs
from fewcal.paper.published import citation, implied_distances, published, stand_in_note
from fewcal.paper.search import can_search
from fewcal.paper.sets import Features
from fewcal.paper.settings import ALONE, MATCHED, OTHERS, PRINTED, TUNED, TUNED_SGD, UNIT, paper_params
from fewcal.paper.tables import mean_text
from fewcal.presets import paper_rows

pytestmark = pytest.mark.usefixtures("two_epochs")

BUDGET = Budget(tasks=4, sampled=3, sgd=2, trials=3, trial_tasks=3, sgd_trials=2, sgd_trial_tasks=1)
HERE = Place("x", "dogs", 1, "here")


def small(seed: int = 0, relu: bool = True, base: int = 33) -> FeatureSet:
    return make_features(base=base, val=6, novel=6, rows=24, dim=8, relu=relu, seed=seed)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(Features("dogs-tiny", "dogs", small(base=12)), 1, BUDGET, Runs(tmp_path))


def compute(name: str, case: Case) -> tuple[dict[str, Any], Section]:
    """The record of an experiment, through JSON, and what is shown of it."""
    e = EXPERIMENTS[name]
    record = json.loads(json.dumps(e.compute(replace(case, shot=e.shots[0])), allow_nan=False, default=str))
    return record, e.show({HERE._replace(dataset=case.dataset): record})


def around(mean: float, count: int = 30, width: float = 0.01) -> np.ndarray:
    """Numbers with this mean, so close together that an interval has one side only."""
    return mean + width * np.cos(np.pi * np.arange(count))


# ---- citations ------------------------------------------------------------------------------------------------------


def test_citations_of_gdc_agree_with_table_7() -> None:
    for row in paper_rows():
        assert citation("table7", f"candidate {row.candidate}", row.dataset, row.shot) == (row.accuracy, row.plus_minus)
        if row.candidate == 1:
            tables = [citation(f"table{i}", "GDC", row.dataset, row.shot) for i in (1, 2, 3)]
            assert (row.accuracy, row.plus_minus) in tables
    assert citation("table2", "E3BM", "mini2cub", 1) is None
    assert cited_cell((84.57, 0.48)).mark == "cited"
    steps = [citation("table4", step, "dogs", 1) for step in comparisons.STEPS]
    gains = np.diff([found[0] for found in steps if found])
    assert np.abs(gains - [0.8, 0.7, 1.5, 0.4, 0.4]).max() < 0.07  # the printed gains are the rounded differences


def test_printed_weights_are_shares_of_k_base_classes() -> None:
    for at, values in published()["weights"]["GDC"].items():
        dataset, shot = at.split("/")
        assert values == sorted(values, reverse=True)
        assert sum(values) < 1
        assert len(values) == paper_params(dataset, int(shot)).k
    assert implied_distances("mini", 1)[0] == pytest.approx(1.4, abs=0.05)
    assert stand_in_note("meta-tiered", {"base": 17, "val": 6, "novel": 8})


def test_every_table_and_figure_of_the_paper_has_an_experiment() -> None:
    assert {item.experiment for item in ITEMS} - {""} == set(EXPERIMENTS) - {"comparison", "fidelity"}
    assert [i.name for i in ITEMS if i.name.startswith("Table")] == [f"Table {i}" for i in range(1, 10)]
    given = {"cub-a": "cub", "birds": "birds"}
    assert EXPERIMENTS["table1"].on(given) == ["cub-a"]
    assert EXPERIMENTS["table2"].on(given) == []
    assert EXPERIMENTS["table4"].on(given) == ["cub-a"]  # the first given, where none is the paper's
    assert EXPERIMENTS["comparison"].on(given) == ["birds"]
    assert EXPERIMENTS["fidelity"].on(given) == ["cub-a", "birds"]
    assert len(choose(["all"])) == len(EXPERIMENTS)


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_comparison_runs_gdc_as_printed_matched_and_tuned(case: Case) -> None:
    record, section = compute("table1", case)
    row = {"method": "gdc", **paper_params("dogs", 1).in_effect()}
    assert record["rows"]["as printed: GDC"]["settings"] == row
    assert record["rows"]["paper's scale: GDC"]["settings"] == row  # other features, the same method
    found = Measured.load(record)
    assert found.of(MATCHED.name, "GDC").tolist() != found.of(PRINTED.name, "GDC").tolist()
    assert [v.variant for v in section.verdicts] == [v.name for v in (PRINTED, MATCHED, UNIT, TUNED)]
    assert all(v.control for v in section.verdicts)
    assert f"{OTHERS.name}: HGDC" in record["rows"]
    text = "\n".join(map(to_markdown, section.blocks))
    assert "| GDC (paper) | 65.35 ± 0.61 † |" in text
    assert f"| GDC | {mean_text(found.of(PRINTED.name, 'GDC'))} |" in text
    assert f"features times {case.of.constant:.4g}" in text


def test_comparison_without_validation_classes_tunes_nothing(case: Case) -> None:
    features = case.of.features
    bare = replace(case, of=Features("birds", "birds", FeatureSet(features.base, None, features.novel)))
    record, _ = compute("comparison", bare)
    assert record["choices"] == {}
    assert record["notes"] == [can_search(bare)]
    assert not any(key.startswith(TUNED.name) for key in record["rows"])


def test_baseline_of_table_3_and_dc_on_meta_tiered() -> None:
    tuned = comparisons.dc("meta-tiered", 5)
    assert (tuned.k, tuned.alpha, tuned.beta, tuned.n) == (2, 900, 1, 750)
    assert comparisons.dc("cub", 5).alpha == DC().alpha
    words = EXPERIMENTS["table3"].show({}).blocks[-1]
    assert "20.00 ± 0.00 is chance" in str(words)


def test_ablation_has_the_values_of_table_4_and_nested_searches(case: Case) -> None:
    record, section = compute("table4", case)
    for label, setting in published()["table4 settings"].items():
        for variant in (PRINTED, MATCHED):
            used = record["rows"][f"{variant.name}: {label}"]["settings"]
            assert {name: used[name] for name in setting if name in used} == {
                name: value for name, value in setting.items() if name in used
            }
            assert used["head"] == "sgd"
    assert record["rows"][f"as printed: {comparisons.WITHOUT_K}"]["settings"]["k"] == 12
    for variant in (TUNED, TUNED_SGD):
        of = {step: record["choices"][f"{variant.name}: {step}"] for step in comparisons.STEPS}
        assert len({c["setting"]["beta"] for c in of.values()}) == 1
        assert (of["Top-k selection"]["setting"]["m"], of["Shrinkage with α1"]["setting"]["alpha2_ratio"]) == (0, 0)
        nested = [of[step]["accuracy"] for step in comparisons.STEPS[2:]]
        assert nested == sorted(nested)  # each begins with the choice of the one before
    assert {v.variant for v in section.verdicts} == {v.name for v in (PRINTED, MATCHED, TUNED, TUNED_SGD)}
    assert sum(v.claim.startswith("ablation: ") for v in section.verdicts) == 6 * 4


def test_distances_leave_equation_13_out_where_it_does_not_exist(case: Case) -> None:
    signed = Features("dogs-tiny", "dogs", small(base=12, relu=False))  # without features that are 0 in a whole class
    record, _ = compute("table5", replace(case, of=signed))
    used = record["rows"][f"as printed: {comparisons.MAHALANOBIS}"]["settings"]
    assert (used["mahalanobis_ridge"], used["mahalanobis_shift"], used["m"]) == (0.0, False, 1.0)
    assert record["rows"][f"as printed: {comparisons.SCALED}"]["settings"]["m"] == 1.5
    few_rows = Features("x", "dogs", make_features(base=12, val=0, novel=6, rows=17, dim=20, seed=0))
    plan = comparisons.distances(replace(case, of=few_rows))
    assert any("needs invertible class covariances" in note for note in plan.notes)
    labels = [row.label for row in plan.rows]
    assert comparisons.MAHALANOBIS not in labels
    assert comparisons.REPAIRED in labels


def test_candidates_have_the_rows_of_table_7(case: Case) -> None:
    record, section = compute("table7", case)
    for number in (1, 2, 3):
        used = record["rows"][f"as printed: candidate {number}"]["settings"]
        row = next(r for r in paper_rows() if (r.dataset, r.shot, r.candidate) == ("dogs", 1, number))
        assert {name: used[name] for name in row.parameters} == row.parameters
    assert record["choices"][UNIT.name]["setting"]["candidate"] in (1, 2, 3)
    assert "| candidate 3 (paper) | 64.91 ± 0.58 † |" in "\n".join(map(to_markdown, section.blocks))


# ---- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accuracy-n", "alphas", "effect-k"])
def test_curves_have_a_picture_and_verdicts_by_variant(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "ALPHAS", (0, 200, 600))
    monkeypatch.setattr(curves, "COUNTS", (2, 100, 750, 1000))
    record, section = compute(name, case)
    [picture] = [b for b in section.blocks if isinstance(b, Picture)]
    assert len(picture.figure.axes) >= 3
    assert {v.variant for v in section.verdicts} == set(record["settings"])
    assert "nan" not in picture.caption


def test_grid_of_figure_3_is_7_by_7_and_has_no_alpha2_without_alpha1(case: Case) -> None:
    plan = curves.alphas(case)
    cells = {row.label for row in plan.rows if row.variant == PRINTED.name} - {ALONE}
    assert len(cells) == 1 + 6 * 7


def test_claims_about_curves_hold_for_rows_that_are_made_so() -> None:
    claims = {c.text: c for c in (*curves._n_claims("dogs", 1), *curves._alpha_claims("dogs", 1))}
    made = {"n = 100": 0.5, "n = 750": 0.6, "n = 1000": 0.602}
    rows = {label: around(mean) for label, mean in made.items()}
    rows |= {curves._cell(a, r): around({0: 0.5, 200: 0.6}.get(a, 0.55)) for a in curves.ALPHAS for r in curves.ALPHAS}
    from fewcal.paper.statements import judge

    found = [judge(c, rows.__getitem__, "", "").holds for c in claims.values()]
    assert found == [True, True, True, True, None]


# ---- what the paper leaves open -------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", fidelity.PRESETS)
@pytest.mark.parametrize("shot", [1, 5])
def test_each_answer_changes_what_its_question_names(preset: str, shot: int) -> None:
    found = fidelity.answers(preset, "cub", shot, small())
    assert len({(a.question, a.at) for a, _ in found}) == len(found)
    for answer, params in found:
        start = fidelity.starting_point(preset, "cub", shot, answer.at).as_dict()
        changed = {k for k, v in params.as_dict().items() if v != start[k]}
        assert changed
        assert changed <= set(answer.change)
    questions = {a.question for a, _ in found}
    assert any("points a" in q for q in questions) == (shot == 5)  # one shot: per class and per point are the same
    signed = {a.question for a, _ in fidelity.answers(preset, "cub", shot, small(relu=False))}
    assert not any("β = 0" in q or q == fidelity.YEO_JOHNSON for q in signed)


def test_fidelity_study_compares_each_answer_with_its_preset(case: Case) -> None:
    of = Features("dogs-tiny", "dogs", small(base=31))
    record, section = compute("fidelity", replace(case, of=of))
    places = {key.partition(": ")[0] for key in record["rows"]}
    assert all(f"{place}: {fidelity.START}" in record["rows"] for place in places)
    assert f"{UNIT.name}: {fidelity.BASES_OF_DOGS}" in record["rows"]
    assert [v.variant for v in section.verdicts] == [UNIT.name, PRINTED.name] or {
        v.variant for v in section.verdicts
    } == {UNIT.name, PRINTED.name}
    own = replace(case, of=Features("x", "dogs", small(relu=False)), shot=5)
    much = paper_params("dogs", 5)
    assert 0 < fidelity.clipped_share(much, own) <= 1
    assert fidelity.clipped_share(much.with_changes(alpha2_ratio=0.0), own) == 0


# ---- weights, one dimension, off-diagonals --------------------------------------------------------------------------


def test_weights_are_compared_by_their_order_of_magnitude(case: Case) -> None:
    record, alone = compute("weights", replace(case, of=Features("m", "mini", case.of.features)))
    assert [v.holds for v in alone.verdicts] == [None, None]
    for variant in record["shares"]:
        for shot in shares.SHOTS:
            means = shares._means(record, variant, shot)
            assert (np.diff(means) <= 0).all()
            assert means.sum() < 1
    fewer = {v: {s: [x / 20 for x in xs] for s, xs in own.items()} for v, own in record["shares"].items()}
    both = {
        Place("m", "mini", 0, "miniImageNet"): record,
        Place("t", "meta-tiered", 0, "meta-tieredImageNet"): record | {"shares": fewer},
    }
    found = shares.show_weights(both)
    to_mini = [v for v in found.verdicts if "miniImageNet" in v.where]
    assert [v.found.split(" ")[0] for v in to_mini] == ["20"] * 6
    assert all(v.holds for v in to_mini)
    first = next(b for b in found.blocks if isinstance(b, Picture))
    assert [a.get_title().split(",")[0] for a in first.figure.axes[::2]] == ["meta-tieredImageNet", "miniImageNet"]


def test_mean_in_one_dimension_returns_with_a_high_m() -> None:
    found = shares.mean_curve()
    mu = np.array(found["base_mean"])
    assert np.allclose(found["estimates"]["DC"], mu / 2)
    assert np.allclose(found["estimates"]["GDC, m = 0"], mu / 3)  # w = 1/(1 + d⁰) = ½
    assert np.allclose(found["estimates"]["GDC, m = 1"], mu / (2 + mu**2))
    [verdict] = shares.show_mean_curve({HERE: found}).verdicts
    assert verdict.holds is True


def test_off_diagonal_ratio_is_that_of_the_distribution_and_not_of_few_rows(case: Case) -> None:
    x = np.random.default_rng(0).normal(size=(300, 30)) @ np.linalg.cholesky(0.5 * np.eye(30) + 0.5).T
    assert shares.off_diagonal_ratios(x) == pytest.approx((0.5, 0.5), abs=0.06)
    record, section = compute("off-diagonal", case)
    for found in record["ratios"].values():
        assert [len(v) for v in found.values()] == [12, 12, 4]  # base classes, base classes, tasks
    assert len(section.verdicts) == 6


# ---- points ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plane() -> dict[str, Any]:
    row = paper_params("mini", 1).with_changes(n=8, k=3)
    features = small(base=8)
    methods: dict[str, tuple[DC | GDC, FeatureSet]] = {
        "DC": (DC(n=8), features),
        "GDC, as printed": (GDC(row), features),
    }
    found = points.tsne_data(methods, spec=EpisodeSpec(3, 1, 4), shown=5, scored=3, iterations=250)
    back: dict[str, Any] = json.loads(json.dumps(found))
    return back


def test_points_of_figures_1_and_4_are_support_samples_and_queries(plane: dict[str, Any]) -> None:
    for task in plane["tasks"]:
        for panel in task["panels"].values():
            kinds = panel["kinds"]
            assert [kinds.count(k) for k in ("support", "sample", "query")] == [3, 15, 12]
            assert len(panel["points"]) == len(panel["classes"]) == len(kinds)
    section = points.show_tsne({Place("x", "mini", 0, "miniImageNet"): plane})
    assert [b.stem for b in section.blocks if isinstance(b, Picture)] == ["tsne-x-figure1", "tsne-x-figure4"]
    near = plane["nearness"] | {
        "DC": {k: around(v).tolist() for k, v in (("distance", 0.7), ("width", 2.8), ("support", 1.0))},
        "GDC, as printed": {k: around(v).tolist() for k, v in (("distance", 1.3), ("width", 0.9), ("support", 1.0))},
    }
    found = points.show_tsne({HERE: plane | {"nearness": near}}).verdicts
    assert [v.holds for v in found] == [False, True]


def test_energy_distance_is_least_for_the_class_itself() -> None:
    y = torch.randn(2, 300, 6, generator=torch.Generator().manual_seed(1))
    copies = y[:, :1].expand(-1, 50, -1)  # what no calibration gives
    itself, width = points.energy_distance(y[:, :150], y[:, 150:])
    assert (itself.abs() < 0.05).all()
    assert torch.allclose(width, torch.ones(2), atol=0.1)
    for other in (copies, 8 * y[:, :150], y[:, :150] + 2):
        assert points.energy_distance(other, y[:, 150:])[0].min() > 0.5


def test_samples_move_as_equation_8_has_it(case: Case) -> None:
    row = paper_params("dogs", 1).with_changes(n=6)
    record = points.drift(case, row=row, shown=6, measured=6, iterations=250)
    for moves in record["moves"].values():
        assert moves["shift"]["DC"] == pytest.approx([0.5] * 6, abs=1e-4)
        assert moves["shift"]["m = 0"] == pytest.approx([1 / 3] * 6, abs=1e-4)
        # With k = 1: s = w/(1 + w) = 1/(2 + d^m).
        assert moves["shift"]["m = 4"] == pytest.approx([1 / (2 + d**4) for d in moves["distance"]], abs=1e-3)
    section = points.show_drift({HERE: record})
    assert len(section.verdicts) == 9
    assert sum(isinstance(b, Picture) for b in section.blocks) == 1


def test_tables_in_markdown_mark_citations_and_escape_bars() -> None:
    lines = to_markdown(Table(["a"], [[1.23456], ["x|y"], [cited_cell((64.0, None))]])).splitlines()
    assert lines[2:] == ["| 1.235 |", "| x\\|y |", "| 64.00 † |"]
