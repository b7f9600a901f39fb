"""Transductive baselines against plain float64 loops of their papers' equations, and with one query."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from conftest import make_world
from fewcal._utils.randomness import TaskRandom
from fewcal.errors import InputError
from fewcal.methods import Method, TaskBatch, make_method
from reference import softmax, unit_rows

# TIM with few and large steps, which tests can wait for.
QUICK = {"steps": 30, "rate": 0.01}
SETTINGS: dict[str, dict] = {"tim": QUICK, "alpha-tim": QUICK, "bd-cspn": {"confident": 3}}
NAMES = ("soft-kmeans", "bd-cspn", "laplacianshot", "pt-map", "tim", "alpha-tim")
WORLD = make_world(3, signed=True, ways=4, shots=2, tasks=3, queries=6, spread=0.4)


def ready(name: str, **more: object) -> Method:
    return make_method(name, **SETTINGS.get(name, {}), **more).prepare(None)


def scores(method: Method, queries: int = 24) -> torch.Tensor:
    """Scores `(T, Q, N)` of the first queries of all tasks of the world."""
    support, labels, query = WORLD.tensors
    batch = TaskBatch(method.transform(support), labels, WORLD.ways, TaskRandom(0))
    return method.fit_predict(batch, method.transform(query[:, :queries]))


# ---- the equations --------------------------------------------------------------------------------------------------


def distances(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    return ((x[:, None] - means) ** 2).sum(axis=-1)


def cosines(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    return unit_rows(x) @ unit_rows(means).T


def own_means(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([x[y == c].mean(axis=0) for c in range(y.max() + 1)])


def soft_kmeans(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    z = softmax(-10 * distances(q, own_means(x, y)))
    means = [
        (x[y == c].sum(axis=0) + sum(w * row for w, row in zip(z[:, c], q, strict=True)))
        / ((y == c).sum() + z[:, c].sum())
        for c in range(y.max() + 1)
    ]
    return -10 * distances(q, np.stack(means))


def rectified(x: np.ndarray, y: np.ndarray, q: np.ndarray, confident: int) -> np.ndarray:
    moved, means = q + x.mean(axis=0) - q.mean(axis=0), own_means(x, y)
    cosine, out = cosines(moved, means), []
    for c, mean in enumerate(means):
        own = [i for i in np.argsort(-cosine[:, c]) if cosine[i].argmax() == c][:confident]
        rows = np.concatenate([x[y == c], moved[own]])
        weight = np.exp(cosines(rows, mean[None])[:, 0])
        out.append((weight[:, None] * rows).sum(axis=0) / weight.sum())
    return np.stack(out)


def bd_cspn(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    return cosines(q, rectified(x, y, q, 3))


def laplacianshot(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    unary, between = distances(q, rectified(x, y, q, len(q))), distances(q, q)
    np.fill_diagonal(between, np.inf)
    found = -unary
    for _ in range(20):
        p = softmax(found)
        found = np.stack([-unary[i] + 0.7 * p[np.argsort(between[i])[:2]].sum(axis=0) for i in range(len(q))])
    return found


def pt_map(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    x, q = (unit_rows(rows - rows.mean(axis=0)) for rows in (x, q))
    means, n = own_means(x, y), y.max() + 1

    def plan() -> np.ndarray:
        p = np.exp(-10 * distances(q, means))
        for _ in range(1000):
            p = p / p.sum(axis=1, keepdims=True)
            p = p / p.sum(axis=0) * len(q) / n
        return p

    for _ in range(20):
        p, rows = np.concatenate([np.eye(n)[y], plan()]), np.concatenate([x, q])
        means = means + 0.2 * (p.T @ rows / p.sum(axis=0)[:, None] - means)
    return np.log(plan())


def tim(x: np.ndarray, y: np.ndarray, q: np.ndarray, order: float = 1.0, weight: float = 0.1) -> np.ndarray:
    """Adam of Kingma and Ba, on gradients by the chain rule."""
    means, n = own_means(x, y), y.max() + 1

    def slope(p: np.ndarray) -> np.ndarray:
        """Derivative of the entropy."""
        return -np.log(p) - 1 if order == 1 else -order * p ** (order - 1) / (order - 1)

    def to_logits(p: np.ndarray, g: np.ndarray) -> np.ndarray:
        return p * (g - (p * g).sum(axis=1, keepdims=True))

    first, second = np.zeros_like(means), np.zeros_like(means)
    for t in range(1, QUICK["steps"] + 1):
        p, own = softmax(-7.5 * distances(q, means)), softmax(-7.5 * distances(x, means))
        g_query = to_logits(p, (weight * slope(p) - slope(p.mean(axis=0))) / len(q))
        g_own = weight * (own - np.eye(n)[y]) / len(x)
        grad = sum(15 * (g.T @ rows - g.sum(axis=0)[:, None] * means) for g, rows in ((g_query, q), (g_own, x)))
        first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad**2
        means = means - QUICK["rate"] * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return -7.5 * distances(q, means)


REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "soft-kmeans": soft_kmeans,
    "bd-cspn": bd_cspn,
    "laplacianshot": laplacianshot,
    "pt-map": pt_map,
    "tim": tim,
    "alpha-tim": lambda x, y, q: tim(x, y, q, 5.0, 1.0),  # α at two shots
}


@pytest.mark.parametrize("name", NAMES)
class TestTransductiveBaselines:
    def test_scores_are_those_of_the_equations(self, name: str) -> None:
        method, (support, labels, query) = ready(name), WORLD.tensors
        found = scores(method)
        for t in range(len(found)):
            x, q = (method.transform(rows[t]).double().numpy() for rows in (support, query))
            wanted = REFERENCES[name](x, labels[t].numpy(), q)
            np.testing.assert_allclose(found[t], wanted, rtol=2e-3, atol=2e-3 * max(np.abs(wanted).max(), 1e-3))

    def test_one_query_has_finite_scores(self, name: str) -> None:
        found = scores(ready(name), queries=1)
        assert found.shape == (3, 1, 4)
        assert torch.isfinite(found).all()


def test_plan_has_equal_shares() -> None:
    p = scores(ready("pt-map")).exp()
    torch.testing.assert_close(p.sum(dim=1), torch.full((3, 4), 6.0))
    torch.testing.assert_close(p.sum(dim=2), torch.ones(3, 24), rtol=1e-3, atol=1e-3)


def test_alpha_tim_of_order_one_and_the_weights_of_tim_is_tim() -> None:
    alike = ready("alpha-tim", alpha=1.0, cross_entropy=0.1, conditional=0.1)
    torch.testing.assert_close(scores(alike), scores(ready("tim")))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("bd-cspn", {"confident": -1}, "confident=-1 is out of range; use a number ≥ 0"),
        ("alpha-tim", {"alpha": 0.5}, "alpha=0.5 is out of range"),
        ("pt-map", {"rate": 2.0}, "rate=2.0 is out of range; use a number from 0 to 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused(name: str, settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_method(name, **settings)
