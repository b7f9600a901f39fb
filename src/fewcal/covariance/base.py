"""What a covariance mode is, and what the modes that build on class covariances share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import scatter_dense

# Up to this many base classes their mutual products are computed once for the bank; beyond it, or where a batch of
# tasks names few of them, for the classes that it names.
ALL_CLASSES = 1024
# Below this share of (task, base class) pairs in use, products go class by class and leave out the rest.
SPARSE = 0.6
# Matrices of base classes, and whether these are covariances rather than factors.
NoiseSource: TypeAlias = tuple[Tensor, bool]


@dataclass(frozen=True, eq=False)
class BaseClasses:
    """The base classes that a batch of tasks has chosen, and their shares.

    Attributes
    ----------
    bank : BaseBank
    index : Tensor (T, S, k)
        Base classes of each support point.
    c : Tensor (T, S, k)
        Their shares.
    common_size : int
        Rows per class in `joint`; 0 for the smallest class.
    """

    bank: BaseBank
    index: Tensor
    c: Tensor
    common_size: int = 0

    @cached_property
    def union(self) -> Tensor | None:
        """The U classes in play; `None` where all of the bank's are taken."""
        few = 2 * self.index.numel() <= len(self.bank)
        return torch.unique(self.index) if few or len(self.bank) > ALL_CLASSES else None

    @property
    def local(self) -> Tensor:
        """`index` among the classes in play."""
        return self.index if self.union is None else torch.searchsorted(self.union, self.index)

    @cached_property
    def shares(self) -> Tensor:
        """c as a dense `(T, S, U)`."""
        return scatter_dense(self.local, self.c, len(self.bank if self.union is None else self.union))

    @cached_property
    def tasks_of_class(self) -> list[Tensor] | None:
        """For each base class the tasks that it plays a part in; `None` where most play one in most."""
        used = (self.shares != 0).any(dim=1)  # (T, U)
        if used.is_cuda or float(used.float().mean()) > SPARSE:
            return None
        return [column.nonzero().flatten() for column in used.T]


class CovarianceMode(ABC):
    """How Σ' is made of the base classes in play: a strategy of `CalibratedCovariance`, registered by its name."""

    name: ClassVar[str]
    words: ClassVar[str]  # for people; {size} stands for the rows per class of `joint`
    needs_class_covariances: ClassVar[bool] = True

    def __init__(self, classes: BaseClasses) -> None:
        self.classes = classes

    @property
    @abstractmethod
    def rows(self) -> int:
        """P, the rows of each base class that count."""

    @abstractmethod
    def totals(self) -> tuple[Tensor, Tensor]:
        """The trace of Σ' and the sum of all its entries, each `(T, S)`."""

    @abstractmethod
    def factor(self, half: bool) -> Tensor:
        """F with FᵀF = Σ', `(T, S, P', D)`; with `half` it may come in bfloat16."""

    def noise_source(self, n: int, half: bool) -> NoiseSource | None:
        """What `add_noise` draws n points for each support point with; None where `factor` is as fast.

        With `half` it may come in bfloat16.
        """
        return None

    def add_noise(self, out: Tensor, random: TaskRandom, source: NoiseSource) -> None:
        """Add noise with covariance Σ' to points `out (T, S, n, D)`."""
        raise NotImplementedError

    @abstractmethod
    def average_times(self, v: Tensor) -> Tensor:
        """Σ̄'v for rows `v (T, M, D)`, Σ̄' the average of Σ' over the support points of a task."""


class OfClasses(CovarianceMode):
    """A mode that mixes blocks R `(U, P, D)` of the base classes in play."""

    @abstractmethod
    def make_block(self) -> Tensor:
        """R `(U, P, D)`: one factor of each class covariance."""

    @abstractmethod
    def make_products(self) -> tuple[Tensor, Tensor]:
        """What `totals` needs of ⟨R_i, R_j⟩ and ⟨R_i·1, R_j·1⟩."""

    @abstractmethod
    def mix(self, y: Tensor) -> Tensor:
        """Products `y (T, ·, U, ·)` of rows with R, weighted by the shares and averaged over support points."""

    @cached_property
    def block(self) -> Tensor:
        """R of the base classes in play."""
        return self.make_block()

    @property
    def rows(self) -> int:
        return self.block.shape[1]

    def products(self) -> tuple[Tensor, Tensor]:
        """`make_products`, once for a bank whose classes are all in play."""
        if self.classes.union is not None:
            return self.make_products()
        return self.classes.bank.memo.get(("products", *self._key), self.make_products)

    def half_block(self) -> Tensor:
        """R in bfloat16, once for a bank whose classes are all in play."""
        if self.classes.union is not None:
            return self.block.bfloat16()
        return self.classes.bank.memo.get(("half", *self._key), self.block.bfloat16)

    @property
    def _key(self) -> tuple[str, int]:
        return self.name, self.classes.common_size

    def average_times(self, v: Tensor) -> Tensor:
        t, m, d = v.shape
        u, p = self.block.shape[:2]
        rows = self.block.reshape(u * p, d)
        tasks_of = self.classes.tasks_of_class
        if tasks_of is None:
            y = (v.reshape(t * m, d) @ rows.T).view(t, m, u, p)
            return (self.mix(y).reshape(t * m, u * p) @ rows).view(t, m, d)
        y = v.new_zeros(t, u, m * p)
        for i, at in enumerate(tasks_of):
            y[at, i] = (v[at].view(-1, d) @ self.block[i].T).view(-1, m * p)
        y, out = self.mix(y[:, None])[:, 0], v.new_zeros(t, m * d)
        for i, at in enumerate(tasks_of):
            out.index_add_(0, at, (y[at, i].view(-1, p) @ self.block[i]).view(-1, m * d))
        return out.view(t, m, d)
