r"""Multinomial logistic regression by L-BFGS, batched over tasks.

Minimises, as scikit-learn does, mean cross entropy + ‖W‖²/(2·C·M) with an unpenalised bias. Logits are linear in the
weights, so the line search needs no product with the data: an iteration costs one product forward and one back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewcal.errors import InputError
from fewcal.heads.linear import LinearHead

_MOST_CUTS = 30  # of a step that went uphill


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
    logits = x.new_zeros(t, m, n_classes)
    grad = _gradient(x, labels, logits, w, ridge)
    history: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(max_iter):
        active = grad.abs().amax(dim=(1, 2)) > tol
        if not bool(active.any()):
            break
        if 2 * int(active.sum()) <= len(alive) and len(alive) > 1:
            # Drop finished tasks once they are the majority; copying the data costs about one iteration.
            solution[alive] = w
            keep = active.nonzero().flatten()
            alive, x, labels, w, logits, grad = (v[keep] for v in (alive, x, labels, w, logits, grad))
            history = [(s[keep], y[keep], r[keep]) for s, y, r in history]
            active = active[keep]
        step = _direction(grad, history)
        slope = (step * grad).sum(dim=(1, 2), keepdim=True)
        step = torch.where(slope < 0, step, -grad)  # a task whose curvature went stale starts over
        step = torch.where(active[:, None, None], step, 0.0)
        along = _forward(x, step)
        t_best = _line_search(logits, along, labels, w, step, ridge)[:, None, None]
        move = t_best * step
        w = w + move
        logits = logits + t_best * along
        new = _gradient(x, labels, logits, w, ridge)
        change = new - grad
        curvature = (move * change).sum(dim=(1, 2))
        rho = torch.where(curvature > 1e-12, 1 / curvature.clamp(min=1e-12), 0.0)
        history = [*history[-(memory - 1) :], (move, change, rho[:, None, None])]
        grad = torch.where(active[:, None, None], new, grad)
    solution[alive] = w
    return LinearHead(solution[..., :d], solution[..., d])


def _forward(x: Tensor, w: Tensor) -> Tensor:
    return torch.baddbmm(w[:, None, :, -1], x, w[..., :-1].mT)


def _gradient(x: Tensor, labels: Tensor, logits: Tensor, w: Tensor, ridge: float) -> Tensor:
    """∂f/∂w, `(T, N, D+1)`."""
    residual = torch.softmax(logits, dim=-1)
    residual.scatter_add_(-1, labels[..., None], residual.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1))
    residual /= x.shape[1]
    # (N×M)·(M×D) reads the data along its rows; the transposed order is several times slower.
    weight = torch.bmm(residual.mT, x)
    if ridge:
        weight += ridge * w[..., :-1]
    return torch.cat([weight, residual.sum(dim=1)[..., None]], dim=-1)


def _direction(grad: Tensor, history: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """−H·grad by the two-loop recursion; pairs with ρ = 0 do nothing."""
    q = grad.clone()
    alphas = []
    for s, y, rho in reversed(history):
        alpha = rho * (s * q).sum(dim=(1, 2), keepdim=True)
        q -= alpha * y
        alphas.append(alpha)
    if history:
        s, y, rho = history[-1]
        length = (y * y).sum(dim=(1, 2), keepdim=True)
        q *= torch.where(rho > 0, 1 / (rho * length).clamp(min=1e-30), 1.0)
    for (s, y, rho), alpha in zip(history, reversed(alphas), strict=True):
        q += (alpha - rho * (y * q).sum(dim=(1, 2), keepdim=True)) * s
    return -q


def _line_search(
    logits: Tensor, along: Tensor, labels: Tensor, w: Tensor, step: Tensor, ridge: float, rounds: int = 5
) -> Tensor:
    """Length of the step of each task, `(T,)`: safeguarded Newton on a convex function of one variable.

    On large features the first steps can be far too long and the softmax saturated all the way, where Newton is blind.
    A task whose last point lies uphill goes back to the end of the bracket known to be downhill, or, without one, by
    tenths.
    """
    weight, move = w[..., :-1], step[..., :-1]
    linear = ridge * (weight * move).sum(dim=(1, 2))
    quadratic = ridge * move.square().sum(dim=(1, 2))
    target = along.gather(-1, labels[..., None]).mean(dim=(1, 2))
    low = torch.zeros_like(target)
    high = torch.full_like(target, torch.inf)
    t = torch.ones_like(target)
    for _ in range(rounds):
        p = torch.softmax(logits + t[:, None, None] * along, dim=-1)
        first = (p * along).sum(dim=-1)  # (T, M)
        second = (p * along.square()).sum(dim=-1) - first.square()
        slope = first.mean(dim=1) - target + linear + t * quadratic
        bend = second.mean(dim=1) + quadratic
        low = torch.where(slope < 0, t, low)
        high = torch.where(slope >= 0, t, high)
        newton = t - slope / bend.clamp(min=1e-20)
        inside = (newton > low) & (newton < high)
        middle = torch.where(torch.isinf(high), 2 * low.clamp(min=0.5), 0.5 * (low + high))
        t = torch.where(inside, newton.clamp(max=1e4), middle)
    start = torch.logsumexp(logits, dim=-1).mean(dim=1)
    for _ in range(_MOST_CUTS):
        end = torch.logsumexp(logits + t[:, None, None] * along, dim=-1).mean(dim=1)
        rise = end - start + t * (linear - target) + 0.5 * t.square() * quadratic
        uphill = rise > 1e-5 * (1 + start.abs())  # more than rounding explains
        if not bool(uphill.any()):
            break
        t = torch.where(uphill, torch.where((low > 0) & (t != low), low, 0.1 * t), t)
    return t
