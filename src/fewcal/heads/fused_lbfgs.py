"""L-BFGS of one task on a CPU by a kernel that reads points once for a look along a step and the gradient at its end.

Plain operations read them twice in an iteration, and what is beside it, some sixty operations on small tensors, takes
as long again. Here that is a dozen of NumPy's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.cpu_kernels import Kernels
from fewcal.heads.line_search import NO_STEP, Slopes, line_search
from fewcal.heads.two_loop import Pairs

# A step is taken when the slope at its end is this small beside that at its start: another look is another pass over
# the points.
_CURVATURE = 0.7


class FusedPoints:
    """Points `(M, D)` and labels `(M,)` of a task, and where on them the search stands.

    Logits `(N, M)` are those of each class less that of a point's own.
    """

    def __init__(self, fused: Kernels, x: Tensor, labels: Tensor, n_classes: int) -> None:
        self.fused, self.points = fused, (x.contiguous(), labels.to(torch.int32).contiguous())
        self.logits = x.new_zeros(n_classes, len(x))
        self.along = torch.empty_like(self.logits)
        self.gradient = x.new_empty(n_classes, x.shape[1] + 1)  # of the mean loss where was last looked
        self._sums = torch.empty(3, dtype=torch.float64)
        self._step: tuple[Tensor, Tensor] | None = None

    def towards(self, step: np.ndarray) -> None:
        """Turn to a step `(N, D+1)`."""
        first = torch.from_numpy(step)[:-1]
        self._step = first[:, :-1].contiguous(), first[:, -1].contiguous()

    def look(self, length: np.ndarray) -> np.ndarray:
        """Mean loss, slope and curvature at a length `(1,)` of the step, `(3, 1)`."""
        made = self._sums, self.gradient
        self.fused.look_along(self.points, self.logits, self.along, self._step, float(length[0]), made)
        self._step = None  # `along` has it
        means: np.ndarray = self._sums.numpy()[:, None] / self.logits.shape[1]
        return means

    def move(self, length: float) -> None:
        """Go so far along the step."""
        self.logits.add_(self.along, alpha=length)


def minimise(
    points: FusedPoints, ridge: float, max_iter: int, tol: float, memory: int, precondition: Preconditioner
) -> np.ndarray:
    """Weights and biases `(N, D+1)` at the minimum of the mean loss + ridge·‖W‖²/2; see `lbfgs_head`."""
    w = np.zeros(points.gradient.shape, np.float32)
    points.towards(w)
    loss = points.look(np.zeros(1))[0]
    grad = points.gradient.numpy().copy()
    pushed = precondition(grad)
    pairs, stood = Pairs(memory), 0
    for _ in range(max_iter):
        if np.abs(grad).max() <= tol or stood > memory:
            break
        step = -pairs.times_inverse(grad, pushed)
        slope = float(np.vdot(grad, step))
        if slope >= 0:  # the memory does not lead downhill: start over
            step = -pushed
            slope = float(np.vdot(grad, step))
        points.towards(step)
        weight, move = w[:, :-1], step[:, :-1]
        slopes = Slopes(*(np.array([v]) for v in (slope, ridge * (weight * move).sum(), ridge * (move * move).sum())))
        length, loss = line_search(points.look, loss, slopes, _CURVATURE)
        stood = 0 if length[0] > NO_STEP else stood + 1
        points.move(float(length[0]))
        move = np.float32(length[0]) * step
        w += move
        new = points.gradient.numpy().copy()
        new[:, :-1] += np.float32(ridge) * w[:, :-1]
        new_pushed = precondition(new)
        pairs.add(move, new - grad, new_pushed - pushed)
        grad, pushed = new, new_pushed
    return w


class Preconditioner:
    """P·grad for gradients `(N, D+1)`: weights times `metric (D, D)`, or less a part along the all-ones direction."""

    def __init__(self, fused: Kernels, damping: float, metric: Tensor | None) -> None:
        self.fused, self.damping = fused, np.float32(damping)
        self.metric = None if metric is None else metric.contiguous()

    def __call__(self, grad: np.ndarray) -> np.ndarray:
        out, weight = grad.copy(), grad[:, :-1]
        if self.metric is not None:
            self.fused.times_symmetric(torch.from_numpy(weight[:-1].copy()), self.metric, torch.from_numpy(out))
        else:
            out[:, :-1] -= self.damping * weight.mean(axis=1, keepdims=True)
        return out
