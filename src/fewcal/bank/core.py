"""BaseBank: what is known of the base classes, in one object that can be grown, merged, saved and memory-mapped.

A bank holds class means, the pooled within-class scatter and, as chosen, the rows of each class, a low-rank factor of
each class covariance, or neither. It is built at once (`fit`), in chunks (`partial_fit`) or on many machines (`merge`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import replace
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from fewcal._utils.arrays import as_features, encode_labels
from fewcal._utils.memo import Memo, tensor_bytes
from fewcal._utils.tables import html_table
from fewcal.bank.build import BankParts, check_complete, check_joinable, from_rows, join, same_memory, storage_dtype
from fewcal.bank.io import fingerprint, read_bank, write_bank
from fewcal.bank.moments import Moments
from fewcal.bank.spaces import SpaceKey, least_used, transformed
from fewcal.errors import InputError
from fewcal.gaussianize import DEFAULT_EPS, Gaussianization
from fewcal.power_choice import GAUSSIAN_KURTOSIS, PowerChoice, choose_power

# Classes in the table of a notebook.
MAX_SHOWN = 8


class BaseBank:
    """Statistics of the base classes.

    Parameters
    ----------
    rank : int or None
        `None` keeps every row (all covariances, any transform later), `r > 0` the `r` strongest directions of each
        class covariance, `0` only means and the pooled scatter, which is all that HGDC needs.
    dtype : {"float32", "float16"} or None
        How rows and factors are stored; `None` keeps float16 rows as they are and everything else as float32.
        Arithmetic is in float32 throughout.
    transform : Gaussianization or None
        Applied to every row on its way in. Without it a bank is raw, and `transformed` can derive any transformed bank
        from its rows. It is needed where rows are not kept.
    power : PowerChoice or None
        How β of the transform was chosen, to be remembered with it.

    Attributes
    ----------
    classes : list of hashable, length C
    counts : Tensor (C,) int64
    means : Tensor (C, D)
    scatter : Tensor (D, D), the pooled within-class scatter Σ_c Σ_j (x_cj − μ_c)(x_cj − μ_c)ᵀ
    within_scatter : Tensor (C,) float64, the within-class sum of squares of each class
    parts : BankParts, all of this and what is kept of each class
    source : str or None, where the rows came from
    memo : Memo, what was derived from the bank so far; it is empty again when the bank grows

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
        rank: int | None = None,
        dtype: str | None = None,
        transform: Gaussianization | None = None,
        power: PowerChoice | None = None,
    ) -> None:
        self._set(BankParts(rank, dtype, transform, power=power))

    @classmethod
    def from_parts(cls, parts: BankParts) -> BaseBank:
        """A bank of parts that were built, read or derived elsewhere."""
        out = cls.__new__(cls)
        out._set(parts)
        return out

    def _set(self, parts: BankParts) -> None:
        self.parts = parts
        self.memo = Memo()  # a new one: copies keep what they share

    # ---- building -------------------------------------------------------------------------------------------------

    def fit(self, X: object, y: object, *, device: str | torch.device | None = None) -> BaseBank:
        """Build the bank from rows `X (R, D)` and their labels `y (R,)`, forgetting what was there."""
        self._set(self.parts.emptied())
        self.partial_fit(X, y, device=device)
        return self.check()

    def partial_fit(self, X: object, y: object, *, device: str | torch.device | None = None) -> BaseBank:
        """Add a chunk of rows. Chunks may cut through classes and may bring new ones."""
        own = self.parts
        stored = storage_dtype(X, own.dtype) if own.rank is None else torch.float32
        x = as_features(X, "base X", dim=self.dim or None, device=device, dtype=stored)
        classes, codes = encode_labels(y, len(x), "base y")
        if not classes:
            raise InputError("base X has no rows; a bank needs at least one base class")
        if own.transform is not None:
            x = own.transform(x.float(), "base X").to(x.dtype)
        if own.rank is None and same_memory(x, X):
            x = x.clone()  # the caller may reuse the array for the next chunk
        chunk = from_rows(x, classes, torch.from_numpy(codes).to(x.device), own.emptied())
        self._set(join(own, chunk) if own.classes else chunk)
        return self

    def merge(self, other: BaseBank) -> BaseBank:
        """A new bank of both: classes with the same label are joined. Neither bank is changed."""
        check_joinable(self.parts, other.parts)
        settings = replace(self.parts.emptied(), source=None)
        return BaseBank.from_parts(join(join(settings, self.parts), other.parts))

    def check(self) -> BaseBank:
        """Raise unless every class has at least two rows, without which it has no covariance."""
        check_complete(self.parts)
        return self

    # ---- facts ----------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int | None:
        """Directions kept of each class covariance; `None` where rows are kept."""
        return self.parts.rank

    @property
    def dtype(self) -> str | None:
        """How rows and factors were asked to be stored."""
        return self.parts.dtype

    @property
    def transform(self) -> Gaussianization | None:
        """The map from raw features into the bank's space; `None` where that is the raw one."""
        return self.parts.transform

    @property
    def classes(self) -> list[Hashable]:
        """Labels of the classes, in order of first appearance."""
        return self.parts.classes

    @property
    def moments(self) -> Moments:
        """Counts, means and scatter together."""
        return self.parts.moments

    @property
    def counts(self) -> Tensor:
        """Rows of each class, `(C,)` int64."""
        return self.parts.moments.counts

    @property
    def means(self) -> Tensor:
        """Class means, `(C, D)`."""
        return self.parts.moments.means

    @property
    def scatter(self) -> Tensor:
        """The pooled within-class scatter, `(D, D)`."""
        return self.parts.moments.scatter

    @property
    def within_scatter(self) -> Tensor:
        """The within-class sum of squares of each class, `(C,)` float64."""
        return self.parts.moments.within_scatter

    @property
    def source(self) -> str | None:
        """Where the rows came from, for files and reports."""
        return self.parts.source

    @source.setter
    def source(self, source: str | None) -> None:
        self.parts = replace(self.parts, source=source)

    @property
    def dim(self) -> int:
        """D, the number of features (0 before the first row)."""
        return int(self.means.shape[1])

    @property
    def n_rows(self) -> int:
        """Base rows seen in all."""
        return int(self.counts.sum())

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.means.device

    @property
    def has_rows(self) -> bool:
        """Whether the rows themselves were kept."""
        return self.parts.rows is not None

    def __len__(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        if not self.classes:
            return "BaseBank(empty)"
        kept = "moments only" if self.rank == 0 else f"rank {self.rank}"
        if self.parts.rows is not None:
            kept = f"rows kept as {str(self.parts.rows.dtype).removeprefix('torch.')}"
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
    def explained(self) -> Tensor:
        """Share of each class's variance that its low-rank factor keeps, `(C,)`; ones where rows are kept."""
        if self.parts.factors is None:
            return torch.full((len(self),), 1.0 if self.rank is None else 0.0)
        kept = torch.cat([f.float().square().sum(dim=(1, 2)) for f in self.parts.factors.tensor.split(1024)])
        return (kept.double() / self.within_scatter.clamp(min=1e-30)).clamp(max=1.0).float()

    @property
    def fingerprint(self) -> str:
        """A hash of classes, counts, moments and transform: the same data give the same bank."""
        return self.memo.get("fingerprint", lambda: fingerprint(self.parts))

    def rows(self, i: int) -> Tensor:
        """Rows of class `i`, `(P_i, D)`, as stored."""
        return self.parts.require_rows().of_class(i)

    def all_rows(self) -> Tensor:
        """Rows of all classes, class after class, `(R, D)`, as stored."""
        return self.parts.require_rows().joined()

    # ---- the same bank elsewhere ------------------------------------------------------------------------------------

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
        parts = self.parts.mapped(f)
        if parts.transform is not None:
            parts = replace(parts, transform=parts.transform.to(parts.moments.means.device))
        return BaseBank.from_parts(parts)

    def __copy__(self) -> BaseBank:
        """Another bank on the same tensors, with all that was derived from them so far."""
        out = BaseBank.from_parts(self.parts.shared())
        out.memo = self.memo
        return out

    def __sklearn_clone__(self) -> BaseBank:
        return self  # clones of an estimator share its bank, and with it every space derived so far

    # ---- means and covariances --------------------------------------------------------------------------------------

    def centred_means(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of the class means `(D,)`, the class means less it `(C, D)`, and their squared lengths `(C,)`."""

        def make() -> tuple[Tensor, Tensor, Tensor]:
            origin = self.means.mean(dim=0)
            centred = self.means - origin
            return origin, centred, torch.linalg.vecdot(centred, centred)

        return self.memo.get("centred", make)

    def paired_rows(self, common_size: int = 0, classes: Tensor | None = None) -> Tensor:
        """Rows for the `joint` covariance: `(C, P, D)`, centred, divided by √(P−1), classes cut to a common P.

        Row j of one class is paired with row j of every other, so that a weighted sum of base *random variables*
        (eq. 4) has the sample covariance FᵀF with F = Σ cᵢRᵢ. `common_size=0` takes the smallest class. With `classes`
        only these are made, and nothing is remembered.
        """
        smallest = self.memo.get("smallest", lambda: int(self.counts.min()))
        size = smallest if common_size == 0 else int(common_size)
        if not 2 <= size <= smallest:
            raise InputError(
                f"common_size={common_size}: the smallest base class has {smallest} rows; choose 2 to {smallest}, "
                "or 0 for the smallest class"
            )
        rows = self.parts.rows
        if rows is None:
            raise InputError(
                "the joint covariance pairs rows, and this bank kept none; use cov='independent' or rank=None"
            )
        if classes is not None:
            return rows.paired(classes.tolist(), size)
        return self.memo.get(("paired", size), lambda: rows.paired(range(len(self)), size))

    def class_factors(self, classes: Tensor | None = None) -> Tensor:
        """Rᵢ with RᵢᵀRᵢ = Σᵢ for each class, `(C, P, D)`: centred rows or low-rank directions, zero-padded to one P.

        With `classes` only these are made, and nothing is remembered: a large bank is never unpacked as a whole.
        """

        def make(chosen: Tensor | slice = slice(None)) -> Tensor:
            scale = (self.counts[chosen] - 1).float().sqrt()[:, None, None]
            if self.parts.factors is not None:
                return self.parts.factors.tensor[chosen].float() / scale
            if self.parts.rows is not None:
                numbers = range(len(self)) if isinstance(chosen, slice) else chosen.tolist()
                return self.parts.rows.centred(numbers, self.means).div_(scale)
            raise InputError(
                "this bank keeps no class covariances (rank=0); use cov='pooled' or build it with rank=None"
            )

        return make(classes) if classes is not None else self.memo.get("factors", make)

    def class_covariances(self) -> Tensor:
        """Σᵢ for each class, dense `(C, D, D)`; for reference, many neighbours, and small D."""

        def make() -> Tensor:
            factors = self.class_factors()
            return factors.transpose(1, 2) @ factors

        return self.memo.get("covariances", make)

    def pooled_covariance(self) -> Tensor:
        """S_w, the within-class covariance of all base classes together, `(D, D)`."""
        return self.scatter / self.moments.degrees_of_freedom

    def pooled_eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues `(D,)` (≥ 0) and eigenvectors `(D, D)`, in columns, of S_w; computed once."""

        def make() -> tuple[Tensor, Tensor]:
            values, vectors = torch.linalg.eigh(self.pooled_covariance().double())
            return values.clamp(min=0).float(), vectors.float()

        return self.memo.get("eigen", make)

    def pooled_factor(self) -> Tensor:
        """R with RᵀR = S_w, `(D, D)`."""
        values, vectors = self.pooled_eigen()
        return values.sqrt()[:, None] * vectors.T

    # ---- other spaces ---------------------------------------------------------------------------------------------

    def transformed(
        self,
        *,
        beta: float = 1.0,
        kind: str = "auto",
        center: bool = False,
        l2: bool = False,
        eps: float = 1e-6,
        spread: float = float("inf"),
        moments: bool = False,
    ) -> BaseBank:
        """The bank as seen through a transform; derived once and remembered.

        A raw bank with rows can go anywhere, one built with a transform only there. With `moments` the result keeps
        means and the pooled covariance alone.

        >>> import numpy as np
        >>> raw = BaseBank().fit(np.random.default_rng(0).random((20, 3)), [0, 1] * 10)
        >>> raw.transformed(beta=0.5, l2=True).transform.settings()["kind"]
        'tukey'
        """
        key = SpaceKey(float(beta), kind, bool(center), bool(l2), float(eps), float(spread))
        if moments and key not in self.memo:
            key = replace(key, moments=True)

        def make() -> BaseBank:
            parts = transformed(self.parts, key)
            return self if parts is self.parts else BaseBank.from_parts(parts)

        return self.memo.get(key, make)

    def power_choice(
        self, kind: str = "auto", eps: float = DEFAULT_EPS, limit: float = GAUSSIAN_KURTOSIS
    ) -> PowerChoice:
        """β that makes the base classes Gaussian, and the kurtosis that it was chosen by (`fewcal.power_choice`).

        A bank that was built with a transform has the β of that; one without rows can only have 1.
        """
        if self.transform is not None:
            return self.parts.power or PowerChoice(self.transform.beta)
        rows = self.parts.rows
        if rows is None:
            return PowerChoice(1.0)
        return self.memo.get(("power", kind, eps, limit), lambda: choose_power(*rows.sample(), kind, eps, limit))

    def forget_spaces(self, keep_bytes: int = 0) -> None:
        """Drop spaces derived by `transformed`, those not used for longest first, until the rest fits in `keep_bytes`.

        A search visits hundreds of spaces, and each may hold a copy of all rows.
        """
        sizes = [(k, v.nbytes) for k, v in self.memo.items() if isinstance(k, SpaceKey) and isinstance(v, BaseBank)]
        for key in least_used(sizes, keep_bytes):
            self.memo.forget(key)

    @property
    def nbytes(self) -> int:
        """Memory of the bank and of what it remembers, other banks apart."""
        return tensor_bytes([*self.parts.tensors(), self.memo])

    # ---- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bank as safetensors. The file appears under its name only when it is complete."""
        return write_bank(replace(self.parts, power=self.power_choice()), self.fingerprint, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | torch.device | None = None) -> BaseBank:
        """Read a bank; on the CPU its tensors stay memory-mapped until they are used."""
        parts, known = read_bank(Path(path))
        out = cls.from_parts(parts)
        out.memo.get("fingerprint", lambda: known)
        if (power := parts.power) is not None:
            out.memo.get(("power", "auto", DEFAULT_EPS, GAUSSIAN_KURTOSIS), lambda: power)
        return out if device is None else out.to(device)
