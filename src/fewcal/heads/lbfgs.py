r"""Multinomial logistic regression by L-BFGS, batched over tasks.

Minimises, as scikit-learn does, mean cross entropy + ‖W‖²/(2·C·M) with an unpenalised bias. Logits are linear in the
weights, so the line search needs no product with the points: an iteration costs one product forward and one back.
Logits are `(T, N, M)`: a softmax across rows of memory is many times faster than along short ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fewcal import ops
from fewcal._utils.bfloat16 import half_pays
from fewcal._utils.parameters import SearchRange, parameter
from fewcal.errors import InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.linear import LinearHead
from fewcal.heads.registry import HeadTrainer, register_head
from fewcal.ops.reference import with_last

# Numbers of points that a CPU's cache keeps, and so of the tasks that are worked on together there.
CACHE_NUMBERS = 1 << 21
# Points that suffice to see how the data vary along a direction.
VARIANCE_POINTS = 250
# A shorter step is none: rounding hides what is left to gain.
MIN_STEP = 1e-12
# ⟨s, y⟩ below which a pair is left out of the Hessian.
MIN_CURVATURE = 1e-12
# Iterations on rounded points, before those on the points as they are.
BFLOAT16_ITERATIONS = 100


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
        return lbfgs_head(*task.points(), task.batch.n_classes, C=self.C, curvature=0.5)


def lbfgs_head(
    x: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    C: float = 1.0,
    max_iter: int = 100,
    tol: float = 1e-4,
    memory: int = 10,
    metric: Tensor | None = None,
    curvature: float = 0.2,
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
    memory : int
        Steps that are remembered.
    metric : Tensor (D, D) or None
        Positive definite: about the inverse curvature of the loss, up to a factor. It changes the way, not the end.
    curvature : float
        A step is taken when the slope at its end is no more than this share of that at its start. On many sampled
        points, which tend to be separable, longer steps are better than exact ones.

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
    options = _Options(max_iter, tol, memory, curvature)
    together = t if x.is_cuda else max(1, CACHE_NUMBERS // (m * d))
    solutions = []
    for points, truth in zip(x.split(together), labels.split(together), strict=True):
        precondition = Preconditioner(_shared_direction(points), metric)
        w = None
        # Of many points bfloat16 is half the bytes. It leads near the minimum, and the points as they are to its end.
        if half_pays(points, m * d) and not ops.works_in_float32(points, n_classes):
            rough = Objective(_padded(points.bfloat16()), truth, n_classes, ridge)
            w = minimise(rough, precondition, replace(options, max_iter=min(max_iter, BFLOAT16_ITERATIONS)))
        solutions.append(minimise(Objective(points, truth, n_classes, ridge), precondition, options, w))
    solution = torch.cat(solutions)
    return LinearHead(solution[..., :d], solution[..., d])


@dataclass(frozen=True)
class _Options:
    """As in `lbfgs_head`."""

    max_iter: int
    tol: float
    memory: int
    curvature: float


class Objective:
    """Mean cross entropy + ridge·‖W‖²/2 of each task, for weights `w (T, N, D+1)` as `ops.logits` has them."""

    def __init__(self, x: Tensor, labels: Tensor, n_classes: int, ridge: float) -> None:
        self.x, self.labels, self.n_classes, self.ridge = x, labels, n_classes, ridge

    def __getitem__(self, tasks: Tensor) -> Objective:
        """Some of the tasks."""
        return Objective(self.x[tasks], self.labels[tasks], self.n_classes, self.ridge)

    def logits(self, w: Tensor) -> Tensor:
        """Logits `(T, N, M)` less those of each point's own class."""
        return ops.logits(self.x, self.labels, w)

    def gradient(self, logits: Tensor, w: Tensor) -> Tensor:
        """∂f/∂w, `(T, N, D+1)`, at weights with these logits."""
        grad = ops.gradient(self.x, self.labels, logits)
        grad[..., :-1].add_(w[..., :-1], alpha=self.ridge)
        return grad

    def slopes(self, grad: Tensor, w: Tensor, step: Tensor) -> Tensor:
        """Slope along a step, and first and second derivative of the penalty, `(3, T)` in float64."""
        parts = torch.stack([grad, w * self.ridge, step * self.ridge], dim=1)
        parts[:, 1:, :, -1] = 0  # biases are not penalised
        return torch.bmm(parts.flatten(2), step.flatten(1)[..., None])[..., 0].T.double()


