"""Fields that know what they accept: range, choices and help stand once, beside the default.

A dataclass declares its fields with `parameter(...)`; validation, command-line help, documentation and search spaces
read the same record.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from fewcal.errors import InputError

_KEY = "fewcal"


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class SearchRange:
    """Where a search looks for a number: from `low` to `high`, by steps or on a log scale."""

    low: float
    high: float
    step: float | None = None
    log: bool = False


@dataclass(frozen=True)
class Parameter:
    """What a field accepts.

    Attributes
    ----------
    help : str
        One line, for people.
    choices : collection of str
        The words it may be, where it is a word; a registry as it is, so that what is registered later counts.
    flag : bool
        Whether it is True or False.
    low, high : float or None
        The range, where it is a number.
    also : tuple
        Values beside the range that mean something of their own (False, "auto").
    integer, infinite : bool
        Whether only whole numbers are allowed, and whether infinity is.
    search : SearchRange or None
        Where a search on any features looks.
    """

    help: str
    choices: Collection[str] = ()
    flag: bool = False
    low: float | None = None
    high: float = math.inf
    also: tuple[object, ...] = ()
    integer: bool = False
    infinite: bool = False
    search: SearchRange | None = None

    @property
    def accepts(self) -> str:
        """The accepted values in words.

        >>> Parameter("", low=0, also=(False, "auto")).accepts
        "a number ≥ 0 (or False or 'auto')"
        """
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.flag:
            return "True or False"
        if self.low is None:
            return ""
        words = f" (or {' or '.join(map(repr, self.also))})" if self.also else ""
        bound = f"≥ {self.low:g}" if self.high == math.inf else f"from {self.low:g} to {self.high:g}"
        return f"a number {bound}{words}"

    def checked(self, name: str, value: object) -> object:
        """The value, a NumPy scalar as Python's own; raises `InputError` with the remedy if it is not accepted."""
        if self.choices and value not in self.choices:
            raise InputError(f"{name}={value!r} is unknown; use {self.accepts}")
        if self.flag and not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} must be a bool, got {value!r}")
        if self.flag:
            return bool(value)
        if self.low is None or any(type(value) is type(word) and value == word for word in self.also):
            return value
        number = value.item() if isinstance(value, np.generic) else value  # as a grid search hands them over
        if isinstance(number, bool) or not isinstance(number, int | float) or not self.low <= number <= self.high:
            raise InputError(f"{name}={number!r} is out of range; use {self.accepts}")
        if math.isinf(number) and not self.infinite:
            raise InputError(f"{name}={number!r} must be finite")
        if self.integer and int(number) != number:
            raise InputError(f"{name}={number!r} must be a whole number")
        return number


def parameter(default: Any, help: str, **accepts: Any) -> Any:
    """A dataclass field with a `Parameter` beside its default; `accepts` are the fields of `Parameter`.

    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     k: int = parameter(8, "neighbours", low=1, integer=True)
    >>> parameters_of(Settings)["k"].accepts
    'a number ≥ 1'
    """
    flag = isinstance(default, bool) and "low" not in accepts
    return field(default=default, metadata={_KEY: Parameter(help, flag=flag, **accepts)})


def same_parameter(cls: type[_Dataclass], name: str) -> Any:
    """A field that is another dataclass's field: the same default, the same `Parameter`."""
    original = cls.__dataclass_fields__[name]
    assert original.default is not MISSING
    return field(default=original.default, metadata=original.metadata)


def parameters_of(cls: type[_Dataclass] | _Dataclass) -> dict[str, Parameter]:
    """The declared parameters of a dataclass, by field name."""
    return {f.name: f.metadata[_KEY] for f in fields(cls) if _KEY in f.metadata}


def check_parameters(record: _Dataclass) -> None:
    """Check every declared field of a (frozen) dataclass; NumPy scalars become Python's."""
    for name, accepted in parameters_of(record).items():
        value = getattr(record, name)
        checked = accepted.checked(name, value)
        if checked is not value:
            object.__setattr__(record, name, checked)
