"""The memory of L-BFGS: the last steps with the changes of the gradient along them, and the direction they suggest.

The two-loop recursion (Nocedal 1980) is a sequence of inner products and sums of a few vectors. Here all inner products
are taken at once, the recursion runs on them as numbers on the host, and one product makes the direction: a handful of
operations on tensors instead of six for every step remembered.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
        self.products = np.zeros((t, 2, memory, memory))
        self.last = like.new_zeros(t, n * d)  # y of the newest step

    def keep(self, tasks: Tensor) -> None:
        """Go on with some of the tasks."""
        self.basis, self.last, self.damping = self.basis[tasks], self.last[tasks], self.damping[tasks]
        self.products = self.products[tasks.cpu().numpy()]

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a step `(T, N, D+1)` and how the gradient changed along it, in place of the oldest."""
        self.basis[:, 0, self.used % self.memory] = step.flatten(1)
        self.last = change.flatten(1)  # P·y is made with the next direction
        self.used += 1

    def direction(self, grad: Tensor, active: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """−H·grad, `(T, N, D+1)`, and its slope `(T,)`; both are 0 where a task is not `active`.

        A task whose memory does not lead downhill starts over along −P·grad.
        """
        t, h, m = len(grad), min(self.used, self.memory), self.memory
        flat = grad.flatten(1)
        both = torch.stack([self.last.view_as(grad), grad], dim=1)
        change, pushed = precondition(both.flatten(1, 2), self.damping, self.metric).view(t, 2, -1).unbind(dim=1)
        own = torch.bmm(flat[:, None], pushed[..., None])
        if not h:
            square = _numbers(own)[:, 0, 0] * active
            return (_tensor(-active.astype(float), grad)[:, None] * pushed).view_as(grad), -square
        at = (self.used - 1) % m
        self.basis[:, 1, at] = change
        basis = self.basis.view(t, 2 * m, -1)
        fresh = torch.bmm(basis, torch.stack([self.last, flat], dim=2))  # with y of the newest step, and with grad
        inner = _numbers(torch.cat([fresh.flatten(1), own[:, 0]], dim=1))
        square, inner = inner[:, -1], inner[:, :-1].reshape(t, 2, m, 2)
        self.products[..., at] = inner[..., 0]
        self.products[:, 1, at] = inner[:, 1, :, 0]  # P is symmetric
        order = [i % m for i in range(self.used - h, self.used)]
        coefficients, scale = _two_loop(self.products[:, :, order][..., order], inner[:, :, order, 1])
        slope = (coefficients * inner[:, :, order, 1]).sum(axis=(1, 2)) + scale * square
        stale = ~(slope < 0)
        coefficients[stale], scale[stale], slope[stale] = 0, -1, -square[stale]
        weights = np.zeros((t, 2, m))
        weights[:, :, order] = coefficients * active[:, None, None]
        step = torch.bmm(_tensor(weights, grad).view(t, 1, -1), basis)[:, 0]
        return torch.addcmul(step, _tensor(scale * active, grad)[:, None], pushed).view_as(grad), slope * active


def precondition(q: Tensor, damping: Tensor, metric: Tensor | None = None) -> Tensor:
    """P·q: weights times `metric`, or less the damped part along the all-ones direction; the bias stays as it is."""
    if metric is not None:
        return torch.cat([q[..., :-1] @ metric, q[..., -1:]], dim=-1)
    out = q.clone()
    weight = out[..., :-1]
    weight -= damping * weight.mean(dim=-1, keepdim=True)
    return out


def _two_loop(products: np.ndarray, with_grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients `(T, 2, h)` of s and P·y in −H·grad, and that of P·grad, `(T,)`.

    `products (T, 2, h, h)` are ⟨s_i, y_j⟩ and ⟨P·y_i, y_j⟩, `with_grad (T, 2, h)` the same with grad, from the oldest
    pair to the newest. With R the upper triangle of ⟨s_i, y_j⟩ the first loop solves Rα = ⟨s, grad⟩ and the second
    Rᵀβ = diag(R)·α − ⟨y, r⟩ for r = P·(grad − Σ α_j y_j), scaled. Pairs of no curvature are left out.
    """
    curvature = np.diagonal(products[:, 0], axis1=1, axis2=2)
    good = curvature > 1e-12
    r = np.where(good[:, :, None] & good[:, None, :], np.triu(products[:, 0]), np.eye(good.shape[1]))
    alpha = np.linalg.solve(r, np.where(good, with_grad[:, 0], 0.0)[..., None])[..., 0]
    scale = np.where(good[:, -1], curvature[:, -1] / np.maximum(products[:, 1, -1, -1], 1e-30), 1.0)
    pushed = scale[:, None] * (with_grad[:, 1] - (products[:, 1] @ alpha[..., None])[..., 0])
    rest = np.where(good, curvature * alpha - pushed, 0.0)
    beta = np.linalg.solve(np.swapaxes(r, 1, 2), rest[..., None])[..., 0]
    return np.stack([-beta, scale[:, None] * alpha], axis=1), -scale


def _numbers(x: Tensor) -> np.ndarray:
    return x.double().cpu().numpy()


def _tensor(x: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(x).to(device=like.device, dtype=like.dtype)
