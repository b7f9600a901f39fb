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

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewcal._utils.names import nearest_names
from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal._utils.text import one_line
from fewcal._utils.types import JSON, StrPath
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError

FORMAT = "fewcal-backbone"
FORMAT_VERSION = 1
# About the mean and the spread of photographs; one number for all channels, so that grey pictures need no other.
_MEAN, _SPREAD = 0.45, 0.225

Between = Callable[[int, Tensor], Tensor]


class Backbone(nn.Module):
    """Stages one after the other, then pooling to one vector a picture.

    Attributes
    ----------
    name : str and settings : dict, what `make_backbone` needs to build the same again
    dimension : int, D
    least : int, the smallest height and width that the stages can take
    """

    name = "backbone"
    least = 1

    def __init__(self, stages: list[nn.Module], dimension: int, **settings: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.dimension = dimension
        self.settings = settings
        self.in_channels = settings["in_channels"]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pictures: Tensor, between: Between | None = None) -> Tensor:
        """features (B, D). `between(i, x)` may change what enters stage i, and with i = number of stages what leaves
        the last one: manifold mixup and DropBlock come in here."""
        if pictures.ndim != 4 or pictures.shape[1] != self.in_channels or min(pictures.shape[2:]) < self.least:
            raise InputError(
                f"{self.name} got pictures of shape {tuple(pictures.shape)}; it takes (pictures, {self.in_channels}, "
                f"height, width) of at least {self.least}×{self.least}"
            )
        x = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures
        x = (x - _MEAN) / _SPREAD
        for i, stage in enumerate(self.stages):
            x = stage(x if between is None else between(i, x))
        return self.pool(x if between is None else between(len(self.stages), x))

    def pool(self, x: Tensor) -> Tensor:
        """Feature maps (B, D, h, w) → features (B, D), by default their mean."""
        return x.mean(dim=(2, 3))


