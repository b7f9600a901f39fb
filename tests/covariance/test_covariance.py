"""Σ' and Σ'ₛ in structured form against dense matrices written from the equations."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

import reference
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, Calibrator
from fewcal.covariance import COVARIANCES, SHARES, CalibratedCovariance, base, shares, shrink_covariance
from fewcal.covariance.independent import Independent
from fewcal.errors import FewcalWarning, InputError
from fewcal.factor_gaussian import root
from small_worlds import SmallData, make_world


def found_in(world: SmallData, bank: BaseBank, k: int = 4) -> Calibration:
    return Calibrator(bank, k=k, m=0.5).calibrate(torch.from_numpy(world.support))


def expected_sigma(world: SmallData, mode: str, index: torch.Tensor, c: torch.Tensor, size: int = 0) -> np.ndarray:
    """Dense Σ' of every support point, `(T, S, D, D)`."""
    bases = [r.astype(np.float64) for r in world.base]
    size = size or min(map(len, bases))
    out = []
    for i, ci in zip(index.flatten(0, 1).tolist(), c.flatten(0, 1).double().numpy(), strict=True):
        chosen = [bases[j] for j in i]
        if mode == "joint":
            out.append(reference.joint_covariance(ci, chosen, size))
        elif mode == "independent":
            out.append(reference.independent_covariance(ci, chosen))
        else:
            out.append(reference.pooled_covariance(bases))
    d = out[0].shape[0]
    return np.array(out).reshape(*index.shape[:2], d, d)


def assert_near(got: torch.Tensor, expected: np.ndarray, tol: float = 2e-5) -> None:
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=0, atol=tol * np.abs(expected).max())


