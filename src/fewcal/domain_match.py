r"""When do the base classes help? The rules by which `default` falls back towards the plain classifier.

Calibration with base classes that have nothing to do with the novel ones hurts. Three things are asked, all answered
from moments of the bank and from the support:

1. Are there enough base classes?  f = clip((C − 2k)/2k, 0, 1): with few, the k nearest are not near.
2. Are the base means more than noise?  ρ = 1 − mean(tr S_w/n_c) / mean ‖μ_c‖².
3. Do the support points resemble the base classes as much as a held-out base class resembles the others?  The ratio r
   of their mean similarity (cosine to the `NEAREST` most similar base means) to the bank's own.

The weights of a task are multiplied by its trust g = f·ρ·h with h = clip((r − 0.9)/0.2, 0, 1), and whitening is shrunk
towards the unit matrix by λ = (2 + 10(1 − f) + 50·o/(1 − o)) / ρ², with o the share of the unit matrix that the OAS
estimator gives to S_w. So g → 0 leaves whitening alone, and λ → ∞ leaves the plain nearest centroid. A task with h = 0
is out of the bank's domain: there not even the covariance can be trusted, and the plain nearest centroid answers.

The constants were chosen on validation classes of four image feature sets; none depends on the data at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from fewcal.bank import BaseBank
from fewcal.calibrate import spaced_indices
from fewcal.errors import InputError
from fewcal.gaussianize import l2_normalise

if TYPE_CHECKING:
    from torch import Tensor

NEAREST = 4
_LOW, _HIGH = 0.9, 1.1
_LEAST, _FEW, _NOISY, _MOST = 2.0, 10.0, 50.0, 1e4
_DRAWS = 8
# Classes whose examples are simulated, at most; in a larger bank evenly spaced ones stand for all.
_SIMULATED = 512


class Trust(NamedTuple):
    """How far the base classes are trusted in each task of a batch.

    Attributes
    ----------
    share : Tensor (T,)
        What all weights are multiplied by, 0 to 1.
    out_of_domain : Tensor (T,) bool or None
        Tasks left to the plain nearest centroid; `None` where no task can be.
    """

    share: Tensor
    out_of_domain: Tensor | None


def enough_classes(n_classes: int, k: int) -> float:
    """f: 0 for up to 2k base classes, 1 from 4k on.

    >>> enough_classes(32, 16), enough_classes(48, 16), enough_classes(100, 16)
    (0.0, 0.5, 1.0)
    """
    return min(1.0, max(0.0, (n_classes - 2 * k) / (2 * k)))


def reliability(bank: BaseBank) -> float:
    """ρ: the share of the squared length of the class means that is not sampling noise."""

    def make() -> float:
        trace = float(bank.pooled_eigen()[0].sum())
        noise = float((trace / bank.counts.double()).mean())
        length = float(torch.linalg.vecdot(bank.means, bank.means).mean(dtype=torch.float64))
        return max(0.0, 1.0 - noise / length) if length > 0 else 0.0

    return bank.memo.get("reliability", make)


def oas_share(values: Tensor, df: int) -> float:
    """The weight of the unit matrix in the oracle approximating shrinkage estimator (Chen et al. 2010).

    Parameters
    ----------
    values : Tensor (D,)
        Eigenvalues of the covariance.
    df : int
        Its degrees of freedom.
    """
    v = values.double()
    d = len(v)
    trace, square = float(v.sum()), float(v.square().sum())
    spread = (df + 1 - 2 / d) * (square - trace**2 / d)
    if spread <= 0:
        return 0.99
    return min(0.99, ((1 - 2 / d) * square + trace**2) / spread)


def whitening_shrinkage(bank: BaseBank, k: int) -> float:
    """λ for `bank.whitened`, from the bank alone."""
    share = oas_share(bank.pooled_eigen()[0], bank.n_rows - len(bank))
    asked = _LEAST + _FEW * (1 - enough_classes(len(bank), k)) + _NOISY * share / (1 - share)
    return min(_MOST, asked / max(reliability(bank), 0.01) ** 2)


def held_out_similarity(bank: BaseBank) -> float:
    """Mean cosine of base examples to the most similar *other* base means, in the whitened bank; at least 0.02.

    Examples are drawn from N(μ_c, S_w) with a fixed seed, so that no rows are needed.
    """

    def make() -> float:
        if not bank.is_whitened:
            raise InputError("held-out similarity is defined in a whitened bank; use whiten='auto' or a number")
        random = torch.Generator().manual_seed(0)
        own = spaced_indices(len(bank), _SIMULATED)
        rows = simulated_rows(bank, own, _DRAWS, random)
        total, count = 0.0, 0
        for block, some in zip(rows.split(64), own.split(64), strict=True):  # bounds memory in a large bank
            cosine = block @ bank.means.T
            cosine[torch.arange(len(some)), :, some] = -torch.inf
            best = cosine.topk(min(NEAREST, len(bank) - 1), dim=-1).values
            total, count = total + float(best.sum()), count + best.numel()
        return max(total / max(count, 1), 0.02)

    return bank.memo.get("held-out similarity", make)


def simulated_rows(
    bank: BaseBank, classes: Tensor, draws: int, random: torch.Generator, tails: int | None = None
) -> Tensor:
    """Examples of base classes in the bank's space, `(len(classes), draws, D)`, drawn from N(μ_c, S_w).

    They stand in for rows, which a bank need not keep. With `tails` they have Student's distribution with so many
    degrees of freedom instead, and S_w is scaled to the scatter of each class: the mean of many is the same, but single
    ones lie further from their class and nearer to it, as real rows do.
    """
    source = bank.unwhitened or bank
    values, vectors = source.pooled_eigen()
    noise = torch.randn(len(classes), draws, bank.dim, generator=random).to(bank.device)
    if tails is not None:
        free = (source.counts - 1).clamp(min=0)
        average = source.within_scatter.sum() / free.sum().clamp(min=1)
        scatter = (source.within_scatter + average) / ((free + 1) * average).clamp(min=1e-30)
        chi2 = torch.randn(len(classes), draws, tails, generator=random).square().sum(dim=-1, keepdim=True)
        own = scatter[classes.to(bank.device), None, None].to(noise.dtype)
        noise = noise * (own * (tails - 2) / chi2.to(bank.device)).sqrt()
    # The symmetric root of S_w, unlike its eigenvectors, is the same on every device.
    rows = source.means[classes.to(bank.device), None] + ((noise @ vectors) * values.sqrt()) @ vectors.T
    if bank.transform is None or bank.transform.whitening is None:
        return rows
    return l2_normalise(rows if bank.unwhitened is None else rows @ bank.transform.whitening)


def domain_match(support: Tensor, bank: BaseBank) -> Tensor:
    """h of each task, `(T,)`, for support points `(T, S, D)` in the space of a whitened bank."""
    return domain_match_of(nearest_base_cosine(support, bank), bank)


def nearest_base_cosine(x: Tensor, bank: BaseBank) -> Tensor:
    """Mean cosine of rows `(*B, D)` with their nearest base classes, `(*B)`."""
    return (x @ bank.means.T).topk(min(NEAREST, len(bank)), dim=-1).values.mean(dim=-1)


def domain_match_of(cosine: Tensor, bank: BaseBank) -> Tensor:
    """h of each task, `(T,)`, from the `nearest_base_cosine` `(T, S)` of its support points."""
    if len(bank) < 2:
        return cosine.new_zeros(len(cosine))
    ratio = cosine.mean(dim=1) / held_out_similarity(bank)
    return ((ratio - _LOW) / (_HIGH - _LOW)).clamp(0, 1)


def task_trust(support: Tensor, bank: BaseBank, k: int, match: Tensor | None = None) -> Tensor:
    """g of each task, `(T,)`, for support points `(T, S, D)` in the space of a whitened bank; `match` is their h."""
    if len(bank) < 2:
        return support.new_zeros(len(support))
    if bank.unwhitened is None:
        raise InputError("trust is judged in a bank that was whitened here; use whiten='auto' or a number")
    match = domain_match(support, bank) if match is None else match
    return enough_classes(len(bank), k) * reliability(bank.unwhitened) * match


def unwhitening(bank: BaseBank) -> Tensor:
    """The way back: `l2_normalise(z @ unwhitening)` are the unit vectors that the whitening of a bank began with."""

    def make() -> Tensor:
        if bank.transform is None or bank.transform.whitening is None:
            raise InputError("only a whitened bank has a way back; use whiten='auto' or a number")
        return torch.linalg.inv(bank.transform.whitening.double()).float()

    return bank.memo.get("unwhitening", make)


def confidence_scale(bank: BaseBank) -> float:
    """How fast probabilities rise with the difference of squared distances in the whitened space, at one shot."""
    return min(30.0, 5.0 / held_out_similarity(bank))


# Support rows whose mean squared length differs from that of base rows by more than this factor are on another scale.
_SCALE = 4.0


def off_scale(x: Tensor, bank: BaseBank) -> str | None:
    """What shows that raw support rows `x (S, D)` are not what the bank was made of, in plain words; None for nothing.

    A scaler in front of the classifier, or another layer or preprocessing of the extractor, makes distances to the base
    classes meaningless without any error.
    """
    if bank.transform is not None or not len(x):
        return None
    remedy = "give support and base rows the same preprocessing (no scaler between the extractor and the classifier)"
    low = bank.memo.get("smallest mean", lambda: float(bank.means.min()))
    share = float((x < 0).float().mean()) if low >= 0 and float(x.min()) < 0 else 0.0
    if share > 0.05 and bank.memo.get("smallest row", lambda: _smallest(bank)) >= 0:
        return f"{share:.0%} of the support's values are negative and no base value is: {remedy}"
    own = float(torch.linalg.vector_norm(x)) ** 2 / len(x)
    base = bank.memo.get("mean square of rows", lambda: _mean_square(bank))
    if base > 0 and not 1 / _SCALE <= own / base <= _SCALE:
        return f"the support's rows are {(own / base) ** 0.5:.2g} times as long as base rows: {remedy}"
    return None


def _mean_square(bank: BaseBank) -> float:
    """The mean squared length of base rows."""
    counts = bank.counts.double()
    total = bank.within_scatter.sum() + (counts * torch.linalg.vecdot(bank.means, bank.means).double()).sum()
    return float(total / counts.sum())


def _smallest(bank: BaseBank) -> float:
    return float(bank.all_rows().min()) if bank.has_rows else float(bank.means.min())
