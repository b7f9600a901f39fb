"""A bank seen through a transform: the parts of one bank from those of another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fewcal.bank.build import BankParts, from_rows
from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization, fit_gaussianization


@dataclass(frozen=True)
class SpaceKey:
    """What a bank remembers a space by: the settings of `BaseBank.transformed`."""

    beta: float
    kind: str
    center: bool
    l2: bool
    eps: float
    spread: float = float("inf")
    moments: bool = False


def least_used(sizes: list[tuple[SpaceKey, int]], keep_bytes: int) -> list[SpaceKey]:
    """Spaces to drop from those remembered, given with their bytes and the last used last, so that the rest fits."""
    room, dropped = keep_bytes, []
    for key, size in reversed(sizes):  # the newest first
        room -= size
        if room < 0:
            dropped.append(key)
    return dropped


def transformed(parts: BankParts, key: SpaceKey) -> BankParts:
    """The bank in the space of `key`; `parts` itself where it was built there."""
    if parts.transform is not None:
        _check_same_space(parts.transform, key)
        return parts
    if parts.rows is None:
        if key.beta == 1.0 and not key.center and not key.l2:
            identity = Gaussianization("none" if key.kind == "auto" else key.kind)  # type: ignore[arg-type]
            return replace(parts.shared(), transform=identity)
        raise InputError(
            "this bank kept no rows, so no transform can be applied to it afterwards; "
            "give the transform to BaseBank(transform=...) or keep rows (rank=None)"
        )
    x = parts.rows.joined().float()
    transform = fit_gaussianization(x, key.beta, key.kind, key.center, key.l2, key.eps, key.spread)
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
    if not same_kind or any(have[f] != v for f, v in wanted.items()):
        given = ", ".join(f"{f}={have[f]}" for f in ("kind", *wanted))
        asked = ", ".join(f"{f}={v}" for f, v in {"kind": key.kind, **wanted}.items())
        raise InputError(
            f"the bank was built in another space ({given}) than the parameters ask for ({asked}); "
            "change these parameters or rebuild the bank from its rows"
        )
