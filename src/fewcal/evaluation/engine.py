"""The engine: blocks of tasks in, counts of right answers out.

A run is cut into blocks of tasks with fixed borders. A block depends on nothing but its `Job` and its borders: it can
be computed in any order, in any process, again after a kill, and always gives the same numbers.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.arrays import as_features
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.threads import in_parallel
from fewcal.bank import BaseBank
from fewcal.episodes import Episodes, EpisodeSpec, sample_episodes
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation.stats import CalibrationBins
from fewcal.methods import Method
from fewcal.methods.base import Shared, TaskBatch

# Tasks in a block: small enough to lose little when a run is killed, large enough to make block overhead vanish.
BLOCK_TASKS = 200
# On a GPU a block is over in a moment, and small ones leave it idle: all methods at D=640 took 4.4 s for 2000 tasks in
# blocks of 100 and 1.6 s in blocks of 500 (H200). Those that train on points gain up to here.
CUDA_BLOCK_TASKS = 2500
# Working memory of a batch. On a CPU more than this only costs cache; on a GPU more keeps it busy.
_CPU_BYTES = 256 << 20
_CUDA_SHARE = 0.4
# Tasks in a batch on a CPU, at most: a block must have enough batches for all cores. Light ones are over before the
# next can be begun, so more of them go together.
_CPU_BATCH, _LIGHT_BATCH, _LIGHT_BYTES = 25, 50, 4 << 20


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a worker needs to compute any block of a run.

    Attributes
    ----------
    base : tuple of arrays (features (R, D), labels (R,)) or None
    features : array (R, D) and labels : array (R,)
        The split that tasks are drawn from.
    methods : dict of unprepared methods by display name
    spec : EpisodeSpec
    episodes : Episodes or None
        A fixed list of tasks instead of drawn ones.
    batches : dict
        Tasks computed together, by method; part of the job so that a resumed run makes the same batches.
    rows_recur : bool
        Whether rows are queries so often that what methods can precompute of them is computed once for all of them.
    token : str
        Unlike that of any other job, so that a worker prepares this one once and no other in its place.
    """

    base: tuple[np.ndarray, np.ndarray] | None
    features: np.ndarray
    labels: np.ndarray
    methods: dict[str, Method]
    spec: EpisodeSpec
    episodes: Episodes | None
    device: str
    token: str
    batches: dict[str, int] = field(default_factory=dict)
    rows_recur: bool = False


@dataclass(frozen=True, eq=False)
class Block:
    """What one block of tasks gave.

    Attributes
    ----------
    start : int
        Index of its first task.
    classes : array (B, N)
        Classes of each task, as positions in the split's class list.
    correct : dict of arrays (B, N), right answers among the Q queries of each class
    bins : dict of CalibrationBins
    seconds : dict of float
        Time of each method as if it ran alone: what it found ready in its batch is charged to it as well. What it takes
        from the base classes as a whole, once for all tasks, is not.
    """

    start: int
    classes: np.ndarray
    correct: dict[str, np.ndarray]
    bins: dict[str, CalibrationBins]
    seconds: dict[str, float]

    @property
    def stop(self) -> int:
        """One past its last task."""
        return self.start + len(self.classes)