@pytest.mark.parametrize(("mode", "weights", "k"), list(itertools.product(COVARIANCES, SHARES, [1, 4])))
@pytest.mark.parametrize("whole", [True, False], ids=["all classes", "classes in play"])
def test_every_mode_and_share(
    world: SmallData, mode: str, weights: str, k: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(base, "ALL_CLASSES", 3)
    bank = world.bank()
    found = found_in(world, bank, k)
    c = shares(found, weights)
    for t, s in itertools.product(range(3), range(2)):
        w = found.weights[t, s].double().numpy()
        np.testing.assert_allclose(c[t, s], reference.shares(w, weights), rtol=1e-5)
    covariance = CalibratedCovariance(bank, mode, found.index, c)
    expected = expected_sigma(world, mode, found.index, c)

    factor = covariance.factor()
    assert_near(factor.mT @ factor, expected)

    d = bank.dim
    trace, total = np.trace(expected, axis1=-2, axis2=-1), expected.sum(axis=(-2, -1))
    scale = float(trace.max()) / d
    for off_diagonal, cells in (("pairs", d * (d - 1)), ("all", d * d)):
        sigma1, sigma2 = covariance.moments(off_diagonal)
        np.testing.assert_allclose(sigma1, trace / d, rtol=1e-4)
        np.testing.assert_allclose(sigma2, (total - trace) / cells, atol=1e-5 * scale)

    v = torch.randn(len(world.support), 5, d, generator=torch.Generator().manual_seed(0))
    product = v.double().numpy() @ expected.mean(axis=1)
    np.testing.assert_allclose(covariance.average_times(v), product, atol=1e-4 * np.abs(product).max())


@pytest.mark.parametrize("size", [2, 5])
def test_joint_with_a_common_size(world: SmallData, size: int) -> None:
    bank = world.bank()
    found = found_in(world, bank)
    c = shares(found)
    factor = CalibratedCovariance(bank, "joint", found.index, c, size).factor()
    assert factor.shape[-2] == size
    assert_near(factor.mT @ factor, expected_sigma(world, "joint", found.index, c, size))


def test_joint_counts_the_covariance_between_classes() -> None:
    """Two classes with the same rows, up to a shift: their sum varies twice as much as if they were independent."""
    rows = np.random.default_rng(0).normal(size=(30, 3))
    bank = BaseBank().fit(np.concatenate([rows, rows + 5]), [0] * 30 + [1] * 30)
    index, c = torch.tensor([[[0, 1]]]), torch.full((1, 1, 2), 0.5)
    joint, independent = (CalibratedCovariance(bank, mode, index, c).factor() for mode in ("joint", "independent"))
    torch.testing.assert_close(joint.mT @ joint, 2 * independent.mT @ independent, rtol=1e-4, atol=1e-5)
    one = reference.covariance(rows)
    assert_near((joint.mT @ joint)[0, 0], one)


@pytest.mark.parametrize(
    ("mode", "off_diagonal", "psd", "ratio"),
    list(itertools.product(COVARIANCES, ["pairs", "all"], ["clip", "eigen"], [0.0, 0.5, 100.0])),
)
@pytest.mark.parametrize("alpha1", [0.01, 3000.0])
def test_shrinkage(world: SmallData, mode: str, off_diagonal: str, psd: str, ratio: float, alpha1: float) -> None:
    bank = world.bank()
    found = found_in(world, bank)
    c = shares(found)
    covariance = CalibratedCovariance(bank, mode, found.index, c)
    plain = expected_sigma(world, mode, found.index, c)
    expected = np.array([[reference.shrink(s, alpha1, ratio, off_diagonal, psd) for s in task] for task in plain])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        shrunk = shrink_covariance(covariance, alpha1, ratio, off_diagonal=off_diagonal, psd=psd)
    got = shrunk.gaussian(found.mean)
    assert torch.equal(got.mean, found.mean)
    assert_near(got.dense(), expected, 2e-4)
    values = torch.linalg.eigvalsh(got.dense().double())
    assert values.min() >= -1e-5 * values.max()


def test_the_clip_warns_once_for_a_batch() -> None:
    world = make_world(0)
    bank = world.bank()
    found = found_in(world, bank)
    covariance = CalibratedCovariance(bank, "joint", found.index, shares(found))
    with pytest.warns(FewcalWarning, match=r"alpha2_ratio=1e\+06") as caught:
        shrink_covariance(covariance, 10.0, 1e6)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shrink_covariance(covariance, 10.0, 0.5)
        shrink_covariance(covariance, 10.0, 1e6, psd="eigen")


def test_a_constant_on_every_entry(world: SmallData) -> None:
    bank = world.bank()
    found = found_in(world, bank, 2)
    c = shares(found, "average")
    covariance = CalibratedCovariance(bank, "independent", found.index, c)
    got = shrink_covariance(covariance, 0.0, 0.0, constant=0.21).gaussian(found.mean)
    assert got.a is None
    assert_near(got.dense(), expected_sigma(world, "independent", found.index, c) + 0.21)
    with pytest.raises(InputError, match="alpha=-1 must be ≥ 0"):
        shrink_covariance(covariance, 0.0, 0.0, constant=-1)


def test_roots_of_singular_matrices() -> None:
    u = torch.tensor([1.0, 2.0, 3.0])
    dense = torch.stack([torch.eye(3), torch.outer(u, u), torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 1, -1e-5]))])
    found = root(dense)
    torch.testing.assert_close(found.mT @ found, dense.clamp(min=0) * (dense > 0), rtol=1e-4, atol=1e-4)


def test_shares_of_classes_infinitely_far() -> None:
    nothing = Calibration(torch.zeros(1, 2).long(), torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 3))
    for kind in ("with-support", "bases-only"):
        assert shares(nothing, kind).tolist() == [[0.0, 0.0]]


def test_refusals(relu_world: SmallData) -> None:
    bank = relu_world.bank()
    found = found_in(relu_world, bank)
    with pytest.raises(InputError, match="cov='diagonal' is unknown; use one of joint"):
        CalibratedCovariance(bank, "diagonal", found.index, found.weights)
    with pytest.raises(InputError, match="cov_weights='some' is unknown"):
        shares(found, "some")
    covariance = CalibratedCovariance(bank, "joint", found.index, shares(found))
    with pytest.raises(InputError, match="off_diagonal='most' is unknown"):
        covariance.moments("most")
    with pytest.raises(InputError, match="psd='hope' is unknown"):
        shrink_covariance(covariance, 1.0, 1.0, psd="hope")
    with pytest.raises(InputError, match="common_size=1000"):
        CalibratedCovariance(bank, "joint", found.index, shares(found), 1000).factor()


