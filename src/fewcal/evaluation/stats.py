"""Statistics of per-task accuracies: intervals, paired tests, calibration, and the uncertainty over classes.

*Over tasks* (`summarise`): how far is the mean of these T tasks from the mean over all tasks that these very rows and
classes give? Its width shrinks as 1/√T, and T is ours to choose: it can be made as narrow as one likes without a single
new picture (Lafargue et al., "Oops, I sampled it again", arXiv:2409.02850, on the same with rows).

*Over classes* (`class_bootstrap`): how far is it from what other classes of the same kind would have given? Tasks that
share a class share its difficulty, so that the number of classes C limits the precision, not T. With 2000 tasks of 16
to 50 real classes this interval was 8 to 20 times wider: it is the one for a claim like "x % on birds". A comparison of
methods on identical tasks (`paired`) is less affected, since all methods meet the same classes.

The mean over tasks is a U-statistic of degree N in the classes. Its uncertainty over classes is dominated by its
first-order (Hájek) projection acc_t ≈ Σ_{c in t} w_tc α_c, where w_tc is the share of class c among the queries of task
t, and α_c what it brings to any task. `class_bootstrap` estimates the α_c by least squares over all tasks and resamples
them. To resample classes and weigh each task by the product of the multiplicities of its classes throws most tasks
away, and no task has a class twice. In simulated 5-way problems with ten and twenty classes (600 to 1000 tasks, 150
draws of the classes each) that covered 88-94%, least squares 93-97% and the interval over tasks 11-15%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.errors import InputError

# Accuracies are multiples of 1/(N Q); anything closer than this is rounding, and must count as a tie.
_TIE_DECIMALS = 6
# Confidences are summed as integers of this unit.
_UNIT = 2**30
# Differences up to which Wilcoxon's test counts every pattern of signs.
_EXACT = 50


def plain(value: Any) -> Any:
    """A value for JSON: records become dictionaries, numbers that are not finite become None."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class MeanAccuracy:
    """mean ± ci95 over n tasks; a single task leaves sd and ci95 NaN. `worst10` is the mean of the worst tenth."""

    mean: float
    sd: float
    ci95: float
    worst10: float
    n: int


def summarise(acc: np.ndarray) -> MeanAccuracy:
    """Mean, sd, the 95% half-width by Student's t, and the mean of the worst tenth of accuracies (T,).

    >>> s = summarise(np.array([0.5, 0.7, 0.6, 0.8]))
    >>> round(s.mean, 3), round(s.ci95, 3), s.worst10
    (0.65, 0.205, 0.5)
    """
    acc = _accuracies(acc)
    sd, half = _spread(acc)
    worst = np.sort(acc)[: math.ceil(len(acc) / 10)]
    return MeanAccuracy(float(acc.mean()), sd, half, float(worst.mean()), len(acc))


@dataclass(frozen=True)
class Paired:
    """a minus b on the same n tasks; `won`, `tied` and `lost` are shares of the tasks, seen from a."""

    a: str
    b: str
    difference: float
    ci95: float
    p_t: float
    p_wilcoxon: float
    won: float
    tied: float
    lost: float
    n: int
    p_t_holm: float | None = None
    p_wilcoxon_holm: float | None = None

    def reversed(self) -> Paired:
        """The same comparison as b minus a."""
        return replace(self, a=self.b, b=self.a, difference=-self.difference, won=self.lost, lost=self.won)

    def to_dict(self) -> JSONObject:
        """Plain values for JSON."""
        values: JSONObject = plain(self)
        return values

    @classmethod
    def from_dict(cls, values: JSONObject) -> Paired:
        """The comparison that `to_dict` made plain."""
        numbers: JSONObject = {k: math.nan if v is None and not k.endswith("_holm") else v for k, v in values.items()}
        return cls(**numbers)


