"""The `.plk` feature dictionaries of public few-shot repositories, `{class: [vector, ...]}`, without trusting them.

A pickle is a program: loading one from the internet with `pickle.load` runs whatever its author wrote. Here it is read
by `pickle_data`, which has no instruction that calls anything and no more to spend than the file has bytes.

>>> import pickle, os
>>> try:
...     loads(pickle.dumps(os.getcwd), "evil.plk")
... except FileFormatError as error:
...     print(error)  # doctest: +ELLIPSIS
evil.plk mentions posix.getcwd, which a feature file has no use for; ...
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit
from fewcal.features.io.pickle_data import Damaged, read_pickle
from fewcal.features.io.pickle_values import Array, Pairs, Refused, Value, kind_of

# Vectors may take this many times the bytes of the file: small whole numbers take two there and eight in memory.
_GROWTH = 8
_INT64 = np.iinfo(np.int64)


def loads(data: bytes, name: str) -> list[tuple[Value, Value]]:
    """The pairs of the dictionary in a pickle, arrays still wrapped; anything but plain data is refused."""
    remedy = "load it where you trust it and save it again as npz"
    try:
        loaded = read_pickle(data)
    except Refused as refused:
        raise FileFormatError(f"{name} {refused}, which a feature file has no use for; {remedy}") from None
    except Damaged as error:
        raise FileFormatError(f"{name} is not a readable pickle ({error}); it may be truncated: get it again") from None
    if not isinstance(loaded, Pairs):
        raise FileFormatError(f"{name} holds a {kind_of(loaded)}, not a dictionary {{class: [vectors]}}; {remedy}")
    return loaded.pairs


def read_plk(path: Path) -> RawSplit:
    """The rows of all classes; the class names are None where the keys are numbers.

    Rows come class by class in the order of the dictionary. Keys that are numbers are returned as the labels; text
    keys become the class names.
    """
    data = path.read_bytes()
    pairs = loads(data, str(path))
    if not pairs:
        raise FileFormatError(f"{path} holds no class at all; write it again")
    names, numbers = _keys(pairs, path)
    budget = _GROWTH * len(data)
    blocks = []
    for key, value in pairs:
        block, size = _vectors(value, str(key), path, budget)
        budget -= size
        blocks.append(block)
    dimensions = {block.shape[1] for block in blocks if len(block)}
    if len(dimensions) > 1:
        raise FileFormatError(f"{path} has vectors of {_sorted(dimensions)} dimensions; all need the same")
    labels = np.repeat(np.arange(len(pairs)) if numbers is None else numbers, [len(block) for block in blocks])
    blocks = [block for block in blocks if len(block)] or [np.empty((0, 0), np.float32)]
    return RawSplit(np.concatenate(blocks), labels, names)


def _keys(pairs: list[tuple[Value, Value]], path: Path) -> tuple[list[str] | None, np.ndarray | None]:
    """The classes as names or as numbers; the other is None."""
    texts = [key for key, _ in pairs if isinstance(key, str)]
    whole = [int(key) for key, _ in pairs if isinstance(key, int | np.integer) and not isinstance(key, bool)]
    if len(texts) == len(pairs):
        if len(set(texts)) < len(texts):
            raise FileFormatError(f"{path} has a class twice; write it again")
        return texts, None
    if len(whole) < len(pairs):
        odd = next(key for key, _ in pairs if not isinstance(key, str))
        shown = repr(str(odd)[:40]) if isinstance(odd, int | float | np.number) or odd is None else "a key"
        raise FileFormatError(f"{path} has the class {shown} ({kind_of(odd)}); classes must be all text or all int")
    if not all(_INT64.min <= key <= _INT64.max for key in whole):
        raise FileFormatError(f"{path} has a class number beyond 64 bits; number the classes anew")
    numbers = np.array(whole, np.int64)
    if len(np.unique(numbers)) < len(numbers):
        raise FileFormatError(f"{path} has a class twice; write it again")
    return None, numbers


def _vectors(value: Value, key: str, path: Path, budget: int) -> tuple[np.ndarray, int]:
    """The vectors of one class as (R, D), never deeper than one list, and the bytes that they take."""
    key = repr(key[:40])
    if isinstance(value, Array):
        if value.value.ndim != 2:
            raise FileFormatError(f"{path}: class {key} is an array of shape {value.value.shape}; it needs (rows, D)")
        # Rows without numbers count as well: each becomes a label.
        return value.value, _spent(max(value.value.nbytes, 8 * len(value.value)), budget, path)
    if not isinstance(value, list | tuple):
        raise FileFormatError(f"{path}: class {key} holds a {kind_of(value)}; it needs a list of vectors")
    rows, size = [], 0
    for vector in value:
        if isinstance(vector, Array):
            row = vector.value
        elif isinstance(vector, list | tuple):
            _spent(size + 8 * len(vector), budget, path)  # before it is copied
            row = _row(vector, key, path)
        else:
            raise FileFormatError(f"{path}: class {key} holds a {kind_of(vector)} where a vector of numbers is needed")
        if row.ndim != 1:
            raise FileFormatError(f"{path}: class {key} holds vectors of shape {row.shape}; flatten them to (D,)")
        size = _spent(size + max(row.nbytes, 8), budget, path)
        rows.append(row)
    if len({len(row) for row in rows}) > 1:
        raise FileFormatError(
            f"{path}: class {key} has vectors of {_sorted({len(r) for r in rows})} dimensions; all need the same"
        )
    return (np.stack(rows) if rows else np.empty((0, 0), np.float32)), size


def _row(vector: list | tuple, key: str, path: Path) -> np.ndarray:
    if not all(type(x) in (int, float) or isinstance(x, np.number) for x in vector):
        kinds = next(kind_of(x) for x in vector if type(x) not in (int, float) and not isinstance(x, np.number))
        raise FileFormatError(f"{path}: class {key} holds a {kinds} where a vector of numbers is needed")
    try:
        return np.asarray(vector, np.float64)
    except OverflowError as error:
        raise FileFormatError(f"{path}: class {key} holds a number beyond any float; write it again") from error


def _spent(size: int, budget: int, path: Path) -> int:
    if size > budget:
        raise FileFormatError(
            f"{path} repeats its vectors {_GROWTH} times or more; load it where you trust it and save it again as npz"
        )
    return size


def _sorted(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)[:6]))


FORMAT = FileFormat((".plk", ".pkl"), read_plk)
