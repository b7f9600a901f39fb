"""evaluate: the same numbers for the same tasks, however the work is cut up."""

from __future__ import annotations

import gc
import json
import math
import pickle
import re
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fewcal._utils.parameters import parameters_of
from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import Episodes, EpisodeSpec, sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation import Protocol, Results, evaluate
from fewcal.evaluation import engine as engine_module
from fewcal.evaluation.engine import Engine, Job, run_block
from fewcal.evaluation.stats import expected_calibration_error
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.heads import HEADS
from fewcal.methods import GDC, METHODS, Method, TaskBatch, make_method, parse_methods
from fewcal.methods.ncm import NearestCentroid
from fewcal.params import GDCParams
from fewcal.presets import get_preset
from limits import PATIENCE
from small_features import Broken, feature_set, save_features, split

PROTOCOL = Protocol(way=4, shot=2, query=6, tasks=40, seed=3)
SAMPLED = get_preset("paper").with_changes(k=3, n=6, alpha1=0.5, alpha2_ratio=0.5, l2=True, head="lbfgs")


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return feature_set()


def some_methods() -> dict[str, Method]:
    return {
        "ncm": make_method("ncm"),
        "simpleshot": make_method("simpleshot"),
        "lr": make_method("lr"),
        "dc": make_method("dc", n=12),
        "gdc": make_method("gdc", "whitened"),
        "sampled": GDC(SAMPLED),
        "sgd": GDC(SAMPLED.with_changes(head="sgd")),
    }


@pytest.fixture(scope="module")
def reference(features: FeatureSet) -> Results:
    return evaluate(some_methods(), features, PROTOCOL)


def same(a: Results, b: Results) -> None:
    """Equal in every count of every task."""
    assert list(a.correct) == list(b.correct)
    np.testing.assert_array_equal(a.classes, b.classes)
    for name in a.correct:
        np.testing.assert_array_equal(a.correct[name], b.correct[name], err_msg=name)
        assert a.bins[name].counts.sum() == b.bins[name].counts.sum()


# ---- what must not matter -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_batch_size_does_not_change_a_task(
    features: FeatureSet, reference: Results, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(Engine, "batch_sizes", lambda self: dict.fromkeys(self.methods, size))
    same(evaluate(some_methods(), features, PROTOCOL), reference)


