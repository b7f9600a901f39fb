"""Equations 1 to 13 of the paper in float64, in plain loops, written from its text alone.

Vectors are one-dimensional arrays; base classes are lists of arrays `(P, D)`. Nothing here is shared with fewcal.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def gaussianize(x: Array, beta: float, nonnegative: bool, eps: float = 1e-6) -> Array:
    """Eq. 1: one transform for base classes, support and queries; ε keeps log and negative powers of 0 finite."""
    out = np.empty(x.shape)
    for at, value in np.ndenumerate(np.asarray(x, float)):
        if nonnegative:
            out[at] = tukey(value if beta > 0 else value + eps, beta)
        else:
            out[at] = yeo_johnson(value, beta)
    return out


def tukey(x: float, beta: float) -> float:
    """Eq. 2."""
    return math.log(x) if beta == 0 else x**beta


def yeo_johnson(x: float, beta: float) -> float:
    """Eq. 3."""
    if x >= 0:
        return math.log(x + 1) if beta == 0 else ((x + 1) ** beta - 1) / beta
    return -math.log(-x + 1) if beta == 2 else -((-x + 1) ** (2 - beta) - 1) / (2 - beta)


def mean(rows: Array) -> Array:
    """μ_i of a base class."""
    out = np.zeros(rows.shape[1])
    for row in rows:
        out += row
    return out / len(rows)


def cross(a: Array, b: Array) -> Array:
    """Sample covariance of paired rows, Σ(a − ā)(b − b̄)ᵀ/(P − 1)."""
    out = np.zeros((a.shape[1], b.shape[1]))
    mean_a, mean_b = mean(a), mean(b)
    for one, other in zip(a, b, strict=True):
        out += np.outer(one - mean_a, other - mean_b)
    return out / (len(a) - 1)


def squared_distance(x: Array, mu: Array, delta: float = 1.0) -> float:
    """Eq. 6, d_i = ‖x̃ − μ_i‖²; appendix A with δ."""
    return math.fsum((float(a) - delta * float(b)) ** 2 for a, b in zip(x, mu, strict=True))


def mahalanobis(x: Array, rows: Array) -> float:
    """Eq. 13: ln|Σ_i| + (x̃ − μ_i)ᵀ Σ_i⁻¹ (x̃ − μ_i)."""
    sigma, gap = cross(rows, rows), x - mean(rows)
    return float(np.linalg.slogdet(sigma)[1] + gap @ np.linalg.solve(sigma, gap))


def nearest(d: list[float], k: int) -> list[int]:
    """Eq. 7: the k base classes with the smallest d."""
    return sorted(range(len(d)), key=lambda i: d[i])[:k]


def weights(d: list[float], m: float) -> list[float]:
    """Eq. 8: w_i = 1/(1 + d_i^m)."""
    return [1 / (1 + value**m) for value in d]


def calibrated(x: Array, w: list[float], classes: list[Array]) -> tuple[Array, Array]:
    """Eq. 4 and 5: X' = (x̃ + Σ w_i X_i)/(1 + Σ w_i), its mean and its covariance with rows paired by position."""
    total = 1 + math.fsum(w)
    mu = np.array(x, float)
    for weight, rows in zip(w, classes, strict=True):
        mu = mu + weight * mean(rows)
    sigma = np.zeros((len(x), len(x)))
    for a, one in zip(w, classes, strict=True):
        for b, other in zip(w, classes, strict=True):
            sigma += a * b * cross(one, other)
    return mu / total, sigma / total**2


def shrink(sigma: Array, alpha1: float, alpha2: float) -> Array:
    """Eq. 9: Σ'ₛ = Σ' + α1·σ1·I + α2·σ2·(1 − I), σ1 and σ2 the mean diagonal and off-diagonal entries of Σ'."""
    d = len(sigma)
    sigma1 = math.fsum(sigma[i, i] for i in range(d)) / d
    sigma2 = math.fsum(sigma[i, j] for i in range(d) for j in range(d) if i != j) / (d * (d - 1))
    out = np.array(sigma)
    for i in range(d):
        for j in range(d):
            out[i, j] += alpha1 * sigma1 if i == j else alpha2 * sigma2
    return out


def log_density(x: Array, mu: Array, sigma: Array) -> float:
    """Of N(μ', Σ'ₛ), which eq. 10 draws from."""
    gap = x - mu
    _, logdet = np.linalg.slogdet(sigma)
    return float(-0.5 * (len(x) * math.log(2 * math.pi) + logdet + gap @ np.linalg.solve(sigma, gap)))


def augment(support: Array, labels: list[int], drawn: list[Array]) -> tuple[Array, list[int]]:
    """Eq. 11: 𝒟, the drawn points of every support point with its label, and the support."""
    x, y = [*support], [*labels]
    for label, points in zip(labels, drawn, strict=True):
        for point in points:
            x.append(point)
            y.append(label)
    return np.stack(x), y


def class_log_probability(x: Array, rows: Array) -> float:
    """Eq. 12 with equal priors, its logarithm: −½ ln|Σ_i| − ½ (x̃ − μ_i)ᵀ Σ_i⁻¹ (x̃ − μ_i)."""
    sigma, gap = cross(rows, rows), x - mean(rows)
    return float(-0.5 * np.log(np.linalg.det(sigma)) - 0.5 * gap @ np.linalg.inv(sigma) @ gap)
