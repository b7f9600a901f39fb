"""Accuracies from runs: computed once, exactly as many tasks, found again; searches, budgets and statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewcal.errors import InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper import measure as measuring
from fewcal.paper.budget import Budget
from fewcal.paper.measure import Case, Measured, Plan, Runs, measure
from fewcal.paper.search import can_search, search
from fewcal.paper.sets import Features, find_folders, nearest_distance, paper_distance
from fewcal.paper.settings import ALONE, MATCHED, PRINTED, UNIT, VARIANTS, gdc, paper_params
from fewcal.paper.statements import Claim, Verdict, count_verdicts, decided, difference, gain_text, judge, within
from fewcal.params import GDCParams
from fewcal.presets import get_preset, paper_rows

pytestmark = pytest.mark.usefixtures("two_epochs")

BUDGET = Budget(tasks=5, sampled=4, sgd=4, trials=4, trial_tasks=3, sgd_trials=2, sgd_trial_tasks=2)


@pytest.fixture(scope="module")
def of() -> Features:
    return Features("mini-a", "mini", make_features(base=8, val=6, novel=6, rows=24, dim=8, seed=0))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the methods that were computed."""
    names: list[str] = []

    def counted(methods: dict[str, Any], *arguments: Any, **more: Any) -> Any:
        names.extend(methods)
        return evaluate(methods, *arguments, **more)

    monkeypatch.setattr(measuring, "evaluate", counted)
    return names


class TestRuns:
    def test_accuracies_are_those_of_one_evaluation(self, of: Features, tmp_path: Path) -> None:
        methods = {"gdc": make_method("gdc", k=3, n=10), "dc": make_method("dc", n=20)}
        runs = Runs(tmp_path)
        runs.evaluate(methods, of, 1, 3)
        more = runs.evaluate(methods, of, 1, 5)  # adds tasks 3 and 4
        whole = evaluate({"gdc": make_method("gdc", k=3, n=10), "dc": make_method("dc", n=20)}, of.features,
                         Protocol(tasks=5))  # fmt: skip
        for name in methods:
            assert more[name].accuracy.tolist() == whole.accuracy(name).tolist()

    def test_what_a_run_has_is_not_computed_again(self, of: Features, tmp_path: Path, computed: list[str]) -> None:
        runs = Runs(tmp_path)
        five = runs.evaluate({"a": make_method("ncm"), "b": make_method("ncm")}, of, 1, 5)["b"].accuracy
        assert computed == ["a"]
        again = Runs(tmp_path)  # from the folder
        few = again.evaluate({"c": make_method("ncm")}, of, 1, 2)["c"].accuracy
        assert few.tolist() == five[:2].tolist()
        assert computed == ["a"]

    def test_what_changes_the_numbers_is_computed(self, of: Features, tmp_path: Path, computed: list[str]) -> None:
        runs, params = Runs(tmp_path), GDCParams(k=3, n=10, head="lbfgs")
        runs.evaluate({"gdc": gdc(params), "k": gdc(params.with_changes(k=2))}, of, 1, 3)
        runs.evaluate({"val": gdc(params)}, of, 1, 3, "val")
        runs.evaluate({"shot": gdc(params)}, of, 5, 3)
        runs.evaluate({"seed": gdc(params)}, of, 1, 3, seed=1)
        runs.evaluate({"scale": gdc(params)}, of.matched, 1, 3)
        assert computed == ["gdc", "k", "val", "shot", "seed", "scale"]

    def test_a_damaged_run_counts_for_nothing(self, of: Features, tmp_path: Path, computed: list[str]) -> None:
        runs = Runs(tmp_path)
        runs.evaluate({"a": make_method("ncm")}, of, 1, 3)
        next(tmp_path.rglob("results.npz")).write_bytes(b"torn")
        Runs(tmp_path).evaluate({"a": make_method("ncm")}, of, 1, 3)
        assert computed == ["a", "a"]


