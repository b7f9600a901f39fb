"""Convolution, batch norm and ReLU6 in one pass over memory, for networks that only compute features.

Batch norm is folded into the weights. On a CPU, oneDNN then clips its results to 0..6, or adds another tensor to them,
while it still holds them.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FusedConv2d(nn.Module):
    """A convolution padded as TensorFlow does it, batch norm, and ReLU6 if asked for, of maps turned by 180°.

    TensorFlow puts the odd pixel of padding at the end. torch only knows equal padding, and padding in a step of its
    own copies the largest maps of a network. Turned by 180°, the odd pixel is at the beginning: then k // 2 pixels at
    both ends do, because a stride of 2 never reaches the last one. So a chain of these, whose kernels are turned too,
    makes of a turned picture the turned maps, of which the mean is the same.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, relu6: bool) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        weight = (conv.weight.double() * scale.view(-1, 1, 1, 1)).flip(2, 3).float()
        bias = (norm.bias.double() - norm.running_mean.double() * scale).float()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.padding, self.stride, self.groups = [k // 2 for k in conv.kernel_size], list(conv.stride), conv.groups
        self.relu6 = relu6

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Maps `(B, C, H, W)` → `(B, C', ⌈H / stride⌉, ⌈W / stride⌉)`, plus others of that shape if there are any."""
        if x.device.type == "cpu" and onednn_fuses():
            return self._in_one_pass(x, plus)
        y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, 1, self.groups)
        y = y if plus is None else y.add_(plus)
        return y.clamp_(0, 6) if self.relu6 else y

    def _in_one_pass(self, x: Tensor, plus: Tensor | None) -> Tensor:
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
    """Whether this build of torch has oneDNN's fused convolutions and they compute what is meant: tried once."""
    conv, norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, eps=0.0)
    one = FusedConv2d(conv, norm, relu6=True)
    x = torch.full((1, 8, 1, 1), 7.0)
    with torch.inference_mode():
        one.weight.copy_(torch.eye(8).view(8, 8, 1, 1))
        one.bias.zero_()
        try:
            clipped, added = one._in_one_pass(x, None), one._in_one_pass(x, -x)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            return False
    return bool((clipped == 6).all() and (added == 0).all())
