"""What all methods share: prepared once with a bank, then fitted on batches of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import Parameter
from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization
from fewcal.heads.base import Head, Shared, TaskBatch

__all__ = ["Contributions", "Head", "Method", "RowMap", "Shared", "TaskBatch", "UnitRows", "require_raw"]


class RowMap(Protocol):
    """A fitted map of features `(R, D)` into the space of a method."""

    @property
    def shift(self) -> Tensor | None:
        """What the map subtracts in double precision; None where rows in single precision will do."""

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows; `name` is what errors call them."""

    def to(self, device: torch.device | str) -> RowMap:
        """The same on `device`."""


@dataclass(frozen=True, eq=False)
class Contributions:
    """What base classes contributed to the class means of a batch of tasks.

    Attributes
    ----------
    bases : sequence of hashable, length C
        Names of the base classes.
    shares : Tensor (T, N, C)
        Share of each in the calibrated mean of a class; the rest is that of its own examples.
    before, after : Tensor (T, N, D)
        Class means without and with calibration.
    moved : Tensor (T, N)
        Distance between these; 1 is the typical distance between neighbouring base classes.
    weight : float
        Weight of the base classes in the answers.
    offset : Tensor (T,)
        Share of the mean of all classes that lies outside of the domain of the base classes.
    """

    bases: Sequence[Hashable]
    shares: Tensor
    before: Tensor
    after: Tensor
    moved: Tensor
    weight: float
    offset: Tensor


class Method(ABC):
    """A few-shot method.

    `prepare(bank)` does what depends on the base classes alone and returns the method, ready. `transform` maps raw
    features into the method's space; `fit` learns from support points in that space. Tasks are batched: support
    `(T, S, D)` with labels `(T, S)` in 0..N−1, whatever the number of shots.
    """

    name: ClassVar[str]
    needs_bank: ClassVar[bool] = False
    # Whether softmax of its scores are probabilities; of others no calibration error is shown.
    probabilistic: ClassVar[bool] = True
    # Whether it answers all queries of a task together, by `fit_predict`.
    transductive: ClassVar[bool] = False
    # Its own parameters: attributes of these names, which `set_parameters` sets where they are accepted.
    accepts: ClassVar[Mapping[str, Parameter]] = {}
    # Set by `prepare`, with `set_space`, where features are transformed.
    gaussianization: Gaussianization | None = None
    _space: tuple[BaseBank, tuple[Hashable, ...]] | None = None

    @classmethod
    def make(cls, preset: object, settings: Mapping[str, JSON]) -> Method:
        """The method with `settings` in place of its defaults, checked by name, type and range; presets are for GDC."""
        if preset is not None:
            raise InputError(f"presets are for gdc; method {cls.name!r} takes its own parameters")
        own = cls().settings
        for key in settings:
            if key not in own:
                hint = nearest_names(key, own) if own else "; it has none"
                raise InputError(f"method {cls.name!r} has no parameter {key!r}{hint}")
        try:
            return cls(**settings)
        except InputError as error:
            raise InputError(f"method {cls.name!r}: {error}") from error

    def set_parameters(self, **values: float | str) -> None:
        """Set parameters of `accepts`; raises `InputError` for a value out of range."""
        for name, value in values.items():
            setattr(self, name, self.accepts[name].checked(name, value))

    def set_space(self, transform: Gaussianization | None, bank: BaseBank, *more: Hashable) -> None:
        """Work behind a transform fitted on the bank; `more` separates spaces of equal settings."""
        assert transform is not None
        self.gaussianization, self._space = transform, (bank, more)

    def prepare(self, bank: BaseBank | None) -> Method:
        """Do the work that depends on the base classes alone."""
        if bank is None and self.needs_bank:
            raise InputError(f"method {self.name!r} needs base classes; give a bank")
        return self

    @property
    def row_map(self) -> RowMap:
        """What maps raw features into the space in which `fit` and the head work."""
        return self.gaussianization or Gaussianization("none")

    def transform(self, x: Tensor, name: str = "X") -> Tensor:
        """Map raw features `(R, D)` into the space in which `fit` and the head work."""
        return self.row_map(x, name)

    def prepare_batches(self, tasks: int, ways: int, shots: int) -> None:  # noqa: B027  # most methods have nothing to do
        """Compute what batches of so many tasks take from the base classes as a whole, which `fit` computes once.

        It separates the cost of all tasks from that of each; a single task does not call it.
        """

    def contributions(self, batch: TaskBatch) -> Contributions | None:
        """What base classes contributed to the class means; None for methods whose means they do not move."""
        return None

    @property
    def space(self) -> Hashable:
        """Methods with equal `space` have equal `transform`, so that features are mapped once for all of them."""
        if self.gaussianization is None or self._space is None:
            return "raw"
        bank, more = self._space  # the fingerprint reads the whole bank, so it is taken here and not before
        return (bank.fingerprint, *sorted(self.gaussianization.settings().items()), *more)

    @property
    def sampling_key(self) -> Hashable | None:
        """Methods with equal keys share the points that they draw and are run together; `None` for one that draws none.

        Tasks with unequal shots are fitted one by one where points are drawn.
        """
        return None

    @property
    def settings(self) -> dict[str, JSON]:
        """Parameters, for the record of a run."""
        return {name: getattr(self, name) for name in self.accepts}

    @abstractmethod
    def fit(self, batch: TaskBatch) -> Head:
        """Fit a batch of tasks."""

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        """Scores `(T, Q, N)` of all queries `(T, Q, D)` of each task together: what a transductive method implements.

        A column N + 1 is the log-probability of none of the classes.
        """
        return self.fit(batch).logits(query)

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        """Working memory for one task, in bytes, by which the engine sizes its batches."""
        return 16 * n_support * dim * 4


class UnitRows(Method):
    """A method on rows of unit length, centred on the base mean first where there are base classes."""

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        if bank is not None:
            self.set_space(bank.transformed(beta=1.0, center=True, l2=True, moments=True).transform, bank)
        return self

    @property
    def space(self) -> Hashable:
        return "unit" if self.gaussianization is None else super().space

    @property
    def row_map(self) -> RowMap:
        return self.gaussianization or Gaussianization("none", l2=True)


def typical_distance(means: Tensor) -> float:
    """Median distance of a base class from the nearest other one, for `means (C, D)`.

    >>> typical_distance(torch.tensor([[0.0], [1.0], [3.0]]))
    1.0
    """
    if len(means) < 2:
        return float(means.norm(dim=1).mean().clamp(min=1e-12))
    distances = torch.cdist(means.double(), means.double())
    distances.fill_diagonal_(torch.inf)
    return float(distances.amin(dim=1).median().clamp(min=1e-12))


def require_raw(bank: BaseBank, what: str) -> None:
    """Raise unless the bank holds base classes as the extractor gave them."""
    if bank.transform is not None:
        raise InputError(
            f"{what} compares with raw base classes, but the bank was built with a transform; use a raw bank"
        )
