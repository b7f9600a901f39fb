"""Searches: spaces, objective, pruning, the choice beside the default, novel classes opened once."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FixedTrial, TrialState

from fewcal import FewShotClassifier
from fewcal._utils.parameters import parameters_of
from fewcal.bank import SpaceKey
from fewcal.errors import FewcalError, FewcalWarning, FileFormatError, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSplit
from fewcal.heads.linear import LinearHead
from fewcal.methods import GDC, HGDC
from fewcal.methods.ncm import NearestCentroid
from fewcal.params import GDCParams
from fewcal.presets import describe_preset, get_preset, list_presets, save_preset
from fewcal.tuning import SPACES, Search, Space, Tuning, load_settings, make_objective, tune
from fewcal.tuning.search import PROTOCOLS
from fewcal.tuning.selection import Finalist, NovelRecord, Score, choose
from fewcal.tuning.spaces import SHRINKAGE, suggest_parameter
from small_features import feature_set, split
from small_search import QUICK, quick

GDC_SEARCH = dataclasses.replace(QUICK, space="gdc", head="closed_form", trials=3)
PAPER = Search("paper", "paper/mini", "closed_form", trials=6, tasks=8, query=5, final_tasks=8)
TASKS = Protocol(5, 1, 5, 20, 0, "val")


class Opposite(NearestCentroid):
    """Answers with the class that is farthest away."""

    name = "opposite"

    def fit(self, batch: Any) -> LinearHead:
        head = super().fit(batch)
        return LinearHead(-head.weight, -head.bias)


def suggest_toy(trial: Any, classes: int) -> Any:
    kind = trial.suggest_categorical("kind", ["near", "far", "refused"])
    if kind == "refused":
        raise InputError("these features are refused")
    return NearestCentroid() if kind == "near" else Opposite()


TOY = Space("toy", "good and bad", suggest_toy)


def run_trials(kinds: list[str], pruner: Any, tasks: int = 40) -> Any:
    """A study of the toy space with these trials."""
    objective = make_objective(feature_set(), TOY, dataclasses.replace(TASKS, tasks=tasks), interval=20)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for kind in kinds:
        study.enqueue_trial({"kind": kind})
    study.optimize(objective, n_trials=len(kinds))
    return study


class TestSpaces:
    @pytest.mark.parametrize("dataset", SHRINKAGE)
    def test_ranges_of_the_paper_are_those_of_appendix_e(self, dataset: str) -> None:
        trial = optuna.create_study().ask()
        SPACES[f"paper/{dataset}"].method(trial, 65)
        wide = dataset in ("mini", "cub")
        expected = {
            "beta": np.arange(0, 10.01, 0.25),
            "m": np.arange(0, 3.01, 0.25),
            "k": np.arange(2, 65, 2),
            "n": np.arange(100, 1001, 50),
            "alpha1": np.arange(0, 10_001, 1000) if wide else np.arange(0, 1001, 100),
            "alpha2_ratio": [0, 0.1, 1, 10, 100] if wide else np.arange(0, 1001, 100),
        }
        assert set(trial.distributions) == set(expected)
        for name, d in trial.distributions.items():
            grid = d.choices if hasattr(d, "choices") else np.arange(d.low, d.high + d.step / 2, d.step)
            np.testing.assert_allclose(grid, expected[name])

    @pytest.mark.parametrize("name", [n for n in list_presets() if n.startswith("paper/") and n.endswith("shot")])
    def test_published_setting_is_a_point_of_its_space(self, name: str) -> None:
        space = SPACES[name.rpartition("/")[0]]
        method = space.method(FixedTrial(get_preset(name).as_dict()), 64)
        assert isinstance(method, GDC)
        assert method.params == get_preset(name)

    @pytest.mark.parametrize("name", list(SPACES))
    @settings(max_examples=15, deadline=None)
    @given(seed=st.integers(0, 2**31), classes=st.integers(2, 300))
    def test_point_of_a_space_is_valid_and_found_again_in_the_study(self, name: str, seed: int, classes: int) -> None:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        trial = study.ask()
        method = SPACES[name].method(trial, classes)
        assert int(method.settings.get("k", 1)) <= classes
        study.tell(trial, 0.5)
        assert SPACES[name].method(study.trials[0], classes).settings == method.settings

    @pytest.mark.parametrize("declared", [HGDC.accepts, parameters_of(GDCParams)])
    def test_search_range_lies_within_what_is_accepted(self, declared: Any) -> None:
        for name, parameter in declared.items():
            if parameter.search is None:
                with pytest.raises(InputError, match="declares no search range"):
                    suggest_parameter(FixedTrial({}), name, parameter)
            else:
                for value in (parameter.search.low, parameter.search.high):
                    parameter.checked(name, int(value) if parameter.integer else value)

    def test_hgdc_space_begins_with_the_default_and_holds_every_parameter(self) -> None:
        space = SPACES["hgdc"]
        trial = FixedTrial(dict(space.first))
        assert space.method(trial, 10).settings == HGDC().settings
        named = {name.removesuffix(" auto") for name in space.first}
        assert named == set(HGDC().settings) == {n for n in FewShotClassifier().get_params() if n in HGDC.accepts}

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"space": "paper/cubs"}, "did you mean 'paper/cub'"),
            ({"space": "gdc", "head": "svm"}, "head 'svm' is unknown"),
            ({"space": "hgdc", "head": "sgd"}, "space 'hgdc' has no heads"),
            ({"protocol": "mine"}, "protocol 'mine' is unknown"),
            ({"trials": 0}, "trials=0 must be an integer"),
            ({"tasks": 2.5}, "tasks=2.5"),
            ({"final_tasks": True}, "final_tasks=True"),
            ({"shot": 0}, "shot"),
        ],
    )
    def test_search_out_of_range_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            Search(**changes)

    @pytest.mark.parametrize(
        ("protocol", "lift", "space", "trials"),
        [("default", 0.0, "hgdc", 100), ("paper", 0.0, "paper/mini", 1000), ("paper", -9.0, "paper/dogs", 1000)],
    )
    def test_space_follows_from_protocol_and_sign_of_features(
        self, protocol: str, lift: float, space: str, trials: int
    ) -> None:
        base = feature_set().split("base")
        shifted = FeatureSplit.from_arrays(np.abs(base.features) + lift, base.labels, base.classes)
        search = Search(protocol).for_features(dataclasses.replace(feature_set(), base=shifted))
        assert (search.space, search.trials) == (space, trials)


class TestObjective:
    def test_accuracy_is_that_of_evaluate_whatever_the_interval(self) -> None:
        method = GDC(get_preset("paper").with_changes(k=4, head="closed_form", beta=0.75))
        expected = evaluate({"gdc": method}, feature_set(), TASKS).accuracy("gdc")
        for interval in (4, 8, 60):
            objective = make_objective(feature_set(), "gdc", TASKS, interval=interval)
            np.testing.assert_array_equal(objective.accuracy(method), expected)
            np.testing.assert_array_equal(np.concatenate(list(objective._run(method, interval))), expected)

    def test_hopeless_trial_is_pruned_and_good_one_is_not(self) -> None:
        study = run_trials(["near", "far", "near"], optuna.pruners.WilcoxonPruner(p_threshold=0.05))
        near, far, again = study.trials
        assert [t.state for t in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]
        assert near.value == again.value
        assert near.value == pytest.approx(np.mean(list(near.intermediate_values.values())))
        assert len(far.intermediate_values) < len(near.intermediate_values)

    def test_median_pruner_gets_the_mean_so_far(self) -> None:
        study = run_trials(["near"], optuna.pruners.MedianPruner())
        objective = make_objective(feature_set(), TOY, dataclasses.replace(TASKS, tasks=40))
        accuracy = objective.accuracy(NearestCentroid())
        assert study.trials[0].intermediate_values == pytest.approx({20: accuracy[:20].mean(), 40: accuracy.mean()})

    def test_refused_parameters_end_a_trial_and_not_the_search(self) -> None:
        study = run_trials(["refused", "near"], optuna.pruners.NopPruner())
        assert [t.state for t in study.trials] == [TrialState.PRUNED, TrialState.COMPLETE]
        assert study.trials[0].user_attrs["refused"] == "these features are refused"

    def test_spaces_of_the_bank_do_not_pile_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fewcal.tuning.objective.SPACES_BYTES", 1)
        objective = make_objective(feature_set(), "gdc", TASKS)
        for beta in (0.25, 0.5, 0.75, 1.5):
            objective.accuracy(GDC(get_preset("paper").with_changes(beta=beta, k=4, head="closed_form")))
        assert {key.beta for key in objective.bank.memo if isinstance(key, SpaceKey)} == {1.5}

    def test_wrong_interval_or_split_is_refused(self) -> None:
        with pytest.raises(InputError, match="interval=6 must be a multiple of 4"):
            make_objective(feature_set(), interval=6)
        with pytest.raises(InputError, match="outside the bank"):
            make_objective(feature_set(), protocol=dataclasses.replace(TASKS, split="base"))


def finalist(name: str, gain: float, error: float | None = 0.01) -> Finalist:
    return Finalist(name, HGDC(), 0.5, Score(0.5 + gain, gain, error, 100))


class TestChoice:
    @settings(max_examples=30, deadline=None)
    @given(seed=st.integers(0, 2**31), tasks=st.integers(2, 50))
    def test_score_is_that_of_paired_differences(self, seed: int, tasks: int) -> None:
        a, b, common = np.random.default_rng(seed).random((3, tasks))
        score, shifted = Score.paired(a, b), Score.paired(a + common, b + common)
        assert (shifted.gain, shifted.error) == pytest.approx((score.gain, score.error))
        assert Score.paired(b, a).gain == pytest.approx(-score.gain)
        assert score.error == pytest.approx(np.std(a - b, ddof=1) / math.sqrt(tasks))

    @pytest.mark.parametrize(
        ("gain", "error", "name"),
        [(0.03, 0.01, "trial 1"), (0.015, 0.01, "default"), (-0.1, 0.01, "default"), (0.5, None, "default")],
    )
    def test_default_is_kept_unless_significantly_below(self, gain: float, error: float | None, name: str) -> None:
        finalists = [finalist("default", 0, 0), finalist("trial 1", gain, error), finalist("trial 2", -0.2)]
        chosen, best = choose(finalists, Search(), None)
        assert (chosen.name, best.name) == (name, "trial 1")

    def test_novel_classes_decide_by_the_protocol_of_the_paper_alone(self) -> None:
        finalists = [finalist("default", 0, 0), finalist("trial 1", 0.1), finalist("trial 2", 0.2)]
        scores = {f.name: Score(a, 0, 0.01, 9) for f, a in zip(finalists, (0.9, 0.8, 0.7), strict=True)}
        record = NovelRecord("today", "", scores)
        assert choose(finalists, Search("paper"), record)[0].name == "trial 1"
        assert choose(finalists, Search(), record)[0].name == "trial 2"

    def test_record_of_another_trial_is_named_in_a_warning(self) -> None:
        record = NovelRecord("today", "", {"default": Score(0.5, 0, 0, 9), "trial 7": Score(0.6, 0.1, 0.01, 9)})
        with pytest.warns(FewcalWarning, match="opened for default, trial 7; after more trials trial 1 is"):
            choose([finalist("default", 0, 0), finalist("trial 1", 0.1)], Search(), record)


def strict(file: Path) -> Any:
    """JSON without NaN."""
    return json.loads(file.read_text(), parse_constant=pytest.fail)


class TestSearch:
    def test_hgdc_search_has_the_default_first_and_writes_settings(self, tmp_path: Path) -> None:
        result = quick(tmp_path, plots=True)
        first = result.finalists[0]
        assert (result.trials, first.name, first.method.settings) == (QUICK.trials, "default", HGDC().settings)
        assert first.searched == pytest.approx(result.study.trials[0].value)
        assert SPACES["hgdc"].method(result.study.trials[0], 8).settings == HGDC().settings
        for f in result.finalists:  # on tasks of their own, the same for all
            again = evaluate({"x": f.method}, feature_set(), QUICK.fresh_tasks).accuracy("x")
            assert f.fresh.accuracy == pytest.approx(again.mean())
        assert load_settings(result.file) == (result.chosen.method.name, result.chosen.method.settings)
        assert strict(result.file)["summary"].endswith(result.verdict)
        written = strict(tmp_path / "tuning.json")
        assert written["finalists"][0]["name"] == "default"
        assert written["identity"]["features"]["val"] == feature_set().split("val").fingerprint()
        assert {"fewcal", "optuna", "torch", "numpy"} == set(written["versions"])
        html = (tmp_path / "tuning.html").read_text()
        assert result.verdict in html
        assert all(f"accuracy of {words}" in html for words in ("each trial in order", "trials against each of"))

    def test_gdc_search_writes_the_best_trial_with_its_gap_to_the_default(self, tmp_path: Path) -> None:
        result = quick(tmp_path, GDC_SEARCH)
        preset = describe_preset(result.file)
        assert preset.params == result.best.method.params
        gap = f"{abs(100 * result.best.fresh.gain):.2f} points"
        assert gap in result.verdict
        assert result.verdict in preset.summary
        assert preset.provenance["chosen"] == result.chosen.name

    @pytest.mark.parametrize(
        ("gain", "error", "words"),
        [
            (0.03, 0.01, "Trial 1 of hgdc is chosen: 3.00 points above the default"),
            (0.01, 0.01, "The default is kept: trial 1, the best of hgdc, is 1.00 points above .*, not significantly"),
            (-0.02, 0.01, "The default is kept: .* 2.00 points below the default"),
        ],
    )
    def test_verdict_names_the_gap(self, tmp_path: Path, gain: float, error: float, words: str) -> None:
        finalists = [finalist("default", 0, 0), finalist("trial 1", gain, error)]
        chosen, best = choose(finalists, QUICK, None)
        result = Tuning(chosen, best, finalists, 8, 0, None, optuna.create_study(), tmp_path / "settings.json")
        assert re.search(words, result.verdict)

    def test_same_seed_gives_the_same_trials(self, tmp_path: Path) -> None:
        searches = {"a": QUICK, "b": QUICK, "c": dataclasses.replace(QUICK, seed=1)}
        a, b, c = ([t.params for t in quick(tmp_path / n, s).study.trials] for n, s in searches.items())
        assert a == b != c
        assert a[0] == c[0]  # the default

    def test_search_is_resumed_or_refused(self, tmp_path: Path) -> None:
        first = [t.params for t in quick(tmp_path).study.trials]
        with pytest.raises(InputError, match="already holds a study 'fewcal'; continue or join it with --resume"):
            quick(tmp_path)
        with pytest.raises(
            InputError, match=r"other settings or features: search\.shot is 1 in one and 5 in the other"
        ):
            quick(tmp_path, dataclasses.replace(QUICK, shot=5), resume=True)
        second = quick(tmp_path, dataclasses.replace(QUICK, trials=11), resume=True)
        assert second.trials == 11
        assert [t.params for t in second.study.trials[:8]] == first

    def test_one_base_class_suffices_for_gdc(self, tmp_path: Path) -> None:
        features = dataclasses.replace(feature_set(), base=split("b", 1, 20, 0))
        assert tune(features, GDC_SEARCH, out=tmp_path, plots=False).best.method.settings["k"] == 1

    @pytest.mark.parametrize(
        ("features", "search", "more", "message"),
        [
            (feature_set(), QUICK, {"workers": 0}, "workers=0"),
            (feature_set(), dataclasses.replace(QUICK, split="base"), {}, "outside the bank"),
            (feature_set(), dataclasses.replace(QUICK, way=99), {}, "99 ways need as many classes"),
            (dataclasses.replace(feature_set(), novel=None), QUICK, {"novel_tasks": 5}, "there is no split 'novel'"),
            (dataclasses.replace(feature_set(), novel=split("n", 3, 20, 2)), QUICK, {"novel_tasks": 5}, "5 ways need"),
            (feature_set(), QUICK, {"novel_tasks": -1}, "tasks is -1"),
            (feature_set(), QUICK, {"storage": "mysql://me:secret@host/x"}, r"'mysql://me:\*\*\*@host/x' must be"),
        ],
    )
    def test_impossible_search_is_refused_before_there_is_a_study(
        self, tmp_path: Path, features: Any, search: Search, more: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            tune(features, search, out=tmp_path / "s", **more)
        assert not (tmp_path / "s").exists()

    def test_search_without_a_complete_trial_names_why(self, tmp_path: Path) -> None:
        large = Space("large", "k above the bank", lambda trial, classes: GDC(GDCParams(k=classes + 1)))
        with pytest.raises(FewcalError, match=r"no trial of this study is complete \(the last was refused: k=9"):
            quick(tmp_path, dataclasses.replace(QUICK, space=large, trials=2))

    def test_novel_classes_are_opened_once_and_recorded(self, tmp_path: Path) -> None:
        result = quick(tmp_path, novel_tasks=12)
        assert result.novel is not None
        assert set(result.novel.scores) == {"default", result.best.name}
        expected = evaluate({"x": result.best.method}, feature_set(), Protocol(5, 1, 5, 12)).accuracy("x")
        assert result.novel.scores[result.best.name].accuracy == pytest.approx(expected.mean())
        assert quick(tmp_path, resume=True, novel_tasks=5).novel == result.novel  # with its date
        assert strict(tmp_path / "tuning.json")["novel"]["opened"] == result.novel.opened


class TestPaperProtocol:
    def test_search_begins_with_nothing_or_with_the_published_setting(self, tmp_path: Path) -> None:
        plain = quick(tmp_path / "a", dataclasses.replace(PAPER, trials=1))
        assert not any("fixed_params" in t.system_attrs for t in plain.study.trials)
        cub = dataclasses.replace(PAPER, space="paper/cub", trials=1, published=True)
        first = quick(tmp_path / "b", cub).study.trials[0].params
        assert first == {"beta": 0.5, "m": 1.0, "k": 4, "n": 750, "alpha1": 8000.0, "alpha2_ratio": 10.0}

    @pytest.mark.parametrize(
        ("space", "shot", "words"),
        [
            ("gdc", 1, "no setting for space 'gdc' and 1 shots"),
            ("paper/cub", 3, "no setting for space 'paper/cub' and 3 shots"),
            ("paper/dogs", 1, "'paper/dogs' does not hold the first trial"),  # k = 10 of 8 base classes
        ],
    )
    def test_published_setting_outside_the_space_is_refused(
        self, tmp_path: Path, space: str, shot: int, words: str
    ) -> None:
        with pytest.raises(InputError, match=words):
            quick(tmp_path, dataclasses.replace(PAPER, space=space, shot=shot, published=True))

    def test_best_of_three_on_novel_classes_is_taken_and_stays(self, tmp_path: Path) -> None:
        result = quick(tmp_path, PAPER, novel_tasks=8)
        trials = result.finalists[1:]
        assert result.novel is not None
        assert [f.searched for f in trials] == sorted((f.searched for f in trials), reverse=True)
        assert len(trials) == PROTOCOLS["paper"].finalists
        scores = {f.name: result.novel.scores[f.name].accuracy for f in trials}
        assert scores[result.chosen.name] == max(scores.values())
        assert "the best of three on novel classes" in describe_preset(result.file).provenance["selection"]
        done = result.study.trials[0]
        for m in (0.25, 0.5, 0.75):  # better on validation tasks than anything can be
            trial = optuna.trial.create_trial(
                params=done.params | {"m": m}, distributions=done.distributions, value=2.0
            )
            result.study.add_trial(trial)
        again = quick(tmp_path, dataclasses.replace(PAPER, trials=9), resume=True)
        assert again.chosen.method.settings == result.chosen.method.settings


class TestPresetFiles:
    def test_preset_file_is_read_wherever_a_preset_is(self, tmp_path: Path) -> None:
        from fewcal.estimators import GDCClassifier

        file = tmp_path / "mine.json"
        save_preset(file, GDCParams(k=3, head="closed_form"), "mine", {"seed": 7})
        assert describe_preset(str(file)).provenance == {"seed": 7}
        base, val = feature_set().split("base"), feature_set().split("val")
        for preset in (file, str(file)):
            model = GDCClassifier((base.features, base.labels), preset=preset)
            assert model.fit(val.features[:40], val.labels[:40]).params_.k == 3
        results = evaluate(f"gdc:{file}", feature_set(), Protocol(tasks=3, query=3))
        assert results.settings[f"gdc:{file}"]["k"] == 3

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", r"x\.json cannot be read .*it is no preset file"),
            ("[]", "is not a JSON object; it is no preset file"),
            ('{"format": "fewcal-settings"}', "not a preset of GDC; settings of HGDC are read by --set @"),
            ('{"format": "fewcal-preset", "version": 99}', "reads up to"),
            ('{"format": "fewcal-preset", "version": 1, "params": {}}', "missing"),
            (
                '{"format": "fewcal-preset", "version": 1, "params": {}, "summary": "", "provenance": {}}',
                "no value for",
            ),
        ],
    )
    def test_damaged_preset_file_is_refused(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(FileFormatError, match=message):
            get_preset(tmp_path / "x.json")
        with pytest.raises(FileFormatError, match=r"no settings file|not a settings file|cannot be read"):
            load_settings(tmp_path / "x.json")

    @pytest.mark.parametrize(("name", "value"), [("k", -1), ("head", "s" + 5000 * "[")])
    def test_preset_file_with_a_wrong_value_is_refused(self, tmp_path: Path, name: str, value: object) -> None:
        file = tmp_path / "x.json"
        save_preset(file, GDCParams(), "")
        content = json.loads(file.read_text())
        content["params"][name] = value
        file.write_text(json.dumps(content))
        with pytest.raises(FileFormatError, match=f"GDC refuses: {name}=") as refused:
            get_preset(file)
        assert len(str(refused.value)) < 1000

    def test_preset_file_without_a_name_of_json_or_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no preset file"):
            get_preset(tmp_path / "none.json")
        with pytest.raises(InputError, match=r"ends in \.json"):
            save_preset(tmp_path / "x.txt", GDCParams(), "")
