"""The say of the base classes of the preset `default`, and what support rows that are left out make of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fewcal import BaseBank, GDCClassifier
from fewcal._utils.randomness import TaskRandom
from fewcal.methods import TaskBatch
from fewcal.methods.hierarchical import BlendedHead, HierarchicalGDC, left_out_gain
from fewcal.presets import get_preset
from fewcal.trust import say_with_evidence

DIM, CLASSES = 40, 15
NOISE = np.where(np.arange(DIM) < 30, 2.0, 0.5)  # rows vary most where no classes differ

pytestmark = pytest.mark.filterwarnings("ignore:.*base classes are few")


def rows(classes: int, each: int, seed: int, noise: np.ndarray | float = NOISE) -> tuple[np.ndarray, np.ndarray]:
    """Rows of classes that differ in the last ten directions alone, and their labels."""
    rng = np.random.default_rng(seed)
    centres = np.where(np.arange(DIM) < 30, 0.0, rng.normal(size=(classes, DIM)))
    labels = np.repeat(np.arange(classes), each)
    return (centres[labels] + noise * rng.normal(size=(len(labels), DIM))).astype(np.float32), labels


@pytest.fixture(scope="module")
def method() -> HierarchicalGDC:
    """Prepared with few base classes of many rows: what they know is the covariance."""
    return prepared()


def prepared(**changes: float) -> HierarchicalGDC:
    found = HierarchicalGDC(get_preset("default").with_changes(**changes)).prepare(
        BaseBank().fit(*rows(CLASSES, 100, seed=0))
    )
    assert isinstance(found, HierarchicalGDC)
    return found


def task(method: HierarchicalGDC, shot: int, seeds: tuple[int, ...] = (1,)) -> TaskBatch:
    x = torch.stack([torch.from_numpy(rows(5, shot, seed)[0]) for seed in seeds])
    labels = torch.arange(5).repeat_interleave(shot).expand(len(seeds), -1)
    z = method.transform(x.view(-1, DIM)).view(len(seeds), 5 * shot, -1)
    return TaskBatch(z, labels, 5, TaskRandom(0, seeds))


def used(method: HierarchicalGDC, batch: TaskBatch) -> Tensor:
    head = method.fit(batch)
    assert isinstance(head, BlendedHead)
    return head.trust


def test_evidence_raises_the_say_to_all_of_it_and_never_lowers_it() -> None:
    says = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])
    for gain in (-5.0, 0.0):
        assert torch.equal(say_with_evidence(says, torch.tensor(gain)), says)
    raised = torch.stack([say_with_evidence(says, torch.tensor(g)) for g in (0.0, 0.1, 0.5, 1.0, 2.0)])
    assert bool((raised.diff(dim=0)[:, :-1] > 0).all())
    assert bool((raised.diff(dim=1) > 0).all())
    assert bool((raised[:, -1] == 1).all())
    assert bool((say_with_evidence(says, torch.tensor(1e6)) > 0.999).all())
    odds = float(say_with_evidence(torch.tensor(0.5), torch.tensor(0.25)))
    assert odds / (1 - odds) == pytest.approx(1.05 * np.e - 0.05, rel=1e-5)


def test_the_gain_is_that_of_log_likelihoods_less_its_standard_error_in_any_order_of_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
    model, plain = torch.randn(2, len(labels), 4, generator=generator, dtype=torch.float64).unbind()
    each = []
    for i, c in enumerate(labels.tolist()):
        k = int((labels == c).sum())
        counts = max(k - 2, 0) / max(k - 1, 1)
        each.append(counts * float(model[i].log_softmax(0)[c] - plain[i].log_softmax(0)[c]))
    expected = (sum(each) - np.std(each) * len(each) ** 0.5) / 4
    assert float(left_out_gain(model[None], plain[None], labels[None])) == pytest.approx(expected)
    order = torch.tensor([2, 0, 3, 1])
    moved = [m[None][..., order.argsort()] for m in (model, plain)]
    assert float(left_out_gain(*moved, order[labels][None])) == pytest.approx(expected)


@pytest.mark.parametrize("shot", [1, 2])
def test_with_one_or_two_rows_a_class_there_is_no_evidence(method: HierarchicalGDC, shot: int) -> None:
    batch = task(method, shot, (1, 2, 3))
    torch.testing.assert_close(used(method, batch), torch.full((3,), method.say_at(shot)), rtol=0, atol=1e-7)


def test_with_many_shots_the_support_knows_that_the_covariance_is_right(method: HierarchicalGDC) -> None:
    for shot in (5, 20):
        batch = task(method, shot, (1, 2, 3))
        assert float(used(method, batch).min()) > 0.5 + 0.5 * method.say_at(shot)
        torch.testing.assert_close(method.trust(batch).share, used(method, batch))


def test_the_support_overrules_a_domain_that_does_not_match() -> None:
    loud = NOISE * np.where(np.arange(DIM) < 30, 2.5, 1.0)  # rows hardly lie along the directions of base classes
    found = HierarchicalGDC(get_preset("default")).prepare(BaseBank().fit(*rows(CLASSES, 100, seed=0, noise=loud)))
    assert isinstance(found, HierarchicalGDC)
    for shot, low, high in ((1, 0.0, found.say), (20, 0.99, 1.0)):
        z = found.transform(torch.from_numpy(rows(5, shot, seed=1, noise=loud)[0]))[None]
        share, _ = found.trust(TaskBatch(z, torch.arange(5).repeat_interleave(shot)[None], 5, TaskRandom(0)))
        assert low <= float(share) <= high


def test_a_match_that_is_not_known_well_counts_less() -> None:
    """The share is 1 − h·(1 − match), h = 0.2·√(N − 1)/e; of a normal row the match has the deviation e."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(70), 20)
    for dim, spread, certain in ((300, np.where(np.arange(300) < 30, 3.0, 0.0), True), (12, np.ones(12), False)):
        x = spread * rng.normal(size=(70, dim))[labels] + rng.normal(size=(1400, dim))
        method = HierarchicalGDC(get_preset("default")).prepare(BaseBank().fit(x.astype(np.float32), labels))
        assert isinstance(method, HierarchicalGDC)
        prior = method.prior
        energy = prior.deviation.square().sum(dim=0) + prior.means.square().mean(dim=0)
        normal = torch.from_numpy(rng.normal(size=(20000, 1, dim))).float() * energy.sqrt()
        opposite = torch.cat([normal, -normal], dim=1)  # of which both matches are the same
        assert float(prior.domain_match(opposite).std()) == pytest.approx(prior.alignment_error, rel=0.15)
        known = 0.2 * 4**0.5 / prior.alignment_error
        assert (known >= 1) == certain
        z = torch.from_numpy(rng.normal(size=(8, 5, dim))).float()
        match = ((prior.domain_match(z) - 0.2) / 0.2).clamp(0, 1)
        share = used(method, TaskBatch(z, torch.arange(5).expand(8, 5), 5, TaskRandom(0, range(8)), raw=z))
        torch.testing.assert_close(share, 1 - min(1.0, known) * (1 - match))


