"""`.pt` of torch, without pickles: `{"features", "labels", "classes"}`, (features, labels), or `{class: vectors}`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit


def read_pt(path: Path) -> RawSplit:
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, torch.Tensor):
        content = {"features": content}
    if isinstance(content, tuple | list) and len(content) == 2:
        content = {"features": content[0], "labels": content[1]}
    if not isinstance(content, dict) or not content:
        kind = type(content).__name__
        raise FileFormatError(f"{path} holds a {kind}; save a dictionary of features and labels, or {{class: vectors}}")
    if "features" in content:
        parts = {part: content[part] for part in ("features", "labels", "classes") if content.get(part) is not None}
        return RawSplit(**{part: _array(path, value) for part, value in parts.items()})
    blocks = [_array(path, block) for block in content.values()]
    if odd := [block.shape for block in blocks if block.ndim != 2]:
        raise FileFormatError(f"{path} has a class of shape {odd[0]}; it needs (rows, D)")
    keys = list(content)
    labels = np.repeat(np.arange(len(keys)) if isinstance(keys[0], str) else keys, [len(block) for block in blocks])
    return RawSplit(np.concatenate(blocks), labels, keys if isinstance(keys[0], str) else None)


def _array(path: Path, value: object) -> np.ndarray:
    """Return a tensor, or a list of tensors or numbers, as an array."""
    import torch

    if isinstance(value, list | tuple) and value and all(isinstance(x, torch.Tensor) for x in value):
        return np.stack([_array(path, x) for x in value])
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise FileFormatError(
            f"{path} has a tensor of shape {tuple(value.shape)} with fewer numbers; save it contiguous"
        )
    return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).detach().numpy())


FORMAT = FileFormat((".pt", ".pth"), read_pt)
