r"""The prior of a class mean: what base classes tell of a class before its examples are seen.

Base rows are Gaussianized, centred and scaled to unit length (`fewcal.gaussianize`). With the within-class covariance
S_w = V diag(e) Vᵀ, shrunk by OAS, they are whitened with one ridge λ, scaled to unit length again and rotated by R into
the eigenbasis of the base means:

    y = z V diag((e + λ ē)^(−1/2)) R / ‖·‖,    ē = tr S_w / D

There the model is a two-covariance model (probabilistic linear discriminant analysis) whose prior mean is local:

    x | μ ~ N(μ, s I)                                  s = tr S_w / D
    μ     ~ N(o + p, s ψ_j)     in direction j         ψ_j: `between_ratio`
    p     = c Σ_b w_b M_b,      w = softmax(−τ ‖x̄ − M_b‖² / u),   u = mean ‖M_b‖²

M are the C base means, o is an offset that all classes of a task share (`task_offset`), and c = C/(C + h) the weight of
the base classes. With K examples of mean x̄ and κ_j = 1/ψ_j

    E[μ | x̄] = (K x̄ + κ_j (o + p)) / (K + κ_j),     var[x | x̄] = s (K + κ_j + 1) / (K + κ_j).

This is eq. 5 of GDC with two changes: the weights are posterior probabilities of the base classes, and the share of the
base classes falls with the number of examples.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.covariance.oas import oas_share
from fewcal.gaussianize import Gaussianization

# Smallest variance ratio, mean variance and squared length that is divided by: numerical guards.
MIN_PSI, MIN_VARIANCE = 1e-6, 1e-30
# Fields of `Prior` that are tensors, with their axes.
TENSORS = {"origin": "D", "base_means": "CD", "psi": "D", "within": "D"}


class Eigen(NamedTuple):
    """Base classes in the eigenbasis of their within-class covariance, in float64.

    Attributes
    ----------
    values : Tensor (D,)
        e, the eigenvalues of S_w, shrunk.
    means : Tensor (C, D)
        Class means times V.
    counts : Tensor (C,)
        Rows of each class.
    rest : int
        Directions in which no base row has anything, where rows are fewer than features. They have one eigenvalue, and
        stand together as the last coordinate, which no mean has; 0 without it.
    """

    values: Tensor
    means: Tensor
    counts: Tensor
    rest: int = 0

    @classmethod
    def make(cls, values: Tensor, means: Tensor, counts: Tensor, rest: int = 0) -> Eigen:
        """Shrink `values`, the eigenvalues of S_w as it was measured; those of `rest` more directions are 0."""
        dim = len(values) + rest
        freedom = max(float(counts.sum()) - len(counts), 1.0)
        if rest:
            values, means = torch.nn.functional.pad(values, (0, 1)), torch.nn.functional.pad(means, (0, 1))
        share = oas_share(values.sum(), values.square().sum(), freedom, dim)
        return cls(torch.lerp(values, values.sum() / dim, share), means, counts, rest)

    @property
    def times(self) -> Tensor:
        """How many directions each coordinate stands for, `(D,)`."""
        times = torch.ones_like(self.values)
        if self.rest:
            times[-1] = self.rest
        return times

    @property
    def freedom(self) -> float:
        """Degrees of freedom of S_w, at least 1."""
        return max(float(self.counts.sum()) - len(self.counts), 1.0)

    def expanded(self, prior: Prior) -> Prior:
        """A prior that was fitted on these, with a coordinate for every direction."""
        if not self.rest:
            return prior
        each = self.times.long()
        fields = {name: getattr(prior, name).repeat_interleave(each, dim=-1) for name in TENSORS}
        fields["within"][-self.rest :] /= self.rest
        return replace(prior, **fields)


class Whitening(NamedTuple):
    """The map from the eigenbasis of S_w into the space of the prior: scale (D,), then rotation (D, D)."""

    scale: Tensor
    rotation: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows `(..., D)` of the eigenbasis to unit length."""
        return torch.nn.functional.normalize(rows * self.scale, dim=-1) @ self.rotation


