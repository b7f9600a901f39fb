"""A batch of tasks as row indices, in memory and in a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal.episodes.spec import EpisodeSpec
from fewcal.errors import FileFormatError, InputError

_FORMAT = "fewcal-episodes-2"
_ARRAYS = ("task_ids", "classes", "support", "query", "outliers")


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
        same = (shapes == shapes[:1]).all()
        for shape in sorted(set(map(tuple, shapes[:1].tolist() if same else shapes.tolist()))):
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
    if not kept.all():
        rows, classes = rows[kept], classes[kept]
    return rows.reshape(len(kept), -1), classes.reshape(len(kept), -1)


def labels_fingerprint(labels: np.ndarray) -> str:
    """A hex digest of labels (R,): equal if and only if the label of every row is.

    >>> labels_fingerprint(np.array([0, 1], np.int16)) == labels_fingerprint(np.array([0, 1]))
    True
    """
    return hashlib.sha256(integer_labels(labels).astype("<i8").tobytes()).hexdigest()


def integer_labels(labels: np.ndarray) -> np.ndarray:
    """Labels (R,) as int64."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"labels must be one integer per row; got {labels.dtype} of shape {labels.shape}")
    return labels.astype(np.int64, copy=False)
