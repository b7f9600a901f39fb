"""None of these: is a query as near to a class as only its own members are?

Base classes are not the novel ones, so that base examples show how near a row of some other class comes. A query that
is no nearer to any prototype than they are belongs to none of the classes.

Rows of other classes may come nearer than base examples do, where all classes of a task are of a kind that the bank
does not know. The support shows it: its rows have distances from the prototypes of the other classes, and where these
are smaller on average than those of base examples, the base examples are moved nearer by the difference (less where
there are few pairs of classes to see it by).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.calibrate import squared_distances
from fewcal.domain_match import simulated_rows

_EXAMPLES = 1024
# Degrees of freedom of the examples. Normal ones come less near than rows do: on validation classes 4% to 11% of other
# classes passed where 5% were asked for, and 3% to 8% with these.
_TAILS = 4
# Pairs of classes that count as much as the base examples do.
_PAIRS = 5


@dataclass(frozen=True, eq=False)
class OutlierTest:
    """A test of queries against examples of the base classes.

    Attributes
    ----------
    prototypes : Tensor (N, D)
        One for each class, in the bank's space.
    reference : Tensor (M,)
        Squared distances of base examples from the nearest prototype, in ascending order.

    Examples
    --------
    >>> test = OutlierTest(torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 4.0, 9.0, 16.0]))
    >>> test.pvalue(torch.tensor([[0.5], [7.5], [50.0]])).tolist()
    [0.0, 0.5, 1.0]
    """

    prototypes: Tensor
    reference: Tensor

    @classmethod
    def from_bank(cls, prototypes: Tensor, support: Tensor, labels: Tensor, bank: BaseBank) -> OutlierTest:
        """The test for prototypes `(N, D)` of support rows `(S, D)` with labels `(S,)`, in the space of a bank.

        Rows of the bank are not needed.
        """
        examples = bank.memo.get("examples", lambda: _examples(bank))
        distances = squared_distances(examples, prototypes)
        moved = _nearer(squared_distances(support, prototypes), labels, distances.mean())
        return cls(prototypes, (distances.amin(dim=1) - moved).sort().values)

    def pvalue(self, x: Tensor) -> Tensor:
        """The share of base examples that come as near to a prototype as each row of `x (R, D)`, `(R,)` float64.

        Small values speak for one of the classes. A limit of 0.05 lets about 5% of rows of other classes through.
        """
        nearest = squared_distances(x, self.prototypes).amin(dim=1).contiguous()
        return torch.searchsorted(self.reference, nearest, right=True).double() / len(self.reference)

    def to(self, device: str | torch.device) -> OutlierTest:
        """The same on `device`."""
        return OutlierTest(self.prototypes.to(device), self.reference.to(device))


def _examples(bank: BaseBank) -> Tensor:
    """Examples of base classes, `(≤ 1024, D)`, of as many classes as there are."""
    random = torch.Generator().manual_seed(1)
    classes = torch.randperm(len(bank), generator=random)[:_EXAMPLES]
    draws = -(-_EXAMPLES // len(classes))
    return simulated_rows(bank, classes, draws, random, _TAILS).reshape(-1, bank.dim)[:_EXAMPLES]


def _nearer(distances: Tensor, labels: Tensor, usual: Tensor) -> Tensor:
    """How much nearer than `usual` other classes of the task come, ≥ 0, from distances `(S, N)` of its support.

    >>> far = torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    >>> [round(float(_nearer(far, torch.tensor([0, 1]), torch.tensor(u))), 6) for u in (2.0, 9.0)]
    [0.0, 1.0]
    """
    n = distances.shape[1]
    others = labels[:, None] != torch.arange(n, device=labels.device)
    pairs = n * (n - 1) / 2
    return (usual - distances[others].mean()).clamp(min=0) * pairs / (pairs + _PAIRS)