@pytest.mark.parametrize("size", [3, 39])
def test_block_size_does_not_change_a_task(
    features: FeatureSet, reference: Results, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", size)
    same(evaluate(some_methods(), features, PROTOCOL), reference)


def test_a_method_alone_gives_what_it_gives_in_company(features: FeatureSet, reference: Results) -> None:
    for name, method in some_methods().items():
        alone = evaluate({name: method}, features, PROTOCOL)
        np.testing.assert_array_equal(alone.correct[name], reference.correct[name], err_msg=name)


def test_order_of_methods_does_not_matter(features: FeatureSet, reference: Results) -> None:
    turned = evaluate(dict(reversed(some_methods().items())), features, PROTOCOL)
    for name in reference.correct:
        np.testing.assert_array_equal(turned.correct[name], reference.correct[name], err_msg=name)


def test_more_tasks_begin_with_the_same_tasks(features: FeatureSet, reference: Results) -> None:
    more = evaluate(some_methods(), features, Protocol(way=4, shot=2, query=6, tasks=55, seed=3))
    for name in reference.correct:
        np.testing.assert_array_equal(more.correct[name][:40], reference.correct[name], err_msg=name)


def test_worker_processes_give_the_same(
    features: FeatureSet, reference: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", 10)
    seen: list[tuple[int, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel = evaluate(
            some_methods(), features, PROTOCOL, n_jobs=2, progress=lambda done, of: seen.append((done, of))
        )
    same(parallel, reference)
    assert seen == [(done, 40) for done in range(0, 41, 10)]


def test_memory_mapped_features_are_taken_without_a_warning(features: FeatureSet, reference: Results, tmp_path) -> None:
    mapped = {}
    for name, part in features.splits().items():
        np.save(tmp_path / f"{name}.npy", part.features)
        rows = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        mapped[name] = FeatureSplit.from_arrays(rows, part.labels, part.classes)
        assert not mapped[name].features.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(evaluate(some_methods(), FeatureSet(**mapped), PROTOCOL), reference)


def test_features_from_a_folder_or_in_memory(features: FeatureSet, reference: Results, tmp_path) -> None:
    features.save(tmp_path)
    same(evaluate(some_methods(), tmp_path, PROTOCOL), reference)


# ---- what must matter -----------------------------------------------------------------------------------------------


def test_seed_and_split_choose_the_tasks(features: FeatureSet) -> None:
    ncm = ["ncm"]
    first = evaluate(ncm, features, PROTOCOL)
    other = evaluate(ncm, features, Protocol(way=4, shot=2, query=6, tasks=40, seed=4))
    val = evaluate(ncm, features, Protocol(way=4, shot=2, query=6, tasks=40, seed=3, split="val"))
    assert (first.classes != other.classes).any()
    assert first.class_names == [f"n{i}" for i in range(7)]
    assert val.class_names == [f"v{i}" for i in range(6)]
    assert val.classes.max() == 5
    assert not np.array_equal(val.accuracy("ncm"), first.accuracy("ncm"))


def test_without_replacement_each_row_is_used_once_in_a_pass(features: FeatureSet) -> None:
    # 20 rows a class are two hands of 2 + 6, so the first two tasks of a pass cannot share a row.
    protocol = Protocol(way=4, shot=2, query=6, tasks=30, seed=3, replacement=False)
    novel = features.split("novel")
    tasks = sample_episodes(novel.require_labels(), protocol.spec, range(30))
    rows = np.concatenate([tasks.support[:2].ravel(), tasks.query[:2].ravel()])
    assert len(set(rows.tolist())) == rows.size
    results = evaluate(["ncm"], features, protocol)
    np.testing.assert_array_equal(results.classes, tasks.classes)
    np.testing.assert_array_equal(results.correct["ncm"], by_hand(novel, tasks))
    assert not np.array_equal(
        results.correct["ncm"], evaluate(["ncm"], features, Protocol(4, 2, 6, 30, 3)).correct["ncm"]
    )


def by_hand(part: FeatureSplit, tasks: Episodes) -> np.ndarray:
    """Right answers of nearest centroid, from the definition."""
    out = np.zeros(tasks.classes.shape, int)
    for t in range(len(tasks)):
        means = part.features[tasks.support[t]].mean(axis=1)
        for way, rows in enumerate(tasks.query[t]):
            distance = np.linalg.norm(part.features[rows][:, None] - means, axis=2)
            out[t, way] = (distance.argmin(axis=1) == way).sum()
    return out


def test_counts_are_those_of_the_definition(features: FeatureSet, reference: Results) -> None:
    novel = features.split("novel")
    tasks = sample_episodes(novel.require_labels(), PROTOCOL.spec, range(40))
    right = by_hand(novel, tasks)
    np.testing.assert_array_equal(reference.correct["ncm"], right)
    np.testing.assert_allclose(reference.accuracy("ncm"), right.sum(axis=1) / 24)
    summary = reference.summary().methods["ncm"]
    for position, name in enumerate(novel.classes):
        asked = tasks.classes == position
        assert summary.per_class[name] == pytest.approx(right[asked].sum() / (6 * asked.sum()))


def test_two_heads_see_the_same_samples(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewcal.heads import calibrated, lbfgs, sgd

    made, seen = [], []

    def noted_augment(*args, _true=calibrated.augment):
        made.append(_true(*args)[0])
        return _true(*args)

    def noted_head(x, y, n_classes, *args, _true, **kwargs):
        seen.append(x)
        return _true(x, y, n_classes, *args, **kwargs)

    monkeypatch.setattr(calibrated, "augment", noted_augment)
    for module, head in ((lbfgs, "lbfgs_head"), (sgd, "sgd_head")):
        true = getattr(module, head)
        monkeypatch.setattr(module, head, lambda *a, _true=true, **k: noted_head(*a, _true=_true, **k))
    both = {"a": GDC(SAMPLED), "b": GDC(SAMPLED.with_changes(head="sgd"))}
    evaluate(both, features, Protocol(tasks=1, query=4))
    assert len(made) == 1
    assert len(seen) == 2
    assert seen[0] is seen[1]
    evaluate(both | {"c": GDC(SAMPLED.with_changes(alpha1=1.0))}, features, Protocol(tasks=1, query=4))
    assert len(made) == 3, "another covariance needs samples of its own"


# ---- fixed lists of tasks -------------------------------------------------------------------------------------------


def test_saved_tasks_give_the_drawn_result_and_can_be_cut(features: FeatureSet, reference: Results, tmp_path) -> None:
    labels = features.split("novel").require_labels()
    sample_episodes(labels, PROTOCOL.spec, range(40)).save(tmp_path / "tasks.npz")
    tasks = Episodes.load(tmp_path / "tasks.npz", labels)
    # The list brings its own shape: that of the protocol is replaced.
    from_list = evaluate(some_methods(), features, Protocol(tasks=40), episodes=tasks)
    same(from_list, reference)
    assert from_list.protocol == PROTOCOL
    assert from_list.identity == reference.identity
    cut = evaluate(["ncm"], features, Protocol(tasks=20), episodes=tasks)
    np.testing.assert_array_equal(cut.correct["ncm"], reference.correct["ncm"][:20])


def test_a_list_of_other_tasks_is_another_run(features: FeatureSet, reference: Results) -> None:
    labels = features.split("novel").require_labels()
    tasks = sample_episodes(labels, PROTOCOL.spec, range(100, 140))
    other = evaluate(["ncm"], features, PROTOCOL, episodes=tasks)
    assert other.identity["episodes"] is not None
    assert not np.array_equal(other.correct["ncm"], reference.correct["ncm"])


def test_lists_that_do_not_fit_are_refused(features: FeatureSet) -> None:
    tasks = sample_episodes(features.split("novel").require_labels(), PROTOCOL.spec, range(10))
    with pytest.raises(InputError, match="40 tasks were asked for, but the list has 10"):
        evaluate(["ncm"], features, PROTOCOL, episodes=tasks)
    with pytest.raises(InputError, match="drawn from other labels than those of split 'val'"):
        evaluate(["ncm"], features, Protocol(tasks=10, split="val"), episodes=tasks)


# ---- methods --------------------------------------------------------------------------------------------------------


def test_methods_without_a_bank_work_without_base(features: FeatureSet) -> None:
    bare = FeatureSet(novel=features.novel)
    free = [name for name, m in parse_methods("all").items() if not m.needs_bank]
    assert {"ncm", "lr", "cosine"} <= set(free)
    results = evaluate(free, bare, Protocol(tasks=10, query=4))
    assert set(results.correct) == set(free)
    with pytest.raises(InputError, match=r"method 'gdc' needs base classes, but the features have no base split"):
        evaluate(["ncm", "gdc"], bare, Protocol(tasks=10, query=4))


def test_tasks_from_base_itself(features: FeatureSet) -> None:
    results = evaluate(["ncm"], features, Protocol(tasks=10, query=4, split="base"))
    assert results.class_names[0] == "b0"
    with pytest.raises(InputError, match=r"method 'gdc' .* drawn from the base split itself"):
        evaluate(["gdc"], features, Protocol(tasks=10, query=4, split="base"))


def test_names_as_text_list_or_mapping(features: FeatureSet) -> None:
    short = Protocol(tasks=5, query=4)
    for methods in ("ncm,gdc:default", ["ncm", "gdc:default"]):
        assert list(evaluate(methods, features, short).correct) == ["ncm", "gdc:default"]
    with pytest.raises(InputError, match="did you mean 'gdc'"):
        evaluate(["gcd"], features, short)
    with pytest.raises(InputError, match="no methods were given"):
        evaluate({}, features, short)


def test_the_callers_methods_are_left_alone_and_travel_light(features: FeatureSet, tmp_path) -> None:
    methods = {"gdc": make_method("gdc", "whitened")}
    before = pickle.dumps(methods)
    first = evaluate(methods, features, PROTOCOL, out=tmp_path / "run")
    assert pickle.dumps(methods) == before, "a prepared bank would be shipped with every block"
    # The preset asks for more neighbours than there are base classes: the record has what was used.
    assert methods["gdc"].settings["k"] > 8
    assert first.settings["gdc"]["k"] == 8
    again = evaluate(methods, features, PROTOCOL, out=tmp_path / "run", resume=True)
    assert again.settings == first.settings
    same(again, first)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("cosine", {"scale": -3}, "scale=-3 is out of range; use a number from 1e-06 to 1e+06"),
        ("cosine", {"scale": 0.0}, "scale=0.0 is out of range"),
        ("cosine", {"scale": math.nan}, "scale=nan is out of range"),
        ("cosine", {"steps": -1}, "steps=-1 is out of range; use a number ≥ 0"),
        ("cosine", {"lr": 0.0}, "lr=0.0 is out of range; use a number ≥ 1e-30"),
        ("cosine", {"lr": math.inf}, "lr=inf must be finite"),
        *(
            (name, {"C": value}, f"C={value} is out of range")
            for name in ("lr", "lr-gauss", "lr_l2")
            for value in (0.0, -1)
        ),
        ("lr-gauss", {"beta": 11}, "beta=11 is out of range; use a number from -10 to 10"),
        ("dc", {"k": 0}, "k=0 is out of range; use a number ≥ 1"),
        ("dc", {"alpha": -0.1}, "alpha=-0.1 is out of range; use a number ≥ 0"),
        ("dc", {"beta": -10.5}, "beta=-10.5 is out of range"),
        ("dc", {"n": 0}, "n=0 is out of range; use a number ≥ 1"),
        ("dc", {"C": -1.0}, "C=-1.0 is out of range; use a number ≥ 1e-30"),
    ],
)
def test_parameters_of_methods_that_are_out_of_range(method: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"method {method!r}: {words}")):
        make_method(method, **settings)
    with pytest.raises(InputError, match=re.escape(words)):
        METHODS[method](**settings)


def test_every_number_that_a_method_or_a_head_takes_has_a_range() -> None:
    heads = {f"head {name}": parameters_of(cls) for name, cls in HEADS.items()}
    methods = {name: cls.accepts for name, cls in METHODS.items() if name != "gdc"}
    for name, accepted in (heads | methods | {"gdc": parameters_of(GDCParams)}).items():
        for key, one in accepted.items():
            assert one.choices or one.flag or one.low is not None or key == "head", f"{name} takes any {key}"
    for name, cls in METHODS.items():
        if name != "gdc":
            assert cls().settings.keys() == cls.accepts.keys(), f"{name} takes what it does not check"


def test_settings_of_methods_are_checked_by_name_and_kind() -> None:
    assert make_method("dc", k=4, alpha=1).settings["alpha"] == 1
    for settings, message in [
        ({"kk": 1}, "method 'dc' has no parameter 'kk'; did you mean 'k'"),
        ({"k": "two"}, "method 'dc': k='two' must be a whole number"),
        ({"k": 2.5}, "method 'dc': k=2.5 must be a whole number"),
        ({"alpha": True}, "method 'dc': alpha=True must be a number"),
    ]:
        with pytest.raises(InputError, match=message):
            make_method("dc", **settings)
    with pytest.raises(InputError, match="method 'ncm' has no parameter 'k'; it has none"):
        make_method("ncm", k=1)
    with pytest.raises(InputError, match="presets are for gdc"):
        make_method("dc", "paper")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "no method in ''"),
        (("ncm,ncm",), "'ncm' is listed twice"),
        (("ncm", "paper"), "--preset is for gdc"),
        (("ncm", None, ["k=3"]), "--set names method 'gdc', which is not among ncm"),
        (("ncm", None, ["dc.k=3"]), "--set names method 'dc'"),
        (("gdc", None, ["k"]), "--set 'k' is not key=value"),
        (("gdc", None, ["=3"]), "--set '=3' is not key=value"),
        (("gdc", None, ["kk=3"]), "no parameter 'kk'; did you mean 'k'"),
        (("gdc:papr",), "preset 'papr' is unknown; did you mean 'paper'"),
    ],
)
def test_method_lists_that_are_refused(arguments, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_methods(*arguments)
    assert message in str(caught.value)


def test_presets_and_settings_reach_the_method() -> None:
    methods = parse_methods("gdc,gdc:paper/cub/5shot,dc", "paper/mini/1shot", ["n=9", "dc.alpha=0.5"])
    assert methods["gdc"].settings["alpha1"] == get_preset("paper/mini/1shot").alpha1
    assert methods["gdc:paper/cub/5shot"].settings["alpha1"] == get_preset("paper/cub/5shot").alpha1
    assert [methods[m].settings["n"] for m in ("gdc", "gdc:paper/cub/5shot", "dc")] == [9, 9, 750]
    assert methods["dc"].settings["alpha"] == 0.5


# ---- figures --------------------------------------------------------------------------------------------------------


def test_summary_has_the_promised_shape(reference: Results) -> None:
    summary = json.loads(json.dumps(reference.summary().to_dict(), allow_nan=False))
    assert list(summary) == ["protocol", "methods", "paired"]
    assert summary["protocol"] == {
        "way": 4,
        "shot": 2,
        "query": 6,
        "tasks": 40,
        "seed": 3,
        "split": "novel",
        "replacement": True,
    }
    assert list(summary["methods"]) == list(some_methods())
    for name, m in summary["methods"].items():
        acc = reference.accuracy(name)
        assert m["accuracy"] == pytest.approx(acc.mean())
        assert m["paper_doubled"] == pytest.approx(2 * m["ci95"])
        assert m["worst10"] == pytest.approx(np.sort(acc)[:4].mean())
        assert m["class_interval"]["low"] <= m["accuracy"] <= m["class_interval"]["high"]
        assert 0 <= m["ece"] <= 1
        assert m["tasks"] == 40
        assert m["tasks_per_second"] == pytest.approx(40 / m["seconds"])
        assert m["settings"]["method"] in ("ncm", "simpleshot", "lr", "dc", "gdc")
    pairs = [(d["a"], d["b"]) for d in summary["paired"]]
    assert len(pairs) == 21
    assert pairs[0] == ("ncm", "simpleshot")
    for d in summary["paired"]:
        expected = reference.accuracy(d["a"]) - reference.accuracy(d["b"])
        assert d["difference"] == pytest.approx(expected.mean())
        assert d["p_t_holm"] >= d["p_t"]
    against = reference.summary("ncm").to_dict()["paired"]
    assert [(d["a"], d["b"]) for d in against] == [(m, "ncm") for m in some_methods() if m != "ncm"]


def test_one_method_and_one_task_have_no_interval(features: FeatureSet) -> None:
    summary = evaluate(["ncm"], features, Protocol(tasks=1, query=4)).summary()
    assert summary.paired == []
    assert math.isnan(summary.methods["ncm"].ci95)
    assert summary.to_dict()["methods"]["ncm"]["ci95"] is None
    json.dumps(summary.to_dict(), allow_nan=False)


def test_calibration_error_is_that_of_the_probabilities(features: FeatureSet, reference: Results) -> None:
    novel = features.split("novel")
    tasks = sample_episodes(novel.require_labels(), PROTOCOL.spec, range(40))
    x = torch.from_numpy(novel.features)
    labels = torch.arange(4).repeat_interleave(2).expand(40, -1)
    support = x[torch.from_numpy(tasks.support.reshape(40, -1))]
    head = NearestCentroid().fit(TaskBatch(support, labels, 4, TaskRandom(0, range(40))))
    p = torch.softmax(head.logits(x[torch.from_numpy(tasks.query.reshape(40, -1))]), dim=-1)
    confidence, answer = p.max(dim=-1)
    right = answer == torch.arange(4).repeat_interleave(6)
    expected = expected_calibration_error(confidence.numpy(), right.numpy())
    assert reference.summary().methods["ncm"].ece == pytest.approx(expected, abs=1e-6)
    assert not math.isclose(expected, 0, abs_tol=1e-3)


def test_shared_work_is_charged_to_each_method(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewcal.heads import calibrated

    # A clock that moves only while samples are drawn: both heads must show that time, though it passes once.
    now = [0.0]

    def slow_augment(*args, _true=calibrated.augment):
        now[0] += 1.0
        return _true(*args)

    monkeypatch.setattr(calibrated, "augment", slow_augment)
    monkeypatch.setattr(engine_module.time, "perf_counter", lambda: now[0])
    both = {"a": GDC(SAMPLED), "b": GDC(SAMPLED.with_changes(C=2.0)), "ncm": make_method("ncm")}
    results = evaluate(both, features, Protocol(tasks=1, query=4))
    assert results.seconds == {"a": 1.0, "b": 1.0, "ncm": 0.0}
    assert results.summary().methods["b"].tasks_per_second == 1.0
    assert math.isnan(results.summary().methods["ncm"].tasks_per_second)


# ---- the engine -----------------------------------------------------------------------------------------------------


def job(features: FeatureSet, token: str = "t", **changes) -> Job:
    assert features.base is not None
    novel = features.split("novel")
    values = {
        "base": (features.base.features, features.base.require_labels()),
        "features": novel.features,
        "labels": novel.require_labels(),
        "methods": {"gdc": make_method("gdc"), "simpleshot": make_method("simpleshot")},
        "spec": EpisodeSpec(3, 1, 4),
        "episodes": None,
        "device": "cpu",
        "token": token,
    }
    return Job(**(values | changes))


def test_a_process_prepares_a_job_once_and_drops_the_last_one(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    true = Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, j: (made.append(j.token), true(self, j))[1])
    monkeypatch.setattr(engine_module, "_READY", {})
    first, second = job(features, "one"), job(features, "two")
    blocks = [run_block(first, 0, 5), run_block(first, 5, 9), run_block(second, 0, 5)]
    assert made == ["one", "two"]
    assert list(engine_module._READY) == ["two"]
    assert [(b.start, b.stop) for b in blocks] == [(0, 5), (5, 9), (0, 5)]


def test_two_threads_prepare_a_job_once(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    made = []
    both = threading.Barrier(2, timeout=PATIENCE)
    true = Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, j: (made.append(j.token), true(self, j))[1])
    monkeypatch.setattr(engine_module, "_READY", {})
    shared = job(features)

    def work(start: int):
        both.wait()
        return run_block(shared, start, start + 3)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, (0, 3)))
    assert made == ["t"]
    whole = Engine(shared).run(0, 6)
    np.testing.assert_array_equal(np.concatenate([b.correct["gdc"] for b in found]), whole.correct["gdc"])


