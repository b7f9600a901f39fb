r"""The n → ∞ classifier: linear discriminant with the calibrated means and the average Σ'ₛ.

    score_c(x) = xᵀ Σ̄⁻¹ μ_c − ½ μ_cᵀ Σ̄⁻¹ μ_c

It is what discriminant analysis on ever more samples tends to, without drawing one. Σ̄⁻¹μ is found by conjugate
gradients on the structured covariance: a few products with the base rows, shared by all tasks of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewcal.covariance import ShrunkCovariance
from fewcal.errors import InputError
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.linear import LinearHead, class_means
from fewcal.heads.registry import HeadTrainer, register_head

# Of the residual, relative to the right-hand side; scores are then good to about four digits.
TOLERANCE = 1e-4
MAX_ITERATIONS = 200


@register_head("closed_form")
@dataclass(frozen=True)
class ClosedForm(HeadTrainer):
    """The linear discriminant that ever more samples tend to, without drawing any."""

    samples: ClassVar[bool] = False

    def train(self, task: Calibrated) -> LinearHead:
        """Solve for the weights by conjugate gradients."""
        batch = task.batch
        return closed_form_head(task.mean, batch.labels, batch.n_classes, task.covariance)


def closed_form_head(means: Tensor, labels: Tensor, n_classes: int, covariance: ShrunkCovariance) -> LinearHead:
    """Fit the closed form.

    Parameters
    ----------
    means : Tensor (T, S, D)
        Calibrated mean of each support point.
    labels : Tensor (T, S)
        Its class, 0..N−1.
    covariance : ShrunkCovariance
        Σ'ₛ of each support point, averaged over the points of the task.
    """
    prototypes = class_means(means, labels, n_classes)
    origin = prototypes.mean(dim=1, keepdim=True)  # scores change by a constant; the systems become better posed
    centred = prototypes - origin
    # The centred prototypes add up to zero, so the last solution follows from the others.
    weight = solve_average(covariance, centred[:, :-1])
    weight = torch.cat([weight, -weight.sum(dim=1, keepdim=True)], dim=1)
    bias = -0.5 * (weight * centred).sum(dim=-1) - (weight * origin).sum(dim=-1)
    return LinearHead(weight, bias)


def solve_average(covariance: ShrunkCovariance, v: Tensor) -> Tensor:
    """Σ̄ₛ⁻¹v for rows `v (T, M, D)`, by conjugate gradients, preconditioned with the pooled base covariance."""
    parts = covariance.covariance
    if covariance.psd == "eigen":
        raise InputError("the closed form works on the structured covariance; use psd='clip' with head='closed_form'")
    if covariance.a is None:
        raise InputError(
            "the closed form needs an invertible covariance; use alpha1 > 0 (DC has none: use head='lbfgs')"
        )
    a = covariance.a.mean(dim=1)[:, None, None]
    b = covariance.b.mean(dim=1)[:, None, None]
    if bool((a <= 0).any()):
        raise InputError(
            "the closed form needs an invertible covariance; use alpha1 > 0 and a smaller alpha2_ratio (its clip can "
            "take all of a), or a head that trains on samples"
        )

    values, vectors = parts.bank.pooled_eigen()
    sigma1 = parts.moments()[0].mean(dim=1)[:, None, None]
    scale = sigma1 / values.mean().clamp(min=1e-30)
    spectrum = scale * values + a  # (T, 1, D): eigenvalues of the preconditioner without its 11ᵀ
    ones = vectors.sum(dim=0) / spectrum
    ones_back = ones @ vectors.T
    damp = b / (1 + b * ones_back.sum(dim=-1, keepdim=True))

    def precondition(x: Tensor) -> Tensor:
        y = (x @ vectors / spectrum) @ vectors.T
        return y - damp * ones_back * y.sum(dim=-1, keepdim=True)

    def times(x: Tensor) -> Tensor:
        return parts.average_times(x) + a * x + b * x.sum(dim=-1, keepdim=True)

    return conjugate_gradients(times, precondition, v)


def conjugate_gradients(
    times: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor],
    v: Tensor,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Tensor:
    """Solve A x = v for every row of `v (T, M, D)`; rows that have converged stop moving, so batches do not matter."""
    x = precondition(v)
    residual = v - times(x)
    target = tolerance * v.norm(dim=-1, keepdim=True)
    z = precondition(residual)
    direction = z
    rz = (residual * z).sum(dim=-1, keepdim=True)
    for _ in range(max_iterations):
        active = residual.norm(dim=-1, keepdim=True) > target
        if not bool(active.any()):
            break
        moved = times(direction)
        step = torch.where(active, rz / (direction * moved).sum(dim=-1, keepdim=True).clamp(min=1e-30), 0.0)
        x = x + step * direction
        residual = residual - step * moved
        z = precondition(residual)
        rz_new = (residual * z).sum(dim=-1, keepdim=True)
        direction = z + torch.where(active, rz_new / rz.clamp(min=1e-30), 0.0) * direction
        rz = rz_new
    return x