def test_rows_with_sgd_get_tasks_until_their_claim_is_decided(of: Features, tmp_path: Path) -> None:
    budget = Budget(tasks=5, sgd=8, first=2)
    plan = Plan(of)
    for label, params in (("GDC", paper_params("mini", 1)), (ALONE, paper_params("mini", 1).with_changes(n=9))):
        plan.add(PRINTED, label, gdc(params.with_changes(n=5) if label == "GDC" else params))
    plan.add(PRINTED, "NCM", make_method("ncm"))
    record = measure(Case(of, 1, budget, Runs(tmp_path)), plan, [Claim("x", ("GDC",), (ALONE,))])
    counts = {key: len(row["right"]) for key, row in record["rows"].items()}
    assert counts["as printed: NCM"] == 5
    assert counts["as printed: GDC"] == counts[f"as printed: {ALONE}"] == 8  # equal on average: undecided to the end
    assert budget.looks(1) == [2, 4, 8]
    assert budget.looks(5) == [2]
    assert Measured.load(record).has(UNIT.name, ["GDC"])  # falls back to the method as printed
    undecided = measure(Case(of, 1, budget, Runs(tmp_path)), plan, [])
    assert len(undecided["rows"]["as printed: GDC"]["right"]) == 2  # without a claim the first look


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_budget_with_tasks_has_them_for_every_method() -> None:
    asked = Budget.make(tasks=5000)
    assert (asked.tasks, asked.sampled, asked.sgd, asked.looks(5)) == (5000, 5000, 5000, [5000])
    assert Budget.make(tasks=5000, sgd=70).sgd == 70
    assert (Budget.make(trials=100).sgd_trials, Budget.make(trials=100).sgd_trial_tasks) == (100, 200)
    assert Budget.make(quick=True).tasks < Budget.make().tasks == Budget.make(device="cuda:0").sgd
    for wrong in ({"tasks": 0}, {"trials": -1}):
        with pytest.raises(InputError, match="use a whole number from 1"):
            Budget.make(**wrong)


# ---- searches -------------------------------------------------------------------------------------------------------


def test_search_takes_the_best_setting_on_validation_and_skips_refused_ones(of: Features, tmp_path: Path) -> None:
    tried: list[float] = []

    def make(setting: dict[str, float]) -> Any:
        tried.append(setting["k"])
        return make_method("gdc", preset=GDCParams(k=8, head="closed_form"), k=int(setting["k"]))

    case = Case(of, 1, BUDGET, Runs(tmp_path))
    found = search(case, {"k": (2, 4, 99)}, make, [{"k": 4}])
    accuracy = {
        k: float(case.runs.evaluate({"x": make({"k": k})}, of, 1, 3, "val")["x"].accuracy.mean())
        for k in set(tried) - {99}
    }
    assert 4 in tried  # where it begins
    assert found["accuracy"] == max(accuracy.values()) == accuracy[int(found["setting"]["k"])]
    assert search(case, {"k": (2, 4, 99)}, make, [{"k": 4}]) == found
    with pytest.raises(InputError, match="no setting of the search"):
        search(case, {"k": (99,)}, make)
    without = Features("x", "mini", FeatureSet(of.features.base, None, of.features.novel))
    assert "no validation classes" in can_search(Case(without, 1, BUDGET, case.runs))


# ---- statements -----------------------------------------------------------------------------------------------------


def gain(a: list[float], b: list[float], looks: int = 1) -> Any:
    return difference({"a": np.array(a), "b": np.array(b)}.__getitem__, ("a",), ("b",), looks)


def test_difference_is_decided_where_its_interval_has_one_sign_and_tasks_suffice() -> None:
    high, low = [0.6, 0.7, 0.8, 0.7, 0.7], [0.3, 0.4, 0.5, 0.5, 0.4]
    assert (decided(gain(high, low)), decided(gain(low, high))) == (True, False)
    assert decided(gain([0.9, 0.2, 0.9, 0.9, 0.7], high)) is None
    assert decided(gain([0.6, 0.7], [0.5, 0.6])) is None  # the same difference twice, by chance
    few = np.full(1000, 0.5)
    few[:9] = 0.6  # nine tasks of a thousand differ, all in one direction
    assert decided(gain(few.tolist(), [0.5] * 1000)) is None
    few[:30] = 0.6
    assert decided(gain(few.tolist(), [0.5] * 1000)) is True


