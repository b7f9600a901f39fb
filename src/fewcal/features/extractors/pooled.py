"""A model of Hugging Face as a network of pictures → features."""

from __future__ import annotations

import torch
from torch import nn


class Pooled(nn.Module):
    """The model's own pooled vector, or the first token of its last layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self.model, "get_image_features"):
            out = self.model.get_image_features(pixel_values=x)  # type: ignore[operator]
            return out if isinstance(out, torch.Tensor) else out.pooler_output
        out = self.model(pixel_values=x)
        pooled = getattr(out, "pooler_output", None)
        return out.last_hidden_state[:, 0] if pooled is None else pooled
