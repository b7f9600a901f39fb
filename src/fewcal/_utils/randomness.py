"""Random numbers that depend on (seed, task, stream) and on nothing else.

Each task has its own generator, so a result does not change with the batch size, the number of workers or the order
in which tasks are run. CPU and CUDA generators give different numbers from the same seed, by PyTorch's design.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.cpu_kernels import number_kernels
from fewcal._utils.splitmix import mix

_SEED_BITS = (1 << 63) - 1
# Below this many numbers PyTorch's own are as quick; it is fixed because it fixes the random stream.
_MANY = 1 << 14
# Made at a time: few enough for a core's cache.
_AT_ONCE = 1 << 17


def fill_normal(out: Tensor, generator: torch.Generator) -> Tensor:
    """Fill `out`, of any shape, with standard normal numbers.

    Many numbers in single or half precision on a CPU are quantiles of the normal distribution, one of 65536 equally
    likely ones picked by 16 random bits: their distribution function is nowhere off by more than 2⁻¹⁷, their mean is 0
    and their variance 1, and they take a third of the time that PyTorch's take.

    >>> z = fill_normal(torch.empty(300, 200), torch.Generator().manual_seed(0))
    >>> bool(z.mean().abs() < 0.02) and bool((z.var() - 1).abs() < 0.03)
    True
    """
    if not out.is_contiguous():  # which would get other numbers
        return out.copy_(fill_normal(torch.empty_like(out, memory_format=torch.contiguous_format), generator))
    if out.numel() < _MANY or out.device.type != "cpu" or out.dtype == torch.float64:
        return out.normal_(generator=generator)
    flat, table = out.view(-1), _quantiles(out.dtype)
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
    source = np.random.SFC64(int(seed))
    fused = number_kernels(out)
    if fused is not None:
        fused.pick(source, table, flat)
        return out
    bits = np.random.Generator(source)
    for begin in range(0, len(flat), _AT_ONCE):
        part = flat[begin : begin + _AT_ONCE]
        drawn = bits.integers(1 << 64, size=-(-len(part) // 4), dtype=np.uint64).view(np.int16)[: len(part)]
        torch.index_select(table, 0, torch.from_numpy(drawn).to(torch.int32).add_(1 << 15), out=part)
    return out


@cache
def _quantiles(dtype: torch.dtype) -> Tensor:
    """65536 equally likely values that are as good as normal."""
    share = (torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16)
    value = torch.special.ndtri(share)
    return (value / value.square().mean().sqrt()).to(dtype)


class TaskRandom:
    """One independent stream of random numbers per task of a batch.

    Parameters
    ----------
    seed : int
        The run's seed.
    tasks : sequence of int
        Index of each task in the run, `(T,)`.
    device : torch.device
        Where the numbers are made.
    stream : int
        Another number gives an unrelated stream, for another stage of the same task.

    Examples
    --------
    >>> both = TaskRandom(0, [7, 8]).normal(2, 3)
    >>> alone = TaskRandom(0, [8]).normal(2, 3)
    >>> bool((both[1] == alone[0]).all())
    True
    """

    def __init__(
        self, seed: int, tasks: Sequence[int] = (0,), device: torch.device | str = "cpu", stream: int = 0
    ) -> None:
        self.seed = int(seed)
        self.tasks = [int(t) for t in tasks]
        self.device = torch.device(device)
        self.stream = stream

    @cached_property
    def generators(self) -> list[torch.Generator]:
        """One generator for each task, made when the first number is drawn: methods without randomness need none."""
        seeds = [mix(self.seed, t, *[self.stream] * bool(self.stream)) & _SEED_BITS for t in self.tasks]
        return [torch.Generator(device=self.device).manual_seed(seed) for seed in seeds]

    def __len__(self) -> int:
        return len(self.tasks)

    def part(self, tasks: slice) -> TaskRandom:
        """The streams of some of the tasks, as far as they have been used."""
        out = TaskRandom(self.seed, (), self.device, self.stream)
        out.tasks, out.generators = self.tasks[tasks], self.generators[tasks]
        return out

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal numbers `(T, *shape)`, float32 unless another type is asked for."""
        return self.fill_normal(torch.empty(len(self), *shape, dtype=dtype or torch.float32, device=self.device))

    def fill_normal(self, out: Tensor) -> Tensor:
        """Fill `out (T, ...)` with standard normal numbers, each task from its own stream."""
        for part, generator in zip(out.unbind(), self.generators, strict=True):
            fill_normal(part, generator)
        return out

    def uniform(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers uniform on [0, 1), `(T, *shape)`, float32 unless another type is asked for."""
        out = torch.empty(len(self), *shape, dtype=dtype or torch.float32, device=self.device)
        for t, generator in enumerate(self.generators):
            out[t].uniform_(generator=generator)
        return out

    def permutations(self, size: int, count: int) -> Tensor:
        """`count` random orders of `0..size-1` for each task, `(T, count, size)`."""
        if self.device.type != "cpu":
            # One launch a task for all of them; ties among random keys only break in a fixed order.
            return self.uniform(count, size).argsort(dim=-1)
        orders = [[torch.randperm(size, generator=generator) for _ in range(count)] for generator in self.generators]
        return torch.stack([torch.stack(of_task) for of_task in orders])
