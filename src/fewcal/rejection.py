r"""None of these: is a query farther from every class than members of the classes are?

In the space of the prior a member x of class n has the squared distance of a posterior predictive distribution,

    d²(x) = min_n ‖x − E[μ_n]‖² / v_n,    v_n = Σ_j w_j (1 + 1/(K_n + κ_j)),

w_j the variance within base classes. log d² of members is normal, N(m, σ²), with a normal-inverse-χ² prior: simulated
tasks give m₀ and σ₀², which count as `LOCATION_COUNT` and `VARIANCE_COUNT` examples; real rows vary more than normal
ones (`TAIL_RATIO`). Support rows of classes with two examples or more are scored without themselves and update both.

Without base classes the class means are those of the examples (κ = 0), w is the variance within the classes of the
support, and m and σ² come from the rows that are left out alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal.calibrate import squared_distances
from fewcal.errors import InputError
from fewcal.gaussianize import Gaussianization
from fewcal.hgdc.prior import MIN_VARIANCE, Prior

# Left-out examples that the simulation counts as, for m and for σ², and variance of log d² of real rows over that of
# simulated ones (2 to 8 on three feature sets, where m differed from m₀ by half of σ): benchmarks/accuracy/reject.py.
LOCATION_COUNT, VARIANCE_COUNT, TAIL_RATIO = 4, 5, 3.0
# Left-out examples: at least so many, or as many as this memory (numbers) allows.
MIN_LEFT_OUT, MEMORY = 50, 1 << 23
# Simulated queries, those of a class, and examples of a class at most.
QUERIES, CLASS_QUERIES, MAX_SHOTS = 1000, 5, 8


@dataclass(frozen=True, eq=False)
class OutlierTest:
    """A test of the hypothesis that a query belongs to one of the classes.

    Attributes
    ----------
    means : Tensor (N, D)
        Posterior means of the classes.
    variances : Tensor (N,)
        v, the mean squared distance of members from them.
    location, scale : float
        Mean and standard deviation of log d² of members.

    Examples
    --------
    >>> test = OutlierTest(torch.tensor([[0.0], [10.0]]), torch.ones(2), 0.0, 1.0)
    >>> test.pvalue(torch.tensor([[1.0], [9.0], [50.0]])).round(decimals=4).tolist()
    [0.5, 0.5, 0.0]
    """

    means: Tensor
    variances: Tensor
    location: float
    scale: float

    @classmethod
    def fit(cls, support: Tensor, labels: Tensor, prior: Prior | None = None) -> OutlierTest:
        """Fit the test on support rows `(S, D)` with labels `(S,)` in 0..N−1, in the space of a prior."""
        n = int(labels.max()) + 1
        counts = torch.bincount(labels, minlength=n).to(support.dtype)
        location, variance, count, freedom = 0.0, 0.0, 0, 0
        if prior is None:
            prior = _flat_prior(support, labels)
        else:
            location, variance = _simulated_members(prior, n, float(counts.mean()))
            count, freedom = LOCATION_COUNT, VARIANCE_COUNT
        own = support.new_zeros(n, support.shape[1]).index_add_(0, labels, support) / counts[:, None]
        means, variances = _members(prior, own[None], counts[None])
        rows = (counts[labels] > 1).nonzero().flatten()
        limit = max(MIN_LEFT_OUT, MEMORY // own.numel())
        rows = rows if len(rows) <= limit else rows[torch.arange(limit) * len(rows) // limit]
        if size := len(rows):
            task, at = torch.arange(size), labels[rows]
            left, each = own.repeat(size, 1, 1), counts.repeat(size, 1)
            left[task, at] = (counts[at, None] * own[at] - support[rows]) / (counts[at, None] - 1)
            each[task, at] -= 1
            centres, widths = _members(prior, left, each)
            distances = (support[rows, None] - centres).square().sum(dim=2) / widths
            scores = _log(distances.amin(dim=1)).double()
            total = freedom * variance + float((scores - scores.mean()).square().sum())
            variance = total / (freedom + size - 1)
            location = (count * location + size * float(scores.mean())) / (count + size)
        return cls(means[0], variances[0], location, (variance * (1 + 1 / (count + size))) ** 0.5)

    def pvalue(self, x: Tensor) -> Tensor:
        """The p-value of each row of `x (R, D)`, `(R,)` float64: small for a row that is unlike all classes."""
        score = _log((squared_distances(x, self.means) / self.variances).amin(dim=1)).double()
        return torch.special.ndtr((self.location - score) / self.scale)


def _simulated_members(prior: Prior, classes: int, shots: float) -> tuple[float, float]:
    """Mean and variance of log d² of members in simulated tasks with so many classes and examples of each."""
    random, d = torch.Generator().manual_seed(0), len(prior.origin)
    k = min(max(round(shots), 1), MAX_SHOTS)
    shape = (-(-QUERIES // (classes * CLASS_QUERIES)), classes, k + CLASS_QUERIES, d)
    scale = prior.within.sqrt().copysign(prior.origin)  # signs of axes are arbitrary, and nothing depends on them
    centres = prior.psi.sqrt() * scale * torch.randn(*shape[:2], 1, d, generator=random)
    rows = prior.origin + centres + scale * torch.randn(shape, generator=random)
    rows = torch.nn.functional.normalize(rows, dim=-1) - prior.origin
    means, variances = _members(prior, rows[:, :, :k].mean(dim=2), torch.full(shape[:2], float(k)))
    distances = torch.cdist(rows[:, :, k:].flatten(1, 2), means).square() / variances[:, None]
    scores = _log(distances.amin(dim=2)).double()
    return float(scores.mean()), TAIL_RATIO * float(scores.var())


def _flat_prior(support: Tensor, labels: Tensor) -> Prior:
    """A prior that leaves class means as they are, with the variance within the classes of a support."""
    counts = torch.bincount(labels).to(support.dtype)
    own = support.new_zeros(len(counts), support.shape[1]).index_add_(0, labels, support) / counts[:, None]
    if not (counts > 1).any():
        raise InputError(
            "'none of these' takes a bank or a class with two examples, and there are neither; add examples"
        )
    within = (support - own[labels]).square().sum(dim=0) / (len(labels) - len(counts))
    zero = torch.zeros_like(within)
    return Prior(Gaussianization("none"), zero, zero[None], torch.full_like(within, torch.inf), within, 0.0, 0.0)


def _members(prior: Prior, means: Tensor, shots: Tensor) -> tuple[Tensor, Tensor]:
    """E[μ] `(T, N, D)` and v `(T, N)` of classes with examples of mean `means (T, N, D)` in numbers `shots (T, N)`."""
    offset = prior.offset(means, float(shots.mean()))
    variances = (prior.within * (1 + 1 / (shots[..., None] + prior.kappa))).sum(dim=-1)
    return prior.posterior(means - offset, shots).mean + offset, variances.clamp(min=MIN_VARIANCE)


def _log(x: Tensor) -> Tensor:
    return x.clamp(min=MIN_VARIANCE).log()
