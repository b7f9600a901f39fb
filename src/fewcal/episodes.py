"""Few-shot tasks, deterministic by (seed, task index) alone.

Task t of a seed is the same whatever the batch, the worker or the device: its random numbers are a hash of
(seed, t, position), computed for all tasks of a batch at once. A task draws N classes, then distinct rows of each by a
partial Fisher-Yates shuffle: the first K are its support, the next Q its queries.

`replacement=True`, the custom of the field, draws each task from all rows, so rows and classes recur.
`replacement=False` deals the rows of a class like cards. A pass begins with every class shuffled, and each task takes
the next K + Q rows of its classes. Where a class has too few left, a new pass begins with that task, so no row is used
twice within a pass. How far earlier tasks have dealt is computed from the seed, never from earlier calls.

Unbalanced tasks have the classes and the support of the balanced ones. The rest is drawn task by task: the class shares
of the queries from a Dirichlet distribution (Veilleux et al., NeurIPS 2021), which classes have queries, queries of
other classes, and ways and shots (Triantafillou et al., Meta-Dataset, ICLR 2020).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.splitmix import GOLDEN, splitmix64
from fewcal.errors import FileFormatError, InputError

_FORMAT = "fewcal-episodes-2"
_ARRAYS = ("task_ids", "classes", "support", "query", "outliers")
_U64 = np.uint64
# Rows of a class that are drawn by a shuffle, which is quadratic in their number but blind to the class size; more are
# drawn by a sort of the whole class. Part of the definition of the tasks.
_SHUFFLE_LIMIT = 128
# Meta-Dataset's limits: support examples of a task, and rows of a class that count for it.
_META_SUPPORT, _META_CLASS = 500, 100
_LOWEST = {"way": 2, "shot": 1, "query": 1, "seed": 0, "min_way": 2, "min_shot": 1, "queries": 1, "present": 1}


@dataclass(frozen=True)
class EpisodeSpec:
    """The shape of a task and the seed of the list.

    Parameters
    ----------
    way, shot, query : int
        Classes of a task, support examples of a class, queries of a class (on average where shares differ).
    seed : int
    replacement : bool
        Whether tasks may share rows.
    min_way : int or None
        Draw the number of classes from `min_way` to `way`, as far as there are classes; None for `way`.
    min_shot : int or None
        Draw the support examples of each class from `min_shot` to `shot`; None for `shot`.
    meta_dataset : bool
        Draw the size of the support and its class shares by the rule of Meta-Dataset, in place of `shot`.
    queries : int or None
        Queries of a task in all, in place of `query` for each class.
    dirichlet : float or None
        Concentration α of the class shares of the queries; None for equal shares. Shares are rounded to whole queries;
        those that a class has no rows for go to the others.
    present : int or None
        Number of classes that have queries, chosen at random; None for all.
    outliers : float
        Share of the queries that belong to no class of the task.

    Examples
    --------
    >>> EpisodeSpec(way=5, shot=1).rows_per_class
    16
    >>> EpisodeSpec(queries=75, dirichlet=2.0, outliers=0.25).query_counts(5)
    (56, 19)
    """

    way: int = 5
    shot: int = 1
    query: int = 15
    seed: int = 0
    replacement: bool = True
    min_way: int | None = None
    min_shot: int | None = None
    meta_dataset: bool = False
    queries: int | None = None
    dirichlet: float | None = None
    present: int | None = None
    outliers: float = 0.0

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if value is None and getattr(EpisodeSpec, name) is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise InputError(f"{name} is {value!r}; it must be an integer")
            if value < low:
                raise InputError(f"{name} is {value}; it must be at least {low}")
            object.__setattr__(self, name, int(value))
        for name in ("replacement", "meta_dataset"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.seed >= 2**63:
            raise InputError(f"seed is {self.seed}; it must be below 2**63")
        for name, high in (("min_way", self.way), ("min_shot", self.shot), ("present", self.ways[0])):
            if (value := getattr(self, name)) is not None and value > high:
                raise InputError(f"{name} is {value}; it must be at most {high}")
        if self.dirichlet is not None and not (_is_number(self.dirichlet) and 0.1 <= self.dirichlet < math.inf):
            raise InputError(f"dirichlet is {self.dirichlet!r}; it must be at least 0.1, or None for equal shares")
        share = _is_number(self.outliers) and 0 <= self.outliers < 1
        if not share or self.query_counts(self.ways[0])[0] < 1:
            raise InputError(f"outliers is {self.outliers!r}; it must be a share that leaves queries to the classes")
        if not (self.replacement or self.is_balanced):
            raise InputError("replacement=False needs balanced tasks; leave the other settings out")

    @property
    def is_balanced(self) -> bool:
        """Whether every class of every task has `shot` support examples and `query` queries."""
        varied = (self.min_way, self.min_shot, self.queries, self.dirichlet, self.present)
        return varied == (None,) * 5 and not self.meta_dataset and self.outliers == 0

    @property
    def ways(self) -> tuple[int, int]:
        """The fewest and the most classes of a task."""
        return self.min_way or self.way, self.way

    def query_counts(self, way: int) -> tuple[int, int]:
        """Queries of a task of so many classes: of its own classes, and of others."""
        total = self.queries or way * self.query
        outliers = math.floor(total * self.outliers + 0.5)
        return total - outliers, outliers

    @property
    def class_queries(self) -> int:
        """Queries of a class by equal shares, rounded up."""
        low, high = self.ways
        return max(-(-self.query_counts(n)[0] // (self.present or n)) for n in range(low, high + 1))

    @property
    def rows_per_class(self) -> int:
        """K + Q, the rows that each class must have."""
        return self.class_queries + (1 if self.meta_dataset else self.shot)

    @property
    def max_support(self) -> int:
        """The most support examples of a task."""
        return _META_SUPPORT if self.meta_dataset else self.way * self.shot


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class Group:
    """Tasks of one shape, as flat rows.

    Attributes
    ----------
    at : array (B,), positions in the list
    way : int
    even : bool
        Whether all classes have the same number of support examples.
    support, labels : arrays (B, S), rows and their classes 0..N−1
    query, truth : arrays (B, M), rows and their classes, −1 for outliers
    """

    at: np.ndarray
    way: int
    even: bool
    support: np.ndarray
    labels: np.ndarray
    query: np.ndarray
    truth: np.ndarray


@dataclass(frozen=True, eq=False)
class Episodes:
    """A batch of T tasks as row indices into the labelled data it was drawn from.

    classes (T, N) label values; support (T, N, K), query (T, N, Q) and outliers (T, R) row indices; task_ids (T,), all
    int64. Way i of task t has the label `classes[t, i]`; outliers are rows of other classes. Where a task or a class
    has fewer, −1 fills up. `labels_fingerprint` names the labels that the indices refer to.
    """

    spec: EpisodeSpec
    labels_fingerprint: str
    task_ids: np.ndarray
    classes: np.ndarray
    support: np.ndarray
    query: np.ndarray
    outliers: np.ndarray

    def __len__(self) -> int:
        return len(self.task_ids)

    def __getitem__(self, part: slice) -> Episodes:
        """Some of the tasks, as views: `episodes[100:200]`."""
        if not isinstance(part, slice):
            raise TypeError(f"take a slice of tasks, not {part!r}")
        return Episodes(self.spec, self.labels_fingerprint, *(getattr(self, name)[part] for name in _ARRAYS))

    def groups(self) -> Iterator[Group]:
        """The tasks by shape: together where numbers of classes, support examples and queries are equal."""
        shots = (self.support >= 0).sum(axis=2)
        way = (shots > 0).sum(axis=1)
        even = (shots == shots[:, :1]).sum(axis=1) == way
        counts = (self.query >= 0).sum(axis=(1, 2)), (self.outliers >= 0).sum(axis=1)
        shapes = np.stack([way, even, shots.sum(axis=1), *counts], axis=1)
        for shape in sorted(set(map(tuple, shapes.tolist()))):
            at = np.flatnonzero((shapes == shape).all(axis=1))
            support, labels = _flat(self.support[at])
            query, truth = _flat(self.query[at])
            outliers = self.outliers[at, : shape[4]]
            query, truth = np.hstack([query, outliers]), np.hstack([truth, np.full_like(outliers, -1)])
            yield Group(at, shape[0], bool(shape[1]), support, labels, query, truth)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the task list as npz, atomically."""
        header = {"format": _FORMAT, "spec": asdict(self.spec), "labels": self.labels_fingerprint}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], labels: np.ndarray | None = None) -> Episodes:
        """Read a task list; with `labels`, refuse it unless it was drawn from exactly these labels."""
        path = Path(path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                header = json.loads(str(archive["header"]))
                arrays = [archive[name].astype(np.int64) for name in _ARRAYS]
            episodes = cls(EpisodeSpec(**header["spec"]), header["labels"], *arrays)
            if header["format"] != _FORMAT or not episodes._is_consistent():
                raise ValueError("its arrays contradict its header")
        except FileNotFoundError:
            raise FileFormatError(f"{path} does not exist; check the path") from None
        except Exception as error:  # a torn or forged file can raise anything
            raise FileFormatError(
                f"{path} is not a readable task list; sample the tasks again and save them"
            ) from error
        if labels is not None and labels_fingerprint(labels) != episodes.labels_fingerprint:
            raise InputError(
                f"{path} was drawn from other labels than these {len(np.ravel(labels))} rows; "
                f"use the feature file it was made for, or sample the tasks again"
            )
        return episodes

    def _is_consistent(self) -> bool:
        t, (n, k), q = len(self), self.support.shape[1:], self.query.shape[-1]
        shapes = [(t,), (t, n), (t, n, k), (t, n, q), (t, self.outliers.shape[-1])]
        spec = (self.spec.way, self.spec.shot, self.spec.query)
        return [getattr(self, a).shape for a in _ARRAYS] == shapes and (not self.spec.is_balanced or spec == (n, k, q))


def _flat(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of classes (B, N, K) without what fills up, and the class of each: two arrays (B, S)."""
    kept = rows >= 0
    classes = np.broadcast_to(np.arange(rows.shape[1])[:, None], rows.shape)
    return rows[kept].reshape(len(rows), -1), classes[kept].reshape(len(rows), -1)


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

    labels (R,) are any integers; classes may have different sizes. No row comes twice in a task. `names` of labels
    0..C-1 make errors readable.

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
    chosen = _distinct(key, np.full(len(ids), pool.count), pool.way)  # (T, N) positions among the classes
    classes, outliers = pool.values[chosen], np.empty((len(ids), 0), np.int64)
    if not spec.is_balanced:
        classes, support, query, outliers = _unbalanced_rows(pool, spec, ids, chosen)
    else:
        rows = _fresh_rows(pool, key, chosen, spec.rows_per_class)
        if not spec.replacement:
            rows = _dealt_rows(pool, spec, ids, chosen)
        support, query = (np.ascontiguousarray(part) for part in np.split(rows, [spec.shot], axis=2))
    return Episodes(spec, labels_fingerprint(labels), ids, classes, support, query, outliers)


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
        self.owner = np.repeat(np.arange(self.count), self.size)  # the class of each of `order`
        self.way = min(spec.way, self.count)
        if self.way < spec.ways[0]:
            raise InputError(f"{spec.ways[0]} ways need as many classes, but there are {self.count}; lower --way")
        others, outliers = int(np.sort(self.size)[: self.count - self.way].sum()), spec.query_counts(self.way)[1]
        if others < outliers:
            raise InputError(
                f"{outliers} outliers need as many rows of other classes, but {self.way} ways may leave {others}; "
                "lower way or outliers"
            )
        short = np.flatnonzero(self.size < spec.rows_per_class)
        if short.size:
            c = short[0]
            others = f" (and {short.size - 1} more classes)" if short.size > 1 else ""
            name = self.values[c] if names is None else repr(names[self.values[c]])
            shots = spec.rows_per_class - spec.class_queries
            raise InputError(
                f"class {name} has {self.size[c]} rows{others}, but {shots} shots and {spec.class_queries} queries "
                f"need {spec.rows_per_class}; lower --query or --shot"
            )

    def rows(self, c: int) -> np.ndarray:
        """The rows of class `c`."""
        return self.order[self.start[c] : self.start[c] + self.size[c]]


def _task_key(seed: int, task: np.ndarray, domain: int = 0) -> np.ndarray:
    """A 64-bit key per task (T,): two rounds, so that neither neighbouring seeds nor neighbouring tasks correlate."""
    root = splitmix64(np.array([seed * 2 + 1], _U64) + np.array([domain], _U64) * _U64(GOLDEN))
    return splitmix64(root + splitmix64((task.astype(_U64) + _U64(1)) * _U64(GOLDEN)))


def _stream(key: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """Number `position` of the SplitMix64 stream of each key."""
    return splitmix64(key + (np.array(position, _U64, ndmin=1) + _U64(1)) * _U64(GOLDEN))


def _distinct(key: np.ndarray, size: np.ndarray, count: int) -> np.ndarray:
    """For each key (B,), `count` distinct integers below `size` (B,), every ordered choice equally likely: (B, count).

    A partial Fisher-Yates shuffle of 0..size-1 without the array: step j swaps places j and p_j, so what lies at
    place p_j is found by following the earlier swaps backwards.
    """
    batch = len(key)
    # (place drawn at step j) = j + floor(u (size - j)); u has 32 bits, a bias below size / 2**32.
    places = np.empty((count, batch), np.int64)
    chosen = np.empty((count, batch), np.int64)
    for j in range(count):
        u = _stream(key, j) >> _U64(32)
        places[j] = j + ((u * (size - j).astype(_U64)) >> _U64(32)).astype(np.int64)
        at = places[j].copy()
        for i in range(j - 1, -1, -1):
            np.copyto(at, i, where=places[i] == at)
        chosen[j] = at
    return np.ascontiguousarray(chosen.T)


def _fresh_rows(pool: _Pool, key: np.ndarray, chosen: np.ndarray, take: int) -> np.ndarray:
    """(T, N, take) rows, drawn from all rows of each chosen class."""
    tasks, way = chosen.shape
    # One stream per (task, way), keyed apart from the stream that drew the classes.
    keys = _stream(key[:, None], (1 << 32) + np.arange(way)[None, :]).reshape(-1)
    flat = chosen.reshape(-1)
    if take <= _SHUFFLE_LIMIT:
        within = _distinct(keys, pool.size[flat], take)
    else:
        within = np.empty((len(flat), take), np.int64)
        for b, c in enumerate(flat):
            within[b] = np.argsort(_stream(keys[b : b + 1], np.arange(pool.size[c])), kind="stable")[:take]
    return pool.order[pool.start[flat][:, None] + within].reshape(tasks, way, take)


# ---- without replacement --------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _deal(sizes: bytes, spec: EpisodeSpec, tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """The pass of each of the first tasks (T,), and the earlier hands of its classes in that pass (T, N)."""
    size = np.frombuffer(sizes, np.int64)
    hands, used = size // spec.rows_per_class, np.zeros_like(size)
    chosen = _distinct(_task_key(spec.seed, np.arange(tasks)), np.full(tasks, len(size)), spec.way)
    passes, turns, number = np.empty(tasks, np.int64), np.empty_like(chosen), 0
    for t, classes in enumerate(chosen):
        if (used[classes] >= hands[classes]).any():
            used[:] = 0
            number += 1
        passes[t], turns[t] = number, used[classes]
        used[classes] += 1
    return passes, turns


def _dealt_rows(pool: _Pool, spec: EpisodeSpec, ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(T, N, K + Q) rows, dealt without replacement within a pass."""
    take = spec.rows_per_class
    rows = np.empty((*chosen.shape, take), np.int64)
    # Powers of two: later batches of a run find what an earlier one dealt.
    passes, turns = _deal(pool.size.tobytes(), spec, 1 << max(8, int(ids.max(initial=0)).bit_length()))
    passes, turns = passes[ids], turns[ids]
    for number in np.unique(passes):
        # Shuffle every class at once: sort all rows by (class, hash).
        noise = _stream(_task_key(spec.seed, np.array([number]), domain=1), np.arange(len(pool.order)))
        shuffled = pool.order[np.lexsort((noise, pool.owner))]
        mine = np.flatnonzero(passes == number)
        first = pool.start[chosen[mine]] + turns[mine] * take
        rows[mine] = shuffled[first[..., None] + np.arange(take)]
    return rows


# ---- unbalanced tasks -----------------------------------------------------------------------------------------------


def _unbalanced_rows(
    pool: _Pool, spec: EpisodeSpec, ids: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Classes (T, N), support (T, N, K), queries (T, N, Q) and outliers (T, R), filled up with −1."""
    first = _fresh_rows(pool, _task_key(spec.seed, ids), chosen, spec.shot)
    classes, support, query, outliers = np.full(chosen.shape, -1), [], [], []
    for t, key in enumerate(_task_key(spec.seed, ids, domain=2).tolist()):
        rng = np.random.RandomState([key & 0xFFFFFFFF, key >> 32])  # NumPy promises that its numbers never change
        own = chosen[t, : rng.randint(spec.ways[0], pool.way + 1)]
        classes[t, : len(own)] = pool.values[own]
        inside, outside = spec.query_counts(len(own))
        shots, queries = _class_counts(spec, pool.size[own], inside, rng)
        rows = []
        for c, begin in zip(own, first[t], strict=False):
            rest = rng.permutation(pool.rows(c))
            rows.append(np.concatenate([begin, rest[(rest[:, None] != begin).all(axis=1)]]))
        support.append([r[:k] for r, k in zip(rows, shots, strict=True)])
        query.append([r[k : k + q] for r, k, q in zip(rows, shots, queries, strict=True)])
        others = pool.order[~np.isin(pool.owner, own)] if outside else pool.order[:0]
        outliers.append([rng.permutation(others)[:outside]])
    return classes, _padded(support, pool.way), _padded(query, pool.way), _padded(outliers, 1)[:, 0]


def _class_counts(
    spec: EpisodeSpec, size: np.ndarray, inside: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Support examples and queries of each class of a task, two arrays (N,)."""
    way = len(size)
    shots = rng.randint(spec.min_shot or spec.shot, spec.shot + 1, way)
    if spec.meta_dataset:
        room = size - spec.class_queries
        total = min(_META_SUPPORT, np.ceil((1 - rng.uniform()) * np.minimum(room, _META_CLASS)).sum())
        weight = np.exp(rng.uniform(np.log(0.5), np.log(2), way)) * size
        shots = np.minimum((weight / weight.sum() * (total - way)).astype(int) + 1, room)
    present = rng.permutation(way)[: spec.present]
    share = np.ones(len(present)) if spec.dirichlet is None else rng.standard_gamma(spec.dirichlet, len(present))
    queries = np.zeros(way, int)
    queries[present] = _allocate(inside, share, (size - shots)[present])
    return shots, queries


def _allocate(total: int, share: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Whole numbers near total · share / Σ share, by largest remainders, up to `capacity`, with sum `total`.

    >>> _allocate(10, np.array([2.0, 1.0, 1.0]), np.array([4, 9, 9])).tolist()
    [4, 3, 3]
    """
    wanted = total * share / share.sum()
    counts = np.minimum(wanted.astype(int), capacity)
    for _ in range(total - int(counts.sum())):
        counts[np.where(counts < capacity, wanted - counts, -np.inf).argmax()] += 1
    return counts


def _padded(tasks: list[list[np.ndarray]], ways: int) -> np.ndarray:
    """Rows of the classes of tasks as one array (T, N, most), filled up with −1."""
    out = np.full((len(tasks), ways, max((len(r) for task in tasks for r in task), default=0)), -1)
    for t, task in enumerate(tasks):
        for c, rows in enumerate(task):
            out[t, c, : len(rows)] = rows
    return out
