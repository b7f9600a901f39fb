"""Banks in safetensors files, and class labels in JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.safetensors_io import checksum, read_header, read_tensors, write_tensors
from fewcal._version import __version__
from fewcal.bank.build import BankParts
from fewcal.bank.moments import Moments
from fewcal.bank.storage import FactorStore, RowCheck, RowStore
from fewcal.errors import FileFormatError, InputError
from fewcal.gaussianize import Gaussianization
from fewcal.power_choice import PowerChoice

FORMAT = "fewcal-bank"
FORMAT_VERSION = 1


def fingerprint(parts: BankParts) -> str:
    """A hash of classes, counts, moments and transform: the same data give the same bank."""
    h = hashlib.sha256()
    h.update(json.dumps([label_to_json(c) for c in parts.classes]).encode())
    for t in (parts.moments.counts, parts.moments.means, parts.moments.within_scatter):
        h.update(np.ascontiguousarray(t.cpu().numpy()).tobytes())
    if parts.transform is not None:
        h.update(json.dumps(parts.transform.settings()).encode())
    return h.hexdigest()


def described(parts: BankParts, known_as: str) -> tuple[dict[str, object], dict[str, Tensor]]:
    """A bank with the fingerprint `known_as` as what JSON can hold and tensors on the CPU; `restored` undoes it."""
    if not parts.classes:
        raise InputError("the bank is empty; fit it on base rows first")  # a part may hold single rows: no check()
    tensors = parts.moments.tensors()
    if parts.rows is not None:
        tensors["rows"] = parts.rows.joined()
    elif parts.factors is not None:
        factors = parts.factors.tensor
        tensors["factors"] = factors.flatten(0, 1)
        tensors["factor_sizes"] = torch.full((len(factors),), factors.shape[1])
    meta: dict[str, object] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fewcal": __version__,
        "classes": [label_to_json(c) for c in parts.classes],
        "rank": parts.rank,
        "dtype": parts.dtype,
        "fingerprint": known_as,
        "source": parts.source,
        "transform": None,
        "power": None if parts.power is None else _power_to_json(parts.power),
    }
    if parts.transform is not None:
        meta["transform"] = parts.transform.settings()
        tensors |= {f"transform.{name}": t for name, t in parts.transform.tensors().items()}
    return meta, {k: v.detach().cpu().contiguous() for k, v in tensors.items()}


def write_bank(parts: BankParts, known_as: str, target: Path) -> Path:
    """Write a bank with the fingerprint `known_as`. The file appears under its name only when it is complete."""
    meta, tensors = described(parts, known_as)
    if parts.rows is not None:  # of each class by itself: whoever uses some of them reads no others
        meta["row_sums"] = [checksum(parts.rows.of_class(i)) for i in range(len(parts.classes))]
    write_tensors(target, tensors, meta)
    return target


def read_bank(file: Path) -> tuple[BankParts, str]:
    """The parts and the fingerprint in a file; tensors stay memory-mapped until they are used."""
    if not file.is_file():
        raise InputError(f"no bank at {file}; build one with BaseBank().fit(X, y).save(path) or `fewcal bank build`")
    meta = read_header(file)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise FileFormatError(f"{file} is a safetensors file, but not a fewcal bank")
    version = meta.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FileFormatError(
            f"{file} has bank format {version}; this fewcal {__version__} reads up to {FORMAT_VERSION}; upgrade fewcal"
        )
    _, tensors = read_tensors(file, lazy=("rows",))
    try:
        if version != FORMAT_VERSION:
            raise ValueError(f"format version {version!r}")
        check = _RowCheck(file, meta.get("row_sums"))
        return restored(meta, tensors, check), str(meta["fingerprint"])
    except (AttributeError, IndexError, InputError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"{file} is damaged: its parts do not fit together ({error})") from error


def restored(meta: Mapping[str, Any], tensors: Mapping[str, Tensor], check: RowCheck | None = None) -> BankParts:
    """The parts that `described` was given; errors of any kind where these do not fit together.

    `check` is asked about the rows of a class before they are used for the first time.
    """
    classes = [label_from_json(c) for c in meta["classes"]]
    moments = Moments.from_tensors(tensors, len(classes))
    d, rank = moments.means.shape[1], meta["rank"]
    if bool((moments.counts < 1).any()):
        raise ValueError("a class has no rows")
    for name, tensor in tensors.items():
        # Extremes are as telling as a test of each number, which would take a quarter of the file in memory.
        if name != "rows" and tensor.is_floating_point() and not all(torch.stack(tensor.aminmax()).isfinite()):
            raise ValueError(f"{name} has NaN or infinity")
    for name in ("rows", "factors"):
        if name in tensors and (tensors[name].ndim != 2 or tensors[name].shape[1] != d):
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {d} features")
    rows = RowStore.from_joined(tensors["rows"], moments.counts.tolist(), check) if rank is None else None
    factors = FactorStore.from_tensors(tensors["factors"], tensors["factor_sizes"], rank) if rank else None
    transform, s = None, meta["transform"]
    if s is not None:
        known = {name: tensors.get(f"transform.{name}") for name in ("mean", "scale", "whitening")}
        transform = Gaussianization(s["kind"], s["beta"], s["eps"], l2=s["l2"], **known)
    power = None if meta["power"] is None else _power_from_json(*meta["power"])
    return BankParts(rank, meta["dtype"], transform, classes, moments, rows, factors, meta["source"], power)


def _power_to_json(power: PowerChoice) -> list[object]:
    return [power.beta, list(power.kurtosis.items()), power.kind]


def _power_from_json(beta: float, kurtosis: list[tuple[float, float]], kind: str) -> PowerChoice:
    return PowerChoice(float(beta), {float(b): float(k) for b, k in kurtosis}, str(kind))


class _RowCheck:
    """Compares the rows of a class with their checksum when they are used first; without checksums, are they finite?"""

    def __init__(self, file: Path, sums: list[int] | None) -> None:
        self.file, self.sums = file, sums

    def __call__(self, i: int, rows: Tensor) -> None:
        good = bool(torch.isfinite(rows).all()) if self.sums is None else checksum(rows) == self.sums[i]
        if not good:
            raise FileFormatError(
                f"{self.file} is damaged: rows of its class number {i} are not what was written; get or make it again"
            )


def label_to_json(label: Hashable) -> Any:
    """A class label as JSON has it: str, int, float, bool and None as they are, tuples and bytes wrapped."""
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or isinstance(label, str | bool | int | float):
        return label
    if isinstance(label, tuple):
        return {"tuple": [label_to_json(part) for part in label]}
    if isinstance(label, bytes):
        return {"bytes": label.hex()}
    raise InputError(f"class label {label!r} of type {type(label).__name__} cannot be saved; use str, int or tuple")


def label_from_json(value: Any) -> Hashable:
    """What `label_to_json` was given.

    >>> label_from_json(label_to_json(("oak", 3)))
    ('oak', 3)
    """
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(label_from_json(part) for part in value["tuple"])
        return bytes.fromhex(value["bytes"])
    return cast(Hashable, value)
