"""The paper's logistic regression, exactly (appendix B): batch 1024, 200 epochs, lr 0.08, plain SGD, no regularisation.

Its 200 epochs are an implicit regulariser that works at the scale of the paper's features. On larger features the step
is too long and the loss does not go down; the head notices and warns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal import ops
from fewcal._utils.bfloat16 import half_pays
from fewcal._utils.parameters import parameter
from fewcal._utils.randomness import TaskRandom
from fewcal.errors import FewcalWarning, InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.linear import LinearHead
from fewcal.heads.registry import HeadTrainer, register_head

# A fit whose loss ends at so many times that of equal probabilities has diverged.
DIVERGENCE_RATIO = 1.05


@register_head("sgd")
@dataclass(frozen=True)
class SGD(HeadTrainer):
    """The paper's logistic regression by plain SGD on support and samples."""

    batch_size: int = parameter(1024, "points of a step", low=1, integer=True)
    epochs: int = parameter(200, "passes over the points", low=1, integer=True)
    lr: float = parameter(0.08, "learning rate", low=1e-30)

    def train(self, task: Calibrated) -> LinearHead:
        """Its random numbers have a stream of their own, beside that of the samples."""
        batch = task.batch
        random = TaskRandom(batch.random.seed, batch.random.tasks, batch.random.device, stream=1)
        x, labels = task.points()
        return sgd_head(x, labels, batch.n_classes, random, batch_size=self.batch_size, epochs=self.epochs, lr=self.lr)


def sgd_head(
    x: Tensor,
    labels: Tensor,
    n_classes: int,
    random: TaskRandom,
    *,
    batch_size: int = 1024,
    epochs: int = 200,
    lr: float = 0.08,
) -> LinearHead:
    """Train by mini-batch gradient descent, all tasks at once, each with its own initial weights and shuffles.

    Parameters
    ----------
    x : Tensor (T, M, D)
        Support and sampled points.
    labels : Tensor (T, M)
    random : TaskRandom
        Initial weights as `torch.nn.Linear` draws them, then one permutation an epoch.
    """
    if not lr > 0 or epochs < 1 or batch_size < 1:
        raise InputError(f"lr={lr}, epochs={epochs}, batch_size={batch_size}: all must be positive")
    m, d = x.shape[1:]
    start = (random.uniform(n_classes, d + 1, dtype=x.dtype) * 2 - 1) / math.sqrt(d)
    weight, bias = start[..., :d].contiguous(), start[..., d].contiguous()
    loss = torch.zeros_like(bias[:, 0])
    if half_pays(x, m * d) and not ops.works_in_float32(x, n_classes):
        x = x.bfloat16()  # points are read hundreds of times: half the bytes, half the time
    for orders in shuffles(random, m, epochs):
        loss = ops.sgd_epochs(x, labels, orders, weight, bias, batch_size, lr)
    _warn_if_diverged(loss, n_classes, lr)
    return LinearHead(weight, bias)


def shuffles(random: TaskRandom, size: int, epochs: int) -> Iterator[Tensor]:
    """A random order of the points for every epoch of every task, `(T, E, size)` for a few epochs at a time.

    Orders are A_i∘B_j of two sets of random orders: each is as random as one drawn for itself, and so is each pair of
    them, while √epochs as many are drawn. On a GPU, where an order is drawn by sorting, SGD would spend a third of
    its time there.

    >>> [orders.shape for orders in shuffles(TaskRandom(0, [0, 1]), 5, 7)]
    [torch.Size([2, 3, 5]), torch.Size([2, 3, 5]), torch.Size([2, 1, 5])]
    """
    together = math.isqrt(epochs - 1) + 1
    outer, inner = random.permutations(size, 2 * together).chunk(2, dim=1)
    for i, begin in enumerate(range(0, epochs, together)):
        some = inner[:, : epochs - begin]
        yield outer[:, i, None].expand_as(some).gather(2, some)


def _warn_if_diverged(loss: Tensor, n_classes: int, lr: float) -> None:
    guess = math.log(n_classes)
    bad = ~torch.isfinite(loss) | (loss > DIVERGENCE_RATIO * guess)
    if bool(bad.any()):
        # No counts and no losses in the message: the same text from every batch is shown once.
        warnings.warn(
            f"SGD diverged: its training loss ends above {guess:.3g}, that of a guess, in some tasks: the features are "
            f"too large for lr={lr:g}. Use l2=True (unit-norm features), or head='lbfgs' or 'closed_form'",
            FewcalWarning,
            stacklevel=3,
        )