class Engine:
    """A job made ready in one process: bank, prepared methods, features in each method's space.

    `bank` stands in place of the job's base classes where it is there already, with the spaces that it remembers.
    """

    def __init__(self, job: Job, bank: BaseBank | None = None) -> None:
        self.job = job
        self.device = torch.device(job.device)
        self.threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        reuse_memory()
        if bank is None and job.base is not None:
            bank = BaseBank().fit(*job.base, device=self.device)
        self.bank = bank
        # Not `from_numpy`: arrays that come from a file or another process may be read-only.
        self._raw = as_features(job.features, "features", device=self.device, check=False)
        self._prepare()

    def _prepare(self) -> None:
        # Copies: the job, and the caller's methods in it, must not carry a prepared bank along to every worker.
        self.methods = {name: copy.copy(method).prepare(self.bank) for name, method in self.job.methods.items()}
        self.features: dict[Hashable, Tensor] = {}
        for method in self.methods.values():
            if method.space not in self.features:
                self.features[method.space] = method.transform(self._raw, "features")
        self.precomputed = dict.fromkeys(self.methods)

    def with_methods(self, methods: dict[str, Method]) -> Engine:
        """An engine for other methods on the same tasks; bank, raw features and threads are shared with this one."""
        other = copy.copy(self)
        other.job = replace(self.job, methods=methods, batches={})
        other._prepare()
        other.job = replace(other.job, batches=other.batch_sizes())
        return other

    def plan(self) -> dict[str, Any]:
        """What is settled when a run begins, and kept with it: borders, batches, parameters as this bank has them."""
        return {"block": self.block_tasks, "batches": self.batch_sizes(), "settings": method_settings(self.methods)}

    @property
    def block_tasks(self) -> int:
        """Tasks in a block on this device."""
        return CUDA_BLOCK_TASKS if self.device.type == "cuda" else BLOCK_TASKS

    def batch_sizes(self) -> dict[str, int]:
        """Tasks to compute together for each method, from the memory there is; methods that share work share a size."""
        spec = self.job.spec
        budget = _CPU_BYTES
        on_cpu = self.device.type == "cpu"
        if not on_cpu:
            free, _ = torch.cuda.mem_get_info(self.device)
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            budget = int((free + kept) * _CUDA_SHARE)  # what torch keeps for later is free as well
        rows = spec.way * (spec.shot + spec.query)
        sizes = {}
        for name, method in self.methods.items():
            dim = self.features[method.space].shape[1]
            need = method.task_bytes(spec.way * spec.shot, spec.way, dim) + 4 * rows * dim
            narrow = _LIGHT_BATCH if need <= _LIGHT_BYTES else _CPU_BATCH
            most = narrow if on_cpu else self.block_tasks
            size = int(np.clip(budget // max(need, 1), 1, most))
            sizes[name] = size if on_cpu else -(-most // -(-most // size))  # batches of one size, none of a few tasks
        for group in self._groups():
            common = min(sizes[name] for name in group)
            sizes |= dict.fromkeys(group, common)
        return sizes

    def _groups(self) -> list[list[str]]:
        groups: dict[Hashable, list[str]] = {}
        for name, method in self.methods.items():
            groups.setdefault(method.sampling_key if method.sampling_key is not None else ("alone", name), []).append(
                name
            )
        return list(groups.values())

    def _pieces(self, tasks: int) -> list[tuple[list[str], slice]]:
        """Batches of a block of so many tasks: methods that share work, and places in the block.

        On a CPU a block of fewer tasks has as many batches, of fewer tasks each: every batch has one core.
        """
        out = []
        for group in self._groups():
            size = self.job.batches.get(group[0], self.block_tasks)
            if self.device.type == "cpu":
                size = min(size, -(-size * tasks // self.block_tasks))
            out += [(group, slice(low, min(low + size, tasks))) for low in range(0, tasks, size)]
        return out

    def run(self, start: int, stop: int) -> Block:
        """Compute tasks `start` to `stop`."""
        spec = self.job.spec
        if self.job.episodes is None:
            episodes = sample_episodes(self.job.labels, spec, range(start, stop))
        else:
            episodes = self.job.episodes[start:stop]
        tasks = len(episodes)
        support = torch.tensor(episodes.support.reshape(tasks, -1), device=self.device)
        query = torch.tensor(episodes.query.reshape(tasks, -1), device=self.device)
        order = torch.arange(spec.way, device=self.device)
        labels = order.repeat_interleave(spec.shot)
        truth = order.repeat_interleave(spec.query)
        correct = {name: np.zeros((tasks, spec.way), np.int32) for name in self.methods}
        bins = {name: CalibrationBins() for name in self.methods}
        seconds = dict.fromkeys(self.methods, 0.0)

        def batch(piece: tuple[list[str], slice]) -> list[tuple[str, Tensor, Tensor, float]]:
            group, part = piece
            shared = Shared(self._clock)
            out = []
            for name in group:
                method = self.methods[name]
                shared.reused_seconds = 0.0
                began = self._clock()
                z = self.features[method.space]
                random = TaskRandom(spec.seed, episodes.task_ids[part].tolist(), self.device)
                rows = self.precomputed[name]
                beside, asked = (None if rows is None else rows[at[part]] for at in (support, query))
                each = labels.expand(part.stop - part.start, -1)
                head = method.fit(TaskBatch(_rows(z, support[part]), each, spec.way, random, shared, beside))
                scores = head.logits(_rows(z[:, : head.width], query[part]), asked)
                confidence, answer = torch.softmax(scores, dim=-1).max(dim=-1)
                out.append((name, confidence, answer == truth, self._clock() - began + shared.reused_seconds))
            return out

        # Batches of different methods stand side by side too: few tasks of a slow one would keep one core busy.
        pieces = self._pieces(tasks)
        self._prepare_batches(pieces)
        batches = Counter(group[0] for group, _ in pieces)
        for (group, part), found in zip(pieces, in_parallel(batch, pieces, self.threads), strict=True):
            together = min(self.threads, batches[group[0]])  # alone it would have these
            for name, confidence, right, spent in found:
                correct[name][part] = right.view(-1, spec.way, spec.query).sum(dim=-1).cpu().numpy()
                bins[name].update(confidence.cpu().numpy(), right.cpu().numpy())
                seconds[name] += spent / together
        return Block(start, episodes.classes, correct, bins, seconds)

    def _prepare_batches(self, pieces: list[tuple[list[str], slice]]) -> None:
        """What methods take from the base classes as a whole is computed before the clock starts."""
        way, shot = self.job.spec.way, self.job.spec.shot

        def prepare(piece: tuple[list[str], slice]) -> None:
            group, part = piece
            for name in group:
                self.methods[name].prepare_batches(part.stop - part.start, way, shot)

        first = [piece for piece in pieces if piece[1].start == 0]
        list(in_parallel(prepare, first, self.threads))

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _rows(z: Tensor, index: Tensor) -> Tensor:
    """`z[index]`, which on a CPU takes twice as long."""
    return z.index_select(0, index.flatten()).view(*index.shape, -1)


_READY: dict[str, Engine] = {}
_READY_LOCK = threading.Lock()


def run_block(job: Job, start: int, stop: int, threads: int | None = None) -> Block:
    """Compute one block in this process, preparing the job the first time."""
    if threads is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    with _READY_LOCK:  # a Dask worker may have several threads
        engine = _READY.get(job.token)
        if engine is None:
            _READY.clear()  # one job at a time: features of an old one would only fill memory
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FewcalWarning)  # the process that sent the job has told what is to tell
                engine = _READY[job.token] = Engine(job)
    return engine.run(start, stop)


def blocks(tasks: int, size: int = BLOCK_TASKS) -> Iterator[tuple[int, int]]:
    """Borders of the blocks of a run.

    >>> list(blocks(250))
    [(0, 200), (200, 250)]
    """
    for start in range(0, tasks, size):
        yield start, min(start + size, tasks)


def reuse_memory() -> None:
    """Tell the C library to keep freed memory: large tensors then do not fault in fresh pages at every step.

    Without it, the hot loop spends most of its time in the kernel. It has no effect outside glibc.
    """
    if not sys.platform.startswith("linux") or os.environ.get("FEWCAL_KEEP_MALLOC"):
        return
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
        libc.mallopt(m_arena_max, 1)  # one heap for all threads
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 1 << 30)


def method_settings(methods: Mapping[str, Method]) -> dict[str, dict[str, Any]]:
    """Name and parameters of each method, for the record."""
    return {name: {"method": m.name, **m.settings} for name, m in methods.items()}


def check_methods(methods: dict[str, Method], has_base: bool, split: str = "novel") -> None:
    """Raise when a method needs base classes and there are none beside the split that tasks are drawn from."""
    for name, method in methods.items():
        if method.needs_bank and not has_base:
            why = "tasks are drawn from the base split itself" if split == "base" else "the features have no base split"
            remedy = "choose another split or other methods" if split == "base" else "add base.npz"
            raise InputError(f"method {name!r} needs base classes, but {why}; {remedy}")
