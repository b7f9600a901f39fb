"""Safetensors with a header and checksums of our own: banks, backbones and states of training are kept in them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.atomic import atomic_path
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError

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


def read_header(file: Path, key: str = "fewcal") -> Any:
    """The header under `key` in the file's metadata, None where none is; tensors are not looked at.

    A file that is damaged before its tensors, ends too early or is of another kind is refused, without torch.
    """
    with _opened(file, "numpy") as f:
        return _header_and_sums(file, f, key)[0]


def read_arrays(file: Path, key: str = "fewcal") -> tuple[Any, dict[str, np.ndarray]]:
    """As `read_tensors`, with NumPy alone."""
    with _opened(file, "numpy") as f:
        header, sums = _header_and_sums(file, f, key)
        arrays = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  (not a dict)
    _compare(file, sums, arrays, lambda name: _bytes_sum(arrays[name]))
    return header, arrays


def read_tensors(
    file: Path, lazy: Collection[str] = (), key: str = "fewcal", device: str = "cpu"
) -> tuple[Any, dict[str, Tensor]]:
    """The header under `key` in the file's metadata (None where none is), and its tensors, memory-mapped.

    Where the file has checksums, all tensors but those named in `lazy` are compared with them, and so read.
    """
    with _opened(file, "pt", device) as f:
        header, sums = _header_and_sums(file, f, key)
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  (not a dict)
    _compare(file, sums, tensors, lambda name: sums[f"tensor {name}"] if name in lazy else checksum(tensors[name]))
    return header, tensors


@contextmanager
def _opened(file: Path, framework: str, device: str = "cpu") -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if file.is_dir():
        raise FileFormatError(f"{file} is a folder; give a file in it")
    try:
        with safe_open(str(file), framework=framework, device=device) as f:
            yield f
    except FileFormatError:
        raise
    except (SafetensorError, OSError, TypeError, ValueError, RecursionError, RuntimeError) as error:
        reason = one_line(error)
        raise FileFormatError(
            f"{file} is not a readable safetensors file (truncated or of another kind): {reason}"
        ) from error


def _header_and_sums(file: Path, f: Any, key: str) -> tuple[Any, dict[str, int]]:
    """The header, compared with its checksum, and all checksums; none where it is none of ours, or older than they."""
    header = json.loads((f.metadata() or {}).get(key, "null"))
    sums = header.pop(_SUMS, {}) if isinstance(header, dict) else {}
    if not isinstance(sums, dict):
        raise FileFormatError(f"{file} is damaged: its checksums are none; get or make it again")
    if sums and set(sums) != {"header", *(f"tensor {k}" for k in f.keys())}:  # noqa: SIM118
        raise FileFormatError(f"{file} is damaged: its checksums are of other tensors; get or make it again")
    if sums and sums["header"] != _text_sum(header):
        raise FileFormatError(f"{file} is damaged: header is not what was written; get or make it again")
    return header, sums


def _compare(file: Path, sums: Mapping[str, int], names: Iterable[str], found: Callable[[str], int]) -> None:
    if sums and (wrong := next((name for name in names if sums[f"tensor {name}"] != found(name)), None)):
        raise FileFormatError(f"{file} is damaged: tensor {wrong} is not what was written; get or make it again")


def _text_sum(value: object) -> int:
    return zlib.crc32(json.dumps(value).encode())


def _bytes_sum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def checksum(tensor: Tensor) -> int:
    """Of a tensor's bytes in memory.

    >>> checksum(torch.zeros(2)) == checksum(torch.zeros(2)), checksum(torch.zeros(2)) == checksum(torch.ones(2))
    (True, False)
    """
    return _bytes_sum(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