def test_a_wrong_covariance_has_no_more_of_a_say_than_before() -> None:
    bank = BaseBank().fit(*rows(CLASSES, 100, seed=0, noise=2.5 - NOISE))  # rows vary most where classes differ
    wrong = HierarchicalGDC(get_preset("default")).prepare(bank)
    assert isinstance(wrong, HierarchicalGDC)
    assert float(used(wrong, task(wrong, 20, (1, 2, 3))).max()) <= wrong.say_at(20) + 1e-6


def test_a_given_trust_stays_as_it_is() -> None:
    half = prepared(trust=0.3)
    assert used(half, task(half, 20)).tolist() == pytest.approx([0.3])


def test_the_say_does_not_depend_on_the_other_tasks_nor_on_the_order_of_classes(method: HierarchicalGDC) -> None:
    together = task(method, 10, (1, 2, 3))
    shares = used(method, together)
    for t in range(3):
        alone = TaskBatch(together.support[t : t + 1], together.labels[t : t + 1], 5, TaskRandom(0, [t]))
        torch.testing.assert_close(used(method, alone), shares[t : t + 1], rtol=1e-4, atol=1e-5)
    turned = TaskBatch(together.support, 4 - together.labels, 5, together.random)
    torch.testing.assert_close(used(method, turned), shares, rtol=1e-4, atol=1e-5)


def test_explanation_and_examples_that_come_later_tell_the_say_of_a_new_fit() -> None:
    bank = BaseBank().fit(*rows(CLASSES, 100, seed=0))
    x, y = rows(5, 12, seed=1)
    first = np.arange(60) % 12 < 1
    grown = GDCClassifier(bank).fit(x[first], y[first])
    assert grown.explain().trust == pytest.approx(0.25)
    grown.add_examples(x[~first], y[~first])
    fresh = GDCClassifier(bank).fit(*(np.concatenate([a[first], a[~first]]) for a in (x, y)))
    assert grown.explain().trust == pytest.approx(fresh.explain().trust)
    assert grown.explain().trust > 0.8
    np.testing.assert_allclose(grown.predict_proba(x), fresh.predict_proba(x), atol=1e-6)
