"""What to label next and the accuracy to expect, on made-up groups of items."""

from __future__ import annotations

import numpy as np
import pytest

from fewcal.apply.labelling import centre, doubt, expected_accuracy, label_next, similarities, unseen_share


def groups(sizes: tuple[int, ...], spread: float = 0.05, seed: int = 0) -> np.ndarray:
    """Cosines of items in groups of these sizes, one after the other."""
    rng = np.random.default_rng(seed)
    centres = np.eye(len(sizes) + 1)[: len(sizes)] * 4 + 1
    rows = [centres[c] + rng.normal(0, spread, (n, len(sizes) + 1)) for c, n in enumerate(sizes)]
    return similarities(centre(np.concatenate(rows)))


def propose(similar: np.ndarray, labelled: list[int], doubts: np.ndarray, number: int = 1) -> list[int]:
    mask = np.isin(np.arange(len(similar)), labelled)
    return label_next(similar, similar[labelled].max(axis=0, initial=0.0), mask, doubts, number)


class TestLabelNext:
    def test_groups_come_by_size_and_outliers_last(self) -> None:
        similar = groups((20, 8, 8, 1))
        order = propose(similar, [], np.ones(37), 3)
        assert order[0] < 20
        assert sorted(np.digitize(order, [20, 28, 36]).tolist()) == [0, 1, 2]
        assert 20 <= propose(similar, [order[0]], np.ones(37))[0] < 36

    def test_doubtful_region_comes_first(self) -> None:
        similar = groups((10, 10, 10), spread=0.5)
        doubts = np.repeat([0.0, 0.9, 0.1], 10)
        assert 10 <= propose(similar, [0, 10, 20], doubts)[0] < 20

    def test_group_that_is_surely_answered_otherwise_is_proposed(self) -> None:
        similar = groups((12, 12, 12))
        assert propose(similar, [0, 12], np.zeros(36))[0] >= 24

    def test_order_of_items_does_not_matter(self) -> None:
        similar, shuffle = groups((9, 7, 5), spread=0.3), np.random.default_rng(1).permutation(21)
        doubts = np.random.default_rng(2).random(21)
        first = propose(similar, [0], doubts, 2)
        other = propose(similar[np.ix_(shuffle, shuffle)], [int(np.argmin(shuffle))], doubts[shuffle], 2)
        assert shuffle[other].tolist() == first

    def test_scale_of_rows_does_not_matter(self) -> None:
        x = np.random.default_rng(3).random((12, 5))
        assert similarities(centre(7 * x)) == pytest.approx(similarities(centre(x)), abs=1e-6)

    def test_no_items_give_no_rows(self) -> None:
        assert centre(np.empty((0, 0))).shape == (0, 0)

    def test_doubt_is_the_margin_of_the_two_best(self) -> None:
        assert doubt(np.array([[0.7, 0.2, 0.1]])) == pytest.approx([0.5])


class TestExpectedAccuracy:
    @staticmethod
    def expect(p: float, order: list[str], items: int = 500) -> float | None:
        rows = np.full((items, 2), (p, 1 - p))
        found = expected_accuracy(rows, order, np.arange(items) < len(order))
        assert found is not None
        assert 0 <= found.low <= found.high <= 1
        return found.accuracy

    def test_it_is_the_mean_probability_of_the_others(self) -> None:
        p = np.concatenate([np.full((40, 2), 0.5), np.tile([[0.9, 0.1], [0.7, 0.3]], (20, 1))])
        found = expected_accuracy(p, list("ab") * 20, np.arange(80) < 40)
        assert found is not None
        assert found.low < (found.accuracy or 0) < found.high
        assert found.low < 0.8 < found.high

    def test_interval_narrows_with_examples(self) -> None:
        p = np.full((1000, 2), (0.8, 0.2))
        widths = [
            found.high - found.low
            for n in (10, 40, 160)
            if (found := expected_accuracy(p, list("ab") * (n // 2), np.arange(1000) < n)) is not None
        ]
        assert sorted(widths, reverse=True) == widths
        assert widths[0] > 2 * widths[2]

    def test_no_figure_while_classes_are_found_or_labels_come_class_by_class(self) -> None:
        letters = "abcdefghijkl"
        assert self.expect(0.95, list(letters)) is None
        assert self.expect(0.95, list(letters * 3)) == pytest.approx(0.95)
        assert self.expect(0.95, sorted(letters * 3)) is None
        assert self.expect(0.95, list("ab" * 2)) is None  # too few

    def test_classes_seen_once_take_their_share_away(self) -> None:
        assert self.expect(0.9, [*"abcd" * 10, "e"]) == pytest.approx(0.9 * 40 / 41)

    def test_all_items_labelled_leave_nothing_to_expect(self) -> None:
        assert expected_accuracy(np.ones((4, 1)), list("abab"), np.ones(4, bool)) is None

    def test_unseen_share_is_that_of_random_labels(self) -> None:
        rng, weights = np.random.default_rng(0), np.random.default_rng(1).dirichlet(np.full(40, 0.6))
        estimates, truths = [], []
        for _ in range(400):
            order = rng.choice(40, 30, p=weights)
            estimates.append(unseen_share(order.tolist()))
            truths.append(1 - weights[np.unique(order)].sum())
        # Labels that repeat count once, which makes the estimate a cautious one.
        assert -0.02 < np.mean(estimates) - np.mean(truths) < 0.08