@dataclass(frozen=True, eq=False)
class Prior:
    """The fitted prior, in coordinates less the mean of the base means.

    Attributes
    ----------
    transform : Gaussianization
        Map of raw features into the space.
    origin : Tensor (D,)
        Mean of the base means there.
    base_means : Tensor (C, D)
        M, less the origin.
    psi : Tensor (D,)
        ψ, the variance of class means in units of s.
    within : Tensor (D,)
        Variance within classes along each direction; its mean is s.
    sharpness : float
        τ.
    share : float
        c.
    gamma : float
        γ of one-shot tasks, the scale of their scores.
    weight : float
        ω, the weight of this model beside the support-only classifier.
    classes : tuple of hashable
        Names of the base classes.
    """

    transform: Gaussianization
    origin: Tensor
    base_means: Tensor
    psi: Tensor
    within: Tensor
    sharpness: float
    share: float
    gamma: float = 1.0
    weight: float = 1.0
    classes: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        # Kept beside the state: a fit of few rows would spend its time on these.
        squares = self.base_means.square().sum(dim=1)
        unit = self.sharpness / squares.mean().clamp(min=MIN_VARIANCE)
        object.__setattr__(self, "_scaled_means", (2 * unit * self.base_means.T).contiguous())
        object.__setattr__(self, "_scaled_squares", squares * unit)
        object.__setattr__(self, "_kappa", 1 / self.psi)

    @property
    def kappa(self) -> Tensor:
        """κ `(D,)`, the number of examples that the prior counts as."""
        return self._kappa  # type: ignore[attr-defined]

    def neighbour_weights(self, x: Tensor, names: Tensor | None = None) -> Tensor:
        """Weights w `(..., C)` of the base classes at points `x (..., D)`; `names (N, C)` are scores of the classes."""
        flat = torch.addmm(-self._scaled_squares, x.flatten(0, -2), self._scaled_means)  # type: ignore[attr-defined]
        scores = flat.unflatten(0, x.shape[:-1])
        return torch.softmax(scores if names is None else scores + names, dim=-1)

    def offset(self, means: Tensor, shots: float) -> Tensor:
        """o `(T, 1, D)` of tasks with class means `(T, N, D)` of `shots` examples each."""
        return task_offset(means, self.psi + 1 / shots)

    def posterior(self, means: Tensor, shots: Tensor | float, names: Tensor | None = None) -> Posterior:
        """The posterior of class means, given those of their examples, `means (T, N, D)`, and K, `(T, N)` or one.

        `means` are less the offset of their task; `names (N, C)` are scores of names (`fewcal.hgdc.names`).
        """
        near = self.share * (self.neighbour_weights(means, names) @ self.base_means)
        if isinstance(shots, float):
            average, weight = shots, shots / (shots + self.kappa)
        else:
            each = shots[..., None].to(means.dtype)
            average, weight = float(each.mean()), each / (each + self.kappa)
        precision = (average + self.kappa) / (average + self.kappa + 1)
        return Posterior(torch.lerp(near, means, weight), precision, self.kappa)

    @property
    def gaussian_gamma(self) -> float:
        r"""γ₀ = w / √(2a), a scale of log-probabilities of new classes.

        w is the variance within classes, a that along the directions in which base means differ. In a Gaussian world
        the scale is 1/(2a). New classes vary more than base classes that the extractor was trained on, and the
        geometric mean with the square of w follows that.
        """
        between = self.base_means.square().sum(dim=0)
        along = float((self.within * between).sum() / between.sum().clamp(min=MIN_VARIANCE))
        return float(self.within.sum()) / (2 * max(along, 1e-12)) ** 0.5

    def to(self, device: torch.device | str) -> Prior:
        """The same on another device."""
        if self.origin.device == torch.device(device):
            return self
        moved = {name: getattr(self, name).to(device) for name in ("transform", *TENSORS)}
        return replace(self, **moved)

    def __sklearn_clone__(self) -> Prior:
        return self


class Posterior(NamedTuple):
    """The classes of a batch of tasks once their examples are seen.

    Attributes
    ----------
    mean : Tensor (T, N, D)
        E[μ | x̄], less the offset of the task.
    precision : Tensor (D,)
        s / var[x | x̄] of a class with the average number of examples, so that scores are linear in x.
    kappa : Tensor (D,)
        κ.
    """

    mean: Tensor
    precision: Tensor
    kappa: Tensor


def base_weight(classes: int, half: float) -> float:
    """c = C/(C + h): the weight of C base classes.

    >>> base_weight(10, half=40.0), base_weight(160, half=40.0)
    (0.2, 0.8)
    """
    return classes / (classes + half)


def task_offset(means: Tensor, variance: Tensor | float = 1.0) -> Tensor:
    r"""The offset o `(T, 1, D)` that the N class means `(T, N, D)` of a task share, shrunk to nothing by chance.

    With the mean m of the class means, which vary by `variance (D,)` up to a factor,

        o = (1 − 1/F)₊ m,    F = N Σ_j m_j²/v_j  /  Σ_j Σ_n (x̄_nj − m_j)²/v_j / (N − 1).

    This is the best linear unbiased prediction of a random effect of the task, with its variance by the method of
    moments (F is that of an analysis of variance). F is 1 where the task is of the domain of the base classes.

    >>> task_offset(torch.eye(2)[None]).abs().max(), task_offset(torch.ones(1, 3, 2))[0, 0]
    (tensor(0.), tensor([1., 1.]))
    """
    n, mean = means.shape[1], means.mean(dim=1, keepdim=True)
    scaled = mean / variance
    shared = n * torch.linalg.vecdot(scaled, mean)  # (T, 1)
    total = (means.square() / variance).sum(dim=(1, 2))[:, None]
    apart = (total - shared).clamp(min=0) / max(n - 1, 1)
    return (1 - apart / shared.clamp(min=MIN_VARIANCE)).clamp(min=0)[..., None] * mean


