"""The parts of a bank, made from rows and joined with those of another bank."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from fewcal.bank.moments import Moments
from fewcal.bank.storage import FactorStore, RowStore
from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization
from fewcal.power_choice import PowerChoice

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Storage:
    """What is kept of a class beside its moments, and as which numbers; anything else is refused."""

    rank: int | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        rank, dtype = self.rank, self.dtype
        if rank is not None and (not isinstance(rank, Integral) or isinstance(rank, bool) or rank < 0):
            raise InputError(f"rank={rank!r} must be None (keep rows), 0 (moments only) or a positive integer")
        if dtype is not None and dtype not in DTYPES:
            raise InputError(f"dtype={dtype!r} must be 'float32', 'float16' or None")


@dataclass(frozen=True, eq=False)
class BankParts:
    """All that a bank consists of; `BaseBank` adds what can be derived from it.

    Attributes
    ----------
    rank, dtype, transform
        As given to `BaseBank`.
    classes : list of hashable, length C
    moments : Moments
    rows : RowStore or None
        Where rank is None.
    factors : FactorStore or None
        Where rank > 0.
    source : str or None
        Where the rows came from.
    power : PowerChoice or None
        How β of the transform was chosen, where it was.
    """

    rank: int | None = None
    dtype: str | None = None
    transform: Gaussianization | None = None
    classes: list[Hashable] = field(default_factory=list)
    moments: Moments = field(default_factory=Moments.empty)
    rows: RowStore | None = None
    factors: FactorStore | None = None
    source: str | None = None
    power: PowerChoice | None = None

    def __post_init__(self) -> None:
        Storage(self.rank, self.dtype)

    def emptied(self) -> BankParts:
        """The settings alone."""
        return BankParts(self.rank, self.dtype, self.transform, source=self.source, power=self.power)

    def shared(self) -> BankParts:
        """The same parts for a second bank; whichever of the two changes first makes a copy."""
        return self if self.factors is None else replace(self, factors=self.factors.lend())

    def mapped(self, f: Callable[[Tensor], Tensor]) -> BankParts:
        """The same with `f`, such as a move to a device, applied to every tensor but those of the transform."""
        return replace(
            self,
            classes=list(self.classes),
            moments=self.moments.mapped(f),
            rows=self.rows and self.rows.mapped(f),
            factors=self.factors and self.factors.mapped(f),
        )

    def require_rows(self) -> RowStore:
        """The rows, or a reason why there are none."""
        if self.rows is None:
            raise InputError(f"this bank kept no rows (rank={self.rank}); build it with rank=None")
        return self.rows

    def tensors(self) -> list[object]:
        """Every tensor in them, some in lists, for size accounting."""
        transform = None if self.transform is None else list(self.transform.tensors().values())
        rows = None if self.rows is None else self.rows.tensors()
        factors = None if self.factors is None else self.factors.room
        return [*self.moments.tensors().values(), rows, factors, transform]


def from_rows(x: Tensor, classes: list[Hashable], codes: Tensor, settings: BankParts) -> BankParts:
    """The parts of a bank with the given settings from rows `x (R, D)` of classes number `codes (R,)`."""
    order = torch.argsort(codes, stable=True)
    if not bool((order[1:] > order[:-1]).all()):
        x, codes = x[order], codes[order]
    moments = Moments.from_rows(x, codes, len(classes))
    rows = factors = None
    if settings.rank is None:
        rows = RowStore.from_joined(x, moments.counts.tolist())
    elif settings.rank:
        stored = storage_dtype(None, settings.dtype)
        factors = FactorStore.from_rows(x, codes, moments, settings.rank, stored)
    return replace(settings, classes=classes, moments=moments, rows=rows, factors=factors)


def join(own: BankParts, other: BankParts) -> BankParts:
    """Both together, with the settings of the first, whose memory is taken over where it is not shared."""
    if not own.classes:
        theirs = other.shared()
        return replace(
            own, classes=list(theirs.classes), moments=theirs.moments, rows=theirs.rows, factors=theirs.factors
        )
    position = {c: i for i, c in enumerate(own.classes)}
    classes = list(own.classes)
    for c in other.classes:
        if c not in position:
            position[c] = len(classes)
            classes.append(c)
    places = [position[c] for c in other.classes]
    at = torch.tensor(places, device=own.moments.means.device)
    rows, factors, size = None, None, len(classes)
    if own.factors is not None and other.factors is not None:
        factors = own.factors.absorb(other.factors, at, size, own.moments, other.moments)
    elif own.rows is not None and other.rows is not None:
        rows = own.rows.extended(other.rows, places, size)
    moments = own.moments.joined(other.moments, at, size)
    return replace(own, classes=classes, moments=moments, rows=rows, factors=factors)


def check_complete(parts: BankParts) -> None:
    """Raise unless there are classes and each has at least two rows, without which it has no covariance."""
    if not parts.classes:
        raise InputError("the bank is empty; fit it on base rows first")
    thin = (parts.moments.counts < 2).nonzero().flatten().tolist()
    if thin:
        names = ", ".join(repr(parts.classes[i]) for i in thin[:5]) + (", …" if len(thin) > 5 else "")
        raise InputError(
            f"{len(thin)} base class(es) with a single row: {names}; a base class needs at least two rows "
            "(drop these classes or add rows)"
        )


def check_joinable(a: BankParts, b: BankParts) -> None:
    """Raise where two banks cannot become one."""
    dims = [int(p.moments.means.shape[1]) for p in (a, b)]
    if a.rank != b.rank or dims[0] != dims[1]:
        raise InputError(
            f"banks differ: rank {a.rank} and {b.rank}, {dims[0]} and {dims[1]} features; "
            "build both with the same settings"
        )
    if not _same_transform(a.transform, b.transform):
        raise InputError("banks were built with different transforms; fit one transform and give it to both")


def _same_transform(a: Gaussianization | None, b: Gaussianization | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.settings() != b.settings():
        return False
    ours, theirs = a.tensors(), b.tensors()
    return ours.keys() == theirs.keys() and all(torch.equal(t.cpu(), theirs[name].cpu()) for name, t in ours.items())


def storage_dtype(x: object, dtype: str | None) -> torch.dtype:
    """How rows given as `x` are stored where `dtype` was asked for; `None` keeps float16 as it is."""
    half = dtype == "float16" if dtype else str(getattr(x, "dtype", "")) in ("float16", "torch.float16")
    return torch.float16 if half else torch.float32


def same_memory(x: Tensor, given: object) -> bool:
    """Whether the tensor made from what the caller gave is a view of it."""
    if isinstance(given, torch.Tensor):
        return x.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return x.device.type == "cpu" and hasattr(given, "__array__") and np.may_share_memory(x.numpy(), np.asarray(given))
