"""Statistics against SciPy, scikit-learn and hand-computed examples, and the coverage of the class bootstrap."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from fewcal.errors import InputError
from fewcal.evaluation.stats import (
    calibration_bins,
    calibration_error,
    class_bootstrap,
    holm,
    outlier_detection,
    paired,
    paired_table,
    plain,
    summarise,
)

# Accuracies as tasks give them: multiples of 1/75.
accuracies = st.lists(st.integers(0, 75), min_size=2, max_size=40).map(lambda x: np.array(x) / 75)
pairs = st.lists(st.tuples(st.integers(0, 75), st.integers(0, 75)), min_size=2, max_size=40).map(
    lambda x: np.array(x).T / 75
)


class TestSummary:
    def test_figures_are_those_computed_by_hand(self) -> None:
        acc = np.array([0.2, 0.4, 0.4, 0.6, 0.6, 0.6, 0.8, 0.8, 1.0, 0.6, 0.5])
        s = summarise(acc)
        assert s.n == 11
        assert s.mean == pytest.approx(6.5 / 11)
        assert s.sd == pytest.approx(math.sqrt(sum((x - 6.5 / 11) ** 2 for x in acc) / 10))
        assert s.ci95 == pytest.approx(2.228139 * s.sd / math.sqrt(11), rel=1e-6)  # t table, 10 degrees of freedom
        assert s.worst10 == pytest.approx(0.3)  # the worst two of eleven
        assert summarise(np.full(7, 0.1)).ci95 == 0

    def test_single_task_has_no_interval_and_null_in_json(self) -> None:
        s = summarise(np.array([0.5]))
        assert math.isnan(s.ci95)
        assert plain(s) == {"mean": 0.5, "sd": None, "ci95": None, "worst10": 0.5, "n": 1}

    @given(accuracies, st.floats(0.1, 10), st.floats(-1, 1))
    @settings(max_examples=50, deadline=None)
    def test_figures_follow_scale_and_shift_and_ignore_order(self, acc: np.ndarray, scale: float, shift: float) -> None:
        a, b = summarise(acc), summarise(acc[::-1] * scale + shift)
        assert b.mean == pytest.approx(a.mean * scale + shift, abs=1e-9)
        assert b.worst10 == pytest.approx(a.worst10 * scale + shift, abs=1e-9)
        assert b.ci95 == pytest.approx(a.ci95 * scale, abs=1e-9)
        assert a.worst10 <= a.mean + 1e-12

    @pytest.mark.parametrize("acc", [np.array([]), np.zeros((2, 2)), np.array([0.5, np.nan])])
    def test_accuracies_that_are_none_are_refused(self, acc: np.ndarray) -> None:
        with pytest.raises(InputError, match="accuracies"):
            summarise(acc)


class TestPaired:
    @given(pairs)
    @settings(max_examples=60, deadline=None)
    def test_difference_agrees_with_scipy_and_is_antisymmetric(self, x: np.ndarray) -> None:
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
    @example([0] * 13 + [1])  # one difference is no evidence, whatever the number of ties beside it
    @example([0, 1, 1, -1, 2, 2])
    @settings(max_examples=80, deadline=None)
    def test_wilcoxon_of_few_differences_counts_all_signs_ties_included(self, steps: list[int]) -> None:
        ranked = np.array([s for s in steps if s])
        got = paired(np.array(steps) / 75 + 0.5, np.full(len(steps), 0.5)).p_wilcoxon
        ranks = stats.rankdata(np.abs(ranked))
        statistic = min(ranks[ranked > 0].sum(), ranks[ranked < 0].sum())
        sums = [np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(ranked))]
        assert got == pytest.approx(min(1.0, 2 * np.mean(np.array(sums) <= statistic)))

    def test_wilcoxon_is_exact_up_to_fifty_differences_and_asymptotic_beyond(self) -> None:
        steps = np.arange(1.0, 52.0) * np.where(np.arange(51) % 3 == 0, -1, 1)
        for n, method in ((50, "exact"), (51, "asymptotic")):
            got = paired(steps[:n] / 75, np.zeros(n)).p_wilcoxon
            assert got == pytest.approx(stats.wilcoxon(steps[:n], method=method).pvalue, rel=1e-9)
        assert stats.wilcoxon(steps, method="exact").pvalue != pytest.approx(got, rel=1e-3)
        rng = np.random.default_rng(0)
        steps = np.concatenate([np.zeros(40), rng.integers(1, 9, 30), -rng.integers(1, 7, 25)])
        expected = stats.wilcoxon(steps, zero_method="wilcox", method="asymptotic").pvalue
        assert paired(steps / 75, np.zeros(len(steps))).p_wilcoxon == pytest.approx(expected, rel=1e-9)

    def test_differences_that_tie_but_for_rounding_tie(self) -> None:
        a, b = np.array([0.8, 0.6, 0.3], np.float32), np.array([0.6, 0.4, 0.1], np.float32)
        assert len(np.unique(a - b)) > 1
        p = paired(a, b)
        assert (p.ci95, p.p_t) == (0, 0)

    def test_equal_accuracies_are_no_evidence(self) -> None:
        acc = np.array([0.2, 0.4, 0.6])
        p = paired(acc, acc)
        assert (p.difference, p.ci95, p.p_t, p.p_wilcoxon, p.tied) == (0, 0, 1, 1, 1)
        assert paired(acc[:1], acc[1:2]).to_dict()["p_t"] is None
        with pytest.raises(InputError, match="a has 3 tasks and b 2"):
            paired(acc, acc[:2])

    def test_table_corrects_over_its_family(self) -> None:
        rng = np.random.default_rng(0)
        acc = {name: rng.normal(mean, 0.1, 60) for name, mean in (("a", 0.5), ("b", 0.52), ("c", 0.55))}
        rows = paired_table(acc)
        assert [(r.a, r.b) for r in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
        assert [r.p_t_holm for r in rows] == holm(np.array([r.p_t for r in rows])).tolist()
        assert [r.p_wilcoxon_holm for r in rows] == holm(np.array([r.p_wilcoxon for r in rows])).tolist()
        assert rows[1].p_t == paired(acc["a"], acc["c"]).p_t
        assert [(r.a, r.b) for r in paired_table(acc, reference="b")] == [("a", "b"), ("c", "b")]
        assert paired_table({"a": acc["a"]}) == []
        with pytest.raises(InputError, match="reference 'x' is not among the methods a, b, c"):
            paired_table(acc, reference="x")


class TestHolm:
    def test_values_are_those_computed_by_hand(self) -> None:
        # 0.005*4, 0.01*3, 0.03*2, 0.04*1, then never falling.
        assert holm(np.array([0.04, 0.01, 0.03, 0.005])) == pytest.approx([0.06, 0.03, 0.06, 0.02])
        assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
        assert holm(np.array([])).tolist() == []
        assert holm(np.array([np.nan, 0.02]))[1] == 0.02

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
    @settings(max_examples=80, deadline=None)
    def test_values_lie_between_raw_and_bonferroni_and_keep_the_order(self, p: list[float]) -> None:
        raw, adjusted = np.array(p), holm(np.array(p))
        assert (adjusted >= raw).all()
        assert (adjusted <= np.minimum(raw * len(p), 1) + 1e-15).all()
        assert (np.diff(adjusted[np.argsort(raw, kind="stable")]) >= 0).all()


class TestOutlierDetection:
    @given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 60), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_auroc_and_recall_agree_with_scikit_learn(self, seed: int, outside: int, inside: int, ties: bool) -> None:
        rng = np.random.default_rng(seed)
        outliers, own = rng.normal(0.7, 1, (3, outside)), rng.normal(0, 1, (3, inside))
        if ties:
            outliers, own = outliers.round(0), own.round(0)
        found = outlier_detection(own, outliers)
        for t in range(3):
            truth, score = np.repeat([0, 1], [inside, outside]), np.concatenate([own[t], outliers[t]])
            fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
            assert found[t] == pytest.approx([roc_auc_score(truth, score), tpr[fpr <= 0.05 + 1e-12].max()])

    def test_tasks_without_outliers_have_no_figure(self) -> None:
        assert np.isnan(outlier_detection(np.zeros((2, 3)), np.zeros((2, 0)))).all()


class TestCalibration:
    @given(st.integers(0, 10_000), st.integers(1, 20))
    @settings(max_examples=40, deadline=None)
    def test_error_agrees_with_the_definition(self, seed: int, bins: int) -> None:
        rng = np.random.default_rng(seed)
        confidence, correct = rng.random(200), rng.random(200) < 0.6
        expected = 0.0
        for low in range(bins):
            inside = (confidence > low / bins) & (confidence <= (low + 1) / bins)
            if inside.any():
                expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
        assert calibration_error(calibration_bins(confidence, correct, bins)) == pytest.approx(expected, abs=1e-8)

    @given(st.integers(0, 10_000), st.lists(st.integers(0, 300), max_size=5))
    @settings(max_examples=40, deadline=None)
    def test_parts_add_up_to_the_same_bits_in_any_order(self, seed: int, cuts: list[int]) -> None:
        rng = np.random.default_rng(seed)
        confidence, correct = rng.random(300).astype(np.float32), rng.random(300) < 0.5
        borders = reversed(list(itertools.pairwise([0, *sorted(cuts), 300])))
        merged = sum(calibration_bins(confidence[low:high], correct[low:high]) for low, high in borders)
        assert np.array_equal(merged, calibration_bins(confidence.reshape(20, 15), correct.reshape(20, 15)))

    def test_scores_that_are_no_probabilities_are_refused(self) -> None:
        assert math.isnan(calibration_error(calibration_bins(np.zeros(0), np.zeros(0))))
        bins = calibration_bins(np.array([0.0, 1.0, 1.0 + 1e-7]), np.array([0, 1, 1]))
        assert (bins[0, 0], bins[0, -1], calibration_error(bins)) == (1, 2, 0.0)
        for bad in (1.5, -0.2, np.nan):
            with pytest.raises(InputError, match="pass probabilities"):
                calibration_bins(np.array([bad]), np.array([True]))
        with pytest.raises(InputError, match="2 confidences but 1 answers"):
            calibration_bins(np.zeros(2), np.zeros(1))


def draw_tasks(rng: np.random.Generator, classes: int, tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """Nearest-centroid 1-shot accuracies over Gaussian classes of random place and spread: effects and interactions."""
    means, spread = rng.normal(size=(classes, 6)), rng.gamma(4, 0.25, classes)
    chosen = rng.permuted(np.tile(np.arange(classes), (tasks, 1)), axis=1)[:, :5]
    centre, scale = means[chosen], spread[chosen][..., None]
    support = centre + scale * rng.normal(size=centre.shape)
    query = centre[:, :, None] + scale[:, :, None] * rng.normal(size=(tasks, 5, 4, 6))
    distance = ((query[:, :, :, None] - support[:, None, None]) ** 2).sum(-1)
    return (distance.argmin(-1) == np.arange(5)[:, None]).mean((1, 2)), chosen


class TestClassBootstrap:
    def test_interval_covers_where_that_over_tasks_does_not(self) -> None:
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

    @pytest.mark.parametrize("balanced", [True, False])
    def test_additive_class_effects_are_found_exactly(self, balanced: bool) -> None:
        rng = np.random.default_rng(1)
        effect = rng.normal(0.6, 0.1, 30)
        classes = rng.permuted(np.tile(np.arange(30), (2000, 1)), axis=1)[:, :5]
        queries = np.full((2000, 5), 15) if balanced else rng.integers(0, 4, (2000, 5)) + np.eye(5, dtype=int)[0]
        acc = (effect[classes] * queries).sum(axis=1) / queries.sum(axis=1)
        classes = np.where(queries > 0, classes + 100, -1)  # labels are any integers; classes without queries are none
        interval = class_bootstrap(acc, classes, queries)
        assert interval is not None
        assert interval.n_classes == 30
        assert interval.se == pytest.approx(effect.std(ddof=1) / math.sqrt(30), rel=1e-9)
        # The expanded percentiles come close to Student's t.
        half = stats.t.ppf(0.975, 29) * interval.se
        assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.08)
        assert interval.low < interval.mean < interval.high
        assert class_bootstrap(acc, classes, queries) == interval
        assert (class_bootstrap(acc, classes) == interval) == balanced
        assert class_bootstrap(acc, classes, queries, level=0.5).low > interval.low  # type: ignore[union-attr]

    def test_classes_that_are_not_identified_have_no_interval(self) -> None:
        acc = np.linspace(0.4, 0.6, 50)
        assert class_bootstrap(acc, np.tile(np.arange(5), (50, 1))) is None
        assert class_bootstrap(acc[:3], np.array([[0, 1], [1, 2], [3, 4]])) is None
        # Two groups of classes that never meet in odd proportions: pairs (0, 1) and (2, 3) only.
        assert class_bootstrap(acc, np.tile([[0, 1], [2, 3]], (25, 1))) is None
        assert class_bootstrap(acc, np.tile([[0, 1]], (50, 1)), np.tile([[3, 0]], (50, 1))) is None

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"classes": np.zeros((3, 2), int)}, "50 tasks but classes of shape"),
            ({"n_boot": 0}, "n_boot is 0"),
            ({"level": 95}, "level is 95"),
        ],
    )
    def test_bad_arguments_are_refused(self, arguments: dict, words: str) -> None:
        with pytest.raises(InputError, match=words):
            class_bootstrap(**{"acc": np.zeros(50), "classes": np.zeros((50, 2), int)} | arguments)


def test_plain_values_have_no_number_that_json_lacks() -> None:
    assert json.dumps(plain({"a": math.nan, "b": {"c": math.inf}, "d": 1.5}), allow_nan=False) == (
        '{"a": null, "b": {"c": null}, "d": 1.5}'
    )
