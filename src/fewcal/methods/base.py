"""What all methods share: prepared once with a bank, then fitted on batches of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, Protocol

from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization

# What methods with the same settings computed on the same batch, by a key that says what it is.
Shared = dict[Hashable, Any] | None


class Head(Protocol):
    """A fitted classifier for a batch of tasks."""

    def logits(self, x: Tensor) -> Tensor:
        """Scores `(T, Q, N)` of rows `x (T, Q, D)`; their softmax are probabilities."""


class PrecomputedHead(ABC):
    """A head that is spared work on rows of which something is known beforehand (`Method.known`)."""

    @abstractmethod
    def logits(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `x (T, Q, D)`, with what is known of them `(T, Q, K)`."""


def score(head: Head, x: Tensor, known: Tensor | None) -> Tensor:
    """The head's scores of rows `(T, Q, D)`; what is known of them, `(T, Q, K)`, is for a head that can use it."""
    return head.logits(x, known) if isinstance(head, PrecomputedHead) else head.logits(x)


class Method(ABC):
    """A few-shot method.

    `prepare(bank)` does what depends on the base classes alone and returns the method, ready. `transform` maps raw
    features into the method's space; `fit` learns from support points in that space. Tasks are batched: support
    `(T, S, D)` with labels `(T, S)` in 0..N−1, whatever the number of shots.
    """

    name: ClassVar[str]
    needs_bank: ClassVar[bool] = False
    # Set by `prepare` where features are transformed.
    _transform: Gaussianization | None = None
    _space: Hashable = "raw"

    def expects(self, way: int, shot: int) -> Method:
        """Hear what tasks will look like, before `prepare`; most methods do not care."""
        return self

    def prepare(self, bank: BaseBank | None) -> Method:
        """Do the work that depends on the base classes alone."""
        if bank is None and self.needs_bank:
            raise InputError(f"method {self.name!r} needs base classes; give a bank")
        return self

    def transform(self, x: Tensor, name: str = "X") -> Tensor:
        """Map raw features `(R, D)` into the space in which `fit` and the head work."""
        return x if self._transform is None else self._transform(x, name)

    def known(self, z: Tensor) -> Tensor | None:
        """What the method wants to know of each row `z (R, D)` and no task changes, `(R, K)`; None for nothing.

        Worth asking for where the same rows play a part in many tasks. `fit` then takes it as `known (T, S, K)` beside
        the support, and a `PrecomputedHead` beside the queries.
        """
        return None

    @property
    def space(self) -> Hashable:
        """Methods with equal `space` have equal `transform`, so that features are mapped once for all of them."""
        return self._space

    @property
    def sampling_key(self) -> Hashable | None:
        """Methods of one group share work on a batch and are run together; `None` for a method on its own."""
        return None

    @property
    def intraop_parallel(self) -> bool:
        """Whether its work is a few large products, which all cores share best, rather than many small ones."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters, for the record of a run."""
        return {}

    @abstractmethod
    def fit(
        self,
        support: Tensor,
        labels: Tensor,
        n_classes: int,
        random: TaskRandom,
        shared: Shared = None,
    ) -> Head:
        """Fit a batch of tasks. `shared` holds what methods with the same settings computed on the same batch."""

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        """Working memory for one task, in bytes, by which the engine sizes its batches."""
        return 16 * n_support * dim * 4


def once(shared: Shared, key: Hashable, make: Any) -> Any:
    """`make()`, or what another method made under the same key for this batch."""
    if shared is None:
        return make()
    if key not in shared:
        shared[key] = make()
    return shared[key]


def require_raw(bank: BaseBank, what: str) -> None:
    """Raise unless the bank holds base classes as the extractor gave them."""
    if bank.transform is not None:
        raise InputError(
            f"{what} compares with raw base classes, but the bank was built with a transform; use a raw bank"
        )


def space_key(transform: Gaussianization, bank: BaseBank) -> Hashable:
    """Identifies a transform fitted on a bank."""
    return (bank.fingerprint, *sorted(transform.settings().items()))
