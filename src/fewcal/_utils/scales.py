"""Scales of probabilities, one for all tasks of a batch or one for each: the less of two, and what lies between."""

from __future__ import annotations

from typing import overload

from torch import Tensor


def at_most(value: Tensor | float, most: float) -> Tensor | float:
    """The less of a scale, of each task `(T,)` or of all, and a limit.

    >>> import torch
    >>> at_most(5.0, 3.0), at_most(torch.tensor([1.0, 5.0]), 3.0)
    (3.0, tensor([1., 3.]))
    """
    return min(value, most) if isinstance(value, float) else value.clamp(max=most)


@overload
def between(one: Tensor, other: Tensor | float, share: Tensor | float) -> Tensor: ...


@overload
def between(one: Tensor | float, other: Tensor | float, share: Tensor | float) -> Tensor | float: ...


def between(one: Tensor | float, other: Tensor | float, share: Tensor | float) -> Tensor | float:
    """one^(1 − share)·other^share, of each task `(T,)` or of all.

    >>> import torch
    >>> between(1.0, 4.0, 0.5), between(1.0, torch.tensor([4.0, 9.0]), torch.tensor([0.5, 1.0]))
    (2.0, tensor([2., 9.]))
    """
    return one * (other / one) ** share
