"""What HGDC's answers do not depend on, what they tend to, and how sure they are in a world that it is the model of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conftest import SmallData, make_world
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.evaluation.stats import CalibrationBins
from fewcal.gaussianize import fit_gaussianization
from fewcal.methods import TaskBatch, make_method

WAYS = 4


def probabilities(
    base: tuple[np.ndarray, np.ndarray],
    support: np.ndarray,
    labels: np.ndarray,
    query: np.ndarray,
    moments: bool = False,
    **settings: Any,
) -> np.ndarray:
    """Probabilities `(Q, N)` of a task; with `moments` the bank has no rows of its own."""
    rows, y = base
    transform = fit_gaussianization(torch.from_numpy(rows).float(), 1.0, center=True, l2=True) if moments else None
    bank = BaseBank(0 if moments else None, transform=transform).fit(rows, y)
    method = make_method("hgdc", **settings).prepare(bank)
    x, q = (method.transform(torch.from_numpy(part).float())[None] for part in (support, query))
    head = method.fit(TaskBatch(x, torch.from_numpy(labels)[None], WAYS, TaskRandom(0)))
    return head.logits(q)[0].double().softmax(dim=-1).numpy()


def world_of(seed: int, shots: int, **settings: Any) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    world = make_world(seed, tasks=1, ways=WAYS, shots=shots, spread=0.6, rows=(36, 44), **settings)
    keep = np.sort(np.random.default_rng(seed).permutation(WAYS * shots)[: max(WAYS, WAYS * shots - 2)])
    keep = keep if len(set(world.labels[0][keep])) == WAYS else np.arange(WAYS * shots)
    parts = (world.support[0][keep], world.labels[0][keep], world.query[0])
    return (world.x.astype(np.float64), world.y), *(p.astype(np.float64) if p.dtype == np.float32 else p for p in parts)


@pytest.mark.parametrize("shots", [1, 4])
@pytest.mark.parametrize("signed", [False, True], ids=["relu", "signed"])
class TestOrder:
    """Answers do not depend on the order of anything."""

    @pytest.fixture
    def task(self, signed: bool, shots: int) -> Any:
        base, *task = world_of(5, shots, signed=signed, classes=18)
        base = np.sign(base[0]) * base[0] ** 2 * np.abs(base[0]), base[1]
        return base, *task

    def test_base_rows_and_classes_in_another_order(self, task: Any) -> None:
        (rows, y), *rest = task
        order = np.random.default_rng(0).permutation(len(y))
        np.testing.assert_allclose(probabilities((rows[order], y[order]), *rest), probabilities(*task), atol=1e-5)

    def test_support_in_another_order(self, task: Any) -> None:
        base, support, labels, query = task
        order = np.random.default_rng(0).permutation(len(labels))
        found = probabilities(base, support[order], labels[order], query)
        np.testing.assert_allclose(found, probabilities(*task), atol=1e-5)

    def test_classes_with_other_numbers(self, task: Any) -> None:
        base, support, labels, query = task
        number = np.random.default_rng(0).permutation(WAYS)
        found = probabilities(base, support, number[labels], query)
        np.testing.assert_allclose(found[:, number], probabilities(*task), atol=1e-5)