def test_methods_of_a_single_batch_stand_side_by_side(features: FeatureSet) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    class Waiting(NearestCentroid):
        def fit(self, batch: TaskBatch):
            both.wait()  # breaks where the other is not there at the same time
            return super().fit(batch)

    ready = Engine(job(features, methods={"a": Waiting(), "b": Waiting()}))
    ready.threads = 2
    found = ready.run(0, 1).correct
    np.testing.assert_array_equal(found["a"], found["b"])


def test_tasks_of_a_short_block_stand_side_by_side(features: FeatureSet) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    class Waiting(NearestCentroid):
        def fit(self, batch: TaskBatch):
            both.wait()
            return super().fit(batch)

    ready = Engine(job(features, methods={"a": Waiting(), "b": NearestCentroid()}, batches={"a": 25, "b": 1}))
    ready.threads = 2
    found = ready.run(0, 2).correct
    np.testing.assert_array_equal(found["a"], found["b"])


def test_features_are_mapped_once_for_each_space(features: FeatureSet) -> None:
    methods = {
        "a": make_method("gdc", "whitened"),
        "b": make_method("gdc", "whitened", m=1.5),
        "ncm": make_method("ncm"),
    }
    ready = Engine(job(features, methods=methods))
    assert len(ready.features) == 2
    assert ready.methods["a"].space == ready.methods["b"].space != ready.methods["ncm"].space


