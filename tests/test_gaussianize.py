"""Power transforms against SciPy and the reference, the automatic choice, and fitting in chunks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import yeojohnson

import reference
from fewcal.errors import InputError
from fewcal.gaussianize import (
    Gaussianization,
    GaussianizationFitter,
    fit_gaussianization,
    l2_normalise,
    limit_scale,
    signed_power,
    tukey,
    yeo_johnson,
)

LAMBDAS = [-2, -0.5, 0, 1e-9, 1e-4, 0.3, 0.5, 0.999999, 1, 1.000001, 1.5, 2 - 1e-4, 2 - 1e-9, 2, 2.5, 4]
GRID = np.concatenate([-np.geomspace(1e-6, 20, 40)[::-1], [0.0], np.geomspace(1e-6, 20, 40)])


@pytest.mark.parametrize("beta", LAMBDAS)
def test_yeo_johnson_is_scipys(beta: float) -> None:
    expected = yeojohnson(GRID, beta)
    double = yeo_johnson(torch.from_numpy(GRID), beta).numpy()
    np.testing.assert_allclose(double, expected, rtol=1e-10, atol=1e-14)
    single = yeo_johnson(torch.from_numpy(GRID).float(), beta).numpy()
    np.testing.assert_allclose(single, expected, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("beta", [-2, 0, 0.3, 0.5, 1, 1.5, 2, 2.5, 4])
def test_reference_and_scipy_agree(beta: float) -> None:
    np.testing.assert_allclose(reference.yeo_johnson(GRID, beta), yeojohnson(GRID, beta), rtol=1e-7, atol=1e-9)


@settings(deadline=None)
@given(st.floats(-3, 5), st.lists(st.floats(-50, 50), min_size=2, max_size=20))
def test_yeo_johnson_is_monotone_and_keeps_the_sign(beta: float, values: list[float]) -> None:
    x = torch.tensor(sorted(values), dtype=torch.float64)
    z = yeo_johnson(x, beta)
    assert torch.isfinite(z).all()
    assert (z.diff() >= 0).all()
    assert (z[x > 0] >= 0).all()
    assert (z[x < 0] <= 0).all()


@pytest.mark.parametrize("beta", [-1, 0, 0.25, 0.5, 0.75, 1, 2, 3])
def test_tukey_is_the_equation(beta: float) -> None:
    x = np.concatenate([[0.0], np.geomspace(1e-4, 30, 50)])
    z = tukey(torch.from_numpy(x), beta).numpy()
    assert np.isfinite(z).all()
    np.testing.assert_allclose(z, reference.tukey(x, beta), rtol=1e-12)


def test_tukey_at_zero_uses_eps() -> None:
    assert tukey(torch.zeros(1, dtype=torch.float64), 0.0, 1e-3).item() == pytest.approx(math.log(1e-3))
    assert torch.isfinite(tukey(torch.zeros(1), -1.0)).all()


@settings(deadline=None)
@given(st.floats(0, 3), st.lists(st.floats(0, 50), min_size=2, max_size=20))
def test_tukey_is_monotone(beta: float, values: list[float]) -> None:
    z = tukey(torch.tensor(sorted(values), dtype=torch.float64), beta)
    assert torch.isfinite(z).all()
    assert (z.diff() >= 0).all()


def test_unit_rows() -> None:
    x = torch.randn(5, 7) * 1e3
    x[2] = 0
    z = l2_normalise(x)
    assert z.norm(dim=1).tolist() == pytest.approx([1, 1, 0, 1, 1])


# ---- the automatic choice -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "kind"),
    [([[0.0, 1.0]], "tukey"), ([[0.0, -1e-6], [2.0, 3.0]], "yeo-johnson"), ([[-0.0, 2.0]], "tukey")],
)
def test_tukey_only_if_every_base_feature_is_nonnegative(rows: list, kind: str) -> None:
    assert fit_gaussianization(torch.tensor(rows)).kind == kind


def test_the_choice_is_remembered() -> None:
    on_signed = fit_gaussianization(torch.tensor([[-1.0, 2.0]]), beta=0.5)
    x = torch.tensor([[3.0, 8.0]])
    assert torch.equal(on_signed(x), yeo_johnson(x, 0.5))  # though x itself is ≥ 0


def test_negative_features_under_tukey_are_refused() -> None:
    g = fit_gaussianization(torch.rand(4, 3), beta=0.5)
    with pytest.raises(InputError, match=r"query has negative features \(smallest -0.25\).*yeo-johnson"):
        g(torch.tensor([[1.0, -0.25, 0.0]]), "query")
    identity = fit_gaussianization(torch.rand(4, 3), beta=1.0)
    assert identity(torch.tensor([[-1.0, 0.0, 0.0]])).tolist() == [[-1.0, 0.0, 0.0]]


@pytest.mark.parametrize("center", [False, True])
def test_tukey_on_negative_base_features_is_refused(center: bool) -> None:
    with pytest.raises(InputError, match=r"kind='tukey' with negative base features \(smallest -2\)"):
        fit_gaussianization(torch.tensor([[1.0, -2.0]]), 0.5, "tukey", center)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"kind": "boxcox"}, "kind='boxcox' is unknown; use one of auto"),
        ({"beta": 11}, "beta=11 is out of range"),
        ({"beta": float("nan")}, "beta=nan is out of range"),
        ({"eps": 0}, "eps=0 must be > 0"),
    ],
)
def test_bad_settings(settings_: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        GaussianizationFitter(**settings_)


def test_no_rows() -> None:
    with pytest.raises(InputError, match="no base rows"):
        GaussianizationFitter().finish()


# ---- the whole map --------------------------------------------------------------------------------------------


def test_steps_come_in_order() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.random((6, 4)), rng.normal(size=(4, 4))
    mean = reference.tukey(x, 0.5).mean(axis=0)
    g = Gaussianization("tukey", 0.5, mean=torch.from_numpy(mean), l2=True, whitening=torch.from_numpy(w))
    expected = reference.unit_rows(reference.unit_rows(np.sqrt(x) - mean) @ w)
    np.testing.assert_allclose(g(torch.from_numpy(x)).numpy(), expected, rtol=1e-12)
    assert g.settings() == {
        "kind": "tukey",
        "beta": 0.5,
        "eps": 1e-6,
        "center": True,
        "scaled": False,
        "l2": True,
        "whitened": True,
    }
    assert torch.equal(g.to("cpu")(torch.from_numpy(x)), g(torch.from_numpy(x)))


def test_shift_is_subtracted_in_double_precision_and_added_again() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))
    shift = torch.full((3,), 1e8, dtype=torch.float64)
    g = fit_gaussianization(x, 0.5, center=True).with_shift(shift)
    torch.testing.assert_close(g(x + shift), g.apply(x.float()), rtol=1e-5, atol=1e-6)
    assert g.mean is not None
    torch.testing.assert_close(g.inverse(g(x + shift).double()) - shift, x, rtol=1e-4, atol=1e-6)
    stored = {f"transform.{name}": t for name, t in g.tensors().items()}
    again = Gaussianization.from_settings(g.settings(), stored)
    assert torch.equal(again(x + shift), g(x + shift))


def test_none_leaves_features_alone() -> None:
    x = torch.randn(3, 2)
    assert torch.equal(fit_gaussianization(x, beta=0.5, kind="none")(x), x)


@settings(deadline=None)
@given(
    st.integers(1, 30),
    st.lists(st.integers(0, 30), max_size=4),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.integers(0, 2**31),
)
def test_chunks_and_merges_equal_one_pass(n: int, cuts: list[int], signed: bool, beta: float, seed: int) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).random((n, 3)))
    if signed:
        x[n // 2] -= 0.5  # the negative features may come in any chunk
    whole = fit_gaussianization(x, beta, center=True, l2=True)
    edges = [0, *sorted(min(c, n) for c in cuts), n]
    pieces = [x[i:j] for i, j in itertools.pairwise(edges)]
    fitter = GaussianizationFitter(beta, center=True, l2=True)
    merged = GaussianizationFitter(beta, center=True, l2=True)
    for piece in pieces:
        fitter.update(piece)
        merged.merge(GaussianizationFitter(beta, center=True, l2=True).update(piece))
    for got in (fitter.finish(), merged.finish()):
        assert got.settings() == whole.settings()
        assert got.mean is not None
        torch.testing.assert_close(got.mean, whole.mean)


def test_fitters_with_different_settings_do_not_merge() -> None:
    one = GaussianizationFitter(0.5, center=True).update(torch.rand(2, 2))
    for other in (
        GaussianizationFitter(0.3, center=True),
        GaussianizationFitter(0.5),
        GaussianizationFitter(0.5, l2=True),
    ):
        with pytest.raises(InputError, match="different settings"):
            one.merge(other.update(torch.rand(2, 2)))


# ---- powers of both signs -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0.1, 3), st.lists(st.floats(-50, 50), min_size=2, max_size=20))
def test_signed_powers_are_odd_monotone_and_undone(beta: float, values: list[float]) -> None:
    x = torch.tensor(sorted(values), dtype=torch.float64)
    z = signed_power(x, beta)
    np.testing.assert_allclose(z.numpy(), reference.signed_power(x.numpy(), beta), rtol=1e-12)
    assert torch.equal(signed_power(-x, beta), -z)
    assert (z.diff() >= 0).all()
    back = Gaussianization("signed-power", beta).inverse(z)
    large = x.abs() > 1e-3  # smaller ones may underflow
    np.testing.assert_allclose(back[large].numpy(), x[large].numpy(), rtol=1e-6)


def test_signed_powers_shorten_both_tails_where_yeo_johnson_makes_one_longer() -> None:
    x = torch.tensor([[-9.0], [9.0]])
    both = fit_gaussianization(x, 0.5, "signed-power")(x).abs()
    one = fit_gaussianization(x, 0.5, "yeo-johnson")(x).abs()
    assert float(both[0]) == float(both[1]) == 3.0
    assert float(one[1]) < 9 < float(one[0])


@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_signed_powers_need_a_positive_power(beta: float) -> None:
    with pytest.raises(InputError, match="must be > 0 for kind='signed-power'"):
        fit_gaussianization(torch.randn(4, 2), beta, "signed-power")


# ---- features that spread far more than others ----------------------------------------------------------------------


def test_deviations_are_limited_as_in_the_reference() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, [1.0, 2.0, 3.0, 50.0, 0.0, 900.0], size=(400, 6))
    g = fit_gaussianization(torch.from_numpy(x), 1.0, center=True, spread=4.0)
    assert g.scale is not None
    np.testing.assert_allclose(g.scale.numpy(), reference.spread_scale(x, 4.0), rtol=1e-5)
    deviation = g(torch.from_numpy(x)).std(dim=0, correction=0)
    assert deviation.max() / deviation[2] == pytest.approx(4.0, rel=1e-5)
    np.testing.assert_allclose(g.inverse(g(torch.from_numpy(x))).numpy(), x, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.floats(1, 1e6), st.sampled_from([1.0, 0.5, 0.25]), st.booleans())
def test_limited_feature_is_the_same_at_every_scale(times: float, beta: float, signed: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 5)) if signed else rng.random((60, 5))
    x[:, 2] *= 10**6  # above the cap for every power
    larger = x.copy()
    larger[:, 2] *= times
    kind = "signed-power" if signed else "tukey"
    seen = [fit_gaussianization(torch.from_numpy(v), beta, kind, True, True, spread=4.0) for v in (x, larger)]
    rows, again = (g(torch.from_numpy(v)).numpy() for g, v in zip(seen, (x, larger), strict=True))
    np.testing.assert_allclose(again, rows, rtol=2e-4, atol=1e-6)


def test_limit_scale_of_similar_deviations_changes_nothing() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    capped, plain = fit_gaussianization(x, spread=4.0), fit_gaussianization(x)
    assert capped.scale is None
    assert torch.equal(capped(x), plain(x))
    assert limit_scale(torch.zeros(3), 4.0) is None  # constant features


def test_limit_scale_in_chunks_equals_one_fit() -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1.0, 2.0, 1.0, 99.0])
    whole = fit_gaussianization(x, 1.0, center=True, spread=4.0)
    parts = [GaussianizationFitter(1.0, center=True, spread=4.0).update(part) for part in x.split(7)]
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    assert whole.scale is not None
    torch.testing.assert_close(merged.finish().scale, whole.scale)
    with pytest.raises(InputError, match="different settings"):
        merged.merge(GaussianizationFitter(1.0, center=True))


def test_constant_features_do_not_count_in_the_median() -> None:
    """Sums of thousands of equal squares are rounded: what is left of them as a variance is no spread."""
    g = torch.Generator().manual_seed(0)
    constant = (10 * torch.randn(2000, generator=g)).expand(10007, -1)
    fitter = GaussianizationFitter(1.0, center=True, spread=4.0)
    for part in torch.cat([torch.randn(10007, 3, generator=g), constant], dim=1).split(997):
        fitter.update(part)
    assert fitter.finish().scale is None


@pytest.mark.parametrize("spread", [0.5, 0.0, -1.0, math.nan])
def test_limit_of_the_deviation_below_the_median_is_refused(spread: float) -> None:
    with pytest.raises(InputError, match=r"spread=.* must be ≥ 1"):
        fit_gaussianization(torch.randn(4, 2), spread=spread)
