"""FactorGaussian against dense float64 arithmetic, its samples against its moments, and the analytic clip."""

from __future__ import annotations

import warnings
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import reference
from fewcal._utils.randomness import TaskRandom
from fewcal.covariance.shrinkage import main_axes
from fewcal.errors import FewcalWarning, InputError
from fewcal.factor_gaussian import CLIP_MARGIN, FactorGaussian, shrink


def make(
    batch: tuple[int, ...] = (2, 3), p: int = 4, d: int = 6, *, seed: int = 0, b: float = 0.3, dtype=torch.float64
) -> FactorGaussian:
    g = torch.Generator().manual_seed(seed)
    return FactorGaussian(
        torch.randn(*batch, d, generator=g, dtype=dtype),
        torch.randn(*batch, p, d, generator=g, dtype=dtype),
        torch.rand(batch, generator=g, dtype=dtype) + 0.5,
        b * torch.rand(batch, generator=g, dtype=dtype),
    )


SHAPES = [((), 0, 4), ((), 3, 5), ((2,), 7, 4), ((2, 3), 4, 6), ((2, 1, 2), 1, 1), ((1, 2), 12, 5)]


@pytest.mark.parametrize(("batch", "p", "d"), SHAPES)
@pytest.mark.parametrize("b", [0.3, -0.05])
def test_structured_arithmetic_is_that_of_the_dense_matrix(batch: tuple[int, ...], p: int, d: int, b: float) -> None:
    g = make(batch, p, d, b=b)
    eye = torch.eye(d, dtype=torch.float64)
    dense = torch.zeros(*batch, d, d, dtype=torch.float64)
    for at in np.ndindex(*batch):
        f = g.factor[at]
        dense[at] = f.T @ f + g.a[at] * eye + g.b[at]  # type: ignore[index]
    torch.testing.assert_close(g.dense(), dense)
    normal = torch.distributions.MultivariateNormal(g.mean, dense)
    x = torch.randn(*batch, 5, d, dtype=torch.float64)
    solved = torch.linalg.solve(dense, x.mT).mT
    torch.testing.assert_close(g.solve(x), solved)
    torch.testing.assert_close(g.logdet(), torch.logdet(dense))
    moved = x.movedim(-2, 0)
    torch.testing.assert_close(g.log_prob(x), normal.log_prob(moved).movedim(0, -1))


