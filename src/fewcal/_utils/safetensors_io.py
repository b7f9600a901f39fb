"""Safetensors with a header and checksums of our own: banks, backbones and states of training are kept in them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewcal._utils.atomic import atomic_path
from fewcal._utils.lazy_torch import torch
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError

if TYPE_CHECKING:
    from torch import Tensor

# Where the checksums stand in the header. The metadata of a file have one entry alone: several have no fixed order.
_SUMS = "checksums"


def write_tensors(
    path: StrPath, tensors: Mapping[str, Tensor], header: Mapping[str, object], key: str = "fewcal"
) -> None:
    """Write tensors with `header`, plain values, under `key` in the metadata; the file appears when it is complete."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    plain = json.loads(json.dumps(header, default=str))
    sums = {f"tensor {name}": checksum(t) for name, t in ready.items()} | {"header": _text_sum(plain)}
    text = json.dumps(plain | {_SUMS: sums}, ensure_ascii=False)
    with atomic_path(path) as temporary:
        try:
            save_file(ready, str(temporary), {key: text})
        except SafetensorError as error:  # a full disk, a folder without permission
            raise OSError(str(error)) from error


def read_tensors(
    file: Path, lazy: Collection[str] = (), key: str = "fewcal", device: str = "cpu"
) -> tuple[Any, dict[str, Tensor]]:
    """The header under `key` in the file's metadata (None where none is), and its tensors, memory-mapped.

    Where the file has checksums, all tensors but those named in `lazy` are compared with them, and so read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt", device=device) as f:
            header = json.loads((f.metadata() or {}).get(key, "null"))
            tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError, RecursionError, RuntimeError) as error:
        reason = one_line(error)
        raise FileFormatError(
            f"{file} is not a readable safetensors file (truncated or of another kind): {reason}"
        ) from error
    sums = header.pop(_SUMS, {}) if isinstance(header, dict) else {}
    if not isinstance(sums, dict):
        raise FileFormatError(f"{file} is damaged: its checksums are none; get or make it again")
    if not sums:  # none of ours, or written before there were any
        return header, tensors
    if set(sums) != {"header", *(f"tensor {k}" for k in tensors)}:
        raise FileFormatError(f"{file} is damaged: its checksums are of other tensors; get or make it again")
    found = {"header": _text_sum(header)} | {f"tensor {k}": checksum(t) for k, t in tensors.items() if k not in lazy}
    if wrong := next((name for name, value in found.items() if sums[name] != value), None):
        raise FileFormatError(f"{file} is damaged: {wrong} is not what was written; get or make it again")
    return header, tensors


def _text_sum(value: object) -> int:
    return zlib.crc32(json.dumps(value).encode())


def checksum(tensor: Tensor) -> int:
    """Of a tensor's bytes in memory.

    >>> checksum(torch.zeros(2)) == checksum(torch.zeros(2)), checksum(torch.zeros(2)) == checksum(torch.ones(2))
    (True, False)
    """
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(raw.numpy().data)
