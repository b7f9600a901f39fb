"""CPU and GPU give the same answers. Skipped where there is no CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.evaluation import Protocol, evaluate
from fewcal.factor_gaussian import FactorGaussian, add_stacked
from fewcal.features.synthetic import make_features
from fewcal.heads import lbfgs_head, sgd, two_loop
from fewcal.methods import make_method

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DETERMINISTIC = {
    "ncm": lambda: make_method("ncm"),
    "simpleshot": lambda: make_method("simpleshot"),
    "lr": lambda: make_method("lr"),
    "lr-gauss": lambda: make_method("lr-gauss"),
    "cosine": lambda: make_method("cosine"),
    "default": lambda: make_method("gdc"),
    "paper": lambda: make_method("gdc", "paper/cub/1shot", head="closed_form"),
    "independent": lambda: make_method("gdc", "paper/cub/1shot", head="closed_form", cov="independent", alpha1=1.0),
}
SAMPLED = {
    "dc": lambda: make_method("dc"),
    "lbfgs": lambda: make_method("gdc", "paper/cub/1shot", head="lbfgs", l2=True, center=True),
    "sgd": lambda: make_method("gdc", "paper/cub/1shot", head="sgd", l2=True, center=True),
}


@pytest.fixture(scope="module")
def features():
    return make_features(base=70, val=0, novel=12, rows=40, dim=48, families=12)


@pytest.mark.parametrize("shot", [1, 5])
def test_deterministic_methods_agree_task_by_task(features, shot: int) -> None:
    protocol = Protocol(shot=shot, tasks=120)
    methods = {name: make() for name, make in DETERMINISTIC.items()}
    cpu, gpu = (evaluate(methods, features, protocol, device) for device in ("cpu", "cuda"))
    for name in methods:
        difference = np.abs(cpu.accuracy(name) - gpu.accuracy(name))
        assert difference.mean() < 1e-3, name  # a borderline query may flip, no more


def test_sampled_methods_agree_in_distribution(features) -> None:
    methods = {name: make() for name, make in SAMPLED.items()}
    cpu, gpu = (evaluate(methods, features, Protocol(tasks=100), device) for device in ("cpu", "cuda"))
    for name in methods:
        difference = cpu.accuracy(name) - gpu.accuracy(name)
        assert abs(difference.mean()) < 4 * difference.std() / 10 + 2e-3, name


def test_samples_have_the_moments_of_the_distribution() -> None:
    g = torch.Generator().manual_seed(0)
    factor = torch.randn(1, 5, 8, generator=g).cuda()
    gaussian = FactorGaussian(torch.ones(1, 8).cuda(), factor, torch.tensor([0.5]).cuda(), torch.tensor([0.2]).cuda())
    x = gaussian.sample(200_000, TaskRandom(0, [0], "cuda"))[0].double()
    torch.testing.assert_close(x.mean(0), gaussian.mean[0].double(), atol=0.05, rtol=0)
    torch.testing.assert_close(torch.cov(x.T), gaussian.dense()[0].double(), atol=0.15, rtol=0.02)


@pytest.mark.parametrize(
    ("steps", "points", "way"), [(1, 200, 5), (4, 203, 5), (25, 203, 5), (300, 200, 5), (4, 203, 40), (300, 400, 40)]
)
def test_lbfgs_takes_the_same_way_with_and_without_our_kernels(
    monkeypatch: pytest.MonkeyPatch, steps: int, points: int, way: int
) -> None:
    """After few steps too: gradients taken at a wrong place still lead to the minimum, by a longer way."""
    g = torch.Generator().manual_seed(0)
    labels = (torch.arange(points) % way).expand(3, -1).cuda()
    centres = torch.randn(3, way, 12, generator=g).repeat(1, points, 1)[:, :points]
    x = (centres + torch.randn(3, points, 12, generator=g)).cuda()
    heads = []
    for plain in ("", "1"):
        monkeypatch.setenv("FEWCAL_PLAIN_CUDA", plain)
        heads.append(lbfgs_head(x, labels, way, tol=1e-6, max_iter=steps))
    heads.append(lbfgs_head(x.cpu(), labels.cpu(), way, tol=1e-6, max_iter=steps).to("cuda"))
    for other in heads[1:]:
        torch.testing.assert_close(heads[0].weight, other.weight, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(heads[0].bias, other.bias, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ways", [5, 500])  # sums of 205 and of 20,500 numbers for each of two tasks
def test_the_memory_of_lbfgs_suggests_the_same_direction(monkeypatch: pytest.MonkeyPatch, ways: int) -> None:
    monkeypatch.setattr(two_loop, "_LONG", 1000)
    g = torch.Generator().manual_seed(0)
    steps = torch.randn(4, 2, ways, 41, generator=g)
    grad, curvature = torch.randn(2, ways, 41, generator=g), torch.rand(41, generator=g) + 0.5
    found = []
    for device in ("cpu", "cuda"):
        history = two_loop.History(torch.zeros_like(grad).to(device), torch.full((2, 1, 1), 0.5).to(device), memory=3)
        active = torch.ones(2, dtype=torch.bool, device=device)
        for step in steps.to(device):
            history.direction(grad.to(device), active)
            history.add(step, step * curvature.to(device))
        direction, slope = history.direction(grad.to(device), active)
        found.append((direction.cpu(), slope.cpu()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("dim", [48, 644])
def test_points_are_the_same_in_one_kernel_and_in_plain_operations(
    dim: int, isotropic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(0)
    a = torch.rand(2, 3, generator=g).cuda() if isotropic else None
    mean, factor = torch.randn(2, 3, dim, generator=g).cuda(), torch.randn(2, 3, 9, dim, generator=g).cuda()
    gaussian = FactorGaussian(mean, factor.bfloat16(), a, torch.full((2, 3), 0.3).cuda())
    drawn = []
    for plain in ("", "1"):
        monkeypatch.setenv("FEWCAL_PLAIN_CUDA", plain)
        x = torch.zeros(2, 1 + 3 * 20, dim).cuda()
        gaussian.sample(20, TaskRandom(0, [0, 1], "cuda"), out=x[:, 1:].view(2, 3, 20, dim))
        assert not x[:, 0].any()
        drawn.append(x)
    torch.testing.assert_close(drawn[0], drawn[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("dim", "ways", "rows", "batch"),
    [(640, 5, 200, 300), (48, 8, 33, 100), (904, 2, 40, 64), (1600, 5, 37, 50), (2048, 8, 20, 16)],
)
def test_sgd_in_one_kernel_is_sgd_in_plain_operations(
    dim: int, ways: int, rows: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(ways).repeat_interleave(rows).expand(3, -1).cuda()
    centres = torch.randn(3, ways, dim, generator=random).repeat_interleave(rows, dim=1)
    x = (0.1 * (centres + torch.randn(3, ways * rows, dim, generator=random))).cuda().bfloat16()
    assert sgd.fused_epochs(x, ways) is not None
    found = []
    for plain in ("", "1"):
        monkeypatch.setenv("FEWCAL_PLAIN_CUDA", plain)
        weight, bias = torch.zeros(3, ways, dim).cuda(), torch.zeros(3, ways, 1).cuda()
        shuffles = sgd.Shuffles(TaskRandom(0, range(3), "cuda"), x.shape[1], 5)
        loss = sgd._train(x, labels, (weight, bias), shuffles, batch, 0.08)
        found.append((weight, bias, loss))
    for fused, plain in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=0.01, atol=0.01 * float(plain.abs().max()))


@pytest.mark.parametrize("c", [[0.5, 0.5], [0.3, 0.9]])
def test_noise_of_stacked_classes_has_their_covariance(c: list[float]) -> None:
    rows = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(0)).cuda()
    index, shares = torch.tensor([[[2, 0]], [[1, 2]]]).cuda(), torch.tensor([[c], [c]]).cuda()
    out = torch.zeros(2, 1, 100_000, 8).cuda()
    add_stacked(out, rows, index, shares, TaskRandom(0, [0, 1], "cuda"))
    for t in range(2):
        expected = sum(s**2 * rows[i].T @ rows[i] for s, i in zip(c, index[t, 0].tolist(), strict=True))
        torch.testing.assert_close(torch.cov(out[t, 0].T), expected, atol=0.15, rtol=0.02)


def test_tasks_do_not_depend_on_the_batch_on_a_gpu() -> None:
    both = TaskRandom(0, [7, 8], "cuda").normal(4, 5)
    alone = TaskRandom(0, [8], "cuda").normal(4, 5)
    assert torch.equal(both[1], alone[0])


def test_a_bank_moves_and_answers_alike(features) -> None:
    bank = BaseBank().fit(features.base.features, features.base.require_labels())
    there = bank.to("cuda")
    torch.testing.assert_close(
        there.transformed(beta=0.5, l2=True).means.cpu(), bank.transformed(beta=0.5, l2=True).means
    )
