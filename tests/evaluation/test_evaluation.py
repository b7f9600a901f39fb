"""evaluate: the same numbers for the same tasks, however the work is cut up."""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import re
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from fewcal._utils.parameters import parameters_of
from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import Episodes, EpisodeSpec, sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation import Protocol, Results, evaluate, load_run
from fewcal.evaluation import engine as engine_module
from fewcal.evaluation.engine import Engine, Job, run_block
from fewcal.evaluation.stats import calibration_bins, calibration_error
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.heads import HEADS
from fewcal.methods import GDC, METHODS, Method, TaskBatch, make_method, parse_methods
from fewcal.methods.ncm import NearestCentroid
from fewcal.params import GDCParams
from fewcal.presets import get_preset
from limits import PATIENCE
from small_features import Broken, Together, feature_set, save_features, split

PROTOCOL = Protocol(way=4, shot=2, query=6, tasks=40, seed=3)
SHORT = Protocol(tasks=5, query=4)
SAMPLED = get_preset("paper").with_changes(k=3, n=6, alpha1=0.5, alpha2_ratio=0.5, l2=True, head="lbfgs")
CLOSED = SAMPLED.with_changes(head="closed_form")
UNBALANCED = {
    "dirichlet": {"dirichlet": 1.0},
    "one query": {"queries": 1},
    "outliers": {"outliers": 0.25, "present": 2},
    "shots": {"min_shot": 1, "shot": 3, "outliers": 0.2},
    "ways": {"min_way": 2, "dirichlet": 2.0},
    "meta": {"min_way": 2, "query": 4, "meta_dataset": True},
}


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return feature_set()


def some_methods() -> dict[str, Method]:
    return {
        "ncm": make_method("ncm"),
        "simpleshot": make_method("simpleshot"),
        "lr": make_method("lr"),
        "dc": make_method("dc", n=12),
        "hgdc": make_method("hgdc"),
        "gdc": GDC(CLOSED),
        "sampled": GDC(SAMPLED),
        "sgd": GDC(SAMPLED.with_changes(head="sgd")),
        "together": Together(),
    }


@pytest.fixture(scope="module")
def reference(features: FeatureSet) -> Results:
    return evaluate(some_methods(), features, PROTOCOL)


def same(a: Results, b: Results) -> None:
    """Equal in every count of every task."""
    assert list(a.correct) == list(b.correct)
    np.testing.assert_array_equal(a.classes, b.classes)
    np.testing.assert_array_equal(a.queries, b.queries)
    for name in a.correct:
        np.testing.assert_array_equal(a.correct[name], b.correct[name], err_msg=name)
        assert a.bins[name][0].sum() == b.bins[name][0].sum()
    for name in a.detection:
        np.testing.assert_allclose(a.detection[name], b.detection[name], err_msg=name, atol=1e-6)


# ---- what must not matter -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_batch_size_does_not_change_a_task(
    features: FeatureSet, reference: Results, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(Engine, "batch_sizes", lambda self: dict.fromkeys(self.methods, size))
    same(evaluate(some_methods(), features, PROTOCOL), reference)