def paired(acc_a: np.ndarray, acc_b: np.ndarray, a: str = "a", b: str = "b") -> Paired:
    """Compare two methods on identical tasks: accuracies (T,) and (T,), in the same order.

    Where all tasks tie there is no evidence at all, and both p-values are 1.

    >>> p = paired(np.array([0.6, 0.7, 0.8, 0.9]), np.array([0.5, 0.7, 0.6, 0.6]))
    >>> round(p.difference, 3), p.won, p.tied, round(p.p_t, 3), p.p_wilcoxon
    (0.15, 0.75, 0.25, 0.103, 0.25)
    """
    acc_a, acc_b = _accuracies(acc_a), _accuracies(acc_b)
    if len(acc_a) != len(acc_b):
        raise InputError(f"{a} has {len(acc_a)} tasks and {b} {len(acc_b)}; pair them on the same tasks")
    # Rounded, or 0.8 - 0.6 and 0.6 - 0.4 would not tie in the ranks.
    d = np.round(acc_a - acc_b, _TIE_DECIMALS) + 0.0
    sd, half = _spread(d)
    return Paired(
        a=a,
        b=b,
        difference=float((acc_a - acc_b).mean()),
        ci95=half,
        p_t=_p_t(d, sd),
        p_wilcoxon=_p_wilcoxon(d),
        won=float((d > 0).mean()),
        tied=float((d == 0).mean()),
        lost=float((d < 0).mean()),
        n=len(d),
    )


