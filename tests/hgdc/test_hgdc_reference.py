"""HGDC against its reference in float64."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import reference
from fewcal import power_choice
from fewcal._utils.randomness import TaskRandom
from fewcal.hgdc import mixture, temperature
from fewcal.methods import TaskBatch, make_method
from fewcal.methods.hgdc import HGDC
from small_worlds import SmallData, make_world

CONSTANTS = SimpleNamespace(**(vars(temperature) | vars(mixture) | vars(power_choice)))
WORLDS = {
    "signed, rows < features": {"seed": 2, "signed": True, "classes": 20, "dim": 24, "rows": (7, 11), "spread": 0.8},
    "tails on one side": {"seed": 1, "classes": 15, "dim": 18, "bend": lambda x: x**6},
    "tails on both sides": {"seed": 3, "signed": True, "classes": 16, "dim": 12, "bend": lambda x: x**5},
    "features of any scale": {"seed": 4, "signed": True, "dim": 12, "bend": lambda x: x * np.geomspace(0.01, 10, 12)},
}
SHOTS = {
    "1": [1, 1, 1, 1],
    "3": [3, 3, 3, 3],
    "5": [5, 5, 5, 5],
    "uneven": [1, 2, 5, 3],
    "one of several": [1, 1, 2, 1],
}


def world_of(name: str) -> SmallData:
    settings = dict(WORLDS[name])
    bend = settings.pop("bend", lambda x: x)
    world = make_world(**settings, ways=4, shots=5, tasks=2)
    base, support, query = (
        [bend(x).astype(np.float32) for x in part] for part in (world.base, world.support, world.query)
    )
    return replace(world, base=base, support=np.stack(support), query=np.stack(query))


@pytest.fixture(scope="module", params=WORLDS)
def fitted(request: pytest.FixtureRequest) -> tuple[SmallData, HGDC, Any, reference.Prior]:
    """A world, HGDC prepared for its base classes, and the map and the prior of the reference."""
    world = world_of(request.param)
    method = make_method("hgdc").prepare(world.bank())
    return world, method, *reference.hgdc_prior(world.base, method.settings, CONSTANTS)


def test_prior_is_the_reference(fitted: tuple[SmallData, HGDC, Any, reference.Prior]) -> None:
    world, method, move, expected = fitted
    found = method.prior
    assert found.gamma == pytest.approx(expected.gamma, rel=1e-3)  # as fine as the bisection
    assert (found.weight, found.share) == pytest.approx((expected.weight, expected.share), rel=1e-4)
    np.testing.assert_allclose(np.sort(found.psi), np.sort(expected.psi), rtol=1e-3)
    # Directions in which base means are equal may be rotated: products are compared.
    np.testing.assert_allclose(found.base_means @ found.base_means.T, expected.means @ expected.means.T, atol=1e-5)
    query = world.query[0]
    z = found.transform(torch.from_numpy(query)) - found.origin
    np.testing.assert_allclose(z @ found.base_means.T, expected.rows(move(query)) @ expected.means.T, atol=1e-4)


@pytest.mark.parametrize("shots", SHOTS.values(), ids=SHOTS)
def test_fit_is_the_reference(fitted: tuple[SmallData, HGDC, Any, reference.Prior], shots: list[int]) -> None:
    world, method, move, prior = fitted
    prior = replace(prior, gamma=method.prior.gamma)
    keep = np.concatenate([5 * c + np.arange(k) for c, k in enumerate(shots)])
    support, labels = world.support[:, keep], world.labels[:, keep]
    x, q = (
        method.transform(torch.from_numpy(rows).flatten(0, 1)).unflatten(0, (2, -1)) for rows in (support, world.query)
    )
    logits = method.fit(TaskBatch(x, torch.from_numpy(labels), 4, TaskRandom(0, [0, 1]))).logits(q).double().numpy()
    for t in range(2):
        expected = reference.hgdc_scores(move, prior, support[t], labels[t], world.query[t], method.settings, CONSTANTS)
        # Up to what all classes share, which is no part of a probability.
        found, expected = (s - s.mean(axis=1, keepdims=True) for s in (logits[t], expected))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
