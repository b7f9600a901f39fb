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
from typing import TYPE_CHECKING

import torch

from fewcal._utils.memo import Memo
from fewcal.bank import BaseBank
from fewcal.bank.build import BankParts
from fewcal.bank.moments import Moments
from fewcal.gaussianize import Gaussianization

if TYPE_CHECKING:
    from torch import Tensor

# Base classes from which on they have all of the say.
ENOUGH_CLASSES = 60
# Between over within-class variance of base classes from which all of their average eigenvalue is their own.
_COLLAPSED = 0.25
# Between over within-class variance of new classes where base classes do not differ, at most.
_MOST_OUTSIDE = 0.15
# Ridges that the whitening is an average over, as multiples of the one asked for.
RIDGES = (0.25, 1.0, 4.0)
# What the share of chance in S_w is multiplied by in the share of λ, below which unevenness directions are taken for
# alike, and the least share: rows of new classes vary a little where those of base classes do not at all.
_NOISE, _ALIKE, _LEAST_RIDGE = 20.0, 0.2, 0.0005
# Of the alignment of base rows, at least: where base classes differ as much in all directions, nothing can be told.
_LEAST_ALIGNMENT = 0.05
# Of rows, which have unit length: less than this tells nothing of where they differ.
_LEAST_ENERGY = 1e-5
# Products are quick with multiples of this many columns.
_ALIGNED = 16


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
    spectrum : Tensor (D,)
        How much the base means differ in each direction (their standard deviation), 1 on average.
    alignment : float
        Σ_j σ_j x_j² / Σ_j x_j² − 1 of base rows x, with the spectrum σ.
    alignment_error : float
        The standard deviation of that from row to row, in units of it, were rows normal: in few dimensions, or where
        base classes differ as much in all directions, it is as large as what is to be told by it.
    gap : float
        By how much the cosine of two base rows of one class exceeds that of rows of two, on average; the squared length
        of the base means without the noise in it.
    say : float
        The say of the base classes by their number (`enough_classes`).
    ridge_share : float
        The share of its ridge that the whitening needs: 0 where S_w is known well.
    leverage : float
        How much a row weighs in the metric that it is measured with, for each unit of its squared whitened deviation
        from its class mean: rᵀ(S_w + λ'·I)⁻¹r / df, averaged over λ', is this times ‖rW‖².
    """

    transform: Gaussianization
    origin: Tensor
    means: Tensor
    unit: float
    psi: Tensor
    within: float
    along: float
    deviation: Tensor
    spectrum: Tensor
    alignment: float
    alignment_error: float
    gap: float
    say: float
    ridge_share: float
    leverage: float

    @cached_property
    def _memo(self) -> Memo:
        """What follows from the prior and a few numbers: a small task would spend most of its time on these."""
        return Memo()

    def neighbours(self, x: Tensor, sharpness: Tensor | float, without: Tensor | None = None) -> Tensor:
        """w `(T, N, C)` of points `x (T, N, D)` less the origin; `without (T, N)` is a base class that is no neighbour.

        `sharpness` is τ, of all or of each task, `(T,)`.
        """

        def make() -> tuple[Tensor, Tensor]:
            # C means differ in C − 1 directions, which are the last ones; in all others they are zero.
            columns = -(-len(self.means) // _ALIGNED) * _ALIGNED
            means, scale = self.means[:, -columns:], 2 / self.unit
            # As a copy: a product of a few rows with a transposed matrix is several times slower.
            return -scale / 2 * torch.linalg.vecdot(means, means), (scale * means.T).contiguous()

        shift, scaled = self._memo.get("neighbours", make)
        scores = torch.addmm(shift, x.flatten(0, -2)[:, -len(scaled) :], scaled).unflatten(0, x.shape[:-1])
        scores *= sharpness[:, None, None] if isinstance(sharpness, torch.Tensor) else sharpness
        if without is not None:
            scores = scores.scatter(-1, without[..., None], -torch.inf)
        return torch.softmax(scores, dim=-1)

    def weights(self, shots: float | Tensor, strength: float, say: float) -> tuple[Tensor, Tensor, Tensor]:
        """For classes with `shots` K, all of them or `(T, N)`, the parts of `posterior` in each direction.

        What the prior is worth, `(D,)`, the share of the examples in the mean, `(D,)` or `(T, N, D)`, and the
        precision, `(D,)`.
        """
        if isinstance(shots, float):
            return self._memo.get((shots, strength, say), lambda: self._weights(shots, shots, strength, say))
        k = shots[..., None].to(self.psi.dtype)
        return self._weights(k, float(k.mean()), strength, say)

    def _weights(self, k: float | Tensor, average: float, strength: float, say: float) -> tuple[Tensor, Tensor, Tensor]:
        worth = 1 / torch.lerp(self.psi.min(), self.psi, say) + say * strength
        return worth, k / (k + worth), (average + worth) / (average + worth + 1)

    def domain_match(self, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        """How far the rows of a task, `x (*B, S, D)`, lie along the directions in which base classes differ, `(*B)`.

        Σ_j (σ_j − 1) v_j / Σ_j v_j with the `spectrum` σ and v_j the mean square of the rows in direction j, in units
        of what rows of this domain show on average: 0 for rows that know nothing of these directions. Once around the
        origin, and once around their own mean: birds lie where base classes know birds, and may differ elsewhere. The
        less of the two is told. C classes span C directions, of which those of another class know a share that rises
        with C, and so does the unit. It is told on a scale from `low` to `high`.
        """

        def make() -> tuple[Tensor, Tensor]:
            every, aligned = torch.ones_like(self.spectrum), (self.spectrum - 1) / (self.alignment * self.say)
            of_same = every.new_tensor([-low / (high - low), 1.0])  # rows that are all the same match as 0 does
            return torch.stack([(aligned - low) / (high - low), every]), _LEAST_ENERGY * of_same

        both, least = self._memo.get(("domain match", low, high), make)
        squares = x.square().mean(dim=-2)
        around = torch.stack([squares, squares - x.mean(dim=-2).square()])
        aligned, energy = torch.nn.functional.linear(around, both, least).unbind(dim=-1)  # both sums at once
        return (aligned / energy).amin(dim=0)

    def to(self, device: torch.device | str) -> ClassPrior:
        """The same on another device."""
        tensors = {
            f: getattr(self, f).to(device) for f in ("transform", "origin", "means", "psi", "deviation", "spectrum")
        }
        return replace(self, **tensors)


def ridge_share(values: Tensor, freedom: int) -> float:
    r"""The share of the largest ridge that the whitening needs, from the eigenvalues e `(D,)` of S_w.

        v³·min(1, (v/0.2)⁶) + (20·N₁/f)³,   v = N₁/N₂ − 1,   N₁ = exp(−Σ p log p),   N₂ = 1/Σp²,   p = e/Σe

    and from 0.0005 to 1; f are the degrees of freedom of S_w. A ridge keeps directions of little variance from
    being taken for directions of much information. N₁ and N₂ both count the directions in which rows vary (Hill,
    Ecology 1973): they are equal where rows vary as much in each of these, whatever the number of others in which they
    do not vary, and apart where a few directions have most of the variance. Features behind a narrow layer, or one
    trained on few classes, have few directions that are alike, and a ridge would undo the whitening there; unless S_w
    is noise, which N₁/f tells.

    >>> uneven = torch.tensor([9.0, 3.0, 1.0])
    >>> round(ridge_share(uneven, 10**6), 3), ridge_share(uneven, 10)
    (0.004, 1.0)
    >>> round(ridge_share(torch.cat([uneven, torch.zeros(9)]), 10**6), 3)
    0.004
    """
    p = values.double().clamp(min=0)
    p = p / p.sum().clamp(min=1e-30)
    directions = float(torch.special.entr(p).sum().exp())
    uneven = directions * float(p.square().sum()) - 1
    uneven = uneven**3 * min(1.0, (uneven / _ALIKE) ** 6)
    return min(1.0, max(_LEAST_RIDGE, uneven + (_NOISE * directions / max(freedom, 1)) ** 3))


def transferable_ratio(between: Tensor, within: Tensor, classes: int, floor: float) -> Tensor:
    r"""ψ `(D,)`: variance of the means of new classes over that within them, in each direction.

        σ² = min(1, F/0.25)·λ̄,   ψ_j = (λ_j − σ²)₊ / (w_j + σ²) + min(floor·F, 0.15),   F = Σλ / Σw,   λ̄ = Σλ / (C − 1)

    Training drives base classes apart until each has directions of its own and their means are the corners of a regular
    simplex, with equal eigenvalues λ_j (neural collapse: Papyan, Han, Donoho, PNAS 2020). Of new classes a regular
    simplex tells nothing: rows of theirs fall along these directions at random. So the average eigenvalue λ̄ is taken
    for noise of new classes and only what exceeds it for differences between them; less of it where base classes are
    hardly apart, and a backbone cannot have learnt them by heart. A simplex needs C − 1 directions: where the space has
    less, base classes share those that there are, and so will new ones. The last term stands for differences in
    directions in which base classes have none.

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

    Of thirteen classes in four dimensions, equal eigenvalues are no simplex:

    >>> transferable_ratio(torch.full((4,), 2.0), w, classes=13, floor=1.0)
    tensor([0.9500, 0.9500, 0.9500, 0.9500])
    """
    ratio = float(between.sum() / within.sum().clamp(min=1e-30))
    own = min(1.0, ratio / _COLLAPSED) * between.sum() / max(classes - 1, 1)
    outside = max(min(floor * ratio, _MOST_OUTSIDE), 1e-6)
    return (between - own).clamp(min=0) / (within + own).clamp(min=1e-30) + outside


def fit_class_prior(bank: BaseBank, ridge: float, floor: float) -> ClassPrior:
    """The prior of a bank of centred rows of unit length; its moments suffice.

    Parameters
    ----------
    bank : BaseBank
    ridge : float
        The most that λ of the whitening can be; it is the `ridge_share` of this. The square of the whitening is an
        average of (S_w + λ'·(tr S_w / D)·I)⁻¹ over λ' = λ/4, λ and 4λ, each with the same say: which is best differs
        from task to task, and their average is never far off.
    floor : float
        Of ψ, in units of its mean on base classes.
    """
    values, vectors = (t.double() for t in bank.pooled_eigen())
    freedom = bank.moments.degrees_of_freedom
    needed = ridge_share(values, freedom)
    inverses = [1 / (values + times * needed * ridge * values.mean()).clamp(min=1e-30) for times in RIDGES]
    gain = sum((v / (v @ values).clamp(min=1e-30) for v in inverses), torch.zeros_like(values)).sqrt()
    counts = bank.counts.double()
    moved, scattered = bank.means.double() @ (vectors * gain), values * gain.square()
    # Rows become unit vectors one by one; what that does to their moments is known on average.
    share = freedom / counts.sum()
    length = (scattered.sum() * share + (counts / counts.sum()) @ moved.square().sum(dim=1)).sqrt()
    moved, scattered = moved / length, scattered / length.square()
    within, d = max(float(scattered.sum()), 1e-30), bank.dim
    centred = moved - moved.mean(dim=0)
    spectrum, rotation = torch.linalg.eigh(centred.T @ centred / max(len(bank) - 1, 1))
    noise = within * float((1 / counts).mean())  # in the squared length of the means
    spectrum = (spectrum - noise / d).clamp(min=0)
    spread = scattered @ rotation.square()
    means = centred @ rotation
    between = means.square().sum(dim=0)
    apart = between.sqrt() / between.sqrt().mean().clamp(min=1e-30)
    energy = spread + between / len(bank)
    alignment = max(float(energy @ apart / energy.sum()) - 1, _LEAST_ALIGNMENT)
    error = float(((apart - 1 - alignment) * energy).norm()) * 2**0.5 / float(energy.sum())
    base = bank.transform or Gaussianization("none")
    whitening = (vectors * gain) @ rotation
    return ClassPrior(
        transform=replace(base, whitening=whitening.float()),
        origin=(moved.mean(dim=0) @ rotation).float(),
        means=means.float(),
        unit=max(float(between.sum()) / len(bank), 1e-12),
        psi=transferable_ratio(spectrum, spread, len(bank), floor).float(),
        within=within,
        along=max(float(spread @ between / between.sum().clamp(min=1e-30)), 1e-30),
        # A symmetric root: unlike eigenvectors it is the same on every device, and so are the examples drawn with it.
        deviation=((vectors * values.sqrt()) @ vectors.T @ whitening / length).float(),
        spectrum=apart.float(),
        alignment=alignment,
        alignment_error=max(error / alignment, 1e-9),
        gap=max(float(between.sum()) / len(bank) - noise, 1e-6),
        say=enough_classes(len(bank)),
        ridge_share=needed,
        leverage=float(sum((v @ values for v in inverses), values.new_zeros(()))) / (len(RIDGES) ** 2 * freedom),
    )


def enough_classes(classes: int) -> float:
    """The say of base classes by their number: with few, the nearest are not near.

    Validation classes of 16 feature sets with 5, 17 and 40 of their base classes gain by this share of them (on average
    0.2, 0.9 and 2.4 points at one shot) and lose in none; with more of a say of few classes some lose.

    >>> enough_classes(15), enough_classes(100)
    (0.25, 1.0)
    """
    return min(1.0, classes / ENOUGH_CLASSES)


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


def posterior(
    prior: ClassPrior,
    means: Tensor,
    shots: Tensor | float,
    *,
    sharpness: Tensor | float,
    strength: float,
    say: float = 1.0,
    without: Tensor | None = None,
) -> Posterior:
    """The posterior of class means, given those of their examples.

    Parameters
    ----------
    means : Tensor (T, N, D)
        x̄ of each class, less the origin.
    shots : Tensor (T, N) or float
        K of each class; one number where all have as many.
    sharpness, strength : float
        τ and κ0.
    say : float
        What p, κ0 and the differences of ψ between directions are multiplied by. With 0, of the base classes only the
        within-class covariance is left.
    without : Tensor (T, N) or None
        For each class a base class that is not to be its neighbour: itself, where it is one.
    """
    worth, share, precision = prior.weights(shots, strength, say)
    near = prior.neighbours(means, sharpness, without) @ prior.means
    return Posterior(torch.lerp(near if say == 1 else say * near, means, share), precision, worth)


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
