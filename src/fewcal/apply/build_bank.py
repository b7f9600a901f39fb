"""A bank from the base split of features, from one file, or from many.

Many files are read one at a time, here or all over a Dask cluster, in two passes: the transform is fitted on all parts,
then every part becomes a bank of its own in that space, and banks are merged. No more than one part is in memory at a
time in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.types import JSONObject
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.evaluation.executors import dask_client
from fewcal.features import FeatureSet, FeatureSplit, load_split
from fewcal.features.extract import bank_source
from fewcal.features.sources.kinds import kind_of
from fewcal.features.sources.pictures import picture_files
from fewcal.features.sources.texts import class_text_files
from fewcal.gaussianize import Gaussianization, GaussianizationFitter, fit_gaussianization
from fewcal.methods.hgdc import HGDC
from fewcal.params import GDCParams
from fewcal.presets import get_preset

T = TypeVar("T")
P = ParamSpec("P")
SUFFIXES = (".parquet", ".npz")


def build_bank(
    source: Path,
    preset: str | None = None,
    *,
    keep_rows: bool = True,
    dtype: str | None = None,
    device: str | None = None,
    scheduler: str | None = None,
) -> BaseBank:
    """A bank from the base split of a feature folder, from one labelled file, or from a folder of labelled parts.

    Parameters
    ----------
    source : path
    preset : str or None
        Build the bank in the space of this preset; None: raw, for any preset. Parts need one.
    keep_rows, dtype
        See `BaseBank`.
    device : where to compute
    scheduler : str or None
        A Dask scheduler, or "local:N", that builds from parts.
    """
    BaseBank(keep_rows, dtype)  # refuses what cannot be kept
    if source.is_file() and (kind := kind_of(source)) != "features":
        raise InputError(_extract_first(source, kind))
    if source.is_dir() and not any(source.glob("base.*")):
        parts = find_parts(source)
        if preset is None:
            raise InputError(
                f"{source} has no base split but {len(parts)} part(s): give --preset, whose space they go to"
            )
        return bank_from_parts(
            parts, get_preset(preset), keep_rows=keep_rows, dtype=dtype, device=device, scheduler=scheduler
        )
    split = FeatureSet.load(source, ["base"]).split("base") if source.is_dir() else load_split(source, labelled=True)
    labels = split.require_labels()
    transform = None
    if preset is not None:
        p = get_preset(preset)
        if not p.transform_base:
            raise InputError(f"preset {preset!r} takes base rows as they are: build the bank without --preset")
        rows = torch.from_numpy(split.float32())
        transform = fit_gaussianization(rows, **p.space).to(pick_device(device))
    elif not keep_rows:
        raise InputError("--drop-rows leaves one space, so it must be fixed: give --preset as well")
    bank = BaseBank(keep_rows, dtype, transform)
    bank.fit(split.features, [split.classes[i] for i in labels], device=device)
    bank.source = bank_source(split)
    return bank


def bank_facts(bank: BaseBank) -> JSONObject:
    """What a bank holds, for people."""
    counts = bank.counts
    return {
        "classes": [str(c) for c in bank.classes],
        "number of classes": len(bank),
        "rows": bank.n_rows,
        "rows per class": f"{int(counts.min())} to {int(counts.max())}",
        "features": bank.dim,
        "kept": "rows" if bank.has_rows else "moments only",
        "transform": bank.transform.settings() if bank.transform is not None else "raw",
        "power": bank.power_choice().words,
        "fingerprint": bank.fingerprint,
        "source": bank.source,
    }


def gaussianization_facts(split: FeatureSplit) -> JSONObject:
    """How HGDC makes base classes Gaussian: its power, and features of large variance that it scales down."""
    choice = BaseBank().partial_fit(split.features, split.require_labels()).power_choice()
    rows = torch.from_numpy(split.float32())
    scale = fit_gaussianization(rows, choice.beta, choice.kind, spread=HGDC().spread).scale
    return {"power": choice.words, "scaled_features": 0 if scale is None else int((scale < 1).sum())}


def find_parts(folder: Path) -> list[Path]:
    """The labelled files of a folder, in the order of their names."""
    found = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES)
    if not found and (picture_files(folder) or any(class_text_files(folder))):
        raise InputError(_extract_first(folder, kind_of(folder)))
    if not found:
        raise InputError(f"{folder} holds no parts; put labelled files there ({', '.join(SUFFIXES)})")
    return found


def _extract_first(source: Path, kind: str) -> str:
    return (
        f"{source} holds {kind}s, and a bank is made of features: first "
        f"`fewcal extract {source} --split base --out FEATURES`, then `fewcal bank build FEATURES`"
    )


def bank_from_parts(
    parts: Sequence[Path],
    params: GDCParams,
    *,
    keep_rows: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    scheduler: str | None = None,
) -> BaseBank:
    """Build a bank in the space of `params` from labelled files, which may share classes.

    Parameters
    ----------
    parts : paths, one or more
    keep_rows, dtype
        See `BaseBank`.
    device : where to compute
    scheduler : str or None
        A Dask scheduler, or "local:N"; its workers must see the same files.
    """
    if not parts:
        raise InputError("no parts were given; a bank needs at least one file of base rows")
    space = params.space
    fitter = GaussianizationFitter(**space)
    for one in _map(_fit_part, parts, scheduler, space):
        fitter.merge(one)
    transform = fitter.finish()
    if scheduler is None:
        bank = BaseBank(keep_rows, dtype, transform.to(pick_device(device)))
        for part in parts:
            bank.partial_fit(*_rows(part), device=device)
        return bank.check()
    whole: BaseBank | None = None
    for bank in _map(_bank_part, parts, scheduler, keep_rows, dtype, transform, device):
        whole = bank if whole is None else whole.merge(bank)
    assert whole is not None
    return whole.check()


def _rows(part: Path) -> tuple[np.ndarray, list[str]]:
    split = load_split(part, labelled=True)
    return split.features, [split.classes[i] for i in split.require_labels()]


def _fit_part(part: Path, space: JSONObject) -> GaussianizationFitter:
    features, _ = _rows(part)
    return GaussianizationFitter(**space).update(torch.from_numpy(features).float())


def _bank_part(
    part: Path, keep_rows: bool, dtype: str | None, transform: Gaussianization, device: str | None
) -> BaseBank:
    bank = BaseBank(keep_rows, dtype, transform.to(pick_device(device)))
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
