"""The learner: a backbone with a classifier and a rotation head, and what happens inside and between its stages."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fewcal.features.backbone_networks import Backbone, Between


class CosineClassifier(nn.Module):
    """logits = s · cos(features, weights), with `norms` times a trained number for each class (distLinear of S2M2).

    >>> CosineClassifier(4, 3, scale=10.0)(torch.ones(2, 4)).abs().max().item() <= 10
    True
    """

    def __init__(self, dimension: int, classes: int, scale: float, norms: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dimension) / dimension**0.5)
        # The mean norm of the rows of a new `nn.Linear`, which these are in S2M2.
        self.norms = nn.Parameter(torch.full((classes,), 3**-0.5)) if norms else None
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        logits = self.scale * F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))
        return logits if self.norms is None else logits * self.norms


class Learner(nn.Module):
    """pictures → (class logits, rotation logits), in one forward pass, as distributed training wants it."""

    def __init__(self, backbone: Backbone, classes: int, classifier: str, scale: float) -> None:
        super().__init__()
        self.backbone = backbone
        d = backbone.dimension
        if classifier == "linear":
            self.classifier: nn.Module = nn.Linear(d, classes)
        else:
            self.classifier = CosineClassifier(d, classes, scale, classifier == "cosine-norms")
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


class Dropout:
    """Dropout of what enters the inner convolutions of a backbone, by the generator of the step."""

    def __init__(self, backbone: Backbone, share: float) -> None:
        self.share, self.generator = share, Generator()
        for module in backbone.dropout_places():
            module.register_forward_pre_hook(self)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
        if not module.training:
            return None
        (x,) = inputs
        keep = torch.rand(x.shape, device=x.device, generator=self.generator) >= self.share
        return x * keep.to(x.dtype) / (1 - self.share)


def chained(*steps: Between | None) -> Between | None:
    """Return several steps one after the other; None where there are none."""
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
        get_ema_multi_avg_fn(decay)([a for a, _ in floats], [b for _, b in floats], 0)
        for a, b in zip(own, new, strict=True):
            if not a.is_floating_point():
                a.copy_(b)
