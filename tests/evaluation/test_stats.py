"""Statistics against SciPy and hand-computed examples, and the coverage of the class bootstrap by simulation."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fewcal.errors import InputError
from fewcal.evaluation.stats import (
    CalibrationBins,
    class_bootstrap,
    expected_calibration_error,
    holm,
    paired,
    paired_table,
    per_class_accuracy,
    summarise,
)

# Accuracies as tasks give them: multiples of 1/75.
accuracies = st.lists(st.integers(0, 75), min_size=2, max_size=40).map(lambda x: np.array(x) / 75)
pairs = st.lists(st.tuples(st.integers(0, 75), st.integers(0, 75)), min_size=2, max_size=40).map(
    lambda x: np.array(x).T / 75
)


def test_summary_by_hand() -> None:
    acc = np.array([0.2, 0.4, 0.4, 0.6, 0.6, 0.6, 0.8, 0.8, 1.0, 0.6, 0.5])
    s = summarise(acc)
    assert s.n == 11
    assert s.mean == pytest.approx(6.5 / 11)
    assert s.sd == pytest.approx(math.sqrt(sum((x - 6.5 / 11) ** 2 for x in acc) / 10))
    assert s.ci95 == pytest.approx(2.228139 * s.sd / math.sqrt(11), rel=1e-6)  # t table, 10 degrees of freedom
    assert s.paper_doubled == 2 * s.ci95
    assert s.worst10 == pytest.approx(0.3)  # the worst two of eleven


def test_summary_of_one_task_has_no_interval_and_is_valid_json() -> None:
    s = summarise(np.array([0.5]))
    assert math.isnan(s.ci95)
    assert json.dumps(s.to_dict(), allow_nan=False)
    assert s.to_dict()["ci95"] is None
    assert summarise(np.full(7, 0.1)).ci95 == 0


@given(accuracies, st.floats(0.1, 10), st.floats(-1, 1))
@settings(max_examples=50, deadline=None)
def test_summary_follows_scale_and_shift_and_ignores_order(acc: np.ndarray, scale: float, shift: float) -> None:
    a, b = summarise(acc), summarise(acc[::-1] * scale + shift)
    assert b.mean == pytest.approx(a.mean * scale + shift, abs=1e-9)
    assert b.worst10 == pytest.approx(a.worst10 * scale + shift, abs=1e-9)
    assert b.ci95 == pytest.approx(a.ci95 * scale, abs=1e-9)
    assert a.worst10 <= a.mean + 1e-12


@pytest.mark.parametrize("acc", [np.array([]), np.zeros((2, 2)), np.array([0.5, np.nan])])
def test_accuracies_that_are_none(acc: np.ndarray) -> None:
    with pytest.raises(InputError):
        summarise(acc)


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_paired_agrees_with_scipy_and_is_antisymmetric(x: np.ndarray) -> None:
    a, b = x
    p, q = paired(a, b), paired(b, a)
    assert (p.difference, p.ci95, p.p_t, p.p_wilcoxon) == (-q.difference, q.ci95, q.p_t, q.p_wilcoxon)
    assert (p.won, p.tied, p.lost) == (q.lost, q.tied, q.won)
    assert p.won + p.tied + p.lost == pytest.approx(1)
    assert p.difference == (a - b).mean()
    assert 0 <= p.p_t <= 1
    assert 0 <= p.p_wilcoxon <= 1
    steps = np.rint(75 * (a - b))  # integers, so that SciPy sees the ties
    assume(np.ptp(steps) > 0)
    assert p.p_t == pytest.approx(stats.ttest_1samp(steps, 0).pvalue, rel=1e-3, abs=1e-9)
    ranked = steps[steps != 0]  # zeros are dropped
    if len(np.unique(np.abs(ranked))) == len(ranked):  # SciPy's exact distribution knows no ties
        assert p.p_wilcoxon == pytest.approx(stats.wilcoxon(ranked, method="exact").pvalue, rel=1e-9)


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=11))
@example([0] * 13 + [1])  # one difference says nothing, whatever the number of ties beside it
@example([0, 1, 1, -1, 2, 2])
@settings(max_examples=80, deadline=None)
def test_wilcoxon_of_few_differences_counts_all_signs_ties_included(steps: list[int]) -> None:
    ranked = np.array([s for s in steps if s])
    got = paired(np.array(steps) / 75 + 0.5, np.full(len(steps), 0.5)).p_wilcoxon
    ranks = stats.rankdata(np.abs(ranked))
    statistic = min(ranks[ranked > 0].sum(), ranks[ranked < 0].sum())
    sums = [np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(ranked))]
    assert got == pytest.approx(min(1.0, 2 * np.mean(np.array(sums) <= statistic)))


def test_wilcoxon_of_many_differences_is_the_normal_approximation_without_zeros() -> None:
    rng = np.random.default_rng(0)
    steps = np.concatenate([np.zeros(40), rng.integers(1, 9, 30), -rng.integers(1, 7, 25)])
    got = paired(steps / 75, np.zeros(len(steps))).p_wilcoxon
    assert got == pytest.approx(stats.wilcoxon(steps, zero_method="wilcox", method="asymptotic").pvalue, rel=1e-9)


def test_wilcoxon_counts_up_to_fifty_differences() -> None:
    steps = np.arange(1.0, 52.0) * np.where(np.arange(51) % 3 == 0, -1, 1)
    for n, method in ((50, "exact"), (51, "asymptotic")):
        got = paired(steps[:n] / 75, np.zeros(n)).p_wilcoxon
        assert got == pytest.approx(stats.wilcoxon(steps[:n], method=method).pvalue, rel=1e-9)
    assert stats.wilcoxon(steps, method="exact").pvalue != pytest.approx(got, rel=1e-3)


def test_wilcoxon_by_hand() -> None:
    # Differences 1, 2, 3, 4, 5 all positive: two of the 32 sign patterns are as extreme.
    p = paired(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.zeros(5))
    assert p.p_wilcoxon == pytest.approx(2 / 32)


def test_differences_that_tie_but_for_rounding_tie() -> None:
    a, b = np.array([0.8, 0.6, 0.3], np.float32), np.array([0.6, 0.4, 0.1], np.float32)
    assert len(np.unique(a - b)) > 1
    p = paired(a, b)
    assert p.ci95 == 0
    assert p.p_t == 0


def test_no_difference_at_all_is_no_evidence() -> None:
    acc = np.array([0.2, 0.4, 0.6])
    p = paired(acc, acc)
    assert (p.difference, p.ci95, p.p_t, p.p_wilcoxon, p.tied) == (0, 0, 1, 1, 1)
    with pytest.raises(InputError, match="a has 3 tasks and b 2"):
        paired(acc, acc[:2])


def test_one_pair_of_tasks_is_valid_json() -> None:
    assert paired(np.array([0.5]), np.array([0.4])).to_dict()["p_t"] is None


def test_holm_by_hand() -> None:
    # 0.005*4, 0.01*3, 0.03*2, 0.04*1, then never falling.
    assert holm(np.array([0.04, 0.01, 0.03, 0.005])) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []
    assert holm(np.array([np.nan, 0.02]))[1] == 0.02


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_holm_lies_between_raw_and_bonferroni_and_keeps_the_order(p: list[float]) -> None:
    raw, adjusted = np.array(p), holm(np.array(p))
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(raw * len(p), 1) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(raw, kind="stable")]) >= 0).all()


def test_the_table_corrects_over_its_family() -> None:
    rng = np.random.default_rng(0)
    acc = {name: rng.normal(mean, 0.1, 60) for name, mean in (("a", 0.5), ("b", 0.52), ("c", 0.55))}
    rows = paired_table(acc)
    assert [(r.a, r.b) for r in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [r.p_t_holm for r in rows] == holm(np.array([r.p_t for r in rows])).tolist()
    assert [r.p_wilcoxon_holm for r in rows] == holm(np.array([r.p_wilcoxon for r in rows])).tolist()
    assert rows[1].p_t == paired(acc["a"], acc["c"]).p_t
    versus = paired_table(acc, reference="b")
    assert [(r.a, r.b) for r in versus] == [("a", "b"), ("c", "b")]
    assert paired_table({"a": acc["a"]}) == []
    with pytest.raises(InputError, match="reference 'x' is not among the methods a, b, c"):
        paired_table(acc, reference="x")


def test_per_class_accuracy_refuses_impossible_counts() -> None:
    assert per_class_accuracy(np.array([1, 2]), np.array([2, 2])).tolist() == [0.5, 1.0]
    with pytest.raises(InputError, match="between 0 and the total"):
        per_class_accuracy(np.array([3]), np.array([2]))
    with pytest.raises(InputError, match="one of each per class"):
        per_class_accuracy(np.array([3]), np.array([2, 2]))


def naive_ece(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    total = 0.0
    for i in range(bins):
        inside = (confidence > i / bins) & (confidence <= (i + 1) / bins)
        if i == 0:
            inside |= confidence == 0
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@given(st.integers(0, 10_000), st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_calibration_error_agrees_with_the_definition(seed: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random(200), rng.random(200) < 0.6
    assert expected_calibration_error(confidence, correct, bins) == pytest.approx(
        naive_ece(confidence, correct, bins), abs=1e-8
    )


@given(st.integers(0, 10_000), st.lists(st.integers(0, 300), max_size=5))
@settings(max_examples=40, deadline=None)
def test_bins_merge_to_the_same_bits_in_any_order(seed: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random(300).astype(np.float32), rng.random(300) < 0.5
    whole = CalibrationBins()
    whole.update(confidence.reshape(20, 15), correct.reshape(20, 15))
    bounds = [0, *sorted(cuts), 300]
    merged = CalibrationBins()
    for low, high in reversed(list(itertools.pairwise(bounds))):
        part = CalibrationBins()
        part.update(confidence[low:high], correct[low:high])
        merged = part.merge(CalibrationBins.from_dict(json.loads(json.dumps(merged.to_dict()))))
    assert merged.to_dict() == whole.to_dict()
    assert merged.error() == whole.error()


def test_bins_refuse_what_is_no_probability() -> None:
    bins = CalibrationBins()
    assert math.isnan(bins.error())
    bins.update(np.array([0.0, 1.0, 1.0 + 1e-7]), np.array([0, 1, 1]))
    assert (bins.counts[0], bins.counts[-1], bins.error()) == (1, 2, 0.0)
    for bad in (1.5, -0.2, np.nan):
        with pytest.raises(InputError, match="pass probabilities"):
            bins.update(np.array([bad]), np.array([True]))
    with pytest.raises(InputError, match="cannot merge 15 bins with 10"):
        bins.merge(CalibrationBins(10))


def draw_tasks(rng: np.random.Generator, classes: int, tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """Nearest-centroid 1-shot accuracies over Gaussian classes of random place and spread: effects and interactions."""
    means, spread = rng.normal(size=(classes, 6)), rng.gamma(4, 0.25, classes)
    chosen = rng.permuted(np.tile(np.arange(classes), (tasks, 1)), axis=1)[:, :5]
    centre, scale = means[chosen], spread[chosen][..., None]
    support = centre + scale * rng.normal(size=centre.shape)
    query = centre[:, :, None] + scale[:, :, None] * rng.normal(size=(tasks, 5, 4, 6))
    distance = ((query[:, :, :, None] - support[:, None, None]) ** 2).sum(-1)
    return (distance.argmin(-1) == np.arange(5)[:, None]).mean((1, 2)), chosen


def test_the_class_bootstrap_covers_where_the_task_interval_does_not() -> None:
    rng = np.random.default_rng(0)
    # The population value: tasks of ever new classes.
    truth = np.mean([draw_tasks(rng, 40, 60)[0].mean() for _ in range(500)])
    by_task = by_class = 0
    repeats = 150
    for i in range(repeats):
        acc, classes = draw_tasks(rng, 20, 500)
        s, c = summarise(acc), class_bootstrap(acc, classes, n_boot=500, seed=i)
        assert c is not None
        by_task += abs(s.mean - truth) <= s.ci95
        by_class += c.low <= truth <= c.high
    assert by_task / repeats < 0.5
    assert 0.85 <= by_class / repeats <= 0.99


def test_the_class_bootstrap_finds_additive_class_effects_exactly() -> None:
    rng = np.random.default_rng(1)
    effect = rng.normal(0.6, 0.1, 30)
    classes = rng.permuted(np.tile(np.arange(30), (2000, 1)), axis=1)[:, :5]
    acc = effect[classes].mean(axis=1)
    interval = class_bootstrap(acc, classes + 100)  # labels are any integers
    assert interval is not None
    assert interval.n_classes == 30
    assert interval.se == pytest.approx(effect.std(ddof=1) / math.sqrt(30), rel=1e-9)
    # The expanded percentiles come close to Student's t.
    half = stats.t.ppf(0.975, 29) * interval.se
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.08)
    assert interval.low < interval.mean < interval.high
    assert class_bootstrap(acc, classes + 100) == interval
    assert class_bootstrap(acc, classes, level=0.5).low > interval.low  # type: ignore[union-attr]


def test_the_class_bootstrap_says_none_where_classes_cannot_be_told_apart() -> None:
    acc = np.linspace(0.4, 0.6, 50)
    assert class_bootstrap(acc, np.tile(np.arange(5), (50, 1))) is None
    assert class_bootstrap(acc[:3], np.array([[0, 1], [1, 2], [3, 4]])) is None
    # Two groups of classes that never meet in odd proportions: pairs (0, 1) and (2, 3) only.
    assert class_bootstrap(acc, np.tile([[0, 1], [2, 3]], (25, 1))) is None
    with pytest.raises(InputError, match="50 tasks but classes of shape"):
        class_bootstrap(acc, np.zeros((3, 2), int))
    with pytest.raises(InputError, match="n_boot is 0"):
        class_bootstrap(acc, np.zeros((50, 2), int), n_boot=0)
    with pytest.raises(InputError, match="level is 95"):
        class_bootstrap(acc, np.zeros((50, 2), int), level=95)
