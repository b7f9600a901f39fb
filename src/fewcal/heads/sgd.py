"""The paper's logistic regression, exactly (appendix B): batch 1024, 200 epochs, lr 0.08, plain SGD, no regularisation.

Its 200 epochs are an implicit regulariser that works at the scale of the paper's features. On larger features the step
is too long and the loss does not go down; the head notices and says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.bfloat16 import SMALLEST, half_pays, products
from fewcal._utils.cpu_kernels import Kernels, kernels
from fewcal._utils.parameters import parameter
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.threads import without_gil
from fewcal.errors import FewcalWarning, InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.fused_sgd import fused_epochs
from fewcal.heads.linear import LinearHead, membership, minus_one_hot
from fewcal.heads.registry import HeadTrainer, register_head

# Points of a batch that are worked on at a time on a CPU: a core's cache holds them between the two products. Few
# features leave room for more of them, and fewer steps.
_ROWS, _BYTES = 256, 640 << 10
# Numbers of a task from which on a GPU trains on rounded points: these have a kernel (`fused_sgd`), others have none.
_SMALLEST_CUDA = 1 << 16


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
    bound = 1 / math.sqrt(d)
    start = (random.uniform(n_classes, d + 1, dtype=x.dtype) * 2 - 1) * bound
    weight, bias = start[..., :d].contiguous(), start[..., d:].contiguous()
    shuffles, fused = Shuffles(random, m, epochs), kernels(x, n_classes)
    if fused is not None:
        loss = _train_fused(fused, x, labels, (weight, bias), shuffles, batch_size, lr)
    else:
        if half_pays(x, m * d, _SMALLEST_CUDA if x.is_cuda else SMALLEST):
            x = x.bfloat16()  # points are read hundreds of times: half the bytes, half the time
        train = _train if x.is_cuda else _train_by_turns
        loss = train(x, labels, (weight, bias), shuffles, batch_size, lr)
    _warn_if_diverged(loss, n_classes, lr)
    return LinearHead(weight, bias[..., 0])


class Shuffles:
    """A random order of the points for every epoch of every task.

    Orders are A_i∘B_j of two sets of random orders: each is as random as one drawn for itself, and so is each pair of
    them, while √epochs as many are drawn. On a GPU, where an order is drawn by sorting, SGD would spend a third of
    its time there.

    >>> orders = Shuffles(TaskRandom(0, [0, 1]), 5, 7)
    >>> [tuple(part.shape) for part in orders], orders.of_task(0).shape
    ([(2, 3, 5), (2, 3, 5), (2, 1, 5)], torch.Size([7, 5]))
    """

    def __init__(self, random: TaskRandom, size: int, epochs: int) -> None:
        self.epochs, self.together = epochs, math.isqrt(epochs - 1) + 1
        self.outer, self.inner = random.permutations(size, 2 * self.together).chunk(2, dim=1)

    def __iter__(self) -> Iterator[Tensor]:
        """Orders `(T, E, M)` of the next few epochs of all tasks."""
        for i, begin in enumerate(range(0, self.epochs, self.together)):
            some = self.inner[:, : self.epochs - begin]
            yield self.outer[:, i, None].expand_as(some).gather(2, some)

    def of_task(self, t: int) -> Tensor:
        """Orders `(E, M)` of all epochs of a task."""
        return self.outer[t][:, self.inner[t]].flatten(0, 1)[: self.epochs]


def _train(
    x: Tensor, labels: Tensor, start: tuple[Tensor, Tensor], shuffles: Shuffles, batch_size: int, lr: float
) -> Tensor:
    """Train weights `(T, N, D)` and biases `(T, N, 1)` in place; the mean loss of the last epoch, `(T,)`.

    All tasks at once, which keeps a GPU busy, and in one kernel where there is one for such points.
    """
    weight, bias = start
    loss = torch.zeros(len(x), dtype=weight.dtype, device=x.device)
    fused = fused_epochs(x, weight.shape[1])
    truth = labels.to(torch.int32).contiguous()
    left = shuffles.epochs
    for orders in shuffles:
        left -= orders.shape[1]
        if fused is not None:
            orders = orders.to(torch.int32)
            sizes = orders.shape[2], orders.shape[1], batch_size
            fused(len(x), x, orders, truth, weight, bias, loss, *sizes, float(lr), int(not left))
            continue
        for epoch in range(orders.shape[1]):
            last = not left and epoch == orders.shape[1] - 1
            _epoch(x, labels, start, orders[:, epoch], batch_size, lr, loss if last else None)
    return loss


def _epoch(
    x: Tensor,
    labels: Tensor,
    start: tuple[Tensor, Tensor],
    order: Tensor,
    batch_size: int,
    lr: float,
    loss: Tensor | None,
) -> None:
    """One epoch of all tasks in the order `(T, M)`; its loss is added to `loss (T,)`. Logits are `(T, N, B)`."""
    (t, m, d), (weight, bias) = x.shape, start
    flat, same = x.reshape(t * m, d), x.dtype == weight.dtype
    truth = labels.gather(1, order)
    order = torch.cat([order, order[:, :7]], dim=1) + (torch.arange(t, device=x.device) * m)[:, None]
    for begin in range(0, m, batch_size):
        size = min(batch_size, m - begin)
        wide = size if same else size + -size % 8  # see `rounded`; the rows beyond `size` count for nothing
        xb = flat.index_select(0, order[:, begin : begin + wide].reshape(-1)).view(t, -1, d)
        yb = truth[:, begin : begin + size]
        # Cross entropy and its gradient by hand: softmax − one-hot, averaged over the batch.
        z = torch.baddbmm(bias, weight, xb.mT) if same else bias + products(weight.to(x.dtype), xb.mT)
        slope = torch.softmax(z, dim=1)
        if loss is not None:
            loss -= slope.gather(1, yb[:, None]).clamp(min=1e-37).log().sum(dim=(1, 2)) / m
        minus_one_hot(slope, yb)[..., size:] = 0
        if same:
            weight.baddbmm_(slope, xb, alpha=-lr / size)
        else:
            weight.sub_(products(slope.to(x.dtype), xb), alpha=lr / size)
        bias.sub_(slope.sum(dim=2, keepdim=True), alpha=lr / size)


def _train_by_turns(
    x: Tensor, labels: Tensor, start: tuple[Tensor, Tensor], shuffles: Shuffles, batch_size: int, lr: float
) -> Tensor:
    """As `_train`, one task after another and a few points at a time, which a CPU's cache holds."""
    weight, bias = start
    return torch.stack(
        [_train_task(x[t], labels[t], (weight[t], bias[t]), shuffles.of_task(t), batch_size, lr) for t in range(len(x))]
    )


