"""GDC and DC straight from the equations: float64 NumPy, loops, dense D×D matrices, nothing of fewcal.

Everything here is slow and plain on purpose. The numbers in brackets are the paper's equations.
"""

from __future__ import annotations

import math
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


# ---- whitening -------------------------------------------------------------------------------------------------


def whitening(bases: list[np.ndarray], shrink_share: float) -> np.ndarray:
    """W, applied as x @ W, with WWᵀ = (S_w + λ·(tr S_w / D)·I)⁻¹: unique up to a rotation, which changes no score."""
    pooled = pooled_covariance(bases)
    d = len(pooled)
    values, vectors = np.linalg.eigh(pooled + shrink_share * np.trace(pooled) / d * np.eye(d))
    return vectors @ np.diag(values**-0.5)


def whitened_variance(bases: list[np.ndarray], w: np.ndarray) -> float:
    """The pooled covariance after whitening is taken as I over the mean squared length of the whitened rows."""
    lengths = [((row @ w) ** 2).sum() for rows in bases for row in rows]
    return 1 / (sum(lengths) / len(lengths))


# ---- trust -----------------------------------------------------------------------------------------------------


def enough_classes(n_classes: int, k: int) -> float:
    return min(1.0, max(0.0, (n_classes - 2 * k) / (2 * k)))


def reliability(bases: list[np.ndarray]) -> float:
    """The share of the means' squared length that is not the noise of averaging n_c rows."""
    noise = np.mean([np.trace(pooled_covariance(bases)) / len(rows) for rows in bases])
    return max(0.0, 1 - noise / np.mean([(rows.mean(axis=0) ** 2).sum() for rows in bases]))


def whitening_shrinkage(bases: list[np.ndarray], k: int) -> float:
    s = pooled_covariance(bases)
    d = len(s)
    n = sum(len(rows) for rows in bases) - len(bases)
    square, trace = np.trace(s @ s), np.trace(s)
    oas = min(0.99, ((1 - 2 / d) * square + trace**2) / ((n + 1 - 2 / d) * (square - trace**2 / d)))
    asked = 2 + 10 * (1 - enough_classes(len(bases), k)) + 50 * oas / (1 - oas)
    return min(1e4, asked / max(reliability(bases), 0.01) ** 2)


def held_out_similarity(bases: list[np.ndarray], w: np.ndarray, rng: np.random.Generator, draws: int) -> float:
    """Mean cosine of points of N(μ_c, S_w), whitened, to the 4 most similar whitened means of other classes."""
    means = np.array([rows.mean(axis=0) for rows in bases])
    white = unit_rows(means @ w)
    found = []
    for c, mu in enumerate(means):
        x = unit_rows(rng.multivariate_normal(mu, pooled_covariance(bases), size=draws, method="eigh") @ w)
        cosine = np.delete(x @ white.T, c, axis=1)
        found.append(np.sort(cosine, axis=1)[:, -4:].mean())
    return max(0.02, float(np.mean(found)))


def task_trust(xs: np.ndarray, means: np.ndarray, constant: float, held_out: float) -> float:
    similar = np.mean([np.sort(means @ x)[-4:].mean() for x in xs])
    return constant * min(1.0, max(0.0, (similar / held_out - 0.9) / 0.2))


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


# ---- one task --------------------------------------------------------------------------------------------------

_KNOWN = {
    *(
        "beta",
        "kind",
        "eps",
        "center",
        "max_spread",
        "l2",
        "whiten",
        "transform_base",
        "metric",
        "delta",
        "mahalanobis_ridge",
        "mahalanobis_shift",
        "k",
        "m",
        "distance_scale",
        "cov",
    ),
    *("cov_weights", "common_size", "alpha1", "alpha2_ratio", "off_diagonal", "psd", "constant"),
    *("n", "n_per", "head", "C"),
    *("distance_scale_of", "strength", "shot_decay", "trust", "query_strength"),
}


