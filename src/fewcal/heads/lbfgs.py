r"""Multinomial logistic regression by L-BFGS, batched over tasks.

Minimises, as scikit-learn does, mean cross entropy + ‖W‖²/(2·C·M) with an unpenalised bias. Logits are linear in the
weights, so the line search needs no product with the data: an iteration costs one product forward and one back.
Inside, logits are `(T, N, M)`: a softmax across rows of memory is many times faster than along short ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays, products, rounded
from fewcal._utils.cpu_kernels import kernels, look_kernels
from fewcal._utils.cuda_kernels import compiled
from fewcal._utils.parameters import SearchRange, parameter
from fewcal.errors import InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.fused_lbfgs import FusedPoints, Preconditioner, minimise
from fewcal.heads.line_search import MOST_ROUNDS, NO_STEP, ROUNDING, Slopes, line_search
from fewcal.heads.linear import LinearHead, minus_one_hot
from fewcal.heads.registry import HeadTrainer, register_head
from fewcal.heads.two_loop import History, inner_products

# A step is taken when the slope at its end is this small beside that at its start: another look costs little beside the
# products with the points.
_CURVATURE = 0.2
# Numbers of all points that a CPU's cache keeps: they are read twice in an iteration, so tasks are worked on one after
# another rather than all at once. On a GPU all at once keeps it busy.
_CACHED = 1 << 21
# Points that suffice to see how the data vary along a direction.
_LOOKED_AT = 250
# Iterations after which it is asked whether a task still moves.
_UNASKED = 30
# Iterations in half precision, at most; what they leave to do is done in full precision.
_MOST_HALF = 100
# Logits of a task up to which one block of `line_search.cu` is quicker than plain operations, which use all of a GPU
# but wait for the host.
_MOST_FUSED = 1 << 20


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
    metric: Tensor | None = None,
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
    ridge, fused = 0.0 if math.isinf(C) else 1.0 / (C * m), kernels(x, n_classes)
    if fused is not None:
        solution = x.new_empty(t, n_classes, d + 1)
        for i, damping in enumerate(_shared_direction(x).flatten().tolist()):
            points = FusedPoints(fused, x[i], labels[i], n_classes)
            precondition = Preconditioner(fused, damping, metric)
            solution[i] = torch.from_numpy(minimise(points, ridge, max_iter, tol, memory, precondition))
    else:
        together = t if x.is_cuda else max(1, _CACHED // (m * d))
        parts = [
            _minimise(x[i : i + together], labels[i : i + together], n_classes, ridge, max_iter, tol, memory, metric)
            for i in range(0, t, together)
        ]
        solution = parts[0] if len(parts) == 1 else torch.cat(parts)
    return LinearHead(solution[..., :d], solution[..., d])


def _minimise(
    x: Tensor,
    labels: Tensor,
    n_classes: int,
    ridge: float,
    max_iter: int,
    tol: float,
    memory: int,
    metric: Tensor | None,
) -> Tensor:
    """Weights and bias of tasks that are worked on together, `(T, N, D+1)`."""
    t, m, d = x.shape
    solution = x.new_zeros(t, n_classes, d + 1)
    alive = torch.arange(t, device=x.device)  # tasks still being worked on
    w = solution.clone()
    logits = x.new_zeros(t, n_classes, m)  # the rounded points may be a few more: zeros at the end
    loss = x.new_full((t,), math.log(n_classes), dtype=torch.float64)
    stood = torch.zeros_like(alive)  # iterations without a step, one after another
    history = History(w, _shared_direction(x), memory, metric)
    # Many large points: the way to the minimum is found with rounded ones, half the bytes, and its end with the points
    # as they are, so that what stops the search is always the true gradient.
    full, x = x, rounded(x) if half_pays(x, m * d) else x
    grad = gradient(x, labels, torch.full_like(logits, 1 / n_classes), w, ridge)
    for i in range(max_iter):
        active = _largest(grad) > tol
        if i > _UNASKED:
            active &= stood <= memory
        left = int(active.sum())
        if x is not full and (4 * left < t or i == _MOST_HALF):
            x = full
            logits = _over_truth(_forward(w, x), labels)
            loss = torch.logsumexp(logits, dim=1).mean(dim=1).double()
            grad = gradient(x, labels, torch.softmax(logits, dim=1), w, ridge)
            active = _largest(grad) > tol
            left = int(active.sum())
        if not left:
            break
        if 2 * left <= len(alive) and len(alive) > 1 and x is full:
            # Drop finished tasks once they are the majority; copying the data costs about one iteration.
            solution[alive] = w
            keep = active.nonzero()[:, 0]
            alive, x, labels, w, logits, grad, loss, active, stood = (
                v[keep] for v in (alive, x, labels, w, logits, grad, loss, active, stood)
            )
            full = x
            history.keep(keep)
        step, slope = history.direction(grad, active)
        along = _over_truth(_forward(step, x)[..., :m].contiguous(), labels)
        look = _Look(logits, along)
        length, loss = look.search(loss, _slopes(slope, w, step, ridge))
        if i >= _UNASKED:
            stood = torch.where(length > NO_STEP, 0, stood + 1)
        move = length[:, None, None] * step
        w = w + move
        new = gradient(x, labels, look.take(), w, ridge)
        history.add(move, new - grad)
        grad = new
    solution[alive] = w
    return solution


def _largest(grad: Tensor) -> Tensor:
    """The largest entry of each task's gradient, `(T,)`."""
    return torch.linalg.vector_norm(grad, ord=torch.inf, dim=(1, 2))


