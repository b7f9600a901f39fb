"""Distances, neighbours, weights and calibrated means against the reference, and the limits the paper states."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fewcal.bank import BaseBank
from fewcal.calibrate import (
    METRICS,
    Calibration,
    Calibrator,
    MetricOptions,
    distances,
    nearest_class_distance,
    register_metric,
    squared_distances,
    weights_from_distances,
)
from fewcal.errors import FewcalWarning, InputError
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import describe_preset, save_preset
from small_worlds import SmallData, make_world


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
def test_distances_are_those_of_the_reference(world: SmallData, metric: str, delta: float) -> None:
    bases = [r.astype(np.float64) for r in world.base]
    means = np.array([r.mean(axis=0) for r in bases])
    got = distances(torch.from_numpy(world.support), world.bank(), metric, MetricOptions(delta))
    expected = np.array(
        [[reference.distance_to_each(x.astype(float), bases, means, metric, delta) for x in t] for t in world.support]
    )
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


def full_rank() -> tuple[list[np.ndarray], BaseBank]:
    """Three classes with many more rows than features."""
    rng = np.random.default_rng(0)
    bases = [rng.normal(size=(40, 4)) * scale + shift for scale, shift in ((1.0, 0.0), (2.0, 1.0), (0.5, 3.0))]
    return bases, BaseBank().fit(np.concatenate(bases), np.repeat(np.arange(3), 40))


@pytest.mark.parametrize("ridge", [0.0, 0.03, 2.0])
@pytest.mark.parametrize("shift", [True, False])
def test_mahalanobis_with_any_ridge_with_and_without_the_shift(ridge: float, shift: bool) -> None:
    bases, bank = full_rank()
    x = np.random.default_rng(1).normal(size=(5, 4))
    options = MetricOptions(mahalanobis_ridge=ridge, mahalanobis_shift=shift)
    logs, squares = [], []
    for rows in bases:
        sigma = reference.covariance(rows)
        sigma = sigma + ridge * np.trace(sigma) / 4 * np.eye(4)
        z = x - rows.mean(axis=0)
        logs.append(np.linalg.slogdet(sigma)[1])
        squares.append(np.einsum("ij,jk,ik->i", z, np.linalg.inv(sigma), z))
    expected = np.array(squares).T + np.array(logs) - min(logs) * shift
    got = distances(torch.from_numpy(x).float(), bank, "mahalanobis", options)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
    assert not shift or bool((got >= 0).all())


def test_mahalanobis_with_ridge_0_and_no_shift_is_equation_13() -> None:
    bases, bank = full_rank()
    x = np.random.default_rng(2).normal(size=(7, 4)) * 0.3 + np.array([0, 0, 0, 3, 3, 3, 1])[:, None]
    printed = np.empty((7, 3))
    for i, rows in enumerate(bases):
        mu = rows.mean(axis=0)
        sigma = (rows - mu).T @ (rows - mu) / (len(rows) - 1)
        for j, point in enumerate(x):
            printed[j, i] = np.log(np.linalg.det(sigma)) + (point - mu) @ np.linalg.inv(sigma) @ (point - mu)
    calibrator = Calibrator(bank, k=2, m=1, metric="mahalanobis", mahalanobis_ridge=0.0, mahalanobis_shift=False)
    points = torch.from_numpy(x).float()
    np.testing.assert_allclose(calibrator.distances(points), printed, rtol=1e-4, atol=1e-4)
    order = np.argsort(printed, axis=1)[:, :2]
    assert (np.take_along_axis(printed, order, 1) < 0).any()  # the log-determinant of a narrow class
    with pytest.warns(FewcalWarning, match="weights .* need not lie between 0 and 1; mahalanobis_shift=True"):
        found = calibrator.calibrate(points)
    np.testing.assert_array_equal(found.index, order)
    w = 1 / (1 + np.take_along_axis(printed, order, 1))
    mean = (x + sum(w[:, [j]] * bank.means.numpy()[order[:, j]] for j in range(2))) / (1 + w.sum(1, keepdims=True))
    np.testing.assert_allclose(found.weights, w, rtol=1e-3)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-3, atol=1e-3)


def test_negative_distances_are_refused_where_they_have_no_meaning() -> None:
    _, bank = full_rank()
    narrow = bank.means[2:]  # its log-determinant is the distance, and far below 0
    printed = {"metric": "mahalanobis", "mahalanobis_ridge": 0.0, "mahalanobis_shift": False}
    with pytest.raises(InputError, match=r"100% of the distances .* no value for m=1.5; use a whole m"):
        Calibrator(bank, k=1, m=1.5, **printed).calibrate(narrow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Calibrator(bank, k=1, m=0, **printed).calibrate(narrow).weights.item() == 0.5
    tiny = BaseBank().fit(np.concatenate([rows / 100 for rows in full_rank()[0]]), np.repeat(np.arange(3), 40))
    with pytest.raises(InputError, match=r"median distance between base classes is -.*use mahalanobis_shift=True"):
        Calibrator(tiny, k=1, m=1, distance_scale=1.0, **printed | {"mahalanobis_ridge": 2.0}).calibrate(narrow)


def test_ridge_and_shift_are_parameters_of_gdc(relu_world: SmallData, tmp_path: Path) -> None:
    params = GDCParams(metric="mahalanobis", mahalanobis_ridge=0.0, mahalanobis_shift=False)
    save_preset(tmp_path / "printed.json", params, "eq. 13 as printed")
    assert describe_preset(tmp_path / "printed.json").params == params
    with pytest.raises(InputError, match="mahalanobis_ridge=-1 is out of range; use a number ≥ 0"):
        GDCParams(mahalanobis_ridge=-1)
    method = GDC(params, cap_k=True)
    method.prepare(relu_world.bank())  # classes with fewer rows than features
    with pytest.raises(InputError, match="mahalanobis_ridge=0 needs invertible class covariances"):
        method.calibrator.calibrate(torch.from_numpy(relu_world.support))


def test_mahalanobis_without_a_ridge_needs_invertible_covariances(relu_world: SmallData) -> None:
    none = MetricOptions(mahalanobis_ridge=0.0)
    rng = np.random.default_rng(0)
    thin = BaseBank().fit(rng.random((14, 6)), ["thin"] * 4 + ["wide"] * 10)
    with pytest.raises(InputError, match=r"1 of 2 have no inverse \('thin' first\).*use a ridge > 0"):
        distances(torch.zeros(1, 6), thin, "mahalanobis", none)
    flat = rng.random((40, 3)) * [1, 1, 0]  # a feature that never varies
    with pytest.raises(InputError, match="2 of 2 have no inverse"):
        distances(torch.zeros(1, 3), BaseBank().fit(flat, [0, 1] * 20), "mahalanobis", none)
    for ridge in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=f"mahalanobis_ridge={ridge} must be a finite number ≥ 0"):
            distances(torch.zeros(1, 6), thin, "mahalanobis", MetricOptions(mahalanobis_ridge=ridge))


def test_register_metric_makes_a_function_a_distance(
    relu_world: SmallData, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.addfinalizer(lambda: METRICS.pop("cityblock"))

    @register_metric("cityblock", "sum of absolute differences")
    def cityblock(x: torch.Tensor, bank: BaseBank, options: MetricOptions) -> torch.Tensor:
        return (x[..., None, :] - bank.means).abs().sum(dim=-1)

    x = torch.from_numpy(relu_world.support)
    found = Calibrator(relu_world.bank(), k=3, metric="cityblock", distance_scale=1.0).calibrate(x)
    means = relu_world.bank().means
    assert torch.equal(found.index[..., 0], (x[..., None, :] - means).abs().sum(dim=-1).argmin(dim=-1))
    # Parameters and presets read the registry.
    params = GDCParams(metric="cityblock")
    save_preset(tmp_path / "toy.json", params, "a toy")
    assert "sum of absolute differences" in describe_preset(tmp_path / "toy.json").resolves["distance in the weight"]
    with pytest.raises(InputError, match="use one of sqeuclidean, euclidean, mahalanobis, delta, cityblock"):
        params.with_changes(metric="chessboard")


@pytest.mark.parametrize("metric", METRICS)
def test_nearest_class_distance_is_the_median(world: SmallData, metric: str) -> None:
    bases = [r.astype(np.float64) for r in world.base]
    means = np.array([r.mean(axis=0) for r in bases])
    expected = reference.unit_distance(bases, means, metric, 0.8)
    assert nearest_class_distance(world.bank(), metric, MetricOptions(0.8)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("m", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_calibrate_agrees_with_the_reference(world: SmallData, metric: str, m: float, k: int) -> None:
    bases = [r.astype(np.float64) for r in world.base]
    means = np.array([r.mean(axis=0) for r in bases])
    found = Calibrator(world.bank(), k=k, m=m, metric=metric, delta=0.9).calibrate(torch.from_numpy(world.support))
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


def test_calibrate_with_a_bank_in_chunks_gives_the_same(relu_world: SmallData) -> None:
    x = torch.from_numpy(relu_world.support[0])
    pieces = BaseBank()
    for i in range(0, len(relu_world.x), 13):
        pieces.partial_fit(relu_world.x[i : i + 13], relu_world.y[i : i + 13])
    a, b = Calibrator(relu_world.bank(), k=3).calibrate(x), Calibrator(pieces, k=3).calibrate(x)
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
def test_weight_at_distance_0_tends_to_one(m: float) -> None:
    bank = bank_at([1.0, 2.0], [50.0, 50.0])
    gaps = [10.0**-e for e in range(0, 7)]
    x = torch.tensor([[1.0 + g, 2.0] for g in gaps])
    w = Calibrator(bank, k=1, m=m).calibrate(x).weights.flatten()
    assert (w.diff() >= 0).all()
    on_top = Calibrator(bank, k=1, m=m).calibrate(torch.tensor([[1.0, 2.0]])).weights.item()
    assert on_top == pytest.approx(1.0, abs=1e-6 ** min(m, 1))
    assert weights_from_distances(torch.zeros(1, dtype=torch.float64), m).item() == 1


@settings(deadline=None)
@given(st.floats(0, 1e6, width=32), st.floats(0, 10))
def test_weights_stay_in_bounds(d: float, m: float) -> None:
    w = weights_from_distances(torch.tensor(d), m).item()
    assert 0 <= w <= 1
    assert w == pytest.approx(1 / (1 + float(np.float64(d) ** m)), rel=1e-4, abs=1e-37)


def test_weight_at_infinite_distance_is_zero() -> None:
    w = weights_from_distances(torch.tensor([1e30, torch.inf]), 4)
    assert w.tolist() == [0.0, 0.0]


def test_mean_with_a_distant_class_and_m_4_is_the_point() -> None:
    x = torch.tensor([[0.5, -0.5]])
    moved = [
        (Calibrator(bank_at([r, r]), k=1, m=4).calibrate(x).mean - x).norm().item()
        for r in (2.0, 4.0, 8.0, 32.0, 128.0, 1e4)
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
def test_mean_in_one_dimension_is_the_curve_of_the_paper(settings_: dict, curve: object) -> None:
    """One base class at μ, the support point at 0, k = 1: where the calibrated mean goes."""
    got = [Calibrator(bank_at([float(mu)]), k=1, **settings_).calibrate(torch.zeros(1, 1)).mean.item() for mu in GRID]
    np.testing.assert_allclose(got, curve(GRID), rtol=1e-5, atol=1e-6)  # type: ignore[operator]


def test_mean_in_one_dimension_has_the_shapes_of_the_paper() -> None:
    """DC follows a far base class for ever; m = 4 lets it go."""
    far = bank_at([100.0])
    x = torch.zeros(1, 1)
    assert Calibrator(far, k=1, equal=True).calibrate(x).mean.item() == pytest.approx(50)
    assert Calibrator(far, k=1, m=0).calibrate(x).mean.item() == pytest.approx(100 / 3)
    assert Calibrator(far, k=1, m=1).calibrate(x).mean.item() < 0.01
    assert Calibrator(far, k=1, m=4).calibrate(x).mean.item() < 1e-12


# ---- invariances ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [0.01, 3.0, 200.0])
def test_distance_scale_removes_the_scale_of_the_features(world: SmallData, metric: str, scale: float) -> None:
    """With Mahalanobis it never does; with the others distance_scale takes it out."""
    x = torch.from_numpy(world.support)
    scaled = BaseBank().fit(world.x * np.float32(scale), world.y)
    plain = Calibrator(world.bank(), k=4, m=2, metric=metric, distance_scale=0.7).calibrate(x)
    other = Calibrator(scaled, k=4, m=2, metric=metric, distance_scale=0.7).calibrate(x * scale)
    assert torch.equal(plain.index, other.index)
    torch.testing.assert_close(plain.weights, other.weights, rtol=2e-3, atol=1e-5)
    torch.testing.assert_close(plain.mean * scale, other.mean, rtol=2e-3, atol=2e-3 * scale)


def test_weights_without_distance_scale_depend_on_the_scale(relu_world: SmallData) -> None:
    x = torch.from_numpy(relu_world.support)
    scaled = BaseBank().fit(relu_world.x * np.float32(3), relu_world.y)
    plain, other = (Calibrator(b, k=4, m=2).calibrate(v) for v, b in ((x, relu_world.bank()), (3 * x, scaled)))
    assert (other.weights < plain.weights).all()


@pytest.mark.parametrize("metric", METRICS)
def test_calibrate_with_permuted_base_classes_gives_the_same(world: SmallData, metric: str) -> None:
    order = np.random.default_rng(0).permutation(len(world.base))
    shuffled = BaseBank().fit(
        np.concatenate([world.base[i] for i in order]),
        np.concatenate([[f"class {i}"] * len(world.base[i]) for i in order]),
    )
    x = torch.from_numpy(world.support)
    plain, other = (
        Calibrator(b, k=4, m=1.5, metric=metric, distance_scale=1.0).calibrate(x) for b in (world.bank(), shuffled)
    )
    torch.testing.assert_close(plain.weights, other.weights, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain.mean, other.mean, rtol=1e-4, atol=1e-5)
    assert torch.equal(plain.index, torch.from_numpy(order)[other.index])


def test_calibrate_in_batches_gives_the_same(relu_world: SmallData) -> None:
    x, bank = torch.from_numpy(relu_world.support), relu_world.bank()
    at_once = Calibrator(bank, k=4, m=2).calibrate(x)
    for t in range(len(x)):
        alone = Calibrator(bank, k=4, m=2).calibrate(x[t : t + 1])
        assert torch.equal(alone.index[0], at_once.index[t])
        torch.testing.assert_close(alone.mean[0], at_once.mean[t])


def test_calibrate_with_all_classes_as_neighbours() -> None:
    world = make_world(4)
    x = torch.from_numpy(world.support[0])
    before: Calibration | None = None
    for k in range(1, len(world.base) + 1):
        found = Calibrator(world.bank(), k=k).calibrate(x)
        if before is not None:
            assert torch.equal(found.index[:, :-1], before.index)
        before = found
    assert before is not None
    assert before.index.sort(dim=-1).values.tolist() == [list(range(len(world.base)))] * len(x)


def test_equal_weights(relu_world: SmallData) -> None:
    found = Calibrator(relu_world.bank(), k=3, equal=True).calibrate(torch.from_numpy(relu_world.support))
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
        ({"distance_scale": 0.0}, r"distance_scale=0\.0 must be > 0, or False"),
        ({"distance_scale": -1}, "distance_scale=-1 must be > 0"),
        ({"distance_scale_of": "metre"}, "distance_scale_of='metre' is unknown; use one of bank, one"),
    ],
)
def test_bad_parameters_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Calibrator(bank_at([0.0, 1.0], [2.0, 2.0]), **{"k": 1, **changes}).calibrate(torch.zeros(1, 2))


def test_unfit_banks_are_refused(relu_world: SmallData) -> None:
    with pytest.raises(InputError, match="support has 3 features, but the bank has 2"):
        Calibrator(bank_at([0.0, 1.0]), k=1).calibrate(torch.zeros(1, 3))
    with pytest.raises(InputError, match="distance_scale needs at least two base classes; use distance_scale=False"):
        Calibrator(bank_at([0.0, 1.0]), k=1, distance_scale=1.0).calibrate(torch.zeros(1, 2))
    with pytest.raises(InputError, match="kept no rows; it has no class covariances"):
        Calibrator(relu_world.bank(keep_rows=False), k=1, metric="mahalanobis").calibrate(
            torch.zeros(1, relu_world.base[0].shape[1])
        )
