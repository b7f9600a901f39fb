"""One small task by the estimator: what it computes once, and in how many operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fewcal.class_prior import fit_class_prior, posterior
from fewcal.methods.hierarchical import own_log_odds
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fewcal import BaseBank, GDCClassifier
from fewcal.errors import FewcalWarning
from fewcal.estimators.inputs import class_codes
from fewcal.features.synthetic import make_features
from fewcal.heads.linear import LinearHead, class_means, class_shots


class Operations(TorchDispatchMode):
    """Counts operations that compute something; views do not."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        out = func(*args, **(kwargs or {}))
        self.count += not getattr(func, "is_view", False)
        return out


def small(base: int = 100) -> tuple[BaseBank, np.ndarray, np.ndarray]:
    data = make_features(base=base, val=0, novel=5, rows=20, dim=48)
    return BaseBank().fit(data.base.features, data.base.labels), data.novel.features, data.novel.labels


def test_a_one_shot_task_takes_few_operations() -> None:
    bank, x, y = small()
    few = np.arange(100) % 20 == 0

    def task() -> np.ndarray:
        return GDCClassifier(bank).fit(x[few], y[few]).predict(x[~few])

    task()  # what is derived from the bank is derived once
    with Operations() as counted:
        task()
    assert counted.count < 110  # each takes some microseconds, whatever the size of the task


def test_a_prepared_method_is_remembered_and_warns_each_time() -> None:
    bank, x, y = small(base=12)
    for _ in range(2):
        with pytest.warns(FewcalWarning, match="12 base classes are few"):
            first = GDCClassifier(bank).fit(x, y)
    assert first.predict(x[:3]).tolist() == y[:3].tolist()
    methods = bank.memo.get("prepared methods", dict)
    assert len(methods) == 1
    for beta in (0.5, 0.75, 1.0):
        with pytest.warns(FewcalWarning, match="few"):
            GDCClassifier(bank, beta=beta).fit(x, y)
    assert len(methods) == 2  # those used last: each may hold on to a space of the bank


def test_a_bank_that_grew_has_its_methods_prepared_again() -> None:
    bank, x, y = small()
    before = GDCClassifier(bank).fit(x, y).decision_function(x)
    rng = np.random.default_rng(0)
    bank.partial_fit(rng.random((400, 48)), np.repeat(np.arange(1000, 1020), 20))
    after = GDCClassifier(bank).fit(x, y).decision_function(x)
    assert np.abs(after - before).max() > 1e-3


def test_means_of_one_example_each_are_the_examples_in_the_order_of_their_classes() -> None:
    x = torch.randn(2, 4, 6)[..., :3]
    labels = torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]])
    shots = class_shots(labels, 4, x.dtype)
    assert (shots.least, shots.most, shots.even, shots.each) == (1, 1, True, 1.0)
    assert torch.equal(shots.means(x), class_means(x, labels, 4))
    assert torch.equal(shots.means(x)[0, 2], x[0, 0])


def test_shots_of_classes_with_different_numbers_and_with_none() -> None:
    x, labels = torch.randn(1, 4, 3), torch.tensor([[2, 0, 0, 2]])
    shots = class_shots(labels, 3, x.dtype)
    assert (shots.least, shots.most, shots.even) == (0, 2, False)
    assert shots.counts.tolist() == [[2, 0, 2]]
    assert shots.of_rows.tolist() == [[2, 2, 2, 2]]
    assert shots.average == pytest.approx(4 / 3)
    assert isinstance(shots.each, Tensor)
    torch.testing.assert_close(shots.means(x), class_means(x, labels, 3))


def test_one_number_of_shots_says_what_as_many_for_each_class_say() -> None:
    bank = small()[0].transformed(center=True, l2=True)
    prior = fit_class_prior(bank, 10.0, 1.0)
    own, settings = torch.randn(2, 5, 48), {"sharpness": 2.0, "strength": 4.0, "say": 0.6}
    one = posterior(prior, own, 3.0, **settings)
    each = posterior(prior, own, torch.full((2, 5), 3), **settings)
    for a, b in ((one.mean, each.mean), (one.precision, each.precision), (one.worth, each.worth)):
        torch.testing.assert_close(a, b)


def test_own_log_odds_are_those_of_the_scores() -> None:
    bank = small()[0].transformed(center=True, l2=True)
    own = torch.randn(2, 5, 48)
    found = posterior(fit_class_prior(bank, 10.0, 1.0), own, 1.0, sharpness=2.0, strength=4.0)
    for t in range(2):
        directions = found.mean[t] * found.precision
        scores = 2 * own[t] @ directions.T - (directions * found.mean[t]).sum(dim=1)
        ahead = [float(scores[i, i] - scores[i, j]) for i in range(5) for j in range(5) if i != j]
        assert float(own_log_odds(own, found)[t]) == pytest.approx(np.mean(ahead), rel=1e-5)


@pytest.mark.parametrize("y", [np.array([3, -1, 3]), np.array(["b", "abc", "b"]), np.array([True, False, True])])
def test_classes_of_plain_labels_are_those_of_numpy(y: np.ndarray) -> None:
    classes, codes = class_codes(y)
    expected, positions = np.unique(y, return_inverse=True)
    assert classes.dtype == expected.dtype
    assert classes.tolist() == expected.tolist()
    assert codes.tolist() == positions.tolist()


def test_one_task_scores_as_it_does_among_others() -> None:
    head = LinearHead(torch.randn(3, 4, 6), torch.randn(3, 4))
    x = torch.randn(3, 7, 6)
    together = head.logits(x)
    for t in range(3):
        alone = LinearHead(head.weight[t : t + 1], head.bias[t : t + 1]).logits(x[t : t + 1])
        torch.testing.assert_close(alone[0], together[t])
        torch.testing.assert_close(alone[0], x[t] @ head.weight[t].T + head.bias[t])
