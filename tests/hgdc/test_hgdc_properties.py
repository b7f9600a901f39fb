"""HGDC: invariances of its answers, limits of its parts, and its confidence in a world that it is the model of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewcal import BaseBank, FewShotClassifier
from fewcal.gaussianize import Gaussianization, fit_gaussianization
from fewcal.hgdc.prior import Prior, base_weight, between_ratio, task_offset
from fewcal.hgdc.temperature import calibrated_gamma, fit_gamma
from small_worlds import make_world

SIZES = st.integers(2, 6)


def prior(seed: int = 0, **settings: Any) -> Prior:
    random = torch.Generator().manual_seed(seed)
    base = torch.randn(7, 5, generator=random)
    own = {"psi": torch.rand(5, generator=random) + 0.1, "sharpness": 1.75, "share": 0.6, **settings}
    return Prior(Gaussianization("none"), torch.zeros(5), base - base.mean(dim=0), within=torch.full((5,), 0.1), **own)


# ---- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("signed", [False, True], ids=["power", "no power"])
def test_features_in_another_unit_give_the_same_answers(signed: bool, scale: float) -> None:
    world = make_world(5, signed=signed, classes=18, ways=4, shots=3, tasks=1, spread=0.6)
    power = 1 if signed else 3
    rows, x, q = (part.astype(np.float64) ** power for part in (world.x, world.support[0], world.query[0]))
    p, scaled = (
        FewShotClassifier((rows * s, world.y)).fit(x * s, world.labels[0]).predict_proba(q * s) for s in (1, scale)
    )
    np.testing.assert_allclose(scaled, p, atol=1e-4)


def test_a_bank_of_moments_has_the_limit_of_gamma_and_the_weight_of_its_classes() -> None:
    world = make_world(5, signed=True, classes=18, ways=4, shots=2, tasks=1)
    move = fit_gaussianization(torch.from_numpy(world.x), 1.0, center=True, l2=True)
    bank = BaseBank(keep_rows=False, transform=move).fit(world.x, world.y)
    clf = FewShotClassifier(bank, ridge=1.0, confidence=2.0, classes=18.0).fit(world.support[0], world.labels[0])
    assert clf.prior_ is not None
    assert clf.prior_.gamma == pytest.approx(2 * clf.prior_.gaussian_gamma)
    assert clf.prior_.weight == clf.prior_.share == 0.5
    assert clf.score(world.query[0], world.query_labels[0]) > 0.8


def test_base_classes_that_weigh_nothing_leave_the_support_only_classifier() -> None:
    world = make_world(5, signed=True, classes=18, ways=4, shots=2, tasks=1)
    move = fit_gaussianization(torch.from_numpy(world.x), 1.0, center=True, l2=True)
    bank = BaseBank(keep_rows=False, transform=move).fit(world.x, world.y)
    support = world.support[0], world.labels[0]
    found = FewShotClassifier(bank, classes=1e12).fit(*support).predict_proba(world.query[0])
    np.testing.assert_allclose(found, FewShotClassifier().fit(*support).predict_proba(world.query[0]), atol=1e-5)


@pytest.mark.parametrize("shots", [1, 3, 10])
def test_confidence_is_accuracy_where_the_model_holds(shots: int) -> None:
    rng = np.random.default_rng(shots)
    scale = np.geomspace(1.5, 0.2, 16)  # class means differ more in some directions than in others

    def rows(means: np.ndarray, n: int) -> np.ndarray:
        return (means[:, None] + rng.normal(size=(len(means), n, 16))).reshape(-1, 16)

    bank = BaseBank().fit(rows(rng.normal(size=(150, 16)) * scale, 40), np.repeat(np.arange(150), 40))
    confidence, right = [], []
    for _ in range(60):
        means = rng.normal(size=(5, 16)) * scale
        clf = FewShotClassifier(bank).fit(rows(means, shots), np.repeat(np.arange(5), shots))
        p = clf.predict_proba(rows(means, 12))
        confidence.append(p.max(axis=1).mean())
        right.append((p.argmax(axis=1) == np.repeat(np.arange(5), 12)).mean())
    assert np.mean(confidence) == pytest.approx(np.mean(right), abs=0.05)


def test_base_classes_help_where_they_know_in_which_directions_classes_differ() -> None:
    rng = np.random.default_rng(0)
    scale = np.r_[np.full(4, 2.0), np.full(28, 0.05)]
    rows = lambda means, n: (means[:, None] + rng.normal(size=(len(means), n, 32))).reshape(-1, 32)  # noqa: E731
    bank = BaseBank().fit(rows(rng.normal(size=(100, 32)) * scale, 30), np.repeat(np.arange(100), 30))
    gain = []
    for _ in range(40):
        means, labels, truth = rng.normal(size=(5, 32)) * scale, np.arange(5), np.repeat(np.arange(5), 15)
        x, q = rows(means, 1), rows(means, 15)
        gain.append([FewShotClassifier(b).fit(x, labels).score(q, truth) for b in (bank, None)])
    with_bank, without = np.mean(gain, axis=0)
    assert with_bank > without + 0.05


# ---- the prior ------------------------------------------------------------------------------------------------------


def test_a_posterior_mean_goes_from_the_prior_to_the_examples() -> None:
    p, own = prior(), torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(1))
    near = p.share * (p.neighbour_weights(own) @ p.base_means)
    few, many = (p.posterior(own, shots) for shots in (1e-4, 1e4))
    torch.testing.assert_close(few.mean, near, atol=1e-2, rtol=0)
    torch.testing.assert_close(many.mean, own, atol=1e-2, rtol=0)
    assert bool((many.precision > few.precision).all())  # a class that is known well varies less
    torch.testing.assert_close(many.precision, torch.ones(5), atol=1e-3, rtol=0)


def test_shots_of_each_class_that_are_equal_are_one_number() -> None:
    p, own = prior(), torch.randn(2, 4, 5)
    for one, each in zip(p.posterior(own, 3.0), p.posterior(own, torch.full((2, 4), 3)), strict=True):
        torch.testing.assert_close(one, each)


def test_sharpness_goes_from_equal_weights_to_the_nearest_base_class() -> None:
    own = torch.randn(3, 5)
    torch.testing.assert_close(prior(sharpness=0.0).neighbour_weights(own), torch.full((3, 7), 1 / 7))
    hard = prior(sharpness=1e4)
    nearest = torch.cdist(own, hard.base_means).argmin(dim=1)
    torch.testing.assert_close(hard.neighbour_weights(own), torch.nn.functional.one_hot(nearest, 7).float())


@given(st.lists(st.floats(0, 100), min_size=3, max_size=8), st.floats(0.01, 1.0), st.integers(2, 50))
def test_psi_is_ordered_as_the_variance_of_base_means(between: list[float], floor: float, classes: int) -> None:
    values = torch.tensor(sorted(between), dtype=torch.float64)
    psi = between_ratio(values, torch.ones(len(values), dtype=torch.float64), classes, floor)
    assert (psi.diff() >= 0).all()
    assert psi.min() > 0


@given(st.integers(1, 1000), st.floats(1, 100))
def test_more_base_classes_weigh_more(classes: int, half: float) -> None:
    assert 0 < base_weight(classes, half) < base_weight(classes + 1, half) < 1


@given(SIZES, SIZES, st.integers(0, 99))
def test_an_offset_is_between_nothing_and_the_mean(n: int, d: int, seed: int) -> None:
    means = torch.randn(1, n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    offset, mean = task_offset(means)[0, 0], means[0].mean(dim=0)
    share = float(offset @ mean / (mean @ mean))
    assert 0 <= share <= 1
    torch.testing.assert_close(offset, share * mean)
    away = task_offset(means + 1e4)[0, 0]  # classes of another domain: all that they share is offset
    torch.testing.assert_close(away, mean + 1e4, rtol=1e-5, atol=0)


# ---- the temperature ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.05, 1.0, 20.0])
def test_gamma_undoes_the_scale_of_scores(gamma: float) -> None:
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 20000, 4, generator=random)
    truth = torch.multinomial(torch.softmax(2 * scores[0], dim=-1), 1, generator=random).T
    assert calibrated_gamma(scores / gamma, truth) == pytest.approx(2 * gamma, rel=0.05)
    near = torch.tensor([1.5 * gamma])
    found = fit_gamma(scores / gamma, truth, torch.ones_like(truth), near, 0.5)
    assert float(found) == pytest.approx(2 * gamma, rel=0.08)  # the grid is that fine


def test_gamma_without_evidence_is_the_guess() -> None:
    scores, labels = torch.randn(2, 6, 3), torch.zeros(2, 6, dtype=torch.int64)
    guess = torch.tensor([0.3, 40.0])
    torch.testing.assert_close(fit_gamma(scores, labels, torch.zeros(2, 6), guess, 0.5), guess, rtol=0.02, atol=0)
