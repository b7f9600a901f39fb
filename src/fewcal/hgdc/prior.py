r"""The prior of a class mean: what base classes know of a class before its examples are seen.

Base rows are Gaussianized, centred and scaled to unit length (`fewcal.power_choice`, `fewcal.gaussianize`). With the
within-class covariance S_w = V diag(e) Vᵀ they are whitened with one ridge λ, scaled to unit length again and rotated
by R into the eigenbasis of the base means:

    y = z V diag((e + λ ē)^(−1/2)) R / ‖·‖,    ē = tr S_w / D

There the model is a two-covariance model (probabilistic linear discriminant analysis) whose prior mean is local:

    x | μ ~ N(μ, s I)                               s = tr S_w / D
    μ     ~ N(p, s ψ_j)     in direction j          ψ_j: `between_ratio`
    p     = Σ_c w_c M_c,    w = softmax(−τ ‖x̄ − M_c‖² / u),   u = mean ‖M_c‖²

With K examples of mean x̄ and κ_j = 1/ψ_j

    E[μ | x̄] = (K x̄ + κ_j p) / (K + κ_j),     var[x | x̄] = s (K + κ_j + 1) / (K + κ_j).

This is eq. 5 of GDC with two changes: the weights are posterior probabilities of the base classes, and the share of the
base classes falls with the number of examples.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from fewcal.gaussianize import Gaussianization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fewcal.bank import BaseBank


class Eigen(NamedTuple):
    """Base classes in the eigenbasis of their within-class covariance, all in float64.

    Attributes
    ----------
    values : Tensor (D,)
        e, the eigenvalues of S_w.
    means : Tensor (C, D)
        Class means times V.
    counts : Tensor (C,)
        Rows of each class.
    """

    values: Tensor
    means: Tensor
    counts: Tensor

    @property
    def freedom(self) -> float:
        """Degrees of freedom of S_w, at least 1."""
        return max(float(self.counts.sum()) - len(self.counts), 1.0)


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
    """

    transform: Gaussianization
    origin: Tensor
    base_means: Tensor
    psi: Tensor
    within: Tensor
    share: float = 1.0

    def __post_init__(self) -> None:
        # Kept beside the state: a fit of few rows would spend its time on these.
        squares = self.base_means.square().sum(dim=1)
        unit = squares.mean().clamp(min=1e-12)
        object.__setattr__(self, "_scaled_means", (2 / unit * self.base_means.T).contiguous())
        object.__setattr__(self, "_scaled_squares", squares / unit)

    def weights(self, x: Tensor, sharpness: float) -> Tensor:
        """Neighbour weights w `(..., C)` of points `x (..., D)`; `sharpness` is τ."""
        scores = torch.addmm(-self._scaled_squares, x.flatten(0, -2), self._scaled_means)
        return torch.softmax(sharpness * scores, dim=-1).unflatten(0, x.shape[:-1])

    def posterior(self, means: Tensor, shots: Tensor | float, sharpness: float) -> Posterior:
        """The posterior of class means, given those of their examples, `means (T, N, D)`, and K, `(T, N)` or one."""
        kappa = 1 / self.psi
        near = self.share * (self.weights(means, sharpness) @ self.base_means)
        if isinstance(shots, float):
            average, share = shots, shots / (shots + kappa)
        else:
            each = shots[..., None].to(means.dtype)
            average, share = float(each.mean()), each / (each + kappa)
        return Posterior(torch.lerp(near, means, share), (average + kappa) / (average + kappa + 1), kappa)

    @property
    def gamma(self) -> float:
        r"""w / √(2a): the scale of log-probabilities of new classes up to a constant.

        w is the variance within classes, a that along the directions in which base means differ. In a Gaussian world
        the scale is 1/(2a). Novel classes scatter more than base classes that the extractor was trained on, and the
        geometric mean with the square of w follows that (`fewcal.hgdc.temperature`).
        """
        between = self.base_means.square().sum(dim=0)
        along = float((self.within * between).sum() / between.sum().clamp(min=1e-30))
        return float(self.within.sum()) / (2 * max(along, 1e-12)) ** 0.5

    def to(self, device: torch.device | str) -> Prior:
        """The same on another device."""
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != 'share'})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the state by name, for files."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "transform"}
        return own | {f"transform.{name}": t for name, t in self.transform.tensors().items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, object]) -> Prior:
        """What `tensors` gave, with the settings of the transform; shapes that do not fit raise `ValueError`."""
        own = {f.name: tensors[f.name] for f in fields(cls) if f.name != "transform"}
        maps = {name: tensors.get(f"transform.{name}") for name in ("mean", "whitening")}
        d = own["base_means"].shape[-1]
        shapes = {"origin": (d,), "psi": (d,), "within": (d,), "base_means": (len(own["base_means"]), d)}
        for name, shape in shapes.items():
            if own[name].shape != shape or own[name].dtype != torch.float32:
                raise ValueError(f"{name} has shape {tuple(own[name].shape)}, expected {shape}")
        if maps["mean"] is None or maps["mean"].shape != (d,) or maps["whitening"] is None:
            raise ValueError("the transform has no mean or no whitening")
        if maps["whitening"].shape != (d, d):
            raise ValueError(f"whitening has shape {tuple(maps['whitening'].shape)}, expected {(d, d)}")
        kind, beta, eps = str(settings["kind"]), float(str(settings["beta"])), float(str(settings["eps"]))
        return cls(transform=Gaussianization(kind, beta, eps, l2=True, **maps), **own)  # type: ignore[arg-type]


