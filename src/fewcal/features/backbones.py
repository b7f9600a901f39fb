"""The paper's backbones, pictures (B, channels, H, W) → features (B, D), and their checkpoints.

| name | D | parameters | signs | source |
|---|---|---|---|---|
| `wrn28-10` | 640 | 36 472 784 | ≥ 0 | Zagoruyko, Komodakis 2016; S2M2, Mangla et al. 2020 |
| `wrn28-10-p64` | 64 | 36 513 808 | signed | the same with a linear projection on top |
| `resnet12` | 640 | 12 424 320 | ≥ 0 | Lee et al. 2019 (MetaOptNet), channels 64-160-320-640 |
| `conv4` | 1600 at 84×84 | 113 088 | ≥ 0 | Vinyals et al. 2016; Chen et al. 2019 |

Pictures are floats in 0..1 or uint8 in 0..255: bringing them to the scale of the first layer is part of the backbone,
so that a checkpoint needs no advice about preprocessing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import interpolate

from fewcal._utils.names import nearest_names
from fewcal._utils.safetensors_io import read_header, read_tensors, write_tensors
from fewcal._utils.text import one_line
from fewcal._utils.types import JSON, StrPath
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fewcal.features.backbone_networks import Backbone

FORMAT = "fewcal-backbone"
FORMAT_VERSION = 1
# Name -> class in `backbone_networks`, and all its settings as the name stands for them.
BACKBONES: dict[str, tuple[str, dict[str, int]]] = {
    "wrn28-10": ("WideResNet", {"depth": 28, "width": 10, "projection": 0, "in_channels": 3}),
    "wrn28-10-p64": ("WideResNet", {"depth": 28, "width": 10, "projection": 64, "in_channels": 3}),
    "resnet12": ("ResNet12", {"width": 64, "in_channels": 3}),
    "conv4": ("Conv4", {"channels": 64, "in_channels": 3, "size": 84}),
}


def checked_settings(name: str, settings: Mapping[str, int]) -> dict[str, int]:
    """Return all settings of a backbone, with these changes; unknown names and settings are refused.

    >>> checked_settings("resnet12", {"width": 32})
    {'width': 32, 'in_channels': 3}
    """
    if name not in BACKBONES:
        raise InputError(f"backbone {name!r} is unknown{nearest_names(name, BACKBONES)}")
    defaults = BACKBONES[name][1]
    for key, value in settings.items():
        if key not in defaults:
            raise InputError(f"backbone {name!r} has no setting {key!r}{nearest_names(key, defaults)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if key == "projection" else 1):
            raise InputError(f"backbone {name!r}: {key}={value!r} must be a whole number above 0")
    return defaults | dict(settings)


def make_backbone(name: str, **settings: int) -> Backbone:
    """Return a backbone by its name, freshly initialised from torch's generator.

    >>> net = make_backbone("conv4")
    >>> net.dimension, parameter_count(net)
    (1600, 113088)
    """
    chosen = checked_settings(name, settings)
    from fewcal.features import backbone_networks

    net: Backbone = getattr(backbone_networks, BACKBONES[name][0])(**chosen)
    net.name = name
    return net


def mean_features(backbone: Backbone, x: Tensor, size: int | Sequence[int], *, flip: bool) -> Tensor:
    """Return features `(B, D)` of pictures x `(B, C, H, W)` in 0..1.

    They are the mean over sizes and, with `flip`, over mirror images.
    """

    def sized(z: int) -> Tensor:
        if x.shape[-2:] != (z, z):
            resized = interpolate(x, (z, z), mode="bicubic", antialias=True, align_corners=False)
            return resized.clamp(0, 1).contiguous(memory_format=torch.channels_last)
        return x.contiguous(memory_format=torch.channels_last)

    def features(pictures: Tensor) -> Tensor:
        out: Tensor = backbone(pictures).float()
        return (out + backbone(pictures.flip(3)).float()) / 2 if flip else out

    rows = [features(sized(z)) for z in ((size,) if isinstance(size, int) else size)]
    return functools.reduce(torch.add, rows) / len(rows)


def parameter_count(model: nn.Module) -> int:
    """Return how many trainable numbers a model has."""
    return sum(p.numel() for p in model.parameters())


def save_checkpoint(
    path: StrPath,
    model: Backbone,
    meta: Mapping[str, JSON] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the weights as safetensors, with name, settings and `meta` (plain values) in the header; atomically.

    `dtype` (torch.float16, torch.bfloat16) makes a smaller file; weights come back as float32.
    """
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fewcal": __version__,
        "backbone": model.name,
        "settings": model.settings,
        "meta": meta or {},
    }
    tensors = {
        key: value.to(dtype) if dtype is not None and value.is_floating_point() else value
        for key, value in model.state_dict().items()
    }
    write_tensors(path, tensors, header)


def load_checkpoint(path: StrPath, backbone: str | None = None) -> tuple[Backbone, dict[str, JSON]]:
    """Return the backbone of a checkpoint on the CPU, ready for extraction (`eval`), and the `meta` it was saved with.

    With `backbone` a checkpoint of another architecture is refused.
    """
    file, header = Path(path), checkpoint_header(path)
    name, settings = header.get("backbone"), header.get("settings") or {}
    if backbone is not None and name != backbone:
        raise InputError(f"{file} holds a {name}, not a {backbone}; give another checkpoint or --backbone {name}")
    _, tensors = read_tensors(file)
    try:
        net = make_backbone(str(name), **settings)
        net.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
    except (TypeError, RuntimeError, ValueError) as error:
        reason = one_line(error)
        raise FileFormatError(f"{file}: its weights are not those of a {name} with {settings} ({reason})") from error
    meta = header.get("meta")
    return net.eval(), meta if isinstance(meta, dict) else {}


def checkpoint_header(path: StrPath) -> dict[str, Any]:
    """Return the header of a checkpoint; a damaged, foreign or newer file is refused without a look at its weights."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no checkpoint at {file}; train one with `fewcal train`")
    header = read_header(file)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileFormatError(f"{file} is a safetensors file, but not a backbone that fewcal saved")
    if header.get("version") != FORMAT_VERSION:
        raise FileFormatError(
            f"{file} has checkpoint format {header.get('version')}, this fewcal {__version__} reads {FORMAT_VERSION}; "
            f"use fewcal {header.get('fewcal')}"
        )
    return header
