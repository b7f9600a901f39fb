"""BaseBank: the statistics of the base classes, in one object that can grow, merge, be saved and memory-mapped.

A bank holds class means, the pooled within-class scatter and, unless they are dropped, the rows of each class, from
which class covariances follow. It is built at once (`fit`), in chunks (`partial_fit`) or on many machines (`merge`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.arrays import as_features, common_shift, encode_labels
from fewcal._utils.memo import Memo, tensor_bytes
from fewcal._utils.tables import html_table
from fewcal.bank.io import fingerprint, read_bank, write_bank
from fewcal.bank.moments import Moments
from fewcal.bank.rows import RowStore
from fewcal.bank.spaces import SpaceKey, check_same_space, same_map
from fewcal.bank.statistics import Statistics
from fewcal.errors import InputError
from fewcal.gaussianize import DEFAULT_EPS, Gaussianization, fit_gaussianization
from fewcal.power_choice import GAUSSIAN_KURTOSIS, SAMPLED_CLASSES, SAMPLED_ROWS, PowerChoice, choose_power

DTYPES = ("float32", "float16")

# Classes in the table of a notebook.
MAX_SHOWN = 8


class BaseBank(Statistics):
    """Statistics of the base classes.

    Parameters
    ----------
    keep_rows : bool, default=True
        Keep every row: all covariances, any transform later. Without rows a bank has class means and the pooled
        scatter, which are enough for the pooled covariance.
    dtype : {"float32", "float16"} or None, default=None
        How rows are stored; `None` keeps float16 rows as they are and everything else as float32. Arithmetic is in
        float32 throughout.
    transform : Gaussianization or None, default=None
        Applied to every row on its way in. Without it a bank is raw, and `transformed` can derive any transformed bank
        from its rows. It is needed where rows are not kept.
    power : PowerChoice or None, default=None
        How β of the transform was chosen.

    Attributes
    ----------
    classes : list of hashable, length C
        Labels of the classes, in order of first appearance.
    moments : Moments
        Counts, means and scatter.
    shift : Tensor (D,) float64 or None
        Common offset of the rows of a raw bank, without which single precision would not hold them; it is subtracted.
    source : str or None
        Where the rows came from, for files and reports.
    memo : Memo
        What was derived from the bank so far; it is empty again when the bank grows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> bank = BaseBank().fit(rng.random((40, 8)), np.repeat(["ant", "bee"], 20))
    >>> bank
    BaseBank(2 classes, 40 rows, 8 features, rows kept as float32, raw)
    >>> bank.means.shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        keep_rows: bool = True,
        dtype: str | None = None,
        transform: Gaussianization | None = None,
        power: PowerChoice | None = None,
    ) -> None:
        if not isinstance(keep_rows, bool):
            raise InputError(f"keep_rows must be a bool, got {keep_rows!r}")
        if dtype is not None and dtype not in DTYPES:
            raise InputError(f"dtype={dtype!r} must be 'float32', 'float16' or None")
        self.keep_rows, self.dtype, self.transform, self.power = keep_rows, dtype, transform, power
        self.source: str | None = None
        self._clear()

    def _clear(self) -> None:
        self.classes: list[Hashable] = []
        self.moments = Moments.empty()
        self.row_store: RowStore | None = None
        self.shift: Tensor | None = None
        self.memo = Memo()

    def _replaced(self, **attributes: object) -> BaseBank:
        """Another bank with some attributes replaced."""
        out = BaseBank.__new__(BaseBank)
        vars(out).update(vars(self) | {"memo": Memo()} | attributes)
        return out

    # ---- building -------------------------------------------------------------------------------------------------

    def fit(self, X: object, y: object, *, device: str | torch.device | None = None) -> BaseBank:
        """Build the bank from rows `X (R, D)` and their labels `y (R,)`, forgetting what was there."""
        self._clear()
        self.partial_fit(X, y, device=device)
        return self.check()

    def partial_fit(self, X: object, y: object, *, device: str | torch.device | None = None) -> BaseBank:
        """Add a chunk of rows. Chunks may cut through classes and may bring new ones."""
        if not self.classes and self.transform is None:
            self.shift = common_shift(X, "base X")
        shift = self.shift if self.transform is None else self.transform.shift
        half = self.dtype == "float16" or (
            self.dtype is None and str(getattr(X, "dtype", "")) in ("float16", "torch.float16")
        )
        stored = torch.float16 if half and self.keep_rows else torch.float32
        x = as_features(X, "base X", dim=self.dim or None, device=device, dtype=stored, shift=shift)
        classes, codes = encode_labels(y, len(x), "base y")
        if not classes:
            raise InputError("base X has no rows; a bank needs at least one base class")
        if self.transform is not None:
            x = self.transform.apply(x.float(), "base X").to(x.dtype)
        if self.keep_rows and _same_memory(x, X):
            x = x.clone()  # the caller may reuse the array for the next chunk
        part = self._replaced(classes=[]).from_codes(x, classes, torch.from_numpy(codes).to(x.device))
        vars(self).update(vars(self._joined(part) if self.classes else part))
        return self

    def from_codes(self, x: Tensor, classes: list[Hashable], codes: Tensor) -> BaseBank:
        """A bank with the settings of this one from rows `x (R, D)` of classes number `codes (R,)`."""
        order = torch.argsort(codes, stable=True)
        if not bool((order[1:] > order[:-1]).all()):
            x, codes = x[order], codes[order]
        moments = Moments.from_rows(x, codes, len(classes))
        rows = RowStore.from_joined(x, moments.counts.tolist()) if self.keep_rows else None
        return self._replaced(classes=classes, moments=moments, row_store=rows)

    def merge(self, other: BaseBank) -> BaseBank:
        """A new bank of both: classes with the same label are joined. Neither bank is changed."""
        if self.keep_rows != other.keep_rows or self.dim != other.dim:
            raise InputError(
                f"banks differ: keep_rows {self.keep_rows} and {other.keep_rows}, {self.dim} and {other.dim} features; "
                "build both with the same settings"
            )
        if not same_map(self.transform, other.transform):
            raise InputError("banks were built with different transforms; fit one transform and give it to both")
        if self.shift is not None or other.shift is not None:
            none = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
            gap = (none if other.shift is None else other.shift) - (none if self.shift is None else self.shift)
            other = other._replaced(
                moments=Moments(**other.moments.tensors() | {"means": (other.means + gap).float()}),
                row_store=other.row_store and other.row_store.mapped(lambda t: (t + gap).to(t.dtype)),
            )
        merged = self._joined(other)
        merged.source = None
        return merged

    def _joined(self, other: BaseBank) -> BaseBank:
        position = {c: i for i, c in enumerate(self.classes)}
        for c in other.classes:
            position.setdefault(c, len(position))
        places = [position[c] for c in other.classes]
        at, size = torch.tensor(places, device=self.device), len(position)
        rows = self.row_store
        if rows is not None and other.row_store is not None:
            rows = rows.extended(other.row_store, places, size)
        moments = self.moments.joined(other.moments, at, size)
        return self._replaced(classes=list(position), moments=moments, row_store=rows)

    def check(self) -> BaseBank:
        """Raise unless every class has at least two rows, without which it has no covariance."""
        if not self.classes:
            raise InputError("the bank is empty; fit it on base rows first")
        thin = (self.counts < 2).nonzero().flatten().tolist()
        if thin:
            names = ", ".join(repr(self.classes[i]) for i in thin[:5]) + (", …" if len(thin) > 5 else "")
            raise InputError(
                f"{len(thin)} base class(es) with a single row: {names}; a base class needs at least two rows "
                "(drop these classes or add rows)"
            )
        return self

    # ---- facts ----------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.means.device

    def __len__(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        if not self.classes:
            return "BaseBank(empty)"
        dtype = "" if self.row_store is None else str(self.row_store.dtype).removeprefix("torch.")
        kept = f"rows kept as {dtype}" if dtype else "moments only"
        space = "raw" if self.transform is None else "transformed"
        return f"BaseBank({len(self)} classes, {self.n_rows} rows, {self.dim} features, {kept}, {space})"

    def _repr_html_(self) -> str:
        """The same for notebooks, with the first classes."""
        pairs = zip(self.classes[:MAX_SHOWN], self.counts.tolist(), strict=False)
        rows = [[str(name), str(count)] for name, count in pairs]
        if (more := len(self) - MAX_SHOWN) > 0:
            rows.append([f"… and {more} more", str(int(self.counts[MAX_SHOWN:].sum()))])
        return f"<p>{escape(repr(self))}</p>" + html_table(["base class", "rows"], rows)

    @property
    def fingerprint(self) -> str:
        """A hash of classes, counts, moments and transform: the same data give the same bank."""
        return self.memo.get("fingerprint", lambda: fingerprint(self))

    def rows(self, i: int) -> Tensor:
        """Rows of class `i`, `(P_i, D)`, as stored."""
        return self.require_rows().of_class(i)

    def order(self) -> tuple[list[int], list[Tensor]]:
        """Numbers of the classes and of the rows of each, in an order by their values alone (`RowStore.order`)."""
        return self.memo.get("order", lambda: self.require_rows().order(self.means))

    def to(self, device: str | torch.device) -> BaseBank:
        """The same bank with its tensors on `device`."""
        return self if torch.device(device) == self.device else self.mapped(lambda t: t.to(device))

    def on(self, device: str | torch.device) -> BaseBank:
        """As `to`, but a copy that had to be made is remembered here, so that it is made once."""
        if torch.device(device) == self.device:
            return self
        return self.memo.get(("device", str(device)), lambda: self.to(device))

    def mapped(self, f: Callable[[Tensor], Tensor]) -> BaseBank:
        """The same bank with `f`, such as a move to a device, applied to every tensor."""
        moments = self.moments.mapped(f)
        return self._replaced(
            moments=moments,
            row_store=self.row_store and self.row_store.mapped(f),
            shift=None if self.shift is None else f(self.shift),
            transform=self.transform and self.transform.to(moments.means.device),
        )

    def __sklearn_clone__(self) -> BaseBank:
        return self  # clones of an estimator share its bank, and with it every space derived so far

    # ---- other spaces ---------------------------------------------------------------------------------------------

    def transformed(
        self,
        *,
        beta: float = 1.0,
        kind: str = "auto",
        center: bool = False,
        l2: bool = False,
        eps: float = DEFAULT_EPS,
        spread: float = float("inf"),
        moments: bool = False,
    ) -> BaseBank:
        """The bank as seen through a transform; derived once and remembered.

        A raw bank with rows can go anywhere, one built with a transform only there. With `moments` the result keeps
        means and the pooled covariance alone, unless its rows are fewer than its features.

        >>> import numpy as np
        >>> raw = BaseBank().fit(np.random.default_rng(0).random((20, 3)), [0, 1] * 10)
        >>> raw.transformed(beta=0.5, l2=True).transform.settings()["kind"]
        'tukey'
        """
        key = SpaceKey(float(beta), kind, bool(center), bool(l2), float(eps), float(spread))
        if moments and key not in self.memo:
            key = replace(key, moments=self.n_rows >= self.dim)
        return self.memo.get(key, lambda: self._seen(key))

    def _seen(self, key: SpaceKey) -> BaseBank:
        if self.transform is not None:
            check_same_space(self.transform, key)
            return self
        if self.row_store is None:
            if key.beta == 1.0 and not key.center and not key.l2 and key.spread == float("inf"):
                kind: Any = "none" if key.kind == "auto" else key.kind
                return self._replaced(transform=Gaussianization(kind, shift=self.shift), shift=None)
            raise InputError(
                "this bank kept no rows, so no transform can be applied to it afterwards; "
                "give the transform to BaseBank(transform=...) or keep rows (keep_rows=True)"
            )
        x = self.all_rows().float()
        transform = fit_gaussianization(x, key.beta, key.kind, key.center, key.l2, key.eps, key.spread)
        codes = torch.repeat_interleave(torch.arange(len(self), device=x.device), self.counts)
        transform = transform.with_shift(self.shift)
        settings = BaseBank(not key.moments, "float32", transform)
        settings.source = self.source
        out = settings.from_codes(transform.apply(x, "base X"), list(self.classes), codes)
        if not bool(torch.isfinite(out.means).all()):
            raise InputError(f"beta={key.beta:g} makes the base features overflow float32; use a smaller power")
        return out

    def power_choice(
        self, kind: str = "auto", eps: float = DEFAULT_EPS, limit: float = GAUSSIAN_KURTOSIS
    ) -> PowerChoice:
        """β that makes the base classes Gaussian, and the kurtosis that it was chosen by (`fewcal.power_choice`).

        A bank that was built with a transform has the β of that; one without rows can only have 1.
        """
        if self.transform is not None:
            return self.power or PowerChoice(self.transform.beta)
        if self.row_store is None:
            return PowerChoice(1.0)
        return self.memo.get(("power", kind, eps, limit), lambda: choose_power(*self._sample(), kind, eps, limit))

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Rows of some classes at even steps of their order, `(R, D)`, and the numbers of these classes, `(R,)`."""
        classes, rows = self.order()
        chosen = [classes[i] for i in even_steps(len(classes), SAMPLED_CLASSES)]
        some = [self.rows(c)[rows[c][even_steps(len(rows[c]), SAMPLED_ROWS)]].float() for c in chosen]
        sizes = torch.tensor([len(r) for r in some], device=self.device)
        return torch.cat(some), torch.repeat_interleave(torch.arange(len(some), device=self.device), sizes)

    def forget_spaces(self, keep_bytes: int = 0) -> None:
        """Drop spaces derived by `transformed`, those not used for longest first, until the rest fits in `keep_bytes`.

        A search visits hundreds of spaces, and each may hold a copy of all rows.
        """
        for key, value in reversed(self.memo.items()):  # the one used last first
            if isinstance(key, SpaceKey) and isinstance(value, BaseBank):
                keep_bytes -= value.nbytes
                if keep_bytes < 0:
                    self.memo.forget(key)

    @property
    def nbytes(self) -> int:
        """Memory of the bank and of what it remembers, other banks apart."""
        transform = [] if self.transform is None else list(self.transform.tensors().values())
        rows = [] if self.row_store is None else self.row_store.tensors()
        return tensor_bytes([*self.moments.tensors().values(), rows, transform, self.memo])

    # ---- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bank as safetensors. The file appears under its name only when it is complete."""
        return write_bank(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | torch.device | None = None) -> BaseBank:
        """Read a bank; on the CPU its tensors stay memory-mapped until they are used."""
        attributes, mark = read_bank(Path(path))
        out = cls()._replaced(**attributes)
        out.memo.get("fingerprint", lambda: mark)
        if (power := out.power) is not None:
            out.memo.get(("power", "auto", DEFAULT_EPS, GAUSSIAN_KURTOSIS), lambda: power)
        return out if device is None else out.to(device)


def even_steps(size: int, count: int) -> list[int]:
    """All numbers below `size`, or `count` of them at even steps.

    >>> even_steps(10, 4), even_steps(3, 4)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, size - 1, min(size, count)).astype(int).tolist()


def _same_memory(x: Tensor, given: object) -> bool:
    """Whether the tensor made from what the caller gave is a view of it."""
    if isinstance(given, torch.Tensor):
        return x.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return x.device.type == "cpu" and hasattr(given, "__array__") and np.may_share_memory(x.numpy(), np.asarray(given))
