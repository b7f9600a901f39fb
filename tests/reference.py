"""GDC, DC and HGDC straight from the equations: float64 NumPy, loops, dense D×D matrices, nothing of fewcal.

Everything here is slow and plain on purpose. The numbers in brackets are the paper's equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

RIDGE = 0.1  # of the class covariances under Mahalanobis, as a share of their mean variance

# ---- Gaussianization (1-3) ------------------------------------------------------------------------------------


def tukey(x: np.ndarray, beta: float, eps: float = 1e-6) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if beta == 0:
        return np.log(x + eps)
    if beta < 0:
        return (x + eps) ** beta
    return x**beta


def yeo_johnson(x: np.ndarray, beta: float) -> np.ndarray:
    out = np.empty(np.shape(x), dtype=np.float64)
    for at, v in np.ndenumerate(np.asarray(x, dtype=np.float64)):
        if v >= 0:
            out[at] = math.log(v + 1) if beta == 0 else ((v + 1) ** beta - 1) / beta
        else:
            out[at] = -math.log(1 - v) if beta == 2 else -((1 - v) ** (2 - beta) - 1) / (2 - beta)
    return out


def signed_power(x: np.ndarray, beta: float) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    return np.sign(x) * np.abs(x) ** beta


def spread_scale(x: np.ndarray, most: float) -> np.ndarray:
    """What each feature is multiplied by, so that no standard deviation is above `most` times the median one."""
    deviation = x.std(axis=0)
    limit = most * np.sort(deviation[deviation > 0])[(np.count_nonzero(deviation) - 1) // 2]
    return np.array([limit / d if d > limit else 1.0 for d in deviation])


def unit_rows(x: np.ndarray) -> np.ndarray:
    length = np.sqrt((x**2).sum(axis=-1, keepdims=True))
    return x / np.where(length == 0, 1, length)


# ---- distances, neighbours, weights, mean (4-8) ----------------------------------------------------------------


def covariance(rows: np.ndarray) -> np.ndarray:
    return np.atleast_2d(np.cov(rows, rowvar=False, ddof=1))


def pooled_covariance(bases: list[np.ndarray]) -> np.ndarray:
    d = bases[0].shape[1]
    scatter = np.zeros((d, d))
    for rows in bases:
        scatter += covariance(rows) * (len(rows) - 1)
    return scatter / (sum(len(rows) for rows in bases) - len(bases))


def distance_to_each(
    x: np.ndarray,
    bases: list[np.ndarray],
    means: np.ndarray,
    metric: str,
    delta: float = 1.0,
    ridge: float = RIDGE,
    shift: bool = True,
):
    """d_i of one point from every base class, `(C,)`; `ridge` 0 without `shift` is (13) as printed."""
    if metric == "sqeuclidean":
        return np.array([((x - mu) ** 2).sum() for mu in means])
    if metric == "euclidean":
        return np.array([np.sqrt(((x - mu) ** 2).sum()) for mu in means])
    if metric == "delta":
        return np.array([((x - delta * mu) ** 2).sum() for mu in means])
    if metric == "mahalanobis":
        logs, squares = [], []
        for rows, mu in zip(bases, means, strict=True):
            sigma = covariance(rows)
            sigma = sigma + ridge * np.trace(sigma) / len(mu) * np.eye(len(mu))
            logs.append(np.linalg.slogdet(sigma)[1])
            squares.append((x - mu) @ np.linalg.inv(sigma) @ (x - mu))
        # With the shift, log-determinants are relative to the smallest.
        return np.array(squares) + np.array(logs) - (min(logs) if shift else 0)
    raise KeyError(metric)


def unit_distance(bases: list[np.ndarray], means: np.ndarray, *how: Any) -> float:
    """The lower median over base classes of the distance to the nearest other base class."""
    nearest = []
    for i, mu in enumerate(means):
        d = distance_to_each(mu, bases, means, *how)
        nearest.append(min(d[j] for j in range(len(means)) if j != i))
    return sorted(nearest)[(len(nearest) - 1) // 2]


def weight(d: np.ndarray, m: float) -> np.ndarray:
    return 1 / (1 + d**m)


def calibrated_mean(x: np.ndarray, w: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    total = x.copy()
    for wi, mu in zip(w, neighbours, strict=True):
        total = total + wi * mu
    return total / (1 + w.sum())


# ---- covariance and shrinkage (5, 9) ---------------------------------------------------------------------------


def shares(w: np.ndarray, kind: str) -> np.ndarray:
    if kind == "with-support":
        return w / (1 + w.sum())
    if kind == "bases-only":
        return w / w.sum()
    if kind == "average":
        return np.full(len(w), 1 / math.sqrt(len(w)))
    raise KeyError(kind)


def joint_covariance(c: np.ndarray, chosen: list[np.ndarray], size: int) -> np.ndarray:
    """cov(Σ c_i X_i) with rows paired by their index and classes cut to `size` rows."""
    variable = np.zeros((size, chosen[0].shape[1]))
    for ci, rows in zip(c, chosen, strict=True):
        variable += ci * rows[:size]
    return covariance(variable)


def independent_covariance(c: np.ndarray, chosen: list[np.ndarray]) -> np.ndarray:
    return sum(ci**2 * covariance(rows) for ci, rows in zip(c, chosen, strict=True))


def shrink(sigma: np.ndarray, alpha1: float, alpha2_ratio: float, off_diagonal: str, psd: str) -> np.ndarray:
    d = len(sigma)
    off = [sigma[i, j] for i in range(d) for j in range(d) if i != j]
    sigma1 = sum(sigma[i, i] for i in range(d)) / d
    sigma2 = sum(off) / {"pairs": d * (d - 1), "all": d * d}[off_diagonal]
    b = alpha1 * alpha2_ratio * sigma2
    if psd == "clip":
        most = (1 - 1e-3) * alpha1 * sigma1  # a hair inside, where it still has an inverse
        b = min(max(b, -most / (d - 1)), most)
    out = sigma + alpha1 * sigma1 * np.eye(d) + b * (np.ones((d, d)) - np.eye(d))
    return clip_eigenvalues(out) if psd == "eigen" else out


def clip_eigenvalues(sigma: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(sigma)
    return vectors @ np.diag(np.maximum(values, 0)) @ vectors.T


# ---- classifiers -----------------------------------------------------------------------------------------------


def lda_scores(means: np.ndarray, sigma: np.ndarray, query: np.ndarray) -> np.ndarray:
    """xᵀΣ⁻¹μ_c − ½μ_cᵀΣ⁻¹μ_c for every query and class, `(Q, N)`."""
    inverse = np.linalg.inv(sigma)
    return np.array([[x @ inverse @ mu - 0.5 * mu @ inverse @ mu for mu in means] for x in query])


def dc_moments(x: np.ndarray, bases: list[np.ndarray], k: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of DC for one (transformed) support point and raw base rows."""
    means = [rows.mean(axis=0) for rows in bases]
    d = [np.linalg.norm(x - mu) for mu in means]
    chosen = np.argsort(d)[:k]
    mean = np.concatenate([np.array([means[i] for i in chosen]), x[None]]).mean(axis=0)
    sigma = np.array([covariance(bases[i]) for i in chosen]).mean(axis=0) + alpha
    return mean, sigma