class Posterior(NamedTuple):
    """What is known of the classes of a batch of tasks once their examples are seen.

    Attributes
    ----------
    mean : Tensor (T, N, D)
        E[μ | x̄].
    precision : Tensor (D,)
        s / var[x | x̄] of a class with the average number of examples, so that scores are linear in x.
    kappa : Tensor (D,)
        κ, the number of examples that the prior counts as.
    """

    mean: Tensor
    precision: Tensor
    kappa: Tensor


def eigen(bank: BaseBank) -> tuple[Eigen, Tensor]:
    """Base classes in the eigenbasis of S_w, and that basis V `(D, D)`."""
    values, vectors = (t.double() for t in bank.pooled_eigen())
    return Eigen(values, bank.means.double() @ vectors, bank.counts.double()), vectors


def between_ratio(between: Tensor, within: Tensor, classes: int, floor: float) -> Tensor:
    r"""ψ `(D,)`: the variance of the means of new classes over that within them, from that of base classes.

        ψ_j = (λ_j − λ̄)₊ / (w_j + λ̄) + floor · min(1, F / floor),    F = Σλ / Σw,    λ̄ = Σλ / (C − 1)

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
    ratio = float(between.sum() / within.sum().clamp(min=1e-30))
    noise = between.sum() / max(classes - 1, 1)
    return (between - noise).clamp(min=0) / (within + noise).clamp(min=1e-30) + max(min(floor, ratio), 1e-6)


HALF_P, HALF_PSI = 10.0, 10.0


def fit_prior(own: Eigen, ridge: float, floor: float) -> tuple[Prior, Whitening]:
    """The prior of base classes with ridge λ, its transform still to come, and the map into its space.

    The moments suffice. Rows become unit vectors one by one; what that does to their moments is known on average.
    """
    values, counts, classes = own.values, own.counts, len(own.counts)
    scale = (values + ridge * values.mean()).clamp(min=1e-30).rsqrt()
    moved, scattered = own.means * scale, values * scale.square()
    share = counts / counts.sum()
    length2 = scattered.sum() * own.freedom / counts.sum() + share @ moved.square().sum(dim=1)
    moved, scattered = moved / length2.clamp(min=1e-30).sqrt(), scattered / length2.clamp(min=1e-30)
    mean = moved.mean(dim=0)
    _, spectrum, rotation = torch.linalg.svd(moved - mean, full_matrices=True)
    rotation = rotation.T
    means = (moved - mean) @ rotation
    within = scattered @ rotation.square()
    between = torch.zeros_like(values)
    between[: len(spectrum)] = spectrum.square() / max(classes - 1, 1)
    noise = float(scattered.sum()) * float((1 / counts).mean()) / len(values)
    psi = between_ratio((between - noise).clamp(min=0), within, classes, floor)
    psi = torch.lerp(psi.min(), psi, classes / (classes + HALF_PSI))
    tensors = {"origin": mean @ rotation, "base_means": means, "psi": psi, "within": within}
    prior = Prior(Gaussianization("none"), **{name: t.float() for name, t in tensors.items()}, share=classes / (classes + HALF_P))
    return prior, Whitening(scale, rotation)