def test_single_precision_is_good_enough() -> None:
    g = make((3,), 8, 20, seed=1)
    single = FactorGaussian(*(t.float() for t in (g.mean, g.factor, g.a, g.b)))  # type: ignore[union-attr]
    x = torch.randn(3, 4, 20, dtype=torch.float64)
    torch.testing.assert_close(single.log_prob(x.float()).double(), g.log_prob(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["a and b", "b < 0", "no a", "no factor", "wide factor"])
def test_moments_of_200_000_samples(kind: str) -> None:
    """Mean and covariance within five standard errors, entry by entry."""
    n, d = 200_000, 4
    g = make((2, 2), {"no factor": 0, "wide factor": 9}.get(kind, 3), d, seed=3, b=-0.08 if kind == "b < 0" else 0.6)
    g = FactorGaussian(g.mean, g.factor, None if kind == "no a" else g.a, g.b)
    if kind == "b < 0":
        assert (g.b < 0).any()
    x = g.sample(n, TaskRandom(11, [0, 1]))
    assert x.shape == (2, 2, n, d)
    sigma = g.dense()
    variance = sigma.diagonal(dim1=-2, dim2=-1)
    assert ((x.mean(dim=-2) - g.mean).abs() < 5 * (variance / n).sqrt()).all()
    z = x - x.mean(dim=-2, keepdim=True)
    cov = z.mT @ z / (n - 1)
    error = ((variance[..., :, None] * variance[..., None, :] + sigma.square()) / n).sqrt()
    assert ((cov - sigma).abs() < 5 * error).all()


def test_samples_of_different_support_points_are_independent() -> None:
    g = make((1, 2), 3, 4, seed=5)
    x = g.sample(50_000, TaskRandom(0))[0]
    z = x - x.mean(dim=1, keepdim=True)
    cross = z[0].T @ z[1] / 50_000
    deviation = (z[0].square().mean(dim=0)[:, None] * z[1].square().mean(dim=0)[None] / 50_000).sqrt()
    assert (cross.abs() < 5 * deviation).all()


@pytest.mark.parametrize("n", [1, 255, 256, 257, 600])
@pytest.mark.parametrize("with_a", [True, False])
def test_samples_do_not_depend_on_the_batch(n: int, with_a: bool) -> None:
    g = make((4, 2), 3, 5, dtype=torch.float32)
    g = FactorGaussian(g.mean, g.factor, g.a if with_a else None, g.b)
    tasks = [5, 2, 9, 0]
    whole = g.sample(n, TaskRandom(1, tasks))
    for size in (1, 3):
        for i in range(0, 4, size):
            part = FactorGaussian(
                g.mean[i : i + size], g.factor[i : i + size], g.a[i : i + size] if with_a else None, g.b[i : i + size]
            )  # type: ignore[index]
            torch.testing.assert_close(part.sample(n, TaskRandom(1, tasks[i : i + size])), whole[i : i + size])
    assert not torch.equal(whole[0], whole[1])


def test_one_stream_for_everything() -> None:
    g = make((3,), 2, 4)
    assert torch.equal(g.sample(5, 7), g.sample(5, 7))
    assert not torch.equal(g.sample(5, 7), g.sample(5, 8))
    generator = torch.Generator().manual_seed(0)
    first, second = g.sample(5, generator), g.sample(5, generator)
    assert torch.equal(first, g.sample(5, torch.Generator().manual_seed(0)))
    assert not torch.equal(first, second)
    assert make((), 2, 4).sample(6, 0).shape == (6, 4)


def test_samples_go_into_a_given_slice() -> None:
    g = make((2, 3), 2, 4)
    out = torch.zeros(2, 5 + 12, 4, dtype=torch.float64)
    got = g.sample(4, TaskRandom(0, [0, 1]), out=out[:, 5:].view(2, 3, 4, 4))
    assert torch.equal(got, g.sample(4, TaskRandom(0, [0, 1])))
    assert torch.equal(out[:, 5:].reshape(2, 3, 4, 4), got)
    assert not out[:, :5].any()


def test_an_expanded_factor_is_used_as_it_is() -> None:
    f = torch.randn(5, 4)
    shared = FactorGaussian(torch.zeros(2, 3, 4), f.expand(2, 3, 5, 4), torch.ones(2, 3), torch.zeros(2, 3))
    copied = FactorGaussian(shared.mean, shared.factor.contiguous(), shared.a, shared.b)
    random = [TaskRandom(0, [0, 1]) for _ in range(2)]
    assert torch.equal(shared.sample(4, random[0]), copied.sample(4, random[1]))


def test_refusals() -> None:
    g = make()
    with pytest.raises(InputError, match="n=0 must be at least 1"):
        g.sample(0, TaskRandom(0, [0, 1]))
    with pytest.raises(InputError, match="3 random streams for 2 tasks"):
        g.sample(1, TaskRandom(0, [0, 1, 2]))
    with pytest.raises(InputError, match="out has shape"):
        g.sample(2, TaskRandom(0, [0, 1]), out=torch.zeros(2, 3, 1, 6, dtype=torch.float64))
    singular = FactorGaussian(g.mean, g.factor, None, g.b)
    for call in (singular.logdet, lambda: singular.solve(g.mean[..., None, :])):
        with pytest.raises(InputError, match="no inverse in general; use alpha1 > 0"):
            call()


# ---- memory -----------------------------------------------------------------------------------------------------


class PeakMemory(TorchDispatchMode):
    """Bytes of all storages that came to life under this mode, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = {t.untyped_storage()._cdata for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in tree_flatten(out)[0]:
            if not isinstance(t, torch.Tensor):
                continue
            storage = t.untyped_storage()
            key = storage._cdata
            if key in given or key in self.live:
                continue
            self.live[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key)
        return out

    def _gone(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


def test_the_memory_counter_counts() -> None:
    with PeakMemory() as memory:
        a = torch.zeros(1000)
        b = a.view(10, 100) + 1
        assert memory.now == 8000
        del a
        assert memory.now == 4000
        b.mul_(2)
    assert (memory.now, memory.peak) == (4000, 8000)


@pytest.mark.parametrize("isotropic", [True, False])
def test_all_distributions_at_once_as_on_a_gpu(isotropic: bool) -> None:
    """The work of a GPU on this CPU: two tasks of two points each, in one piece."""
    random = torch.Generator().manual_seed(0)
    mean, factor = torch.randn(2, 2, 4, generator=random), torch.randn(2, 2, 3, 4, generator=random)
    a = torch.rand(2, 2, generator=random) if isotropic else None
    g = FactorGaussian(mean, factor, a, torch.rand(2, 2, generator=random))
    out = torch.empty(2, 2, 50_000, 4)
    g._draw(out, TaskRandom(0, [0, 1]))
    torch.testing.assert_close(out.mean(dim=2), mean, rtol=0, atol=0.08)
    centred = out - out.mean(dim=2, keepdim=True)
    torch.testing.assert_close(centred.mT @ centred / 50_000, g.dense(), rtol=0.03, atol=0.12)


def low_rank_world(d: int = 60, p: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """A factor `(P, D)` with a falling spectrum, and the covariance that its kind has."""
    deviation = 0.8 ** torch.arange(d)
    turn = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1))).Q
    factor = torch.randn(p, d, generator=torch.Generator().manual_seed(2)) / p**0.5 * deviation @ turn.T
    return factor, (turn * deviation**2) @ turn.T


def test_compressed_covariances_are_the_same_in_every_direction_where_shrinkage_outweighs() -> None:
    factor, kind = low_rank_world()
    g = FactorGaussian(torch.zeros(60), factor, torch.tensor(0.05), torch.tensor(0.01))
    small = g.compressed(main_axes(kind, 50), n=2000)
    assert small.factor.shape == (32, 60)
    lower = torch.linalg.cholesky(g.dense().double())
    change = torch.linalg.solve(lower, (small.dense() - g.dense()).double())
    relative = torch.linalg.eigvalsh(torch.linalg.solve(lower, change.mT))
    assert float(relative.abs().max()) < 4e-3
    torch.testing.assert_close(small.dense().trace(), g.dense().trace())


def test_nothing_is_compressed_where_it_saves_nothing_or_shrinkage_is_small() -> None:
    factor, kind = low_rank_world()
    axes = main_axes(kind, 50)
    g = FactorGaussian(torch.zeros(60), factor, torch.tensor(0.05), torch.tensor(0.01))
    assert g.compressed(axes, n=20) is g
    slight = FactorGaussian(g.mean, factor, torch.tensor(1e-14), g.b)
    assert slight.compressed(axes, n=2000) is slight
    bare = FactorGaussian(g.mean, factor, None, g.b)
    assert bare.compressed(axes, n=2000) is bare


def test_compressed_points_have_the_moments_and_do_not_depend_on_the_batch() -> None:
    factor, kind = low_rank_world()
    g = FactorGaussian(torch.ones(2, 1, 60), factor.expand(2, 1, 300, 60), torch.full((2, 1), 0.05), torch.zeros(2, 1))
    axes = main_axes(kind, 50)
    x = g.compressed(axes, 30_000).sample(30_000, TaskRandom(0, [3, 4]))
    assert torch.equal(g[1:].compressed(axes, 30_000).sample(30_000, TaskRandom(0, [4])), x[1:])
    assert not torch.equal(g.sample(30_000, TaskRandom(0, [3, 4])), x)
    torch.testing.assert_close(x.mean(dim=2), g.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cov(x[0, 0].T), g.dense()[0, 0], rtol=0, atol=0.03)


def test_main_axes_are_those_of_the_largest_variance() -> None:
    _, kind = low_rank_world()
    variances, columns = main_axes(kind, 8)
    torch.testing.assert_close(
        variances, torch.linalg.eigvalsh(kind).flip(0)[:8] / kind.diagonal().mean(), rtol=1e-3, atol=0
    )
    torch.testing.assert_close(columns.mT @ columns, torch.eye(8), rtol=0, atol=1e-5)


def test_peak_memory_of_sampling() -> None:
    """The samples themselves and little more, though a covariance would take 10 MB for each support point."""
    d, p, n, s = 1600, 600, 750, 5
    g = FactorGaussian(torch.zeros(1, s, d), torch.randn(1, s, p, d) / p**0.5, torch.ones(1, s), torch.zeros(1, s))
    with PeakMemory() as memory:
        x = g.sample(n, TaskRandom(0))
    size = x.numel() * 4
    assert size <= memory.peak < 2 * size


# ---- shrinkage --------------------------------------------------------------------------------------------------


def spectrum(p: int, d: int, seed: int, sign: float) -> torch.Tensor:
    """A factor whose off-diagonal covariances lean one way."""
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(p, d)) + sign * rng.normal(size=(p, 1))
    if sign < 0:
        f -= f.mean(axis=1, keepdims=True)  # rows that sum to zero: the mean off-diagonal covariance is negative
    return torch.from_numpy(f)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 8),
    st.integers(2, 8),
    st.floats(0, 1e5),
    st.floats(0, 1e4),
    st.sampled_from([-1.0, 0.0, 1.0, 3.0]),
    st.integers(0, 10**6),
)
def test_the_clip_keeps_any_shrunk_covariance_positive(
    p: int, d: int, alpha1: float, ratio: float, sign: float, seed: int
) -> None:
    f = spectrum(p, d, seed, sign)
    sigma = f.T @ f
    sigma1 = sigma.trace() / d
    sigma2 = (sigma.sum() - sigma.trace()) / (d * (d - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        a, b = shrink(sigma1, sigma2, d, alpha1, ratio)
    dense = FactorGaussian(torch.zeros(d, dtype=torch.float64), f, a, b).dense()
    values = torch.linalg.eigvalsh(dense)
    assert values[0] >= -1e-9 * values[-1].clamp(min=1)
    expected = reference.shrink(sigma.numpy(), alpha1, ratio, "pairs", "clip")
    np.testing.assert_allclose(dense, expected, rtol=1e-6, atol=1e-9 * float(values[-1]))


def test_the_clip_warns_once_and_names_the_value() -> None:
    with pytest.warns(FewcalWarning, match=r"alpha2_ratio=50 .*clipped.*lower alpha2_ratio") as caught:
        a, b = shrink(torch.ones(4), torch.full((4,), 0.1), 10, 3.0, 50.0)
    assert len(caught) == 1
    assert b.tolist() == pytest.approx([3.0 * (1 - CLIP_MARGIN)] * 4)
    assert a.tolist() == pytest.approx([3.0 * CLIP_MARGIN] * 4, rel=1e-3)


@pytest.mark.parametrize("sigma2", [0.09, -0.01, 0.0])
def test_nothing_is_said_when_nothing_is_clipped(sigma2: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a, b = shrink(torch.ones(3), torch.full((3,), sigma2), 10, 3.0, 10.0)
    assert b.tolist() == pytest.approx([30 * sigma2] * 3)
    assert a.tolist() == pytest.approx([3 - 30 * sigma2] * 3)


def test_without_clip_the_numbers_are_as_asked() -> None:
    a, b = shrink(torch.tensor(1.0), torch.tensor(0.5), 4, 2.0, 10.0, clip=False)
    assert (a.item(), b.item()) == (-8.0, 10.0)


@pytest.mark.parametrize(
    ("alpha1", "ratio", "words"),
    [
        (-1, 0, "alpha1=-1 must be a finite number ≥ 0"),
        (float("inf"), 0, "alpha1=inf"),
        (float("nan"), 0, "alpha1=nan"),
        (1, -2, "alpha2_ratio=-2 must be a finite number ≥ 0"),
        (1, float("nan"), "alpha2_ratio=nan"),
    ],
)
def test_bad_alphas(alpha1: float, ratio: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        shrink(torch.ones(1), torch.ones(1), 3, alpha1, ratio)


def test_eigenvalue_clipping_is_the_projection() -> None:
    g = FactorGaussian(torch.zeros(2, 5), torch.randn(2, 2, 5), torch.tensor([-0.5, 0.2]), torch.tensor([0.1, -0.4]))
    before = torch.linalg.eigvalsh(g.dense())
    assert (before[:, 0] < 0).all()
    clipped = g.eigen_clipped()
    expected = np.stack([reference.clip_eigenvalues(s.double().numpy()) for s in g.dense()])
    np.testing.assert_allclose(clipped.dense(), expected, atol=1e-5)
    assert torch.equal(clipped.mean, g.mean)
    assert clipped.sample(3, TaskRandom(0, [0, 1])).isfinite().all()


def test_eigenvalue_clipping_leaves_a_positive_covariance_alone() -> None:
    g = make()
    torch.testing.assert_close(g.eigen_clipped().dense(), g.dense())