@pytest.mark.parametrize("change", UNBALANCED.values(), ids=list(UNBALANCED))
def test_batch_size_does_not_change_an_unbalanced_task(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    protocol = replace(PROTOCOL, **change)
    together = evaluate(some_methods(), features, protocol)
    monkeypatch.setattr(Engine, "batch_sizes", lambda self: dict.fromkeys(self.methods, 1))
    same(evaluate(some_methods(), features, protocol), together)


@pytest.mark.parametrize("size", [3, 39])
def test_block_size_does_not_change_a_task(
    features: FeatureSet, reference: Results, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", size)
    same(evaluate(some_methods(), features, PROTOCOL), reference)


def test_methods_alone_or_in_another_order_give_the_same(features: FeatureSet, reference: Results) -> None:
    for name, method in some_methods().items():
        alone = evaluate({name: method}, features, PROTOCOL)
        np.testing.assert_array_equal(alone.correct[name], reference.correct[name], err_msg=name)
    turned = evaluate(dict(reversed(some_methods().items())), features, PROTOCOL)
    for name in reference.correct:
        np.testing.assert_array_equal(turned.correct[name], reference.correct[name], err_msg=name)


def test_more_tasks_begin_with_the_same_tasks(features: FeatureSet, reference: Results) -> None:
    more = evaluate(some_methods(), features, replace(PROTOCOL, tasks=55))
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


def test_features_from_a_folder_or_mapped_into_memory_give_the_same(
    features: FeatureSet, reference: Results, tmp_path: Path
) -> None:
    features.save(tmp_path / "folder")
    same(evaluate(some_methods(), tmp_path / "folder", PROTOCOL), reference)
    mapped = {}
    for name, part in features.splits().items():
        np.save(tmp_path / f"{name}.npy", part.features)
        rows = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        mapped[name] = FeatureSplit.from_arrays(rows, part.labels, part.classes)
        assert not mapped[name].features.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(evaluate(some_methods(), FeatureSet(**mapped), PROTOCOL), reference)


# ---- what must matter -----------------------------------------------------------------------------------------------


def test_seed_and_split_choose_the_tasks(features: FeatureSet) -> None:
    first, other, val = (
        evaluate(["ncm"], features, p) for p in (PROTOCOL, replace(PROTOCOL, seed=4), replace(PROTOCOL, split="val"))
    )
    assert (first.classes != other.classes).any()
    assert first.class_names == [f"n{i}" for i in range(7)]
    assert val.class_names == [f"v{i}" for i in range(6)]
    assert val.classes.max() == 5
    assert not np.array_equal(val.accuracy("ncm"), first.accuracy("ncm"))


def by_hand(part: FeatureSplit, tasks: Episodes) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Right answers of nearest centroid, and its distances to queries of the classes and to outliers."""
    correct, inside, outside = np.zeros(tasks.classes.shape, int), [], []
    for t in range(len(tasks)):
        own = [rows[rows >= 0] for rows in tasks.support[t] if (rows >= 0).any()]
        means = np.stack([part.features[rows].astype(np.float64).mean(axis=0) for rows in own])

        def distances(rows: np.ndarray, means: np.ndarray = means) -> np.ndarray:
            return np.linalg.norm(part.features[rows[rows >= 0]][:, None] - means, axis=2)

        for way, rows in enumerate(tasks.query[t]):
            correct[t, way] = (distances(rows).argmin(axis=1) == way).sum()
        inside.append(distances(tasks.query[t].ravel()))
        outside.append(distances(tasks.outliers[t]))
    return correct, inside, outside


@pytest.mark.parametrize("change", [{}, {"replacement": False}, *UNBALANCED.values()])
def test_counts_are_those_of_the_definition(features: FeatureSet, change: dict[str, Any]) -> None:
    protocol, novel = replace(PROTOCOL, **change), features.split("novel")
    results = evaluate({"ncm": make_method("ncm")}, features, protocol)
    tasks = sample_episodes(novel.require_labels(), protocol.spec, range(40))
    right, queries = by_hand(novel, tasks)[0], (tasks.query >= 0).sum(axis=2)
    np.testing.assert_array_equal(results.classes, tasks.classes)
    np.testing.assert_array_equal(results.queries, queries)
    np.testing.assert_array_equal(results.correct["ncm"], right)
    np.testing.assert_allclose(results.accuracy("ncm"), right.sum(axis=1) / queries.sum(axis=1))
    per_class = results.summary().methods["ncm"].per_class
    for position, name in enumerate(novel.classes):
        of_class = tasks.classes == position
        expected = right[of_class].sum() / queries[of_class].sum() if queries[of_class].any() else math.nan
        assert per_class[name] == pytest.approx(expected, nan_ok=True)


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
    evaluate(both, features, replace(SHORT, tasks=1))
    assert (len(made), len(seen)) == (1, 2)
    assert seen[0] is seen[1]
    evaluate(both | {"c": GDC(SAMPLED.with_changes(alpha1=1.0))}, features, replace(SHORT, tasks=1))
    assert len(made) == 3, "another covariance needs samples of its own"


# ---- fixed lists of tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, UNBALANCED["shots"]])
def test_saved_tasks_give_the_drawn_result_and_can_be_cut(
    features: FeatureSet, tmp_path: Path, change: dict[str, Any]
) -> None:
    protocol, labels = replace(PROTOCOL, **change), features.split("novel").require_labels()
    drawn = evaluate(some_methods(), features, protocol)
    sample_episodes(labels, protocol.spec, range(40)).save(tmp_path / "tasks.npz")
    tasks = Episodes.load(tmp_path / "tasks.npz", labels)
    # The list brings its own shape: that of the protocol is replaced.
    listed = evaluate(some_methods(), features, Protocol(tasks=40), episodes=tasks)
    same(listed, drawn)
    assert listed.protocol == protocol
    assert listed.identity == drawn.identity
    cut = evaluate(["ncm"], features, Protocol(tasks=20), episodes=tasks)
    np.testing.assert_array_equal(cut.correct["ncm"], drawn.correct["ncm"][:20])


def test_list_of_other_tasks_is_another_run(features: FeatureSet, reference: Results) -> None:
    labels = features.split("novel").require_labels()
    tasks = sample_episodes(labels, PROTOCOL.spec, range(100, 140))
    other = evaluate(["ncm"], features, PROTOCOL, episodes=tasks)
    assert other.identity["episodes"] is not None
    assert not np.array_equal(other.correct["ncm"], reference.correct["ncm"])
    with pytest.raises(InputError, match="the protocol has 41 tasks, but the list has 40"):
        evaluate(["ncm"], features, replace(PROTOCOL, tasks=41), episodes=tasks)
    with pytest.raises(InputError, match="drawn from other labels than those of split 'val'"):
        evaluate(["ncm"], features, Protocol(tasks=10, split="val"), episodes=tasks)


# ---- transductive methods and outliers ------------------------------------------------------------------------------


def test_transductive_method_gets_all_queries_of_a_task_together(features: FeatureSet) -> None:
    class Noted(Together):
        seen: list[tuple[int, ...]] = []  # noqa: RUF012

        def fit_predict(self, batch: TaskBatch, query: torch.Tensor) -> torch.Tensor:
            self.seen.append((*batch.support.shape, *query.shape[1:]))
            return super().fit_predict(batch, query)

    protocol = replace(PROTOCOL, min_way=3, outliers=0.25)
    results = evaluate({"noted": Noted(), "ncm": make_method("ncm")}, features, protocol)
    assert {shape[1:] for shape in Noted.seen} == {(2 * n, 12, 6 * n, 12) for n in (3, 4)}
    assert sum(shape[0] for shape in Noted.seen) == 40
    assert results.settings["noted"] == {"method": "together", "transductive": True}
    assert results.settings["ncm"] == {"method": "ncm", "probabilistic": False}


def test_transductive_method_that_looks_at_each_query_alone_equals_the_inductive_one(features: FeatureSet) -> None:
    class Alone(NearestCentroid):
        name = "alone"
        transductive = True

    protocol = replace(PROTOCOL, dirichlet=2.0, outliers=0.2)
    results = evaluate({"alone": Alone(), "ncm": make_method("ncm")}, features, protocol)
    np.testing.assert_array_equal(results.correct["alone"], results.correct["ncm"])
    np.testing.assert_allclose(results.detection["alone"], results.detection["ncm"], atol=1e-6)


def test_outliers_are_detected_by_confidence_or_by_a_score_of_their_own(features: FeatureSet) -> None:
    class Distance(NearestCentroid):
        """Its outlier score is the distance to the nearest class mean."""

        def fit(self, batch: TaskBatch) -> Any:
            head, means = super().fit(batch), _means(batch)
            object.__setattr__(head, "outlier", lambda x: torch.cdist(x, means).amin(dim=-1))
            return head

    protocol, novel = replace(PROTOCOL, outliers=0.25), features.split("novel")
    results = evaluate({"ncm": make_method("ncm"), "own": Distance(), "none": Together()}, features, protocol)
    np.testing.assert_array_equal(results.correct["own"], results.correct["ncm"])
    _, inside, outside = by_hand(novel, sample_episodes(novel.require_labels(), protocol.spec, range(40)))
    for t, (a, b) in enumerate(zip(inside, outside, strict=True)):
        truth, score = np.repeat([0, 1], [len(a), len(b)]), np.concatenate([a, b]).min(axis=1)
        fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
        expected = [roc_auc_score(truth, score), tpr[fpr <= 0.05].max()]
        np.testing.assert_allclose(results.detection["own"][t], expected, atol=1e-6)
    assert (results.detection["none"] != results.detection["ncm"]).any()
    summary = results.summary()
    assert summary.methods["own"].value("auroc") == pytest.approx(results.detection["own"][:, 0].mean())
    assert summary.methods["own"].value("outlier_recall") == pytest.approx(results.detection["own"][:, 1].mean())
    assert evaluate("ncm", features, PROTOCOL).detection == {}


def _means(batch: TaskBatch) -> torch.Tensor:
    return batch.support.view(len(batch.support), batch.n_classes, -1, batch.support.shape[2]).mean(dim=2)


def test_single_query_of_a_task_is_answered(features: FeatureSet) -> None:
    results = evaluate(some_methods(), features, replace(PROTOCOL, queries=1, tasks=30))
    assert (results.queries.sum(axis=1) == 1).all()
    assert set(np.unique(results.accuracy("together"))) == {0.0, 1.0}


# ---- methods --------------------------------------------------------------------------------------------------------


def test_methods_without_a_bank_work_without_base(features: FeatureSet) -> None:
    bare = FeatureSet(novel=features.novel)
    free = [name for name, m in parse_methods("all").items() if not m.needs_bank]
    assert {"ncm", "lr", "cosine"} <= set(free)
    assert set(evaluate(free, bare, SHORT).correct) == set(free)
    with pytest.raises(InputError, match=r"method 'hgdc' needs base classes, but the features have no base split"):
        evaluate(["ncm", "hgdc"], bare, SHORT)
    of_base = replace(SHORT, split="base")
    assert evaluate(["ncm"], features, of_base).class_names[0] == "b0"
    with pytest.raises(InputError, match=r"method 'hgdc' .* drawn from the base split itself"):
        evaluate(["hgdc"], features, of_base)


def test_names_are_text_list_or_mapping(features: FeatureSet) -> None:
    for methods in ("ncm,gdc:paper/cub/1shot", ["ncm", "gdc:paper/cub/1shot"]):
        assert list(evaluate(methods, features, SHORT).correct) == ["ncm", "gdc:paper/cub/1shot"]
    with pytest.raises(InputError, match="did you mean 'gdc'"):
        evaluate(["gcd"], features, SHORT)
    with pytest.raises(InputError, match="no methods were given"):
        evaluate({}, features, SHORT)


OWN = """
from fewcal.methods.ncm import NearestCentroid

class Mine(NearestCentroid):
    name = "mine"

class NoMethod: ...
"""


def test_method_of_ones_own_is_loaded_by_module_and_class(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_method.py").write_text(OWN)
    (tmp_path / "torn_method.py").write_text("def")
    monkeypatch.chdir(tmp_path)
    results = evaluate("ncm,own_method:Mine", features, SHORT, n_jobs=2, out="run")
    np.testing.assert_array_equal(results.correct["own_method:Mine"], results.correct["ncm"])
    assert load_run("run").settings["own_method:Mine"]["method"] == "mine"
    for name, words in {
        "own_method:Other": "AttributeError",
        "none_method:Mine": "No module named 'none_method'",
        "torn_method:Mine": "SyntaxError",
        "own_method:NoMethod": "is no subclass of fewcal.methods.Method",
    }.items():
        with pytest.raises(InputError, match=words):
            parse_methods(name)


def test_methods_of_the_caller_are_left_alone_and_travel_light(features: FeatureSet, tmp_path: Path) -> None:
    # It asks for more neighbours than there are base classes: the record has what was used.
    methods: dict[str, Method] = {"gdc": GDC(CLOSED.with_changes(k=20), cap_k=True)}
    before = pickle.dumps(methods)
    first = evaluate(methods, features, PROTOCOL, out=tmp_path / "run")
    assert pickle.dumps(methods) == before, "a prepared bank would be shipped with every block"
    assert methods["gdc"].settings["k"] == 20
    assert first.settings["gdc"]["k"] == 8
    again = evaluate(methods, features, PROTOCOL, out=tmp_path / "run", resume=True)
    assert again.settings == first.settings
    same(again, first)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("cosine", {"scale": -3}, "scale=-3 is out of range; use a number from 1e-06 to 1e+06"),
        ("cosine", {"scale": math.nan}, "scale=nan is out of range"),
        ("cosine", {"lr": math.inf}, "lr=inf must be finite"),
        ("lr", {"C": 0.0}, "C=0.0 is out of range"),
        ("lr-gauss", {"beta": 11}, "beta=11 is out of range; use a number from -10 to 10"),
        ("dc", {"k": 0}, "k=0 is out of range; use a number ≥ 1"),
    ],
)
def test_parameters_out_of_range_are_refused(method: str, settings: dict[str, Any], words: str) -> None:
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
    for name in methods:
        assert METHODS[name]().settings.keys() == METHODS[name].accepts.keys(), f"{name} takes what it does not check"


def test_settings_of_methods_are_checked_by_name_and_kind() -> None:
    assert make_method("dc", k=4, alpha=1).settings["alpha"] == 1
    for settings, message in [
        ({"kk": 1}, "method 'dc' has no parameter 'kk'; did you mean 'k'"),
        ({"k": "two"}, "method 'dc': k='two' is out of range; use a number ≥ 1"),
        ({"k": 2.5}, "method 'dc': k=2.5 must be a whole number"),
        ({"alpha": True}, "method 'dc': alpha=True is out of range; use a number ≥ 0"),
    ]:
        with pytest.raises(InputError, match=message):
            make_method("dc", **settings)
    with pytest.raises(InputError, match="method 'ncm' has no parameter 'k'; it has none"):
        make_method("ncm", k=1)
    with pytest.raises(InputError, match="presets are for gdc"):
        make_method("dc", "paper")


# ---- figures --------------------------------------------------------------------------------------------------------


def test_calibration_error_is_that_of_the_probabilities(features: FeatureSet) -> None:
    novel = features.split("novel")
    protocol = replace(PROTOCOL, outliers=0.25)
    found = evaluate("lr", features, protocol).summary().methods["lr"]
    [group] = sample_episodes(novel.require_labels(), protocol.spec, range(40)).groups()
    x = torch.from_numpy(novel.features)
    batch = TaskBatch(x[group.support], torch.from_numpy(group.labels), 4, TaskRandom(0, range(40)))
    p = torch.softmax(make_method("lr").fit(batch).logits(x[group.query]), dim=-1).numpy()
    own = group.truth >= 0
    error = calibration_error(calibration_bins(p.max(axis=-1)[own], (p.argmax(axis=-1) == group.truth)[own]))
    assert found.ece == pytest.approx(error, abs=1e-5)
    assert not math.isclose(error, 0, abs_tol=1e-3)


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
    results = evaluate(both, features, replace(SHORT, tasks=1))
    assert results.seconds == {"a": 1.0, "b": 1.0, "ncm": 0.0}
    assert results.summary().methods["b"].tasks_per_second == 1.0
    assert math.isnan(results.summary().methods["ncm"].tasks_per_second)


# ---- the engine -----------------------------------------------------------------------------------------------------


def job(features: FeatureSet, token: str = "t", **changes: Any) -> Job:
    assert features.base is not None
    novel = features.split("novel")
    values = {
        "base": (features.base.features, features.base.require_labels()),
        "features": novel.features,
        "labels": novel.require_labels(),
        "methods": {"hgdc": make_method("hgdc"), "simpleshot": make_method("simpleshot")},
        "spec": EpisodeSpec(3, 1, 4),
        "episodes": None,
        "device": "cpu",
        "token": token,
    }
    return Job(**(values | changes))


def test_process_prepares_a_job_once_and_drops_the_last_one(
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
    np.testing.assert_array_equal(np.concatenate([b.correct["hgdc"] for b in found]), whole.correct["hgdc"])


@pytest.mark.parametrize(("tasks", "batches"), [(1, {}), (2, {"a": 25, "b": 1})])
def test_methods_and_tasks_of_a_short_block_stand_side_by_side(
    features: FeatureSet, tasks: int, batches: dict[str, int]
) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    class Waiting(NearestCentroid):
        def fit(self, batch: TaskBatch):
            both.wait()  # breaks where the other is not there at the same time
            return super().fit(batch)

    other = NearestCentroid() if batches else Waiting()
    ready = Engine(job(features, methods={"a": Waiting(), "b": other}, batches=batches))
    ready.threads = 2
    found = ready.run(0, tasks).correct
    np.testing.assert_array_equal(found["a"], found["b"])


def test_features_are_mapped_once_for_each_space(features: FeatureSet) -> None:
    methods = {"a": GDC(CLOSED), "b": GDC(CLOSED.with_changes(m=1.5)), "ncm": make_method("ncm")}
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
    methods = {"hgdc": make_method("hgdc"), "a": GDC(SAMPLED), "b": GDC(SAMPLED.with_changes(C=2.0)), "c": Together()}
    ready = Engine(job(features, methods=methods))

    def held() -> int:
        gc.collect()
        return sum(o.nbytes for o in gc.get_objects() if issubclass(type(o), torch.Tensor))

    ready.run(0, 20)
    before = held()
    for start in range(20, 120, 20):
        ready.run(start, start + 20)
    assert held() == before


def test_error_inside_a_method_is_not_hidden(features: FeatureSet) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug in a method"):
        evaluate({"broken": Broken()}, features, SHORT)


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (Protocol(shot=10, query=11, tasks=5), "10 shots and 11 queries need 21"),
        (Protocol(way=7, query=4, outliers=0.5, tasks=5), "14 outliers need as many rows of other classes"),
        (Protocol(split="test", tasks=5), "no split 'test'; this feature set has base, val, novel"),
    ],
)
def test_protocol_that_the_data_cannot_serve_is_refused(
    features: FeatureSet, tmp_path: Path, protocol: Protocol, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(["ncm"], features, protocol, out=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing half-written"


@pytest.mark.parametrize("tasks", [0, -1, 2.5, True, "10"])
def test_tasks_must_be_a_positive_integer(tasks: Any) -> None:
    with pytest.raises(InputError, match="tasks is"):
        Protocol(tasks=tasks)


def test_protocols_in_words_and_in_json_are_complete() -> None:
    assert str(PROTOCOL) == "40 tasks, 4-way 2-shot, 6 queries a class, split novel, seed 3"
    many = Protocol(tasks=2, way=9, min_way=3, min_shot=1, shot=4, queries=1, dirichlet=2, present=2, outliers=0.25)
    assert str(many) == (
        "2 tasks, 3- to 9-way 1- to 4-shot, 1 query, class shares Dirichlet(2), of 2 classes, 25% outliers, "
        "split novel, seed 0"
    )
    assert str(Protocol(meta_dataset=True)).startswith("1000 tasks, 5-way, shots as Meta-Dataset, 15 queries a class")
    assert Protocol(**json.loads(json.dumps(many.to_dict()))) == many
    assert set(many.to_dict()) == {"tasks", "split", *EpisodeSpec.__dataclass_fields__}


def test_splits_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    wide = save_features(tmp_path / "wide", base=split("b", 6, 20, 0), novel=split("n", 6, 20, 1, dim=9))
    with pytest.raises(InputError, match=r"base has 12 dimensions .* novel 9"):
        evaluate(["ncm"], wide)
    leak = save_features(tmp_path / "leak", base=split("n", 6, 20, 0), novel=split("n", 6, 20, 1))
    with pytest.raises(InputError, match="n0"):
        evaluate(["ncm"], leak)


def test_run_stays_in_its_folder_when_the_process_changes_its_own(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", 2)
    evaluate("ncm", features, SHORT, out="run", progress=lambda done, total: os.chdir(tmp_path / "elsewhere"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(load_run(tmp_path / "run").classes) == 5
