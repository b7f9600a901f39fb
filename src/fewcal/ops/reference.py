"""The operations in torch, for any device and precision."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Limit of the points that a line search evaluates.
MAX_EVALUATIONS = 30
# A slope below this share of 1 + loss is lost in rounding: the full step is taken, since a search would follow noise.
ROUNDING = 1e-7
# The largest number below 1 in single precision: normal numbers reach 5.4.
MAX_UNIFORM = 1 - 2.0**-24


def logits(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    """Logits `(T, N, M)` less those of each point's own class.

    The softmax is the same, and a point's loss is its log-sum-exp without the difference of two large numbers, whose
    rounding on large features would be more than the loss.

    Parameters
    ----------
    x : Tensor (T, M, D)
        Points; in bfloat16 maybe a few more of them than labels, which do not count.
    labels : Tensor (T, M)
    w : Tensor (T, N, D+1)
        Weights with the bias last, which sum to 0 over the classes: the last class needs no product of its own.

    >>> x, w = torch.tensor([[[2.0], [3.0]]]), torch.tensor([[[0.5, 1.0], [-0.5, -1.0]]])
    >>> logits(x, torch.tensor([[0, 1]]), w)
    tensor([[[ 0.,  5.],
             [-4.,  0.]]])
    """
    z = with_last(linear(x, w[:, :-1, :-1], w[:, :-1, -1:])[..., : labels.shape[1]])
    return z.sub_(z.gather(1, labels[:, None]))


def gradient(x: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """Gradient of the mean cross entropy in the weights, `(T, N, D+1)`, at logits `z (T, N, M)`."""
    residual = minus_one_hot(torch.softmax(z, dim=1), labels)
    weight = with_last(linear_grad(residual[:, :-1], x))
    return torch.cat([weight, residual.sum(dim=2, keepdim=True)], dim=2).div_(labels.shape[1])


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W·xᵀ + b, `(T, C, M)`, for points `(T, M, D)`, weights `(T, C, D)` and biases `(T, C, 1)`.

    Points in bfloat16 meet the weights as a sum of two numbers in bfloat16: the rounding of weights is the same for all
    points, so no average over points removes it.
    """
    if x.dtype == weight.dtype:
        return torch.baddbmm(bias, weight, x.mT)
    high = weight.to(x.dtype)
    parts = _product(torch.cat([high, (weight - high).to(x.dtype)], dim=1), x.mT)
    return parts[:, : weight.shape[1]] + parts[:, weight.shape[1] :] + bias