def one_task(
    p: dict[str, Any], base: list[np.ndarray], support: np.ndarray, labels: np.ndarray, query: np.ndarray
) -> dict[str, Any]:
    """GDC on one task of raw features, from the fields of a parameter set.

    Returns index, distances and weights `(S, k)`, mean `(S, D)`, sigma `(S, D, D)` and the closed form's scores
    `(Q, N)`, which are None where the average covariance has no inverse. Under `trust="auto"` the bank's held-out
    similarity is taken from `p["held_out"]`, because it is a simulation.
    """
    unknown = set(p) - _KNOWN - {"held_out", "model", "sharpness", "floor", "scatter"}  # the last are of another model
    if unknown:
        raise KeyError(f"the reference does not know {unknown}")
    base = [np.asarray(rows, dtype=np.float64) for rows in base]
    support, query = np.asarray(support, dtype=np.float64), np.asarray(query, dtype=np.float64)

    kind = p["kind"]
    if kind == "auto":
        kind = "tukey" if all((rows >= 0).all() for rows in base) else "yeo-johnson"

    def power(x: np.ndarray) -> np.ndarray:
        if kind == "none":
            return x
        if kind == "signed-power":
            return signed_power(x, p["beta"])
        return tukey(x, p["beta"], p["eps"]) if kind == "tukey" else yeo_johnson(x, p["beta"])

    powered = np.concatenate([power(rows) for rows in base])
    centre = powered.mean(axis=0) if p["center"] else 0.0
    scale = 1.0 if p["max_spread"] is False else spread_scale(powered, p["max_spread"])

    def move(x: np.ndarray) -> np.ndarray:
        z = (power(x) - centre) * scale
        return unit_rows(z) if p["l2"] else z

    bases = [move(rows) for rows in base] if p["transform_base"] else base
    xs, qs = move(support), move(query)
    means = np.array([rows.mean(axis=0) for rows in bases])
    variance = None
    if p["whiten"] is not False:
        shrinkage = whitening_shrinkage(bases, p["k"]) if p["whiten"] == "auto" else p["whiten"]
        w = whitening(bases, shrinkage)
        variance = whitened_variance(bases, w)
        means, xs, qs = unit_rows(means @ w), unit_rows(xs @ w), unit_rows(qs @ w)

    how = p["metric"], p["delta"], p["mahalanobis_ridge"], p["mahalanobis_shift"]
    unit = 1.0
    if p["distance_scale"] is not False:
        unit = p["distance_scale"]
        if p["distance_scale_of"] == "bank":
            unit *= unit_distance(bases, means, *how)
    trust, stranger = p["trust"], False
    if trust == "auto":
        constant = enough_classes(len(base), p["k"]) * reliability(bases)
        trust = task_trust(xs, means, constant, p["held_out"])
        stranger = task_trust(xs, means, 1.0, p["held_out"]) == 0
    size = p["common_size"] or min(len(rows) for rows in bases)
    d = xs.shape[1]
    out: dict[str, list] = {"index": [], "distances": [], "weights": [], "mean": [], "sigma": []}
    for x, label in zip(xs, labels, strict=True):
        every = distance_to_each(x, bases, means, *how) / unit
        index = np.argsort(every, kind="stable")[: p["k"]]
        shots = (labels == label).sum()
        wi = p["strength"] * trust / shots ** p["shot_decay"] * weight(every[index], p["m"])
        c = shares(wi, p["cov_weights"])
        if p["cov"] == "joint":
            sigma = joint_covariance(c, [bases[i] for i in index], size)
        elif p["cov"] == "independent":
            sigma = independent_covariance(c, [bases[i] for i in index])
        else:
            sigma = pooled_covariance(bases) if variance is None else variance * np.eye(d)
        sigma = shrink(sigma, p["alpha1"], p["alpha2_ratio"], p["off_diagonal"], p["psd"]) + p["constant"]
        found = (index, every[index], wi, calibrated_mean(x, wi, means[index]), sigma)
        for name, value in zip(out, found, strict=True):
            out[name].append(value)
    result: dict[str, Any] = {name: np.array(values) for name, values in out.items()}
    average = result["sigma"].mean(axis=0)
    if p["query_strength"]:
        for j, x in enumerate(qs):
            every = distance_to_each(x, bases, means, *how) / unit
            index = np.argsort(every, kind="stable")[: p["k"]]
            qs[j] = calibrated_mean(x, p["query_strength"] * trust * weight(every[index], p["m"]), means[index])
    result["scores"] = None
    if np.linalg.eigvalsh(average)[0] > 1e-9 * np.trace(average) / d:
        prototypes = np.array([result["mean"][labels == c].mean(axis=0) for c in range(labels.max() + 1)])
        result["scores"] = lda_scores(prototypes, average, qs)
    if stranger:  # the plain nearest centroid, before whitening
        plain = np.array([move(support)[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
        result["scores"] = lda_scores(plain, np.eye(d), move(query))
    return result
