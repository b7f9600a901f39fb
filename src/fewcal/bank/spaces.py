"""A bank seen through a transform, or whitened: the parts of one bank from those of another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewcal.bank.build import BankParts, from_rows
from fewcal.bank.moments import Moments
from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization, fit_gaussianization, l2_normalise

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
    max_spread: float | bool = False
    moments: bool = False
    whiten: float | None = None

    @property
    def unwhitened(self) -> SpaceKey:
        """The same for all spaces that share a transform before whitening."""
        return replace(self, moments=False, whiten=None)


def least_used(sizes: list[tuple[SpaceKey, int]], keep_bytes: int) -> list[SpaceKey]:
    """Spaces to drop from those remembered, given with their bytes and the last used last, so that the rest fits."""
    groups: dict[SpaceKey, list[tuple[SpaceKey, int]]] = {}
    for key, size in reversed(sizes):  # the newest first
        groups.setdefault(key.unwhitened, []).append((key, size))
    room, dropped = keep_bytes, []
    for members in groups.values():
        for i, (key, size) in enumerate(members):
            room -= size
            # Whitened spaces hold on to the one they come from, so that a group goes as a whole.
            if room < 0 or i >= _WHITENED_KEPT:
                dropped.append(key)
    return dropped


def transformed(parts: BankParts, key: SpaceKey) -> BankParts:
    """The bank in the space of `key` before whitening; `parts` itself where it was built there."""
    if parts.transform is not None:
        _check_same_space(parts.transform, key)
        return parts
    if parts.rows is None:
        if key.beta == 1.0 and not key.center and key.max_spread is False and not key.l2:
            identity = Gaussianization("none" if key.kind == "auto" else key.kind)  # type: ignore[arg-type]
            return replace(parts.shared(), transform=identity)
        raise InputError(
            "this bank kept no rows, so no transform can be applied to it afterwards; "
            "give the transform to BaseBank(transform=...) or keep rows (rank=None)"
        )
    x = parts.rows.joined().float()
    transform = fit_gaussianization(x, key.beta, key.kind, key.center, key.l2, key.eps, key.max_spread)
    settings = BankParts(0 if key.moments else None, "float32", transform, source=parts.source)
    codes = torch.repeat_interleave(torch.arange(len(parts.classes), device=x.device), parts.moments.counts)
    out = from_rows(transform(x, "base X"), list(parts.classes), codes, settings)
    if not bool(torch.isfinite(out.moments.means).all()):
        raise InputError(f"beta={key.beta:g} makes the base features overflow float32; use a smaller power")
    return out


def _check_same_space(transform: Gaussianization, key: SpaceKey) -> None:
    have = transform.settings()
    wanted: dict[str, object] = {"beta": key.beta, "center": key.center, "l2": key.l2}
    same_kind = key.kind in ("auto", have["kind"]) or key.beta == 1.0
    if transform.scale is not None:  # a bank of before there was a cap, or that needs none, has none
        wanted["max_spread"] = key.max_spread
    if not same_kind or any(have[f] != v for f, v in wanted.items()):
        given = ", ".join(f"{f}={have[f]}" for f in ("kind", *wanted))
        asked = ", ".join(f"{f}={v}" for f, v in {"kind": key.kind, **wanted}.items())
        raise InputError(
            f"the bank was built in another space ({given}) than the parameters ask for ({asked}); "
            "change these parameters or rebuild the bank from its rows"
        )


def whitening_matrix(values: Tensor, vectors: Tensor, shrink: float, n_rows: int) -> Tensor:
    """(S_w + λ·(tr S_w / D)·I)^(−1/2) up to a rotation, from the eigenvalues `(D,)` and eigenvectors of S_w."""
    if float(values.mean()) <= 0:
        raise InputError(
            "the rows of every base class are identical, so that there is no covariance to whiten with; "
            "give base classes that vary, or use whiten=False"
        )
    if shrink == 0 and float(values.min()) <= 1e-6 * float(values.mean()):
        raise InputError(
            f"whiten=0 needs an invertible within-class covariance, and {n_rows} base rows of {len(values)} "
            "features give none; use whiten > 0"
        )
    return vectors * (values + shrink * values.mean()).clamp(min=1e-30).rsqrt()


def whitened(parts: BankParts, w: Tensor) -> BankParts:
    """The bank in the space whitened by `w (D, D)`: class means of unit length, an isotropic pooled covariance.

    Only moments are needed. The shrunk pooled covariance becomes the unit matrix divided by the mean squared length of
    the whitened rows.
    """
    m = parts.moments
    d = m.means.shape[1]
    moved = m.means @ w
    share = m.counts.double() / m.counts.sum()
    scatter = w.T @ m.scatter @ w
    length2 = float((scatter.diagonal().sum() / m.counts.sum()).double() + share @ moved.double().square().sum(dim=1))
    moments = Moments(
        counts=m.counts,
        means=l2_normalise(moved),
        scatter=torch.eye(d, device=w.device) * (m.degrees_of_freedom / length2),
        within_scatter=m.within_scatter * 0 + d / length2 * (m.counts - 1),
    )
    base = parts.transform or Gaussianization("none")
    return BankParts(
        rank=0,
        transform=replace(base, whitening=w),
        classes=list(parts.classes),
        moments=moments,
        source=parts.source,
    )
