"""Random numbers that depend on (seed, task, stream) and on nothing else.

Each task has its own generator, so a result does not change with the batch size, the number of workers or the order
in which tasks are run. CPU and CUDA generators give different numbers from the same seed, by PyTorch's design.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fewcal import ops
from fewcal._utils.splitmix import mix

_SEED_BITS = (1 << 63) - 1
# So many numbers and more are made of NumPy's bits: those of a generator of torch take longer than the rest. It fixes
# the random stream.
MIN_FROM_BITS = 1 << 14


def fill_normal(out: Tensor, generator: torch.Generator) -> Tensor:
    """Fill `out`, of any shape, with standard normal numbers; a view of any kind gets the same ones as an array.

    >>> z = fill_normal(torch.empty(300, 200), torch.Generator().manual_seed(0))
    >>> bool(z.mean().abs() < 0.02) and bool((z.var() - 1).abs() < 0.03)
    True
    """
    if not out.is_contiguous():
        return out.copy_(fill_normal(torch.empty(out.shape, dtype=out.dtype, device=out.device), generator))
    if out.numel() < MIN_FROM_BITS or out.device.type != "cpu" or out.dtype != torch.float32:
        return out.normal_(generator=generator)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    ops.normal(np.random.SFC64(seed), out.view(-1))
    return out


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

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers `(T, *shape)`."""
        return self.fill_normal(torch.empty(len(self), *shape, dtype=dtype, device=self.device))

    def fill_normal(self, out: Tensor) -> Tensor:
        """Fill `out (T, ...)` with standard normal numbers, each task from its own stream."""
        for part, generator in zip(out.unbind(), self.generators, strict=True):
            fill_normal(part, generator)
        return out

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers uniform on [0, 1), `(T, *shape)`."""
        out = torch.empty(len(self), *shape, dtype=dtype, device=self.device)
        for part, generator in zip(out.unbind(), self.generators, strict=True):
            part.uniform_(generator=generator)
        return out

    def permutations(self, size: int, count: int) -> Tensor:
        """`count` random orders of `0..size-1` for each task, `(T, count, size)`."""
        if self.device.type != "cpu":
            # One launch a task for all of them; ties among random keys only break in a fixed order.
            return self.uniform(count, size).argsort(dim=-1)
        orders = [[torch.randperm(size, generator=generator) for _ in range(count)] for generator in self.generators]
        return torch.stack([torch.stack(of_task) for of_task in orders])
