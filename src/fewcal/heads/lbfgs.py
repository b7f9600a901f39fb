r"""Multinomial logistic regression by L-BFGS, batched over tasks.

Minimises, as scikit-learn does, mean cross entropy + ‖W‖²/(2·C·M) with an unpenalised bias. Logits are linear in the
weights, so the line search needs no product with the data: an iteration costs one product forward and one back.
Inside, logits are `(T, N, M)`: a softmax across rows of memory is many times faster than along short ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays, products, rounded
from fewcal._utils.parameters import SearchRange, parameter
from fewcal.errors import InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.linear import LinearHead, minus_one_hot
from fewcal.heads.registry import HeadTrainer, register_head

# A step is taken when the slope at its end is this small beside the slope at its start (the strong Wolfe condition).
_CURVATURE = 0.01
_MOST_ROUNDS = 30
# Points that suffice to see how the data vary along a direction.
_LOOKED_AT = 500
# Iterations in half precision, at most; what they leave to do is done in full precision.
_MOST_HALF = 25


@register_head("lbfgs")
@dataclass(frozen=True)
class LBFGS(HeadTrainer):
    """Logistic regression by batched L-BFGS on support and samples."""

    searched: ClassVar[tuple[str, ...]] = ("n", "C")
    C: float = parameter(
        1.0,
        "inverse strength of L2 regularisation of head 'lbfgs', as in scikit-learn; inf for none",
        low=1e-30,
        infinite=True,
        search=SearchRange(1e-3, 10.0, log=True),
    )

    def train(self, task: Calibrated) -> LinearHead:
        return lbfgs_head(*task.points(), task.batch.n_classes, C=self.C)


def lbfgs_head(
    x: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    C: float = 1.0,
    max_iter: int = 100,
    tol: float = 1e-4,
    memory: int = 10,
) -> LinearHead:
    """Fit logistic regression on every task.

    Parameters
    ----------
    x : Tensor (T, M, D)
    labels : Tensor (T, M)
    C : float
        Inverse strength of L2 regularisation, scikit-learn's convention; `inf` for none.
    max_iter, tol
        Stop a task when the largest entry of its gradient is below `tol`.

    Examples
    --------
    >>> x = torch.tensor([[[-2.0], [-1.0], [1.0], [2.0]]])
    >>> head = lbfgs_head(x, torch.tensor([[0, 0, 1, 1]]), 2)
    >>> head.logits(x).argmax(-1)
    tensor([[0, 0, 1, 1]])
    """
    if not C > 0:
        raise InputError(f"C={C!r} must be > 0 (inverse regularisation strength; inf for none)")
    t, m, d = x.shape
    ridge = 0.0 if math.isinf(C) else 1.0 / (C * m)
    solution = x.new_zeros(t, n_classes, d + 1)
    alive = torch.arange(t, device=x.device)  # tasks still being worked on
    w = solution.clone()
    logits = x.new_zeros(t, n_classes, m)  # the rounded points may be a few more: zeros at the end
    damping = _shared_direction(x)
    # Many large points: the way to the minimum is found with rounded ones, half the bytes, and its end with the points
    # as they are, so that what stops the search is always the true gradient.
    full, x = x, rounded(x) if half_pays(x, m * d) else x
    grad = gradient(x, labels, torch.full_like(logits, 1 / n_classes), w, ridge)
    history: list[tuple[Tensor, Tensor, Tensor]] = []
    for i in range(max_iter):
        active = grad.abs().amax(dim=(1, 2)) > tol
        left = int(active.sum())
        if x is not full and (4 * left < t or i == _MOST_HALF):
            x = full
            logits = _over_truth(_forward(w, x), labels)
            grad = gradient(x, labels, torch.softmax(logits, dim=1), w, ridge)
            active = grad.abs().amax(dim=(1, 2)) > tol
            left = int(active.sum())
        if not left:
            break
        if 2 * left <= len(alive) and len(alive) > 1 and x is full:
            # Drop finished tasks once they are the majority; copying the data costs about one iteration.
            solution[alive] = w
            keep = active.nonzero().flatten()
            alive, x, labels, w, logits, grad, damping = (v[keep] for v in (alive, x, labels, w, logits, grad, damping))
            full = x
            history = [(s[keep], y[keep], r[keep]) for s, y, r in history]
            active = active[keep]
        step = _direction(grad, history, damping)
        slope = _dot(step, grad)
        step = torch.where(slope < 0, step, -grad)  # a task whose curvature went stale starts over
        step = torch.where(active[:, None, None], step, 0.0)
        along = _over_truth(_forward(step, x)[..., :m], labels)
        length, probabilities = _line_search(logits, along, w, step, _dot(step, grad)[:, 0, 0], ridge)
        move = length[:, None, None] * step
        w = w + move
        logits = logits + length[:, None, None] * along
        new = gradient(x, labels, probabilities, w, ridge)
        change = new - grad
        curvature = _dot(move, change)
        rho = torch.where(curvature > 1e-12, 1 / curvature.clamp(min=1e-12), 0.0)
        history = [*history[-(memory - 1) :], (move, change, rho)]
        grad = torch.where(active[:, None, None], new, grad)
    solution[alive] = w
    return LinearHead(solution[..., :d], solution[..., d])


def _forward(w: Tensor, x: Tensor) -> Tensor:
    """Logits `(T, N, M)` of weights `(T, N, D+1)`."""
    weight, bias = w[..., :-1], w[..., -1:]
    if x.dtype == w.dtype:
        return torch.baddbmm(bias, weight, x.mT)
    return bias + products(weight.to(x.dtype), x.mT)


def _over_truth(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits `(T, N, M)` less that of each point's class, in place.

    The softmax is the same, and the loss of a point is its log-sum-exp, without the difference of two large numbers: on
    large features their rounding is more than the loss itself, and a search led by it goes uphill.
    """
    return logits.sub_(logits.gather(1, labels[:, None, :]))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each task's arrays, `(T, 1, 1)`."""
    return torch.bmm(a.reshape(len(a), 1, -1), b.reshape(len(b), -1, 1))  # one launch on a GPU, no copy anywhere


