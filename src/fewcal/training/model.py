"""What is trained: a backbone with a classifier and a rotation head, and what happens between its stages."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewcal.features.backbone_networks import Backbone, Between


class CosineClassifier(nn.Module):
    """logits = s · cos(features, weights): only directions count, as for the nearest centroid of unit vectors.

    >>> CosineClassifier(4, 3, scale=10.0)(torch.ones(2, 4)).abs().max().item() <= 10
    True
    """

    def __init__(self, dimension: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dimension) / dimension**0.5)
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))


class Learner(nn.Module):
    """pictures → (class logits, rotation logits), in one forward pass, as distributed training wants it."""

    def __init__(self, backbone: Backbone, classes: int, classifier: str, scale: float) -> None:
        super().__init__()
        self.backbone = backbone
        d = backbone.dimension
        self.classifier = CosineClassifier(d, classes, scale) if classifier == "cosine" else nn.Linear(d, classes)
        self.rotation = nn.Linear(d, 4)

    def forward(self, pictures: Tensor, between: Between | None = None) -> tuple[Tensor, Tensor]:
        features = self.backbone(pictures, between).float()
        return self.classifier(features), self.rotation(features)


class Mixing:
    """Manifold mixup: the first `rows` activations that enter stage `layer` are mixed, x ← λx + (1−λ)x[order].

    Verma et al. Manifold mixup: better representations by interpolating hidden states. ICML 2019.
    """

    def __init__(self, layer: int, weight: float, order: Tensor) -> None:
        self.layer, self.weight, self.order, self.rows = layer, weight, order, len(order)

    def __call__(self, i: int, x: Tensor) -> Tensor:
        if i != self.layer:
            return x
        head = x[: self.rows]
        return torch.cat([self.weight * head + (1 - self.weight) * head[self.order], x[self.rows :]])


class DropBlock:
    """Blocks of activations set to zero after the last two stages, the rest scaled up by what is missing.

    Ghiasi, Lin, Le. DropBlock: a regularization method for convolutional networks. NeurIPS 2018.
    """

    def __init__(self, share: float, stages: int, generator: Generator, block: int = 5) -> None:
        self.share, self.after, self.generator, self.block = share, (stages - 1, stages), generator, block

    def __call__(self, i: int, x: Tensor) -> Tensor:
        if i not in self.after:
            return x
        block = min(self.block, (min(x.shape[2:]) + 1) // 2)
        block -= block % 2 == 0  # odd, so that a block has a middle
        centres = torch.rand(x.shape, device=x.device, generator=self.generator) < self.share / block**2
        keep = 1 - F.max_pool2d(centres.float(), block, stride=1, padding=block // 2)
        return x * (keep * (keep.numel() / keep.sum().clamp(min=1))).to(x.dtype)


def chained(*steps: Between | None) -> Between | None:
    """Several of them one after the other; None where there are none."""
    present = [s for s in steps if s is not None]
    if not present:
        return None

    def between(i: int, x: Tensor) -> Tensor:
        for step in present:
            x = step(i, x)
        return x

    return between


class Average:
    """A moving average of a backbone's weights and statistics; better features than those of any one step."""

    def __init__(self, backbone: Backbone, decay: float) -> None:
        self.decay = decay
        self.backbone = copy.deepcopy(backbone).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, backbone: Backbone, step: int) -> None:
        """Move towards the backbone; the first steps count more, so that the start is forgotten soon."""
        decay = min(self.decay, (1 + step) / (10 + step))
        own, new = list(self.backbone.state_dict().values()), list(backbone.state_dict().values())
        floats = [(a, b) for a, b in zip(own, new, strict=True) if a.is_floating_point()]
        torch._foreach_lerp_(  # private of torch: one kernel instead of one for each tensor
            [a for a, _ in floats], [b for _, b in floats], 1 - decay
        )
        for a, b in zip(own, new, strict=True):
            if not a.is_floating_point():
                a.copy_(b)
