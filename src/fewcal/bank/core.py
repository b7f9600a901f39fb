"""BaseBank: what is known of the base classes, in one object that can be grown, merged, saved and memory-mapped.

A bank holds class means, the pooled within-class scatter and, as chosen, the rows of each class, a low-rank factor of
each class covariance, or neither. It is built in one go (`fit`), in chunks (`partial_fit`) or on many machines
(`merge`), and gives the three covariances of `fewcal.calibrate`: `joint`, `independent` and `pooled`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.arrays import as_features, encode_labels
from fewcal._utils.atomic import atomic_path
from fewcal._utils.memo import Memo, tensor_bytes
from fewcal._utils.safetensors_io import read_tensors
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError
from fewcal.gaussianize import Gaussianization, fit_gaussianization, l2_normalise

FORMAT = "fewcal-bank"
FORMAT_VERSION = 1
_DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Classes decomposed together hold about this many numbers: 64 MB.
_BATCH_NUMBERS = 1 << 24
_SMALL = 256
# Whitened versions of one space that are kept for later.
_WHITENED_KEPT = 8


@dataclass(frozen=True)
class SpaceKey:
    """What a bank remembers a space by: the settings of `BaseBank.transformed`."""

    beta: float
    kind: str
    center: bool
    l2: bool
    eps: float
    moments: bool = False
    whiten: float | None = None

    @property
    def unwhitened(self) -> SpaceKey:
        """The same for all spaces that share a transform before whitening."""
        return replace(self, moments=False, whiten=None)


class BaseBank:
    """Statistics of the base classes.

    Parameters
    ----------
    rank : int or None
        `None` keeps every row (all covariances, any transform later). `r > 0` keeps the `r` strongest directions of
        each class covariance instead. `0` keeps only means and the pooled scatter, which is all that the `default`
        preset needs.
    dtype : {"float32", "float16"} or None
        How rows and factors are stored; `None` keeps float16 rows as they are and everything else as float32.
        Arithmetic is in float32 throughout.
    transform : Gaussianization or None
        Applied to every row on its way in. Without it a bank is raw, and `transformed` can derive any transformed bank
        from its rows. It is needed where rows are not kept.

    Attributes
    ----------
    classes : list of hashable, length C
    counts : Tensor (C,) int64
    means : Tensor (C, D)
    scatter : Tensor (D, D), the pooled within-class scatter Σ_c Σ_j (x_cj − μ_c)(x_cj − μ_c)ᵀ
    within_scatter : Tensor (C,) float64, the within-class sum of squares of each class

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
        self, rank: int | None = None, dtype: str | None = None, transform: Gaussianization | None = None
    ) -> None:
        if rank is not None and (not isinstance(rank, Integral) or isinstance(rank, bool) or rank < 0):
            raise InputError(f"rank={rank!r} must be None (keep rows), 0 (moments only) or a positive integer")
        if dtype is not None and dtype not in _DTYPES:
            raise InputError(f"dtype={dtype!r} must be 'float32', 'float16' or None")
        self.rank = rank
        self.dtype = dtype
        self.transform = transform
        self.source: str | None = None
        self.unwhitened: BaseBank | None = None  # of a whitened bank: the one it was made from
        self._reset()

    def _reset(self) -> None:
        self.classes: list[Hashable] = []
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.means = torch.zeros(0, 0)
        self.scatter = torch.zeros(0, 0)
        self.within_scatter = torch.zeros(0, dtype=torch.float64)
        self._rows: list[list[Tensor]] = []  # per class, in order of arrival
        self._joined: Tensor | None = None  # the rows of all classes in order, where they are one tensor
        self._room: Tensor | None = None  # (≥ C, r, D), factors with room to grow
        self._lent = False  # whether another bank has the same room
        self.memo = Memo()  # what was derived from all of this

    @property
    def _factors(self) -> Tensor:
        """B `(C, r, D)` as stored, r = min(rank, D), with BᵀB ≈ the class scatter; zero rows where fewer suffice."""
        assert self._room is not None
        return self._room[: len(self.counts)]

    # ---- building -------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, device: str | torch.device | None = None) -> BaseBank:
        """Build the bank from rows `X (R, D)` and their labels `y (R,)`, forgetting what was there."""
        self._reset()
        self.partial_fit(X, y, device=device)
        return self.check()

    def partial_fit(self, X: Any, y: Any, *, device: str | torch.device | None = None) -> BaseBank:
        """Add a chunk of rows. Chunks may cut through classes and may bring new ones."""
        stored = _storage_dtype(X, self.dtype) if self.rank is None else torch.float32
        x = as_features(X, "base X", dim=self.dim or None, device=device, dtype=stored)
        classes, codes = encode_labels(y, len(x), "base y")
        if not classes:
            raise InputError("base X has no rows; a bank needs at least one base class")
        if self.transform is not None:
            x = self.transform(x.float(), "base X").to(x.dtype)
        if self.rank is None and _same_memory(x, X):
            x = x.clone()  # the caller may reuse the array for the next chunk
        chunk = BaseBank(self.rank, self.dtype)
        chunk._from_rows(x, classes, torch.from_numpy(codes).to(x.device))
        self._absorb(chunk)
        if len(self) == len(chunk):
            self._lent = False  # nobody else knows the chunk
        return self

    def merge(self, other: BaseBank) -> BaseBank:
        """A new bank of both: classes with the same label are joined. Neither bank is changed."""
        if (self.rank, self.dim) != (other.rank, other.dim):
            raise InputError(
                f"banks differ: rank {self.rank} and {other.rank}, {self.dim} and {other.dim} features; "
                "build both with the same settings"
            )
        if not _same_transform(self.transform, other.transform):
            raise InputError("banks were built with different transforms; fit one transform and give it to both")
        both = BaseBank(self.rank, self.dtype, self.transform)
        both._absorb(self)
        both._absorb(other)
        return both

    def _from_rows(self, x: Tensor, classes: list[Hashable], codes: Tensor) -> None:
        order = torch.argsort(codes, stable=True)
        if not bool((order[1:] > order[:-1]).all()):
            x, codes = x[order], codes[order]
        self.classes = classes
        self.counts = torch.bincount(codes, minlength=len(classes))
        counts = self.counts.tolist()
        if min(counts) == max(counts):
            self.means = x.view(len(counts), -1, x.shape[1]).mean(dim=1, dtype=torch.float32)
        else:
            self.means = torch.stack([p.mean(dim=0, dtype=torch.float32) for p in torch.split(x, counts)])
        centred = x.float() - self.means[codes]
        self.scatter = centred.T @ centred
        squares = torch.linalg.vecdot(centred, centred).double()
        self.within_scatter = torch.zeros(len(classes), dtype=torch.float64, device=x.device).index_add_(
            0, codes, squares
        )
        if self.rank is None:
            self._joined = x
            self._rows = [[p] for p in torch.split(x, counts)]  # views
        elif self.rank > 0:
            width = min(self.rank, x.shape[1])  # there are no more directions than features
            stored = _DTYPES[self.dtype or "float32"]
            self._room = torch.empty(len(classes), width, x.shape[1], dtype=stored, device=x.device)
            pieces = torch.split(centred, counts)
            step = max(1, _BATCH_NUMBERS // (max(counts) * x.shape[1]))
            for low in range(0, len(pieces), step):
                padded = torch.nn.utils.rnn.pad_sequence(pieces[low : low + step], batch_first=True)
                self._room[low : low + step] = _top_directions(padded, width)

    def _absorb(self, other: BaseBank) -> None:
        """Join another bank's moments into this one (the parallel form of Welford's update)."""
        self.memo = Memo()  # a new one: copies keep what they share
        if not self.classes:
            self.classes, self.counts = list(other.classes), other.counts
            self.means, self.scatter, self.within_scatter = other.means, other.scatter, other.within_scatter
            self._rows, self._joined = [list(r) for r in other._rows], other._joined
            self._borrow(other)
            return
        device = self.means.device
        self._joined = None
        position = {c: i for i, c in enumerate(self.classes)}
        fresh = [c for c in other.classes if c not in position]
        for c in fresh:
            position[c] = len(self.classes)
            self.classes.append(c)
        at = torch.tensor([position[c] for c in other.classes], device=device)
        if self.rank:
            self._absorb_factors(other, at, len(fresh))
        elif self.rank is None:
            self._rows += [[] for _ in fresh]
            for j, i in enumerate(at.tolist()):
                self._rows[i] = self._rows[i] + [r.to(device) for r in other._rows[j]]
        if fresh:
            grow = len(fresh)
            self.counts = torch.cat([self.counts, self.counts.new_zeros(grow)])
            self.means = torch.cat([self.means, self.means.new_zeros(grow, self.dim)])
            self.within_scatter = torch.cat([self.within_scatter, self.within_scatter.new_zeros(grow)])
        n_new = other.counts.to(device).double()
        total = self.counts[at].double() + n_new
        gap, share = self._gap(other, at)
        shifted = (gap * share.sqrt()).float()  # rows whose scatter is what the shift of means adds
        self.scatter = self.scatter + other.scatter.to(device) + shifted.T @ shifted
        self.within_scatter = self.within_scatter.index_add(
            0, at, other.within_scatter.to(device) + (share * gap.square()).sum(dim=1)
        )
        self.means = self.means.index_copy(0, at, (self.means[at] + gap * (n_new / total)[:, None]).float())
        self.counts = self.counts.index_add(0, at, other.counts.to(device))

    def _borrow(self, other: BaseBank) -> None:
        """Take another bank's factors without copying them; whichever of the two changes first makes a copy."""
        if other._room is not None:
            self._room, self._lent, other._lent = other._factors, True, True

    def _gap(self, other: BaseBank, at: Tensor, part: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """How far some of another bank's means are from those of its classes `at` here, and how much that counts."""
        n_old, n_new = self.counts[at].double(), other.counts[part].to(at.device).double()
        gap = other.means[part].to(at.device).double() - self.means[at].double()
        return gap, (n_old * n_new / (n_old + n_new))[:, None]

    def _absorb_factors(self, other: BaseBank, at: Tensor, fresh: int) -> None:
        """Join another bank's directions into this one, whose counts and means are still the old ones."""
        assert self._room is not None
        width = self._room.shape[1]
        old = len(self.counts)
        size = old + fresh
        if size > len(self._room) or self._lent:
            # Twice the room each time: copies then add up to no more than the end result.
            length = max(size, 2 * len(self._room)) if fresh else size
            room = self._room.new_empty(length, *self._room.shape[1:])
            room[:old] = self._factors
            self._room, self._lent = room, False
        new = (at >= old).nonzero().flatten()
        self._room[at[new]] = other._factors[new.to(other.device)].to(self._room)
        known = (at < old).nonzero().flatten()
        step = max(1, _BATCH_NUMBERS // ((2 * width + 1) * self.dim))
        for part in known.split(step):
            where, there = at[part], part.to(other.device)
            gap, share = self._gap(other, where, there)
            stacked = [self._room[where], other._factors[there].to(at.device), (gap * share.sqrt())[:, None]]
            self._room[where] = _top_directions(torch.cat([t.float() for t in stacked], dim=1), width).to(self._room)

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
        return self.rank is None and bool(self._rows)

    def __len__(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        if not self.classes:
            return "BaseBank(empty)"
        kept = {None: "rows kept", 0: "moments only"}.get(self.rank, f"rank {self.rank}")
        if self.rank is None:
            kept += f" as {str(self._rows[0][0].dtype).removeprefix('torch.')}" if self._rows else " elsewhere"
        space = "raw" if self.transform is None else "transformed"
        return f"BaseBank({len(self)} classes, {self.n_rows} rows, {self.dim} features, {kept}, {space})"

    @property
    def explained(self) -> Tensor:
        """Share of each class's variance that its low-rank factor keeps, `(C,)`; ones where rows are kept."""
        if not self.rank:
            return torch.full((len(self),), 1.0 if self.rank is None else 0.0)
        kept = torch.cat([f.float().square().sum(dim=(1, 2)) for f in self._factors.split(1024)])
        return (kept.double() / self.within_scatter.clamp(min=1e-30)).clamp(max=1.0).float()

    @property
    def fingerprint(self) -> str:
        """A hash of classes, counts, moments and transform: the same data give the same bank."""
        return self.memo.get("fingerprint", self._fingerprint)

    def _fingerprint(self) -> str:
        h = hashlib.sha256()
        h.update(json.dumps([_label_to_json(c) for c in self.classes]).encode())
        for t in (self.counts, self.means, self.within_scatter):
            h.update(np.ascontiguousarray(t.cpu().numpy()).tobytes())
        if self.transform is not None:
            h.update(json.dumps(self.transform.settings()).encode())
        return h.hexdigest()

    def rows(self, i: int) -> Tensor:
        """Rows of class `i`, `(P_i, D)`, as stored."""
        if not self.has_rows:
            raise InputError(f"this bank kept no rows (rank={self.rank}); build it with rank=None")
        if len(self._rows[i]) > 1:
            self._rows[i] = [torch.cat(self._rows[i])]
        return self._rows[i][0]

    def all_rows(self) -> Tensor:
        """Rows of all classes, class after class, `(R, D)`, as stored."""
        if self._joined is None:
            self._set_rows(torch.cat([r for pieces in self._rows for r in pieces]))
        assert self._joined is not None
        return self._joined

    def _set_rows(self, joined: Tensor) -> None:
        self._joined = joined
        self._rows = [[r] for r in torch.split(joined, self.counts.tolist())]

    def to(self, device: str | torch.device) -> BaseBank:
        """The same bank with its tensors on `device`."""
        if torch.device(device) == self.device:
            return self
        return self._mapped(lambda t: t.to(device))

    def _mapped(self, f: Callable[[Tensor], Tensor]) -> BaseBank:
        out = BaseBank(self.rank, self.dtype, self.transform)
        out.source, out.classes = self.source, list(self.classes)
        out.counts, out.means, out.scatter, out.within_scatter = map(
            f, (self.counts, self.means, self.scatter, self.within_scatter)
        )
        if self.has_rows:
            out._set_rows(f(self.all_rows()))
        out._room = None if self._room is None else f(self._factors)
        if self.transform is not None:
            out.transform = self.transform.to(out.device)
        return out

    def forget_spaces(self, keep_bytes: int = 0) -> None:
        """Drop spaces derived by `transformed`, those not used for longest first, until the rest fits in `keep_bytes`.

        A search visits hundreds of spaces, and each may hold a copy of all rows.
        """
        groups: dict[SpaceKey, list[tuple[SpaceKey, BaseBank]]] = {}
        for key, space in reversed(self.memo.items()):  # the newest first
            if isinstance(key, SpaceKey) and isinstance(space, BaseBank):
                groups.setdefault(key.unwhitened, []).append((key, space))
        room = keep_bytes
        for members in groups.values():
            for i, (key, space) in enumerate(members):
                room -= space.nbytes
                # Whitened spaces hold on to the one they come from, so that a group goes as a whole.
                if room < 0 or i >= _WHITENED_KEPT:
                    self.memo.forget(key)

    @property
    def nbytes(self) -> int:
        """Memory of the bank and of what it remembers, other banks apart."""
        parts = [self.counts, self.means, self.scatter, self.within_scatter, self._rows, self._room]
        return tensor_bytes([*parts, self.transform and self.transform.whitening, self.memo])

    def __sklearn_clone__(self) -> BaseBank:
        return self  # clones of an estimator share its bank, and with it every space derived so far

    def __copy__(self) -> BaseBank:
        """Another bank on the same tensors, with all that was derived from them so far."""
        out = BaseBank.__new__(BaseBank)
        out.__dict__.update(self.__dict__)
        out._lent = self._lent = True
        return out

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # Classes are views of one block, and a pickled view takes its whole block along: one tensor for all.
        state["_joined"], state["_rows"] = (self.all_rows().clone() if self.has_rows else None), []
        state["_room"] = None if self._room is None else self._factors.clone()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._joined is not None:
            self._set_rows(self._joined)

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
        if not self.has_rows:
            raise InputError(
                "the joint covariance pairs rows, and this bank kept none; use cov='independent' or rank=None"
            )

        def make(chosen: Iterable[int]) -> Tensor:
            rows = torch.stack([self.rows(i)[:size] for i in chosen]).float()
            return rows.sub_(rows.mean(dim=1, keepdim=True)).div_((size - 1) ** 0.5)

        if classes is not None:
            return make(classes.tolist())
        return self.memo.get(("paired", size), lambda: make(range(len(self))))

    def class_factors(self, classes: Tensor | None = None) -> Tensor:
        """Rᵢ with RᵢᵀRᵢ = Σᵢ for each class, `(C, P, D)`: centred rows or low-rank directions, zero-padded to one P.

        With `classes` only these are made, and nothing is remembered: a large bank is never unpacked as a whole.
        """
        if self.rank == 0:
            raise InputError(
                "this bank keeps no class covariances (rank=0); use cov='pooled' or build it with rank=None"
            )

        def make(chosen: Tensor | slice = slice(None)) -> Tensor:
            scale = (self.counts[chosen] - 1).float().sqrt()[:, None, None]
            if self.rank:
                return self._factors[chosen].float() / scale
            numbers = range(len(self)) if isinstance(chosen, slice) else chosen.tolist()
            rows = torch.nn.utils.rnn.pad_sequence(
                [self.rows(i).float() - self.means[i] for i in numbers], batch_first=True
            )
            return rows.div_(scale)

        if classes is not None:
            return make(classes)
        return self.memo.get("factors", make)

    def class_covariances(self) -> Tensor:
        """Σᵢ for each class, dense `(C, D, D)`; for reference, many neighbours, and small D."""

        def make() -> Tensor:
            factors = self.class_factors()
            return factors.transpose(1, 2) @ factors

        return self.memo.get("covariances", make)

    def pooled_covariance(self) -> Tensor:
        """S_w, the within-class covariance of all base classes together, `(D, D)`."""
        return self.scatter / max(self.n_rows - len(self), 1)

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

    def whitening(self, shrink: float) -> Tensor:
        """(S_w + λ·(tr S_w / D)·I)^(−1/2) up to a rotation, `(D, D)`, to be applied as `x @ whitening`."""
        values, vectors = self.pooled_eigen()
        if float(values.mean()) <= 0:
            raise InputError(
                "the rows of every base class are identical, so that there is no covariance to whiten with; "
                "give base classes that vary, or use whiten=False"
            )
        if shrink == 0 and float(values.min()) <= 1e-6 * float(values.mean()):
            raise InputError(
                f"whiten=0 needs an invertible within-class covariance, and {self.n_rows} base rows of {self.dim} "
                "features give none; use whiten > 0"
            )
        return vectors * (values + shrink * values.mean()).clamp(min=1e-30).rsqrt()

    # ---- other spaces ---------------------------------------------------------------------------------------------

    def transformed(
        self,
        *,
        beta: float = 1.0,
        kind: str = "auto",
        center: bool = False,
        l2: bool = False,
        eps: float = 1e-6,
        whiten: float | bool = False,
        moments: bool = False,
    ) -> BaseBank:
        """The bank as seen through a transform; derived once and remembered.

        A raw bank with rows can go anywhere. A bank that was built with a transform can only be used with that
        transform (and any whitening on top of it). With `moments` rows need not be kept in the new space: means and
        the pooled covariance are all that is asked for.

        >>> import numpy as np
        >>> raw = BaseBank().fit(np.random.default_rng(0).random((20, 3)), [0, 1] * 10)
        >>> raw.transformed(beta=0.5, l2=True).transform.settings()["kind"]
        'tukey'
        """
        key = SpaceKey(float(beta), kind, bool(center), bool(l2), float(eps))
        if moments and key not in self.memo:
            key = replace(key, moments=True)

        def make() -> BaseBank:
            wanted = {"beta": float(beta), "center": bool(center), "l2": bool(l2)}
            if self.transform is not None:
                have = self.transform.settings()
                same_kind = kind in ("auto", have["kind"]) or float(beta) == 1.0
                if not same_kind or any(have[f] != v for f, v in wanted.items()):
                    given = ", ".join(f"{f}={have[f]}" for f in ("kind", *wanted))
                    asked = ", ".join(f"{f}={v}" for f, v in {"kind": kind, **wanted}.items())
                    raise InputError(
                        f"the bank was built in another space ({given}) than the parameters ask for ({asked}); "
                        "change these parameters or rebuild the bank from its rows"
                    )
                return self
            if not self.has_rows:
                if float(beta) == 1.0 and not center and not l2:
                    return self._as_raw(kind)
                raise InputError(
                    "this bank kept no rows, so no transform can be applied to it afterwards; "
                    "give the transform to BaseBank(transform=...) or keep rows (rank=None)"
                )
            x = self.all_rows().float()
            transform = fit_gaussianization(x, beta, kind, center, l2, eps)
            out = BaseBank(0 if moments else self.rank, "float32")
            codes = torch.repeat_interleave(torch.arange(len(self), device=self.device), self.counts)
            out._from_rows(transform(x, "base X"), list(self.classes), codes)
            out.transform, out.source = transform, self.source
            if not bool(torch.isfinite(out.means).all()):
                raise InputError(f"beta={beta:g} makes the base features overflow float32; use a smaller power")
            return out

        space = self.memo.get(key, make)
        if whiten is False or space.is_whitened:
            return space
        return self.memo.get(replace(key, whiten=float(whiten)), lambda: space.whitened(float(whiten)))

    def _as_raw(self, kind: str) -> BaseBank:
        out = self._mapped(lambda t: t)
        out._borrow(self)
        out.transform = Gaussianization("none" if kind == "auto" else kind)  # type: ignore[arg-type]
        return out

    @property
    def is_whitened(self) -> bool:
        """Whether this bank lives in the space whitened with its own pooled covariance."""
        return self.transform is not None and self.transform.whitening is not None

    def whitened(self, shrink: float) -> BaseBank:
        r"""The bank in the space whitened by its pooled covariance, where plain distance is the right distance.

        With :math:`W = (S_w + \lambda\,(\mathrm{tr} S_w / D)\,I)^{-1/2}` a row x becomes Wx / ‖Wx‖ and a class mean
        Wμ / ‖Wμ‖. Only moments are needed. The shrunk pooled covariance becomes the unit matrix divided by the
        mean squared length of the whitened rows.
        """
        if not shrink >= 0:
            raise InputError(f"whiten={shrink!r} must be ≥ 0, or False for no whitening; it is the shrinkage λ of S_w")
        w = self.whitening(shrink)
        out = BaseBank(0)
        out.classes, out.counts, out.source, out.unwhitened = list(self.classes), self.counts, self.source, self
        moved = self.means @ w
        share = self.counts.double() / self.counts.sum()
        scatter = w.T @ self.scatter @ w
        length2 = float(
            (scatter.diagonal().sum() / self.counts.sum()).double() + share @ moved.double().square().sum(dim=1)
        )
        out.means = l2_normalise(moved)
        out.scatter = torch.eye(self.dim, device=self.device) * (max(self.n_rows - len(self), 1) / length2)
        out.within_scatter = self.within_scatter * 0 + self.dim / length2 * (self.counts - 1)
        base = self.transform or Gaussianization("none")
        out.transform = Gaussianization(base.kind, base.beta, base.eps, base.mean, base.l2, whitening=w)
        return out

    # ---- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bank as safetensors. The file appears under its name only when it is complete."""
        from safetensors.torch import save_file

        if not self.classes:
            raise InputError("the bank is empty; fit it on base rows first")  # a part may hold single rows: no check()
        tensors = {"counts": self.counts, "means": self.means, "scatter": self.scatter, "spread": self.within_scatter}
        if self.has_rows:
            tensors["rows"] = self.all_rows()
        elif self.rank:
            tensors["factors"] = self._factors.flatten(0, 1)
            tensors["factor_sizes"] = torch.full((len(self),), self._factors.shape[1])
        meta: dict[str, Any] = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "fewcal": __version__,
            "classes": [_label_to_json(c) for c in self.classes],
            "rank": self.rank,
            "dtype": self.dtype,
            "fingerprint": self.fingerprint,
            "source": self.source,
            "transform": None,
        }
        if self.transform is not None:
            meta["transform"] = self.transform.settings()
            for field in ("mean", "whitening"):
                if (t := getattr(self.transform, field)) is not None:
                    tensors[f"transform.{field}"] = t
        ready = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        target = Path(path)
        with atomic_path(target) as temporary:
            save_file(ready, str(temporary), metadata={"fewcal": json.dumps(meta)})
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | torch.device | None = None) -> BaseBank:
        """Read a bank; on the CPU its tensors stay memory-mapped until they are used."""
        file = Path(path)
        if not file.is_file():
            raise InputError(
                f"no bank at {file}; build one with BaseBank().fit(X, y).save(path) or `fewcal bank build`"
            )
        meta, tensors = read_tensors(file)
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise FileFormatError(f"{file} is a safetensors file, but not a fewcal bank")
        version = meta.get("version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FileFormatError(
                f"{file} has bank format {version}; this fewcal {__version__} reads up to "
                f"{FORMAT_VERSION}; upgrade fewcal"
            )
        try:
            if version != FORMAT_VERSION:
                raise ValueError(f"format version {version!r}")
            out = cls._restore(meta, tensors)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FileFormatError(f"{file} is damaged: its parts do not fit together ({error})") from error
        return out if device is None else out.to(device)

    @classmethod
    def _restore(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> BaseBank:
        out = cls(meta["rank"], meta["dtype"])
        out.source = meta["source"]
        out.classes = [_label_from_json(c) for c in meta["classes"]]
        out.counts, out.means = tensors["counts"], tensors["means"]
        out.scatter, out.within_scatter = tensors["scatter"], tensors["spread"]
        c, d = len(out.classes), out.means.shape[-1]
        shapes = {"counts": (c,), "means": (c, d), "scatter": (d, d), "spread": (c,)}
        for name, shape in shapes.items():
            if tensors[name].shape != shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {shape}")
        for name in ("rows", "factors"):
            if name in tensors and (tensors[name].ndim != 2 or tensors[name].shape[1] != d):
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {d} features")
        if out.counts.dtype != torch.int64:
            raise ValueError(f"counts are {out.counts.dtype}")
        if out.rank is None:
            out._set_rows(tensors["rows"])
        elif out.rank:
            factors, sizes = tensors["factors"], tensors["factor_sizes"]
            width = min(out.rank, d)
            if bool((sizes == width).all()):
                out._room = factors.view(c, width, d)
            else:  # as banks were written before, without padding
                pieces = torch.nn.utils.rnn.pad_sequence(list(torch.split(factors, sizes.tolist())), batch_first=True)
                out._room = _top_directions(pieces.float(), width).to(factors)
        if meta["transform"] is not None:
            s = meta["transform"]
            out.transform = Gaussianization(
                s["kind"],
                s["beta"],
                s["eps"],
                tensors.get("transform.mean"),
                s["l2"],
                tensors.get("transform.whitening"),
            )
        out.memo.get("fingerprint", lambda: meta["fingerprint"])
        return out


def _same_memory(x: Tensor, given: Any) -> bool:
    """Whether the tensor made from what the caller gave is a view of it."""
    if isinstance(given, Tensor):
        return x.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return x.device.type == "cpu" and hasattr(given, "__array__") and np.may_share_memory(x.numpy(), np.asarray(given))


def _storage_dtype(x: Any, dtype: str | None) -> torch.dtype:
    if dtype is not None:
        return _DTYPES[dtype]
    return torch.float16 if str(getattr(x, "dtype", "")) in ("float16", "torch.float16") else torch.float32


def _top_directions(x: Tensor, rank: int) -> Tensor:
    """B `(c, rank, D)` whose BᵀB are the best rank-r approximations of xᵀx, for centred rows x `(c, P, D)`."""
    if x.shape[1] <= rank:
        return torch.nn.functional.pad(x, (0, 0, 0, rank - x.shape[1]))
    # Right singular vectors through the smaller Gram matrix: rows are few and features many, or the reverse.
    if x.shape[1] <= x.shape[2]:
        _, vectors = _eigh(x @ x.mT)
        return vectors[..., -rank:].mT @ x
    values, vectors = _eigh(x.mT @ x)
    return values[..., -rank:].clamp(min=0).sqrt()[..., None] * vectors[..., -rank:].mT


def _eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of small matrices `(c, p, p)`."""
    if a.shape[-1] > _SMALL:
        return torch.linalg.eigh(a)
    if a.is_cuda:  # where each takes four times as long as on a CPU
        values, vectors = _eigh(a.cpu())
        return values.to(a.device), vectors.to(a.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that share a small decomposition make it several times slower
    try:
        return torch.linalg.eigh(a)
    finally:
        torch.set_num_threads(threads)


def _same_transform(a: Gaussianization | None, b: Gaussianization | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.settings() != b.settings():
        return False
    pairs: Iterable[tuple[Tensor | None, Tensor | None]] = ((a.mean, b.mean), (a.whitening, b.whitening))
    return all(s is t or (s is not None and t is not None and torch.equal(s.cpu(), t.cpu())) for s, t in pairs)


def _label_to_json(label: Hashable) -> Any:
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or isinstance(label, str | bool | int | float):
        return label
    if isinstance(label, tuple):
        return {"tuple": [_label_to_json(part) for part in label]}
    if isinstance(label, bytes):
        return {"bytes": label.hex()}
    raise InputError(f"class label {label!r} of type {type(label).__name__} cannot be saved; use str, int or tuple")


def _label_from_json(value: Any) -> Hashable:
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(_label_from_json(part) for part in value["tuple"])
        return bytes.fromhex(value["bytes"])
    return cast(Hashable, value)
