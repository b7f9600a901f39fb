"""Moments: the statistics of the base classes that can be added up over chunks, machines and devices.

A statistic is one field of `Moments`. Its shape and its name in files stand with the field; what it is of rows stands
in `from_rows`, and how two of it become one in `joined`. Moving, saving, loading and checking follow from the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields

import torch
from torch import Tensor

from fewcal._utils.memory import require_memory

# Bytes of a matrix from which on it is worth asking whether there is room for it.
_LARGE = 256 << 20


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

    # Of each statistic the axes, C classes and D features, and the name in files where it is another.
    counts: Tensor = field(metadata={"shape": "C"})
    means: Tensor = field(metadata={"shape": "CD"})
    scatter: Tensor = field(metadata={"shape": "DD"})
    within_scatter: Tensor = field(metadata={"shape": "C", "stored_as": "spread"})

    @classmethod
    def empty(cls) -> Moments:
        """The moments of nothing."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(none, torch.zeros(0, 0), torch.zeros(0, 0), torch.zeros(0, dtype=torch.float64))

    @classmethod
    def from_rows(cls, x: Tensor, codes: Tensor, n_classes: int) -> Moments:
        """The moments of rows `x (R, D)` in order of their classes `codes (R,)`, every class with a row at least."""
        if x.device.type == "cpu" and (need := 4 * x.shape[1] ** 2) > _LARGE:
            require_memory(need, f"the covariance of {x.shape[1]} features", "reduce their number, for instance by PCA")
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
        device, own = self.means.device, self._grown(size)
        n_new = other.counts.to(device).double()
        total = own.counts[at].double() + n_new
        gap, share = own.gap(other, at)
        shifted = (gap * share.sqrt()).float()  # rows whose scatter is what the shift of means adds
        added = other.within_scatter.to(device) + (share * gap.square()).sum(dim=1)
        return Moments(
            counts=own.counts.index_add(0, at, other.counts.to(device)),
            means=own.means.index_copy(0, at, (own.means[at] + gap * (n_new / total)[:, None]).float()),
            scatter=own.scatter + other.scatter.to(device) + shifted.T @ shifted,
            within_scatter=own.within_scatter.index_add(0, at, added),
        )

    def _grown(self, size: int) -> Moments:
        """Statistics of each class with zeros for classes to come."""
        more = size - len(self.counts)
        if not more:
            return self
        grown = {
            f.name: torch.cat([t, t.new_zeros(more, *t.shape[1:])]) if f.metadata["shape"].startswith("C") else t
            for f, t in self._statistics()
        }
        return Moments(**grown)

    def gap(self, other: Moments, at: Tensor, part: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """How far some of the other means are from those of their classes `at` here, and how much that counts."""
        n_old, n_new = self.counts[at].double(), other.counts[part].to(at.device).double()
        gap = other.means[part].to(at.device).double() - self.means[at].double()
        return gap, (n_old * n_new / (n_old + n_new))[:, None]

    @property
    def degrees_of_freedom(self) -> int:
        """Rows less classes, which the scatter is divided by; at least 1."""
        return max(int(self.counts.sum()) - len(self.counts), 1)

    def _statistics(self) -> list[tuple[Field[Tensor], Tensor]]:
        return [(f, getattr(self, f.name)) for f in fields(self)]

    def mapped(self, f: Callable[[Tensor], Tensor]) -> Moments:
        """The same with `f` applied to every tensor, such as a move to a device."""
        return Moments(**{statistic.name: f(t) for statistic, t in self._statistics()})

    def tensors(self) -> dict[str, Tensor]:
        """Every statistic by its name in files."""
        return {f.metadata.get("stored_as", f.name): t for f, t in self._statistics()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], n_classes: int) -> Moments:
        """What `tensors` gave; shapes that do not fit together raise `ValueError`, a missing tensor `KeyError`."""
        sizes = {"C": n_classes, "D": tensors["means"].shape[-1]}
        found = {}
        for f in fields(cls):
            name = f.metadata.get("stored_as", f.name)
            expected = tuple(sizes[axis] for axis in f.metadata["shape"])
            if tensors[name].shape != expected:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {expected}")
            found[f.name] = tensors[name]
        if found["counts"].dtype != torch.int64:
            raise ValueError(f"counts are {found['counts'].dtype}")
        return cls(**found)
