"""A bank from many files, one at a time here or all over a Dask cluster.

Two passes: the transform is fitted on all parts, then every part becomes a bank of its own in that space, and banks are
merged. No more than one part is in memory at a time in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.evaluation.executors import dask_client
from fewcal.features import load_split
from fewcal.features.sources.pictures import picture_files
from fewcal.gaussianize import Gaussianization, GaussianizationFitter
from fewcal.params import GDCParams

T = TypeVar("T")
P = ParamSpec("P")
SUFFIXES = (".parquet", ".npz")


def find_parts(folder: Path) -> list[Path]:
    """The labelled files of a folder, in the order of their names."""
    found = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES)
    if not found and picture_files(folder):
        raise InputError(
            f"{folder} holds pictures, and a bank is made of features: first "
            f"`fewcal extract {folder} --split base --out FEATURES`, then `fewcal bank build FEATURES`"
        )
    if not found:
        raise InputError(f"{folder} holds no parts; put labelled files there ({', '.join(SUFFIXES)})")
    return found


def bank_from_parts(
    parts: Sequence[Path],
    params: GDCParams,
    *,
    rank: int | None = 0,
    dtype: str | None = None,
    device: str | None = None,
    scheduler: str | None = None,
) -> BaseBank:
    """Build a bank in the space of `params` from labelled files, which may share classes.

    Parameters
    ----------
    parts : paths, one or more
    rank, dtype
        See `BaseBank`.
    device : where to compute
    scheduler : str or None
        A Dask scheduler, or "local:N"; its workers must see the same files.
    """
    if not parts:
        raise InputError("no parts were given; a bank needs at least one file of base rows")
    settings = (params.beta, params.kind, params.center, params.l2, params.eps)
    fitter = GaussianizationFitter(*settings)
    for one in _map(_fit_part, parts, scheduler, settings):
        fitter.merge(one)
    transform = fitter.finish()
    if scheduler is None:
        bank = BaseBank(rank, dtype, transform.to(pick_device(device)))
        for part in parts:
            bank.partial_fit(*_rows(part), device=device)
        return bank.check()
    whole: BaseBank | None = None
    for bank in _map(_bank_part, parts, scheduler, rank, dtype, transform, device):
        whole = bank if whole is None else whole.merge(bank)
    assert whole is not None
    return whole.check()


def _rows(part: Path) -> tuple[np.ndarray, list[str]]:
    split = load_split(part, labelled=True)
    return split.features, [split.classes[i] for i in split.require_labels()]


def _fit_part(part: Path, settings: tuple[float, str, bool, bool, float]) -> GaussianizationFitter:
    features, _ = _rows(part)
    return GaussianizationFitter(*settings).update(torch.from_numpy(features).float())


def _bank_part(
    part: Path, rank: int | None, dtype: str | None, transform: Gaussianization, device: str | None
) -> BaseBank:
    bank = BaseBank(rank, dtype, transform.to(pick_device(device)))
    return bank.partial_fit(*_rows(part), device=device).to("cpu")


def _map(
    work: Callable[Concatenate[Path, P], T],
    parts: Iterable[Path],
    scheduler: str | None,
    *rest: P.args,
    **named: P.kwargs,
) -> Iterator[T]:
    """`work(part, *rest)` for every part, in their order, so that the result does not depend on who was first."""
    if scheduler is None:
        yield from (work(part, *rest, **named) for part in parts)
        return
    with dask_client(scheduler) as client:
        futures = [client.submit(work, part, *rest, **named, pure=False) for part in parts]
        while futures:
            yield futures.pop(0).result()  # its copy on the cluster goes with it
