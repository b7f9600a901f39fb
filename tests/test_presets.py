"""Every preset against the reference, the paper's table, and the parameters' own checks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.svm import SVC

import reference
from fewcal._utils.names import nearest_names
from fewcal._utils.randomness import TaskRandom
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features.synthetic import make_features
from fewcal.methods import GDC, TaskBatch, make_method
from fewcal.params import GDCParams
from fewcal.presets import describe_preset, get_preset, list_presets, paper_rows, save_preset
from small_worlds import SmallData, single_shots


def against_reference(world: SmallData, params: GDCParams, tasks: int) -> None:
    """Weights, means, covariances and, where there are any, closed-form scores of the first tasks."""
    p = params.with_changes(k=min(params.k, len(world.base)))
    support, labels, query = (t[:tasks] for t in world.tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        method = GDC(p)
        method.prepare(world.bank())
        d = support.shape[-1]
        xs = method.transform(support.reshape(-1, d), "support").view_as(support)
        qs = method.transform(query.reshape(-1, d), "query").view_as(query)
        batch = TaskBatch(xs, labels, world.ways, TaskRandom(0, range(len(xs))))
        found = method.calibration(batch)
        shrunk = method.shrunk(found)
        sigma = shrunk.gaussian(found.mean).dense()
        scored = p.psd == "clip" and shrunk.a is not None and bool((shrunk.a > 0).all())
        logits = None
        if scored:
            head = GDC(p.with_changes(head="closed_form")).prepare(world.bank())
            logits = head.fit(batch).logits(qs)
    fields_ = p.as_dict()
    for t in range(len(xs)):
        expected = reference.one_task(fields_, world.base, world.support[t], world.labels[t], world.query[t])
        assert np.array_equal(found.index[t], expected["index"])
        np.testing.assert_allclose(found.distances[t], expected["distances"], rtol=2e-3, atol=1e-5)
        np.testing.assert_allclose(found.weights[t], expected["weights"], rtol=5e-3, atol=1e-7)
        np.testing.assert_allclose(found.mean[t], expected["mean"], rtol=1e-3, atol=1e-4)
        scale = np.abs(expected["sigma"]).max()
        np.testing.assert_allclose(sigma[t], expected["sigma"], rtol=0, atol=1e-3 * scale)
        if logits is not None and expected["scores"] is not None:
            got, want = logits[t].double().numpy(), expected["scores"]
            got, want = got - got.mean(axis=1, keepdims=True), want - want.mean(axis=1, keepdims=True)
            # A clip at the lower end leaves a + bD = 0: single precision then resolves what the condition allows.
            tol = (1e-3 + 1e-6 * np.linalg.cond(expected["sigma"].mean(axis=0))) * np.abs(want).max()
            np.testing.assert_allclose(got, want, rtol=0, atol=tol)
            clear = np.diff(np.sort(want, axis=1)[:, -2:], axis=1)[:, 0] > 2 * tol
            assert np.array_equal(got.argmax(axis=1)[clear], want.argmax(axis=1)[clear])


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_is_the_reference(name: str, world: SmallData) -> None:
    against_reference(world, get_preset(name), 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": metric, "cov": cov, "cov_weights": weights, "k": 4, "alpha1": alpha1, "alpha2_ratio": 0.5, **extra}
        for metric, cov, weights, alpha1, extra in [
            ("sqeuclidean", "joint", "with-support", 0.05, {}),
            ("euclidean", "joint", "bases-only", 5.0, {"off_diagonal": "all", "common_size": 4}),
            ("mahalanobis", "joint", "average", 100.0, {"beta": 1.0, "m": 0.3}),
            ("delta", "joint", "with-support", 1.0, {"delta": 0.7}),
            ("sqeuclidean", "independent", "with-support", 0.05, {"distance_scale": 0.5, "m": 2.0}),
            ("euclidean", "independent", "bases-only", 10.0, {"center": True, "l2": True}),
            ("mahalanobis", "independent", "average", 1.0, {"distance_scale": 1.0, "m": 2.0}),
            ("mahalanobis", "joint", "with-support", 10.0, {"mahalanobis_ridge": 2.0, "m": 0.5}),
            (
                "mahalanobis",
                "independent",
                "bases-only",
                10.0,
                {"mahalanobis_ridge": 0.5, "mahalanobis_shift": False, "m": 2.0},
            ),
            ("delta", "independent", "average", 1000.0, {"delta": 1.3, "beta": 0.0, "l2": True}),
            ("sqeuclidean", "pooled", "with-support", 0.05, {"center": True}),
            ("euclidean", "pooled", "bases-only", 10.0, {"kind": "yeo-johnson", "beta": 2.0, "l2": True}),
            ("delta", "pooled", "average", 1.0, {"delta": 0.9, "distance_scale": 2.0}),
            ("sqeuclidean", "joint", "with-support", 50.0, {"psd": "eigen", "alpha2_ratio": 200.0}),
            ("euclidean", "independent", "bases-only", 5.0, {"constant": 0.3}),
            ("sqeuclidean", "joint", "with-support", 50.0, {"psd": "clip", "alpha2_ratio": 200.0}),
            ("euclidean", "joint", "bases-only", 2.0, {"transform_base": False, "kind": "yeo-johnson"}),
        ]
    ],
    ids=lambda c: " ".join(str(v) for v in c.values()),
)
def test_every_choice_is_the_reference(changes: dict, world: SmallData) -> None:
    against_reference(world, GDCParams(**changes), 3)


# ---- the names --------------------------------------------------------------------------------------------------


def test_all_thirty_rows_of_the_paper_twice() -> None:
    names = list_presets()
    assert len({row.name for row in paper_rows()}) == len(paper_rows()) == 30
    for family in ("paper", "authors"):
        assert sum(name.startswith(f"{family}/") for name in names) == 30
    for name in ("paper", "authors", "dc"):
        assert name in names


# The paper's table of candidates, copied a second time: name, accuracy, m, k, α1, α2/α1, β.
TABLE = """
mini/1shot 73.00 1 8 3000 10 0.5
mini/1shot.2 72.80 1 8 6000 10 0.5
mini/1shot.3 72.30 1 8 2000 10 0.5
mini/5shot 87.22 3 30 9000 10 0.5
mini/5shot.2 86.91 3 30 8000 10 0.5
mini/5shot.3 86.82 3 30 7000 10 0.5
cub/1shot 84.57 1 4 8000 10 0.5
cub/1shot.2 84.49 1 6 10000 10 0.5
cub/1shot.3 84.22 1 4 9000 10 0.5
cub/5shot 93.46 2 4 5000 10 0.5
cub/5shot.2 93.16 1 10 2000 100 0.5
cub/5shot.3 93.15 1 16 3000 100 0.5
dogs/1shot 65.35 1.5 10 400 100 1
dogs/1shot.2 65.12 1.75 10 500 100 1
dogs/1shot.3 64.91 1.5 12 500 100 1
dogs/5shot 80.56 1.5 12 300 200 1
dogs/5shot.2 80.12 1.25 12 300 400 1
dogs/5shot.3 80.01 1.25 12 100 200 1
mini2cub/1shot 41.08 0.5 64 400 100 0.5
mini2cub/1shot.2 39.11 0.5 62 500 100 0.5
mini2cub/1shot.3 39.02 2.5 10 400 100 0.5
mini2cub/5shot 54.69 0.5 18 100 100 0.5
mini2cub/5shot.2 52.12 0.5 12 100 100 0.5
mini2cub/5shot.3 49.14 1.5 18 100 200 0.5
meta-tiered/1shot 43.51 2.25 8 100 100 1
meta-tiered/1shot.2 41.12 2.0 10 100 100 1
meta-tiered/1shot.3 40.01 1.5 12 200 100 1
meta-tiered/5shot 56.79 2.0 10 100 100 1
meta-tiered/5shot.2 53.13 2.25 12 200 100 1
meta-tiered/5shot.3 50.01 1.25 12 100 200 1
"""


@pytest.mark.parametrize("row", TABLE.strip().splitlines(), ids=lambda r: r.split()[0])
def test_preset_of_a_paper_row_has_its_values(row: str) -> None:
    name, accuracy, *numbers = row.split()
    for family in ("paper", "authors"):
        preset = describe_preset(f"{family}/{name}")
        p = preset.params
        assert [p.m, p.k, p.alpha1, p.alpha2_ratio, p.beta, p.n] == [*map(float, numbers), 750]
        assert accuracy in preset.summary


def test_paper_is_as_printed_and_authors_as_scripted() -> None:
    paper, authors = get_preset("paper"), get_preset("authors")
    assert (paper.metric, paper.cov, paper.cov_weights, paper.off_diagonal, paper.n_per, paper.head) == (
        "sqeuclidean",
        "joint",
        "with-support",
        "pairs",
        "point",
        "sgd",
    )
    assert (authors.metric, authors.cov, authors.cov_weights, authors.off_diagonal, authors.n_per, authors.psd) == (
        "euclidean",
        "joint",
        "bases-only",
        "all",
        "class",
        "eigen",
    )
    assert paper.transform_base
    assert not authors.transform_base
    assert not paper.l2
    assert get_preset("paper/mini/1shot") == paper


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_resolves_the_open_questions(name: str) -> None:
    preset = describe_preset(name)
    assert preset.name == name
    assert preset.summary
    questions = {"distance in the weight", "weights of the covariance", "cov(X')", "n", "head"}
    assert questions <= set(preset.resolves)
    assert all(preset.resolves.values())


def test_resolves_follows_the_parameters(tmp_path: Path) -> None:
    paper, authors = (describe_preset(n).resolves for n in ("paper", "authors"))
    pooled = tmp_path / "pooled.json"
    save_preset(pooled, GDCParams(cov="pooled"), "pooled covariance")
    assert "squared" in paper["distance in the weight"]
    assert "plain" in authors["distance in the weight"]
    assert paper["n"] == "per support point"
    assert authors["n"].startswith("per class")
    assert authors["not positive semi-definite"] == "eigenvalues clipped at 0"
    assert "no effect" in describe_preset(pooled).resolves["weights of the covariance"]


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match="preset 'papr/cub/1shot' is unknown; did you mean 'paper/cub/1shot'"):
        get_preset("papr/cub/1shot")
    with pytest.raises(InputError, match=r"preset 'zzzzzz' is unknown; known: paper, authors, dc"):
        get_preset("zzzzzz")


@given(st.text(max_size=12))
def test_nearest_names_of_any_text_is_a_hint(name: str) -> None:
    text = nearest_names(name, ["alpha1", "beta", "metric"])
    assert "did you mean" in text or "known: alpha1, beta, metric" in text


# ---- parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha1": -1}, "alpha1=-1 is out of range; use a number ≥ 0"),
        ({"alpha2_ratio": -0.1}, r"alpha2_ratio=-0\.1 is out of range"),
        ({"m": -1}, "m=-1 is out of range; use a number ≥ 0"),
        ({"m": float("nan")}, "m=nan is out of range"),
        ({"m": float("inf")}, "m=inf must be finite"),
        ({"k": 0}, "k=0 is out of range; use a number ≥ 1"),
        ({"k": 2.5}, r"k=2\.5 must be a whole number"),
        ({"k": True}, "k=True is out of range"),
        ({"k": float("inf")}, "k=inf must be finite"),
        ({"k": "3"}, "k='3' is out of range"),
        ({"n": 0}, "n=0 is out of range"),
        ({"beta": 20}, "beta=20 is out of range; use a number from -10 to 10"),
        ({"distance_scale": 0}, r"distance_scale=0 is out of range.*\(or False\)"),
        ({"distance_scale": True}, "distance_scale=True is out of range"),
        ({"delta": 0}, "delta=0 is out of range"),
        ({"C": 0}, "C=0 is out of range"),
        ({"common_size": -1}, "common_size=-1 is out of range"),
        ({"center": "no"}, "center must be a bool, got 'no'"),
        ({"l2": 1}, "l2 must be a bool, got 1"),
        ({"transform_base": None}, "transform_base must be a bool, got None"),
        ({"mahalanobis_shift": 0.0}, r"mahalanobis_shift must be a bool, got 0\.0"),
        ({"metric": "cosine"}, "metric='cosine' is unknown; use one of sqeuclidean"),
        ({"cov": "full"}, "cov='full' is unknown; use one of joint"),
        ({"cov_weights": "x"}, "cov_weights='x' is unknown"),
        ({"off_diagonal": "x"}, "off_diagonal='x' is unknown"),
        ({"psd": "x"}, "psd='x' is unknown"),
        ({"kind": "x"}, "kind='x' is unknown"),
        ({"n_per": "x"}, "n_per='x' is unknown"),
        ({"head": "svm"}, "head='svm' is unknown; use one of closed_form, lbfgs, sgd, or a scikit-learn classifier"),
        ({"head": "sklearn"}, "head='sklearn' is unknown"),
        ({"head": 3}, "head=3 is neither a name nor a classifier"),
    ],
    ids=str,
)
def test_bad_parameters_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        GDCParams(**changes)


def test_numpy_scalars_become_numbers() -> None:
    """As a grid search hands them over."""
    p = GDCParams(k=np.int64(4), m=np.float32(1.5), alpha1=np.float64(2.0), n=np.int32(10))  # type: ignore[arg-type]
    assert (p.k, p.m, p.alpha1, p.n) == (4, 1.5, 2.0, 10)


def test_with_changes_replaces_and_checks() -> None:
    p = GDCParams()
    assert p.with_changes() == p
    changed = p.with_changes(k=3, head="lbfgs")
    assert (changed.k, changed.head, p.k) == (3, "lbfgs", 8)
    with pytest.raises(InputError, match="GDC has no parameter 'alpha'; did you mean 'alpha1'"):
        p.with_changes(alpha=2)
    with pytest.raises(InputError, match="m=-3 is out of range"):
        p.with_changes(m=-3)


def test_as_dict_names_every_field() -> None:
    p = GDCParams(C=float("inf"))
    assert GDCParams(**p.as_dict()) == p
    assert set(p.as_dict()) == {f.name for f in fields(GDCParams)}
    assert GDCParams(head=SVC(C=7.0)).as_dict()["head"] == "SVC(C=7.0)"


def test_the_preset_dc_has_the_moments_of_dc(relu_world: SmallData) -> None:
    """Neighbours weigh 1, as much as the support point, and α is added to every entry."""
    method = GDC(get_preset("dc"))
    method.prepare(relu_world.bank())
    x = method.transform(torch.from_numpy(relu_world.support[0]))[None]
    found = method.calibration(single_shots(x))
    sigma = method.shrunk(found).gaussian(found.mean).dense()
    assert (found.weights == 1).all()
    for s, row in enumerate(x[0].double().numpy()):
        mean, expected = reference.dc_moments(row, [r.astype(np.float64) for r in relu_world.base], 2, 0.21)
        np.testing.assert_allclose(found.mean[0, s], mean, atol=1e-5)
        np.testing.assert_allclose(sigma[0, s], expected, atol=1e-5)


def test_the_preset_dc_answers_as_the_method_dc() -> None:
    features = make_features(base=6, val=0, novel=6, rows=20, dim=12, seed=2)
    for shot in (1, 3):
        protocol = Protocol(shot=shot, tasks=6, query=5)
        method, preset = (evaluate({"m": make_method(*m)}, features, protocol) for m in (("dc",), ("gdc", "dc")))
        assert np.array_equal(method.correct["m"], preset.correct["m"])


def test_float32_weights_of_the_authors_settings_do_not_vanish(relu_world: SmallData) -> None:
    """m = 3 on plain distances: the shares of the covariance are still normalised."""
    method = GDC(get_preset("authors/mini/5shot").with_changes(k=3))
    method.prepare(relu_world.bank())
    found = method.calibration(single_shots(100 * torch.from_numpy(relu_world.support)))
    assert (found.weights > 0).all()
    torch.testing.assert_close(method.shrunk(found).covariance.c.sum(dim=-1), torch.ones(relu_world.support.shape[:2]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(format="x"), "is JSON, but not a preset of GDC"),
        (lambda c: c.update(version=2), "preset format 2; this fewcal .* reads up to 1; upgrade"),
        (lambda c: c.pop("summary"), "params, summary or provenance are missing"),
        (lambda c: c["params"].pop("k"), "no value for k"),
        (lambda c: c["params"].update(k=0), "parameters that GDC refuses: k=0 is out of range"),
    ],
)
def test_damaged_preset_files_are_refused(tmp_path: Path, change: Callable[[dict], object], words: str) -> None:
    file = tmp_path / "mine.json"
    save_preset(file, get_preset("paper"), "as it was")
    assert get_preset(file) == get_preset("paper")
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=words):
        get_preset(file)
