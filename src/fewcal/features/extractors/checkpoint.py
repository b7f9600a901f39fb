"""Backbones of `fewcal train` by their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fewcal.errors import FileFormatError
from fewcal.features.backbones import checkpoint_header, load_checkpoint, mean_features
from fewcal.features.extractors.base import Extractor, fingerprint_of, register

MAX_SIZE = 4096  # as in TrainSettings; a larger picture does not fit into memory by the batch


@register(".safetensors", kind="picture", needs="a checkpoint of `fewcal train`", check=checkpoint_header)
def checkpoint(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the features of `fewcal train`: whole pictures, and mirrored, at the size chosen on validation."""
    model, meta = load_checkpoint(name)
    model = model.to(device)
    wanted = meta.get("test_size") or model.settings.get("size") or 84
    sizes = [z for z in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(z, int) and 4 <= z <= MAX_SIZE]
    if not sizes or (isinstance(wanted, list) and len(sizes) < len(wanted)):
        raise FileFormatError(f"{name}: its test_size is {wanted!r}; sizes are whole numbers of 4 to {MAX_SIZE} pixels")
    mirror = "test_size" in meta
    grey = torch.tensor([0.299, 0.587, 0.114], device=device).view(1, 3, 1, 1)

    def embed(pictures: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2).float() / 255
        x = (x * grey).sum(dim=1, keepdim=True) if model.in_channels == 1 else x
        return mean_features(model, x, sizes, flip=mirror)

    fingerprint = fingerprint_of(Path(name).read_bytes(), wanted, mirror)
    return Extractor(name, "picture", model.dimension, fingerprint, embed, max(sizes), None)
