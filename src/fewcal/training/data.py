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
from fewcal.features.featureset import SPLITS
from fewcal.features.sources.pictures import Pictures, find_pictures


@dataclass(frozen=True, eq=False)
class PixelSplit:
    """Pictures of some classes: pixels (R, channels, S, S) uint8, labels (R,) int64 in 0..C-1, C class names."""

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
        """The same on a device."""
        return PixelSplit(self.pixels.to(device), self.labels.to(device), self.classes)

    def thinned(self, most: int) -> PixelSplit:
        """At most `most` pictures, evenly spaced."""
        if len(self) <= most:
            return self
        at = torch.linspace(0, len(self) - 1, most, device=self.labels.device).round().long()
        return PixelSplit(self.pixels[at], self.labels[at], self.classes)

    def fingerprint(self) -> str:
        """A hex digest of pixels, labels and names."""
        digest = hashlib.sha256(f"{tuple(self.pixels.shape)}".encode())
        digest.update(np.ascontiguousarray(self.pixels.cpu().numpy()).data)
        digest.update(self.labels.cpu().numpy().astype("<i8").tobytes())
        digest.update("\0".join(self.classes).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_pixels(source: str | os.PathLike[str], size: int, channels: int = 3) -> dict[str, PixelSplit]:
    """The splits of a source, every picture squashed to size × size.

    `source` is a folder that holds base, val and novel, each as a pack (`base.npz`, `cub_base.npz`) or as a folder
    with one folder a class; or a CSV list with the columns path, label and split. Only base must be there.
    """
    try:
        import PIL  # noqa: F401  (once, rather than an error for every picture)
    except ImportError as error:
        raise InputError("pictures need the package Pillow: pip install 'fewcal[images]'") from error
    path = Path(source)
    found = _listed(path) if path.suffix.lower() == ".csv" else _in_folder(path)
    if "base" not in found:
        have = ", ".join(found) or "none"
        raise InputError(f"{path} has no base split (found: {have}); name it base.npz, *_base.npz or a folder base/")
    splits = {}
    for name in SPLITS:
        if name in found:
            pictures = found[name]
            array = pictures.arrays(size)  # (R, S, S, 3)
            pixels = torch.from_numpy(array).permute(0, 3, 1, 2)
            if channels == 1:  # the grey value of a colour, as television weighs it
                weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
                pixels = torch.cat(
                    [(p.float() * weights).sum(1, keepdim=True).round().byte() for p in pixels.split(256)]
                )
            elif channels != 3:
                raise InputError(f"in_channels={channels}: pictures have 3 channels, or 1 in grey")
            labels = torch.from_numpy(pictures.label_codes())
            splits[name] = PixelSplit(pixels.contiguous(), labels, pictures.classes)
    _refuse_leaks(splits)
    return splits


def _in_folder(folder: Path) -> dict[str, Pictures]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; give a folder that holds base, val and novel, or a CSV list")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        stem = path.stem if path.suffix.lower() == ".npz" else path.name if path.is_dir() else ""
        name = stem.rpartition("_")[2]
        if name in SPLITS and not path.name.startswith("."):
            if name in found:
                raise InputError(f"{folder} holds both {found[name].name} and {path.name}; keep one of them")
            found[name] = path
    return {name: find_pictures(path) for name, path in found.items()}


def _listed(path: Path) -> dict[str, Pictures]:
    pictures = find_pictures(path)
    if pictures.splits is None:
        raise InputError(f"{path} has no column 'split'; say base, val or novel for every picture")
    if odd := set(pictures.splits) - set(SPLITS):
        raise InputError(f"{path}: split {sorted(odd)[0]!r} is unknown; use base, val or novel")
    splits = np.array(pictures.splits)
    return {name: pictures.take(np.flatnonzero(splits == name)) for name in SPLITS if (splits == name).any()}


def _refuse_leaks(splits: dict[str, PixelSplit]) -> None:
    base = set(splits["base"].classes)
    for name in ("val", "novel"):
        if name in splits and (both := sorted(base & set(splits[name].classes))):
            raise InputError(f"class {both[0]!r} is in base and in {name}; a backbone must not see its test classes")
