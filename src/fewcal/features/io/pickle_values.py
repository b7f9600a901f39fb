"""What a pickle of features may hold and name: plain values, and rules for the few names that NumPy arrays need.

>>> kind_of(Pairs()), kind_of(3)
('dict', 'int')
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# Numbers, texts, bytes, lists, tuples, and the classes of this page.
Value = object
# Pays for a copy of so many bytes, or refuses.
Spend = Callable[[int], None]
_NUMBER = re.compile(r"[<>|=]?([fiu][1248]|b1)")
# Arrays of more axes are nobody's features.
_MOST_AXES = 8


class Refused(Exception):
    """The pickle holds something that is no plain data; the message says what."""


# ---- values ---------------------------------------------------------------------------------------------------------


Rule = Callable[[Spend, tuple], Value]


@dataclass(eq=False)
class Pairs:
    """A dictionary as its pairs, in their order; a key that comes twice stands twice."""

    pairs: list[tuple[Value, Value]] = field(default_factory=list)


@dataclass(eq=False)
class Dtype:
    """`numpy.dtype`, of numbers."""

    value: np.dtype


@dataclass(eq=False)
class Array:
    """`numpy.ndarray`: empty when it is made, filled by its state."""

    value: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))


@dataclass(frozen=True, eq=False)
class Name:
    """Something that a pickle mentions, and what becomes of it when it is called."""

    text: str
    rule: Rule


def kind_of(value: Value) -> str:
    """The type of a value as people know it."""
    return {Pairs: "dict", Array: "ndarray", Dtype: "dtype", Name: "function"}.get(type(value), type(value).__name__)


# ---- what names stand for -------------------------------------------------------------------------------------------


def _no_call(what: str) -> Rule:
    def rule(spend: Spend, arguments: tuple) -> Value:
        raise Refused(f"constructs {what} directly")

    return rule


def _dictionary(spend: Spend, arguments: tuple) -> Pairs:
    """`defaultdict(factory)`, whose factory is dropped, or `OrderedDict([[key, value], …])`."""
    made = Pairs()
    if arguments and isinstance(arguments[0], list):
        spend(8 * len(arguments[0]))
        for pair in arguments[0]:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise Refused("holds a dictionary with something else than pairs")
            made.pairs.append((pair[0], pair[1]))
    return made


def _dtype(spend: Spend, arguments: tuple) -> Dtype:
    code = arguments[0] if arguments else None
    if isinstance(code, Dtype):
        return Dtype(code.value)
    if not isinstance(code, str) or not _NUMBER.fullmatch(code):
        named = repr(code[:40]) if isinstance(code, str) else kind_of(code)
        raise Refused(f"holds {'object arrays' if code in ('O', 'O8', '|O') else f'arrays of dtype {named}'}")
    return Dtype(np.dtype(code))


def _dtype_state(dtype: Dtype, state: Value) -> None:
    # (version, byte order, subdtype, names, fields, ...): only the byte order may matter for a number.
    if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
        raise Refused("holds arrays with a structured dtype")
    order = state[1]
    if isinstance(order, str) and order in ("<", ">"):
        dtype.value = dtype.value.newbyteorder("<" if order == "<" else ">")


def _from_buffer(spend: Spend, arguments: tuple) -> Array:
    """`numpy.core.numeric._frombuffer(buffer, dtype, shape, order)`: how protocol 5 writes an array."""
    raw, dtype, shape, order = arguments
    return Array(_numbers(raw, dtype, shape, isinstance(order, str) and order == "F"))


def _scalar(spend: Spend, arguments: tuple) -> Value:
    dtype, raw = arguments
    return _numbers(raw, dtype, (), False)[()]


def _encode(spend: Spend, arguments: tuple) -> bytes:
    """`_codecs.encode(text, 'latin1')`: how protocols 0 to 2 write bytes."""
    text, encoding = arguments
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("encodes something that is no bytes")
    spend(len(text))
    return text.encode("latin1")


def _empty_bytes(spend: Spend, arguments: tuple) -> bytes:
    if arguments:
        raise Refused("constructs bytes directly")
    return b""


def _numbers(raw: Value, dtype: Value, shape: Value, fortran: bool) -> np.ndarray:
    if not isinstance(dtype, Dtype):
        raise Refused("holds an array without a dtype")
    if isinstance(raw, str):  # Python 2 wrote bytes as str
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes):
        raise Refused("holds object arrays, not plain numbers")
    if not isinstance(shape, tuple) or len(shape) > _MOST_AXES or not all(type(n) is int and n >= 0 for n in shape):
        raise Refused("holds an array with an impossible shape")
    size = dtype.value.itemsize
    for n in shape:
        size *= n
    if size != len(raw):
        shown = shape if max(shape, default=0) < 10**15 else "beyond any memory"
        raise Refused(f"holds an array of shape {shown} with {len(raw)} bytes")
    return np.frombuffer(raw, dtype.value).reshape(shape, order="F" if fortran else "C")


def build(target: Value, state: Value) -> None:
    """Give a dtype or an array its state, the only things that have one."""
    if isinstance(target, Dtype):
        _dtype_state(target, state)
    elif isinstance(target, Array):
        if not isinstance(state, tuple) or len(state) != 5:
            raise Refused("holds an array with an unknown layout")
        _, shape, dtype, fortran, raw = state
        target.value = _numbers(raw, dtype, shape, fortran is True or (type(fortran) is int and fortran == 1))
    else:
        raise Refused("sets the state of something that has none")


NAMES: dict[str, Rule] = {
    "numpy.ndarray": _no_call("an ndarray"),
    "numpy.dtype": _dtype,
    "_codecs.encode": _encode,
    "builtins.bytes": _empty_bytes,
    "collections.defaultdict": _dictionary,
    "collections.OrderedDict": _dictionary,
    "builtins.dict": _dictionary,
    # Factories of defaultdict.
    **{f"builtins.{kind}": _no_call(f"a {kind}") for kind in ("list", "tuple", "set")},
}
for _core in ("numpy.core", "numpy._core"):
    NAMES[f"{_core}.multiarray._reconstruct"] = lambda spend, arguments: Array()
    NAMES[f"{_core}.multiarray.scalar"] = _scalar
    NAMES[f"{_core}.numeric._frombuffer"] = _from_buffer
