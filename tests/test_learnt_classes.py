"""Whether the extractor learnt the base classes, and what new classes are like then."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, pearsonr
from torch import Tensor

from fewcal import BaseBank
from fewcal._utils.randomness import TaskRandom
from fewcal.bank.build import OneShotScale
from fewcal.class_prior import posterior
from fewcal.heads.discriminant import doubted
from fewcal.learnt_classes import NEW_SHARE, learnt, learnt_by_bank, with_new_classes, within_correlation
from fewcal.methods import TaskBatch
from fewcal.methods.bankless import BaseOdds
from fewcal.methods.hierarchical import HierarchicalGDC
from fewcal.presets import get_preset

DIM = 64


def network(
    classes: int, rows: int, known: bool, seed: int, uneven: float = 0.4, apart: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a network: those of classes that it learnt show their class strongly, some more than others by `uneven`.

    What it did not learn shows a third of the variance between classes, when rows have unit length: these have the
    share a²/(1 + a²) of it, a = 0.9 and 0.418.
    """
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rows)
    means = (apart if known else 0.418) * rng.normal(size=(classes, DIM))
    noise = 2 + rng.normal(size=(len(labels), DIM))  # as features that are mostly positive have a common mean
    shown = means[labels]
    if known:
        shown = shown * np.exp(uneven * rng.normal(size=(len(labels), 1)))
    return (shown + noise).astype(np.float32), labels


def prepared(bank: BaseBank) -> HierarchicalGDC:
    method = HierarchicalGDC(get_preset("default"))
    method.prepare(bank)
    return method


def scale(method: HierarchicalGDC) -> OneShotScale:
    assert method.one_shot is not None
    return method.one_shot


def confidence_and_accuracy(method: HierarchicalGDC, x: np.ndarray, gamma: float) -> tuple[float, float]:
    """Of one-shot tasks of ten classes, for rows that are classes of 20 rows each."""
    rows = method.prior.transform(torch.from_numpy(x)) - method.prior.origin
    z = rows.view(-1, 10, 20, DIM)
    p = method.params
    found = posterior(method.prior, z[:, :, 0], 1.0, sharpness=p.sharpness, strength=p.strength)
    directions = found.mean * found.precision
    scores = 2 * z[:, :, 1:].flatten(1, 2) @ directions.mT - (directions * found.mean).sum(dim=-1)[:, None]
    sure, answer = torch.softmax(doubted(gamma * scores, shots=1), dim=-1).max(dim=-1)
    return float(sure.mean()), float((answer == torch.arange(10).repeat_interleave(19)).float().mean())


def test_the_correlation_is_that_within_classes() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6, 9))
    b = b + 0.7 * a
    expected = pearsonr((a - a.mean(1, keepdims=True)).ravel(), (b - b.mean(1, keepdims=True)).ravel()).statistic
    shifts = rng.normal(size=(6, 1)) * 100  # between classes nothing is told
    found = within_correlation(torch.from_numpy(a + shifts), torch.from_numpy(3 * b - shifts))
    assert found == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.floats(-2, 3), st.lists(st.floats(0, 3), min_size=1, max_size=5), st.integers(2, 200))
def test_the_odds_are_those_of_two_normal_distributions(by_bank: float, shortfalls: list[float], ways: int) -> None:
    d = np.array(shortfalls)
    ratio = norm.logpdf(d, 0.9, (0.16 + 1 / ways) ** 0.5) - norm.logpdf(d, 0, (0.0225 + 1 / ways) ** 0.5)
    found = learnt(by_bank, torch.tensor(shortfalls, dtype=torch.float64), ways)
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-by_bank - np.minimum(ratio, 2))), atol=1e-6)


def test_rows_that_are_longer_than_base_rows_tell_no_more_than_rows_as_long() -> None:
    same, longer = learnt(0.0, torch.tensor([0.0, -3.0]), 20)
    assert same == longer


