"""Spaces in which a bank can be seen: what names them, and which banks live in the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization


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


def same_map(a: Gaussianization | None, b: Gaussianization | None) -> bool:
    """Whether two transforms are the same map."""
    if a is None or b is None:
        return a is b
    ours, theirs = a.tensors(), b.tensors()
    same = a.settings() == b.settings() and ours.keys() == theirs.keys()
    return same and all(torch.equal(t.cpu(), theirs[name].cpu()) for name, t in ours.items())


def check_same_space(transform: Gaussianization, key: SpaceKey) -> None:
    """Raise unless the space of `key` is that of a transform."""
    have = transform.settings()
    wanted: dict[str, object] = {"beta": key.beta, "center": key.center, "l2": key.l2}
    same_kind = key.kind in ("auto", have["kind"]) or key.beta == 1.0
    if not same_kind or any(have[f] != v for f, v in wanted.items()):
        built = ", ".join(f"{f}={have[f]}" for f in ("kind", *wanted))
        needed = ", ".join(f"{f}={v}" for f, v in {"kind": key.kind, **wanted}.items())
        raise InputError(
            f"the bank was built in another space ({built}) than the parameters need ({needed}); "
            "change these parameters or rebuild the bank from its rows"
        )