def paired_table(accuracies: Mapping[str, np.ndarray], reference: str | None = None) -> list[Paired]:
    """All comparisons, each method with `reference` or else each pair, with Holm's correction over the family.

    >>> rng = np.random.default_rng(0)
    >>> acc = {name: rng.normal(mean, 0.1, 50) for name, mean in [("ncm", 0.5), ("lr", 0.5), ("gdc", 0.7)]}
    >>> [(p.a, p.b, p.p_t_holm < 0.05) for p in paired_table(acc, reference="ncm")]
    [('lr', 'ncm', False), ('gdc', 'ncm', True)]
    """
    if reference is not None and reference not in accuracies:
        raise InputError(f"reference {reference!r} is not among the methods {', '.join(accuracies)}")
    pairs = list(combinations(accuracies, 2))
    if reference is not None:
        pairs = [(name, reference) for name in accuracies if name != reference]
    rows = [paired(accuracies[a], accuracies[b], a, b) for a, b in pairs]
    p_t, p_wilcoxon = (holm(np.array([getattr(row, p) for row in rows])).tolist() for p in ("p_t", "p_wilcoxon"))
    return [replace(row, p_t_holm=t, p_wilcoxon_holm=w) for row, t, w in zip(rows, p_t, p_wilcoxon, strict=True)]


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjusted p-values (M,); a NaN stays out of the family.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, np.float64)
    adjusted = np.full(p.shape, np.nan)
    family = np.flatnonzero(~np.isnan(p))
    order = family[np.argsort(p[family], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def outlier_detection(inside: np.ndarray, outliers: np.ndarray, false_alarms: float = 0.05) -> np.ndarray:
    """AUROC and recall (T, 2) of outliers, from scores of queries of the classes (T, I) and of outliers (T, R).

    AUROC is the probability that an outlier scores higher, ties counted half. Recall is the share of outliers above a
    limit that turns away a share of `false_alarms` of the others, rounded down. Both are NaN without outliers.

    >>> outlier_detection(np.array([[0.1, 0.4, 0.35]]), np.array([[0.8, 0.3]])).round(3).tolist()
    [[0.667, 0.5]]
    """
    if not outliers.shape[1]:
        return np.full((len(outliers), 2), np.nan)
    above = outliers[:, :, None] > inside[:, None, :]
    ties = outliers[:, :, None] == inside[:, None, :]
    limit = np.sort(inside, axis=1)[:, -1 - int(false_alarms * inside.shape[1])]
    return np.stack([above.mean(axis=(1, 2)) + ties.mean(axis=(1, 2)) / 2, (outliers > limit[:, None]).mean(axis=1)], 1)


def calibration_bins(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> np.ndarray:
    """Predictions in equal bins of confidence: numbers, right answers and summed confidences, integers (3, B).

    `confidence` are probabilities of the predicted classes, and `correct` whether these are right, of any equal shape.
    Bin i holds confidences in (i/B, (i+1)/B], as Guo et al. 2017; zero falls into the first. Bins of several batches
    add up exactly, in any order: confidences are summed in units of 2⁻³⁰.

    >>> bins = calibration_bins(np.array([0.95, 0.95, 0.65]), np.array([True, False, True]), 10)
    >>> bins[0].tolist(), round(calibration_error(bins), 4)
    ([0, 0, 0, 0, 0, 0, 1, 0, 0, 2], 0.4167)
    """
    confidence = np.asarray(confidence, np.float64).reshape(-1)
    correct = np.asarray(correct).reshape(-1).astype(bool)
    if len(confidence) != len(correct):
        raise InputError(f"{len(confidence)} confidences but {len(correct)} answers; give one of each per prediction")
    # Softmax in float32 may exceed 1 by rounding; more than that, or NaN, is no probability.
    if not (confidence.min(initial=0) >= -1e-5 and confidence.max(initial=1) <= 1 + 1e-5):
        raise InputError("confidences must lie in 0..1; pass probabilities, not scores")
    confidence = np.minimum(np.maximum(confidence, 0), 1)
    index = np.maximum(np.ceil(confidence * bins).astype(np.int64) - 1, 0)
    summed = np.zeros(bins, np.int64)
    np.add.at(summed, index, np.rint(confidence * _UNIT).astype(np.int64))
    return np.stack([np.bincount(index, minlength=bins), np.bincount(index[correct], minlength=bins), summed])


def bin_sums(bins: np.ndarray) -> np.ndarray:
    """Numbers, right answers and summed confidences of `calibration_bins`, as they are: (3, B)."""
    return bins / np.array([[1], [1], [_UNIT]])


def calibration_error(bins: np.ndarray) -> float:
    """The expected calibration error Σ (count/total) |accuracy − confidence| of `calibration_bins`; NaN without any."""
    counts, correct, confidence = bin_sums(bins)
    return float(np.abs(correct - confidence).sum() / counts.sum()) if counts.any() else math.nan


@dataclass(frozen=True)
class ClassInterval:
    """95% interval of the mean accuracy over draws of the classes; `se` is its standard error, C the classes seen."""

    mean: float
    low: float
    high: float
    se: float
    n_classes: int
    n_boot: int


def class_bootstrap(
    acc: np.ndarray,
    classes: np.ndarray,
    queries: np.ndarray | None = None,
    n_boot: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> ClassInterval | None:
    """The interval of the mean of acc (T,) over the classes (T, N) of the tasks, with their numbers of queries (T, N).

    Least squares on acc_t = Σ_{c in t} w_tc α_c gives each class its α_c; these are resampled with replacement. The
    percentiles are widened for small C as by Hesterberg 2015 (the "expanded percentile interval"), which makes them
    agree with Student's t where the α are normal. The noise of the tasks is in the α, so it is in the interval too.

    None where the classes are not identified: all tasks have the same classes, or tasks are fewer than classes.

    >>> rng = np.random.default_rng(0)
    >>> classes = np.array([rng.permutation(20)[:5] for _ in range(1000)])
    >>> difficulty = rng.normal(0.6, 0.1, 20)
    >>> acc = difficulty[classes].mean(axis=1) + rng.normal(0, 0.05, 1000)
    >>> interval = class_bootstrap(acc, classes)
    >>> (interval.high - interval.low) / 2 > 5 * summarise(acc).ci95
    True
    """
    from scipy import stats

    acc, classes = _accuracies(acc), np.asarray(classes)
    queries = np.ones(classes.shape) if queries is None else np.asarray(queries)
    if classes.ndim != 2 or len(classes) != len(acc) or queries.shape != classes.shape:
        raise InputError(
            f"{len(acc)} tasks but classes of shape {classes.shape}; give the (T, N) classes of the same tasks"
        )
    if n_boot < 1:
        raise InputError(f"n_boot is {n_boot}; it must be at least 1")
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must lie between 0 and 1")
    task, way = np.nonzero(queries)
    values, index = np.unique(classes[task, way], return_inverse=True)
    count = len(values)
    membership = np.zeros((len(acc), count))
    membership[task, index] = (queries / queries.sum(axis=1, keepdims=True))[task, way]
    gram = membership.T @ membership
    if count < 2 or len(acc) < count or np.linalg.matrix_rank(gram, hermitian=True) < count:
        return None
    alpha = np.linalg.solve(gram, membership.T @ acc)

    rng = np.random.default_rng(seed)
    deviation = np.empty(n_boot)
    block = max(1, 2_000_000 // count)  # bounds the memory with thousands of classes
    for start in range(0, n_boot, block):
        draws = rng.integers(0, count, (min(block, n_boot - start), count))
        deviation[start : start + block] = alpha[draws].mean(axis=1) - alpha.mean()
    tail = stats.norm.cdf(math.sqrt(count / (count - 1)) * stats.t.ppf((1 - level) / 2, count - 1))
    mean = float(acc.mean())
    low, high = mean + np.quantile(deviation, [tail, 1 - tail])
    return ClassInterval(mean, float(low), float(high), float(alpha.std(ddof=1) / math.sqrt(count)), count, n_boot)


def _accuracies(acc: np.ndarray) -> np.ndarray:
    acc = np.asarray(acc, np.float64)
    if acc.ndim != 1 or not len(acc):
        raise InputError(f"accuracies have the shape {acc.shape}; give one number for each of at least one task")
    if bad := int((~np.isfinite(acc)).sum()):
        raise InputError(f"{bad} of {len(acc)} accuracies are NaN or infinite; leave those tasks out or run them again")
    return acc


def _spread(x: np.ndarray) -> tuple[float, float]:
    """Standard deviation and the 95% half-width of the mean by Student's t; NaN for a single value."""
    from scipy import stats

    n = len(x)
    if n < 2:
        return math.nan, math.nan
    # Constant values have no spread; the rounding of their mean must not give them one.
    sd = 0.0 if np.ptp(x) == 0 else float(x.std(ddof=1))
    return sd, float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)


def _p_t(d: np.ndarray, sd: float) -> float:
    from scipy import stats

    if not d.any():
        return 1.0
    if len(d) < 2:
        return math.nan
    if sd == 0:
        return 0.0  # the same non-zero difference in every task
    return float(2 * stats.t.sf(abs(d.mean()) / (sd / math.sqrt(len(d))), len(d) - 1))


def _p_wilcoxon(d: np.ndarray) -> float:
    """Two-sided p of the signed ranks of d (n,), without zeros as Wilcoxon has it.

    Of up to `_EXACT` others all 2ⁿ signs of their ranks, ties sharing a rank, are counted; beyond, the normal
    approximation, corrected for ties.
    """
    d = d[d != 0]
    if not len(d):
        return 1.0
    if len(d) > _EXACT:
        from scipy import stats

        return float(stats.wilcoxon(d, method="asymptotic").pvalue)
    _, place, count = np.unique(np.abs(d), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    twice = (2 * last - count + 1)[place]  # ranks, doubled: those of ties may be halves
    ways = np.zeros(int(twice.sum()) + 1)  # sign patterns by the (doubled) sum of positive ranks
    ways[0] = 1.0
    for rank in twice:
        ways[rank:] += ways[:-rank].copy()
    smaller = min(int(twice[d > 0].sum()), int(twice[d < 0].sum()))
    return min(1.0, 2 * float(ways[: smaller + 1].sum()) / 2.0 ** len(d))