def linear_grad(residual: Tensor, x: Tensor) -> Tensor:
    """R·x, `(T, C, D)`, for residuals `(T, C, M)`."""
    rows, more = residual.to(x.dtype), x.shape[1] - residual.shape[2]
    return _product(torch.nn.functional.pad(rows, (0, more)) if more else rows, x).to(residual.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of batches; a batch of one as matrices, since on a CPU `bmm` in bfloat16 takes ten times as long."""
    return torch.mm(a[0], b[0])[None] if len(a) == 1 else torch.bmm(a, b)


def with_last(rows: Tensor) -> Tensor:
    """Rows `(T, N-1, ·)` and minus their sum as the last of N."""
    return torch.cat([rows, -rows.sum(dim=1, keepdim=True)], dim=1)


def minus_one_hot(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Probabilities `(T, N, M)` less the truth `(T, M)`, in place: the slope of cross entropy in the logits.

    >>> minus_one_hot(torch.tensor([[[0.25], [0.75]]]), torch.tensor([[1]])).flatten().tolist()
    [0.25, -0.25]
    """
    ones = probabilities.new_full((1, 1, 1), -1.0).expand(len(labels), 1, labels.shape[1])
    return probabilities.scatter_add_(1, labels[:, None], ones)


def line_search(logits: Tensor, along: Tensor, loss: Tensor, slopes: Tensor, curvature: float) -> tuple[Tensor, Tensor]:
    """Newton's method on a convex function of one variable, inside a bracket, for each task.

    On large features the first steps can be far too long and the softmax saturated all the way, where Newton is blind:
    a point uphill of the start is never taken, and the bracket closes by tenths until one lies downhill. A task that
    has its length keeps it, whatever the others do.

    Parameters
    ----------
    logits, along : Tensor (T, N, M)
        Logits at the start and their change along the step, both less those of each point's own class.
    loss : Tensor (T,) float64
        Mean cross entropy at the start.
    slopes : Tensor (3, T) float64
        At the start: the slope of the objective along the step; the share of the penalty in it; the penalty's second
        derivative.
    curvature : float
        A step is taken when the slope at its end is no more than this share of that at its start (strong Wolfe
        condition).

    Returns
    -------
    Tensor (T,), Tensor (T,) float64
        Lengths, and the mean cross entropy there.
    """
    start, (slope, linear, quadratic) = loss.cpu().numpy(), slopes.cpu().numpy()
    low, high, t = np.zeros_like(slope), np.full_like(slope, np.inf), np.ones_like(slope)
    found = slope >= 0  # tasks that do not move
    for evaluation in range(MAX_EVALUATIONS):
        value, change, bend = _cross_entropy(logits, along, t)
        rise = value - start + t * linear + 0.5 * t**2 * quadratic
        downhill = rise <= 1e-5 * start + 1e-7  # up to rounding
        here = change + linear + t * quadratic
        flat = (np.abs(here) <= curvature * np.abs(slope)) | (np.abs(slope) <= ROUNDING * (1 + start))
        found = found | (downhill & flat)
        if found.all() or evaluation == MAX_EVALUATIONS - 1:
            break
        low = np.where((here < 0) & downhill, t, low)
        high = np.where((here >= 0) | ~downhill, t, high)
        newton = t - here / np.maximum(bend + quadratic, 1e-20)
        inside = downhill & (newton > low) & (newton < high)
        middle = np.where(np.isinf(high), 2 * t, np.where(low > 0, 0.5 * (low + high), 0.1 * high))
        t = np.where(found, t, np.where(inside, np.minimum(newton, 1e4), middle))
    return torch.from_numpy(t).to(logits), torch.from_numpy(value).to(loss)


def _cross_entropy(logits: Tensor, along: Tensor, length: np.ndarray) -> np.ndarray:
    """Mean cross entropy, slope and second derivative at a length `(T,)`, `(3, T)`."""
    z = torch.addcmul(logits, along, torch.from_numpy(length).to(along)[:, None, None])
    p = torch.softmax(z, dim=1)
    weighted = p * along
    first = weighted.sum(dim=1)  # (T, M)
    # Log-sum-exp without a second exponential; the variance of `along` under p.
    total = (z.amax(dim=1) - p.amax(dim=1).log()).sum(dim=1)
    spread = torch.linalg.vecdot(weighted.flatten(1), along.flatten(1)) - torch.linalg.vecdot(first, first)
    sums = torch.stack([total, first.sum(dim=1), spread])
    means: np.ndarray = sums.double().cpu().numpy() / logits.shape[2]
    return means


def sgd_epochs(
    x: Tensor, labels: Tensor, orders: Tensor, weight: Tensor, bias: Tensor, batch_size: int, lr: float
) -> Tensor:
    """Softmax regression by epochs of mini-batch SGD, all tasks at once.

    Parameters
    ----------
    x : Tensor (T, M, D)
        Points, in bfloat16 if need be.
    labels : Tensor (T, M)
    orders : Tensor (T, E, M)
        The order of the points in each epoch.
    weight, bias : Tensor (T, N, D), (T, N)
        Trained in place.

    Returns
    -------
    Tensor (T,)
        The mean loss during the last epoch.
    """
    loss, flat = torch.zeros_like(bias[:, 0]), x.flatten(0, 1)
    first = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    for epoch, order in enumerate(orders.unbind(dim=1), 1):
        for index in order.split(batch_size, dim=1):
            points = flat.index_select(0, (index + first).flatten()).view(len(x), -1, x.shape[2])
            truth = labels.gather(1, index)
            scores = _product(weight.to(x.dtype), points.mT).to(weight.dtype)
            residual = torch.softmax(scores + bias[..., None], dim=1)
            if epoch == orders.shape[1]:
                loss -= residual.gather(1, truth[:, None]).clamp(min=1e-37).log().sum(dim=(1, 2)) / x.shape[1]
            residual = minus_one_hot(residual, truth)
            weight.sub_(linear_grad(residual, points), alpha=lr / index.shape[1])
            bias.sub_(residual.sum(dim=2), alpha=lr / index.shape[1])
    return loss


def normal(bits: Tensor, out: Tensor) -> None:
    """Fill `out (n,)` with the quantiles of the normal distribution at uniform numbers, 32 random bits `(n,)` each.

    >>> z = torch.empty(3)
    >>> normal(torch.tensor([-(1 << 30), 0, 1 << 30], dtype=torch.int32), z)
    >>> z
    tensor([-0.6745,  0.0000,  0.6745])
    """
    torch.mul(bits, 2.0**-31, out=out)
    out.clamp_(-MAX_UNIFORM, MAX_UNIFORM).erfinv_().mul_(2**0.5)
