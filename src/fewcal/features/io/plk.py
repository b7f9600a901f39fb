"""The `.plk` feature dictionaries of public few-shot repositories, `{class: [vector, ...]}`, without trusting them.

A pickle is a program: loading one from the internet with `pickle.load` runs whatever its author wrote. Here the only
names a pickle may mention are those in `_ADMITTED`, and none of them leads to code outside this page: arrays, dtypes
and scalars are rebuilt by stand-ins that accept plain numbers only. NumPy's own `__setstate__` is never handed a
state from the file, since a forged dtype there would let raw bytes pass for Python objects.

>>> import pickle, os
>>> try:
...     loads(pickle.dumps(os.getcwd), "evil.plk")
... except FileFormatError as error:
...     print(error)  # doctest: +ELLIPSIS
evil.plk mentions posix.getcwd, which a feature file has no use for; ...
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fewcal.errors import FileFormatError

_NUMBER = re.compile(r"[<>|=]?([fiu][1248]|b1)")


class _Refused(Exception):
    """The pickle asks for something outside the dictionary format; the message is the reason."""


class _StandIn:
    """Base of what the pickle may call. `__setstate__` is always defined, so BUILD can never set attributes."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise _Refused("sets the state of something that has none")


class _NdArrayName(_StandIn):
    """The name `numpy.ndarray`, passed to `_reconstruct`; not callable for the pickle."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> NoReturn:
        raise _Refused("constructs an ndarray directly")


class _Dtype(_StandIn):
    """`numpy.dtype` for numbers only."""

    __slots__ = ("value",)
    value: np.dtype[Any]

    def __init__(self, code: Any = None, *_: Any) -> None:
        if isinstance(code, _Dtype):
            self.value = code.value
            return
        if not isinstance(code, str) or not _NUMBER.fullmatch(code):
            what = "object arrays" if code in ("O", "O8", "|O") else f"arrays of dtype {code!r}"
            raise _Refused(f"holds {what}, not plain numbers")
        self.value = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, subdtype, names, fields, ...): only the byte order may matter for a number.
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("holds arrays with a structured dtype")
        if state[1] in ("<", ">"):
            self.value = self.value.newbyteorder(state[1])


class _Array(_StandIn):
    """An array under construction: `_reconstruct` makes it empty, its state fills it."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value = np.empty(0, np.float32)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("holds an array with an unknown layout")
        _, shape, dtype, fortran, raw = state
        self.value = _numbers(raw, dtype, shape, "F" if fortran else "C")


