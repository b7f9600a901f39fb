"""Augmentation of whole batches on the device, in plain torch; every random number comes from the generator given."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

_GREY = 0.45


def augment(
    pixels: Tensor, size: int, generator: Generator, *, min_area: float = 0.3, jitter: float = 0.4, erase: float = 0.0
) -> Tensor:
    """Return pictures `(B, c, S, S)` uint8 as floats `(B, c, size, size)` in 0..1, changed at random.

    >>> g = torch.Generator().manual_seed(0)
    >>> augment(torch.zeros(2, 3, 92, 92, dtype=torch.uint8), 84, g).shape
    torch.Size([2, 3, 84, 84])
    """
    x = random_crop_flip(pixels.float() / 255, size, generator, min_area)
    if jitter > 0:
        x = jitter_colours(x, jitter, generator)
    return erase_rectangles(x, erase, generator) if erase > 0 else x


def _uniform(like: Tensor, generator: Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return one number a picture, `(B,)`."""
    return torch.rand(len(like), device=like.device, generator=generator) * (high - low) + low


def random_boxes(like: Tensor, generator: Generator, min_area: float, max_area: float = 1.0) -> tuple[Tensor, ...]:
    """Return left, top, width and height `(B,)` of boxes, as shares of the picture, which they do not leave.

    Areas and aspect ratios (3/4..4/3) are random.
    """
    area = _uniform(like, generator, min_area, max_area)
    ratio = torch.exp(_uniform(like, generator, math.log(3 / 4), math.log(4 / 3)))
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    left = _uniform(like, generator) * (1 - width)
    top = _uniform(like, generator) * (1 - height)
    return left, top, width, height


def random_crop_flip(x: Tensor, size: int, generator: Generator, min_area: float) -> Tensor:
    """Return a random box of each picture `(B, c, S, S)`, resized to (size, size), mirrored half of the time."""
    left, top, width, height = random_boxes(x, generator, min_area)
    mirror = torch.where(_uniform(x, generator) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(left)
    # From output to input coordinates, both -1..1.
    theta = torch.stack(
        [
            torch.stack([width * mirror, zero, 2 * left + width - 1], 1),
            torch.stack([zero, height, 2 * top + height - 1], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, [len(x), x.shape[1], size, size], align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def jitter_colours(x: Tensor, strength: float, generator: Generator) -> Tensor:
    """Change brightness, contrast and saturation of each picture `(B, c, H, W)` by factors within 1 ± strength."""
    brightness, contrast, saturation = (
        _uniform(x, generator, 1 - strength, 1 + strength).view(-1, 1, 1, 1) for _ in range(3)
    )
    x = x * brightness
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x = (x - mean) * contrast + mean
    grey = x.mean(dim=1, keepdim=True)
    return ((x - grey) * saturation + grey).clamp(0, 1)


def erase_rectangles(x: Tensor, probability: float, generator: Generator) -> Tensor:
    """Make a box of 2 to 20% of a picture `(B, c, H, W)` grey, with this probability."""
    left, top, width, height = random_boxes(x, generator, 0.02, 0.2)
    hit = _uniform(x, generator) < probability
    down = (torch.arange(x.shape[2], device=x.device) + 0.5) / x.shape[2]
    across = (torch.arange(x.shape[3], device=x.device) + 0.5) / x.shape[3]
    rows = (down >= top[:, None]) & (down < (top + height)[:, None])
    columns = (across >= left[:, None]) & (across < (left + width)[:, None])
    box = (rows[:, :, None] & columns[:, None, :] & hit[:, None, None]).unsqueeze(1)
    return torch.where(box, _GREY, x)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each picture `(B, c, S, S)` by its number `(B,)` of quarter turns, counter-clockwise.

    >>> x = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> rotate(x, torch.tensor([1])).flatten().tolist()
    [2, 4, 1, 3]
    """
    turns = turns.view(-1, 1, 1, 1)
    for k in (1, 2, 3):
        # Each picture is turned in one round alone: others have another k.
        x = torch.where(turns == k, torch.rot90(x, k, (2, 3)), x)
    return x
