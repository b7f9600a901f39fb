"""The paper's logistic regression, exactly (appendix B): batch 1024, 200 epochs, lr 0.08, plain SGD, no regularisation.

Its 200 epochs are an implicit regulariser that works at the scale of the paper's features. On larger features the step
is too long and the loss does not go down; the head notices and says so.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from fewcal.errors import FewcalWarning, InputError
from fewcal.heads.linear import LinearHead
from fewcal.randomness import TaskRandom


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
    t, m, d = x.shape
    bound = 1 / math.sqrt(d)
    start = (random.uniform(n_classes, d + 1, dtype=x.dtype) * 2 - 1) * bound
    weight, bias = start[..., :d].contiguous(), start[..., d].contiguous()
    flat, flat_labels = x.reshape(t * m, d), labels.reshape(t * m)
    offset = (torch.arange(t, device=x.device) * m)[:, None]
    first = last = torch.zeros(t, dtype=x.dtype, device=x.device)
    for epoch in range(epochs):
        order = random.permutation(m) + offset
        total = torch.zeros(t, dtype=x.dtype, device=x.device)
        for begin in range(0, m, batch_size):
            rows = order[:, begin : begin + batch_size]
            size = rows.shape[1]
            xb = flat.index_select(0, rows.reshape(-1)).view(t, size, d)
            yb = flat_labels[rows]
            # Cross entropy and its gradient by hand: softmax − one-hot, averaged over the batch.
            logp = torch.log_softmax(torch.baddbmm(bias[:, None, :], xb, weight.mT), dim=-1)
            total -= logp.gather(-1, yb[..., None]).sum(dim=(1, 2))
            slope = logp.exp_().scatter_add_(-1, yb[..., None], torch.full_like(logp[..., :1], -1.0))
            weight.baddbmm_(slope.mT, xb, alpha=-lr / size)
            bias.sub_(slope.sum(dim=1), alpha=lr / size)
        last = total / m
        if epoch == 0:
            first = last
    _warn_if_diverged(first, last, n_classes, lr)
    return LinearHead(weight, bias)


def _warn_if_diverged(first: Tensor, last: Tensor, n_classes: int, lr: float) -> None:
    guess = math.log(n_classes)  # what equal probabilities cost: a fit that does worse is no fit, however it began
    bad = ~torch.isfinite(last) | (last > 1.05 * guess)
    if bool(bad.any()):
        worst = last[bad].max()
        warnings.warn(
            f"SGD diverged in {int(bad.sum())} of {len(bad)} tasks (training loss {float(first[bad][0]):.3g} after the "
            f"first epoch, up to {float(worst):.3g} at the end, where a guess has {guess:.3g}): the "
            f"features are too large for lr={lr:g}. Use l2=True (unit-norm features), a smaller lr, or head='lbfgs' or "
            "'closed_form'",
            FewcalWarning,
            stacklevel=3,
        )
