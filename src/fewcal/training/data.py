"""All pictures of a split as one tensor of bytes: decoded once, kept on the device, so that no step waits for them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewcal.errors import InputError
from fewcal.features.extract import find_splits
from fewcal.features.sources.pictures import Pictures, require_pillow


@dataclass(frozen=True, eq=False)
class PixelSplit:
    """Pictures of some classes: pixels `(R, channels, S, S)` uint8, labels `(R,)` int64 in 0..C-1, C class names."""

    pixels: Tensor
    labels: Tensor
    classes: list[str]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8 or self.pixels.shape[2] != self.pixels.shape[3]:
            raise InputError(
                f"pixels are {self.pixels.dtype} of shape {tuple(self.pixels.shape)}; "
                "they must be uint8 of shape (pictures, channels, size, size)"
            )
        if self.labels.shape != self.pixels.shape[:1] or len(self.labels) == 0:
            raise InputError(f"{len(self.pixels)} pictures but labels of shape {tuple(self.labels.shape)}")
        if int(self.labels.min()) < 0 or int(self.labels.max()) >= len(self.classes):
            raise InputError(f"labels must be 0..{len(self.classes) - 1}, one for each class name")

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: torch.device) -> PixelSplit:
        """Return the same on a device."""
        return PixelSplit(self.pixels.to(device), self.labels.to(device), self.classes)

    def thinned(self, count: int) -> PixelSplit:
        """Return so many pictures, evenly spaced, or all where they are fewer."""
        if len(self) <= count:
            return self
        at = torch.linspace(0, len(self) - 1, count, device=self.labels.device).round().long()
        return PixelSplit(self.pixels[at], self.labels[at], self.classes)

    def fingerprint(self) -> str:
        """Return a digest of pixels, labels and names."""
        digest = hashlib.sha256(f"{tuple(self.pixels.shape)}".encode())
        digest.update(np.ascontiguousarray(self.pixels.cpu().numpy()).data)
        digest.update(self.labels.cpu().numpy().astype("<i8").tobytes())
        digest.update("\0".join(self.classes).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_pixels(source: str | os.PathLike[str], size: int, channels: int = 3) -> dict[str, PixelSplit]:
    """Return the splits of a source (`find_splits`), every picture squashed to size × size; base must be there."""
    require_pillow()  # once, rather than an error for every picture
    if channels not in (1, 3):
        raise InputError(f"in_channels={channels}: pictures have 3 channels, or 1 in grey")
    found = find_splits(Path(source), "picture")
    if "features" in found:
        raise InputError(f"{source} has no splits; give base, val and novel as folders, packs or a column 'split'")
    if "base" not in found:
        raise InputError(
            f"{source} has no base split (found: {', '.join(found)}); name it base.npz, *_base.npz or base/"
        )
    splits = {}
    for name, pictures in found.items():
        assert isinstance(pictures, Pictures)
        pixels = torch.from_numpy(pictures.arrays(size)).permute(0, 3, 1, 2)
        if channels == 1:  # the grey value of a colour, as television weighs it
            weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
            grey = [(part.float() * weights).sum(1, keepdim=True).round().byte() for part in pixels.split(256)]
            pixels = torch.cat(grey)
        labels = torch.from_numpy(pictures.label_codes())
        splits[name] = PixelSplit(pixels.contiguous(), labels, pictures.classes)
    return splits
