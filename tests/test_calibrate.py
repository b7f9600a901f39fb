"""Distances, neighbours, weights and calibrated means against the reference, and the limits the paper states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from conftest import ProcessGroup, make_world
from fewcal.bank import BaseBank
from fewcal.calibrate import (
    METRICS,
    Calibration,
    calibrate,
    distances,
    squared_distances,
    unit_distance,
    weights_from_distances,
)
from fewcal.errors import InputError


def cloud(mean: np.ndarray | list[float], offset: float = 1.0) -> np.ndarray:
    """Rows with exactly this mean: one step to each side along every axis."""
    mean = np.asarray(mean, dtype=np.float64)
    return np.concatenate([mean + offset * np.eye(len(mean)), mean - offset * np.eye(len(mean))])


def bank_at(*means: list[float]) -> BaseBank:
    """A bank with one base class at each of the given means."""
    rows = [cloud(m) for m in means]
    return BaseBank().fit(np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(r) for r in rows]))


# ---- against the reference --------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("delta", [0.5, 1.0, 1.7])
def test_distances(world: ProcessGroup, metric: str, delta: float) -> None:
    bases = [r.astype(np.float64) for r in world.base]
    means = np.array([r.mean(axis=0) for r in bases])
    got = distances(torch.from_numpy(world.support), world.bank(), metric, delta=delta)
    expected = np.array(
        [[reference.distance_to_each(x.astype(float), bases, means, metric, delta) for x in t] for t in world.support]
    )
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


def test_mahalanobis_of_a_low_rank_bank_uses_what_it_keeps(signed_world: ProcessGroup) -> None:
    x = torch.from_numpy(signed_world.support)
    torch.testing.assert_close(
        distances(x, signed_world.bank(rank=64), "mahalanobis"),
        distances(x, signed_world.bank(), "mahalanobis"),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("metric", METRICS)
def test_the_unit_of_a_bank(world: ProcessGroup, metric: str) -> None:
    bases = [r.astype(np.float64) for r in world.base]
    means = np.array([r.mean(axis=0) for r in bases])
    expected = reference.unit_distance(bases, means, metric, 0.8)
    assert unit_distance(world.bank(), metric, delta=0.8) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("m", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_neighbours_weights_and_mean(world: ProcessGroup, metric: str, m: float, k: int) -> None:
    bases = [r.astype(np.float64) for r in world.base]
    means = np.array([r.mean(axis=0) for r in bases])
    found = calibrate(torch.from_numpy(world.support), world.bank(), k=k, m=m, metric=metric, delta=0.9)
    assert found.index.shape == found.weights.shape == found.distances.shape == (*world.support.shape[:2], k)
    assert (found.distances.diff(dim=-1) >= 0).all()
    for t, task in enumerate(world.support.astype(np.float64)):
        for s, x in enumerate(task):
            d = reference.distance_to_each(x, bases, means, metric, 0.9)
            order = np.argsort(d)[:k]
            assert found.index[t, s].tolist() == order.tolist()
            w = reference.weight(d[order], m)
            np.testing.assert_allclose(found.weights[t, s], w, rtol=1e-3)
            np.testing.assert_allclose(found.normalised[t, s], w / (1 + w.sum()), rtol=1e-3)
            np.testing.assert_allclose(
                found.mean[t, s], reference.calibrated_mean(x, w, means[order]), rtol=1e-3, atol=1e-4
            )


def test_a_bank_kept_in_pieces_gives_the_same(relu_world: ProcessGroup) -> None:
    x = torch.from_numpy(relu_world.support[0])
    pieces = BaseBank()
    for i in range(0, len(relu_world.x), 13):
        pieces.partial_fit(relu_world.x[i : i + 13], relu_world.y[i : i + 13])
    a, b = calibrate(x, relu_world.bank(), k=3), calibrate(x, pieces, k=3)
    assert torch.equal(a.index, b.index)
    torch.testing.assert_close(a.mean, b.mean)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_squared_distances_of_any_shape(b: int, c: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, mu = rng.normal(size=(b, d)) * 10.0 ** rng.integers(-3, 4), rng.normal(size=(c, d))
    got = squared_distances(torch.from_numpy(x), torch.from_numpy(mu))
    expected = ((x[:, None] - mu[None]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    assert (got >= 0).all()


# ---- the paper's limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_the_weight_tends_to_one_on_top_of_a_base_class(m: float) -> None:
    bank = bank_at([1.0, 2.0], [50.0, 50.0])
    gaps = [10.0**-e for e in range(0, 7)]
    x = torch.tensor([[1.0 + g, 2.0] for g in gaps])
    w = calibrate(x, bank, k=1, m=m).weights.flatten()
    assert (w.diff() >= 0).all()
    on_top = calibrate(torch.tensor([[1.0, 2.0]]), bank, k=1, m=m).weights.item()
    assert on_top == pytest.approx(1.0, abs=1e-6 ** min(m, 1))
    assert weights_from_distances(torch.zeros(1, dtype=torch.float64), m).item() == 1


@settings(deadline=None)
@given(st.floats(0, 1e6, width=32), st.floats(0, 10))
def test_weights_stay_in_bounds(d: float, m: float) -> None:
    w = weights_from_distances(torch.tensor(d), m).item()
    assert 0 <= w <= 1
    assert w == pytest.approx(1 / (1 + float(np.float64(d) ** m)), rel=1e-4, abs=1e-37)


def test_infinitely_far_base_classes_weigh_nothing() -> None:
    w = weights_from_distances(torch.tensor([1e30, torch.inf]), 4)
    assert w.tolist() == [0.0, 0.0]


def test_the_point_stays_put_as_the_base_class_moves_away_with_m_4() -> None:
    x = torch.tensor([[0.5, -0.5]])
    moved = [
        (calibrate(x, bank_at([r, r]), k=1, m=4).mean - x).norm().item() for r in (2.0, 4.0, 8.0, 32.0, 128.0, 1e4)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 1e-6


GRID = np.linspace(0.0, 5.0, 26)


@pytest.mark.parametrize(
    ("settings_", "curve"),
    [
        ({"equal": True}, lambda mu: mu / 2),  # DC
        ({"m": 0.0}, lambda mu: mu / 3),
        ({"m": 1.0}, lambda mu: mu / (2 + mu**2)),
        ({"m": 4.0}, lambda mu: mu / (2 + mu**8)),
        ({"m": 1.0, "metric": "euclidean"}, lambda mu: mu / (2 + mu)),
        ({"m": 4.0, "metric": "euclidean"}, lambda mu: mu / (2 + mu**4)),
    ],
    ids=["DC", "m=0", "m=1", "m=4", "m=1 plain", "m=4 plain"],
)
def test_the_papers_figure_in_one_dimension(settings_: dict, curve: object) -> None:
    """One base class at μ, the support point at 0, k = 1: where the calibrated mean goes."""
    got = [calibrate(torch.zeros(1, 1), bank_at([float(mu)]), k=1, **settings_).mean.item() for mu in GRID]
    np.testing.assert_allclose(got, curve(GRID), rtol=1e-5, atol=1e-6)  # type: ignore[operator]


def test_the_figures_shapes() -> None:
    """DC follows a far base class for ever; m = 4 lets it go."""
    far = bank_at([100.0])
    x = torch.zeros(1, 1)
    assert calibrate(x, far, k=1, equal=True).mean.item() == pytest.approx(50)
    assert calibrate(x, far, k=1, m=0).mean.item() == pytest.approx(100 / 3)
    assert calibrate(x, far, k=1, m=1).mean.item() < 0.01
    assert calibrate(x, far, k=1, m=4).mean.item() < 1e-12


# ---- invariances ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [0.01, 3.0, 200.0])
def test_with_a_unit_the_scale_of_the_features_does_not_matter(world: ProcessGroup, metric: str, scale: float) -> None:
    """With Mahalanobis it never does; with the others the unit takes it out."""
    x = torch.from_numpy(world.support)
    scaled = BaseBank().fit(world.x * np.float32(scale), world.y)
    plain = calibrate(x, world.bank(), k=4, m=2, metric=metric, unit=0.7)
    other = calibrate(x * scale, scaled, k=4, m=2, metric=metric, unit=0.7)
    assert torch.equal(plain.index, other.index)
    torch.testing.assert_close(plain.weights, other.weights, rtol=2e-3, atol=1e-5)
    torch.testing.assert_close(plain.mean * scale, other.mean, rtol=2e-3, atol=2e-3 * scale)


def test_without_a_unit_the_scale_does_matter(relu_world: ProcessGroup) -> None:
    x = torch.from_numpy(relu_world.support)
    scaled = BaseBank().fit(relu_world.x * np.float32(3), relu_world.y)
    plain, other = (calibrate(*v, k=4, m=2) for v in ((x, relu_world.bank()), (3 * x, scaled)))
    assert (other.weights < plain.weights).all()


@pytest.mark.parametrize("metric", METRICS)
def test_the_order_of_base_classes_does_not_matter(world: ProcessGroup, metric: str) -> None:
    order = np.random.default_rng(0).permutation(len(world.base))
    shuffled = BaseBank().fit(
        np.concatenate([world.base[i] for i in order]),
        np.concatenate([[f"class {i}"] * len(world.base[i]) for i in order]),
    )
    x = torch.from_numpy(world.support)
    plain, other = (calibrate(x, b, k=4, m=1.5, metric=metric, unit=1.0) for b in (world.bank(), shuffled))
    torch.testing.assert_close(plain.weights, other.weights, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain.mean, other.mean, rtol=1e-4, atol=1e-5)
    assert torch.equal(plain.index, torch.from_numpy(order)[other.index])


def test_batches_do_not_matter(relu_world: ProcessGroup) -> None:
    x, bank = torch.from_numpy(relu_world.support), relu_world.bank()
    at_once = calibrate(x, bank, k=4, m=2)
    for t in range(len(x)):
        alone = calibrate(x[t : t + 1], bank, k=4, m=2)
        assert torch.equal(alone.index[0], at_once.index[t])
        torch.testing.assert_close(alone.mean[0], at_once.mean[t])


def test_all_base_classes_can_be_neighbours() -> None:
    world = make_world(4)
    x = torch.from_numpy(world.support[0])
    before: Calibration | None = None
    for k in range(1, len(world.base) + 1):
        found = calibrate(x, world.bank(), k=k)
        if before is not None:
            assert torch.equal(found.index[:, :-1], before.index)
        before = found
    assert before is not None
    assert before.index.sort(dim=-1).values.tolist() == [list(range(len(world.base)))] * len(x)


def test_equal_weights(relu_world: ProcessGroup) -> None:
    found = calibrate(torch.from_numpy(relu_world.support), relu_world.bank(), k=3, equal=True)
    assert (found.weights == 1).all()
    torch.testing.assert_close(found.normalised, torch.full_like(found.weights, 0.25))


# ---- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": 0}, "k=0 must be an integer from 1 to the number of base classes, 2"),
        ({"k": 3}, "k=3 must be an integer from 1 to the number of base classes, 2"),
        ({"k": -1}, "k=-1"),
        ({"k": 1.5}, r"k=1\.5"),
        ({"k": True}, "k=True"),
        ({"k": float("inf")}, "k=inf"),
        ({"k": "two"}, "k='two'"),
        ({"m": -1}, "m=-1 must be a finite number ≥ 0"),
        ({"m": float("inf")}, "m=inf"),
        ({"m": float("nan")}, "m=nan"),
        ({"metric": "cosine"}, "metric='cosine' is unknown; use one of sqeuclidean"),
        ({"unit": 0.0}, r"unit=0\.0 must be > 0, or False"),
        ({"unit": -1}, "unit=-1 must be > 0"),
    ],
)
def test_bad_parameters(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        calibrate(torch.zeros(1, 2), bank_at([0.0, 1.0], [2.0, 2.0]), **{"k": 1, **changes})


def test_other_refusals(relu_world: ProcessGroup) -> None:
    with pytest.raises(InputError, match="support has 3 features, but the bank has 2"):
        calibrate(torch.zeros(1, 3), bank_at([0.0, 1.0]), k=1)
    with pytest.raises(InputError, match="unit needs at least two base classes; use unit=False"):
        calibrate(torch.zeros(1, 2), bank_at([0.0, 1.0]), k=1, unit=1.0)
    with pytest.raises(InputError, match="no class covariances"):
        calibrate(torch.zeros(1, relu_world.base[0].shape[1]), relu_world.bank(rank=0), k=1, metric="mahalanobis")
