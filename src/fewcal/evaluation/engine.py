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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.arrays import as_features
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.threads import in_parallel
from fewcal.bank import BaseBank
from fewcal.episodes import Episodes, EpisodeSpec, Group, Sampler
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation.outcome import Outcome
from fewcal.evaluation.stats import calibration_bins, outlier_detection
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
# Tasks of a batch on a CPU: a block must have enough batches for all cores. Light ones are over before the next can be
# begun, so they go together in larger numbers.
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
    token : str
        Unlike that of any other job, so that a worker prepares this one once and no other in its place.
    batches : dict
        Tasks computed together, by method; part of the job so that a resumed run makes the same batches.
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Block(Outcome):
    """The outcome of consecutive tasks from `start` on."""

    start: int

    @property
    def stop(self) -> int:
        """One past its last task."""
        return self.start + len(self.classes)


class Piece(NamedTuple):
    """Tasks that are computed together: part of a group, by methods that share work."""

    names: list[str]
    group: Group
    tensors: list[Tensor]  # rows and classes of its support and its queries
    part: slice
    ids: list[int]


class Answers(NamedTuple):
    """Answers of a method to the queries of a piece, each (B, M)."""

    correct: Tensor
    confidence: Tensor
    outlier: Tensor | None
    seconds: float


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
        self.sampler = Sampler(job.labels, job.spec)
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

    @property
    def detects_outliers(self) -> bool:
        """Whether tasks have queries of no class."""
        return self.job.spec.query_counts(self.job.spec.way)[1] > 0

    def batch_sizes(self) -> dict[str, int]:
        """Tasks to compute together for each method, from the memory there is; methods that share work share a size."""
        spec = self.job.spec
        budget = _CPU_BYTES
        on_cpu = self.device.type == "cpu"
        if not on_cpu:
            free, _ = torch.cuda.mem_get_info(self.device)
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            budget = int((free + kept) * _CUDA_SHARE)  # what torch keeps for later is free as well
        rows = spec.max_support + sum(spec.query_counts(spec.way))
        sizes = {}
        for name, method in self.methods.items():
            dim = self.features[method.space].shape[1]
            need = method.task_bytes(spec.max_support, spec.way, dim) + 4 * rows * dim
            limit = (_LIGHT_BATCH if need <= _LIGHT_BYTES else _CPU_BATCH) if on_cpu else self.block_tasks
            size = int(np.clip(budget // max(need, 1), 1, limit))
            sizes[name] = size if on_cpu else -(-limit // -(-limit // size))  # batches of one size, none of a few tasks
        for names in self._names():
            sizes |= dict.fromkeys(names, min(sizes[name] for name in names))
        return sizes

    def _names(self) -> list[list[str]]:
        """Names of methods, those that share work together."""
        together: dict[Hashable, list[str]] = {}
        for name, method in self.methods.items():
            key = method.sampling_key if method.sampling_key is not None else ("alone", name)
            together.setdefault(key, []).append(name)
        return list(together.values())

    def _pieces(self, episodes: Episodes) -> list[Piece]:
        """Batches of a block: tasks of one shape together.

        On a CPU fewer tasks are as many batches, of fewer tasks each: every batch has one core.
        """
        out = []
        for group in episodes.groups():
            ids = episodes.task_ids[group.at].tolist()
            arrays = (group.support, group.labels, group.query, group.truth)
            tensors = [torch.tensor(a, device=self.device) for a in arrays]  # copies: some are read-only
            for names in self._names():
                one_by_one = not group.even and self.methods[names[0]].sampling_key is not None
                size = 1 if one_by_one else self.job.batches.get(names[0], self.block_tasks)
                if self.device.type == "cpu":
                    size = min(size, -(-size * len(episodes) // self.block_tasks))
                for low in range(0, len(ids), size):
                    part = slice(low, low + size)
                    out.append(Piece(names, group, tensors, part, ids[part]))
        return out

    def run(self, start: int, stop: int) -> Block:
        """Compute tasks `start` to `stop`."""
        fixed = self.job.episodes
        episodes = self.sampler.draw(range(start, stop)) if fixed is None else fixed[start:stop]
        queries = (episodes.query >= 0).sum(axis=2, dtype=np.int32)
        correct = {name: np.zeros_like(queries) for name in self.methods}
        detects = self.detects_outliers
        detection = {name: np.full((len(episodes), 2), np.nan) for name in self.methods if detects}
        bins: dict[str, Any] = dict.fromkeys(self.methods, 0)
        seconds = dict.fromkeys(self.methods, 0.0)
        # Batches of different methods stand side by side too: few tasks of a slow one would keep one core busy.
        pieces = self._pieces(episodes)
        self._prepare_batches(pieces)
        batches = Counter(piece.names[0] for piece in pieces)
        for piece, found in zip(pieces, in_parallel(self._answers, pieces, self.threads), strict=True):
            at, truth, way = piece.group.at[piece.part], piece.group.truth[piece.part], piece.group.way
            own: Any = truth >= 0 if detects else slice(None)
            cell = truth + 1 + (way + 1) * np.arange(len(at))[:, None]  # of task and class, the first for outliers
            together = min(self.threads, batches[piece.names[0]])  # alone it would have these
            for name, answers in found.items():
                right, confidence = answers.correct.cpu().numpy(), answers.confidence.cpu().numpy()
                counts = np.bincount(cell.ravel(), right.ravel(), len(at) * (way + 1)).reshape(-1, way + 1)
                correct[name][at, :way] = counts[:, 1:]
                bins[name] = bins[name] + calibration_bins(confidence[own], right[own])
                if detects and answers.outlier is not None:
                    score = answers.outlier.cpu().numpy()
                    detection[name][at] = outlier_detection(
                        score[own].reshape(len(at), -1), score[~own].reshape(len(at), -1)
                    )
                seconds[name] += answers.seconds / together
        return Block(
            start=start, classes=episodes.classes, queries=queries, correct=correct, detection=detection, bins=bins,
            seconds=seconds,
        )  # fmt: skip

    def _answers(self, piece: Piece) -> dict[str, Answers]:
        """Answers of the methods of a piece."""
        support, labels, query, truth = (tensor[piece.part] for tensor in piece.tensors)
        shared = Shared(self._clock)
        out = {}
        for name in piece.names:
            shared.reused_seconds = 0.0
            began = self._clock()
            z = self.features[self.methods[name].space]
            random = TaskRandom(self.job.spec.seed, piece.ids, self.device)
            batch = TaskBatch(_rows(z, support), labels, piece.group.way, random, shared)
            scores, outlier = predict(self.methods[name], batch, z, query, self.detects_outliers)
            confidence, answer = torch.softmax(scores, dim=-1).max(dim=-1)
            if self.detects_outliers and outlier is None:
                outlier = -confidence
            seconds = self._clock() - began + shared.reused_seconds
            out[name] = Answers(answer == truth, confidence, outlier, seconds)
        return out

    def _prepare_batches(self, pieces: list[Piece]) -> None:
        """Compute what methods take from the base classes as a whole, before the clock starts."""

        def prepare(piece: Piece) -> None:
            shots = piece.group.support.shape[1] // piece.group.way
            for name in piece.names:
                self.methods[name].prepare_batches(len(piece.ids), piece.group.way, shots)

        first = [piece for piece in pieces if piece.part.start == 0 and piece.group.even]
        list(in_parallel(prepare, first, self.threads))

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def predict(
    method: Method, batch: TaskBatch, z: Tensor, query: Tensor, outliers: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Scores (T, Q, N) of the rows `query (T, Q)` of `z (R, D)`; with `outliers` also their outlier scores (T, Q).

    A transductive method gets all queries of a task together. Its scores may have a column N + 1, the log-probability
    of none of the classes. Outlier scores are None where the method has no others than its confidence.
    """
    if method.transductive:
        scores = torch.log_softmax(method.fit_predict(batch, _rows(z, query)), dim=-1)
        outlier = scores[..., batch.n_classes] if scores.shape[-1] > batch.n_classes else None
        return scores[..., : batch.n_classes], outlier
    head = method.fit(batch)
    x = _rows(z, query)
    return head.logits(x), head.outlier(x) if outliers else None


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
                warnings.simplefilter("ignore", FewcalWarning)  # the process that sent the job has warned
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
    """Have glibc keep freed memory: otherwise the hot loop spends most of its time on fresh pages."""
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
    """Name, kind and parameters of each method, for the record; of the kind only what is not usual."""
    out = {}
    for name, method in methods.items():
        kind = {} if method.probabilistic else {"probabilistic": False}
        kind |= {"transductive": True} if method.transductive else {}
        out[name] = {"method": method.name, **kind, **method.settings}
    return out


def check_methods(methods: dict[str, Method], has_base: bool, split: str = "novel") -> None:
    """Raise when a method needs base classes and there are none beside the split that tasks are drawn from."""
    for name, method in methods.items():
        if method.needs_bank and not has_base:
            why = "tasks are drawn from the base split itself" if split == "base" else "the features have no base split"
            remedy = "choose another split or other methods" if split == "base" else "add base.npz"
            raise InputError(f"method {name!r} needs base classes, but {why}; {remedy}")