def test_batches_shrink_with_memory_and_groups_share_a_size(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"a": GDC(SAMPLED), "b": GDC(SAMPLED.with_changes(head="sgd")), "ncm": make_method("ncm")}
    ready = Engine(job(features, methods=methods))
    roomy = ready.batch_sizes()
    monkeypatch.setattr(engine_module, "_LIGHT_BYTES", 0)
    assert ready.batch_sizes()["ncm"] == engine_module._CPU_BATCH, "heavy ones go in smaller batches"
    monkeypatch.setattr(engine_module, "_CPU_BYTES", 100_000)
    tight = ready.batch_sizes()
    monkeypatch.setattr(engine_module, "_CPU_BYTES", 1)
    assert roomy["ncm"] == engine_module._LIGHT_BATCH
    assert 1 <= tight["a"] == tight["b"] < tight["ncm"] <= roomy["ncm"]
    assert ready.batch_sizes() == {"a": 1, "b": 1, "ncm": 1}


def test_nothing_of_a_block_stays_behind(features: FeatureSet) -> None:
    methods = {"gdc": make_method("gdc"), "a": GDC(SAMPLED), "b": GDC(SAMPLED.with_changes(C=2.0))}
    ready = Engine(job(features, methods=methods))

    def held() -> int:
        gc.collect()
        return sum(o.nbytes for o in gc.get_objects() if issubclass(type(o), torch.Tensor))

    ready.run(0, 20)
    before = held()
    for start in range(20, 120, 20):
        ready.run(start, start + 20)
    assert held() == before


