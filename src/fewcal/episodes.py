"""N-way K-shot tasks, deterministic by (seed, task index) alone.

Task t of a seed is the same whatever the batch, the worker or the device: its random numbers are a hash of
(seed, t, position), computed for all tasks of a batch at once, and no generator state travels from task to task.
A task draws N classes, then K + Q distinct rows of each by a partial Fisher-Yates shuffle; the first K are the support.

Two modes:

- `replacement=True`, the custom of the field: each task draws from all rows. Tasks are independent given the data,
  and rows (and classes) recur from task to task.
- `replacement=False`: classes are drawn as before, but the rows of a class are dealt like cards. A pass begins with
  every class shuffled; each task takes the next K + Q rows of its classes; when a task draws a class that cannot
  supply K + Q more, a new pass begins with that task. So no row is used twice within a pass. Task t then depends on
  how far its predecessors have dealt, which is computed (and cached) from the seed, never from earlier calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.splitmix import GOLDEN, splitmix64
from fewcal.errors import FileFormatError, InputError

_FORMAT = "fewcal-episodes-1"
_U64 = np.uint64

# Up to here the shuffle, quadratic in K + Q but blind to the class size; beyond, a sort of the whole class.
# Part of the definition of the tasks: changing it changes tasks with K + Q above it.
_SHUFFLE_LIMIT = 128


@dataclass(frozen=True)
class EpisodeSpec:
    """The shape of a task and the seed of the list.

    >>> EpisodeSpec(way=5, shot=1).rows_per_class
    16
    """

    way: int = 5
    shot: int = 1
    query: int = 15
    seed: int = 0
    replacement: bool = True

    def __post_init__(self) -> None:
        for name, least in (("way", 2), ("shot", 1), ("query", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise InputError(f"{name} is {value!r}; it must be an integer")
            if value < least:
                raise InputError(f"{name} is {value}; it must be at least {least}")
            object.__setattr__(self, name, int(value))
        if self.seed >= 2**63:
            raise InputError(f"seed is {self.seed}; it must be below 2**63")
        object.__setattr__(self, "replacement", bool(self.replacement))

    @property
    def rows_per_class(self) -> int:
        """K + Q, the rows a task takes of each of its classes."""
        return self.shot + self.query


@dataclass(frozen=True)
class Episodes:
    """A batch of T tasks as row indices into the labelled data it was drawn from.

    classes (T, N) label values, support (T, N, K) and query (T, N, Q) row indices, task_ids (T,), all int64.
    Way i of task t has the label `classes[t, i]`; `labels_fingerprint` names the labels the indices refer to.
    """

    spec: EpisodeSpec
    labels_fingerprint: str
    task_ids: np.ndarray
    classes: np.ndarray
    support: np.ndarray
    query: np.ndarray

    def __len__(self) -> int:
        return len(self.task_ids)

    def __getitem__(self, part: slice) -> Episodes:
        """Some of the tasks, as views: `episodes[100:200]`."""
        if not isinstance(part, slice):
            raise TypeError(f"take a slice of tasks, not {part!r}")
        return Episodes(
            self.spec,
            self.labels_fingerprint,
            self.task_ids[part],
            self.classes[part],
            self.support[part],
            self.query[part],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the task list as npz, atomically."""
        header = {"format": _FORMAT, "spec": asdict(self.spec), "labels": self.labels_fingerprint}
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                header=np.array(json.dumps(header)),
                task_ids=self.task_ids,
                classes=self.classes,
                support=self.support,
                query=self.query,
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], labels: np.ndarray | None = None) -> Episodes:
        """Read a task list; with `labels`, refuse it unless it was drawn from exactly these labels."""
        path = Path(path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                header = json.loads(str(archive["header"]))
                arrays = [archive[name].astype(np.int64) for name in ("task_ids", "classes", "support", "query")]
            if header.get("format") != _FORMAT:
                raise FileFormatError(
                    f"{path} is a {header.get('format')!r} file, not {_FORMAT!r}; sample and save again"
                )
            episodes = cls(EpisodeSpec(**header["spec"]), header["labels"], *arrays)
        except FileNotFoundError:
            raise FileFormatError(f"{path} does not exist; check the path") from None
        except FileFormatError:
            raise
        except Exception as error:  # a torn or forged file can raise anything at all
            raise FileFormatError(
                f"{path} is not a readable task list; sample the tasks again and save them"
            ) from error
        spec, count = episodes.spec, len(episodes)
        shapes = [array.shape for array in arrays[1:]]
        if shapes != [(count, spec.way), (count, spec.way, spec.shot), (count, spec.way, spec.query)]:
            raise FileFormatError(f"{path} holds tasks whose shapes contradict its own header; sample and save again")
        if labels is not None and labels_fingerprint(labels) != episodes.labels_fingerprint:
            raise InputError(
                f"{path} was drawn from other labels than these {len(np.ravel(labels))} rows; "
                f"use the feature file it was made for, or sample the tasks again"
            )
        return episodes


def labels_fingerprint(labels: np.ndarray) -> str:
    """A hex digest of labels (R,): equal if and only if the label of every row is.

    >>> labels_fingerprint(np.array([0, 1], np.int16)) == labels_fingerprint(np.array([0, 1]))
    True
    """
    return hashlib.sha256(_integer_labels(labels).astype("<i8").tobytes()).hexdigest()


def sample_episodes(
    labels: np.ndarray,
    spec: EpisodeSpec,
    task_ids: Sequence[int] | range | np.ndarray,
    names: Sequence[str] | None = None,
) -> Episodes:
    """Tasks `task_ids` of the endless list that (labels, spec) defines.

    labels (R,) are any integers; classes may have different sizes. Support and query of a task never share a row.
    `names` of labels 0..C-1 make errors readable.

    >>> labels = np.repeat([10, 20, 30], 8)
    >>> spec = EpisodeSpec(way=2, shot=1, query=3, seed=0)
    >>> tasks = sample_episodes(labels, spec, range(100))
    >>> tasks.support.shape, tasks.query.shape
    ((100, 2, 1), (100, 2, 3))
    >>> alone = sample_episodes(labels, spec, [42])
    >>> bool((alone.query[0] == tasks.query[42]).all())
    True
    """
    labels = _integer_labels(labels)
    pool = _Pool(labels, spec, names)
    ids = np.asarray(task_ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InputError(f"task_ids must be a list of integers; got {ids.dtype} of shape {ids.shape}")
    ids = ids.astype(np.int64)
    if ids.size and ids.min() < 0:
        raise InputError(f"task index {ids.min()} is negative; tasks count from 0")

    key = _task_key(spec.seed, ids)
    chosen = _distinct(key, np.full(len(ids), pool.count), spec.way, first=0)  # (T, N) positions among the classes
    rows = _fresh_rows(pool, spec, key, chosen) if spec.replacement else _dealt_rows(pool, spec, ids, chosen)
    return Episodes(
        spec,
        labels_fingerprint(labels),
        ids,
        pool.values[chosen],
        np.ascontiguousarray(rows[..., : spec.shot]),
        np.ascontiguousarray(rows[..., spec.shot :]),
    )


def _integer_labels(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"labels must be one integer per row; got {labels.dtype} of shape {labels.shape}")
    return labels.astype(np.int64, copy=False)


class _Pool:
    """The rows of each class: `order[start[c] : start[c] + size[c]]` are those of label `values[c]`."""

    def __init__(self, labels: np.ndarray, spec: EpisodeSpec, names: Sequence[str] | None = None) -> None:
        self.values, self.size = np.unique(labels, return_counts=True)
        self.order = np.argsort(labels, kind="stable")
        self.start = np.cumsum(self.size) - self.size
        self.count = len(self.values)
        if self.count < spec.way:
            raise InputError(f"{spec.way} ways need as many classes, but there are {self.count}; lower --way")
        short = np.flatnonzero(self.size < spec.rows_per_class)
        if short.size:
            c = short[0]
            others = f" (and {short.size - 1} more classes)" if short.size > 1 else ""
            name = self.values[c] if names is None else repr(names[self.values[c]])
            raise InputError(
                f"class {name} has {self.size[c]} rows{others}, but {spec.shot} shots and {spec.query} "
                f"queries need {spec.rows_per_class}; lower --query or --shot"
            )


def _task_key(seed: int, task: np.ndarray, domain: int = 0) -> np.ndarray:
    """A 64-bit key per task (T,): two rounds, so that neither neighbouring seeds nor neighbouring tasks correlate."""
    root = splitmix64(np.array([seed * 2 + 1], _U64) + _U64(domain) * _U64(GOLDEN))
    return splitmix64(root + splitmix64((task.astype(_U64) + _U64(1)) * _U64(GOLDEN)))


def _stream(key: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """Number `position` of the SplitMix64 stream of each key."""
    return splitmix64(key + (np.array(position, _U64, ndmin=1) + _U64(1)) * _U64(GOLDEN))


def _distinct(key: np.ndarray, size: np.ndarray, count: int, first: int) -> np.ndarray:
    """For each key (B,), `count` distinct integers below `size` (B,), every ordered choice equally likely: (B, count).

    A partial Fisher-Yates shuffle of 0..size-1 without the array: step j swaps places j and p_j, so what lies at
    place p_j is found by following the earlier swaps backwards.
    """
    batch = len(key)
    # (place drawn at step j) = j + floor(u (size - j)); u has 32 bits, a bias below size / 2**32.
    places = np.empty((count, batch), np.int64)
    chosen = np.empty((count, batch), np.int64)
    for j in range(count):
        u = _stream(key, first + j) >> _U64(32)
        places[j] = j + ((u * (size - j).astype(_U64)) >> _U64(32)).astype(np.int64)
        at = places[j].copy()
        for i in range(j - 1, -1, -1):
            np.copyto(at, i, where=places[i] == at)
        chosen[j] = at
    return np.ascontiguousarray(chosen.T)


def _fresh_rows(pool: _Pool, spec: EpisodeSpec, key: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(T, N, K + Q) rows, drawn anew from all rows of each chosen class."""
    tasks, way = chosen.shape
    take = spec.rows_per_class
    # One stream per (task, way), keyed apart from the stream that drew the classes.
    keys = _stream(key[:, None], (1 << 32) + np.arange(way)[None, :]).reshape(-1)
    flat = chosen.reshape(-1)
    if take <= _SHUFFLE_LIMIT:
        within = _distinct(keys, pool.size[flat], take, first=0)
    else:
        within = np.empty((len(flat), take), np.int64)
        for b, c in enumerate(flat):
            within[b] = np.argsort(_stream(keys[b : b + 1], np.arange(pool.size[c])), kind="stable")[:take]
    return pool.order[pool.start[flat][:, None] + within].reshape(tasks, way, take)


class _Deal:
    """For one (labels, spec) without replacement: how far each task's classes have been dealt in its pass."""

    def __init__(self, size: np.ndarray, spec: EpisodeSpec) -> None:
        self._spec = spec
        self._hands = size // spec.rows_per_class  # tasks a class can serve in one pass
        self._used = np.zeros(len(size), np.int64)
        self._pass = 0
        self._lock = threading.Lock()
        self.passes = np.empty(0, np.int64)  # (T,) the pass of each task
        self.turns = np.empty((0, spec.way), np.int64)  # (T, N) earlier hands of that class in the pass

    def extend(self, tasks: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            known = len(self.passes)
            if known < tasks:
                ids = np.arange(known, tasks)
                chosen = _distinct(
                    _task_key(self._spec.seed, ids), np.full(len(ids), len(self._used)), self._spec.way, first=0
                )
                passes, turns = np.empty(len(ids), np.int64), np.empty(chosen.shape, np.int64)
                for i, classes in enumerate(chosen):
                    if (self._used[classes] >= self._hands[classes]).any():
                        self._used[:] = 0
                        self._pass += 1
                    passes[i] = self._pass
                    turns[i] = self._used[classes]
                    self._used[classes] += 1
                self.passes = np.concatenate([self.passes, passes])
                self.turns = np.concatenate([self.turns, turns])
            return self.passes, self.turns


_deals: OrderedDict[tuple[bytes, EpisodeSpec], _Deal] = OrderedDict()
_deals_lock = threading.Lock()


def _deal_for(size: np.ndarray, spec: EpisodeSpec) -> _Deal:
    # The deal depends on the class sizes alone; a few are kept, so that batch after batch continues one walk.
    with _deals_lock:
        key = (size.tobytes(), spec)
        deal = _deals.pop(key, None) or _Deal(size, spec)
        _deals[key] = deal
        while len(_deals) > 4:
            _deals.popitem(last=False)
        return deal


def _dealt_rows(pool: _Pool, spec: EpisodeSpec, ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(T, N, K + Q) rows, dealt without replacement within a pass."""
    take = spec.rows_per_class
    rows = np.empty((*chosen.shape, take), np.int64)
    if not len(ids):
        return rows
    passes, turns = _deal_for(pool.size, spec).extend(int(ids.max()) + 1)
    passes, turns = passes[ids], turns[ids]
    owner = np.repeat(np.arange(pool.count), pool.size)
    for number in np.unique(passes):
        # Shuffle every class at once: sort all rows by (class, hash).
        noise = _stream(_task_key(spec.seed, np.array([number]), domain=1), np.arange(len(pool.order)))
        shuffled = pool.order[np.lexsort((noise, owner))]
        mine = np.flatnonzero(passes == number)
        first = pool.start[chosen[mine]] + turns[mine] * take
        rows[mine] = shuffled[first[..., None] + np.arange(take)]
    return rows
