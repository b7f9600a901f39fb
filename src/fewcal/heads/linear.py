"""A linear classifier for each task of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fewcal.heads.base import Head

# From so many classes on, rows are added up one by one rather than by a product with their membership.
_MANY = 64


@dataclass(frozen=True, eq=False)
class LinearHead(Head):
    """Scores x·w_c + b_c.

    Attributes
    ----------
    weight : Tensor (T, N, D)
    bias : Tensor (T, N)

    Examples
    --------
    >>> head = LinearHead(torch.eye(2)[None], torch.zeros(1, 2))
    >>> head.logits(torch.tensor([[[3.0, 1.0]]]))
    tensor([[[3., 1.]]])
    """

    weight: Tensor
    bias: Tensor

    def logits(self, x: Tensor) -> Tensor:
        """Scores of rows `x (T, Q, D)`, `(T, Q, N)`; their softmax are the class probabilities."""
        if len(x) == 1:  # threads share the rows
            # As a copy: a product with a few transposed rows takes half as long again.
            return torch.baddbmm(self.bias[:, None], x, self.weight.mT.contiguous())
        # Threads share the tasks: weights first, which is up to three times faster with few classes.
        return torch.baddbmm(self.bias[..., None], self.weight, x.mT).mT

    def shifted(self, origin: Tensor) -> LinearHead:
        """The head for rows that are not yet less `origin (T, 1, D)`."""
        return LinearHead(self.weight, self.bias - (self.weight @ origin.mT).squeeze(-1))

    def to(self, device: torch.device | str) -> LinearHead:
        if self.weight.device == torch.device(device):
            return self
        return LinearHead(self.weight.to(device), self.bias.to(device))


def membership(labels: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """Which points are of which class, as ones and zeros: `labels (*B, S)` → `(*B, S, N)`.

    >>> membership(torch.tensor([[0, 2]]), 3, torch.float32)
    tensor([[[1., 0., 0.],
             [0., 0., 1.]]])
    """
    return (labels[..., None] == torch.arange(n_classes, device=labels.device)).to(dtype)


def class_means(x: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Mean of the rows of each class: `x (T, S, D)`, `labels (T, S)` → `(T, N, D)`.

    >>> class_means(torch.tensor([[[1.0], [3.0], [5.0]]]), torch.tensor([[0, 0, 1]]), 2)
    tensor([[[2.],
             [5.]]])
    """
    if n_classes > _MANY and x.device.type == "cpu":
        t, _, d = x.shape
        at = (labels + n_classes * torch.arange(t)[:, None]).reshape(-1)
        total = x.new_zeros(t * n_classes, d).index_add_(0, at, x.reshape(-1, d))
        count = torch.bincount(at, minlength=t * n_classes).clamp_(min=1).to(x.dtype)
        return total.div_(count[:, None]).view(t, n_classes, d)
    member = membership(labels, n_classes, x.dtype)
    return (member.mT @ x) / member.sum(dim=1).clamp(min=1)[..., None]


@dataclass(frozen=True, eq=False)
class ClassShots:
    """How many rows the classes of a batch of tasks have.

    Attributes
    ----------
    labels : Tensor (T, S)
    n_classes : int
        N.
    dtype : torch.dtype
    least, most : int
        The smallest and the largest number of rows of a class.
    numbers : ndarray (T, N) or None
        Rows of each class; None where every class has one, and these stand in the order of the classes.
    """

    labels: Tensor
    n_classes: int
    dtype: torch.dtype
    least: int = 1
    most: int = 1
    numbers: np.ndarray | None = None

    @cached_property
    def counts(self) -> Tensor:
        """Rows of each class, `(T, N)`."""
        if self.numbers is None:
            return torch.ones_like(self.labels, dtype=self.dtype)
        return torch.from_numpy(self.numbers).to(device=self.labels.device, dtype=self.dtype)

    @property
    def even(self) -> bool:
        """Whether all classes have as many."""
        return self.least == self.most

    @property
    def average(self) -> float:
        """Rows of a class, on average."""
        return self.labels.shape[1] / self.n_classes

    @cached_property
    def of_rows(self) -> Tensor:
        """Rows of the class of each row, `(T, S)`."""
        return self.counts.gather(1, self.labels)

    @property
    def each(self) -> Tensor | float:
        """Rows of a class: one number where all have as many, `(T, N)` elsewhere."""
        return float(self.most) if self.even else self.counts

    def means(self, x: Tensor) -> Tensor:
        """`class_means` of rows `x (T, S, D)`."""
        if self.numbers is None:
            return x
        if self.even and self.most == 1:  # only their order differs
            return torch.empty_like(x).scatter_(1, self.labels[..., None].expand(x.shape), x)
        return class_means(x, self.labels, self.n_classes)


def class_shots(labels: Tensor, n_classes: int, dtype: torch.dtype) -> ClassShots:
    """Count the rows of each class, in numbers of `dtype`: `labels (T, S)`, 0..N−1.

    >>> shots = class_shots(torch.tensor([[0, 0, 1]]), 2, torch.float32)
    >>> shots.counts.tolist(), shots.least, shots.most, shots.even
    ([[2.0, 1.0]], 1, 2, False)
    """
    # On the host, where the smallest and the largest are wanted: a GPU is waited for once, and NumPy is quick.
    own = labels.cpu().numpy()
    t, s = own.shape
    if s == n_classes and own.tobytes() == np.arange(n_classes, dtype=own.dtype).tobytes() * t:
        return ClassShots(labels, n_classes, dtype)
    at = own + n_classes * np.arange(t)[:, None]
    numbers = np.bincount(at.ravel(), minlength=t * n_classes).reshape(t, n_classes)
    return ClassShots(labels, n_classes, dtype, int(numbers.min()), int(numbers.max()), numbers)


def class_sizes(labels: Tensor) -> Tensor:
    """How many points share the class of each: `labels (T, S)` → `(T, S)`.

    >>> class_sizes(torch.tensor([[0, 0, 1]]))
    tensor([[2, 2, 1]])
    """
    counts = torch.zeros_like(labels).scatter_add_(1, labels, torch.ones_like(labels))  # N ≤ S
    return counts.gather(1, labels)


def nearest_mean_head(means: Tensor, variance: float | Tensor = 1.0) -> LinearHead:
    """Classify by the nearest of `means (T, N, D)`; probabilities are those of spheres with this variance.

    −‖x − μ‖²/2v is linear in x up to a term that all classes share.
    """
    weight = means / variance
    return LinearHead(weight, -0.5 * (weight * means).sum(dim=-1))
