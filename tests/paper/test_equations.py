"""GDC against a second implementation of equations 1 to 13: plain loops in float64, written from the text alone."""

from __future__ import annotations

import equations as eq
import numpy as np
import pytest
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibrator, MetricOptions, distances
from fewcal.gaussianize import fit_gaussianization
from fewcal.heads import TaskBatch
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams

# Of the largest entry: float32 throughout, and float64 where it is used.
SINGLE, DOUBLE = 1e-5, 1e-9


def close(found: object, expected: object, tolerance: float = SINGLE) -> None:
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


class World:
    """Base classes of as many rows each, and support points, in float32 and in float64."""

    def __init__(self, signed: bool, seed: int = 0, classes: int = 7, rows: int = 12, dim: int = 5) -> None:
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(classes + 3, 1, dim))
        x = (centres + 0.4 * rng.normal(size=(classes + 3, rows, dim))).astype(np.float32)
        x = x if signed else np.abs(x)
        self.base, self.support, self.signed = x[:classes], x[classes:, :2].reshape(-1, dim), signed
        self.labels = [0, 0, 1, 1, 2, 2]

    def bank(self) -> BaseBank:
        labels = np.repeat(np.arange(len(self.base)), self.base.shape[1])
        return BaseBank().fit(self.base.reshape(-1, self.base.shape[2]), labels)


@pytest.fixture(params=[False, True], ids=["nonnegative", "signed"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_gaussianization_of_base_and_support_is_equations_1_to_3(world: World, beta: float) -> None:
    base = torch.from_numpy(world.base.reshape(-1, world.base.shape[2]))
    space = fit_gaussianization(base, beta, "auto", False, False, 1e-6)
    close(space(torch.from_numpy(world.support)), eq.gaussianize(world.support, beta, not world.signed))


@pytest.mark.parametrize(("k", "m", "alpha1", "ratio"), [(1, 4.0, 1.0, 0.0), (3, 1.0, 400.0, 0.2), (7, 0.5, 0.5, 0.1)])
def test_calibrated_distribution_is_equations_4_to_10(
    world: World, k: int, m: float, alpha1: float, ratio: float
) -> None:
    params = GDCParams(k=k, m=m, alpha1=alpha1, alpha2_ratio=ratio, beta=0.5, n=3)
    method = GDC(params)
    method.prepare(world.bank())
    support = method.transform(torch.from_numpy(world.support))
    batch = TaskBatch(support[None], torch.tensor([world.labels]), 3, TaskRandom(0, [0]))
    found = method.calibration(batch)
    gaussian = method.shrunk(found).gaussian(found.mean)
    base = [eq.gaussianize(rows, 0.5, not world.signed) for rows in world.base]
    for i, row in enumerate(world.support):
        x = eq.gaussianize(row, 0.5, not world.signed)
        d = [eq.squared_distance(x, eq.mean(rows)) for rows in base]
        chosen = eq.nearest(d, k)
        w = eq.weights([d[c] for c in chosen], m)
        mu, sigma = eq.calibrated(x, w, [base[c] for c in chosen])
        shrunk = eq.shrink(sigma, alpha1, alpha1 * ratio)
        assert found.index[0, i].tolist() == chosen
        close(found.distances[0, i], [d[c] for c in chosen])
        close(found.weights[0, i], w)
        close(found.mean[0, i], mu)
        close(gaussian.dense()[0, i], shrunk)
        close(gaussian.log_prob(found.mean[:, :, None])[0, i, 0], eq.log_density(mu, mu, shrunk))
    drawn = method.calibrated(batch).points()
    close(drawn[0][0, : len(support)], support)
    points = [drawn[0][0, len(support) + 3 * i : len(support) + 3 * (i + 1)].numpy() for i in range(len(support))]
    x, y = eq.augment(support.numpy(), world.labels, points)
    assert drawn[1][0].tolist() == y
    close(drawn[0][0], x)


def test_distances_are_those_of_appendix_a(world: World) -> None:
    bank, x = world.bank(), torch.from_numpy(world.support)
    for metric, delta, root in (("sqeuclidean", 1.0, False), ("delta", 0.7, False), ("euclidean", 1.0, True)):
        found = distances(x, bank, metric, MetricOptions(delta=delta))
        expected = [[eq.squared_distance(row, eq.mean(rows), delta) for rows in world.base] for row in world.support]
        close(found, np.sqrt(expected) if root else expected)


def test_mahalanobis_distance_is_equation_13_and_orders_by_equation_12(world: World) -> None:
    found = distances(torch.from_numpy(world.support), world.bank(), "mahalanobis", MetricOptions(1.0, 0.0, False))
    expected = [[eq.mahalanobis(row, rows) for rows in world.base] for row in world.support]
    close(found, expected)
    for row, d in zip(world.support, expected, strict=True):
        log_p = [eq.class_log_probability(row, rows) for rows in world.base]
        close([-2 * p for p in log_p], d, DOUBLE)


def test_mahalanobis_distance_of_ill_conditioned_classes_has_float64_precision() -> None:
    """Rows are exact in float32, so that only products can lose digits: the condition number is above 1e5."""
    rng = np.random.default_rng(1)
    half = rng.integers(-8, 9, size=(4, 8, 5)) * np.array([1024.0, 64.0, 16.0, 2.0, 1.0])
    centre = rng.integers(-3, 4, size=(4, 1, 5)).astype(float)
    rows = np.concatenate([centre + half, centre - half, centre], axis=1)  # 17 rows: the factor is over √16
    bank = BaseBank().fit(rows.reshape(-1, 5).astype(np.float32), np.repeat(np.arange(4), 17))
    x = torch.from_numpy(centre[:, 0] + 1.0)
    for ridge in (0.0, 0.01):
        found = distances(x, bank, "mahalanobis", MetricOptions(1.0, ridge, False))
        expected = np.empty((4, 4))
        for i, row in enumerate(x.numpy()):
            for c, own in enumerate(rows):
                sigma, gap = eq.cross(own, own), row - eq.mean(own)
                sigma += ridge * np.trace(sigma) / 5 * np.eye(5)
                expected[i, c] = np.linalg.slogdet(sigma)[1] + gap @ np.linalg.solve(sigma, gap)
        close(found, expected, DOUBLE)
    assert np.linalg.cond(eq.cross(rows[0], rows[0])) > 1e5


def test_neighbours_by_mahalanobis_distance_are_those_of_float64() -> None:
    world = World(signed=True, seed=3, classes=20, rows=40, dim=12)
    scale = np.logspace(0, -2.5, 12).astype(np.float32)
    world.base, world.support = world.base * scale, world.support * scale
    calibrator = Calibrator(world.bank(), k=5, m=1, metric="mahalanobis", mahalanobis_ridge=0.0)
    found = calibrator.calibrate(torch.from_numpy(world.support)).index.tolist()
    for row, chosen in zip(world.support, found, strict=True):
        assert chosen == eq.nearest([eq.mahalanobis(row, rows) for rows in world.base], 5)
