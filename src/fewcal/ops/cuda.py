"""Two of the operations as Triton kernels, a program for each task: plain ones wait for memory, and for the host.

Plain SGD copies every batch and reads the copy twice; here a tile of points is read once for both products. In a line
search the host would wait for each evaluation.
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels are no Python: their arguments have the types of Triton.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fewcal.ops.reference import MAX_EVALUATIONS, ROUNDING

SEARCH_POINTS = 256  # of a tile of a line search


def check() -> None:
    """Run one of the kernels: raises where that is not possible, as without what Triton makes its launchers with."""
    z, loss = torch.zeros(1, 2, 4, device="cuda"), torch.zeros(1, dtype=torch.float64, device="cuda")
    line_search(z, z, loss, torch.zeros(3, 1, dtype=torch.float64, device="cuda"), 0.5)


def line_search(z: Tensor, along: Tensor, loss: Tensor, slopes: Tensor, curvature: float) -> tuple[Tensor, Tensor]:
    """As `reference.line_search`."""
    t, n, m = z.shape
    lengths, losses = z.new_empty(t), torch.empty_like(loss)
    tensors = (z.contiguous(), along.contiguous(), loss, slopes.contiguous(), lengths, losses)
    sizes = {"N": triton.next_power_of_2(n), "BLOCK": SEARCH_POINTS, "EVALUATIONS": MAX_EVALUATIONS}
    with torch.cuda.device_of(z):
        _line_search[(t,)](*tensors, t, n, m, curvature, ROUNDING, **sizes)
    return lengths, losses


def sgd_epochs(
    x: Tensor, labels: Tensor, orders: Tensor, weight: Tensor, bias: Tensor, batch_size: int, lr: float
) -> Tensor:
    """As `reference.sgd_epochs`, which has points in bfloat16."""
    (t, m, d), n = x.shape, weight.shape[1]
    loss, size = torch.empty_like(bias[:, 0]), max(16, triton.next_power_of_2(d))
    tensors = (x.contiguous(), labels.to(torch.int32), orders.to(torch.int32), weight, bias, loss)
    # The larger tile and the one that is fetched meanwhile take 162 bytes of shared memory a feature.
    room: int = getattr(torch.cuda.get_device_properties(x.device), "shared_memory_per_block_optin", 0)
    rows, stages = (32, 5) if 164 * size <= room else (16, 4)
    with torch.cuda.device_of(x):
        _sgd_epochs[(t,)](
            *tensors, m, orders.shape[1], batch_size, lr, d, n, D=size, ROWS=rows, num_warps=8, num_stages=stages
        )
    return loss


@triton.jit
def _line_search(
    logits,
    along,
    loss,
    slopes,
    lengths,
    losses,
    tasks,
    n,
    m,
    curvature,
    rounding,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    EVALUATIONS: tl.constexpr,
):
    task = tl.program_id(0).to(tl.int64)
    c, k = tl.arange(0, N)[:, None], tl.arange(0, BLOCK)[None, :]
    start, slope = tl.load(loss + task), tl.load(slopes + task)
    linear, quadratic = tl.load(slopes + tasks + task), tl.load(slopes + 2 * tasks + task)
    low, high, t, value = start * 0, start * 0 + 1e300, start * 0 + 1, start * 0
    searching, evaluations = True, 0
    while searching:
        top_sum = tl.zeros([BLOCK], tl.float32)
        change_sum, bend_sum = top_sum, top_sum
        for i in range(0, m, BLOCK):
            inside = (c < n) & (i + k < m)
            at = task * n * m + c * m + i + k
            a = tl.load(along + at, mask=inside, other=0.0)
            v = tl.load(logits + at, mask=inside, other=0.0) + t.to(tl.float32) * a
            v = tl.where(c < n, v, -float("inf"))
            top = tl.max(v, axis=0)
            e = tl.exp(v - top[None, :])
            total = tl.sum(e, axis=0)
            first = tl.sum(e * a, axis=0) / total
            second = tl.sum(e * a * a, axis=0) / total
            # Beyond the last point all logits are 0.
            top_sum += top + tl.log(total) - tl.where(i + tl.arange(0, BLOCK) < m, 0.0, tl.log(n.to(tl.float32)))
            change_sum += first
            bend_sum += second - first * first
        value = tl.sum(top_sum, axis=0).to(tl.float64) / m
        here = tl.sum(change_sum, axis=0).to(tl.float64) / m + linear + t * quadratic
        bend = tl.sum(bend_sum, axis=0).to(tl.float64) / m + quadratic
        downhill = value - start + t * linear + 0.5 * t * t * quadratic <= 1e-5 * start + 1e-7
        flat = (tl.abs(here) <= curvature * tl.abs(slope)) | (tl.abs(slope) <= rounding * (1 + start))
        evaluations += 1
        searching = (slope < 0) & ~(downhill & flat) & (evaluations < EVALUATIONS)
        if searching:
            low = tl.where((here < 0) & downhill, t, low)
            high = tl.where((here >= 0) | ~downhill, t, high)
            newton = t - here / tl.maximum(bend, 1e-20)
            middle = tl.where(high > 1e299, 2 * t, tl.where(low > 0, 0.5 * (low + high), 0.1 * high))
            t = tl.where(downhill & (newton > low) & (newton < high), tl.minimum(newton, 1e4), middle)
    tl.store(lengths + task, t.to(tl.float32))
    tl.store(losses + task, value)


@triton.jit
def _sgd_epochs(
    x, labels, orders, weight, bias, loss, m, epochs, batch_size, lr, d, n, D: tl.constexpr, ROWS: tl.constexpr
):
    task = tl.program_id(0).to(tl.int64)
    x, labels, orders = x + task * m * d, labels + task * m, orders + task * epochs * m
    weight, bias = weight + task * n * d, bias + task * n
    # Classes are padded to 16, the least that matrix units take.
    f, c, r = tl.arange(0, D), tl.arange(0, 16), tl.arange(0, ROWS)
    of_weight = (f[:, None] < d) & (c[None, :] < n)
    w = tl.load(weight + c[None, :] * d + f[:, None], mask=of_weight, other=0.0)
    b = tl.load(bias + c, mask=c < n, other=0.0)
    total = 0.0
    for epoch in range(epochs):
        total = 0.0
        for begin in range(0, m, batch_size):
            end = tl.minimum(begin + batch_size, m)
            half = w.to(x.dtype.element_ty)
            grad, shift = tl.zeros([D, 16], tl.float32), tl.zeros([16], tl.float32)
            for i in range(begin, end, ROWS):
                inside = i + r < end
                row = tl.load(orders + epoch * m + i + r, mask=inside, other=0)
                mask = inside[:, None] & (f[None, :] < d)
                tile = tl.load(x + row[:, None] * d + f[None, :], mask=mask, other=0.0)
                z = tl.dot(tile, half) + b[None, :]
                z = tl.where(c[None, :] < n, z, -float("inf"))
                p = tl.exp(z - tl.max(z, axis=1)[:, None])
                p = p / tl.sum(p, axis=1)[:, None]
                truth = tl.load(labels + row, mask=inside, other=-1)
                own = c[None, :] == truth[:, None]
                total -= tl.sum(tl.where(own, tl.log(tl.maximum(p, 1e-37)), 0.0))
                residual = tl.where(inside[:, None], p - own.to(tl.float32), 0.0)
                grad += tl.dot(tl.trans(tile), residual.to(x.dtype.element_ty))
                shift += tl.sum(residual, axis=0)
            rate = lr / (end - begin)
            w -= rate * grad
            b -= rate * shift
    tl.store(weight + c[None, :] * d + f[:, None], w, mask=of_weight)
    tl.store(bias + c, b, mask=c < n)
    tl.store(loss + task, total / m)
