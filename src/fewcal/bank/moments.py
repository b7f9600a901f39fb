"""Moments: the statistics of the base classes that can be added up over chunks, machines and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fewcal.errors import InputError

# Largest number of features: matrices of D×D numbers then take 400 MB, and their decomposition minutes.
MAX_FEATURES = 10_000
# Axes of each statistic, C classes and D features.
AXES = {"counts": "C", "means": "CD", "scatter": "DD", "within_scatter": "C"}


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of C classes in D dimensions.

    Attributes
    ----------
    counts : Tensor (C,) int64
    means : Tensor (C, D)
    scatter : Tensor (D, D)
        The pooled within-class scatter Σ_c Σ_j (x_cj − μ_c)(x_cj − μ_c)ᵀ.
    within_scatter : Tensor (C,) float64
        The within-class sum of squares of each class.

    Examples
    --------
    >>> m = Moments.from_rows(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), 2)
    >>> m.means.tolist(), m.scatter.tolist()
    ([[1.0], [5.0]], [[2.0]])
    >>> m.joined(m, torch.tensor([0, 1]), 2).counts.tolist()
    [4, 2]
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    within_scatter: Tensor

    @classmethod
    def empty(cls) -> Moments:
        """The moments of nothing."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(none, torch.zeros(0, 0), torch.zeros(0, 0), torch.zeros(0, dtype=torch.float64))

    @classmethod
    def from_rows(cls, x: Tensor, codes: Tensor, n_classes: int) -> Moments:
        """The moments of rows `x (R, D)` in order of their classes `codes (R,)`, every class with a row at least."""
        if x.shape[1] > MAX_FEATURES:
            raise InputError(
                f"{x.shape[1]} features are too many for their covariance; reduce them to {MAX_FEATURES} or fewer, "
                "for instance by PCA or a random projection"
            )
        counts = torch.bincount(codes, minlength=n_classes)
        sizes = counts.tolist()
        if min(sizes) == max(sizes):
            means = x.view(len(sizes), -1, x.shape[1]).mean(dim=1, dtype=torch.float32)
        else:
            means = torch.stack([p.mean(dim=0, dtype=torch.float32) for p in torch.split(x, sizes)])
        centred = x.float() - means[codes]
        squares = torch.linalg.vecdot(centred, centred).double()
        within = torch.zeros(n_classes, dtype=torch.float64, device=x.device).index_add_(0, codes, squares)
        return cls(counts, means, centred.T @ centred, within)

    def joined(self, other: Moments, at: Tensor, size: int) -> Moments:
        """Both together (the parallel form of Welford's update): `size` classes, those of `other` at places `at`."""
        more, other = size - len(self.counts), other.mapped(lambda t: t.to(self.means.device))

        def grown(t: Tensor) -> Tensor:
            return torch.cat([t, t.new_zeros(more, *t.shape[1:])])

        counts, means, within = grown(self.counts), grown(self.means), grown(self.within_scatter)
        n_old, n_new = counts[at].double()[:, None], other.counts.double()[:, None]
        gap = other.means.double() - means[at].double()
        share = n_old * n_new / (n_old + n_new)
        shifted = (gap * share.sqrt()).float()  # rows whose scatter is what the shift of means adds
        added = other.within_scatter + (share * gap.square()).sum(dim=1)
        return Moments(
            counts=counts.index_add(0, at, other.counts),
            means=means.index_copy(0, at, (means[at] + gap * n_new / (n_old + n_new)).float()),
            scatter=self.scatter + other.scatter + shifted.T @ shifted,
            within_scatter=within.index_add(0, at, added),
        )

    @property
    def degrees_of_freedom(self) -> int:
        """Rows less classes, which the scatter is divided by; at least 1."""
        return max(int(self.counts.sum()) - len(self.counts), 1)

    def tensors(self) -> dict[str, Tensor]:
        """Every statistic by its name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def mapped(self, f: Callable[[Tensor], Tensor]) -> Moments:
        """The same with `f` applied to every tensor, such as a move to a device."""
        return Moments(**{name: f(t) for name, t in self.tensors().items()})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], n_classes: int) -> Moments:
        """What `tensors` gave; shapes that do not fit together raise `ValueError`, a missing tensor `KeyError`."""
        sizes = {"C": n_classes, "D": tensors["means"].shape[-1]}
        for name, axes in AXES.items():
            expected = tuple(sizes[axis] for axis in axes)
            if tensors[name].shape != expected:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {expected}")
        if tensors["counts"].dtype != torch.int64:
            raise ValueError(f"counts are {tensors['counts'].dtype}")
        return cls(**{name: tensors[name] for name in AXES})
