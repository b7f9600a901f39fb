"""Safetensors with a header of our own: banks and backbones are kept in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from fewcal.errors import FileFormatError


def read_tensors(file: Path) -> tuple[Any, dict[str, Tensor]]:
    """What stands under "fewcal" in the file's metadata (None where nothing does), and its tensors, memory-mapped."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as f:
            header = json.loads((f.metadata() or {}).get("fewcal", "null"))
            return header, {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(
            f"{file} is not a readable safetensors file (truncated or of another kind): {error}"
        ) from error
