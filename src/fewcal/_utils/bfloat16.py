"""Where half precision pays: products of random points, whose rounding is far below their own noise.

bfloat16 keeps 8 bits, an error of 0.2% at random in each number. It is for points that were drawn at random and for
the factors they are drawn with, never for means, distances, covariances in closed form, or results.
`FEWCAL_FLOAT32=1` turns it off.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

# Numbers below which a conversion takes longer than it saves, and results stay those of float32.
MIN_NUMBERS = 1 << 18


def half_pays(x: Tensor, numbers: int | None = None) -> bool:
    """Whether products with `x`, or with so many numbers beside it, are to be made in bfloat16.

    >>> half_pays(torch.zeros(3, 3))
    False
    """
    size = x.numel() if numbers is None else numbers
    if size < MIN_NUMBERS or x.dtype != torch.float32 or keeps_float32():
        return False
    if x.is_cuda:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return x.device.type == "cpu" and _cpu_has_bfloat16()


def keeps_float32() -> bool:
    """Whether points are drawn and used in float32 throughout, with their whole covariance."""
    return bool(os.environ.get("FEWCAL_FLOAT32"))


def _cpu_has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16, and the library that makes products may use it; else it is slow."""
    try:
        has = torch.cpu._is_avx512_bf16_supported()  # private of torch: no public name
        return bool(has and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # private of torch: no public name
    except (AttributeError, RuntimeError):
        return False