class _FromBuffer(_StandIn):
    """`numpy.core.numeric._frombuffer(buffer, dtype, shape, order)`: how protocol 5 writes an array."""

    __slots__ = ()

    def __new__(cls, raw: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:  # type: ignore[misc]
        array = _Array()
        array.value = _numbers(raw, dtype, shape, "F" if order == "F" else "C")
        return array


class _Scalar(_StandIn):
    """`numpy.core.multiarray.scalar(dtype, bytes)`."""

    __slots__ = ()

    def __new__(cls, dtype: Any, raw: Any = b"", *_: Any) -> Any:
        return _numbers(raw, dtype, (), "C")[()]


class _Encode(_StandIn):
    """`_codecs.encode(text, 'latin1')`: how protocols 0 to 2 write bytes."""

    __slots__ = ()

    def __new__(cls, text: Any, encoding: Any = None) -> bytes:  # type: ignore[misc]
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise _Refused(f"encodes something as {encoding!r}")
        return text.encode("latin1")


class _Dict(_StandIn):
    """defaultdict and OrderedDict become plain dictionaries; the factory is dropped."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> dict:  # type: ignore[misc]
        return {}


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NdArrayName,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encode,
    ("collections", "defaultdict"): _Dict,
    ("collections", "OrderedDict"): _Dict,
    **{("builtins", kind.__name__): kind for kind in (list, dict, tuple, set, frozenset)},
}
for _core in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_core}.multiarray", "_reconstruct"] = _Array
    _ADMITTED[f"{_core}.multiarray", "scalar"] = _Scalar
    _ADMITTED[f"{_core}.numeric", "_frombuffer"] = _FromBuffer


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            # Protocols 0 to 2 use the module's name in Python 2.
            return _ADMITTED["builtins" if module == "__builtin__" else module, name]
        except KeyError:
            raise _Refused(f"mentions {module}.{name}") from None


def _numbers(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(dtype, _Dtype):
        raise _Refused("holds an array without a dtype")
    if isinstance(raw, str):  # Python 2 wrote bytes as str
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray):
        raise _Refused("holds object arrays, not plain numbers")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _Refused("holds an array with an impossible shape")
    size = dtype.value.itemsize
    for n in shape:
        size *= n
    if size != len(raw):
        raise _Refused(f"holds an array of shape {shape} with {len(raw)} bytes")
    return np.frombuffer(raw, dtype.value).reshape(shape, order=order)


def loads(data: bytes, name: str) -> dict[Any, Any]:
    """The dictionary in a pickle, arrays still wrapped in stand-ins; anything but plain data is refused."""
    remedy = "load it where you trust it and save it again as npz"
    try:
        loaded = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except _Refused as refused:
        raise FileFormatError(f"{name} {refused}, which a feature file has no use for; {remedy}") from None
    except Exception as error:  # a forged or torn pickle can raise anything at all
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise FileFormatError(
            f"{name} is not a readable pickle ({reason}); it may be truncated: get it again"
        ) from error
    if not isinstance(loaded, dict):
        raise FileFormatError(
            f"{name} holds a {type(loaded).__name__}, not a dictionary {{class: [vectors]}}; {remedy}"
        )
    return loaded


def read_plk(path: Path) -> tuple[np.ndarray, np.ndarray, list[str] | None]:
    """features (R, D), labels (R,), class names or None where the keys are numbers.

    Rows come class by class in the order of the dictionary. Keys that are numbers are returned as the labels; text
    keys become the class names.
    """
    content = loads(path.read_bytes(), str(path))
    if not content:
        raise FileFormatError(f"{path} holds no class at all; write it again")
    keys = list(content)
    numeric = all(isinstance(key, int | np.integer) and not isinstance(key, bool) for key in keys)
    if not numeric and not all(isinstance(key, str) for key in keys):
        odd = next(key for key in keys if not isinstance(key, str))
        raise FileFormatError(
            f"{path} has the class {str(odd)[:40]!r} ({type(odd).__name__}); classes must be all text or all int"
        )

    blocks = [_vectors(content[key], key, path) for key in keys]
    dimensions = {block.shape[1] for block in blocks if len(block)}
    if len(dimensions) > 1:
        raise FileFormatError(f"{path} has vectors of {_sorted(dimensions)} dimensions; all need the same")
    blocks = [block for block in blocks if len(block)] or [np.empty((0, 0), np.float32)]
    features = np.concatenate(blocks)
    counts = [len(content[key].value) if isinstance(content[key], _Array) else len(content[key]) for key in keys]
    labels = np.repeat(np.array([int(key) for key in keys]) if numeric else np.arange(len(keys)), counts)
    return features, labels, None if numeric else keys


def _vectors(value: Any, key: Any, path: Path) -> np.ndarray:
    """The vectors of one class as (R, D); never deeper than one list, so nested references cannot explode."""
    if isinstance(value, _Array):
        if value.value.ndim != 2:
            raise FileFormatError(f"{path}: class {key!r} is an array of shape {value.value.shape}; it needs (rows, D)")
        return value.value
    if not isinstance(value, list | tuple):
        raise FileFormatError(f"{path}: class {key!r} holds a {type(value).__name__}; it needs a list of vectors")
    rows = []
    for vector in value:
        if isinstance(vector, _Array):
            row = vector.value
        elif isinstance(vector, list | tuple) and all(
            type(x) in (int, float) or isinstance(x, np.number) for x in vector
        ):
            row = np.asarray(vector, np.float64)
        else:
            raise FileFormatError(
                f"{path}: class {key!r} holds a {type(vector).__name__} where a vector of numbers is needed"
            )
        if row.ndim != 1:
            raise FileFormatError(f"{path}: class {key!r} holds vectors of shape {row.shape}; flatten them to (D,)")
        rows.append(row)
    if len({len(row) for row in rows}) > 1:
        raise FileFormatError(
            f"{path}: class {key!r} has vectors of {_sorted({len(r) for r in rows})} dimensions; all need the same"
        )
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _sorted(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)[:6]))
