"""Kernels of our own on NVIDIA GPUs, for steps in which plain operations wait for memory again and again.

They are compiled when first used, by the compiler that comes with PyTorch. Where that does not work `compiled` returns
None, and whoever asked falls back on plain operations, which give the same numbers but for rounding.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib import resources
from typing import TypeAlias

import torch
from torch import Tensor

Argument: TypeAlias = "Tensor | int | float | None"


class Kernel:
    """A compiled function that is run with blocks of a fixed number of threads and bytes of shared memory."""

    def __init__(self, function: ctypes.c_void_p, threads: int, shared: int) -> None:
        self.threads, self.shared, self._function = threads, shared, function

    def __call__(self, blocks: int, *arguments: Argument) -> None:
        """Run it on the current stream: tensors are pointers, None is a null pointer, int and float are C's."""
        values = [_c_value(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (ctypes.c_uint(v) for v in (blocks, 1, 1, self.threads, 1, 1, self.shared))
        code = _driver().cuLaunchKernel(self._function, *sizes, stream, pointers, None)
        if code:
            raise RuntimeError(f"a CUDA kernel could not be started: error {code}")


def _c_value(a: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if a is None:
        return ctypes.c_void_p(None)
    if isinstance(a, torch.Tensor):
        return ctypes.c_void_p(a.data_ptr())
    return ctypes.c_int(a) if isinstance(a, int) else ctypes.c_float(a)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def compiled(name: str, device: torch.device, threads: int, shared: int = 0, **sizes: int) -> Kernel | None:
    """The function `name` of the file `name`.cu, with `sizes` defined as constants; None where it cannot be had.

    `FEWCAL_PLAIN_CUDA=1` asks for plain operations.
    """
    if device.type != "cuda" or os.environ.get("FEWCAL_PLAIN_CUDA"):
        return None
    with torch.cuda.device(device):
        return _compiled(name, torch.cuda.current_device(), threads, shared, tuple(sorted(sizes.items())))


@cache
def _compiled(name: str, device: int, threads: int, shared: int, sizes: tuple[tuple[str, int], ...]) -> Kernel | None:
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)  # private of torch: nothing public compiles
    properties = torch.cuda.get_device_properties(device)
    most: int = getattr(properties, "shared_memory_per_block_optin", 0)
    if compile_kernel is None or properties.major < 8 or shared > most:
        return None
    source = resources.files("fewcal._utils").joinpath(f"{name}.cu").read_text(encoding="utf-8")
    constants = "".join(f"#define {key} {value}\n" for key, value in sizes)
    try:
        made = compile_kernel(constants + source, name)
        made.set_shared_memory_config(shared)
        return Kernel(made.func, threads, shared)
    except (RuntimeError, OSError, AttributeError, ImportError):  # no compiler library, or another interface
        return None
