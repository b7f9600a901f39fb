"""SGD of many tasks on a GPU in one kernel: points are read from memory once in an epoch, instead of four times.

Plain operations copy a batch in its random order and read the copy for the logits and for the gradient; that is all
they wait for. The kernel (`sgd_epochs.cu`) fetches points in that order into shared memory and makes both products
there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal._utils.cuda_kernels import Kernel, compiled

_MOST_CLASSES = 8
_MOST_FEATURES = 2048
_THREADS = 256


def fused_epochs(x: Tensor, n_classes: int) -> Kernel | None:
    """The kernel for points `x (T, M, D)`; None where there is none, or points are not in half precision on a GPU.

    Its arguments are points, orders `(T, E, M)` and labels `(T, M)` in int32, weights, biases, losses, M, E, the points
    of a batch, the learning rate, and whether the last of the epochs is the last of all.
    """
    d = x.shape[2]
    if not x.is_cuda or x.dtype != torch.bfloat16 or n_classes > _MOST_CLASSES or d > _MOST_FEATURES or d % 8:
        return None
    for rows in (64, 32, 16):
        kernel = compiled("sgd_epochs", x.device, _THREADS, shared_bytes(d, rows), D=d, N=n_classes, ROWS=rows)
        if kernel is not None:
            return kernel
    return None


def shared_bytes(d: int, rows: int) -> int:
    """Shared memory of a block: two tiles of points, weights, residuals, parts of the logits, and a little."""
    stride = -(-d // 128) * 128 + 8
    splits = 8 // (rows // 16)
    sums = max(8, rows // 4)
    return 2 * (2 * rows * stride + 8 * stride + 8 * (rows + 8)) + 4 * (8 * splits * rows + 2 * rows + 8 + sums)
