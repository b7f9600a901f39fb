"""Items: pictures, texts or recordings that are listed but not opened yet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fewcal.errors import InputError

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Items:
    """A list of things to make features of.

    Attributes
    ----------
    names : the name of each in messages and tables
    labels : the class of each, or None
    splits : the split of each (base, val, novel), or None
    source : where they come from
    content : what each is made from: a path, bytes, an array, a text
    """

    names: list[str]
    labels: list[str] | None
    splits: list[str] | None
    source: str
    content: Sequence[Any] = ()

    kind: ClassVar[str] = "item"
    extensions: ClassVar[frozenset[str]] = frozenset()  # of its files, without the dot

    def __len__(self) -> int:
        return len(self.names)

    def load(self, i: int, min_side: int | None = None) -> Any:
        """Return item i itself, or raise an `InputError` that names it; `min_side` is for pictures (`decode`)."""
        return self.content[i]

    def check(self, i: int) -> None:
        """Refuse item i where its first bytes are enough to."""

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """Return some items, in the order given."""
        at = [int(i) for i in indices]
        return replace(
            self,
            names=[self.names[i] for i in at],
            labels=None if self.labels is None else [self.labels[i] for i in at],
            splits=None if self.splits is None else [self.splits[i] for i in at],
            content=[self.content[i] for i in at],
        )

    @property
    def classes(self) -> list[str]:
        """The class names, sorted."""
        return sorted(set(self.labels or ()))

    def label_codes(self) -> np.ndarray:
        """Return `(R,)` int64 positions in `classes`."""
        if self.labels is None:
            raise InputError(f"{self.source} has no labels; every {self.kind} needs a class")
        place = {name: i for i, name in enumerate(self.classes)}
        return np.array([place[label] for label in self.labels], np.int64)

    def fingerprint(self) -> str:
        """Return a digest of names and labels, without opening anything."""
        text = "\0".join(f"{n}\1{c}" for n, c in zip(self.names, self.labels or [""] * len(self), strict=True))
        return hashlib.sha256(f"{self.kind}\0{text}".encode("utf-8", "surrogateescape")).hexdigest()


LEAVE_OUT = "fix or remove them, or leave them out with --skip-bad"


def refuse_bad(errors: Sequence[InputError], total: int, remedy: str = "fix or remove them") -> None:
    """Raise one error that lists all items that could not be read, if any."""
    if errors:
        listed = "; ".join(str(e) for e in errors[:5]) + (f"; and {len(errors) - 5} more" if len(errors) > 5 else "")
        raise InputError(f"{len(errors)} of {total} cannot be used; {remedy}: {listed}")


def decoded(
    indices: Iterable[S], load: Callable[[S], T], workers: int | None = None, ahead: int = 64
) -> Iterator[T | InputError]:
    """Yield `load(i)` for each index, in order, by a pool of threads that works up to `ahead` in advance.

    An `InputError` of `load` is yielded in place of its item, so that one bad picture does not end the others.

    >>> list(decoded(range(3), lambda i: i * i, workers=2))
    [0, 1, 4]
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} must be at least 1")
    count = workers or min(8, os.cpu_count() or 1)

    def guarded(i: S) -> T | InputError:
        try:
            return load(i)
        except InputError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        waiting: list[Future[T | InputError]] = []
        try:
            for i in indices:
                waiting.append(pool.submit(guarded, i))
                if len(waiting) >= max(ahead, count):
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:  # the reader gave up: what has not begun never will
                future.cancel()
