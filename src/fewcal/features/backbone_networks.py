"""Networks of the paper's backbones; `fewcal.features.backbones` makes them by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from fewcal.errors import InputError

# About the mean and the spread of photographs; one number for all channels, so that grey pictures need no other.
_MEAN, _SPREAD = 0.45, 0.225

Between = Callable[[int, Tensor], Tensor]


class Backbone(nn.Module):
    """Stages one after the other, then pooling to one vector a picture.

    Attributes
    ----------
    name, settings : arguments with which `make_backbone` builds the same again
    dimension : D
    min_size : the smallest height and width that the stages take
    """

    name = "backbone"
    min_size = 1

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
        """Return features `(B, D)`.

        `between(i, x)` may change what enters stage i, and with i = number of stages what leaves the last one: manifold
        mixup and DropBlock come in here.
        """
        if pictures.ndim != 4 or pictures.shape[1] != self.in_channels or min(pictures.shape[2:]) < self.min_size:
            raise InputError(
                f"{self.name} got pictures of shape {tuple(pictures.shape)}; it takes (pictures, {self.in_channels}, "
                f"height, width) of at least {self.min_size}×{self.min_size}"
            )
        x = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures
        x = (x - _MEAN) / _SPREAD
        for i, stage in enumerate(self.stages):
            x = stage(x if between is None else between(i, x))
        return self.pool(x if between is None else between(len(self.stages), x))

    def pool(self, x: Tensor) -> Tensor:
        """Return features `(B, D)` of feature maps `(B, D, h, w)`, by default their mean."""
        return x.mean(dim=(2, 3))

    def dropout_places(self) -> list[nn.Module]:
        """Return the modules whose input dropout is for: the second convolutions of wide residual blocks."""
        return [module.body[-1] for module in self.modules() if isinstance(module, _PreActivationBlock)]


class Conv4(Backbone):
    """Four times convolution, batch norm, ReLU, max pooling; flattened.

    `size` is the height and width of the pictures it is meant for, which decides D = channels · (size // 16)²;
    others are taken as long as they give the same D.

    >>> Conv4(channels=32, in_channels=1, size=32)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 128])
    """

    name, min_size = "conv4", 16

    def __init__(self, channels: int, in_channels: int, size: int) -> None:
        if size < self.min_size:
            raise InputError(f"conv4: size={size} is too small; pictures need at least {self.min_size}×{self.min_size}")
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

    >>> ResNet12(width=1, in_channels=3)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    name, min_size = "resnet12", 16

    def __init__(self, width: int, in_channels: int) -> None:
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

    >>> WideResNet(depth=10, width=1, projection=8, in_channels=3)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8])
    """

    name, min_size = "wrn28-10", 4

    def __init__(self, depth: int, width: int, projection: int, in_channels: int) -> None:
        if depth < 10 or (depth - 4) % 6:
            raise InputError(f"wrn: depth={depth} is not 6n + 4; use 10, 16, 22, 28, …")
        widths = [16, 16 * width, 32 * width, 64 * width]
        first = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        stages: list[nn.Module] = []
        for i, (inside, out) in enumerate(pairwise(widths)):
            blocks = [_PreActivationBlock(inside, out, 2 if i > 0 else 1)]
            blocks += [_PreActivationBlock(out, out, 1) for _ in range((depth - 4) // 6 - 1)]
            stages.append(nn.Sequential(*blocks))
        super().__init__(
            [nn.Sequential(first, stages[0]), *stages[1:]],  # the first convolution belongs to the first stage
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
    """x → conv²(norm(x)) + x, each convolution after batch norm and ReLU."""

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
