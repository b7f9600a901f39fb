"""Searches: spaces, paired trials, pruning, selection, novel classes opened once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from fewcal.bank import SpaceKey
from fewcal.errors import FewcalError, FewcalWarning, FileFormatError, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSplit
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import describe_preset, get_preset, save_preset
from fewcal.tuning import Search, spaces, tune
from fewcal.tuning.protocols import PROTOCOLS, DefaultProtocol
from fewcal.tuning.pruning import steps
from fewcal.tuning.run import write_result
from fewcal.tuning.search import SearchData, run_trial
from fewcal.tuning.selection import Finalist, behind, choose, contenders, rerun_finalists, top
from fewcal.tuning.show import draw
from fewcal.tuning.spaces import Space, default_space, make_space, paper_space, space_names
from fewcal.tuning.start import first_trials, start_points
from fewcal.tuning.storage import count, open_storage
from fewcal.tuning.study import StudyPlace
from small_features import feature_set, split
from small_search import QUICK, in_memory, quick, runner

# ---- spaces ---------------------------------------------------------------------------------------------------------


def grid(axis: Any) -> list[float]:
    return list(axis.choices) if axis.choices else np.arange(axis.low, axis.high + axis.step / 2, axis.step).tolist()


@pytest.mark.parametrize(
    ("dataset", "alpha1", "ratio"),
    [
        ("mini", np.arange(0, 10_001, 1000), [0, 0.1, 1, 10, 100]),
        ("cub", np.arange(0, 10_001, 1000), [0, 0.1, 1, 10, 100]),
        ("dogs", np.arange(0, 1001, 100), np.arange(0, 1001, 100)),
        ("mini2cub", np.arange(0, 1001, 100), np.arange(0, 1001, 100)),
        ("meta-tiered", np.arange(0, 1001, 100), np.arange(0, 1001, 100)),
    ],
)
def test_the_papers_ranges_are_the_papers(dataset: str, alpha1: Any, ratio: Any) -> None:
    axes = {axis.name: grid(axis) for axis in paper_space(65, dataset).axes({})}
    expected = {
        "beta": np.arange(0, 10.01, 0.25),
        "m": np.arange(0, 3.01, 0.25),
        "k": np.arange(2, 65, 2),
        "n": np.arange(100, 1001, 50),
        "alpha1": alpha1,
        "alpha2_ratio": ratio,
    }
    assert list(axes) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(axes[name], values)


def test_the_papers_space_keeps_the_printed_equations_and_its_own_best_rows() -> None:
    space = paper_space(64, "mini")
    best = get_preset("paper/mini/5shot")
    assert space.params(space.values(best) or {}) == best
    assert get_preset("paper") == space.fixed


@pytest.mark.parametrize("name", space_names())
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), classes=st.integers(2, 300))
def test_every_point_of_a_space_is_valid_and_finds_its_way_back(name: str, seed: int, classes: int) -> None:
    space = make_space(name, classes, ("closed_form", "lbfgs") if name in ("default", "whitened") else ("sgd",))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    trial = study.ask()
    params = space.suggest(trial)
    assert 1 <= params.k <= classes
    assert space.params(trial.params) == params
    assert space.values(params) == pytest.approx(trial.params)
    assert space.distance(trial.params, trial.params) == 0


def test_the_default_space_holds_the_default_preset_and_distance_grows_with_difference() -> None:
    space = default_space(100)
    here = space.values(get_preset("whitened").with_changes(whiten=3.0))
    assert here is not None
    near, far = here | {"m": here["m"] + 0.25}, here | {"m": 0.0, "beta": 0.0, "l2": False}
    assert 0 < space.distance(here, near) < space.distance(here, far) <= 1
    assert space.values(get_preset("whitened")) is None  # "auto" is no point of a log scale
    assert space.values(get_preset("whitened").with_changes(whiten=3.0, beta=0.3)) is None


@pytest.mark.parametrize(
    ("name", "heads", "message"),
    [
        ("papers", ("sgd",), "did you mean"),
        ("paper/cubs", ("sgd",), "did you mean 'paper/cub'"),
        ("paper/cub", ("sgd", "lbfgs"), "one head"),
        ("default", ("svm",), "head 'svm' is unknown; use some of closed_form"),
    ],
)
def test_unknown_spaces_and_heads(name: str, heads: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_space(name, 10, heads)


def test_a_space_is_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spaces, "SPACES", dict(spaces.SPACES))

    @spaces.search_space("strengths", "how strongly base classes count", heads=("closed_form",))
    def strengths(n_classes: int, heads: Any) -> Space:
        return Space(
            "strengths", get_preset("whitened").with_changes(head=heads[0], k=min(4, n_classes)), lambda _: axes
        )

    axes = spaces.field_axes("strength")
    search = Search.for_features(feature_set(), space="strengths", trials=4, tasks=10, query=5, final_tasks=10)
    assert search.heads == ("closed_form",)
    result = quick(tmp_path / "s", search)
    assert {name for trial in result.study.trials for name in trial.params} == {"strength"}
    assert "strengths" in space_names()
    with pytest.raises(InputError, match="did you mean 'strengths'"):
        make_space("strength", 10, ("sgd",))


@pytest.mark.parametrize(
    ("protocol", "lift", "space", "heads"),
    [
        ("default", 0.0, "default", ("closed_form", "lbfgs")),
        ("paper", 0.0, "paper/mini", ("sgd",)),
        ("paper", -9.0, "paper/dogs", ("sgd",)),
    ],
)
def test_space_and_heads_that_are_not_given_follow_from_protocol_and_features(
    protocol: str, lift: float, space: str, heads: tuple[str, ...]
) -> None:
    features = feature_set()
    base = features.split("base")
    shifted = FeatureSplit.from_arrays(np.abs(base.features) + lift, base.labels, base.classes)
    search = Search.for_features(dataclasses.replace(features, base=shifted), protocol=protocol, shot=5)
    assert (search.space, search.heads, search.shot) == (space, heads, 5)


def test_a_protocol_is_one_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Best(DefaultProtocol):
        name = "best"
        summary = "the best trial of the search, without a second look"
        fresh_tasks = False

        def select(self, study: Any, space: Any, start: Any, final_runner: Any, most: int) -> Any:
            finalists = top(study, space, most)
            return finalists, finalists[0]

    monkeypatch.setitem(PROTOCOLS, "best", Best())
    result = quick(tmp_path / "s", dataclasses.replace(QUICK, protocol="best"))
    assert result.chosen.tuned == max(f.tuned or 0.0 for f in result.finalists)
    written = json.loads((tmp_path / "s" / "tuning.json").read_text())
    assert written["finalists"][0]["fresh tasks"] is None


# ---- trials ---------------------------------------------------------------------------------------------------------


def test_a_trial_has_the_accuracy_that_evaluate_gives() -> None:
    params = get_preset("whitened").with_changes(k=4, whiten=2.0)
    found = runner().accuracy(params)
    protocol = Protocol(5, 1, 5, 20, 0, "val")
    expected = evaluate({"gdc": GDC(params)}, feature_set(), protocol).accuracy("gdc")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("first", "then", "sizes"), [(None, None, [20]), (3, 10, [3, 10, 7]), (10, 5, [10, 5, 5]), (100, 10, [20])]
)
def test_chunks_change_nothing(first: int | None, then: int | None, sizes: list[int]) -> None:
    r, params = runner(), get_preset("whitened")
    parts = list(r.run(params, first, then))
    assert [len(p) for p in parts] == sizes
    np.testing.assert_array_equal(np.concatenate(parts), r.accuracy(params))


def test_spaces_of_the_bank_do_not_pile_up() -> None:
    r = runner()
    for beta in np.linspace(0.3, 1.7, 12):
        r.bank.forget_spaces(1)
        r.accuracy(get_preset("whitened").with_changes(beta=float(beta)))
    assert len({key.beta for key in r.bank.memo if isinstance(key, SpaceKey)}) == 1
    r.bank.forget_spaces()
    assert not [key for key in r.bank.memo if isinstance(key, SpaceKey)]


def test_the_newest_spaces_stay_while_there_is_room() -> None:
    bank = runner().bank
    for beta in (0.25, 0.5, 0.75):
        bank.transformed(beta=beta, l2=True, whiten=1.0)
    bank.transformed(beta=0.25, l2=True)  # used again
    size = bank.transformed(beta=0.25, l2=True).nbytes
    bank.forget_spaces(size + size // 2)
    kept = {key.beta for key in bank.memo if isinstance(key, SpaceKey)}
    assert 0.25 in kept
    assert 0.5 not in kept


def test_a_hopeless_trial_is_pruned_and_a_good_one_is_not() -> None:
    search = Search(trials=3, tasks=100, query=5, heads=("closed_form",))
    r = runner(search)
    space, study = search.make_space(len(r.bank)), in_memory(search)
    good = start_points(space, r.bank)[0]
    # A power of 0 on features with many zeros, and a pull that leaves nothing of the support.
    bad = good | {"beta": 0.0, "l2": False, "strength": 10.0, "m": 0.0, "k": 8, "trust": 1.0}
    for values in (good, bad, good):
        study.enqueue_trial(values)
        run_trial(study, study.ask(), space, r, search)
    states = [t.state for t in study.trials]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]
    assert study.trials[0].value == study.trials[2].value == pytest.approx(r.accuracy(space.params(good)).mean())
    assert len(study.trials[1].intermediate_values) == 15  # stopped at the first test
    assert len(study.trials[0].intermediate_values) == 25


def test_the_papers_pruner_sees_the_mean_so_far_from_the_hundredth_task_on() -> None:
    search = Search("paper", "paper/mini", ("lbfgs",), trials=1, tasks=120, query=5)
    pruner: Any = search.rules.pruning.pruner()
    assert (pruner._n_startup_trials, pruner._n_warmup_steps, pruner._interval_steps) == (100, 100, 10)
    r = runner(search)
    space, study = search.make_space(len(r.bank)), in_memory(search)
    values = space.values(get_preset("paper").with_changes(k=4, n=100))
    assert values is not None
    study.enqueue_trial(values)
    run_trial(study, study.ask(), space, r, search)
    seen = study.trials[0].intermediate_values
    accuracy = r.accuracy(space.params(values))
    assert list(seen) == [100, 110, 120]
    for step, value in seen.items():
        assert value == pytest.approx(accuracy[:step].mean())
    assert steps(accuracy, 10).mean() == pytest.approx(study.trials[0].value)


def test_parameters_that_the_features_refuse_end_a_trial_and_not_the_search() -> None:
    search = Search("paper", "paper/mini", ("closed_form",), trials=1, tasks=10, query=5)
    r = runner(search)
    space, study = search.make_space(len(r.bank)), in_memory(search)
    study.enqueue_trial({"beta": 1.0, "m": 1.0, "k": 2, "n": 100, "alpha1": 0.0, "alpha2_ratio": 0.0})
    assert run_trial(study, study.ask(), space, r, search) is None
    assert study.trials[0].state == TrialState.FAIL
    assert "alpha1" in study.trials[0].user_attrs["refused"]
    assert count(study).finished == 1


# ---- selection ------------------------------------------------------------------------------------------------------


def finalist(number: int, accuracy: np.ndarray, m: float) -> Finalist:
    values = default_space(20).values(get_preset("whitened").with_changes(whiten=3.0, m=m)) or {}
    return Finalist(number, values, default_space(20).params(values), 0.5, accuracy)


def test_the_one_standard_error_rule_takes_the_nearest_to_default_among_equals() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(400)
    best = finalist(1, base + 0.01, 5.0)
    equal = finalist(2, base + 0.01 + 0.002 * rng.standard_normal(400) - 0.00001, 3.25)
    worse = finalist(3, base, 3.0)
    space = default_space(20)
    simplest = worse.values
    assert choose([best, equal, worse], space, simplest) is equal
    assert choose([best, worse], space, simplest) is best
    assert choose([best, equal, worse], space, None) is best
    gap, error = behind(best.accuracy, worse.accuracy)
    assert gap == pytest.approx(0.01)
    assert error == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(InputError, match="no finalists"):
        choose([], space, None)


def test_contenders_are_within_a_standard_error_and_no_doubles() -> None:
    study = optuna.create_study(direction="maximize")
    rng = np.random.default_rng(1)
    shape = rng.random(20)
    for x, lift in ((0.0, 0.1), (0.0, 0.1), (1.0, 0.0999), (2.0, 0.0)):
        values = shape + lift + (0.001 * rng.standard_normal(20) if x == 1 else 0)
        study.add_trial(
            optuna.trial.create_trial(
                params={"x": x},
                distributions={"x": optuna.distributions.FloatDistribution(0, 2)},
                value=float(values.mean()),
                intermediate_values=dict(enumerate(values.tolist())),
            )
        )
    assert sorted(t.params["x"] for t in contenders(study, 10)) == [0.0, 1.0]
    assert len(contenders(study, 1)) == 1
    with pytest.raises(FewcalError, match="no trial of this study is complete"):
        contenders(optuna.create_study(), 3)


# ---- a whole search -------------------------------------------------------------------------------------------------


def test_a_search_writes_a_preset_with_its_provenance(tmp_path: Path) -> None:
    result = quick(tmp_path / "s", plots=True)
    preset = describe_preset(tmp_path / "s" / "preset.json")
    assert preset.params == result.params
    assert result.counts.finished == QUICK.trials
    came = preset.provenance
    assert came["search"]["seed"] == 0
    assert came["features"]["val"] == feature_set().split("val").fingerprint()
    assert {"fewcal", "optuna", "torch"} <= set(came["versions"])
    assert came["novel"] is None
    best = max(f.mean for f in result.finalists)
    assert best - result.chosen.mean <= 0.05
    assert any(f.number in (-1, 0) for f in result.finalists)  # the preset is among them
    written = {p.name for p in (tmp_path / "s" / "plots").iterdir()}
    assert {"optimisation-history.png", "slices.png"} <= written
    html = (tmp_path / "s" / "tuning.html").read_text()
    assert html.count("<img") == len(written)
    assert json.loads((tmp_path / "s" / "tuning.json").read_text())["finalists"]


def test_the_same_seed_gives_the_same_trials(tmp_path: Path) -> None:
    a, b = (quick(tmp_path / name) for name in "ab")
    assert [t.params for t in a.study.trials] == [t.params for t in b.study.trials]
    assert a.params == b.params
    other = quick(tmp_path / "c", Search(**(QUICK.to_dict() | {"seed": 1, "heads": ("closed_form",)})))
    assert [t.params for t in a.study.trials] != [t.params for t in other.study.trials]


def test_a_search_is_resumed_or_refused(tmp_path: Path) -> None:
    first = [t.params for t in quick(tmp_path / "s").study.trials]
    with pytest.raises(InputError, match="already holds a study 'fewcal'; continue or join it with --resume"):
        quick(tmp_path / "s")
    with pytest.raises(InputError, match=r"other settings or features: search\.shot is 1 in one and 5 in the other"):
        quick(tmp_path / "s", Search(**(QUICK.to_dict() | {"shot": 5, "heads": ("closed_form",)})), resume=True)
    more = Search(**(QUICK.to_dict() | {"trials": 11, "heads": ("closed_form",)}))
    second = quick(tmp_path / "s", more, resume=True)
    assert second.counts.finished == 11
    assert second.fresh == 3
    assert [t.params for t in second.study.trials[:8]] == first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "mine"}, "protocol 'mine' is unknown"),
        ({"trials": 0}, "trials=0 must be a whole number"),
        ({"tasks": 2.5}, "tasks=2.5"),
        ({"heads": ()}, "no head"),
        ({"shot": 0}, "shot"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Search(**changes)


def test_bad_material_and_places(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workers=0"):
        quick(tmp_path, workers=0)
    with pytest.raises(InputError, match="outside the bank"):
        quick(tmp_path, Search(split="base"))
    with pytest.raises(InputError, match="neither sqlite"):
        quick(tmp_path, storage="mysql://somewhere")
    with pytest.raises(FewcalError, match="cannot be opened"):
        quick(tmp_path, storage=f"sqlite:///{tmp_path}/no/such/folder/x.db")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="cannot write"):
        quick(file / "s")
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "study.journal").write_text("no json\nat all\n")
    with pytest.raises(InputError, match="damaged"):
        quick(torn)


def test_the_password_of_a_database_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(FewcalError) as told:
        open_storage(tmp_path, "postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(told.value)
    with pytest.raises(InputError) as told:
        open_storage(tmp_path, "mysql://me:secret@somewhere/none")
    assert "secret" not in str(told.value)


def test_novel_classes_are_opened_once_and_recorded(tmp_path: Path) -> None:
    result = quick(tmp_path / "s", novel_tasks=12)
    assert result.novel is not None
    name = f"trial {result.chosen.number}"
    assert set(result.novel.figures) == {"simpleshot", "lr", name}
    expected = evaluate({"gdc": GDC(result.params, cap_k=True)}, feature_set(), Protocol(5, 1, 5, 12)).accuracy("gdc")
    assert result.novel.figures[name].accuracy == pytest.approx(expected.mean())
    again = quick(tmp_path / "s", resume=True, novel_tasks=12)
    assert again.novel == result.novel  # with its date
    assert describe_preset(tmp_path / "s" / "preset.json").provenance["novel"]["opened"] == result.novel.opened
    with pytest.raises(InputError, match="no novel split"):
        tune(dataclasses.replace(feature_set(), novel=None), QUICK, out=tmp_path / "t", novel_tasks=5)


@pytest.mark.parametrize(
    ("features", "search", "novel_tasks", "message"),
    [
        (feature_set(), dataclasses.replace(QUICK, space="papers"), None, "did you mean"),
        (dataclasses.replace(feature_set(), novel=split("n", 3, 20, 2)), QUICK, 5, "5 ways need as many classes"),
        (feature_set(), QUICK, -1, "tasks is -1"),
    ],
)
def test_what_cannot_end_well_is_refused_before_there_is_a_study(
    tmp_path: Path, features: Any, search: Search, novel_tasks: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tune(features, search, out=tmp_path / "s", novel_tasks=novel_tasks)
    assert not (tmp_path / "s").exists()


def test_a_bank_of_one_class_can_be_tuned_for(tmp_path: Path) -> None:
    features = dataclasses.replace(feature_set(), base=split("b", 1, 20, 0))
    assert tune(features, QUICK, out=tmp_path / "s", plots=False).params.k == 1


def test_a_novel_record_of_another_trial_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    result = quick(tmp_path / "s", novel_tasks=6)
    assert result.novel is not None
    result.study.set_user_attr("novel", result.novel.to_dict() | {"chosen_trial": result.chosen.number + 1})
    with pytest.warns(FewcalWarning, match="are not its own"):
        quick(tmp_path / "s", resume=True)


def test_the_papers_search_begins_with_nothing_and_others_with_presets(tmp_path: Path) -> None:
    paper = Search("paper", "paper/mini", ("closed_form",), trials=2, tasks=4, query=5)
    found = quick(tmp_path / "paper", paper)
    assert not any("fixed_params" in t.system_attrs for t in found.study.trials)
    assert json.loads((tmp_path / "paper/tuning.json").read_text())["provenance"]["trials"]["enqueued"] == 0
    space, bank = paper.make_space(9), SearchData.of(feature_set(), paper).runner(paper, "cpu").bank
    usual = start_points(space, bank)
    assert first_trials(paper, space, bank) == []
    assert first_trials(dataclasses.replace(paper, enqueue="default"), space, bank) == usual != []
    assert first_trials(QUICK, space, bank) == usual
    assert first_trials(dataclasses.replace(QUICK, enqueue="none"), space, bank) == []


def test_a_search_can_begin_with_the_papers_setting(tmp_path: Path) -> None:
    search = Search("paper", "paper/cub", ("closed_form",), trials=2, tasks=4, query=5, enqueue="published")
    found = quick(tmp_path, search)
    first = found.study.trials[0].params
    assert first == {"beta": 0.5, "m": 1.0, "k": 4, "n": 750, "alpha1": 8000.0, "alpha2_ratio": 10.0}
    assert json.loads((tmp_path / "tuning.json").read_text())["provenance"]["trials"]["enqueued"] == 1
    # Joining says nothing about what the study began with.
    again = quick(tmp_path, dataclasses.replace(search, enqueue=None, trials=3), resume=True)
    assert len(again.study.trials) == 3


@pytest.mark.parametrize(
    ("space", "shot", "words"),
    [
        ("default", 1, "no setting for space 'default' and 1 shots"),
        ("paper/cub", 3, "no setting for space 'paper/cub' and 3 shots"),
        ("paper/dogs", 1, "paper/dogs/1shot does not lie in the space, which ends at k=8; use --enqueue none"),
    ],
)
def test_a_published_setting_that_the_space_does_not_hold_is_refused(space: str, shot: int, words: str) -> None:
    head = ("closed_form",)
    search = Search("paper", space, head, shot=shot, enqueue="published")
    with pytest.raises(InputError, match=words):
        first_trials(search, search.make_space(9), SearchData.of(feature_set(), QUICK).runner(QUICK, "cpu").bank)
    with pytest.raises(InputError, match="enqueue='mine' is unknown; use one of none, default, published"):
        Search(enqueue="mine")


def test_the_papers_protocol_takes_the_best_of_three_on_novel(tmp_path: Path) -> None:
    search = Search("paper", "paper/mini", ("closed_form",), trials=4, tasks=5, query=5)
    result = quick(tmp_path / "s", search, novel_tasks=5)
    assert result.novel is not None
    tuned = [f.tuned for f in result.finalists]
    assert len(tuned) == 3
    assert tuned == sorted(tuned, reverse=True)
    figures = {k: v.accuracy for k, v in result.novel.figures.items() if k.startswith("trial")}
    assert figures[f"trial {result.chosen.number}"] == max(figures.values())
    assert "best of three" in describe_preset(tmp_path / "s" / "preset.json").provenance["selection"]


def test_the_papers_choice_stands_when_later_trials_are_better_on_validation(tmp_path: Path) -> None:
    search = Search("paper", "paper/mini", ("closed_form",), trials=1, tasks=10, query=5)
    first = quick(tmp_path / "s", search, novel_tasks=10)
    study = first.study
    for number in range(3):  # better than anything can be
        params = study.trials[0].params | {"m": 0.25 * number}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=study.trials[0].distributions, value=2.0)
        )
    again = quick(tmp_path / "s", dataclasses.replace(search, trials=4), resume=True)
    assert again.params == first.params
    assert len(again.finalists) == 4
    written = json.loads((tmp_path / "s" / "tuning.json").read_text())
    assert {f["fresh tasks"] for f in written["finalists"]} == {None}  # there were none


def strict(file: Path) -> Any:
    """JSON as others read it, without NaN."""
    return json.loads(file.read_text(), parse_constant=pytest.fail)


def test_a_preset_that_is_no_complete_trial_has_no_accuracy_on_the_tasks_of_the_search(tmp_path: Path) -> None:
    r = runner()
    space = QUICK.make_space(len(r.bank))
    values = start_points(space, r.bank)[0]
    study = in_memory(QUICK)
    for other in (values, values | {"m": 1.0}):
        study.enqueue_trial(other)
        trial = study.ask()
        space.suggest(trial)
        trial.report(0.9, 0)
        study.tell(trial, *((None, TrialState.PRUNED) if other is values else (0.5,)))
    [preset] = [f for f in rerun_finalists(study, space, [values], r, QUICK.finalists) if f.number == -1]
    assert preset.tuned is None
    # And what is written of it, and of one novel task, which has no interval, can be read.
    result = quick(tmp_path / "s", novel_tasks=1)
    odd = dataclasses.replace(result, chosen=preset, finalists=[preset])
    write_result(StudyPlace(tmp_path / "s"), odd, QUICK, SearchData.of(feature_set(), QUICK))
    draw(tmp_path / "s", odd, QUICK)
    assert strict(tmp_path / "s" / "tuning.json")["finalists"][0]["search tasks"] is None
    assert strict(tmp_path / "s" / "preset.json")["provenance"]["accuracy"]["search tasks"] is None


# ---- preset files ---------------------------------------------------------------------------------------------------


def test_a_preset_file_is_read_wherever_a_preset_is(tmp_path: Path) -> None:
    from fewcal.estimators import GDCClassifier

    file = tmp_path / "mine.json"
    save_preset(file, GDCParams(k=3, head="closed_form"), "mine", {"seed": 7})
    assert describe_preset(str(file)).provenance == {"seed": 7}
    base, val = feature_set().split("base"), feature_set().split("val")
    for preset in (file, str(file)):
        fitted = GDCClassifier(bank=(base.features, base.labels), preset=preset).fit(val.features[:40], val.labels[:40])
        assert fitted.params_.k == 3
    results = evaluate(f"gdc:{file}", feature_set(), Protocol(tasks=3, query=3))
    assert results.settings[f"gdc:{file}"]["k"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"x\.json cannot be read .*it is no preset file"),
        ("[]", "is not a JSON object; it is no preset file"),
        ('{"format": "fewcal-preset", "version": 99}', "reads up to"),
        ('{"format": "fewcal-preset", "version": 1, "params": {}}', "missing"),
        ('{"format": "fewcal-preset", "version": 1, "params": {}, "summary": "", "provenance": {}}', "no value for"),
    ],
)
def test_damaged_preset_files(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(FileFormatError, match=message):
        get_preset(file)


def test_preset_files_with_wrong_values_or_none(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    save_preset(file, GDCParams(), "")
    content = json.loads(file.read_text())
    content["params"]["k"] = -1
    file.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="GDC refuses: k=-1"):
        get_preset(file)
    content["params"]["k"], content["params"]["head"] = 8, "s" + 5000 * "["
    file.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"GDC refuses: head='s\[") as refused:
        get_preset(file)
    assert len(str(refused.value)) < 1000
    with pytest.raises(InputError, match="no preset file"):
        get_preset(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"ends in \.json"):
        save_preset(tmp_path / "x.txt", GDCParams(), "")