# ---- one task of GDC -------------------------------------------------------------------------------------------


def power(x: np.ndarray, kind: str, beta: float, eps: float = 1e-6) -> np.ndarray:
    if kind == "none" or beta == 1:
        return np.asarray(x, dtype=np.float64)
    if kind == "signed-power":
        return signed_power(x, beta)
    return tukey(x, beta, eps) if kind == "tukey" else yeo_johnson(x, beta)


def one_task(
    p: dict[str, Any], base: list[np.ndarray], support: np.ndarray, labels: np.ndarray, query: np.ndarray
) -> dict[str, Any]:
    """GDC on one task of raw features, from the fields of a parameter set.

    Returns index, distances and weights `(S, k)`, mean `(S, D)`, sigma `(S, D, D)` and the closed form's scores
    `(Q, N)`, which are None where the average covariance has no inverse.
    """
    base = [np.asarray(rows, dtype=np.float64) for rows in base]
    support, query = np.asarray(support, dtype=np.float64), np.asarray(query, dtype=np.float64)
    kind = p["kind"]
    if kind == "auto":
        kind = "tukey" if all((rows >= 0).all() for rows in base) else "yeo-johnson"
    powered = [power(rows, kind, p["beta"], p["eps"]) for rows in base]
    centre = np.concatenate(powered).mean(axis=0) if p["center"] else 0.0

    def move(x: np.ndarray) -> np.ndarray:
        z = power(x, kind, p["beta"], p["eps"]) - centre
        return unit_rows(z) if p["l2"] else z

    bases = [move(rows) for rows in base] if p["transform_base"] else base
    xs, qs = move(support), move(query)
    means = np.array([rows.mean(axis=0) for rows in bases])
    how = p["metric"], p["delta"], p["mahalanobis_ridge"], p["mahalanobis_shift"]
    unit = 1.0
    if p["distance_scale"] is not False:
        unit = p["distance_scale"]
        if p["distance_scale_of"] == "bank":
            unit *= unit_distance(bases, means, *how)
    size = p["common_size"] or min(len(rows) for rows in bases)
    out: dict[str, list] = {"index": [], "distances": [], "weights": [], "mean": [], "sigma": []}
    for x in xs:
        every = distance_to_each(x, bases, means, *how) / unit
        index = np.argsort(every, kind="stable")[: p["k"]]
        wi = p["strength"] * weight(every[index], p["m"])
        c = shares(wi, p["cov_weights"])
        if p["cov"] == "joint":
            sigma = joint_covariance(c, [bases[i] for i in index], size)
        elif p["cov"] == "independent":
            sigma = independent_covariance(c, [bases[i] for i in index])
        else:
            sigma = pooled_covariance(bases)
        sigma = shrink(sigma, p["alpha1"], p["alpha2_ratio"], p["off_diagonal"], p["psd"]) + p["constant"]
        found = (index, every[index], wi, calibrated_mean(x, wi, means[index]), sigma)
        for name, value in zip(out, found, strict=True):
            out[name].append(value)
    result: dict[str, Any] = {name: np.array(values) for name, values in out.items()}
    average = result["sigma"].mean(axis=0)
    result["scores"] = None
    if np.linalg.eigvalsh(average)[0] > 1e-9 * np.trace(average) / len(average):
        prototypes = np.array([result["mean"][labels == c].mean(axis=0) for c in range(labels.max() + 1)])
        result["scores"] = lda_scores(prototypes, average, qs)
    return result