class Preconditioner:
    """P·g for gradients `g (T, N, D+1)`; the bias stays as it is.

    P is the metric where there is one. Elsewhere it takes the share `damping (T, 1, 1)` of the part along 1/√D away.
    """

    def __init__(self, damping: Tensor, metric: Tensor | None = None) -> None:
        self.damping, self.metric = damping, metric

    def __getitem__(self, tasks: Tensor) -> Preconditioner:
        """Some of the tasks."""
        return Preconditioner(self.damping[tasks], self.metric)

    def __call__(self, grad: Tensor) -> Tensor:
        weight = grad[..., :-1]
        if self.metric is None:
            weight = weight - self.damping * weight.mean(dim=-1, keepdim=True)
        else:
            weight = with_last(weight[:, :-1] @ self.metric)
        return torch.cat([weight, grad[..., -1:]], dim=-1)


class InverseHessian:
    """H of L-BFGS: the last `memory` steps s with the changes y of the gradient along them.

    The two-loop recursion (Nocedal 1980) is a sequence of inner products and sums of a few vectors. Here all inner
    products are taken at once, and the recursion is two small triangular systems of them: a handful of operations on
    tensors in place of six for every step remembered. Pairs that are not there yet are zeros, which count for nothing.
    """

    def __init__(self, w: Tensor, memory: int) -> None:
        t, size = len(w), w[0].numel()
        self.memory, self.next = memory, 0  # where the oldest pair is, and the next will be
        self.basis = w.new_zeros(t, 2, memory, size)  # s and P·y
        self.products = w.new_zeros(t, 2, memory, memory, dtype=torch.float64)  # ⟨s_i, y_j⟩, ⟨P·y_i, y_j⟩; oldest first
        self.newest: Tensor | None = None  # the last y, whose products are not made yet

    def keep(self, tasks: Tensor) -> None:
        """Go on with some of the tasks."""
        self.basis, self.products = self.basis[tasks], self.products[tasks]
        self.newest = None if self.newest is None else self.newest[tasks]

    def add(self, step: Tensor, change: Tensor, pushed_change: Tensor) -> None:
        """Remember a step `(T, N, D+1)`, the change y of the gradient along it and P·y, in place of the oldest."""
        self.basis[:, 0, self.next], self.basis[:, 1, self.next] = step.flatten(1), pushed_change.flatten(1)
        self.next, self.newest = (self.next + 1) % self.memory, change.flatten(1)

    def times(self, grad: Tensor, pushed: Tensor) -> Tensor:
        """H·g for gradients `g (T, N, D+1)` and P·g."""
        if self.newest is None:
            return pushed
        basis = self.basis.flatten(1, 2)
        inner = torch.bmm(basis, torch.stack([self.newest, grad.flatten(1)], dim=2)).double()
        inner = inner.view(len(grad), 2, self.memory, 2).roll(-self.next, dims=2)
        self.products = torch.nn.functional.pad(self.products[:, :, 1:, 1:], (0, 1, 0, 1))
        self.products[..., -1] = inner[..., 0]
        self.products[:, 1, -1] = inner[:, 1, :, 0]  # P is symmetric
        coefficients, scale = _two_loop(self.products, inner[..., 1])
        weights = coefficients.roll(self.next, dims=2).flatten(1).to(grad.dtype)
        rest = torch.bmm(weights[:, None], basis).view_as(grad)
        return torch.addcmul(rest, scale.to(grad.dtype)[:, None, None], pushed)


