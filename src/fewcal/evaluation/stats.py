"""Statistics of per-task accuracies: intervals, paired tests, calibration, and the uncertainty over classes.

Two intervals, because there are two questions.

*Over tasks* (`summarise`): how far is the mean of these T tasks from the mean over all tasks that could be drawn from
these very rows and classes? Its width shrinks as 1/sqrt(T), and T is ours to choose: tasks are drawn with replacement
from a fixed, small set of classes, so ten thousand of them re-use the same twenty classes again and again. The
interval can be made as narrow as one likes without a single new picture.

*Over classes* (`class_bootstrap`): how far is it from what other classes of the same kind would have given? Tasks that
share a class share its difficulty, so they are not independent in this sense, and the information is limited by the
number of classes C, not by T. With 2000 tasks of 16 to 50 real classes this interval came out 8 to 20 times wider,
and it is the honest one for a claim like "x % on birds". Comparing methods on identical tasks (`paired`) is less
affected, since both methods meet the same classes.

The mean over tasks is a U-statistic of degree N in the classes. Its uncertainty over classes is dominated by its
first-order (Hájek) projection, acc_t ≈ Σ_{c in t} α_c / N, where α_c is what class c brings to any task it is in.
`class_bootstrap` estimates the α_c by least squares over all tasks and bootstraps them: plain resampling of C numbers.
The obvious alternative, resampling classes and weighing each task by the product of the multiplicities of its classes,
throws most tasks away (all N classes must be drawn), has no task with a class drawn twice, and so both adds noise and
falls short of the true spread where N is not small beside C. In simulated 5-way problems with ten and twenty
classes (600 to 1000 tasks, 150 draws of the classes each) it covered 88-94%, the least-squares form 93-97% and the
interval over tasks 11-15%; with fifty classes the two bootstraps agree.

NumPy does the work; SciPy is imported only where a t or Wilcoxon distribution is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.errors import InputError

# Accuracies are multiples of 1/(N Q); anything closer than this is rounding, and must count as a tie.
_TIE_DECIMALS = 6
# Confidences are summed as integers of this unit, so that merging batches in any order gives the same bits.
_UNIT = 2**30
# Differences up to which Wilcoxon's test counts every pattern of signs.
_EXACT = 50


class _AsDict:
    def to_dict(self) -> JSONObject:
        """A dictionary for JSON; what is undefined (NaN) becomes None."""
        pairs = asdict(self).items()  # type: ignore[call-overload]
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in pairs}


@dataclass(frozen=True)
class MeanAccuracy(_AsDict):
    """mean ± ci95 over n tasks; NaN where n = 1 leaves sd and ci95 undefined.

    `paper_doubled` is twice the half-width, which the script behind the paper's tables printed after its ±.
    `worst10` is the mean of the worst tenth of the tasks (rounded up to whole tasks).
    """

    mean: float
    sd: float
    ci95: float
    paper_doubled: float
    worst10: float
    n: int


def summarise(acc: np.ndarray) -> MeanAccuracy:
    """Mean, sd and the 95% half-width by Student's t of accuracies (T,).

    >>> s = summarise(np.array([0.5, 0.7, 0.6, 0.8]))
    >>> round(s.mean, 3), round(s.ci95, 3), round(s.paper_doubled, 3), s.worst10
    (0.65, 0.205, 0.411, 0.5)
    """
    acc = _accuracies(acc)
    sd, half = _spread(acc)
    worst = np.sort(acc)[: math.ceil(len(acc) / 10)]
    return MeanAccuracy(float(acc.mean()), sd, half, 2 * half, float(worst.mean()), len(acc))


@dataclass(frozen=True)
class Paired(_AsDict):
    """a minus b on the same n tasks. `won`, `tied`, `lost` are shares of the tasks, seen from a."""

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

    @classmethod
    def from_dict(cls, plain: JSONObject) -> Paired:
        """The comparison that `to_dict` made plain."""
        values: JSONObject = {k: math.nan if v is None and not k.endswith("_holm") else v for k, v in plain.items()}
        return cls(**values)


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
        raise InputError(
            f"the reference {reference!r} is not among the methods {', '.join(accuracies)}; name one of them"
        )
    if reference is not None:
        pairs = [(name, reference) for name in accuracies if name != reference]
    else:
        pairs = list(combinations(accuracies, 2))
    rows = [paired(accuracies[a], accuracies[b], a, b) for a, b in pairs]
    by_t = holm(np.array([row.p_t for row in rows]))
    by_rank = holm(np.array([row.p_wilcoxon for row in rows]))
    return [
        replace(row, p_t_holm=float(t), p_wilcoxon_holm=float(w)) for row, t, w in zip(rows, by_t, by_rank, strict=True)
    ]


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjusted p-values (M,); a NaN stays out of the family.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, np.float64)
    adjusted = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def per_class_accuracy(correct: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """(C,) accuracies from counts of right answers and of queries per class; NaN for a class never asked.

    >>> per_class_accuracy(np.array([3, 0]), np.array([4, 0])).tolist()
    [0.75, nan]
    """
    correct, totals = np.asarray(correct), np.asarray(totals)
    if correct.shape != totals.shape:
        raise InputError(
            f"{correct.shape} counts of right answers but {totals.shape} totals; give one of each per class"
        )
    if (correct < 0).any() or (correct > totals).any():
        raise InputError("right answers must lie between 0 and the total of each class; check the counts")
    return np.divide(correct, totals, out=np.full(correct.shape, np.nan), where=totals > 0)


class CalibrationBins:
    """Counts, confidences and right answers in equal bins of confidence; batches add up exactly, in any order.

    Bin i holds confidences in (i/B, (i+1)/B], as Guo et al. 2017; zero falls into the first.

    >>> bins = CalibrationBins(10)
    >>> bins.update(np.array([0.95, 0.95, 0.65]), np.array([True, False, True]))
    >>> bins.counts.tolist(), round(bins.error(), 4)
    ([0, 0, 0, 0, 0, 0, 1, 0, 0, 2], 0.4167)
    """

    def __init__(self, bins: int = 15) -> None:
        if bins < 1:
            raise InputError(f"bins is {bins}; it must be at least 1")
        self.counts = np.zeros(bins, np.int64)
        self.correct = np.zeros(bins, np.int64)
        self._confidence = np.zeros(bins, np.int64)

    @property
    def bins(self) -> int:
        return len(self.counts)

    @property
    def confidence(self) -> np.ndarray:
        """(B,) sum of the confidences in each bin."""
        return self._confidence / _UNIT

    def update(self, confidence: np.ndarray, correct: np.ndarray) -> None:
        """Add predictions: the probability of the predicted class and whether it was right, of any equal shape."""
        confidence = np.asarray(confidence, np.float64).reshape(-1)
        correct = np.asarray(correct).reshape(-1).astype(bool)
        if len(confidence) != len(correct):
            raise InputError(
                f"{len(confidence)} confidences but {len(correct)} answers; give one of each per prediction"
            )
        # Softmax in float32 may exceed 1 by rounding; more than that, or NaN, is no probability.
        if not ((confidence >= -1e-5) & (confidence <= 1 + 1e-5)).all():
            raise InputError("confidences must lie in 0..1; pass probabilities, not scores")
        confidence = confidence.clip(0.0, 1.0)
        index = (np.ceil(confidence * self.bins).astype(np.int64) - 1).clip(0, self.bins - 1)
        self.counts += np.bincount(index, minlength=self.bins)
        self.correct += np.bincount(index[correct], minlength=self.bins)
        np.add.at(self._confidence, index, np.rint(confidence * _UNIT).astype(np.int64))

    def merge(self, other: CalibrationBins) -> CalibrationBins:
        """The bins of both, as a new object."""
        if other.bins != self.bins:
            raise InputError(f"cannot merge {self.bins} bins with {other.bins}; use the same number")
        merged = CalibrationBins(self.bins)
        for name in ("counts", "correct", "_confidence"):
            setattr(merged, name, getattr(self, name) + getattr(other, name))
        return merged

    def error(self) -> float:
        """The expected calibration error, Σ (count/total) |accuracy - confidence|; NaN without predictions."""
        total = int(self.counts.sum())
        return float(np.abs(self.correct - self.confidence).sum() / total) if total else math.nan

    def to_dict(self) -> dict[str, list[int]]:
        """Integers for a checkpoint; `from_dict` restores the identical object."""
        return {
            "counts": self.counts.tolist(),
            "correct": self.correct.tolist(),
            "confidence": self._confidence.tolist(),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, list[int]]) -> CalibrationBins:
        bins = cls(len(state["counts"]))
        bins.counts = np.array(state["counts"], np.int64)
        bins.correct = np.array(state["correct"], np.int64)
        bins._confidence = np.array(state["confidence"], np.int64)
        return bins


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """The expected calibration error of predictions in one go.

    >>> expected_calibration_error(np.array([1.0, 1.0]), np.array([True, False]))
    0.5
    """
    accumulator = CalibrationBins(bins)
    accumulator.update(confidence, correct)
    return accumulator.error()


@dataclass(frozen=True)
class ClassInterval(_AsDict):
    """95% interval of the mean accuracy over draws of the classes; `se` is its standard error, C the classes seen."""

    mean: float
    low: float
    high: float
    se: float
    n_classes: int
    n_boot: int


def class_bootstrap(
    acc: np.ndarray, classes: np.ndarray, n_boot: int = 2000, seed: int = 0, level: float = 0.95
) -> ClassInterval | None:
    """The interval of the mean of acc (T,) over the classes, given the classes (T, N) of each task.

    Least squares on acc_t = Σ_{c in t} α_c / N gives each class its α_c; these are resampled with replacement. The
    percentiles are widened for small C as by Hesterberg 2015 (the "expanded percentile interval"), which makes them
    agree with Student's t where the α are normal. The noise of the tasks is in the α, so it is in the interval too.

    None where the tasks cannot tell the classes apart: all tasks have the same classes, or there are fewer tasks
    than classes.

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
    if classes.ndim != 2 or len(classes) != len(acc):
        raise InputError(
            f"{len(acc)} tasks but classes of shape {classes.shape}; give the (T, N) classes of the same tasks"
        )
    if n_boot < 1:
        raise InputError(f"n_boot is {n_boot}; it must be at least 1")
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must lie between 0 and 1")
    tasks, way = classes.shape
    values, index = np.unique(classes, return_inverse=True)
    count = len(values)
    membership = np.zeros((tasks, count))
    membership[np.arange(tasks)[:, None], index.reshape(tasks, way)] = 1 / way
    gram = membership.T @ membership
    if count <= way or tasks < count or np.linalg.matrix_rank(gram, hermitian=True) < count:
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
    """Two-sided p of the signed ranks of d (n,).

    Zeros say nothing about the direction, so they are dropped (Wilcoxon's own treatment). Of up to `_EXACT` others all
    2ⁿ signs of their ranks, ties sharing a rank, are counted; beyond, the normal approximation, corrected for ties.
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
