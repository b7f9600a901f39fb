"""Read a pickle `{class: [vector, ...]}` from standard input, with limits; `plk` starts this file as a process.

`pickle.Unpickler` calls only what `find_class` returns: rules for arrays of plain numbers. A bomb of memory, hashing or
recursion meets the limits of this process and ends nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Bytes for each byte of the file: of the process, beside a constant, and of the vectors.
PROCESS_GROWTH, PROCESS_BYTES, VECTOR_GROWTH = 16, 256 << 20, 8
NUMBER = re.compile(r"[<>|=]?([fiu][1248]|b1)")


class Refused(Exception):
    """Content that is no dictionary of vectors; the message continues the name of the file."""


class Name:
    """A name of the allow-list: callable by a pickle, and without state."""

    __slots__ = ("_rule",)

    def __init__(self, rule: Callable[..., object]) -> None:
        self._rule = rule

    def __call__(self, *arguments: object) -> object:
        return self._rule(*arguments)

    def __setstate__(self, state: object) -> None:
        raise Refused(" sets the state of something that has none")


class Dtype:
    """`numpy.dtype` of a number."""

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or not NUMBER.fullmatch(code):
            raise Refused(" holds " + ("object arrays" if code in ("O", "O8", "|O") else "arrays of another dtype"))
        self.value = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, *structure = state[:5]
        if structure != [None, None, None]:
            raise Refused(" holds arrays with a structured dtype")
        if order in ("<", ">"):
            self.value = self.value.newbyteorder(order)


class Array:
    """`numpy.ndarray`, filled by its state."""

    def __init__(self, *_: object) -> None:
        self.value = np.empty(0, np.float32)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = from_buffer(raw, dtype, shape, "F" if fortran else "C").value


def from_buffer(raw: Any, dtype: Any, shape: Any, order: object = "C") -> Array:
    """Return the numbers of a buffer, whose size must be that of the shape."""
    raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as text
    if not isinstance(dtype, Dtype) or not isinstance(raw, bytes | bytearray):
        raise Refused(" holds object arrays")
    size = dtype.value.itemsize
    for length in shape:
        size *= length
    if size != len(raw) or min(shape, default=0) < 0:
        raise Refused(f" holds an array of shape {str(shape)[:80]} with {len(raw)} bytes")
    array = Array()
    array.value = np.frombuffer(raw, dtype.value).reshape(shape, order="F" if order == "F" else "C")
    return array


def refuse_call(*_: object) -> None:
    """Refuse to call a name that feature files only mention."""
    raise Refused(" constructs something that is no vector")


NAMES: dict[str, Callable[..., object]] = {
    "_codecs.encode": lambda text, encoding: text.encode("latin1"),
    "builtins.bytes": lambda: b"",
    "collections.OrderedDict": lambda pairs=(): dict(pairs),
    "collections.defaultdict": lambda *factory: {},
    "numpy.dtype": Dtype,
    **dict.fromkeys(("builtins.list", "builtins.tuple", "builtins.set", "builtins.dict", "numpy.ndarray"), refuse_call),
}
for core in ("numpy.core", "numpy._core"):
    NAMES[f"{core}.multiarray._reconstruct"] = Array
    NAMES[f"{core}.multiarray.scalar"] = lambda dtype, raw: from_buffer(raw, dtype, ()).value.item()
    NAMES[f"{core}.numeric._frombuffer"] = from_buffer


class Unpickler(pickle.Unpickler):
    """An unpickler that knows the names of `NAMES` alone."""

    def find_class(self, module: str, name: str) -> Name:
        """Return the rule of a name, or refuse it."""
        text = f"{module.replace('__builtin__', 'builtins')}.{name}"  # as protocols 0 to 2 write it
        if text not in NAMES:
            raise Refused(f" mentions {text[:80]}, which a feature file has no use for")
        return Name(NAMES[text])


def load(data: bytes) -> tuple[np.ndarray, np.ndarray, list[str] | None]:
    """Return features `(R, D)`, labels `(R,)` and class names, None where classes are numbers.

    >>> load(pickle.dumps({"a": [[1, 2.5]]}))
    (array([[1. , 2.5]]), array([0]), ['a'])
    """
    try:
        content = Unpickler(io.BytesIO(data), encoding="latin1").load()
        if type(content) is not dict:
            raise Refused(f" holds a {type(content).__name__}, not a dictionary {{class: [vectors]}}")
        if not content:
            raise Refused(" holds no class at all")
        if (kinds := {type(key) for key in content}) not in ({str}, {int}):
            odd = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise Refused(f" has classes of {odd}; they must be all text or all int")
        rows: list[np.ndarray] = []
        counts, left = [], VECTOR_GROWTH * len(data)
        for key, value in content.items():
            before = len(rows)
            for row in vectors(f": class {repr(key)[:40]}", value):
                left -= row.nbytes + 8  # with its label
                if left < 0:  # a pickle may repeat a vector without bytes
                    raise Refused(f" repeats its vectors {VECTOR_GROWTH} times or more")
                rows.append(row)
            counts.append(len(rows) - before)
        if len(sizes := {len(row) for row in rows}) > 1:
            raise Refused(f" has vectors of {', '.join(map(str, sorted(sizes)[:6]))} dimensions; all need the same")
        names = list(content) if kinds == {str} else None
        labels = np.repeat(np.array(list(content) if names is None else range(len(names)), np.int64), counts)
        return np.stack(rows) if rows else np.empty((0, 0)), labels, names
    except OverflowError as error:
        raise Refused(" has a number beyond 64 bits") from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = " ".join(str(error).split())[:80]
        raise Refused(f" is not a readable pickle ({reason}); it may be truncated") from error


def vectors(where: str, value: object) -> Iterator[np.ndarray]:
    """Yield the vectors of a class."""
    if isinstance(value, Array):
        if value.value.ndim != 2:
            raise Refused(f"{where} is an array of shape {value.value.shape}; it needs (rows, D)")
        yield from map(np.asarray, value.value)
        return
    if not isinstance(value, list | tuple):
        raise Refused(f"{where} holds a {type(value).__name__}; it needs a list of vectors")
    for vector in value:
        if isinstance(vector, Array):
            row = vector.value
        elif odd := {type(x) for x in vector} - {int, float} if isinstance(vector, list | tuple) else {type(vector)}:
            raise Refused(f"{where} holds a {odd.pop().__name__} where a vector of numbers is needed")
        else:
            row = np.asarray(vector, np.float64)
        if row.ndim != 1:
            raise Refused(f"{where} holds vectors of shape {row.shape}; flatten them to (D,)")
        yield row


def limit(size: int, seconds: int) -> None:
    """Limit memory and processor time of this process, where the system can."""
    try:
        import resource
    except ImportError:  # Windows; there the parent's patience is the limit
        return
    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
    with contextlib.suppress(OSError, ValueError):  # no /proc
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        limits[resource.RLIMIT_AS] = used + PROCESS_GROWTH * size + PROCESS_BYTES
    for kind, value in limits.items():
        with contextlib.suppress(OSError, ValueError):  # a lower limit is there already
            resource.setrlimit(kind, (value, value))


def main() -> None:
    """Write a line of JSON, class names or an error, then features and labels as .npy."""
    data, out = sys.stdin.buffer.read(), sys.stdout.buffer
    limit(len(data), int(sys.argv[1]))
    try:
        features, labels, names = load(data)
    except Refused as error:
        out.write(json.dumps({"error": str(error)}).encode())
        return
    out.write(json.dumps({"names": names}).encode() + b"\n")
    for array in (features, labels):
        np.lib.format.write_array(out, np.ascontiguousarray(array), allow_pickle=False)


if __name__ == "__main__":
    main()
