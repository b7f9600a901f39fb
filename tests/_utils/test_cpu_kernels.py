"""Loops in C give what plain operations give."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from conftest import make_world
from fewcal._utils import cpu_kernels
from fewcal._utils.randomness import TaskRandom, fill_normal
from fewcal.factor_gaussian import FactorGaussian
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.heads.sgd import sgd_head
from fewcal.methods.base import TaskBatch
from fewcal.methods.dc import DC

needs_kernels = pytest.mark.skipif(
    cpu_kernels.kernels(torch.zeros(1 << 10, 1 << 10), 2) is None, reason="no C compiler, or no AVX2"
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_WORTH_IT", 0)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a process that has compiled nothing, for a user who has neither."""
    monkeypatch.setattr(cpu_kernels, "_made", [])
    monkeypatch.setattr(cpu_kernels, "_WORTH_IT", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fewcal"


def points(n_classes: int, per: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(n_classes * per) % n_classes
    centres = torch.randn(n_classes, dim, generator=random)
    return (centres[labels] + torch.randn(2, len(labels), dim, generator=random)), labels.expand(2, -1)


def largest_slope(head: LinearHead, x: torch.Tensor, labels: torch.Tensor, C: float = 1.0) -> float:
    """The largest entry of the gradient of logistic regression, in double precision."""
    weight, bias = head.weight.double().requires_grad_(), head.bias.double().requires_grad_()
    logits = x.double() @ weight.mT + bias[:, None]
    loss = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none").mean(dim=1).sum()
    (loss + weight.square().sum() / (2 * C * x.shape[1])).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    return max(float(weight.grad.abs().max()), float(bias.grad.abs().max()))


@needs_kernels
@pytest.mark.parametrize(("n_classes", "dim"), [(2, 3), (3, 8), (5, 20), (6, 16), (7, 9), (11, 33), (16, 24)])
def test_sgd_is_that_of_plain_operations(
    n_classes: int, dim: int, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = points(n_classes, 9, dim)

    def head() -> torch.Tensor:
        return sgd_head(x, labels, n_classes, TaskRandom(0, [3, 4]), batch_size=20, epochs=7).logits(x)

    fused = head()
    monkeypatch.setenv("FEWCAL_PLAIN_CPU", "1")
    torch.testing.assert_close(fused, head(), rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize(("n_classes", "dim"), [(2, 3), (5, 20), (12, 17)])
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("with_metric", [False, True])
def test_lbfgs_ends_where_the_true_gradient_is_small(
    n_classes: int, dim: int, scale: float, with_metric: bool, always: None
) -> None:
    x, labels = points(n_classes, 30, dim)
    x, C, tol = scale * x, 0.1 / scale**2, 2e-4 * scale  # below it float32 has no more to say
    metric = torch.linalg.inv(torch.eye(dim) + x[0].T @ x[0] / x.shape[1]) if with_metric else None
    head = lbfgs_head(x, labels, n_classes, C=C, tol=tol, max_iter=1000, metric=metric)
    assert largest_slope(head, x, labels, C) <= 1.1 * tol


@needs_kernels
def test_a_task_is_the_same_alone(always: None) -> None:
    x, labels = points(5, 11, 20)
    both, alone = lbfgs_head(x, labels, 5), lbfgs_head(x[1:], labels[1:], 5)
    assert torch.equal(both.weight[1], alone.weight[0])
    both, alone = (sgd_head(x[i:], labels[i:], 5, TaskRandom(0, [0, 1][i:]), epochs=3) for i in (0, 1))
    assert torch.equal(both.weight[1], alone.weight[0])


@needs_kernels
def test_what_was_compiled_is_kept(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(8, 4)
    assert cpu_kernels.kernels(x, 3) is not None
    assert [path.suffix for path in fresh.iterdir()] == [".so"]
    assert fresh.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(cpu_kernels, "_made", [])
    monkeypatch.setattr(subprocess, "run", None)  # not called again
    assert cpu_kernels.kernels(x, 3) is not None


@needs_kernels
def test_a_folder_that_others_write_to_is_not_used(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    assert cpu_kernels.kernels(torch.zeros(8, 4), 3) is not None
    assert not list(fresh.iterdir())


@pytest.mark.parametrize("compiler", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 0\n", "no program"])
def test_without_a_compiler_that_works_there_are_none(
    compiler: str, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cc").write_text(compiler)
    (folder / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert cpu_kernels.kernels(torch.zeros(8, 4), 3) is None


@needs_kernels
@pytest.mark.parametrize(("n_classes", "m"), [(2, 1), (3, 8), (17, 63), (20, 64), (33, 200)])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_a_look_by_logits_is_that_of_definitions(n_classes: int, m: int, scale: float) -> None:
    kernels = cpu_kernels.look_kernels(torch.zeros(1, 1 << 8, 1 << 8))
    assert kernels is not None
    random = torch.Generator().manual_seed(0)
    logits, along = (scale * torch.randn(n_classes, m, generator=random) for _ in range(2))
    sums, found = torch.full((3,), torch.nan, dtype=torch.float64), torch.full_like(logits, torch.nan)
    kernels.look(logits, along, 0.3, sums, found)
    z = (logits + torch.tensor(0.3) * along).double()
    p, change = torch.softmax(z, dim=0), along.double()
    slope = (p * change).sum(dim=0)
    bend = (p * change.square()).sum(dim=0) - slope.square()
    expected = torch.stack([torch.logsumexp(z, dim=0).sum(), slope.sum(), bend.sum()])
    torch.testing.assert_close(found.double(), p, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-4 * m * scale**2)


@needs_kernels
def test_lbfgs_of_many_classes_ends_at_the_minimum_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = points(20, 12, 16)
    monkeypatch.setattr(cpu_kernels, "_MANY_LOGITS", 0)
    looks: list[int] = []
    look = cpu_kernels.Kernels.look
    monkeypatch.setattr(cpu_kernels.Kernels, "look", lambda *a: (looks.append(1), look(*a))[1])
    fused = lbfgs_head(x, labels, 20)
    assert looks
    looks.clear()
    monkeypatch.setenv("FEWCAL_PLAIN_CPU", "1")
    plain = lbfgs_head(x, labels, 20)
    assert not looks
    assert max(largest_slope(head, x, labels) for head in (fused, plain)) < 1.2e-4
    torch.testing.assert_close(fused.weight, plain.weight, atol=0.02, rtol=0.05)


def test_none_for_other_points(always: None) -> None:
    x = torch.zeros(8, 4)
    assert cpu_kernels.kernels(x.double(), 3) is None
    assert cpu_kernels.kernels(x, 17) is None
    assert cpu_kernels.kernels(torch.zeros(8, 1 << 14), 3) is None
    assert cpu_kernels.look_kernels(torch.zeros(1, 5, 100)) is None
    assert cpu_kernels.look_kernels(torch.zeros(1, 1 << 8, 1 << 8).double()) is None


@needs_kernels
@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 3])
def test_random_numbers_are_those_of_plain_operations(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fill_normal(torch.empty(size), torch.Generator().manual_seed(5))
    monkeypatch.setenv("FEWCAL_PLAIN_CPU", "1")
    assert torch.equal(fused, fill_normal(torch.empty(size), torch.Generator().manual_seed(5)))


@needs_kernels
@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("dim", [5, 16, 43])
def test_points_are_those_of_plain_operations(isotropic: bool, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_MANY_DRAWN", 0)
    random = torch.Generator().manual_seed(0)
    mean, factor = torch.randn(2, 3, dim, generator=random), torch.randn(2, 3, 4, dim, generator=random)
    a, b = torch.tensor([[1.0, 2.0, 0.5], [0.1, 1.0, 3.0]]), torch.full((2, 3), 0.3)
    gaussian = FactorGaussian(mean, factor, a if isotropic else None, b)
    fused = gaussian.sample(11, TaskRandom(0, [3, 4]))
    monkeypatch.setenv("FEWCAL_PLAIN_CPU", "1")
    plain = gaussian.sample(11, TaskRandom(0, [3, 4]))
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize(("n_classes", "dim"), [(2, 3), (5, 16), (12, 37)])
def test_weights_times_a_symmetric_matrix(n_classes: int, dim: int) -> None:
    kernels = cpu_kernels.number_kernels(torch.empty(1 << 18))
    assert kernels is not None
    random = torch.Generator().manual_seed(0)
    weight, matrix = torch.randn(n_classes - 1, dim, generator=random), torch.randn(dim, dim, generator=random)
    matrix = matrix + matrix.T
    out = torch.full((n_classes, dim + 1), 7.0)
    kernels.times_symmetric(weight, matrix, out)
    expected = weight.double() @ matrix.double()
    torch.testing.assert_close(out[:-1, :-1].double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out[-1, :-1].double(), -expected.sum(dim=0), rtol=1e-5, atol=1e-4)
    assert (out[:, -1] == 7).all()


@needs_kernels
@pytest.mark.parametrize(("rows", "dim"), [(1, 3), (7, 16), (150, 37)])
def test_a_product_with_a_triangle(rows: int, dim: int) -> None:
    kernels = cpu_kernels.number_kernels(torch.empty(1 << 18))
    assert kernels is not None
    random = torch.Generator().manual_seed(0)
    out, latent = torch.randn(2, rows, dim, generator=random)
    upper = torch.randn(dim, dim, generator=random).triu()
    expected = out.double() + latent.double() @ upper.double()
    kernels.add_triangular(out, latent, cpu_kernels.panels_of(upper))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("shots", [1, 3])
def test_dc_finds_the_minimum_on_the_points_of_plain_operations(
    shots: int, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_kernels, "_MANY_DRAWN", 0)
    world = make_world(0, dim=24, tasks=2, ways=4, shots=shots)
    dc = DC(n=120)
    dc.prepare(world.bank())
    support = dc.transform(torch.from_numpy(world.support).flatten(0, 1)).view(2, 4 * shots, -1)
    drawn: list[int] = []
    product = cpu_kernels.Kernels.add_triangular
    monkeypatch.setattr(cpu_kernels.Kernels, "add_triangular", lambda *a: (drawn.append(1), product(*a)))

    def batch() -> TaskBatch:
        return TaskBatch(support, torch.from_numpy(world.labels), 4, TaskRandom(0, [3, 4]))

    head, fused = dc.fit(batch()), dc.calibrated(batch()).points()
    assert drawn
    monkeypatch.setenv("FEWCAL_PLAIN_CPU", "1")
    x, labels = dc.calibrated(batch()).points()
    torch.testing.assert_close(fused[0], x, rtol=1e-4, atol=1e-4)
    assert largest_slope(head, x, labels) <= 1.1e-4
