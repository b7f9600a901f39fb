"""Draw tasks: classes and rows by hashes of (seed, task, position), for all tasks of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fewcal._utils.splitmix import GOLDEN, splitmix64
from fewcal.episodes.batch import Episodes, integer_labels, labels_fingerprint
from fewcal.episodes.spec import META_CLASS, META_SUPPORT, EpisodeSpec
from fewcal.errors import InputError

_U64 = np.uint64
# Rows of a class that are drawn by a shuffle, which is quadratic in their number but blind to the class size; more are
# drawn by a sort of the whole class. Part of the definition of the tasks.
_SHUFFLE_LIMIT = 128


def sample_episodes(
    labels: np.ndarray,
    spec: EpisodeSpec,
    task_ids: Sequence[int] | range | np.ndarray,
    names: Sequence[str] | None = None,
) -> Episodes:
    """Tasks `task_ids` of the endless list that (labels, spec) defines; see `Sampler`.

    >>> labels = np.repeat([10, 20, 30], 8)
    >>> spec = EpisodeSpec(way=2, shot=1, query=3, seed=0)
    >>> tasks = sample_episodes(labels, spec, range(100))
    >>> tasks.support.shape, tasks.query.shape
    ((100, 2, 1), (100, 2, 3))
    >>> alone = sample_episodes(labels, spec, [42])
    >>> bool((alone.query[0] == tasks.query[42]).all())
    True
    """
    return Sampler(labels, spec, names).draw(task_ids)


class Sampler:
    """Draws tasks of a specification from labels, whose order it settles once.

    Parameters
    ----------
    labels : array (R,)
        Any integers; classes may have different sizes.
    spec : EpisodeSpec
    names : sequence of str or None
        Names of labels 0..C−1, which make errors readable.
    """

    def __init__(self, labels: np.ndarray, spec: EpisodeSpec, names: Sequence[str] | None = None) -> None:
        labels = integer_labels(labels)
        self.spec, self.fingerprint = spec, labels_fingerprint(labels)
        # `order[start[c] : start[c] + size[c]]` are the rows of label `values[c]`, and `owner` are the c of `order`.
        self.values, self.size = np.unique(labels, return_counts=True)
        self.order = np.argsort(labels, kind="stable")
        self.start = np.cumsum(self.size) - self.size
        self.count = len(self.values)
        self.owner = np.repeat(np.arange(self.count), self.size)
        self.way = min(spec.way, self.count)
        self._check(names)

    def _check(self, names: Sequence[str] | None) -> None:
        spec, size = self.spec, self.size
        if self.way < spec.ways[0]:
            raise InputError(f"{spec.ways[0]} ways need as many classes, but there are {self.count}; lower --way")
        left, outliers = int(np.sort(size)[: self.count - self.way].sum()), spec.query_counts(self.way)[1]
        if left < outliers:
            raise InputError(
                f"{outliers} outliers need as many rows of other classes, but {self.way} ways may leave {left}; "
                "lower way or outliers"
            )
        short = np.flatnonzero(size < spec.rows_per_class)
        if short.size:
            c = short[0]
            others = f" (and {short.size - 1} more classes)" if short.size > 1 else ""
            name = self.values[c] if names is None else repr(names[self.values[c]])
            shots = spec.rows_per_class - spec.class_queries
            raise InputError(
                f"class {name} has {size[c]} rows{others}, but {shots} shots and {spec.class_queries} queries "
                f"need {spec.rows_per_class}; lower --query or --shot"
            )

    def draw(self, task_ids: Sequence[int] | range | np.ndarray) -> Episodes:
        """Tasks of these indices; no row comes twice in a task."""
        ids = np.asarray(task_ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InputError(f"task_ids must be a list of integers; got {ids.dtype} of shape {ids.shape}")
        ids = ids.astype(np.int64)
        if ids.size and ids.min() < 0:
            raise InputError(f"task index {ids.min()} is negative; tasks count from 0")
        key = _task_key(self.spec.seed, ids)
        chosen = _distinct(key, np.full(len(ids), self.count), self.way)  # (T, N) positions among the classes
        if not self.spec.is_balanced:
            return Episodes(self.spec, self.fingerprint, ids, *self._unbalanced_rows(ids, key, chosen))
        if self.spec.replacement:
            rows = self._fresh_rows(key, chosen, self.spec.rows_per_class)
        else:
            rows = self._dealt_rows(ids, chosen)
        support, query = (np.ascontiguousarray(part) for part in np.split(rows, [self.spec.shot], axis=2))
        nothing = np.empty((len(ids), 0), np.int64)
        return Episodes(self.spec, self.fingerprint, ids, self.values[chosen], support, query, nothing)

    def _rows(self, c: int) -> np.ndarray:
        return self.order[self.start[c] : self.start[c] + self.size[c]]

    def _fresh_rows(self, key: np.ndarray, chosen: np.ndarray, take: int) -> np.ndarray:
        """(T, N, take) rows, drawn from all rows of each chosen class."""
        tasks, way = chosen.shape
        # One stream per (task, way), keyed apart from the stream that drew the classes.
        keys = _stream(key[:, None], (1 << 32) + np.arange(way)[None, :]).reshape(-1)
        flat = chosen.reshape(-1)
        if take <= _SHUFFLE_LIMIT:
            within = _distinct(keys, self.size[flat], take)
        else:
            within = np.empty((len(flat), take), np.int64)
            for b, c in enumerate(flat):
                within[b] = np.argsort(_stream(keys[b : b + 1], np.arange(self.size[c])), kind="stable")[:take]
        return self.order[self.start[flat][:, None] + within].reshape(tasks, way, take)

    def _dealt_rows(self, ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """(T, N, K + Q) rows, dealt without replacement within a pass."""
        spec, take = self.spec, self.spec.rows_per_class
        rows = np.empty((*chosen.shape, take), np.int64)
        # Powers of two: later batches of a run find what an earlier one dealt.
        passes, turns = _deal(self.size.tobytes(), spec, 1 << max(8, int(ids.max(initial=0)).bit_length()))
        passes, turns = passes[ids], turns[ids]
        for number in np.unique(passes):
            # Shuffle every class at once: sort all rows by (class, hash).
            noise = _stream(_task_key(spec.seed, np.array([number]), domain=1), np.arange(len(self.order)))
            shuffled = self.order[np.lexsort((noise, self.owner))]
            mine = np.flatnonzero(passes == number)
            first = self.start[chosen[mine]] + turns[mine] * take
            rows[mine] = shuffled[first[..., None] + np.arange(take)]
        return rows

    def _unbalanced_rows(
        self, ids: np.ndarray, key: np.ndarray, chosen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Classes (T, N), support (T, N, K), queries (T, N, Q) and outliers (T, R), filled up with −1."""
        spec, first = self.spec, self._fresh_rows(key, chosen, self.spec.shot)
        classes, support, query, outliers = np.full(chosen.shape, -1), [], [], []
        for t, seed in enumerate(_task_key(spec.seed, ids, domain=2).tolist()):
            rng = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32])  # NumPy promises that its numbers stay
            own = chosen[t, : rng.randint(spec.ways[0], self.way + 1)]
            classes[t, : len(own)] = self.values[own]
            inside, outside = spec.query_counts(len(own))
            shots, queries = _class_counts(spec, self.size[own], inside, rng)
            rows = []
            for c, begin in zip(own, first[t], strict=False):
                rest = rng.permutation(self._rows(c))
                rows.append(np.concatenate([begin, rest[(rest[:, None] != begin).all(axis=1)]]))
            support.append([r[:k] for r, k in zip(rows, shots, strict=True)])
            query.append([r[k : k + q] for r, k, q in zip(rows, shots, queries, strict=True)])
            others = self.order[~np.isin(self.owner, own)] if outside else self.order[:0]
            outliers.append([rng.permutation(others)[:outside]])
        return classes, _padded(support, self.way), _padded(query, self.way), _padded(outliers, 1)[:, 0]


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
    # (place drawn at step j) = j + floor(u (size - j)); u has 32 bits, a bias below size / 2**32.
    step = np.arange(count)[:, None]
    u = _stream(key, step.astype(_U64)) >> _U64(32)
    places = step + ((u * (size - step).astype(_U64)) >> _U64(32)).astype(np.int64)
    chosen = places.copy()
    for j, at in enumerate(chosen):
        for i in range(j - 1, -1, -1):
            np.copyto(at, i, where=places[i] == at)
    return np.ascontiguousarray(chosen.T)


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


def _class_counts(
    spec: EpisodeSpec, size: np.ndarray, inside: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Support examples and queries of each class of a task, two arrays (N,)."""
    way = len(size)
    shots = rng.randint(spec.min_shot or spec.shot, spec.shot + 1, way)
    if spec.meta_dataset:
        room = size - spec.class_queries
        total = min(META_SUPPORT, np.ceil((1 - rng.uniform()) * np.minimum(room, META_CLASS)).sum())
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