@pytest.mark.parametrize("count", [5, 60])
def test_new_classes_have_a_third_of_the_variance_and_rows_their_length(count: int) -> None:
    """Also where a row is a fifth of the mean of its class."""
    rng = np.random.default_rng(0)
    dim, classes = 400, 300
    rows = 0.6 * rng.normal(size=(classes, 1, dim)) / dim**0.5 + 0.8 * rng.normal(size=(classes, count, dim)) / dim**0.5
    x = torch.from_numpy(rows)[None]
    old, new = with_new_classes(x, x.mean(dim=2, keepdim=True), count)
    assert torch.equal(old, x)
    torch.testing.assert_close(new.norm(dim=-1), torch.ones(1, classes, count, dtype=torch.float64))
    within = new[0] @ new[0].mT  # rows of a class with each other
    others = ~torch.eye(count, dtype=torch.bool)
    assert float(within[:, others].mean()) == pytest.approx(NEW_SHARE * 0.36, abs=0.01)


def test_rows_are_told_less_an_origin() -> None:
    x = torch.nn.functional.normalize(torch.randn(1, 4, 6, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    origin = torch.full((8,), 0.1)
    old, new = with_new_classes(x - origin, x.mean(dim=2, keepdim=True) - origin, 6, origin)
    torch.testing.assert_close(old, x - origin)
    torch.testing.assert_close((new + origin).norm(dim=-1), torch.ones(1, 4, 6))


def test_a_bank_whose_rows_have_lost_their_length_tells_by_its_tasks_alone() -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    assert learnt_by_bank(1.0, x, x.mean(dim=2, keepdim=True), x, None) == (0, 0, 0)
    assert learnt_by_bank(1e9, x, x.mean(dim=2, keepdim=True), x, None).learnt == 3
    same = torch.zeros(2, 3, 4, 1)  # lengths that do not vary tell nothing, and are no error
    assert learnt_by_bank(1.0, x, x.mean(dim=2, keepdim=True), torch.ones_like(x), same).learnt == -2


def test_the_signs_tell_a_network_that_learnt_the_base_classes_from_one_that_did_not() -> None:
    learnt_bank, other = (BaseBank().fit(*network(80, 40, known, seed=0)) for known in (True, False))
    assert scale(prepared(learnt_bank)).learnt > 2
    assert scale(prepared(other)).learnt < 0


def test_new_classes_of_a_network_that_learnt_the_base_classes_are_known_from_these() -> None:
    """γ of tasks of new classes, where their confidence is their accuracy; base classes as they are allow far more."""
    method = prepared(BaseBank().fit(*network(80, 40, True, seed=0, uneven=0.0)))
    new = network(400, 20, False, seed=1)[0]
    sure, right = confidence_and_accuracy(method, new, scale(method).new_gamma)
    assert sure == pytest.approx(right, abs=0.06)
    sure, _ = confidence_and_accuracy(method, new, scale(method).gamma)
    assert sure > right + 0.1


def test_examples_that_are_shorter_than_base_rows_make_answers_less_sure() -> None:
    """The directions of all rows are the same, and so are the answers."""
    x, y = network(80, 40, True, seed=0, apart=0.4)
    support = network(5, 1, True, seed=1, apart=0.4)[0]
    method = prepared(BaseBank().fit(x, y))
    centre = x.mean(axis=0)
    labels, random = torch.arange(5)[None], TaskRandom(0, [0])

    def sharpness(length: float) -> float:
        rows = torch.from_numpy(centre + length * (support - centre))
        head = method.fit(TaskBatch(method.row_map(rows)[None], labels, 5, random))
        return float(head.head.weight.norm())

    weights = [sharpness(length) for length in (1.5, 1.0, 0.7, 0.5)]
    assert weights[0] == pytest.approx(weights[1], rel=0.2)
    assert np.diff(weights).max() < 1e-3 * weights[0]
    assert weights[3] < 0.99 * weights[1]


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.5, 50), st.floats(0.1, 50), st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 12), st.floats(1.0, 1.3)
)
def test_odds_of_base_tasks_stay_between_their_limits(
    as_they_are: float, as_new: float, known: float, domain: float, examples: float, leeway: float
) -> None:
    odds = BaseOdds(as_they_are, as_new, torch.tensor([known]), torch.tensor([domain]), leeway)
    found = float(odds.of(torch.tensor([examples])))
    assert found <= max(examples, min(as_they_are, 2 * examples)) * 1.001
    assert found >= min(examples, as_they_are, 1.1 * as_new) * 0.999
    far = float(odds._replace(in_domain=torch.zeros(1)).of(torch.tensor([examples])))
    assert far <= examples * 1.001  # classes of another domain are no reason to be surer