class Conv4(Backbone):
    """Four times convolution, batch norm, ReLU, max pooling; flattened.

    `size` is the height and width of the pictures it is meant for, which decides D = channels · (size // 16)²;
    others are taken as long as they give the same D.

    >>> Conv4(channels=32, in_channels=1, size=32)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 128])
    """

    name, least = "conv4", 16

    def __init__(self, channels: int = 64, in_channels: int = 3, size: int = 84) -> None:
        if size < self.least:
            raise InputError(f"conv4: size={size} is too small; pictures need at least {self.least}×{self.least}")
        widths = [in_channels, channels, channels, channels, channels]
        stages: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in pairwise(widths)
        ]
        super().__init__(stages, channels * (size // 16) ** 2, channels=channels, in_channels=in_channels, size=size)

    def pool(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if flat.shape[1] != self.dimension:
            size = self.settings["size"]
            raise InputError(
                f"conv4 is built for pictures of {size}×{size} ({self.dimension} features), these would give "
                f"{flat.shape[1]}; resize them, or build it with another size"
            )
        return flat


class ResNet12(Backbone):
    """Four residual stages of three convolutions with 64, 160, 320 and 640 channels (`width` is a tenth of the last).

    The last activation is a plain ReLU instead of a leaky one: the features are then ≥ 0, as Tukey's transform wants.

    >>> ResNet12(width=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    name, least = "resnet12", 16

    def __init__(self, width: int = 64, in_channels: int = 3) -> None:
        widths = [in_channels, width, 5 * width // 2, 5 * width, 10 * width]
        stages: list[nn.Module] = [
            _PlainBlock(a, b, nn.LeakyReLU(0.1), nn.ReLU() if b == widths[-1] else nn.LeakyReLU(0.1))
            for a, b in pairwise(widths)
        ]
        super().__init__(stages, widths[-1], width=width, in_channels=in_channels)


class _PlainBlock(nn.Module):
    """x → pool(act(conv³(x) + 1×1 conv(x))): a stage of ResNet-12, halving height and width."""

    def __init__(self, inside: int, out: int, act: nn.Module, last: nn.Module) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, channels in enumerate((inside, out, out)):
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)]
            layers += [act] if i < 2 else []
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, bias=False), nn.BatchNorm2d(out))
        self.end = nn.Sequential(last, nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.body(x) + self.shortcut(x))
        return out


class WideResNet(Backbone):
    """Wide residual network, pre-activation, depth 6n + 4; with `projection` a linear map to that many features.

    >>> WideResNet(depth=10, width=1, projection=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8])
    """

    name, least = "wrn28-10", 4

    def __init__(self, depth: int = 28, width: int = 10, projection: int = 0, in_channels: int = 3) -> None:
        if depth < 10 or (depth - 4) % 6:
            raise InputError(f"wrn: depth={depth} is not 6n + 4; use 10, 16, 22, 28, …")
        widths = [16, 16 * width, 32 * width, 64 * width]
        stages: list[nn.Module] = [nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)]
        for i in range(3):
            n = (depth - 4) // 6
            stages.append(
                nn.Sequential(
                    *(
                        _PreActivationBlock(
                            widths[i] if j == 0 else widths[i + 1], widths[i + 1], 2 if i > 0 and j == 0 else 1
                        )
                        for j in range(n)
                    )
                )
            )
        super().__init__(
            [nn.Sequential(*stages[:2]), *stages[2:]],  # the first convolution belongs to the first stage
            projection or widths[-1],
            depth=depth,
            width=width,
            projection=projection,
            in_channels=in_channels,
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.projection = nn.Linear(widths[-1], projection) if projection else nn.Identity()

    def pool(self, x: Tensor) -> Tensor:
        features: Tensor = self.projection(torch.relu(self.norm(x)).mean(dim=(2, 3)))
        return features


class _PreActivationBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(inside), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(inside, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )
        self.shortcut = nn.Conv2d(inside, out, 1, stride, bias=False) if inside != out else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.first(x)
        # The shortcut of a block that changes the width starts after the activation, that of the others before.
        out: Tensor = self.body(active) + (x if self.shortcut is None else self.shortcut(active))
        return out


# Name -> class and the settings that the name stands for.
BACKBONES: dict[str, tuple[type[Backbone], dict[str, int]]] = {
    "wrn28-10": (WideResNet, {"depth": 28, "width": 10, "projection": 0}),
    "wrn28-10-p64": (WideResNet, {"depth": 28, "width": 10, "projection": 64}),
    "resnet12": (ResNet12, {}),
    "conv4": (Conv4, {}),
}


def make_backbone(name: str, **settings: int) -> Backbone:
    """A backbone by its name, freshly initialised from torch's generator.

    >>> net = make_backbone("conv4")
    >>> net.dimension, parameter_count(net)
    (1600, 113088)
    """
    if name not in BACKBONES:
        raise InputError(f"backbone {name!r} is unknown{nearest_names(name, BACKBONES)}")
    kind, fixed = BACKBONES[name]
    known = {k: p.default for k, p in inspect.signature(kind).parameters.items()} | fixed
    for key, value in settings.items():
        if key not in known:
            raise InputError(f"backbone {name!r} has no setting {key!r}{nearest_names(key, known)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if key == "projection" else 1):
            raise InputError(f"backbone {name!r}: {key}={value!r} must be a whole number above 0")
    chosen = known | settings
    net = kind(**chosen)
    net.name = name
    return net


def mean_features(backbone: Backbone, x: Tensor, size: int | Sequence[int], *, flip: bool) -> Tensor:
    """Features (B, D) of pictures x (B, C, H, W) in 0..1: the mean over sizes and, with `flip`, over mirror images."""
    sizes = (size,) if isinstance(size, int) else tuple(size)
    total: Tensor | None = None
    for z in sizes:
        sized = x
        if x.shape[-2:] != (z, z):
            sized = F.interpolate(x, (z, z), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        sized = sized.contiguous(memory_format=torch.channels_last)
        features = backbone(sized).float()
        if flip:
            features = (features + backbone(sized.flip(3)).float()) / 2
        total = features if total is None else total + features
    assert total is not None
    return total / len(sizes)


def parameter_count(model: nn.Module) -> int:
    """Trainable numbers of a model."""
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
    """The backbone of a checkpoint on the CPU, ready for extraction (`eval`), and the `meta` it was saved with.

    With `backbone` a checkpoint of another architecture is refused.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no checkpoint at {file}; train one with `fewcal train`")
    header, tensors = read_tensors(file)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileFormatError(f"{file} is a safetensors file, but not a backbone that fewcal saved")
    if header.get("version") != FORMAT_VERSION:
        raise FileFormatError(
            f"{file} has checkpoint format {header.get('version')}, this fewcal {__version__} reads {FORMAT_VERSION}; "
            f"use fewcal {header.get('fewcal')}"
        )
    name, settings = header.get("backbone"), header.get("settings") or {}
    if backbone is not None and name != backbone:
        raise InputError(f"{file} holds a {name}, not a {backbone}; give another checkpoint or --backbone {name}")
    try:
        net = make_backbone(str(name), **settings)
        net.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
    except (TypeError, RuntimeError, ValueError) as error:
        reason = one_line(error)
        raise FileFormatError(f"{file}: its weights are not those of a {name} with {settings} ({reason})") from error
    meta = header.get("meta")
    return net.eval(), meta if isinstance(meta, dict) else {}
