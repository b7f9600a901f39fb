r"""None of these: is a query farther from every class than members of the classes are?

In the space of the prior a member x of class n has the squared distance of a posterior predictive distribution,

    d²(x) = min_n ‖x − E[μ_n]‖² / v_n,    v_n = Σ_j w_j (1 + 1/(K_n + κ_j)),

w_j the variance within base classes. log d² of members is normal, N(m, σ²). Base classes give m ≈ 0 and σ² ≈ 2/f, with
the degrees of freedom f = (Σ w)² / Σ w² (Satterthwaite, 1946). New classes are wider or narrower than base classes:
m ~ N(0, `WIDTH_SD`²). Support rows of classes with two examples or more are scored without themselves and update both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal.calibrate import squared_distances
from fewcal.hgdc.prior import MIN_VARIANCE, Prior

# Standard deviation of the mean of log d² between new classes and base classes: 0.2 on ten feature sets.
WIDTH_SD = 0.2
# Degrees of freedom of the variance that base classes give.
VARIANCE_FREEDOM = 5.0


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
    def fit(cls, support: Tensor, labels: Tensor, prior: Prior) -> OutlierTest:
        """Fit the test on support rows `(S, D)` with labels `(S,)` in 0..N−1, in the space of a prior."""
        n = int(labels.max()) + 1
        counts = torch.bincount(labels, minlength=n).to(support.dtype)
        own = support.new_zeros(n, support.shape[1]).index_add_(0, labels, support) / counts[:, None]
        offset = prior.offset(own[None], float(counts.mean()))[0]
        means = prior.posterior((own - offset)[None], counts[None]).mean[0] + offset
        variances = _predictive_variances(prior, counts)
        variance = 2 * float(prior.within.square().sum() / prior.within.sum().clamp(min=MIN_VARIANCE).square())
        several = (counts[labels] > 1).nonzero().flatten()
        size, location = len(several), 0.0
        if size:
            rows, at = support[several], labels[several]
            k = counts[at]
            others = (k[:, None] * own[at] - rows) / (k - 1)[:, None]
            left = prior.posterior((others - offset)[None], (k - 1)[None]).mean[0] + offset
            distances = squared_distances(rows, means) / variances
            apart = (rows - left).square().sum(dim=1) / _predictive_variances(prior, k - 1)
            scores = _log(distances.scatter(1, at[:, None], apart[:, None]).amin(dim=1)).double()
            total = VARIANCE_FREEDOM * variance + float((scores - scores.mean()).square().sum())
            variance = total / (VARIANCE_FREEDOM + size - 1)
            location = float(scores.mean()) * size * WIDTH_SD**2 / (size * WIDTH_SD**2 + variance)
        uncertain = variance * WIDTH_SD**2 / (size * WIDTH_SD**2 + variance)
        return cls(means, variances, location, float((variance + uncertain) ** 0.5))

    def pvalue(self, x: Tensor) -> Tensor:
        """The p-value of each row of `x (R, D)`, `(R,)` float64: small for a row that is unlike all classes."""
        score = _log((squared_distances(x, self.means) / self.variances).amin(dim=1)).double()
        return torch.special.ndtr((self.location - score) / self.scale)


def _predictive_variances(prior: Prior, shots: Tensor) -> Tensor:
    """v `(M,)` of classes with K examples each, `shots (M,)`."""
    return (prior.within * (1 + 1 / (shots[:, None] + prior.kappa))).sum(dim=1).clamp(min=MIN_VARIANCE)


def _log(x: Tensor) -> Tensor:
    return x.clamp(min=MIN_VARIANCE).log()
