"""Extractors: functions from pictures, texts or recordings to features, all behind one small interface.

`extractor_table` lists them: bundled networks by name, checkpoints of `fewcal train` by file, models of other libraries
by a prefix (`hf:`, `timm:`, `open_clip:`, `onnx:`).
Options follow a question mark, `hf:NAME?dim=256&prompt=query`; `crops=5` goes with every extractor of pictures. Several
names joined by `+` are computed side by side. From Python also any `torch.nn.Module` and any callable
(`as_extractor`). Nothing is downloaded unless `allow_download` permits it. To add an extractor, write a module beside
this one with a function under `@register(...)`, and import it below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np  # noqa: F401  (for the example below)
import torch

from fewcal._utils.arrays import pick_device
from fewcal.errors import InputError
from fewcal.features.extractors import (  # noqa: F401  (they register)
    checkpoint,
    efficientnet_lite,
    glyphs,
    hugging_face,
    minilm,
    onnx_files,
    vision_models,
    wordllama,
)
from fewcal.features.extractors.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    KINDS,
    REGISTRY,
    EmbedFunction,
    Extractor,
    fingerprint_of,
    from_module,
    with_dimension,
)
from fewcal.features.extractors.combine import find_entry, list_extractors, prefixes, require_extractor

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "EmbedFunction",
    "Extractor",
    "as_extractor",
    "extractor_table",
    "find_entry",
    "get_extractor",
    "list_extractors",
    "prefixes",
    "require_extractor",
]


def get_extractor(name: str, device: str | None = None, allow_download: bool = False) -> Extractor:
    """Return an extractor by its name, computing on `device`."""
    return require_extractor(name).make(name, pick_device(device), allow_download)


def extractor_table() -> list[list[str]]:
    """Return rows of the table of extractors: name, input, D, signs, needs."""
    show = {":": "{}NAME", ".": "FILE{}"}
    rows = []
    for e in REGISTRY.values():
        name = show.get(e.name[-1], show.get(e.name[0], "{}")).format(e.name)
        rows.append([name, e.kind if e.kind == "either" else f"{e.kind}s", e.features, e.signs, e.needs])
    return rows


def as_extractor(
    model: str | Extractor | nn.Module | EmbedFunction,
    *,
    name: str | None = None,
    kind: str = "picture",
    size: int | None = 224,
    crop: float | None = 1.0,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    fingerprint: str | None = None,
    device: str | None = None,
    allow_download: bool = False,
) -> Extractor:
    """Return an extractor from a name, a torch module, or a function.

    A module gets float pictures `(B, 3, size, size)` in 0..1, less `mean`, over `std`. A function gets the batch as it
    is: uint8 `(B, size, size, 3)`, a list of arrays if `size` is None, or a list of texts with `kind="text"`. Their
    result is flattened to `(B, D)`. A function has no weights: `name` (or `fingerprint`) distinguishes it from others.

    >>> mean_colour = as_extractor(lambda x: x.mean(axis=(1, 2)), name="mean colour", size=8)
    >>> mean_colour.dim, mean_colour(np.full((2, 8, 8, 3), 7, np.uint8)).tolist()
    (3, [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]])
    """
    if isinstance(model, str):
        return get_extractor(model, device, allow_download)
    if isinstance(model, Extractor):
        return model
    if kind not in KINDS:
        raise InputError(f"kind={kind!r} must be {' or '.join(map(repr, KINDS))}")
    title: str = name or str(getattr(model, "__qualname__", type(model).__name__))
    if isinstance(model, torch.nn.Module) and kind == "picture":
        made = from_module(model, title, pick_device(device), size=size, crop=crop, mean=mean, std=std)
        return made if fingerprint is None else replace(made, fingerprint=fingerprint)
    if not callable(model):
        raise InputError(f"{model!r} is no extractor; give a name, a torch.nn.Module or a function")
    digest = fingerprint or fingerprint_of(title.encode(), size, crop)
    return with_dimension(Extractor(title, kind, 0, digest, model, size if kind == "picture" else None, crop))