def test_an_error_inside_a_method_is_not_hidden(features: FeatureSet) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug in a method"):
        evaluate({"broken": Broken()}, features, Protocol(tasks=5, query=4))


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (Protocol(way=8, query=4, tasks=5), "8 ways need as many classes, but there are 7"),
        (Protocol(shot=10, query=11, tasks=5), "10 shots and 11 queries need 21"),
        (Protocol(split="test", tasks=5), "no split 'test'; this feature set has base, val, novel"),
    ],
)
def test_protocols_that_the_data_cannot_serve(features: FeatureSet, tmp_path, protocol: Protocol, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(["ncm"], features, protocol, out=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing half-written"


@pytest.mark.parametrize("tasks", [0, -1, 2.5, True, "10"])
def test_tasks_must_be_a_positive_integer(tasks) -> None:
    with pytest.raises(InputError, match="tasks is"):
        Protocol(tasks=tasks)


def test_splits_that_do_not_fit_together(tmp_path) -> None:
    wide = save_features(tmp_path / "wide", base=split("b", 6, 20, 0), novel=split("n", 6, 20, 1, dim=9))
    with pytest.raises(InputError, match=r"base has 12 dimensions .* novel 9"):
        evaluate(["ncm"], wide)
    leak = save_features(tmp_path / "leak", base=split("n", 6, 20, 0), novel=split("n", 6, 20, 1))
    with pytest.raises(InputError, match="n0"):
        evaluate(["ncm"], leak)
