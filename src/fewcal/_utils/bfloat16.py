"""Where half precision pays: products of random points, whose rounding is far below their own noise.

bfloat16 keeps 8 bits, an error of 0.2% at random in each number. It is used for points that were drawn at random and
for the factors they are drawn with, never for means, distances, covariances in closed form, or what is reported. Set
`FEWCAL_FLOAT32=1` for float32 throughout.
"""

from __future__ import annotations

import os
import time
from functools import cache

import torch
from torch import Tensor

# Below this many numbers the saving is not worth a conversion, and results stay those of float32.
SMALLEST = 1 << 18
# Times that products of bfloat16 take as long as those of float32, from which on they are no work of the processor.
_EMULATED = 4.0


def half_pays(x: Tensor, numbers: int | None = None, smallest: int = SMALLEST) -> bool:
    """Whether products with `x`, or with so many numbers beside it, are to be made in bfloat16.

    >>> half_pays(torch.zeros(3, 3))
    False
    """
    size = x.numel() if numbers is None else numbers
    if size < smallest or x.dtype != torch.float32 or exact_asked():
        return False
    if x.is_cuda:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return x.device.type == "cpu" and _cpu_has_bf16()


def exact_asked() -> bool:
    """Whether points are to be drawn and used in float32 throughout, with all that their covariance says."""
    return bool(os.environ.get("FEWCAL_FLOAT32"))


def rounded(x: Tensor) -> Tensor:
    """Points `(T, M, D)` in bfloat16, with zero rows at the end up to a multiple of 8.

    The matrix units of a GPU read eight numbers at a time: products with a row more or less take three times as long.
    """
    t, m, d = x.shape
    out = torch.empty(t, m + -m % 8, d, dtype=torch.bfloat16, device=x.device)
    out[:, :m], out[:, m:] = x, 0
    return out


def products(a: Tensor, b: Tensor) -> Tensor:
    """Matrix products `(T, I, J) @ (T, J, K)`; of one pair, not as a batch, which in bfloat16 takes ten times as long.

    >>> products(torch.ones(1, 2, 3), torch.ones(1, 3, 4)).shape
    torch.Size([1, 2, 4])
    """
    return torch.mm(a[0], b[0]).unsqueeze(0) if len(a) == 1 else torch.bmm(a, b)


def _cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 by itself; elsewhere it is slower than float32."""
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # private of torch: nothing public tells
    return has is not None and bool(has()) and not _emulated()


@cache
def _emulated() -> bool:
    """Whether products of bfloat16 take far longer than those of float32, whatever the processor has.

    They do where the library that makes them is kept from using it (`ONEDNN_MAX_CPU_ISA=AVX2`): thirty to ninety times,
    beside half of the time where it is used, so that no other work on the machine can mislead.
    """
    return _seconds(torch.bfloat16) > _EMULATED * _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """The shortest of a few products; the first one is no measure, as kernels are made for it."""
    x, y = torch.ones(128, 512, dtype=dtype), torch.ones(512, 128, dtype=dtype)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        x @ y
        times.append(time.perf_counter() - began)
    return min(times[1:])
