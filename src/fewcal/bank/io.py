"""Banks in safetensors files, and class labels in JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.safetensors_io import checksum, read_header, read_tensors, write_tensors
from fewcal._version import __version__
from fewcal.bank.moments import Moments
from fewcal.bank.rows import RowStore
from fewcal.errors import FileFormatError, InputError
from fewcal.gaussianize import Gaussianization
from fewcal.power_choice import PowerChoice

if TYPE_CHECKING:
    from fewcal.bank.core import BaseBank

FORMAT = "fewcal-bank"
FORMAT_VERSION = 1


def fingerprint(bank: BaseBank) -> str:
    """A hash of classes, counts, moments and transform: the same data give the same bank."""
    h = hashlib.sha256()
    h.update(json.dumps([label_to_json(c) for c in bank.classes]).encode())
    shift = [] if bank.shift is None else [bank.shift]
    for t in (bank.counts, bank.means, bank.within_scatter, *shift):
        h.update(np.ascontiguousarray(t.cpu().numpy()).tobytes())
    if bank.transform is not None:
        h.update(json.dumps(bank.transform.settings()).encode())
    return h.hexdigest()


def write_bank(bank: BaseBank, target: Path) -> Path:
    """Write a bank. The file appears under its name only when it is complete."""
    if not bank.classes:
        raise InputError("the bank is empty; fit it on base rows first")  # a part may hold single rows: no check()
    power = bank.power_choice()
    tensors = bank.moments.tensors()
    meta: dict[str, object] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fewcal": __version__,
        "classes": [label_to_json(c) for c in bank.classes],
        "keep_rows": bank.keep_rows,
        "dtype": bank.dtype,
        "fingerprint": bank.fingerprint,
        "source": bank.source,
        "transform": None if bank.transform is None else bank.transform.settings(),
        "power": [power.beta, list(power.kurtosis.items()), power.kind],
    }
    if bank.shift is not None:
        tensors["shift"] = bank.shift
    if bank.transform is not None:
        tensors |= {f"transform.{name}": t for name, t in bank.transform.tensors().items()}
    if bank.row_store is not None:  # checked class by class: whoever uses some of them reads no others
        tensors["rows"] = bank.row_store.joined()
        meta["row_sums"] = [checksum(bank.row_store.of_class(i)) for i in range(len(bank))]
    write_tensors(target, tensors, meta)
    return target


def read_bank(file: Path) -> tuple[dict[str, Any], str]:
    """The attributes of a bank and its fingerprint; tensors stay memory-mapped until they are used."""
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
        return _attributes(file, meta, tensors), str(meta["fingerprint"])
    except (AttributeError, IndexError, InputError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"{file} is damaged: its parts do not fit together ({error})") from error


def _attributes(file: Path, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What `write_bank` wrote; errors of any kind where the parts do not fit together."""
    classes = [label_from_json(c) for c in meta["classes"]]
    moments = Moments.from_tensors(tensors, len(classes))
    if bool((moments.counts < 1).any()):
        raise ValueError("a class has no rows")
    for name, tensor in tensors.items():
        # Extremes are as telling as a test of each number, which would take a quarter of the file in memory.
        if name != "rows" and tensor.is_floating_point() and not all(torch.stack(tensor.aminmax()).isfinite()):
            raise ValueError(f"{name} has NaN or infinity")
    rows, keep_rows = None, meta["keep_rows"]
    if not isinstance(keep_rows, bool) or keep_rows != ("rows" in tensors):
        raise ValueError(f"keep_rows is {keep_rows!r}, and rows are {'there' if 'rows' in tensors else 'missing'}")
    if keep_rows:
        x, d = tensors["rows"], moments.means.shape[1]
        if x.ndim != 2 or x.shape[1] != d:
            raise ValueError(f"rows have shape {tuple(x.shape)}, expected {d} features")
        sums = list(map(int, meta["row_sums"]))

        def check(i: int, own: Tensor) -> None:
            if checksum(own) != sums[i]:
                raise FileFormatError(
                    f"{file} is damaged: rows of its class number {i} are not what was written; get or make it again"
                )

        rows = RowStore.from_joined(x, moments.counts.tolist(), check)
        if len(sums) != len(classes):
            raise ValueError(f"{len(sums)} checksums of {len(classes)} classes")
    beta, kurtosis, kind = meta["power"]
    s = meta["transform"]
    return {
        "keep_rows": keep_rows,
        "dtype": meta["dtype"],
        "transform": None if s is None else Gaussianization.from_settings(s, tensors),
        "power": PowerChoice(float(beta), {float(b): float(k) for b, k in kurtosis}, str(kind)),
        "source": meta["source"],
        "classes": classes,
        "moments": moments,
        "row_store": rows,
        "shift": tensors.get("shift"),
    }


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
