r"""What the base classes say of a class before its examples are seen: a hierarchical Gaussian model.

Rows of a class scatter around its mean, class means around each other (the two-covariance model of probabilistic
discriminant analysis), and near base classes know more of a class than far ones, which is GDC's idea:

    x | μ ~ N(μ, s·I)                             after whitening, s = tr S_w / D
    μ     ~ N(p, s / κ_j)   in direction j        κ_j = 1/ψ_j + κ0
    p     = Σ_c w_c M_c,    w = softmax(−τ ‖x̄ − M_c‖² / u)

Directions are the eigenvectors of the covariance of the base means M_c, ψ_j is the variance of means of *new* classes
in one of them, in units of that within a class (`transferable_ratio`). κ0 is the number of examples that the neighbours
are worth, u the mean squared length of the base means, so that nothing depends on the scale of the features. With K
examples of mean x̄

    E[μ | x̄] = (K x̄ + κ_j p) / (K + κ_j),     var[x | x̄] = s (K + κ_j + 1) / (K + κ_j).

This is eq. 5 with other weights: the more examples, the less the base classes say. Softmax weights are the posterior
probabilities that the class was drawn near each base class; 1/(1 + d^m) of eq. 8 decays without regard to how many
others are nearer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.bank.build import BankParts
from fewcal.bank.moments import Moments
from fewcal.gaussianize import Gaussianization

# Below this reliability the base means are taken for noise and the bank is not used.
LEAST_RELIABILITY = 0.25
# Base classes up to which they have no say as neighbours, and from which they have all of it.
FEW_CLASSES, ENOUGH_CLASSES = 20, 60
# Between over within-class variance of base classes from which all of their average eigenvalue is their own.
_COLLAPSED = 0.25
# Between over within-class variance of new classes where base classes do not differ, at most.
_MOST_OUTSIDE = 0.15
# Examples that stand for held-out base classes when similarity is measured, and classes they are of, at most.
_EXAMPLES = 2048


@dataclass(frozen=True, eq=False)
class ClassPrior:
    """The prior of a bank, in a space of its own: whitened rows of unit length, in the eigenbasis of the base means.

    Attributes
    ----------
    transform : Gaussianization
        Maps raw features into the space.
    origin : Tensor (D,)
        The mean of the base means there.
    means : Tensor (C, D)
        M, the base means less the origin.
    unit : float
        u.
    psi : Tensor (D,)
        ψ_j.
    within : float
        tr S_w: the mean squared distance of rows from the mean of their class.
    along : float
        The within-class variance along the directions in which base means differ.
    deviation : Tensor (D, D)
        E with EᵀE = S_w.
    similarity : float
        x·p of examples of base classes, their own class left out of p: what a task of this domain looks like.
    """

    transform: Gaussianization
    origin: Tensor
    means: Tensor
    unit: float
    psi: Tensor
    within: float
    along: float
    deviation: Tensor
    similarity: float = 0.0

    @cached_property
    def half_squares(self) -> Tensor:
        """‖M_c‖²/2 `(C,)`."""
        return torch.linalg.vecdot(self.means, self.means) / 2

    def neighbours(self, x: Tensor, sharpness: float, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """w `(*B, C)` of points `x (*B, D)` and their products with the base means; `own (*B)` is left out."""
        product = x @ self.means.T
        score = (product - self.half_squares) * (2 * sharpness / self.unit)
        if own is not None:
            score = score.scatter(-1, own[..., None], -torch.inf)
        return torch.softmax(score, dim=-1), product

    def resemblance(self, x: Tensor, sharpness: float, own: Tensor | None = None) -> Tensor:
        """x·p `(*B)` of points `x (*B, D)` less the origin."""
        weights, product = self.neighbours(x, sharpness, own)
        return (weights * product).sum(dim=-1)

    def to(self, device: torch.device | str) -> ClassPrior:
        """The same on another device."""
        tensors = {f: getattr(self, f).to(device) for f in ("transform", "origin", "means", "psi", "deviation")}
        return replace(self, **tensors)


def reliability(bank: BaseBank) -> float:
    """The share of the variance of the base means that is not sampling noise, 0 to 1."""

    def make() -> float:
        noise = float(bank.pooled_eigen()[0].double().sum()) * float((1 / bank.counts.double()).mean())
        between = float(bank.centred_means()[2].double().sum()) / max(len(bank) - 1, 1)
        return max(0.0, 1 - noise / between) if between > 0 else 0.0

    return bank.memo.get("means reliability", make)


def transferable_ratio(between: Tensor, within: Tensor, classes: int, floor: float) -> Tensor:
    r"""ψ `(D,)`: variance of the means of new classes over that within them, in each direction.

        σ² = min(1, F/0.25)·λ̄,   ψ_j = (λ_j − σ²)₊ / (w_j + σ²) + min(floor·F, 0.15),   F = Σλ / Σw

    Training drives base classes apart until each has directions of its own and their means are the corners of a regular
    simplex, with equal eigenvalues λ_j (neural collapse: Papyan, Han, Donoho, PNAS 2020). Of new classes a regular
    simplex tells nothing: rows of theirs fall along these directions at random. So the average eigenvalue λ̄ is taken
    for noise of new classes and only what exceeds it for differences between them; less of it where base classes are
    hardly apart, and a backbone cannot have learnt them by heart. The last term stands for differences in directions in
    which base classes have none.

    Parameters
    ----------
    between, within : Tensor (D,)
        λ_j and w_j: variance of the base means and of rows around them.
    classes : int
        Number of base classes; their means have that many directions less one.
    floor : float

    Examples
    --------
    A regular simplex, of which nothing is taken over, and one direction in which classes differ more:

    >>> w = torch.ones(4)
    >>> transferable_ratio(torch.tensor([2.0, 2.0, 2.0, 0.0]), w, classes=4, floor=1.0)
    tensor([0.1500, 0.1500, 0.1500, 0.1500])
    >>> transferable_ratio(torch.tensor([4.0, 1.0, 1.0, 0.0]), w, classes=4, floor=1.0)
    tensor([0.8167, 0.1500, 0.1500, 0.1500])
    """
    ratio = float(between.sum() / within.sum().clamp(min=1e-30))
    own = min(1.0, ratio / _COLLAPSED) * between.sum() / max(min(classes - 1, len(between)), 1)
    outside = max(min(floor * ratio, _MOST_OUTSIDE), 1e-6)
    return (between - own).clamp(min=0) / (within + own).clamp(min=1e-30) + outside


def fit_class_prior(bank: BaseBank, ridge: float, floor: float, sharpness: float) -> ClassPrior:
    """The prior of a bank of centred rows of unit length; its moments suffice.

    Parameters
    ----------
    bank : BaseBank
    ridge : float
        λ of the whitening (S_w + λ·(tr S_w / D)·I)^(−1/2).
    floor : float
        Of ψ, in units of its mean on base classes.
    sharpness : float
        τ.
    """
    values, vectors = (t.double() for t in bank.pooled_eigen())
    gain = (values + ridge * values.mean()).clamp(min=1e-30).rsqrt()
    counts = bank.counts.double()
    moved, scattered = bank.means.double() @ (vectors * gain), values * gain.square()
    # Rows become unit vectors one by one; what that does to their moments is known on average.
    share = bank.moments.degrees_of_freedom / counts.sum()
    length = (scattered.sum() * share + (counts / counts.sum()) @ moved.square().sum(dim=1)).sqrt()
    moved, scattered = moved / length, scattered / length.square()
    within, d = max(float(scattered.sum()), 1e-30), bank.dim
    centred = moved - moved.mean(dim=0)
    spectrum, rotation = torch.linalg.eigh(centred.T @ centred / max(len(bank) - 1, 1))
    spectrum = (spectrum - within / d * (1 / counts).mean()).clamp(min=0)  # without the noise of the means
    spread = scattered @ rotation.square()
    means = centred @ rotation
    between = means.square().sum(dim=0)
    base = bank.transform or Gaussianization("none")
    whitening = (vectors * gain) @ rotation
    prior = ClassPrior(
        transform=replace(base, whitening=whitening.float()),
        origin=(moved.mean(dim=0) @ rotation).float(),
        means=means.float(),
        unit=max(float(between.sum()) / len(bank), 1e-12),
        psi=transferable_ratio(spectrum, spread, len(bank), floor).float(),
        within=within,
        along=max(float(spread @ between / between.sum().clamp(min=1e-30)), 1e-30),
        # A symmetric root: unlike eigenvectors it is the same on every device, and so are the examples drawn with it.
        deviation=((vectors * values.sqrt()) @ vectors.T @ whitening / length).float(),
    )
    return replace(prior, similarity=_held_out_similarity(prior, sharpness))


def _held_out_similarity(prior: ClassPrior, sharpness: float) -> float:
    """Mean resemblance of base examples without their own class; drawn from N(M_c, S_w), so that no rows are needed."""
    classes = len(prior.means)
    if classes < 2:
        return prior.unit
    own = torch.arange(_EXAMPLES) * max(classes // _EXAMPLES, 1) % classes
    noise = torch.randn(_EXAMPLES, len(prior.deviation), generator=torch.Generator().manual_seed(0))
    noise, own = noise.to(prior.deviation), own.to(prior.deviation.device)
    found = [
        prior.resemblance(prior.means[at] + part @ prior.deviation, sharpness, at)
        for part, at in zip(noise.split(256), own.split(256), strict=True)
    ]
    return max(float(torch.cat(found).mean()), 0.1 * prior.unit)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the classes of a batch of tasks once their examples are seen.

    Attributes
    ----------
    mean : Tensor (T, N, D)
        E[μ | x̄].
    precision : Tensor (D,)
        s / var[x | x̄] in each direction, of a class with the average number of examples, so that scores are linear.
    worth : Tensor (D,)
        Examples that the prior is worth in each direction.
    """

    mean: Tensor
    precision: Tensor
    worth: Tensor