def _slopes(slope: Tensor, w: Tensor, step: Tensor, ridge: float) -> Tensor:
    """`Slopes` at the start of steps, `(3, T)`."""
    weight, move = w[..., :-1], step[..., :-1]
    penalty = torch.stack([(weight * move).sum(dim=(1, 2)), move.square().sum(dim=(1, 2))])
    return torch.cat([slope[None], ridge * penalty.double()])


def _forward(w: Tensor, x: Tensor) -> Tensor:
    """Logits `(T, N, M)` of weights `(T, N, D+1)` whose sum over classes is 0, as it is from the start to the end.

    So the last class needs no product of its own.
    """
    weight, bias = w[:, :-1, :-1], w[:, :-1, -1:]
    if x.dtype == w.dtype:
        out = w.new_empty(len(w), w.shape[1], x.shape[1])
        first = torch.baddbmm(bias, weight, x.mT, out=out[:, :-1])
        torch.sum(first, dim=1, out=out[:, -1]).neg_()
        return out
    # What rounding takes from the weights is the same for all points, so that nothing averages it away: it goes along,
    # and costs nothing, as matrix units take eight rows at a time.
    high = weight.to(x.dtype)
    both = products(torch.cat([high, (weight - high).to(x.dtype)], dim=1), x.mT)
    return _with_last(bias + both[:, : len(high[0])] + both[:, len(high[0]) :])


def _with_last(rows: Tensor) -> Tensor:
    """`(T, N-1, ·)` and minus their sum as the last of N."""
    return torch.cat([rows, -rows.sum(dim=1, keepdim=True)], dim=1)


def _over_truth(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits `(T, N, M)` less that of each point's class, in place.

    The softmax is the same, and the loss of a point is its log-sum-exp, without the difference of two large numbers: on
    large features their rounding is more than the loss itself, and a search led by it goes uphill.
    """
    return logits.sub_(logits.gather(1, labels[:, None, :]))


def gradient(x: Tensor, labels: Tensor, probabilities: Tensor, w: Tensor, ridge: float) -> Tensor:
    """∂f/∂w, `(T, N, D+1)`, from the class probabilities `(T, N, M)`, which are used up."""
    residual = minus_one_hot(probabilities, labels)
    m, more = residual.shape[2], x.shape[1] - residual.shape[2]
    aligned = residual[:, :-1].to(x.dtype)
    weight = products(torch.nn.functional.pad(aligned, (0, more)) if more else aligned, x).to(w.dtype)
    grad = torch.cat([_with_last(weight), residual.sum(dim=2, keepdim=True)], dim=-1).div_(m)
    if ridge:
        grad[..., :-1] += ridge * w[..., :-1]
    return grad


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


class _Look:
    """The loss along steps, by logits `(T, N, M)` and how they change along them, both given `_over_truth`."""

    def __init__(self, logits: Tensor, along: Tensor) -> None:
        self.logits, self.along = logits, along
        self._length = logits.new_zeros(len(logits))
        self._probabilities: Tensor | None = None
        self._fused = look_kernels(logits)

    def search(self, start: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """`line_search`: lengths and losses there, `(T,)`, from the losses at 0 and `Slopes` `(3, T)`, all float64.

        On a GPU in one kernel of our own, so that the host waits for none of the looks.
        """
        logits, along = self.logits, self.along
        t, n, m = logits.shape
        kernel = None
        if n * m <= _MOST_FUSED and logits.is_cuda and logits.dtype == torch.float32:
            kernel = compiled("line_search", logits.device, 256 if n < 10 else 1024, ROUNDS=MOST_ROUNDS)
        if kernel is not None:
            self._length, loss = logits.new_empty(t), torch.empty_like(start)
            kernel(t, logits, along, start, slopes, self._length, loss, n, m, _CURVATURE, ROUNDING)
            return self._length, loss
        lengths, found = line_search(self, start.cpu().numpy(), Slopes(*slopes.cpu().numpy()), _CURVATURE)
        return torch.from_numpy(lengths).to(logits), torch.from_numpy(found).to(start)

    def __call__(self, length: np.ndarray) -> np.ndarray:
        """Mean loss, slope and curvature at a length `(T,)`, `(3, T)`."""
        along, m = self.along, self.logits.shape[2]
        self._length = torch.from_numpy(length).to(along)
        if self._fused is not None:
            self._probabilities = torch.empty_like(along) if self._probabilities is None else self._probabilities
            sums = torch.empty(len(along), 3, dtype=torch.float64)
            for i, at in enumerate(length.tolist()):
                self._fused.look(self.logits[i], along[i], at, sums[i], self._probabilities[i])
            return sums.T.numpy() / m
        z = torch.addcmul(self.logits, self.along, self._length[:, None, None])
        self._probabilities = p = torch.softmax(z, dim=1)
        weighted = p * along
        first = weighted.sum(dim=1)  # (T, M)
        # The log-sum-exp, without a second exponential; ∂²z² − (∂z)².
        total = (z.amax(dim=1) - p.amax(dim=1).log()).sum(dim=1)
        spread = inner_products(weighted, along) - inner_products(first, first)
        means: np.ndarray = torch.stack([total, first.sum(dim=1), spread]).double().cpu().numpy() / m
        return means

    def take(self) -> Tensor:
        """Move the logits to the length that was found; probabilities of the classes there, `(T, N, M)`."""
        self.logits.addcmul_(self.along, self._length[:, None, None])
        return torch.softmax(self.logits, dim=1) if self._probabilities is None else self._probabilities
