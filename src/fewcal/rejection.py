"""None of these: is a query as near to a class as only its own members are?

Base classes are not the novel ones, so that base examples show how near a row of some other class comes. A query that
is no nearer to any class mean than they are belongs to none of the classes.

Rows of other classes may come nearer than base examples do, where all classes of a task are of a kind that the bank
does not have. The support shows it: its rows have distances from the means of the other classes, and where these are
smaller on average than those of base examples, the base examples are moved nearer by the difference (less where there
are few pairs of classes to see it by).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal.calibrate import squared_distances
from fewcal.hgdc.prior import Prior

# Base examples that queries are compared with.
EXAMPLES = 1024
# Degrees of freedom of the examples: normal ones come less near than rows do.
TAILS = 4
# Pairs of classes that count as much as the base examples do.
PAIRS = 5


@dataclass(frozen=True, eq=False)
class OutlierTest:
    """A test of queries against examples of the base classes.

    Attributes
    ----------
    means : Tensor (N, D)
        One for each class.
    reference : Tensor (M,)
        Squared distances of base examples from the nearest mean, in ascending order.

    Examples
    --------
    >>> test = OutlierTest(torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 4.0, 9.0, 16.0]))
    >>> test.pvalue(torch.tensor([[0.5], [7.5], [50.0]])).tolist()
    [0.0, 0.5, 1.0]
    """

    means: Tensor
    reference: Tensor

    @classmethod
    def from_prior(cls, means: Tensor, support: Tensor, labels: Tensor, prior: Prior) -> OutlierTest:
        """The test for class means `(N, D)` of support rows `(S, D)` with labels `(S,)`, in the space of a prior."""
        examples = base_examples(prior)
        distances = squared_distances(examples, means)
        nearer = _nearer(squared_distances(support, means), labels, distances.mean())
        return cls(means, (distances.amin(dim=1) - nearer).sort().values)

    def pvalue(self, x: Tensor) -> Tensor:
        """The share of base examples that come as near to a class mean as each row of `x (R, D)`, `(R,)` float64.

        Small values speak for one of the classes.
        """
        nearest = squared_distances(x, self.means).amin(dim=1).contiguous()
        return torch.searchsorted(self.reference, nearest, right=True).double() / len(self.reference)


def base_examples(prior: Prior) -> Tensor:
    """Simulated rows of base classes, `(≤ 1024, D)`, t-distributed around their means."""
    random = torch.Generator().manual_seed(1)
    classes = torch.randperm(len(prior.base_means), generator=random)[:EXAMPLES]
    draws = -(-EXAMPLES // len(classes))
    noise = torch.randn(draws, len(classes), prior.base_means.shape[1], generator=random)
    tails = torch.randn(draws, len(classes), TAILS, generator=random).square().mean(dim=-1, keepdim=True)
    rows = noise * (prior.within.cpu().sqrt() / tails.sqrt()) + prior.base_means.cpu()[classes]
    return rows.flatten(0, 1)[:EXAMPLES].to(prior.base_means.device)


def _nearer(distances: Tensor, labels: Tensor, usual: Tensor) -> Tensor:
    """How much nearer than `usual` other classes of the task come, ≥ 0, from distances `(S, N)` of its support.

    >>> far = torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    >>> [round(float(_nearer(far, torch.tensor([0, 1]), torch.tensor(u))), 6) for u in (2.0, 9.0)]
    [0.0, 1.0]
    """
    n = distances.shape[1]
    others = labels[:, None] != torch.arange(n, device=labels.device)
    pairs = n * (n - 1) / 2
    return (usual - distances[others].mean()).clamp(min=0) * pairs / (pairs + PAIRS)
