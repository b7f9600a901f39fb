"""The operations that heads on sampled points spend their time in, each defined once, in torch.

`reference` is the definition. With Numba (the extra `fast`) `cpu` compiles all five for tasks of many points; with
Triton `cuda` compiles `line_search` and `sgd_epochs`. Results are the same up to rounding. `FEWCAL_OPS=torch` keeps to
the reference.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.text import one_line
from fewcal.errors import FewcalWarning
from fewcal.ops import reference

__all__ = ["gradient", "line_search", "logits", "normal", "sgd_epochs", "works_in_float32"]

# On a CPU compiled loops pay from so many points M·D, logits N·M or normal numbers on.
MIN_NUMBERS, MIN_LOGITS, MIN_NORMALS = 1 << 18, 1 << 13, 1 << 15
# Their block of points; the weights of a task must fit a core's first cache beside a few of these.
BLOCK_POINTS, MAX_CLASSES, MAX_WEIGHTS = 64, 16, 1 << 14
# Normal numbers made at a time: few enough for a core's cache, an even number.
CHUNK_NORMALS = 1 << 16
# The largest tiles of the kernels for a GPU.
MAX_CUDA_CLASSES, MAX_SGD_CLASSES, MAX_SGD_FEATURES = 64, 16, 1024


def logits(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    """Logits of points under linear classifiers, less those of each point's own class; see `reference.logits`."""
    return _module(x, cpu=_suits_cpu(x, w.shape[1])).logits(x, labels, w)


def gradient(x: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """Gradient of the mean cross entropy at logits; see `reference.gradient`."""
    return _module(x, cpu=_suits_cpu(x, z.shape[1])).gradient(x, labels, z)


def line_search(z: Tensor, along: Tensor, loss: Tensor, slopes: Tensor, curvature: float) -> tuple[Tensor, Tensor]:
    """How far each task goes along a step, and its mean cross entropy there; see `reference.line_search`."""
    _, n, m = z.shape
    module = _module(z, cpu=n * m >= MIN_LOGITS and m >= BLOCK_POINTS, cuda=n <= MAX_CUDA_CLASSES)
    return module.line_search(z, along, loss, slopes, curvature)


def sgd_epochs(
    x: Tensor, labels: Tensor, orders: Tensor, weight: Tensor, bias: Tensor, batch_size: int, lr: float
) -> Tensor:
    """Train weights and biases by epochs of mini-batch SGD, in place; see `reference.sgd_epochs`."""
    n, d = weight.shape[1:]
    suits_cuda = x.dtype == torch.bfloat16 and n <= MAX_SGD_CLASSES and d <= MAX_SGD_FEATURES
    module = _module(x, cpu=_suits_cpu(x, n), cuda=suits_cuda)
    if x.is_cuda or module is not reference:
        return module.sgd_epochs(x, labels, orders, weight, bias, batch_size, lr)
    # One task after another, whose points a cache can hold.
    tasks = [slice(t, t + 1) for t in range(len(x))]
    losses = [reference.sgd_epochs(x[t], labels[t], orders[t], weight[t], bias[t], batch_size, lr) for t in tasks]
    return torch.cat(losses)


def normal(bits: np.random.BitGenerator, out: Tensor) -> None:
    """Fill `out (n,)`, in single precision, with normal numbers from a stream of bits; see `reference.normal`."""
    module = _module(out, cpu=len(out) >= MIN_NORMALS)
    for part in out.split(CHUNK_NORMALS):
        halves = np.asarray(bits.random_raw(-(-len(part) // 2)), np.uint64).view(np.int32)
        module.normal(torch.from_numpy(halves)[: len(part)], part)


def works_in_float32(x: Tensor, n_classes: int) -> bool:
    """Whether points `x (T, M, D)` are for compiled loops, to which rounded ones are no help."""
    return _module(x, cpu=_suits_cpu(x, n_classes)) is not reference


def _suits_cpu(x: Tensor, n_classes: int) -> bool:
    """Whether a task's points suit the loops; it does not depend on how many tasks there are."""
    m, d = x.shape[1:]
    return m * d >= MIN_NUMBERS and m >= BLOCK_POINTS and n_classes <= MAX_CLASSES and n_classes * d <= MAX_WEIGHTS


def _module(x: Tensor, cpu: bool, cuda: bool = False) -> ModuleType:
    """Who computes with tensors like x, where these suit the loops for a CPU or the kernels for a GPU."""
    if os.environ.get("FEWCAL_OPS") != "torch":
        if cpu and x.device.type == "cpu" and x.dtype == torch.float32:
            return _compiled("cpu", "numba")
        if cuda and x.is_cuda:
            return _compiled("cuda", "triton")
    return reference


@cache
def _compiled(name: str, library: str) -> ModuleType:
    """The module for a CPU or a GPU; the reference where its library is missing, or does not work."""
    if find_spec(library) is None:
        return reference
    try:
        module = import_module(f"fewcal.ops.{name}")
        module.check()
    except Exception as error:  # of a library that does not fit NumPy, the driver or the machine: anything at all
        warnings.warn(
            f"{library} does not work here, and torch computes more slowly in its place: {one_line(error)}; mend or "
            f"uninstall {library}, or set FEWCAL_OPS=torch",
            FewcalWarning,
            stacklevel=4,
        )
        return reference
    return module
