r"""The support-only classifier, and its mixture with HGDC.

Without base classes rows have unit length and a task its own centre. With one example a class the scores are cosines;
with more, those of a discriminant with the scatter of the support. HGDC and this classifier are mixed by one weight:

    log p = ω log p_HGDC + (1 − ω) log p_support-only + const,    1 − ω = (1 − ω_cv) h/(C + h)

ω_cv is the stacking weight of left-out base classes (`fewcal.hgdc.temperature`). It is too low for base classes that
the extractor was trained on, which are easy to tell apart without a model. Many classes suffice without that evidence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.gaussianize import l2_normalise
from fewcal.heads.linear import ClassShots, LinearHead, class_shots
from fewcal.hgdc.discriminant import Discriminant
from fewcal.hgdc.prior import MIN_VARIANCE, task_offset

# L, the limit of the log-odds of an example for its own class, and Δ, the mean cosine within a class less that between
# classes (`one_shot_log_odds`): chosen on validation classes.
MAX_LOG_ODDS, COSINE_GAP = 10.0, 0.33
# Share of the variance of the base means that is no sampling noise, below which labels carry no information: 0 for
# shuffled labels, 0.4 to 1 on the feature sets of docs/results.md.
MIN_RELIABILITY = 0.2


def mean_reliability(bank: BaseBank) -> float:
    """Share of the variance of the base means that is not sampling noise, 0 to 1."""

    def make() -> float:
        noise = float(bank.pooled_covariance().diagonal().double().sum()) * float((1 / bank.counts.double()).mean())
        between = float(bank.centred_means()[2].double().sum()) / max(len(bank) - 1, 1)
        return max(0.0, 1 - noise / between) if between > 0 else 0.0

    return bank.memo.get("means reliability", make)


def unit_rows(x: Tensor, name: str = "X") -> Tensor:
    """Rows `(R, D)` as the support-only classifier has them."""
    return l2_normalise(x)


def fit_support_only(support: Tensor, labels: Tensor, n_classes: int, scatter: float) -> LinearHead:
    """Fit support rows `(T, S, D)` of unit length with labels `(T, S)`; `scatter` is `ridge` of `Discriminant`."""
    with torch.no_grad():
        shots = class_shots(labels, n_classes, support.dtype)
        means = shots.means(support)
        centre = task_offset(means)
        if shots.most == 1:
            return _cosine_head(means - centre).shifted(centre)
        return _discriminant(support - centre, labels, means - centre, shots, scatter).shifted(centre)


def _cosine_head(means: Tensor) -> LinearHead:
    """Cosines with one example a class, `means (T, N, D)`, whose lengths carry no information."""
    length = means.square().sum(dim=(1, 2)).div(means.shape[1]).clamp(min=MIN_VARIANCE).sqrt()
    directions = l2_normalise(means)
    gamma = one_shot_log_odds(cosine_variance(directions)) / squared_separation(directions)
    weight = (2 * gamma / length)[:, None, None] * directions
    return LinearHead(weight, weight.new_zeros(weight.shape[:2]))


def _discriminant(support: Tensor, labels: Tensor, means: Tensor, shots: ClassShots, scatter: float) -> LinearHead:
    # The classifier does not depend on the scale, but rounding does.
    length = support.square().sum(dim=2).mean(dim=1).clamp(min=MIN_VARIANCE).sqrt()[:, None, None]
    support, means = support / length, means / length
    one = means.new_ones(means.shape[2])
    # The mean of K examples has up to √K times the cosine of one with its class.
    log_odds = (shots.average**0.5 * one_shot_log_odds(cosine_variance(means))).clamp(max=MAX_LOG_ODDS)
    parts = Discriminant(support, labels, means, one, 0 * one, scatter, unbiased=True)
    head = parts.fit(log_odds / squared_separation(means), shots).head
    return LinearHead(head.weight / length, head.bias)


def squared_separation(means: Tensor) -> Tensor:
    """Mean squared distance between two class means of a task, `(T,)`, for `means (T, N, D)`.

    >>> squared_separation(torch.tensor([[[0.0], [3.0]]]))
    tensor([9.])
    """
    n = means.shape[1]
    scatter = (means - means.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2))
    return (2 * scatter / max(n - 1, 1)).clamp(min=1e-12)


def cosine_variance(means: Tensor) -> Tensor:
    """Variance `(T,)` of the cosines between the class means `(T, N, D)` of a task.

    >>> cosine_variance(torch.eye(3)[None])
    tensor([0.])
    """
    means, n = l2_normalise(means), means.shape[1]
    pairs = max(n * (n - 1) // 2, 1)
    cosines = (means @ means.mT).tril(-1)  # each pair once
    total, squares = cosines.sum(dim=(1, 2)), cosines.square().sum(dim=(1, 2))
    return (squares / pairs - (total / pairs).square()).clamp(min=0)


def one_shot_log_odds(variance: Tensor) -> Tensor:
    r"""Log-odds `(T,)` of an example for its own class against another, where one example a class is all there is.

    Cosines between classes vary by v, those of a query with its own class around a mean that is higher by Δ: the
    likelihood ratio of two normal distributions has the slope Δ/v. Classes resemble each other for other reasons than
    chance, too, so

        log-odds = (1/L² + v²/Δ²)^(−1/2),    L = 10, Δ = 0.33

    In many dimensions v is small and the first term decides, in few the second.

    >>> one_shot_log_odds(torch.tensor([0.0, 0.1])).round(decimals=2)
    tensor([10.0000,  3.1300])
    """
    return (MAX_LOG_ODDS**-2 + (variance / COSINE_GAP).square()).rsqrt()


def mixture(head: LinearHead, plain: LinearHead, weight: float) -> LinearHead:
    """The mixture of HGDC and the support-only classifier with weight ω.

    Its rows `(T, Q, 2D)` hold the coordinates of the first, then those of the second. A mixture of log-probabilities is
    linear in the scores, up to a constant of each row.
    """
    joint = torch.cat([weight * head.weight, (1 - weight) * plain.weight], dim=-1)
    return LinearHead(joint, torch.lerp(plain.bias, head.bias, weight))
