"""The memory of L-BFGS: the last steps with the changes of the gradient along them, and the direction they suggest.

The two-loop recursion (Nocedal 1980) is a sequence of inner products and sums of a few vectors. Here all inner products
are taken at once, the recursion is two small triangular systems of them, and one product makes the direction: a handful
of operations on tensors instead of six for every step remembered, and none of them waits for the host. On a GPU the
systems are solved in a kernel of our own: as two dozen launches they took longer than the products.

`Pairs` is the recursion as it is printed, for a single task on a CPU, where NumPy's operations take a microsecond each.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.cuda_kernels import compiled

# Curvature along a step, ⟨s, y⟩, from which on it is remembered.
_LEAST_CURVATURE = 1e-12
# Numbers in a sum, for each task, from which on a GPU does not take sums as a batch of products: there each would be
# the work of one of its processors alone.
_LONG = 1 << 16
# Threads that work in step on a GPU: a pair of the memory for each.
_WARP = 32


class History:
    """The last `memory` steps s and changes of the gradient y of every task.

    Parameters
    ----------
    like : Tensor (T, N, D+1)
        Weights, whose shape and device the history has.
    damping : Tensor (T, 1, 1)
    metric : Tensor (D, D) or None
        Of the preconditioner P, see `precondition`.
    """

    def __init__(self, like: Tensor, damping: Tensor, memory: int, metric: Tensor | None = None) -> None:
        t, n, d = like.shape
        self.damping, self.metric, self.memory, self.used = damping, metric, memory, 0
        # s and P·y, of which, with P·grad, directions are made; their inner products with y, as far as they are needed.
        self.basis = like.new_zeros(t, 2, memory, n * d)
        self.products = like.new_zeros(t, 2, memory, memory, dtype=torch.float64)
        self.last = like.new_zeros(t, n * d)  # y of the newest step

    def keep(self, tasks: Tensor) -> None:
        """Go on with some of the tasks."""
        self.basis, self.last, self.damping = self.basis[tasks], self.last[tasks], self.damping[tasks]
        self.products = self.products[tasks]

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a step `(T, N, D+1)` and how the gradient changed along it, in place of the oldest."""
        self.basis[:, 0, self.used % self.memory] = step.flatten(1)
        self.last = change.flatten(1)  # P·y is made with the next direction
        self.used += 1

    def direction(self, grad: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """−H·grad, `(T, N, D+1)`, and its slope `(T,)` in float64; both are 0 where a task is not `active (T,)`.

        A task whose memory does not lead downhill starts over along −P·grad.
        """
        t, m = len(grad), self.memory
        flat = grad.flatten(1)
        both = torch.stack([self.last.view_as(grad), grad], dim=1)
        change, pushed = precondition(both.flatten(1, 2), self.damping, self.metric).view(t, 2, -1).unbind(dim=1)
        square = inner_products(flat, pushed)
        if not self.used:
            return (pushed * -active[:, None].to(grad.dtype)).view_as(grad), -square.double() * active
        self.basis[:, 1, (self.used - 1) % m] = change
        basis = self.basis.view(t, 2 * m, -1)
        newest = torch.stack([self.last, flat], dim=2)  # y of the newest step, and grad
        if basis.is_cuda and _is_long(flat):
            fresh = torch.stack([torch.mm(a, b) for a, b in zip(basis, newest, strict=True)])
        else:
            fresh = torch.bmm(basis, newest)
        weights, scale, slope = self._combine(fresh, square, active)
        step = torch.bmm(weights.view(t, 1, -1), basis)[:, 0]
        return torch.addcmul(step, scale[:, None], pushed).view_as(grad), slope

    def _combine(self, fresh: Tensor, square: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients of the basis `(T, 2·memory)` and of P·grad `(T,)` in directions, and their slopes in float64.

        `fresh (T, 2·memory, 2)` are products of the basis with the newest y and with grad; `square` is ⟨grad, P·grad⟩.
        """
        t, h, m = len(fresh), min(self.used, self.memory), self.memory
        if fresh.is_cuda and fresh.dtype == torch.float32 and m <= _WARP:
            kernel = compiled("two_loop", fresh.device, _WARP, MEMORY=m)
            if kernel is not None:
                weights, scale, slope = fresh.new_empty(t, 2 * m), fresh.new_empty(t), self.products.new_empty(t)
                kernel(t, fresh, square, active, self.products, weights, scale, slope, self.used)
                return weights, scale, slope
        at, square = (self.used - 1) % m, square.double()
        inner = fresh.double().view(t, 2, m, 2)
        self.products[..., at] = inner[..., 0]
        self.products[:, 1, at] = inner[:, 1, :, 0]  # P is symmetric
        newest_last = torch.arange(self.used - h, self.used, device=fresh.device) % m
        products = self.products.index_select(2, newest_last).index_select(3, newest_last)
        with_grad = inner[..., 1].index_select(2, newest_last)
        coefficients, scale = _two_loop(products, with_grad)
        slope = (coefficients * with_grad).sum(dim=(1, 2)) + scale * square
        downhill = slope < 0
        moves = downhill & active
        weights = torch.zeros_like(inner[..., 0])
        weights[:, :, newest_last] = coefficients * moves[:, None, None]
        scale = torch.where(downhill, scale, -1.0) * active
        slope = torch.where(downhill, slope, -square) * active
        return weights.to(fresh.dtype).view(t, -1), scale.to(fresh.dtype), slope


def inner_products(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of each task's arrays `(T, ...)`, `(T,)`.

    >>> inner_products(torch.ones(2, 3, 4), torch.ones(2, 3, 4))
    tensor([12., 12.])
    """
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    if a.is_cuda and not _is_long(a):
        return torch.bmm(a[:, None], b[..., None])[:, 0, 0]  # one launch
    return torch.linalg.vecdot(a, b)  # on a CPU several times as fast as a batch of products


def _is_long(flat: Tensor) -> bool:
    return flat.shape[1] > len(flat) * _LONG


def precondition(q: Tensor, damping: Tensor, metric: Tensor | None = None) -> Tensor:
    """P·q: weights times `metric`, or less the damped part along the all-ones direction; the bias stays as it is."""
    if metric is not None:
        return torch.cat([q[..., :-1] @ metric, q[..., -1:]], dim=-1)
    out = q.clone()
    weight = out[..., :-1]
    weight -= damping * weight.mean(dim=-1, keepdim=True)
    return out


def _two_loop(products: Tensor, with_grad: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients `(T, 2, h)` of s and P·y in −H·grad, and that of P·grad, `(T,)`.

    `products (T, 2, h, h)` are ⟨s_i, y_j⟩ and ⟨P·y_i, y_j⟩, `with_grad (T, 2, h)` the same with grad, from the oldest
    pair to the newest. With R the upper triangle of ⟨s_i, y_j⟩ the first loop solves Rα = ⟨s, grad⟩ and the second
    Rᵀβ = diag(R)·α − ⟨y, r⟩ for r = P·(grad − Σ α_j y_j), scaled. Pairs of no curvature are left out.
    """
    curvature = products[:, 0].diagonal(dim1=1, dim2=2)
    good = curvature > _LEAST_CURVATURE
    eye = torch.eye(good.shape[1], dtype=products.dtype, device=products.device)
    r = torch.where(good[:, :, None] & good[:, None, :], products[:, 0].triu(), eye)
    alpha = torch.linalg.solve_triangular(r, (with_grad[:, 0] * good)[..., None], upper=True)
    scale = torch.where(good[:, -1], curvature[:, -1] / products[:, 1, -1, -1].clamp(min=1e-30), 1.0)
    pushed = scale[:, None] * (with_grad[:, 1] - (products[:, 1] @ alpha)[..., 0])
    rest = (curvature * alpha[..., 0] - pushed) * good
    beta = torch.linalg.solve_triangular(r.mT, rest[..., None], upper=False)[..., 0]
    return torch.stack([-beta, scale[:, None] * alpha[..., 0]], dim=1), -scale


class Pairs:
    """The last `memory` steps s of one task, with the changes of the gradient y along them and P·y, all `(N, D+1)`."""

    def __init__(self, memory: int) -> None:
        self._pairs: deque[tuple[np.ndarray, np.ndarray, np.ndarray, float]] = deque(maxlen=memory)

    def add(self, step: np.ndarray, change: np.ndarray, pushed_change: np.ndarray) -> None:
        """Remember a step, y and P·y in place of the oldest; a step of no curvature is left out."""
        curvature = float(np.vdot(step, change))
        if curvature > _LEAST_CURVATURE:
            self._pairs.append((step, change, pushed_change, curvature))

    def times_inverse(self, grad: np.ndarray, pushed: np.ndarray) -> np.ndarray:
        """H·grad, from grad and P·grad."""
        q, r, shares = grad.copy(), pushed.copy(), []
        for step, change, pushed_change, curvature in reversed(self._pairs):
            share = np.float32(np.vdot(step, q) / curvature)
            q -= share * change
            r -= share * pushed_change
            shares.append(share)
        if self._pairs:
            _, change, pushed_change, curvature = self._pairs[-1]
            r *= np.float32(curvature / max(float(np.vdot(change, pushed_change)), 1e-30))
        for (step, change, _, curvature), share in zip(self._pairs, reversed(shares), strict=True):
            r += (share - np.float32(np.vdot(change, r) / curvature)) * step
        return r