def _two_loop(products: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients `(T, 2, h)` of s and P·y in H·g, and that of P·g, `(T,)`.

    `products (T, 2, h, h)` are ⟨s_i, y_j⟩ and ⟨P·y_i, y_j⟩ and `inner (T, 2, h)` the same with g, from the oldest pair
    to the newest. With R the upper triangle of ⟨s_i, y_j⟩ the first loop solves Rα = ⟨s, g⟩ and the second
    Rᵀβ = diag(R)·α − ⟨y, r⟩ for r = P·(g − Σ α_j y_j), scaled. Pairs without curvature are left out.
    """
    curvature = products[:, 0].diagonal(dim1=1, dim2=2)
    good = curvature > MIN_CURVATURE
    eye = torch.eye(good.shape[1], dtype=products.dtype, device=products.device)
    r = torch.where(good[:, :, None] & good[:, None, :], products[:, 0].triu(), eye)
    alpha = torch.linalg.solve_triangular(r, (inner[:, 0] * good)[..., None], upper=True)
    scale = torch.where(good[:, -1], curvature[:, -1] / products[:, 1, -1, -1].clamp(min=1e-30), 1.0)
    pushed = scale[:, None] * (inner[:, 1] - (products[:, 1] @ alpha)[..., 0])
    rest = (curvature * alpha[..., 0] - pushed) * good
    beta = torch.linalg.solve_triangular(r.mT, rest[..., None], upper=False)[..., 0]
    return torch.stack([beta, -scale[:, None] * alpha[..., 0]], dim=1), scale


def minimise(
    objective: Objective, precondition: Preconditioner, options: _Options, start: Tensor | None = None
) -> Tensor:
    """Weights `(T, N, D+1)` at the minimum of each task, from `start` or from 0.

    A task ends where no entry of its gradient is above `tol`, or where `memory` steps one after another were none.
    """
    (t, _, d), m = objective.x.shape, objective.labels.shape[1]
    w = objective.labels.new_zeros(t, objective.n_classes, d + 1, dtype=torch.float32) if start is None else start
    w = w.to(objective.x.dtype) if objective.x.dtype == torch.float64 else w
    solution, alive = w.clone(), torch.arange(t, device=w.device)
    logits = w.new_zeros(t, objective.n_classes, m) if start is None else objective.logits(w)
    loss = torch.logsumexp(logits, dim=1).mean(dim=1).double()
    grad = objective.gradient(logits, w)
    pushed, hessian, still = precondition(grad), InverseHessian(w, options.memory), torch.zeros_like(alive)
    for _ in range(options.max_iter):
        active = (grad.abs().amax(dim=(1, 2)) > options.tol) & (still <= options.memory)
        left = int(active.sum())
        if not left:
            break
        if 2 * left <= len(alive):
            # Without the tasks that are done, once these are the majority; it costs about one iteration.
            solution[alive] = w
            keep = active.nonzero()[:, 0]
            objective, precondition = objective[keep], precondition[keep]
            hessian.keep(keep)
            alive, w, logits, loss, grad, pushed, still, active = (
                v[keep] for v in (alive, w, logits, loss, grad, pushed, still, active)
            )
        step = hessian.times(grad, pushed) * -active[:, None, None].to(w.dtype)
        slopes = objective.slopes(grad, w, step)
        if bool((slopes[0] > 0).any()):  # the memory of a task misleads: it starts over along −P·g
            step = torch.where((slopes[0] > 0)[:, None, None], -pushed, step)
            slopes = objective.slopes(grad, w, step)
        along = objective.logits(step)
        length, loss = ops.line_search(logits, along, loss, slopes, options.curvature)
        still = torch.where(length > MIN_STEP, 0, still + 1)
        move = length[:, None, None] * step
        w, logits = w + move, torch.addcmul(logits, along, length[:, None, None])
        new = objective.gradient(logits, w)
        new_pushed = precondition(new)
        hessian.add(move, new - grad, new_pushed - pushed)
        grad, pushed = new, new_pushed
    solution[alive] = w
    return solution


def _padded(x: Tensor) -> Tensor:
    """Points with rows of zeros up to a multiple of 8, without which matrix units take three times as long."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 8))


def _shared_direction(x: Tensor) -> Tensor:
    """How much less the data vary along 1/√D than they would if that direction were like the others, `(T, 1, 1)`.

    The b·11ᵀ of a shrunk covariance stretches points along the all-ones direction, up to D-fold; a solver that does
    not know it spends most of its iterations there. 1 − v_other/v_ones, 0 where that direction is not longer.
    """
    d = x.shape[-1]
    if d == 1:  # no other direction to compare with
        return x.new_zeros(len(x), 1, 1)
    x = x[:, :: max(1, x.shape[1] // VARIANCE_POINTS)]
    ones = x.sum(dim=-1).var(dim=1, correction=0) / d
    total = torch.linalg.vector_norm(x, dim=(1, 2)).square() / x.shape[1] - x.mean(dim=1).square().sum(dim=-1)
    other = (total - ones).clamp(min=0) / (d - 1)
    # Never all of it, or points that vary along that direction alone could not be separated.
    return (1 - other / ones.clamp(min=1e-30)).clamp(0, 1 - 1e-4)[:, None, None]
