"""CPU and GPU give the same answers. Skipped where there is no CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.evaluation import Protocol, evaluate
from fewcal.factor_gaussian import FactorGaussian
from fewcal.features.synthetic import make_features
from fewcal.heads import lbfgs_head
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
    for plain in ("", "torch"):
        monkeypatch.setenv("FEWCAL_OPS", plain)
        heads.append(lbfgs_head(x, labels, way, tol=1e-6, max_iter=steps))
    heads.append(lbfgs_head(x.cpu(), labels.cpu(), way, tol=1e-6, max_iter=steps).to("cuda"))
    for other in heads[1:]:
        torch.testing.assert_close(heads[0].weight, other.weight, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(heads[0].bias, other.bias, rtol=1e-3, atol=1e-3)


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
