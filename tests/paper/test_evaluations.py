"""What a run has evaluated: computed once, taken up after a kill, and never mistaken for something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fewcal.errors import FewcalError, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper.budget import Budget
from fewcal.paper.control import Redrawn
from fewcal.paper.evaluations import FILE, Evaluated, Evaluations
from fewcal.paper.experiments import choose
from fewcal.paper.run import run_experiments
from fewcal.paper.settings import gdc
from fewcal.params import GDCParams

pytestmark = pytest.mark.usefixtures("two_epochs")

BUDGET = Budget(tasks=4, sampled=3, sgd=1, study=3, trials=2, trial_tasks=3, sgd_trials=2, sgd_trial_tasks=1)


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return make_features(base=8, val=6, novel=6, rows=24, dim=8, seed=0)


class Counted(Evaluations):
    """Knows what it had to compute."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__(file)
        self.computed: list[str] = []

    def _compute(self, methods, *arguments):  # type: ignore[no-untyped-def]
        self.computed += methods
        return super()._compute(methods, *arguments)


def test_the_numbers_are_those_of_an_evaluation(features: FeatureSet) -> None:
    methods = {"gdc": make_method("gdc"), "dc": make_method("dc", n=20)}
    found = Evaluations().run(methods, features, Protocol(tasks=5))
    other = evaluate(methods, features, Protocol(tasks=5))
    assert {name: one.correct for name, one in found.items()} == {
        name: other.correct[name].sum(axis=1).tolist() for name in methods
    }
    assert {name: one.settings for name, one in found.items()} == other.settings


def test_the_same_is_computed_once_and_less_is_the_beginning_of_more(features: FeatureSet) -> None:
    made = Counted()
    three = made.run({"a": make_method("ncm"), "b": make_method("ncm")}, features, Protocol(tasks=3))
    assert made.computed == ["a"]
    assert three["a"] == three["b"]
    five = made.run({"c": make_method("ncm")}, features, Protocol(tasks=5))["c"]
    assert made.computed == ["a", "c"]
    assert made.run({"d": make_method("ncm")}, features, Protocol(tasks=2))["d"].correct == five.correct[:2]
    assert five.correct[:3] == three["a"].correct
    assert made.computed == ["a", "c"]


def test_whatever_changes_the_numbers_is_told_apart(features: FeatureSet) -> None:
    made = Counted()
    params = GDCParams(k=3, n=10, head="lbfgs")
    novel = Protocol(tasks=3)
    made.run({"gdc": gdc(params), "redrawn": Redrawn(params), "k": gdc(params.with_changes(k=2))}, features, novel)
    made.run({"val": gdc(params)}, features, Protocol(tasks=3, split="val"))
    made.run({"shot": gdc(params)}, features, Protocol(tasks=3, shot=5))
    made.run({"seed": gdc(params)}, features, Protocol(tasks=3, seed=1))
    fewer = make_features(base=6, val=6, novel=6, rows=24, dim=8, seed=0)
    made.run({"bases": gdc(params)}, FeatureSet(fewer.base, None, features.novel), novel)
    assert made.computed == ["gdc", "redrawn", "k", "val", "shot", "seed", "bases"]
    made.run({"again": gdc(params)}, features, novel)
    assert made.computed[-1] == "bases"


def test_a_file_keeps_them_and_torn_lines_count_for_nothing(features: FeatureSet, tmp_path: Path) -> None:
    file = tmp_path / FILE
    first = Evaluations(file).run({"a": make_method("ncm"), "b": make_method("lr")}, features, Protocol(tasks=4))
    whole = file.read_text()
    later = Counted(file)
    assert later.run({"a": make_method("ncm")}, features, Protocol(tasks=4))["a"].correct == first["a"].correct
    assert later.computed == []
    file.write_text(whole[: len(whole) - 30] + '\n{"key": "x"}\nno json\n')
    torn = Counted(file)
    again = torn.run({"a": make_method("ncm"), "b": make_method("lr")}, features, Protocol(tasks=4))
    assert torn.computed == ["b"]
    assert again["b"].correct == first["b"].correct
    mended = Counted(file)
    mended.run({"b": make_method("lr")}, features, Protocol(tasks=4))
    assert mended.computed == []


def test_a_file_that_cannot_be_written_gets_one_line(features: FeatureSet, tmp_path: Path) -> None:
    with pytest.raises(FewcalError, match="make room and --resume"):
        Evaluations(tmp_path).run({"a": make_method("ncm")}, features, Protocol(tasks=2))


def test_a_bank_needs_base_classes_and_is_made_once(features: FeatureSet) -> None:
    made = Evaluations()
    assert made.bank(features) is made.bank(features)
    without = FeatureSet(None, None, features.novel)
    with pytest.raises(InputError, match="need base classes"):
        made.bank(without)
    with pytest.raises(InputError, match="needs base classes"):
        made.run({"a": make_method("gdc")}, without, Protocol(tasks=2))
    few = Evaluated([3, 4, 5, 6], {}, 2.0).first(1)
    assert (few.correct, few.seconds) == ([3], 0.5)


def test_a_run_that_lost_a_record_does_not_compute_it_again(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_experiments(choose(["candidates"]), {"mini": features}, tmp_path, BUDGET)
    file = tmp_path / "results" / "candidates" / "mini-1shot.json"
    before = json.loads(file.read_text())
    assert before["control"].startswith("the support alone")
    file.unlink()

    def refuse(*arguments: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Evaluations, "_compute", refuse)
    run_experiments(choose(["candidates"]), {"mini": features}, tmp_path, BUDGET, resume=True)
    assert json.loads(file.read_text())["data"]["correct"] == before["data"]["correct"]
