"""The paper's logistic regression, exactly (appendix B): batch 1024, 200 epochs, lr 0.08, plain SGD, no regularisation.

Its 200 epochs are an implicit regulariser that works at the scale of the paper's features. On larger features the step
is too long and the loss does not go down; the head notices and says so.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays, products
from fewcal._utils.parameters import parameter
from fewcal._utils.randomness import TaskRandom
from fewcal.errors import FewcalWarning, InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.linear import LinearHead, minus_one_hot
from fewcal.heads.registry import HeadTrainer, register_head

# Epochs whose shuffles are drawn together: few launches on a GPU, little memory anywhere.
_ORDERS = 20


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
    t, _, d = x.shape
    bound = 1 / math.sqrt(d)
    start = (random.uniform(n_classes, d + 1, dtype=x.dtype) * 2 - 1) * bound
    weight, bias = start[..., :d].contiguous(), start[..., d:].contiguous()
    loss = x.new_zeros(t)
    if half_pays(x, x.shape[1] * d):
        x = x.bfloat16()  # points are read 400 times: half the bytes are half the time; weights stay in float32
    # On a CPU three tasks at a time, whose batches the cache holds; on a GPU all at once, which keeps it busy.
    some = 3 if x.device.type == "cpu" else t
    for begin in range(0, t, some):
        part = slice(begin, begin + some)
        loss[part] = _train(x[part], labels[part], weight[part], bias[part], random.part(part), batch_size, epochs, lr)
    _warn_if_diverged(loss, n_classes, lr)
    return LinearHead(weight, bias[..., 0])


def _train(
    x: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    random: TaskRandom,
    batch_size: int,
    epochs: int,
    lr: float,
) -> Tensor:
    """Train in place; the mean loss of the last epoch, `(T,)`. Logits are `(T, N, B)`."""
    t, m, d = x.shape
    flat = x.reshape(t * m, d)
    offset = (torch.arange(t, device=x.device) * m)[:, None]
    buffer = torch.empty(t * (min(batch_size, m) + 7), d, dtype=x.dtype, device=x.device)
    loss = torch.zeros(t, dtype=weight.dtype, device=x.device)
    same = x.dtype == weight.dtype
    orders = torch.empty(0)
    for epoch in range(epochs):
        if epoch % _ORDERS == 0:
            orders = random.permutations(m, _ORDERS)
        shuffle = orders[:, epoch % _ORDERS]
        order = torch.cat([shuffle, shuffle[:, :7]], dim=1) + offset
        truth = labels.gather(1, shuffle)
        for begin in range(0, m, batch_size):
            size = min(batch_size, m - begin)
            wide = size if same else size + -size % 8  # see `rounded`; the rows beyond `size` count for nothing
            index = order[:, begin : begin + wide].reshape(-1)
            xb = torch.index_select(flat, 0, index, out=buffer[: len(index)]).view(t, wide, d)
            yb = truth[:, begin : begin + size]
            # Cross entropy and its gradient by hand: softmax − one-hot, averaged over the batch.
            z = torch.baddbmm(bias, weight, xb.mT) if same else bias + products(weight.to(x.dtype), xb.mT)
            slope = torch.softmax(z, dim=1)
            if epoch == epochs - 1:
                loss -= slope.gather(1, yb[:, None]).clamp(min=1e-37).log().sum(dim=(1, 2)) / m
            minus_one_hot(slope, yb)
            if wide > size:
                slope[..., size:] = 0
            if same:
                weight.baddbmm_(slope, xb, alpha=-lr / size)
            else:
                weight.sub_(products(slope.to(x.dtype), xb), alpha=lr / size)
            bias.sub_(slope.sum(dim=2, keepdim=True), alpha=lr / size)
    return loss


def _warn_if_diverged(loss: Tensor, n_classes: int, lr: float) -> None:
    guess = math.log(n_classes)  # what equal probabilities cost: a fit that does worse is no fit, however it began
    bad = ~torch.isfinite(loss) | (loss > 1.05 * guess)
    if bool(bad.any()):
        # No counts and no losses in the message: the same text from every batch is shown once.
        warnings.warn(
            f"SGD diverged: its training loss ends above {guess:.3g}, that of a guess, in some tasks: the features are "
            f"too large for lr={lr:g}. Use l2=True (unit-norm features), or head='lbfgs' or 'closed_form'",
            FewcalWarning,
            stacklevel=3,
        )