def _train_task(
    x: Tensor, labels: Tensor, start: tuple[Tensor, Tensor], orders: Tensor, batch_size: int, lr: float
) -> Tensor:
    """Train the weights `(N, D)` and bias `(N, 1)` of a task in place; the mean loss of the last epoch."""
    weight, bias = start
    one_hot = membership(labels, len(weight), weight.dtype).T.contiguous()
    numbers = orders.numpy().astype(np.int32)
    for begin in range(0, len(x), batch_size):  # points of a batch add up in any order: in that of memory faster
        numbers[:, begin : begin + batch_size].sort(axis=1)
    rows = max(_ROWS, _BYTES // (x.shape[1] * x.element_size()))
    return without_gil(_epochs)(x, one_hot, weight, bias, torch.from_numpy(numbers), batch_size, rows, float(lr))


def _epochs(
    x: Tensor, one_hot: Tensor, weight: Tensor, bias: Tensor, orders: Tensor, batch_size: int, rows: int, lr: float
) -> Tensor:
    """Epochs of one task, `rows` points at a time; TorchScript reads this source, so it holds to what that knows."""
    m, same = x.shape[0], x.dtype == weight.dtype
    loss = torch.zeros([], dtype=weight.dtype)
    slope, grad = weight.new_empty([weight.shape[0], m]), torch.zeros_like(weight)
    epochs = orders.shape[0]
    for epoch in range(epochs):
        order = orders[epoch]
        truth = one_hot.index_select(1, order)
        for begin in range(0, m, batch_size):
            end = min(begin + batch_size, m)
            factor = weight if same else weight.to(x.dtype)
            for low in range(begin, end, rows):
                high = min(low + rows, end)
                part, right = x.index_select(0, order[low:high]), truth[:, low:high]
                z = torch.addmm(bias, factor, part.t()) if same else bias + torch.mm(factor, part.t())
                p = torch.softmax(z, dim=0, dtype=weight.dtype)
                if epoch == epochs - 1:
                    loss -= (p * right).sum(dim=0).clamp(min=1e-37).log().sum() / m
                residual = torch.sub(p, right, out=slope[:, low:high])
                if same:
                    grad.addmm_(residual, part)
                else:
                    grad += torch.mm(residual.to(x.dtype), part)
            weight.sub_(grad, alpha=lr / (end - begin))
            bias.sub_(slope[:, begin:end].sum(dim=1, keepdim=True), alpha=lr / (end - begin))
            grad.zero_()
    return loss


def _train_fused(
    fused: Kernels,
    x: Tensor,
    labels: Tensor,
    start: tuple[Tensor, Tensor],
    shuffles: Shuffles,
    batch_size: int,
    lr: float,
) -> Tensor:
    """As `_train`, one task after another by a kernel for CPUs.

    Slopes sum to 0 over the classes: the mean of their weights stays as it is, and changes no probability.
    """
    losses = []
    for t, (weight, bias) in enumerate(zip(*start, strict=True)):
        means = weight.mean(dim=0), bias.mean(dim=0)
        above, shift = ((v - mean)[:-1].contiguous() for v, mean in zip((weight, bias), means, strict=True))
        truth, orders = labels[t].to(torch.int32).contiguous(), shuffles.of_task(t).to(torch.int32)
        losses.append(fused.sgd_epochs(x[t].contiguous(), truth, orders, above, shift, batch_size, lr))
        for v, mean, part in zip((weight, bias), means, (above, shift), strict=True):
            v[:-1], v[-1] = part + mean, mean - part.sum(dim=0)
    return torch.tensor(losses, dtype=x.dtype)


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
