"""The hierarchical model behind the preset `default`, against plain float64 references written from its equations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fewcal import BaseBank, GDCClassifier, Protocol, evaluate
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal.bank.io import described, restored
from fewcal.class_prior import enough_classes, fit_class_prior, posterior, ridge_share, transferable_ratio
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.synthetic import make_features
from fewcal.gaussianize import fit_gaussianization
from fewcal.heads import discriminant
from fewcal.heads.discriminant import (
    Discriminant,
    cosine_variance,
    doubted,
    fit_gamma,
    misled,
    oas_ridge,
    one_shot_log_odds,
    squared_separation,
)
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import class_means
from fewcal.methods import TaskBatch, make_method
from fewcal.methods.bankless import Bankless, bankless_logistic
from fewcal.methods.hierarchical import BlendedHead, HierarchicalGDC
from fewcal.power_choice import PowerChoice, PowerSample, choose_power, within_class_kurtosis
from fewcal.presets import get_preset, with_settings
from fewcal.trust import reliability, say_with_shots


def rows(classes: int = 70, each: int = 20, dim: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of classes that differ, in some directions more than in others, and their labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dim)) * np.linspace(2.0, 0.2, dim)
    labels = np.repeat(np.arange(classes), each)
    return (centres[labels] + rng.normal(size=(len(labels), dim))).astype(np.float32), labels


@pytest.fixture(scope="module")
def bank() -> BaseBank:
    return BaseBank().fit(*rows())


def support(way: int = 4, shot: int = 3, dim: int = 40, seed: int = 9) -> tuple[Tensor, Tensor]:
    """Support rows `(1, S, D)` and labels `(1, S)`."""
    x, y = rows(way, shot, dim, seed)
    return torch.from_numpy(x)[None], torch.from_numpy(y)[None]


# ---- the power ------------------------------------------------------------------------------------------------------


def test_kurtosis_of_known_distributions() -> None:
    rng = np.random.default_rng(0)
    codes = torch.arange(60000) % 3
    shift = 5.0 * codes[:, None].float()  # class means do not count
    for draw, expected in ((rng.normal, 3.0), (rng.laplace, 6.0), (lambda size: rng.uniform(-1, 1, size), 1.8)):
        x = torch.from_numpy(draw(size=(60000, 5))).float() + shift
        assert within_class_kurtosis(x, codes) == pytest.approx(expected, rel=0.05)


def test_a_constant_feature_has_no_kurtosis() -> None:
    assert within_class_kurtosis(torch.ones(10, 2), torch.arange(10) % 2) == 3.0


def test_heavy_tails_ask_for_a_power_and_normal_features_do_not() -> None:
    rng = np.random.default_rng(0)
    codes = torch.arange(4000) % 20
    normal = torch.from_numpy(rng.normal(size=(4000, 30))).float()
    assert choose_power(normal, codes).beta == 1.0
    heavy = choose_power(normal.abs() ** 4, codes)
    assert heavy.beta < 1.0
    assert list(heavy.kurtosis.values()) == sorted(heavy.kurtosis.values(), reverse=True)


def test_long_tails_of_any_sign_ask_for_the_better_of_two_powers() -> None:
    rng = np.random.default_rng(0)
    codes = torch.arange(4000) % 20
    normal = torch.from_numpy(rng.normal(size=(4000, 30))).float()
    both = choose_power(normal**3, codes)
    assert (both.kind, both.beta) == ("signed-power", 0.5)  # |z|^1.5 has a kurtosis of 6
    skew = normal.exp() - 2
    one = choose_power(skew, codes)
    seen = [fit_gaussianization(skew, one.beta, kind, True, True)(skew) for kind in ("yeo-johnson", "signed-power")]
    tried = [within_class_kurtosis(z, codes) for z in seen]
    assert one.kurtosis[one.beta] == min(tried)
    assert choose_power(normal**3, codes, kind="yeo-johnson").kind == "yeo-johnson"  # asked for
    params = get_preset("default").for_bank(BaseBank().fit((normal**3).numpy(), codes.numpy()))
    assert (params.kind, params.beta) == ("signed-power", 0.5)


def test_where_no_power_suffices_the_smallest_kurtosis_decides() -> None:
    rng = np.random.default_rng(0)
    sparse = torch.from_numpy((rng.random((4000, 30)) < 0.004) * rng.random((4000, 30))).float()
    found = choose_power(sparse, torch.arange(4000) % 20)
    assert min(found.kurtosis.values()) > 7
    assert found.kurtosis[found.beta] == min(found.kurtosis.values())


@pytest.mark.parametrize("times", [40.0, 1e4])
def test_a_few_features_of_another_scale_change_little(times: float) -> None:
    x, y = rows(70, 20)
    raw, far = BaseBank().fit(x, y), x.copy()
    far[:, [3, 17]] *= times
    new, labels = rows(5, 30, seed=9)
    shots = np.concatenate([np.flatnonzero(labels == c)[:2] for c in range(5)])
    plain = GDCClassifier(raw).fit(new[shots], labels[shots])
    new_far = new.copy()
    new_far[:, [3, 17]] *= times
    capped = GDCClassifier(BaseBank().fit(far, y)).fit(new_far[shots], labels[shots])
    assert "2 of 40 features brought down" in str(capped.explain())
    assert "brought down" not in str(plain.explain())
    without = GDCClassifier(BaseBank().fit(far, y), max_spread=False).fit(new_far[shots], labels[shots])
    assert without.params_ == capped.params_.with_changes(max_spread=False)
    right = [c.score(q, labels) for c, q in ((plain, new), (capped, new_far), (without, new_far))]
    assert right[1] > right[0] - 0.05 > right[2]


@pytest.mark.parametrize("rank", [0, None])
def test_a_bank_and_a_classifier_keep_powers_and_capped_features(tmp_path: Path, rank: int | None) -> None:
    x, y = rows(70, 20)
    x = x**3
    x[:, 5] *= 300
    raw = BaseBank().fit(x, y)
    params = get_preset("default").for_bank(raw)
    transform = raw.transformed(**params.space).transform
    assert transform is not None
    assert (transform.kind, transform.capped) == ("signed-power", 1)
    built = BaseBank(rank, transform=transform, power=raw.power_choice()).fit(x, y)
    loaded = BaseBank.load(built.save(tmp_path / "bank.safetensors"))
    new, labels = rows(5, 4, seed=9)
    expected = GDCClassifier(built).fit(new, labels)
    np.testing.assert_array_equal(
        GDCClassifier(loaded).fit(new, labels).predict_proba(new), expected.predict_proba(new)
    )
    again = GDCClassifier.load(expected.save(tmp_path / "model.fewcal"))
    np.testing.assert_array_equal(again.predict_proba(new), expected.predict_proba(new))
    with pytest.raises(InputError, match=r"another space .*max_spread=4.*max_spread=False"):
        GDCClassifier(loaded, max_spread=False).fit(new, labels)


def test_a_bank_of_before_there_was_a_cap_is_read_and_used(tmp_path: Path) -> None:
    x, y = rows(70, 20)
    transform = BaseBank().fit(x, y).transformed(beta=1.0, center=True, l2=True).transform
    built = BaseBank(0, transform=transform, power=PowerChoice(1.0, {1.0: 3.0})).fit(x, y)
    meta, tensors = described(built.parts, built.fingerprint)
    assert isinstance(meta["transform"], dict)
    assert isinstance(meta["power"], list)
    del meta["transform"]["max_spread"]
    del meta["power"][2]
    old = BaseBank.from_parts(restored(json.loads(json.dumps(meta)), tensors))
    new, labels = rows(5, 2, seed=9)
    ours, theirs = (GDCClassifier(bank).fit(new, labels).predict_proba(new) for bank in (built, old))
    np.testing.assert_array_equal(ours, theirs)


def test_rows_of_a_bank_of_before_there_were_powers_of_both_signs_choose_anew(tmp_path: Path) -> None:
    x, y = rows(70, 20)
    raw = BaseBank().fit(x**3, y)
    meta, tensors = read_tensors(raw.save(tmp_path / "new.safetensors"))
    write_tensors(tmp_path / "old.safetensors", tensors, {**meta, "power": [0.5, [[1.0, 9.0], [0.5, 8.0]]]})
    assert BaseBank.load(tmp_path / "old.safetensors").power_choice() == raw.power_choice()
    assert raw.power_choice().kind == "signed-power"


def test_a_sample_gathered_in_chunks_chooses_as_the_whole() -> None:
    x, y = rows(12, 20)
    x = np.abs(x) ** 3
    whole = PowerSample().update(torch.from_numpy(x), y.tolist()).choose()
    halves = [PowerSample().update(torch.from_numpy(x[part]), y[part].tolist()) for part in (y < 6, y >= 6)]
    assert halves[0].merge(halves[1]).choose() == whole
    assert BaseBank().fit(x, y).power_choice() == whole


def test_a_bank_remembers_its_power_in_its_file(tmp_path: Path) -> None:
    x, y = rows(12, 20)
    bank = BaseBank().fit(np.abs(x) ** 3, y)
    loaded = BaseBank.load(bank.save(tmp_path / "bank.safetensors"))
    assert loaded.power_choice() == bank.power_choice()
    assert bank.power_choice().kurtosis
    grown = loaded.partial_fit(np.abs(x), y + 100)  # other rows, another choice
    assert grown.power_choice() != bank.power_choice()


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no base rows"):
        PowerSample().choose()


# ---- the prior ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [12, 70])  # fewer than directions, and more
def test_posterior_is_that_of_the_equations(classes: int) -> None:
    space = BaseBank().fit(*rows(classes, 20)).transformed(center=True, l2=True, moments=True)
    prior = fit_class_prior(space, ridge=3.0, floor=1.0)
    own = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0)) * 0.3
    shots = torch.tensor([[1, 2, 5], [4, 4, 4]])
    found = posterior(prior, own, shots, sharpness=2.0, strength=4.0)
    means, psi = prior.means.double().numpy(), prior.psi.double().numpy()
    for t in range(2):
        for n in range(3):
            x, k = own[t, n].double().numpy(), float(shots[t, n])
            score = -2.0 * np.square(x - means).sum(axis=1) / prior.unit
            w = np.exp(score - score.max())
            p = (w / w.sum()) @ means
            kappa = 1 / psi + 4.0
            np.testing.assert_allclose(found.mean[t, n], (k * x + kappa * p) / (k + kappa), rtol=1e-4, atol=1e-5)
    kappa = 1 / psi + 4.0 + 20 / 6
    np.testing.assert_allclose(found.precision, kappa / (kappa + 1), rtol=1e-5)


def test_with_many_examples_the_base_classes_say_nothing(bank: BaseBank) -> None:
    prior = fit_class_prior(bank.transformed(center=True, l2=True, moments=True), 3.0, 1.0)
    own = torch.randn(1, 2, 40, generator=torch.Generator().manual_seed(0))
    found = posterior(prior, own, torch.full((1, 2), 10**7), sharpness=2.0, strength=4.0)
    torch.testing.assert_close(found.mean, own, rtol=1e-3, atol=1e-3)


def test_on_top_of_a_base_class_the_prior_mean_is_that_class(bank: BaseBank) -> None:
    prior = fit_class_prior(bank.transformed(center=True, l2=True, moments=True), 3.0, 1.0)
    weights = prior.neighbours(prior.means, sharpness=200.0)
    assert bool((weights.argmax(dim=1) == torch.arange(len(bank))).all())
    assert float(weights.amax(dim=1).min()) > 0.99


def test_the_whitening_is_an_average_over_ridges(bank: BaseBank) -> None:
    space = bank.transformed(center=True, l2=True, moments=True)
    prior = fit_class_prior(space, 2.0, 1.0)
    s = space.pooled_covariance().double().numpy()
    ridge = 2.0 * ridge_share(space.pooled_eigen()[0], space.moments.degrees_of_freedom)
    inverses = [np.linalg.inv(s + times * ridge * np.trace(s) / 40 * np.eye(40)) for times in (0.25, 1.0, 4.0)]
    expected = sum(v / np.trace(v @ s) for v in inverses)
    assert prior.transform.whitening is not None
    w = prior.transform.whitening.double().numpy()
    np.testing.assert_allclose(w @ w.T, expected, rtol=1e-3, atol=1e-4 * expected.max())


def test_a_flat_spectrum_that_is_well_known_gets_little_ridge() -> None:
    flat, steep = torch.linspace(1.5, 1.0, 64), torch.logspace(2, -2, 64)
    assert ridge_share(flat, 10**6) == 0.0005 < 0.02 < ridge_share(steep, 10**6) < 1.0
    assert ridge_share(flat, 500) == ridge_share(torch.ones(64), 500) == 1.0  # it may be noise
    assert ridge_share(1e-6 * steep, 10**6) == pytest.approx(ridge_share(steep, 10**6))
    assert ridge_share(torch.zeros(8), 10**6) == 0.0005


def test_features_that_never_vary_change_nothing_about_the_ridge() -> None:
    steep = torch.logspace(2, -2, 64)
    padded = torch.cat([steep, torch.zeros(64)])
    assert ridge_share(padded, 10**4) == pytest.approx(ridge_share(steep, 10**4))


def test_few_classes_whose_covariance_is_well_known_have_more_of_a_say_with_more_shots() -> None:
    assert say_with_shots(0.25, 1, 0.0) == say_with_shots(0.25, 1, 1.0) == 0.25
    assert say_with_shots(0.25, 5, 0.0) > say_with_shots(0.25, 5, 1.0) == pytest.approx(0.25 ** ((1 + 2 / 5) / 3))
    assert say_with_shots(1.0, 5, 0.0) == 1.0


def test_reliability_is_the_share_of_the_means_that_is_no_noise() -> None:
    x, y = rows(200, 10)
    true = BaseBank().fit(x, y)
    shuffled = BaseBank().fit(x, np.random.default_rng(0).permutation(y))
    assert reliability(shuffled) < 0.1
    assert reliability(true) == pytest.approx(1 / 1.1, abs=0.03)  # means vary by 1, of which 1/10 more is noise


def bank_around(means: np.ndarray, noise: float, each: int = 40) -> BaseBank:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(means)), each)
    drawn = means[labels] + noise * rng.normal(size=(len(labels), means.shape[1]))
    return BaseBank().fit(drawn.astype(np.float32), labels)


def test_of_collapsed_base_classes_only_common_directions_are_taken_over() -> None:
    rng = np.random.default_rng(1)
    simplex = np.eye(30, 50)  # every class has a direction of its own
    kinds = np.zeros((30, 50))
    kinds[:, 40:43] = rng.choice([-1.0, 1.0], size=(30, 3))  # and three tell kinds of classes
    for means, common in ((simplex, 0), (simplex + kinds, 3)):
        space = bank_around(means, noise=0.05).transformed(center=True, l2=True, moments=True)
        psi = fit_class_prior(space, ridge=2.0, floor=1.0).psi
        assert int((psi > 0.5).sum()) == common
        torch.testing.assert_close(psi.sort().values[: 50 - 30], torch.full((20,), 0.15))


def test_of_base_classes_that_are_hardly_apart_all_is_taken_over() -> None:
    between, within = torch.tensor([2e-4, 1e-4, 0.0]), torch.tensor([1.0, 0.5, 1.0])
    expected = between / within + 0.5 * between.sum() / within.sum()
    torch.testing.assert_close(transferable_ratio(between, within, 3, floor=0.5), expected, rtol=1e-2, atol=1e-6)


def test_the_ratio_does_not_know_the_scale_of_features() -> None:
    between, within = torch.tensor([4.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 2.0, 1.0, 1.0])
    plain = transferable_ratio(between, within, 4, floor=1.0)
    torch.testing.assert_close(transferable_ratio(1e-4 * between, 1e-4 * within, 4, floor=1.0), plain)


def test_the_prior_needs_moments_alone() -> None:
    x, y = rows()
    transform = BaseBank().fit(x, y).transformed(center=True, l2=True).transform
    whole = fit_class_prior(BaseBank().fit(x, y).transformed(center=True, l2=True), 3.0, 1.0)
    moments = fit_class_prior(BaseBank(0, transform=transform).fit(x, y), 3.0, 1.0)
    assert moments.alignment == pytest.approx(whole.alignment, rel=1e-3)
    torch.testing.assert_close(moments.psi, whole.psi, rtol=1e-3, atol=1e-4)


# ---- the discriminant -----------------------------------------------------------------------------------------------


def dense_precision(r: np.ndarray, metric: np.ndarray, nu: float) -> np.ndarray:
    return np.linalg.inv(np.diag(1 / metric) + r.T @ r / nu)


def oas_reference(r: np.ndarray, metric: np.ndarray, freedom: int) -> float:
    scatter = (r * np.sqrt(metric)).T @ (r * np.sqrt(metric)) / freedom
    d = len(metric)
    t1, t2 = np.trace(scatter), np.trace(scatter @ scatter)
    share = ((1 - 2 / d) * t2 + t1**2) / ((freedom + 1 - 2 / d) * (t2 - t1**2 / d))
    share = np.clip(share, 1e-3, 0.999)
    return float(share / (1 - share) * freedom * t1 / d)


@pytest.mark.parametrize(("shot", "dim"), [(3, 40), (30, 8)])  # fewer rows than features, and more
def test_discriminant_against_dense_algebra(shot: int, dim: int) -> None:
    x, y = support(4, shot, dim)
    own = class_means(x, y, 4)
    metric = torch.linspace(0.5, 1.0, dim)
    parts = Discriminant(x, y, own, metric, 0 * metric, ridge=10.0)
    head = parts.head(2.0)
    r = (x - own[0][y[0]])[0].double().numpy()
    v = metric.double().numpy()
    p = dense_precision(r, v, 10.0 * oas_reference(r, v, 4 * shot - 4))
    m = own[0].double().numpy()
    expected = m @ p
    got = head.weight[0].double().numpy()
    ratio = (got * expected).sum() / (expected**2).sum()  # 2γ
    np.testing.assert_allclose(got, ratio * expected, rtol=2e-3, atol=2e-4 * np.abs(got).max())
    np.testing.assert_allclose(head.bias[0].numpy(), -ratio / 2 * (expected * m).sum(axis=1), rtol=2e-3)


# Fewer rows than features, and more; as many for all classes, and not.
@pytest.mark.parametrize("shots", [(3, 3, 3), (1, 2, 5), (30, 30, 30), (20, 3, 8)])
def test_left_out_rows_are_scored_as_if_they_had_not_been_there(
    shots: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    dim = 40 if sum(shots) < 20 else 8
    x, every = support(3, max(shots), dim)
    kept = torch.cat([torch.nonzero(every[0] == c).flatten()[:k] for c, k in enumerate(shots)])
    x, y = x[:, kept].double(), every[:, kept]
    own = class_means(x, y, 3)
    metric = torch.linspace(0.5, 1.0, dim, dtype=torch.float64)
    prior = torch.randn(1, 3, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    worth = torch.linspace(1.0, 9.0, dim, dtype=torch.float64)
    rows = torch.tensor(shots)[:, None]
    parts = Discriminant(x, y, (rows * own + worth * prior) / (rows + worth), metric, worth, ridge=10.0)
    seen: list[Tensor] = []
    monkeypatch.setattr(discriminant, "fit_gamma", lambda scores, *rest: (seen.append(scores), rest[-1])[1])
    parts.head(1.0)
    v = metric.numpy()
    nu = 10.0 * oas_reference((x - own[0][y[0]])[0].numpy(), v, sum(shots) - 3)
    for i in (shots[0], sum(shots) - 1, sum(shots[:2]) - 1):
        keep = np.arange(sum(shots)) != i
        rest, codes = x[0, keep].numpy(), y[0, keep].numpy()
        m = np.stack([rest[codes == c].mean(axis=0) for c in range(3)])
        count = np.bincount(codes)[:, None]
        mu = (count * m + worth.numpy() * prior[0].numpy()) / (count + worth.numpy())
        p = dense_precision(rest - m[codes], v, nu)
        expected = 2 * x[0, i].numpy() @ p @ mu.T - np.einsum("nd,de,ne->n", mu, p, mu)
        np.testing.assert_allclose(seen[0][0, i].numpy(), expected, rtol=1e-6, atol=1e-8)


def test_gamma_follows_the_rows_that_were_left_out() -> None:
    labels, counts = torch.zeros(1, 40, dtype=torch.int64), torch.ones(1, 40)
    ahead = torch.zeros(1, 40, 2)
    ahead[..., 1] = -1.0  # right by a margin of 1, always
    sure = fit_gamma(ahead, labels, counts, torch.ones(1))
    ahead[:, :20, 1] = 1.0  # wrong half the time
    doubtful = fit_gamma(ahead, labels, counts, torch.ones(1))
    assert float(doubtful) < 0.5 < 1.5 < float(sure)
    assert float(fit_gamma(ahead, labels, 0 * counts, torch.ones(1))) == pytest.approx(1.0)  # the guess is left


def test_many_rows_overrule_a_guess_of_gamma_that_is_far_too_low() -> None:
    # Rows are right as often as scores at γ = 20 say: hundreds of them know that, whatever was guessed.
    draw = torch.Generator().manual_seed(0)
    scores = 0.2 * torch.randn(1, 600, 4, generator=draw)
    labels = torch.multinomial(torch.softmax(20 * scores[0], dim=-1), 1, generator=draw).T
    found = fit_gamma(scores, labels, torch.ones(1, 600), torch.ones(1))
    assert 14 < float(found) < 20  # less than the truth by what the guess is worth


def test_with_a_prior_two_rows_a_class_leave_the_guess_and_without_one_they_move_it() -> None:
    x, y = support(4, 2)
    means, one = class_means(x, y, 4), torch.ones(40)
    guess = 0.5 / squared_separation(means)  # much too unsure for these classes
    kept = Discriminant(x, y, means, one, 5 * one, 10.0).head(guess)
    sole = Discriminant(x, y, means, one, 0 * one, 10.0, unbiased=True).head(guess)
    with_guess = Discriminant(x, y, means, one, 5 * one, 10.0).head(2 * guess)
    torch.testing.assert_close(with_guess.weight, 2 * kept.weight)
    assert float(torch.linalg.vector_norm(sole.weight) / torch.linalg.vector_norm(kept.weight)) > 1.2


@pytest.mark.parametrize("shots", [(2, 2, 2), (4, 4, 4), (2, 5, 3)])
def test_left_out_rows_are_scored_by_means_freed_of_noise(
    shots: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, every = support(3, max(shots))
    kept = torch.cat([torch.nonzero(every[0] == c).flatten()[:k] for c, k in enumerate(shots)])
    x, y = x[:, kept].double(), every[:, kept]
    own, one = class_means(x, y, 3), torch.ones(40, dtype=torch.float64)
    seen: list[Tensor] = []
    monkeypatch.setattr(discriminant, "fit_gamma", lambda scores, *rest: (seen.append(scores), rest[-1])[1])
    head = Discriminant(x, y, own, one, 0 * one, ridge=10.0, unbiased=True).head(1.0)
    plain = Discriminant(x, y, own, one, 0 * one, ridge=10.0).head(1.0)
    noise = (head.bias - plain.bias)[0].numpy()  # by which each squared length is too large
    assert (noise > 0).all()
    nu = 10.0 * oas_reference((x - own[0][y[0]])[0].numpy(), one.numpy(), sum(shots) - 3)
    for i in range(sum(shots)):
        keep, c = np.arange(sum(shots)) != i, int(y[0, i])
        rest, codes = x[0, keep].numpy(), y[0, keep].numpy()
        m = np.stack([rest[codes == n].mean(axis=0) for n in range(3)])
        p = dense_precision(rest - m[codes], one.numpy(), nu)
        freed = noise.copy()
        freed[c] *= shots[c] / (shots[c] - 1)  # of fewer rows
        expected = 2 * x[0, i].numpy() @ p @ m.T - np.einsum("nd,de,ne->n", m, p, m) + freed
        np.testing.assert_allclose(seen[0][0, i].numpy(), expected * (1 - shots[c] ** -2.0), rtol=1e-6, atol=1e-8)


def test_one_shot_is_the_nearest_mean() -> None:
    x, y = support(4, 1)
    own = class_means(x, y, 4)
    head = Discriminant(x, y, own, torch.ones(40), torch.zeros(40), 10.0).head(3.0)
    q = torch.randn(1, 20, 40, generator=torch.Generator().manual_seed(1))
    expected = torch.softmax(-3.0 * torch.cdist(q, own).square(), dim=-1)
    torch.testing.assert_close(torch.softmax(head.logits(q), dim=-1), expected, rtol=1e-3, atol=1e-5)


def test_oas_ridge_and_separation_by_hand() -> None:
    r = np.random.default_rng(0).normal(size=(30, 5))
    gram = torch.from_numpy(r.T @ r)
    got = oas_ridge(gram.trace()[None], gram.square().sum()[None], torch.tensor([30.0]), 5)
    assert float(got) == pytest.approx(oas_reference(r, np.ones(5), 30), rel=1e-6)
    assert squared_separation(torch.tensor([[[0.0], [3.0], [6.0]]])).item() == pytest.approx((9 + 9 + 36) / 3)


# ---- the method -----------------------------------------------------------------------------------------------------


def task_batch(method: HierarchicalGDC | Bankless, way: int = 5, shot: int = 3, tasks: int = 4) -> TaskBatch:
    x = torch.stack([support(way, shot, seed=50 + t)[0][0] for t in range(tasks)])
    labels = torch.arange(way).repeat_interleave(shot).expand(tasks, -1)
    z = method.transform(x.reshape(-1, 40)).view(tasks, way * shot, -1)
    return TaskBatch(z, labels, way, TaskRandom(0, range(tasks)))


def prepared(bank: BaseBank, **changes: float) -> HierarchicalGDC:
    method = HierarchicalGDC(get_preset("default").with_changes(**changes)).prepare(bank)
    assert isinstance(method, HierarchicalGDC)
    return method


def test_a_batch_answers_as_its_tasks_alone(bank: BaseBank) -> None:
    method = prepared(bank)
    whole = task_batch(method)
    q = whole.support.flip(1)
    together = method.fit(whole).logits(q)
    for t in range(4):
        one = TaskBatch(whole.support[t : t + 1], whole.labels[t : t + 1], 5, TaskRandom(0, [t]))
        torch.testing.assert_close(method.fit(one).logits(q[t : t + 1])[0], together[t], rtol=1e-4, atol=1e-4)


def test_without_trust_the_bankless_classifier_answers(bank: BaseBank) -> None:
    method = prepared(bank, trust=0.0)
    batch = task_batch(method)
    plain = Bankless()
    other = task_batch(plain)
    got = torch.softmax(method.fit(batch).logits(batch.support), dim=-1)
    expected = torch.softmax(plain.fit(other).logits(other.support), dim=-1)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_useless_bank_is_not_used_and_that_is_said() -> None:
    x, y = rows(80)
    s, labels = (t[0].numpy() for t in support())
    with pytest.warns(FewcalWarning, match="the bank is not used") as told:
        clf = GDCClassifier(BaseBank().fit(x, np.random.default_rng(0).permutation(y))).fit(s, labels)
    assert len(told) == 1
    q = rows(4, 10, seed=9)[0]
    expected = GDCClassifier().fit(s, labels).predict_proba(q)
    np.testing.assert_allclose(clf.predict_proba(q), expected, atol=1e-6)
    assert "not used" in str(clf.explain())
    with pytest.raises(InputError, match="none in use"):
        clf.outlier_pvalue(q)


def test_few_base_classes_share_the_answer_with_the_examples_and_that_is_said() -> None:
    s, labels = support()
    bank = BaseBank().fit(*rows(15))
    with pytest.warns(FewcalWarning, match="15 base classes are few .* a say of 25%") as told:
        clf = GDCClassifier(bank).fit(s[0].numpy(), labels[0].numpy())
    assert len(told) == 1
    assert clf.explain().trust == pytest.approx(prepared(bank).say_at(3))
    assert "little but their covariance is used" in clf.explain().warnings[0]
    q = rows(4, 10, seed=9)[0]
    both = [
        GDCClassifier(trust=share, bank=bank).fit(s[0].numpy(), labels[0].numpy()).predict_proba(q)
        for share in (1.0, 0.0)
    ]
    got = clf.predict_proba(q)
    assert np.abs(got - both[1]).mean() < np.abs(both[0] - both[1]).mean()
    assert np.abs(got - both[1]).max() > 1e-3


def test_without_a_say_as_neighbours_the_covariance_is_left_of_base_classes(bank: BaseBank) -> None:
    prior = fit_class_prior(bank.transformed(center=True, l2=True, moments=True), 3.0, 1.0)
    own, shots = torch.randn(1, 2, 40, generator=torch.Generator().manual_seed(0)), torch.full((1, 2), 3)
    found = posterior(prior, own, shots, sharpness=2.0, strength=4.0, say=0.0)
    worth = float(1 / prior.psi.min())
    torch.testing.assert_close(found.mean, 3 / (3 + worth) * own)  # towards the origin, alike in all directions
    torch.testing.assert_close(found.worth, torch.full((40,), worth))


def test_base_classes_that_differ_alike_in_all_directions_lose_their_say() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(70), 20)
    noise = rng.normal(size=(70, 40))[labels] + rng.normal(size=(1400, 40))
    method = prepared(BaseBank().fit(noise.astype(np.float32), labels))
    assert float(method.trust(task_batch(method)).share.max()) < 0.5


def test_domain_match_is_that_of_its_equation(bank: BaseBank) -> None:
    prior = fit_class_prior(bank.transformed(center=True, l2=True, moments=True), 3.0, 1.0)
    x = torch.randn(5, 6, 40, generator=torch.Generator().manual_seed(0))
    deviation = prior.means.double().square().sum(dim=0).sqrt().numpy()
    squares = (x.double().numpy() ** 2).mean(axis=1)
    matches = [
        ((v @ (deviation / deviation.mean())) / v.sum(axis=1) - 1) / prior.alignment
        for v in (squares, x.double().numpy().var(axis=1))
    ]
    assert len({int(np.argmin(pair)) for pair in zip(*matches, strict=True)}) == 2  # each is the less somewhere
    expected = np.minimum(*matches)
    np.testing.assert_allclose(prior.domain_match(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    scaled = prior.domain_match(x, low=0.2, high=0.4).numpy()
    np.testing.assert_allclose(scaled, (expected - 0.2) / 0.2, rtol=1e-4, atol=1e-4)
    same = prior.means[:1] / prior.means[0].norm()
    for rows_ in (torch.zeros(3, 40), same.expand(4, 40), same):  # nothing is told of where they differ
        assert float(prior.domain_match(rows_)) == pytest.approx(0, abs=0.1)
        assert float(prior.domain_match(rows_, low=0.2, high=0.4)) == pytest.approx(-1, abs=0.1)
    base = prior.transform(torch.from_numpy(rows()[0])) - prior.origin  # the rows themselves, not their moments
    assert float(prior.domain_match(base)) == pytest.approx(1, rel=0.1)


def test_where_a_task_lies_is_no_sign_that_base_classes_know_its_classes(bank: BaseBank) -> None:
    """All rows lie far out along the first directions of the bank; in one task they differ there too."""
    method = prepared(bank)
    prior, noise = method.prior, torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    first = prior.spectrum > prior.spectrum.quantile(0.8)
    labels = torch.arange(5)[None]
    unsure = 1 - 0.2 * 4**0.5 / prior.alignment_error
    for where, share in ((first, 1.0), (~first, unsure)):
        z = (prior.means[0] + 0.3 * where * noise)[None]
        batch = TaskBatch(torch.cat([z, z], dim=-1), labels, 5, TaskRandom(0))
        assert float(method.trust(batch).share) == pytest.approx(share, abs=1e-5)


def test_cosines_and_log_odds_of_one_example_a_class() -> None:
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    for t in range(2):
        unit = (x[t] / x[t].norm(dim=1, keepdim=True)).double().numpy()
        cosines = (unit @ unit.T)[np.triu_indices(4, 1)]
        expected = (((cosines - cosines.mean()) ** 2).sum() + 1 / 60) / 6
        assert float(cosine_variance(x)[t]) == pytest.approx(expected, rel=1e-5)
    assert float(cosine_variance(x[:, :2])[0]) == pytest.approx(1 / 60)  # a single cosine has no variance
    odds = one_shot_log_odds(torch.tensor([1e-6, 0.02, 1.0]))
    assert odds.tolist() == pytest.approx([12.0, (12**-2 + (0.02 / 0.33) ** 2) ** -0.5, 0.33], rel=1e-3)


@pytest.mark.parametrize("classes", [20, 70])
def test_one_example_is_never_surer_than_cosines_between_classes_allow(classes: int) -> None:
    raw = BaseBank().fit(*rows(classes))
    # Moments alone: where rows are kept, tasks of base classes tell how sure it can be.
    transform = raw.transformed(beta=raw.power_choice().beta, center=True, l2=True).transform
    method = prepared(BaseBank(0, transform=transform).fit(*rows(classes)))
    batch = task_batch(method, shot=1)
    close = batch.support.clone()
    close[:, 1:] = 0.2 * close[:, 1:] + 0.8 * close[:, :1]  # all but alike, in one direction
    for support in (batch.support, close):
        some = TaskBatch(support, batch.labels, 5, batch.random)
        z = support[..., :40]
        scores = method.fit(some).head.logits(z)
        right = scores.diagonal(dim1=1, dim2=2)
        odds = (right - (scores.sum(dim=2) - right) / 4).mean(dim=1)
        assert bool((odds <= 0.33 / cosine_variance(z) * 1.001).all())


@given(st.integers(2, 80), st.floats(1.0, 500.0), st.floats(1e-3, 200.0))
def test_doubt_leaves_answers_and_order_as_they_are(ways: int, shots: float, spread: float) -> None:
    scores = spread * torch.randn(7, ways, generator=torch.Generator().manual_seed(ways), dtype=torch.float64)
    behind = scores.numpy() - scores.numpy().max(axis=1, keepdims=True)
    weights = np.exp(behind) + misled(ways, shots) * np.exp(0.01 * behind)
    found = torch.softmax(doubted(scores, shots), dim=-1)
    np.testing.assert_allclose(found.numpy(), weights / weights.sum(axis=1, keepdims=True), rtol=1e-9)
    assert found.argsort(dim=-1).tolist() == scores.argsort(dim=-1).tolist()


def test_doubt_keeps_the_order_of_classes_that_are_far_behind() -> None:
    scores = torch.tensor([0.0, -60.0, -60.5, -90.0, -59.0])
    assert doubted(scores, shots=20).argsort(descending=True).tolist() == [0, 4, 1, 2, 3]


def test_doubt_rises_with_classes_to_a_limit_and_falls_with_examples() -> None:
    sure = [ways * misled(ways, 1) for ways in (2, 5, 20, 50, 1000)]
    assert sure == sorted(sure)
    assert sure[-1] == pytest.approx(sure[-2])
    assert misled(5, 1) == 4 * misled(5, 4)


def test_a_query_on_top_of_an_example_is_doubted_by_the_number_of_classes(bank: BaseBank) -> None:
    """What the model says of it, without doubt, and with that of the equation."""
    method = prepared(bank, trust=1.0)
    for way, shot in ((4, 1), (12, 1), (4, 5)):
        batch = task_batch(method, way, shot, tasks=2)
        head = method.fit(batch)
        assert isinstance(head, BlendedHead)
        plain = head.head.logits(batch.support[..., :40])
        torch.testing.assert_close(head.logits(batch.support), doubted(plain, shot))
        sure, found = (torch.softmax(v, dim=-1).amax(dim=-1) for v in (plain, head.logits(batch.support)))
        assert bool((found < sure).all())
        assert bool((found > sure - way * misled(way, shot)).all())


@pytest.mark.parametrize(("way", "strength"), [(4, 1.0), (10, 1.0), (25, 0.4)])
def test_neighbours_that_many_classes_share_are_worth_less(bank: BaseBank, way: int, strength: float) -> None:
    method = prepared(bank, trust=1.0)
    batch = task_batch(method, way, shot=1, tasks=1)
    p, own = method.params, batch.support[..., :40]
    found = posterior(method.prior, own, 1.0, sharpness=p.sharpness, strength=strength)
    directions = found.mean * found.precision
    head = method.fit(batch)
    assert isinstance(head, BlendedHead)
    along = head.head.weight / head.head.weight.norm()
    torch.testing.assert_close(along, directions / directions.norm(), rtol=1e-4, atol=1e-6)


def test_base_classes_of_another_domain_lose_their_say(bank: BaseBank) -> None:
    away = bank.means.mean(dim=0) + 9 * torch.linalg.eigh(torch.cov(bank.means.T))[1][:, 0]  # where no base class is
    far = (away + 0.1 * torch.randn(4, 40, generator=torch.Generator().manual_seed(0))).numpy()
    with pytest.warns(FewcalWarning, match="have a say of"):
        clf = GDCClassifier(bank).fit(far, np.arange(4))
    assert clf.explain().trust < 0.5


def test_enough_classes_rises_with_their_number() -> None:
    shares = [enough_classes(n) for n in range(0, 200, 5)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1


def test_few_base_classes_have_more_of_a_say_with_more_shots() -> None:
    says = [say_with_shots(0.25, shots) for shots in (1, 2, 5, 20, 1000)]
    assert says == sorted(says)
    assert says[0] == 0.25
    assert says[-1] == pytest.approx(0.25 ** (1 / 3), rel=0.01)
    method = prepared(BaseBank().fit(*rows(15)))
    shares = [float(method.trust(task_batch(method, shot=shot)).share[0]) for shot in (1, 5)]
    assert shares[0] == 0.25
    say = say_with_shots(0.25, 5, method.prior.ridge_share)
    assert say <= shares[1] < 1.01 * say  # rows that are left out raise it, and never lower it


def test_unequal_shots(bank: BaseBank) -> None:
    x, y = (t[0].numpy() for t in support(3, 5))
    keep = [0, 5, 6, 10, 11, 12, 13, 14]
    clf = GDCClassifier(bank).fit(x[keep], y[keep])
    p = clf.predict_proba(x)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
    assert (clf.predict(x) == y).mean() > 0.8


def test_explanation_shares_add_up(bank: BaseBank) -> None:
    x, y = (t[0].numpy() for t in support(3, 2))
    clf = GDCClassifier(bank).fit(x, y)
    found = clf.explain()
    for c in found.classes:
        assert c.support_share + sum(c.shares) == pytest.approx(1, abs=1e-5)
    assert found.trust == pytest.approx(1.0, abs=0.5)
    assert clf.params_ is not None
    assert clf.params_.beta == bank.power_choice().beta


def test_a_scaler_before_the_classifier_is_noticed() -> None:
    rng = np.random.default_rng(0)
    x, y = rows(80)
    x = np.abs(x) + 1
    bank = BaseBank().fit(x, y)
    few = np.abs(rows(4, 3, seed=5)[0]) + 1
    labels = np.repeat(np.arange(4), 3)
    with pytest.warns(FewcalWarning, match="same preprocessing"):
        make_pipeline(StandardScaler(), GDCClassifier(bank)).fit(few, labels)
    signed = BaseBank().fit(x - x.mean(), y)
    with pytest.warns(FewcalWarning, match="times as long"):
        GDCClassifier(signed).fit(50 * rng.normal(size=(12, 40)), labels)
    with pytest.warns(FewcalWarning, match="times as long"):
        GDCClassifier(bank).fit(few / 10, labels)


def test_rows_of_the_banks_own_scale_are_not_remarked_upon(bank: BaseBank, recwarn: pytest.WarningsRecorder) -> None:
    x, y = (t[0].numpy() for t in support(4, 2))
    GDCClassifier(bank).fit(x, y)
    assert not [w for w in recwarn if "preprocessing" in str(w.message)]


def test_parameters_of_the_weighted_model_take_the_preset_whitened() -> None:
    with pytest.warns(FewcalWarning, match="preset 'whitened' is used"):
        params = with_settings(get_preset("default"), {"k": 4})
    assert params == get_preset("whitened").with_changes(k=4)
    own = {"strength": 1.0, "beta": 0.5, "max_spread": 8.0}
    assert with_settings(get_preset("default"), own) == get_preset("default").with_changes(**own)
    with pytest.raises(InputError, match="no parameter"):
        with_settings(get_preset("default"), {"kk": 4})


def test_a_hierarchical_model_without_whitening_is_refused() -> None:
    with pytest.raises(InputError, match="model='hierarchical' goes with"):
        get_preset("default").with_changes(whiten=False)


def test_the_default_beats_the_plain_baselines_where_base_classes_are_related() -> None:
    features = make_features(base=100, val=0, novel=20, rows=40, dim=64)
    results = evaluate(["simpleshot", "lr_l2", "bankless", "gdc"], features, Protocol(tasks=100))
    accuracy = {name: results.accuracy(name).mean() for name in results.correct}
    assert accuracy["gdc"] > max(v for name, v in accuracy.items() if name != "gdc")


def test_lda_is_fishers_with_the_shrunk_base_covariance(bank: BaseBank) -> None:
    method = make_method("lda").prepare(bank)
    x, y = support(4, 2)
    z = method.transform(x[0])[None]
    head = method.fit(TaskBatch(z, y, 4, TaskRandom(0)))
    base = method.transform(torch.from_numpy(rows()[0])).double().numpy()
    labels = rows()[1]
    means = np.stack([base[labels == c].mean(axis=0) for c in range(70)])
    centred = base - means[labels]
    freedom, d = len(base) - 70, 40
    s = centred.T @ centred / freedom
    t1, t2 = np.trace(s), np.trace(s @ s)
    share = min(0.99, ((1 - 2 / d) * t2 + t1**2) / ((freedom + 1 - 2 / d) * (t2 - t1**2 / d)))
    sigma = (1 - share) * s + share * t1 / d * np.eye(d)
    m = class_means(z, y, 4)[0].double().numpy()
    np.testing.assert_allclose(head.weight[0], m @ np.linalg.inv(sigma), rtol=1e-3, atol=1e-3)


def test_logistic_regression_in_the_span_is_that_of_all_features() -> None:
    x, y = support(4, 5, dim=60)
    whole = lbfgs_head(x, y, 4)
    span = bankless_logistic(x, y, 4)
    torch.testing.assert_close(span.weight, whole.weight, rtol=2e-2, atol=2e-3)
    twice = torch.cat([x, x], dim=1)  # rows that say the same
    assert bool(torch.isfinite(bankless_logistic(twice, torch.cat([y, y], dim=1), 4).weight).all())


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_examples_that_are_all_the_same_tell_nothing(value: float) -> None:
    x = np.full((5, 12), value, np.float32)
    np.testing.assert_allclose(GDCClassifier().fit(x, range(5)).predict_proba(x), 0.2, atol=1e-6)


def test_base_classes_that_hardly_differ_make_one_shot_answers_unsure() -> None:
    """How far cosines within a class exceed others is read from the bank."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(80), 50)
    noise = rng.normal(size=(len(labels), 40))
    centres = rng.normal(size=(80, 40))
    sure = []
    for apart in (0.3, 3.0):
        bank = BaseBank().fit((apart * centres[labels] + noise).astype(np.float32), labels)
        method = HierarchicalGDC(get_preset("default")).prepare(bank)
        cosines = method.prior.gap
        assert cosines == pytest.approx(apart**2 / (1 + apart**2), rel=0.15)
        new = apart * rng.normal(size=(200, 5, 1, 40)) + rng.normal(size=(200, 5, 4, 40))
        rows = method.transform(torch.from_numpy(new.reshape(-1, 40).astype(np.float32))).view(200, 5, 4, -1)
        batch = TaskBatch(rows[:, :, 0], torch.arange(5).expand(200, 5), 5, TaskRandom(0))
        head = method.fit(batch)
        queries = rows[:, :, 1:].reshape(200, 15, -1)
        found = head.logits(queries if head.width is None else queries[..., : head.width]).softmax(dim=-1)
        right = found.argmax(dim=-1) == torch.arange(5).repeat_interleave(3)
        sure.append((float(found.amax(dim=-1).mean()), float(right.float().mean())))
    (low, low_right), (high, high_right) = sure
    assert low == pytest.approx(low_right, abs=0.08)
    assert high == pytest.approx(high_right, abs=0.08)