@pytest.mark.parametrize("mode", ["joint", "independent"])
@pytest.mark.parametrize("k", [1, 12])
def test_the_average_product_is_the_dense_one_however_many_classes_take_part(mode: str, k: int) -> None:
    rng = np.random.default_rng(0)
    bank = BaseBank().fit(rng.standard_normal((12 * 7, 9)), np.repeat(np.arange(12), 7))
    support = torch.from_numpy(rng.standard_normal((4, 3, 9))).float()
    found = Calibrator(bank, k=k, m=1.0).calibrate(support)
    covariance = CalibratedCovariance(bank, mode, found.index, shares(found))
    assert (covariance.strategy.classes.tasks_of_class is None) == (k == 12)  # both ways of computing it are compared
    v = torch.from_numpy(rng.standard_normal((4, 5, 9))).float()
    factor = covariance.factor()
    dense = (factor.mT @ factor).mean(dim=1)
    torch.testing.assert_close(covariance.average_times(v), v @ dense, rtol=1e-4, atol=1e-4)


def test_a_new_mode_is_one_class_and_one_entry(relu_world: SmallData, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(Independent):
        name = "doubled"

        def make_block(self) -> torch.Tensor:
            return 2 * super().make_block()

    monkeypatch.setitem(COVARIANCES, "doubled", Doubled)
    bank = relu_world.bank()
    found = found_in(relu_world, bank)
    one, two = (CalibratedCovariance(bank, mode, found.index, shares(found)) for mode in ("independent", "doubled"))
    v = torch.randn(len(relu_world.support), 2, bank.dim, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(two.average_times(v), 4 * one.average_times(v))
    torch.testing.assert_close(two.moments()[0], 4 * one.moments()[0])


@pytest.mark.parametrize(("rows", "half"), [(9, False), (2, False), (9, True)])
@pytest.mark.parametrize("n", [3, 60_000])
def test_noise_of_independent_classes_has_their_covariance(rows: int, half: bool, n: int) -> None:
    """A few points of few rows are drawn class by class, many by a root of the sum, which may have no inverse."""
    x = np.random.default_rng(0).normal(size=(4, rows, 5)).astype(np.float32)
    bank = BaseBank().fit(x.reshape(-1, 5), np.repeat(np.arange(4), rows))
    index, c = torch.tensor([[[2, 0], [3, 1]]]), torch.tensor([[[0.5, 1.0], [0.3, 0.7]]])
    strategy = CalibratedCovariance(bank, "independent", index, c).strategy
    source = strategy.noise_source(n, half)
    assert source is not None
    assert not (half and source[1])
    out = torch.full((1, 2, 60_000, 5), 3.0)
    strategy.add_noise(out, TaskRandom(0, [4]), source)
    for s in range(2):
        expected = reference.independent_covariance(c[0, s].double().numpy(), [x[i] for i in index[0, s].tolist()])
        np.testing.assert_allclose(torch.cov(out[0, s].T), expected, rtol=0.03, atol=0.06)
        np.testing.assert_allclose(out[0, s].mean(dim=0), 3.0, rtol=0, atol=0.03)


@pytest.mark.parametrize("n", [1, 40])
def test_points_of_a_task_do_not_depend_on_the_classes_that_others_name(n: int) -> None:
    """One point for each is drawn with the rows of its classes, forty with a root; few tasks name few classes."""
    world = make_world(2, tasks=9)
    bank = world.bank()
    found = found_in(world, bank, 2)

    def draw(at: slice) -> torch.Tensor:
        covariance = CalibratedCovariance(bank, "independent", found.index[at], shares(found, "average")[at])
        mean = found.mean[at]
        out = torch.empty(*mean.shape[:2], n, mean.shape[2])
        tasks = range(9)[at]
        shrink_covariance(covariance, 0.0, 0.0, constant=0.21).sample(mean, n, TaskRandom(0, tasks), out)
        return out

    torch.testing.assert_close(draw(slice(7, 8))[0], draw(slice(None))[7], rtol=1e-5, atol=1e-5)
