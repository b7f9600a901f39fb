"""One process or several (torchrun): who this one is, and how they agree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from fewcal._utils.arrays import pick_device


@dataclass(frozen=True)
class ProcessGroup:
    """Process `rank` of `size`, computing on `device`."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process is the one that validates, writes and prints."""
        return self.rank == 0

    def agreed(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers of the first process, in every process."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(list(numbers), dtype=torch.float64, device=self.device)
        distributed.broadcast(tensor, 0)
        return [float(x) for x in tensor.tolist()]

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mean over all processes."""
        if self.size > 1:
            tensor = tensor.clone()
            distributed.all_reduce(tensor)
            tensor /= self.size
        return tensor


@contextmanager
def joined_process_group(device: str | torch.device | None) -> Iterator[ProcessGroup]:
    """Join the other processes of torchrun (WORLD_SIZE > 1), with one GPU each where the device is one."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    where = pick_device(device)
    if size == 1:
        yield ProcessGroup(0, 1, where)
        return
    if where.type == "cuda":
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(where)
    distributed.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(rank, size, where)
    finally:
        distributed.destroy_process_group()