def pooled_eigen(bank: BaseBank) -> tuple[Eigen, Tensor]:
    """Base classes in the eigenbasis of S_w, and that basis V `(D, D)`; of few rows in the space that they span."""
    counts, rest = bank.counts.double(), bank.dim - bank.n_rows
    if rest > 0 and bank.has_rows:
        basis, coordinates = span(bank.all_rows(), complete=True)
        values, turn, means = class_eigen(coordinates.split(bank.counts.tolist()))
        vectors = torch.cat([basis[:, :-rest] @ turn, basis[:, -rest:]], dim=1)
        return Eigen.make(values, means, counts, rest), vectors
    values, vectors = (t.double() for t in bank.pooled_eigen())
    return Eigen.make(values, bank.means.double() @ vectors, counts), vectors


def span(rows: Tensor, complete: bool = False) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of the space that rows `(R, D)` with R < D span, `(D, R)` or `(D, D)`, and coordinates."""
    basis, triangle = torch.linalg.qr(rows.double().T, mode="complete" if complete else "reduced")
    return basis, triangle[: len(rows)].T


def class_eigen(classes: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues `(D,)` and eigenvectors `(D, D)` of S_w, and the class means in that basis, from rows of classes."""
    means = torch.stack([r.mean(dim=0) for r in classes]).double()
    centred = torch.cat([r - r.mean(dim=0) for r in classes])
    values, vectors = torch.linalg.eigh(centred.T @ centred / max(len(centred) - len(classes), 1))
    return values.clamp(min=0).double(), vectors, means @ vectors.double()


def between_ratio(between: Tensor, within: Tensor, classes: int, floor: float) -> Tensor:
    r"""ψ `(D,)`: the variance of the means of new classes over that within them, from that of base classes.

        ψ_j = (λ_j − λ̄)₊ / (w_j + λ̄) + min(floor, F),    F = Σλ / Σw,    λ̄ = Σλ / (C − 1)

    Training drives base classes apart until their means are the corners of a regular simplex, with equal eigenvalues
    λ_j (neural collapse: Papyan, Han, Donoho, PNAS 2020). A regular simplex tells nothing of new classes, whose rows
    fall along its directions at random: the average eigenvalue λ̄ counts as noise. The last term is for differences of
    new classes in directions in which base classes have none.

    >>> w = torch.ones(4)
    >>> between_ratio(torch.tensor([2.0, 2.0, 2.0, 0.0]), w, classes=4, floor=0.15)
    tensor([0.1500, 0.1500, 0.1500, 0.1500])
    >>> between_ratio(torch.tensor([4.0, 1.0, 1.0, 0.0]), w, classes=4, floor=0.15)
    tensor([0.8167, 0.1500, 0.1500, 0.1500])
    """
    ratio = float(between.sum() / within.sum().clamp(min=MIN_VARIANCE))
    noise = between.sum() / max(classes - 1, 1)
    ahead = (between - noise).clamp(min=0) / (within + noise).clamp(min=MIN_VARIANCE)
    return ahead + max(min(floor, ratio), MIN_PSI)


def fit_prior(own: Eigen, ridge: float, floor: float, sharpness: float, share: float) -> tuple[Prior, Whitening]:
    """The prior of base classes with ridge λ, its transform still to come, and the map into its space.

    The moments suffice. Rows become unit vectors one by one; what that does to their moments is known on average.
    """
    values, counts, classes, times = own.values, own.counts, len(own.counts), own.times
    dim = times.sum()
    scale = (values + ridge * (times * values).sum() / dim).clamp(min=MIN_VARIANCE).rsqrt()
    moved, scattered = own.means * scale, times * values * scale.square()
    length2 = scattered.sum() * own.freedom / counts.sum() + counts @ moved.square().sum(dim=1) / counts.sum()
    length2 = length2.clamp(min=MIN_VARIANCE)
    moved, scattered = moved / length2.sqrt(), scattered / length2
    mean = moved.mean(dim=0)
    own_size = len(values) - (own.rest > 0)
    _, spectrum, turned = torch.linalg.svd((moved - mean)[:, :own_size], full_matrices=True)
    rotation = torch.block_diag(turned.T, *([torch.ones_like(turned[:1, :1])] if own.rest else []))
    within = scattered @ rotation.square()
    # Where base means have nothing the basis is arbitrary: one variance for all.
    free = within[min(classes - 1, own_size) : own_size]
    free[:] = free.mean() if len(free) else 0.0
    between = torch.zeros_like(values)
    between[: len(spectrum)] = spectrum.square() / max(classes - 1, 1)
    noise = float(scattered.sum() / dim) * float((1 / counts).mean())
    psi = between_ratio((between - noise).clamp(min=0), within, classes, floor)
    prior = Prior(
        transform=Gaussianization("none"),
        origin=(mean @ rotation).float(),
        base_means=((moved - mean) @ rotation).float(),
        psi=psi.float(),
        within=within.float(),
        sharpness=sharpness,
        share=share,
    )
    return prior, Whitening(scale, rotation)