# ---- HGDC: the transform (docstrings of fewcal.power_choice and fewcal.gaussianize) -----------------------------


def lower_median(x: np.ndarray) -> float:
    return float(np.sort(x)[(len(x) - 1) // 2])


def kurtosis(bases: list[np.ndarray]) -> float:
    """Median over features of E[r⁴] / E[r²]² of the deviations r from the class means; constant features apart."""
    r = np.concatenate([rows - rows.mean(axis=0) for rows in bases])
    second, fourth = (r**2).mean(axis=0), (r**4).mean(axis=0)
    varies = second > 1e-12 * second.max()
    return lower_median(fourth[varies] / second[varies] ** 2)


def gaussianized(bases: list[np.ndarray], limit: float, spread: float, powers: tuple[float, ...]) -> Any:
    """The map by the gentlest power whose kurtosis is at most `limit`, else that of the smallest kurtosis."""
    signed = any((rows < 0).any() for rows in bases)
    tried = []
    for beta in powers:
        for kind in ("yeo-johnson", "signed-power")[: 1 if beta == 1 else 2] if signed else ("tukey",):
            z = [power(rows, kind, beta) for rows in bases]
            centre = np.concatenate(z).mean(axis=0)
            tried.append((kurtosis([unit_rows(rows - centre) for rows in z]), -beta, kind))
    enough = [one for one in tried if one[0] <= limit]
    gentlest = max((one[1] for one in enough), default=None, key=lambda b: -b)
    _, beta, kind = min(one for one in enough if one[1] == gentlest) if enough else min(tried, key=lambda one: one[0])
    z = np.concatenate([power(rows, kind, -beta) for rows in bases])
    scale = 1.0 if spread == math.inf else spread_scale(z, spread)
    return lambda x: unit_rows((power(x, kind, -beta) - z.mean(axis=0)) * scale)


# ---- HGDC: the prior (docstring of fewcal.hgdc.prior) ------------------------------------------------------------


def oas(sigma: np.ndarray, freedom: float) -> float:
    """ρ of Chen, Wiesel, Eldar, Hero (2010), eq. 23."""
    d, square, trace = len(sigma), np.trace(sigma @ sigma), np.trace(sigma)
    share = ((1 - 2 / d) * square + trace**2) / ((freedom + 1 - 2 / d) * (square - trace**2 / d))
    return min(float(share), 0.99)


@dataclass(frozen=True)
class Prior:
    """The prior of class means, and the matrix after which a row `(D,)` of unit length is in its space."""

    matrix: np.ndarray
    origin: np.ndarray
    means: np.ndarray
    psi: np.ndarray
    within: np.ndarray
    tau: float
    share: float
    gamma: float = 1.0
    weight: float = 1.0

    def rows(self, z: np.ndarray) -> np.ndarray:
        return unit_rows(z @ self.matrix) - self.origin

    def near(self, x: np.ndarray) -> np.ndarray:
        """p, the local mean of the prior for examples with the mean x."""
        unit = (self.means**2).sum(axis=1).mean()
        w = np.array([math.exp(-self.tau * ((x - m) ** 2).sum() / unit) for m in self.means])
        return self.share * sum(wb * m for wb, m in zip(w / w.sum(), self.means, strict=True))

    def posterior(self, x: np.ndarray, shots: float, near: np.ndarray) -> np.ndarray:
        return (shots * x + near / self.psi) / (shots + 1 / self.psi)

    def precision(self, shots: float) -> np.ndarray:
        """s over the variance of a new row of the class, in each direction."""
        return (shots + 1 / self.psi) / (shots + 1 / self.psi + 1)

    @property
    def gaussian_gamma(self) -> float:
        between = (self.means**2).sum(axis=0)
        return float(self.within.sum() / math.sqrt(2 * (self.within * between).sum() / between.sum()))


def fit_prior(bases: list[np.ndarray], ridge: float, floor: float, tau: float, share: float) -> Prior:
    """From Gaussianized rows of each base class."""
    counts = np.array([len(rows) for rows in bases])
    freedom, d = counts.sum() - len(bases), bases[0].shape[1]
    sigma = pooled_covariance(bases)
    rho = oas(sigma, freedom)
    sigma = (1 - rho) * sigma + rho * np.trace(sigma) / d * np.eye(d)
    values, vectors = np.linalg.eigh(sigma + ridge * np.trace(sigma) / d * np.eye(d))
    white = vectors @ np.diag(values**-0.5)
    means = np.array([rows.mean(axis=0) for rows in bases]) @ white
    within = white.T @ sigma @ white
    # Whitened rows become unit vectors: the moments are divided by their mean squared length.
    length2 = (freedom * np.trace(within) + (counts * (means**2).sum(axis=1)).sum()) / counts.sum()
    means, within = means / math.sqrt(length2), within / length2
    origin = means.mean(axis=0)
    between, rotation = np.linalg.eigh((means - origin).T @ (means - origin) / (len(bases) - 1))
    w = np.array([u @ within @ u for u in rotation.T])
    between = np.maximum(between - np.trace(within) / d * (1 / counts).mean(), 0)  # less the noise of finite classes
    psi = between_ratio(between, w, len(bases), floor)
    return Prior(white @ rotation, origin @ rotation, (means - origin) @ rotation, psi, w, tau, share)


def between_ratio(between: np.ndarray, within: np.ndarray, classes: int, floor: float) -> np.ndarray:
    noise = between.sum() / (classes - 1)
    return np.maximum(between - noise, 0) / (within + noise) + min(floor, between.sum() / within.sum())


def task_offset(means: np.ndarray, variance: np.ndarray | float = 1.0) -> np.ndarray:
    """(1 − 1/F)₊ of the mean of the class means, F that of an analysis of variance."""
    n, m = len(means), means.mean(axis=0)
    f = n * (m**2 / variance).sum() / (((means - m) ** 2 / variance).sum() / (n - 1))
    return max(0.0, 1 - 1 / f) * m


# ---- HGDC: a discriminant with the scatter of the support (docstring of fewcal.hgdc.discriminant) ----------------


def log_softmax(scores: np.ndarray) -> np.ndarray:
    behind = scores - scores.max(axis=-1, keepdims=True)
    return behind - np.log(np.exp(behind).sum(axis=-1, keepdims=True))


def softmax(scores: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(scores))


def scatter_of(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    out = np.zeros((x.shape[1], x.shape[1]))
    for c in set(labels.tolist()):
        r = x[labels == c] - x[labels == c].mean(axis=0)
        out += r.T @ r
    return out


def precision_matrix(x: np.ndarray, labels: np.ndarray, metric: np.ndarray, nu: float) -> np.ndarray:
    return np.linalg.inv(np.diag(1 / metric) + scatter_of(x, labels) / nu)


def oas_ridge(x: np.ndarray, labels: np.ndarray, metric: np.ndarray) -> float:
    """ν with RᵀR + νI proportional to the OAS covariance, of rows in the metric."""
    x = x * np.sqrt(metric)
    freedom = len(x) - len(set(labels.tolist()))
    rho = max(oas(scatter_of(x, labels) / freedom, freedom), 1e-3)
    return rho / (1 - rho) * np.trace(scatter_of(x, labels)) / x.shape[1]


def linear_scores(x: np.ndarray, p: np.ndarray, means: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
    """2xᵀPμ − μᵀPμ, the squared lengths less `noise`."""
    return 2 * x @ p @ means.T - (np.einsum("nd,de,ne->n", means, p, means) - noise)


def updated_gamma(
    scores: np.ndarray, labels: np.ndarray, counts: np.ndarray, guess: float, grid: np.ndarray, width: float = 0.5
) -> float:
    """Posterior mean of log γ on a grid around the guess, given scores `(S, N)` of rows that were left out."""
    log_posterior = []
    for g in grid:
        log_p = log_softmax(g * guess * scores)[np.arange(len(labels)), labels]
        log_posterior.append((counts * log_p).sum() - (math.log(g) / width) ** 2 / 2)
    share = softmax(np.array(log_posterior))
    return guess * math.exp((share * np.log(grid)).sum())


def model_scores(
    prior: Prior, support: np.ndarray, labels: np.ndarray, query: np.ndarray, ridge: float, grid: np.ndarray
) -> np.ndarray:
    """Scores of HGDC alone `(Q, N)`, rows in the space of the prior."""
    n = labels.max() + 1
    k = np.array([(labels == c).sum() for c in range(n)])
    own = np.array([support[labels == c].mean(axis=0) for c in range(n)])
    offset = task_offset(own, prior.psi + 1 / k.mean())
    x, q = support - offset, query - offset
    near = [prior.near(m - offset) for m in own]
    means = np.array([prior.posterior(own[c] - offset, k[c], near[c]) for c in range(n)])
    metric, gamma = prior.precision(k.mean()), prior.gamma
    if k.max() == 1:
        return gamma * linear_scores(q, np.diag(metric), means)
    nu = ridge * oas_ridge(x, labels, metric)
    if k.max() > 2:
        left_out = []
        for i, c in enumerate(labels):
            rest = np.arange(len(x)) != i
            without = means.copy()
            mine = x[rest & (labels == c)]
            without[c] = prior.posterior(mine.mean(axis=0), len(mine), near[c]) if len(mine) else near[c]
            left_out.append(linear_scores(x[i], precision_matrix(x[rest], labels[rest], metric, nu), without))
        counts = np.array([max(k[c] - 2, 0) / max(k[c] - 1, 1) for c in labels])
        gamma = updated_gamma(np.array(left_out), labels, counts, gamma, grid)
    return gamma * linear_scores(q, precision_matrix(x, labels, metric, nu), means)


# ---- HGDC: the support-only classifier and the mixture (docstring of fewcal.hgdc.mixture) ------------------------


def one_shot_log_odds(means: np.ndarray, most: float, gap: float) -> float:
    u = unit_rows(means)
    cosines = [u[i] @ u[j] for i in range(len(u)) for j in range(i)]
    return 1 / math.sqrt(1 / most**2 + (np.var(cosines) / gap) ** 2)


def squared_separation(means: np.ndarray) -> float:
    return float(np.mean([((a - b) ** 2).sum() for i, a in enumerate(means) for b in means[:i]]))


def support_only_scores(
    support: np.ndarray,
    labels: np.ndarray,
    query: np.ndarray,
    ridge: float,
    grid: np.ndarray,
    most: float,
    gap: float,
) -> np.ndarray:
    """Scores of the support-only classifier `(Q, N)`, raw rows."""
    x, q, n = unit_rows(support), unit_rows(query), labels.max() + 1
    k = np.array([(labels == c).sum() for c in range(n)])
    means = np.array([x[labels == c].mean(axis=0) for c in range(n)])
    centre = task_offset(means)
    x, q, means = x - centre, q - centre, means - centre
    if k.max() == 1:
        directions = unit_rows(means)
        gamma = one_shot_log_odds(means, most, gap) / squared_separation(directions)
        return 2 * gamma * q @ directions.T / math.sqrt((means**2).sum(axis=1).mean())
    length = math.sqrt((x**2).sum(axis=1).mean())
    x, q, means = x / length, q / length, means / length
    one = np.ones(x.shape[1])
    nu = ridge * oas_ridge(x, labels, one)
    guess = min(math.sqrt(k.mean()) * one_shot_log_odds(means, most, gap), most) / squared_separation(means)
    # Noise makes the squared length of the mean of K rows larger by tr(PS)/K; S by rows that P has not seen.
    without = [precision_matrix(np.delete(x, i, 0), np.delete(labels, i), one, nu) for i in range(len(x))]
    r = [x[i] - means[c] for i, c in enumerate(labels)]
    unseen = [k[c] / (k[c] - 1) * r[i] @ without[i] @ r[i] for i, c in enumerate(labels) if k[c] > 1]
    noise = np.mean(unseen) / k
    left_out, counts = [], []
    for i, c in enumerate(labels):
        if k[c] == 1:
            left_out.append(np.zeros(n))
        else:
            rest = means.copy()
            rest[c] = (k[c] * means[c] - x[i]) / (k[c] - 1)
            more = noise.copy()
            more[c] *= k[c] / (k[c] - 1)
            # A row lies 1 + 1/(K − 1) variances from the mean of the others, a new one 1 + 1/K.
            left_out.append((1 - 1 / k[c] ** 2) * linear_scores(x[i], without[i], rest, more))
        counts.append(float(k[c] > 1))
    gamma = updated_gamma(np.array(left_out), labels, np.array(counts), guess, grid)
    return gamma * linear_scores(q, precision_matrix(x, labels, one, nu), means, noise)


def mean_reliability(bases: list[np.ndarray]) -> float:
    """Share of the variance of the base means that is not noise of finite classes."""
    means = np.array([rows.mean(axis=0) for rows in bases])
    noise = np.trace(pooled_covariance(bases)) * np.mean([1 / len(rows) for rows in bases])
    return max(0.0, 1 - noise / means.var(axis=0, ddof=1).sum())


# ---- HGDC: tasks of left-out base classes (docstring of fewcal.hgdc.temperature) ---------------------------------


def spread_order(rows: np.ndarray) -> np.ndarray:
    """Rows by their sum of absolute values, then by multiples of the golden ratio."""
    rows = rows[np.argsort(np.abs(rows).sum(axis=1), kind="stable")]
    return rows[np.argsort(np.arange(len(rows)) * ((math.sqrt(5) - 1) / 2) % 1)]


def bisected_gamma(scores: np.ndarray, truth: np.ndarray, reach: float, steps: int) -> float:
    """γ for which the mean confidence is the accuracy."""
    right = (scores.argmax(axis=1) == truth).mean()
    low, high = -reach, reach
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if softmax(2**middle * scores).max(axis=1).mean() < right else (low, middle)
    return float(2 ** ((low + high) / 2))


def cross_validate(
    raw: list[np.ndarray], move: Any, ridge: float | None, prior: dict[str, float], plain: dict[str, Any], t: Any
) -> tuple[float, float, float]:
    """λ, γ/γ₀ and ω of one-shot tasks: each half of the base classes is the bank of tasks of the other.

    `t` has the nodes and sizes of the study, as `fewcal.hgdc.temperature`; λ and ω are posterior means over nodes, and
    λ is halved, for a half of the classes has half of the rows.
    """
    raw = [spread_order(rows) for rows in sorted(raw, key=lambda rows: np.abs(rows).sum(axis=1).mean())]
    z = [move(rows) for rows in raw]
    ridges = np.array(t.RIDGES if ridge is None else [ridge])
    weights = np.array(t.WEIGHTS)
    loss, log_gamma, mixed = np.zeros(len(ridges)), np.zeros(len(ridges)), np.zeros((len(ridges), len(weights)))
    for half in (0, 1):
        held = list(range(1 - half, len(z), 2))
        n, p = min(t.TASK_CLASSES, len(held)), min([t.TASK_ROWS, *(len(z[i]) for i in held)])
        groups = [held[g :: len(held) // n][:n] for g in range(len(held) // n)]
        tasks = [(group, i) for group in groups for i in range(p)]  # row i of each class is its example
        truth = np.tile(np.repeat(np.arange(n), p - 1), len(tasks))
        answers = []
        for group, i in tasks:
            example = np.array([raw[c][i] for c in group])
            query = np.concatenate([np.delete(raw[c][:p], i, 0) for c in group])
            answers.append(log_softmax(support_only_scores(example, np.arange(n), query, **plain)))
        for r, node in enumerate(ridges):
            own, scores = fit_prior(z[half::2], node, **prior), []
            for group, i in tasks:
                rows = [own.rows(z[c][:p]) for c in group]
                means = np.array([own.posterior(x[i], 1, own.near(x[i])) for x in rows])
                query = np.concatenate([np.delete(x, i, 0) for x in rows])
                scores.append(linear_scores(query, np.diag(own.precision(1)), means))
            every = np.concatenate(scores)
            every *= own.gaussian_gamma
            gamma = bisected_gamma(every, truth, t.LOG2_RANGE, t.HALVINGS)
            log_p = log_softmax(gamma * every)
            at = np.arange(len(truth)), truth
            # The log-likelihood of a task is the mean over its queries, times its examples.
            loss[r] -= log_p[at].sum() / (p - 1)
            log_gamma[r] += math.log(gamma) / 2
            for j, w in enumerate(weights):
                mixture = log_softmax(w * log_p + (1 - w) * np.concatenate(answers))
                mixed[r, j] -= mixture[at].sum() / (p - 1)
    share = softmax(-loss)
    weight = softmax(-mixed[share.argmax()]) @ weights
    found = math.exp(share @ np.log(ridges)) / 2 if ridge is None else ridge
    return found, math.exp(share @ log_gamma), float(weight)


def hgdc_prior(base: list[np.ndarray], p: dict[str, Any], t: Any) -> tuple[Any, Prior]:
    """The map of raw rows and the prior, from the parameters `p` of HGDC and the constants `t` of its modules."""
    base = [np.asarray(rows, dtype=np.float64) for rows in base]
    move = gaussianized(base, p["kurtosis"], p["spread"], t.POWERS)
    share = len(base) / (len(base) + p["classes"])
    own = {"floor": p["floor"], "tau": p["sharpness"], "share": share}
    ridge = None if p["ridge"] == "auto" else p["ridge"]
    ridge, gamma, weight = cross_validate(base, move, ridge, own, plain_settings(p, t), t)
    z = [move(rows) for rows in base]
    found = fit_prior(z, ridge, **own)
    weight = 1 - (1 - weight) * (1 - share) if mean_reliability(z) >= t.MIN_RELIABILITY else 0.0
    return move, replace(found, gamma=min(gamma, p["confidence"]) * found.gaussian_gamma, weight=weight)


def plain_settings(p: dict[str, Any], t: Any) -> dict[str, Any]:
    return {"ridge": p["scatter"], "grid": np.logspace(*t.GAMMA_GRID), "most": t.MAX_LOG_ODDS, "gap": t.COSINE_GAP}


def hgdc_scores(
    move: Any, prior: Prior, support: np.ndarray, labels: np.ndarray, query: np.ndarray, p: dict[str, Any], t: Any
) -> np.ndarray:
    """Scores `(Q, N)` of the mixture on one task of raw rows."""
    plain = plain_settings(p, t)
    model = model_scores(prior, prior.rows(move(support)), labels, prior.rows(move(query)), p["scatter"], plain["grid"])
    return prior.weight * model + (1 - prior.weight) * support_only_scores(support, labels, query, **plain)