def gradient(x: Tensor, labels: Tensor, probabilities: Tensor, w: Tensor, ridge: float) -> Tensor:
    """∂f/∂w, `(T, N, D+1)`, from the class probabilities `(T, N, M)`, which are used up."""
    residual = minus_one_hot(probabilities, labels)
    residual /= residual.shape[2]
    aligned = torch.nn.functional.pad(residual.to(x.dtype), (0, x.shape[1] - residual.shape[2]))
    weight = products(aligned, x).to(w.dtype)
    if ridge:
        weight += ridge * w[..., :-1]
    return torch.cat([weight, residual.sum(dim=2, keepdim=True)], dim=-1)


def _shared_direction(x: Tensor) -> Tensor:
    """How much less the data vary along 1/√D than they would if that direction were like the others, `(T, 1, 1)`.

    The b·11ᵀ of a shrunk covariance stretches points along the all-ones direction, up to D-fold; a solver that does
    not know it spends most of its iterations there. 1 − v_other/v_ones, 0 where that direction is not longer.
    """
    d = x.shape[-1]
    if d == 1:  # no other direction to compare with
        return x.new_zeros(len(x), 1, 1)
    x = x[:, :: max(1, x.shape[1] // _LOOKED_AT)]
    ones = x.sum(dim=-1).var(dim=1, correction=0) / d
    total = torch.linalg.vector_norm(x, dim=(1, 2)).square() / x.shape[1] - x.mean(dim=1).square().sum(dim=-1)
    other = (total - ones).clamp(min=0) / (d - 1)
    # Never all of it, or points that vary along that direction alone could not be told apart.
    return (1 - other / ones.clamp(min=1e-30)).clamp(0, 1 - 1e-4)[:, None, None]


def _precondition(q: Tensor, damping: Tensor) -> Tensor:
    """q less the damped part along the all-ones direction of the weights; the bias stays as it is."""
    weight = q[..., :-1]
    return torch.cat([weight - damping * weight.mean(dim=-1, keepdim=True), q[..., -1:]], dim=-1)


def _direction(grad: Tensor, history: list[tuple[Tensor, Tensor, Tensor]], damping: Tensor) -> Tensor:
    """−H·grad by the two-loop recursion around the preconditioner; pairs with ρ = 0 do nothing."""
    q = grad.clone()
    alphas = []
    for s, y, rho in reversed(history):
        alpha = rho * _dot(s, q)
        q.addcmul_(alpha, y, value=-1)
        alphas.append(alpha)
    q = _precondition(q, damping)
    if history:
        s, y, rho = history[-1]
        q *= torch.where(rho > 0, 1 / (rho * _dot(y, _precondition(y, damping))).clamp(min=1e-30), 1.0)
    for (s, y, rho), alpha in zip(history, reversed(alphas), strict=True):
        q.addcmul_(alpha - rho * _dot(y, q), s)
    return -q


def _line_search(
    logits: Tensor, along: Tensor, w: Tensor, step: Tensor, slope: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Length of the step of each task, `(T,)`, and the class probabilities there, `(T, N, M)`.

    `logits` and how they change along the step are given `_over_truth`.

    Newton on a convex function of one variable, inside a bracket. On large features the first steps can be far too long
    and the softmax saturated all the way, where Newton is blind: a point uphill of the start is never taken, and the
    bracket closes by tenths until one lies downhill. A task that has found its length keeps it, whatever the others do.
    """
    weight, move = w[..., :-1], step[..., :-1]
    linear = ridge * (weight * move).sum(dim=(1, 2))
    quadratic = ridge * move.square().sum(dim=(1, 2))
    start = torch.logsumexp(logits, dim=1).mean(dim=1)
    low = torch.zeros_like(slope)
    high = torch.full_like(slope, torch.inf)
    t = torch.ones_like(slope)
    found = slope >= 0  # tasks that do not move
    for round_ in range(_MOST_ROUNDS):
        z = torch.addcmul(logits, along, t[:, None, None])
        p = torch.softmax(z, dim=1)
        total = z.amax(dim=1) - p.amax(dim=1).log()  # the log-sum-exp, without a second exponential
        rise = total.mean(dim=1) - start + t * linear + 0.5 * t.square() * quadratic
        downhill = rise <= 1e-5 * start + 1e-7  # more would not be rounding
        weighted = p * along
        first = weighted.sum(dim=1)  # (T, M)
        here = first.mean(dim=1) + linear + t * quadratic
        found = found | (downhill & (here.abs() <= _CURVATURE * slope.abs()))
        if bool(found.all()) or round_ == _MOST_ROUNDS - 1:
            return t, p
        bend = ((weighted * along).sum(dim=1) - first.square()).mean(dim=1) + quadratic
        low = torch.where((here < 0) & downhill, t, low)
        high = torch.where((here >= 0) | ~downhill, t, high)
        newton = t - here / bend.clamp(min=1e-20)
        inside = downhill & (newton > low) & (newton < high)
        middle = torch.where(torch.isinf(high), 2 * t, torch.where(low > 0, 0.5 * (low + high), 0.1 * high))
        t = torch.where(found, t, torch.where(inside, newton.clamp(max=1e4), middle))
    raise AssertionError("unreachable")