def test_difference_after_several_looks_has_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    one, four = (gain(*(rng.normal(size=(2, 50)).tolist()), looks=looks) for looks in (1, 4))
    rng = np.random.default_rng(1)
    # Under the null hypothesis, the chance that any of four looks decides stays below 5%.
    wrong = 0
    for _ in range(400):
        a = rng.normal(size=400)
        zero = [0.0] * 400
        wrong += any(decided(gain(a[:n].tolist(), zero[:n], 4)) is not None for n in (50, 100, 200, 400))
    assert wrong < 0.05 * 400
    assert four.ci95 != one.ci95


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (0, "equal on 5000 tasks"),
        (30, "+0.0080 ± 0.0029 (5000 tasks)"),  # 30 answers of 375,000: next to nothing
        (2, "+0.00 ± 0.00 (5000 tasks)"),
        (5000, "+1.33 ± 0.00 (5000 tasks)"),
    ],
)
def test_gain_text_of_small_differences_has_the_digits_that_tasks_resolve(changed: int, text: str) -> None:
    plain = np.full(5000, 40 / 75)
    other = plain + np.where(np.arange(5000) < changed, 1 / 75, 0)
    assert gain_text(gain(other.tolist(), plain.tolist())) == text


def test_claim_of_equality_holds_inside_its_margin() -> None:
    noise = 0.001 * np.cos(np.pi * np.arange(40))
    rows = {"a": 0.5 + noise, "b": np.full(40, 0.5), "c": np.full(40, 0.47), "control": 0.6 + noise}
    for other, holds in (("b", True), ("c", False)):
        found = judge(Claim("level", ("a",), (other,), 0.01), rows.__getitem__, "here", "as printed", "control")
        assert (found.holds, found.above_control) == (holds, False)
        assert found.control.startswith("−10.00 ± ")
    assert within(0.5, 0.1, 0.55) is None
    assert (within(0.5, 0.1, 0.7), within(0.5, 0.1, 0.3)) == (True, False)


def test_verdicts_are_counted_by_variant() -> None:
    made = [Verdict("a", "x", v, "", holds) for v, holds in (("p", True), ("p", None), ("q", False))]
    assert count_verdicts(made) == {
        "p": {"holds": 1, "does not hold": 0, "undecided": 1},
        "q": {"holds": 0, "does not hold": 1, "undecided": 0},
    }


# ---- settings and feature sets --------------------------------------------------------------------------------------


def test_printed_variant_is_the_published_row_and_nothing_else() -> None:
    for row in paper_rows():
        params = PRINTED.params(paper_params(row.dataset, row.shot, "paper", row.candidate))
        assert params == get_preset(f"paper/{row.name}")
        assert {name: getattr(params, name) for name in row.parameters} == row.parameters
        assert (params.n, params.n_per, params.cov, params.head) == (750, "point", "joint", "sgd")
    assert paper_params("birds", 1) == get_preset("paper/mini/1shot")
    changed = UNIT.params(get_preset("authors"))
    assert (changed.center, changed.l2, changed.head, changed.psd) == (True, True, "closed_form", "clip")
    assert [v.name for v in VARIANTS.values() if v.matched] == [MATCHED.name]


@pytest.mark.parametrize("dataset", ["mini", "dogs", "meta-tiered", "birds"])
def test_matched_features_have_the_papers_distance(dataset: str) -> None:
    for signed in (False, True):
        own = Features("x", dataset, make_features(base=8, val=6, novel=6, rows=24, dim=8, relu=not signed, seed=1))
        assert nearest_distance(own.matched.features, dataset) == pytest.approx(paper_distance(dataset), rel=2e-3)


def test_folders_of_one_dataset_may_be_several(tmp_path: Path) -> None:
    features = make_features(base=3, val=0, novel=3, rows=4, dim=2)
    for name in ("dogs-a", "mini-weak", "mini-strong"):
        features.save(tmp_path / name)
    found = find_folders([tmp_path])
    assert [(f.name, f.dataset) for f in found] == [
        ("dogs-a", "dogs"),
        ("mini-strong", "mini"),
        ("mini-weak", "mini"),
    ]
    [birds] = find_folders([f"birds={tmp_path / 'mini-weak'}"])
    assert (birds.name, birds.dataset) == ("mini-weak", "birds")
    features.save(tmp_path / "other" / "dogs-a")
    for wrong, match in (
        ([tmp_path / "nothing"], "no folder"),
        ([tmp_path / "dogs-a", tmp_path / "other" / "dogs-a"], "same name"),
        ([tmp_path / "other" / ".." / ".." / "none"], "no folder"),
        ([f"a/b={tmp_path / 'mini-weak'}"], "cannot be the name"),
    ):
        with pytest.raises(InputError, match=match):
            find_folders(wrong)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no features"):
        find_folders([tmp_path / "empty"])
