"""A memo: values derived once from an object and kept beside it, in the order of last use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar, cast

import torch

T = TypeVar("T")
_MISSING = object()


class Memo:
    """Derived values by key. Threads that ask for the same value at once get one answer.

    A key belongs to one `make`, so that `get` has the type of what `make` returns. Copies and pickles of a memo are
    empty: derived data is derived again on the other side.

    Examples
    --------
    >>> memo = Memo()
    >>> memo.get("square", lambda: 3 * 3), memo.get("square", lambda: 1 // 0)
    (9, 9)
    >>> "square" in memo, "cube" in memo
    (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[Hashable, object] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value under `key`, made now if it is not there; it becomes the last one used."""
        with self._lock:
            value = self._values.pop(key, _MISSING)
            self._values[key] = value = make() if value is _MISSING else value
            return cast(T, value)

    def forget(self, key: Hashable) -> None:
        """Drop a value; one that is not there is no error."""
        with self._lock:
            self._values.pop(key, None)

    def keep_last(self, count: int) -> None:
        """Drop all but so many, those that were used last."""
        with self._lock:
            while len(self._values) > count:
                del self._values[next(iter(self._values))]

    def items(self) -> list[tuple[Hashable, object]]:
        """Keys and values as they are now, the last used last."""
        with self._lock:
            return list(self._values.items())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Hashable]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Memory of the tensors in it, each storage counted once."""
        return tensor_bytes(value for _, value in self.items())

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()


def tensor_bytes(values: Iterable[object]) -> int:
    """Memory of all tensors among `values`, also inside lists, tuples and memos; each storage is counted once.

    >>> import torch
    >>> x = torch.zeros(4, 2)
    >>> tensor_bytes([x, (x[0], [x[1]]), "no tensor"])
    32
    """
    storages: dict[int, int] = {}

    def visit(value: object) -> None:
        if isinstance(value, torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, list | tuple):
            for part in value:
                visit(part)
        elif isinstance(value, Memo):
            for _, part in value.items():
                visit(part)

    for value in values:
        visit(value)
    return sum(storages.values())