@pytest.mark.parametrize("common", [100.0, 1000.0])
def test_rows_that_are_all_much_alike_are_told_apart_without_a_bank(common: float) -> None:
    """Hidden states of transformers have a common part that is much longer than what differs between texts."""
    x, y = rows(5, 20, dim=60, seed=2)
    x = x + common * np.ones(60, dtype=np.float32)
    head = Bankless().prepare(None)
    unit = head.transform(torch.from_numpy(x))
    examples = np.arange(100) % 20 < 5
    labels = torch.from_numpy(y)
    found = head.fit(TaskBatch(unit[examples][None], labels[examples][None], 5, TaskRandom(0))).logits(unit[None])[0]
    right = (found.argmax(dim=1) == labels)[~examples].float().mean()
    assert float(right) > 0.9


def test_a_saved_classifier_answers_alike_from_moments_alone(bank: BaseBank, tmp_path: Path) -> None:
    x, y = (t[0].numpy() for t in support(3, 3))
    fitted = GDCClassifier(bank).fit(x, y)
    loaded = GDCClassifier.load(fitted.save(tmp_path / "birds.fewcal"))
    assert loaded.bank.rank == 0
    np.testing.assert_allclose(loaded.predict_proba(x), fitted.predict_proba(x), atol=1e-4)