def posterior(prior: ClassPrior, means: Tensor, shots: Tensor, *, sharpness: float, strength: float) -> Posterior:
    """The posterior of class means, given those of their examples.

    Parameters
    ----------
    means : Tensor (T, N, D)
        x̄ of each class, less the origin.
    shots : Tensor (T, N)
        K of each class.
    sharpness, strength : float
        τ and κ0.
    """
    weights, _ = prior.neighbours(means, sharpness)
    worth = 1 / prior.psi + strength
    k = shots[..., None].to(means.dtype)
    average = float(shots.to(means.dtype).mean()) + worth
    mean = torch.lerp(weights @ prior.means, means, k / (k + worth))
    return Posterior(mean, average / (average + 1), worth)


def prior_bank(prior: ClassPrior, bank: BaseBank) -> BaseBank:
    """The bank in the space of its prior, moments alone; explanations and outlier tests look at it."""
    moments = Moments(
        counts=bank.counts,
        means=prior.means + prior.origin,
        scatter=prior.deviation.T @ prior.deviation * bank.moments.degrees_of_freedom,
        within_scatter=prior.within * (bank.counts - 1).double(),
    )
    parts = BankParts(0, transform=prior.transform, classes=list(bank.classes), moments=moments, source=bank.source)
    return BaseBank.from_parts(parts, unwhitened=bank)


def enough_classes(classes: int) -> float:
    """The say of base classes by their number: with few, the nearest are not near.

    >>> enough_classes(20), enough_classes(40), enough_classes(100)
    (0.0, 0.5, 1.0)
    """
    return min(1.0, max(0.0, (classes - FEW_CLASSES) / (ENOUGH_CLASSES - FEW_CLASSES)))


def why_ignored(classes: int, share: float) -> str | None:
    """Why a bank of so many classes, whose means are this reliable, is of no use, in plain words; None where it is.

    >>> why_ignored(100, 0.9), why_ignored(5, 0.9)
    (None, '5 base classes are too few for near ones among them (from 60 on all is well)')
    """
    if classes <= FEW_CLASSES:
        return f"{classes} base classes are too few for near ones among them (from {ENOUGH_CLASSES} on all is well)"
    if share < LEAST_RELIABILITY:
        return (
            f"its base classes hardly differ (only {100 * share:.0f}% of the variance of their means is more than "
            "chance; are their labels right?)"
        )
    return None
