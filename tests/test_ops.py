"""Operations against their definitions in float64, and compiled ones against those in torch."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from fewcal import ops
from fewcal._utils.randomness import TaskRandom, fill_normal
from fewcal.errors import FewcalWarning
from fewcal.heads import lbfgs_head, sgd_head
from fewcal.heads.linear import LinearHead
from fewcal.ops import reference

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs Numba, the extra `fast`")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def points(n_classes: int, m: int, dim: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tasks of overlapping Gaussian classes, `(2, M, D)` and `(2, M)`."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(m) % n_classes
    centres = torch.randn(n_classes, dim, generator=random)
    return scale * (centres[labels] + torch.randn(2, m, dim, generator=random)), labels.expand(2, -1)


def weights(n_classes: int, dim: int) -> torch.Tensor:
    w = torch.randn(2, n_classes, dim + 1, generator=torch.Generator().manual_seed(1))
    return w - w.mean(dim=1, keepdim=True)


def exact_logits(x: torch.Tensor, labels: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    z = w[..., :-1].double() @ x.double().mT + w[..., -1:].double()
    return z - z.gather(1, labels[:, None])


def largest_slope(head: LinearHead, x: torch.Tensor, labels: torch.Tensor, C: float = 1.0) -> float:
    """The largest entry of the gradient of logistic regression, in double precision."""
    weight, bias = head.weight.double().requires_grad_(), head.bias.double().requires_grad_()
    logits = x.double() @ weight.mT + bias[:, None]
    loss = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none").mean(dim=1).sum()
    (loss + weight.square().sum() / (2 * C * x.shape[1])).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    return max(float(weight.grad.abs().max()), float(bias.grad.abs().max()))


class Operations:
    """What every implementation is: the same numbers as the definitions, up to rounding."""

    @pytest.fixture
    def module(self) -> ModuleType:
        raise NotImplementedError

    @pytest.mark.parametrize(("n_classes", "m", "dim"), [(2, 64, 3), (3, 65, 8), (5, 200, 33), (16, 131, 24)])
    def test_logits_and_gradient_are_those_of_the_formulas(
        self, module: ModuleType, n_classes: int, m: int, dim: int
    ) -> None:
        (x, labels), w = points(n_classes, m, dim), weights(n_classes, dim)
        z = exact_logits(x, labels, w)
        torch.testing.assert_close(module.logits(x, labels, w).double(), z, rtol=1e-4, atol=1e-4)
        exact = w.double().requires_grad_()
        torch.logsumexp(exact_logits(x, labels, exact), dim=1).mean(dim=1).sum().backward()
        assert exact.grad is not None
        gradient = module.gradient(x, labels, z.float())
        torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("n_classes", "m"), [(2, 64), (5, 301), (40, 130)])
    @pytest.mark.parametrize("scale", [0.3, 20.0])
    def test_a_line_search_ends_where_the_slope_is_small_and_no_higher(
        self, module: ModuleType, n_classes: int, m: int, scale: float
    ) -> None:
        (x, labels), w = points(n_classes, m, 4, scale), weights(n_classes, 4)
        z = exact_logits(x, labels, w).float()
        along = exact_logits(x, labels, -reference.gradient(x, labels, z)).float()
        loss = torch.logsumexp(z, dim=1).mean(dim=1).double()

        def slope(t: torch.Tensor) -> torch.Tensor:
            p = torch.softmax((z + t[:, None, None] * along).double(), dim=1)
            return (p * along).sum(dim=1).mean(dim=1) - 0.01 + 0.02 * t

        start = slope(torch.zeros(2))
        slopes = torch.stack([start, torch.full_like(start, -0.01), torch.full_like(start, 0.02)])
        length, found = module.line_search(z, along, loss, slopes, 0.1)
        assert (slope(length).abs() <= 0.1001 * start.abs() + 1e-6).all()
        exact = torch.logsumexp((z + length[:, None, None] * along).double(), dim=1).mean(dim=1)
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
        assert (exact - 0.01 * length + 0.01 * length**2 <= loss + 1e-6).all()
        assert module.line_search(z, along, loss, slopes.abs(), 0.1)[0].tolist() == [1, 1]  # uphill: none

    @pytest.mark.parametrize(("n_classes", "m", "dim", "batch"), [(2, 64, 3, 20), (5, 97, 20, 97), (16, 80, 9, 33)])
    def test_sgd_is_a_loop_of_autograd(self, module: ModuleType, n_classes: int, m: int, dim: int, batch: int) -> None:
        x, labels = points(n_classes, m, dim)
        orders = torch.stack([torch.stack([torch.randperm(m) for _ in range(3)]) for _ in range(2)])
        w = weights(n_classes, dim)
        weight, bias = w[..., :-1].clone() + 0.3, w[..., -1].clone()
        loss = module.sgd_epochs(x, labels, orders, weight, bias, batch, 0.05)
        for t in range(2):
            own, shift = (w[t, :, :-1] + 0.3).double().requires_grad_(), w[t, :, -1].double().requires_grad_()
            total = 0.0
            for order in orders[t]:
                total = 0.0
                for at in order.split(batch):
                    z = x[t, at].double() @ own.T + shift
                    mean = torch.nn.functional.cross_entropy(z, labels[t, at])
                    steps = torch.autograd.grad(mean, (own, shift))
                    total += mean.item() * len(at) / m
                    with torch.no_grad():
                        own -= 0.05 * steps[0]
                        shift -= 0.05 * steps[1]
            torch.testing.assert_close(weight[t].double(), own.detach(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(bias[t].double(), shift.detach(), rtol=1e-4, atol=1e-5)
            assert float(loss[t]) == pytest.approx(total, rel=1e-4)

    def test_normal_numbers_are_quantiles(self, module: ModuleType) -> None:
        bits = torch.linspace(-(2**31), 2**31 - 1, 1001, dtype=torch.float64).to(torch.int32)
        out = torch.empty(len(bits))
        module.normal(bits, out)
        share = (bits.double().numpy() / 2**31 + 1) / 2
        np.testing.assert_allclose(out, stats.norm.ppf(share.clip(2**-25, 1 - 2**-25)), rtol=1e-4, atol=1e-5)


class TestReference(Operations):
    @pytest.fixture
    def module(self) -> ModuleType:
        return reference

    def test_points_in_bfloat16_with_padding_give_nearly_the_same(self) -> None:
        (x, labels), w = points(5, 61, 24), weights(5, 24)
        low = torch.nn.functional.pad(x.bfloat16(), (0, 0, 0, 3))
        z = reference.logits(low, labels, w)
        torch.testing.assert_close(z, reference.logits(x, labels, w), rtol=0.02, atol=0.2)
        gradient = reference.gradient(low, labels, z)
        torch.testing.assert_close(gradient, reference.gradient(x, labels, z), rtol=0.02, atol=0.01)


@needs_numba
class TestNumba(Operations):
    @pytest.fixture
    def module(self) -> ModuleType:
        from fewcal.ops import cpu

        return cpu

    @pytest.fixture
    def always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the size of a task."""
        for name in ("MIN_NUMBERS", "MIN_LOGITS", "MIN_NORMALS"):
            monkeypatch.setattr(ops, name, 0)
        monkeypatch.delenv("FEWCAL_OPS", raising=False)

    def test_it_is_for_large_tasks_in_single_precision_on_a_cpu(
        self, module: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("FEWCAL_OPS", raising=False)
        large = torch.zeros(1, 1 << 9, 1 << 9)
        assert ops.works_in_float32(large, 5)
        assert not ops.works_in_float32(large[:, 1:], 5)
        assert not ops.works_in_float32(large.double(), 5)
        assert not ops.works_in_float32(large, 17)
        assert not ops.works_in_float32(torch.zeros(1, 32, 1 << 13), 2)
        monkeypatch.setenv("FEWCAL_OPS", "torch")
        assert not ops.works_in_float32(large, 5)

    @pytest.mark.parametrize(("n_classes", "dim"), [(2, 3), (5, 20), (12, 17)])
    @pytest.mark.parametrize("scale", [1.0, 1e3])
    @pytest.mark.parametrize("with_metric", [False, True])
    def test_lbfgs_ends_where_the_true_gradient_is_small(
        self, n_classes: int, dim: int, scale: float, with_metric: bool, always: None
    ) -> None:
        x, labels = points(n_classes, 30 * n_classes + 5, dim, scale)
        C, tol = 0.1 / scale**2, 2e-4 * scale  # below it float32 has no more to tell
        metric = torch.linalg.inv(torch.eye(dim) + x[0].T @ x[0] / x.shape[1]) if with_metric else None
        head = lbfgs_head(x, labels, n_classes, C=C, tol=tol, max_iter=1000, metric=metric)
        assert largest_slope(head, x, labels, C) <= 1.1 * tol

    def test_a_task_is_the_same_alone(self, always: None) -> None:
        x, labels = points(5, 70, 20)
        both, alone = (sgd_head(x[i:], labels[i:], 5, TaskRandom(0, [0, 1][i:]), epochs=3) for i in (0, 1))
        assert torch.equal(both.weight[1], alone.weight[0])

    def test_random_numbers_are_those_of_the_reference(self, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
        size = (1 << 17) + 3
        compiled = fill_normal(torch.empty(size), torch.Generator().manual_seed(5))
        monkeypatch.setenv("FEWCAL_OPS", "torch")
        plain = fill_normal(torch.empty(size), torch.Generator().manual_seed(5))
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)

    def test_damaged_machine_code_is_compiled_again(self, tmp_path: Path) -> None:
        code = """
import torch
from fewcal._utils.randomness import fill_normal
print(fill_normal(torch.empty(1 << 15), torch.Generator().manual_seed(0)).sum().item())
"""
        env = {k: v for k, v in os.environ.items() if k != "FEWCAL_OPS"} | {"NUMBA_CACHE_DIR": str(tmp_path)}
        said = set()
        for damage in (
            lambda whole: whole + b" ",
            lambda whole: whole[:-9],
            lambda whole: whole[:99] + bytes(len(whole) - 99),
        ):
            files = {file: file.read_bytes() for file in tmp_path.rglob("*.nbi-*")}
            for file, whole in files.items():
                file.write_bytes(damage(whole))
            done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
            said.add(done.stdout)
            assert all(file.read_bytes() != damage(whole) for file, whole in files.items())
        assert len(said) == 1


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_library_that_fails_leaves_the_work_to_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"fewcal.ops.{name}", SimpleNamespace(check=lambda: 1 // 0))
    with pytest.warns(FewcalWarning, match=r"json does not work here, .*division.* by zero; mend or uninstall json"):
        assert ops._compiled.__wrapped__(name, "json") is reference
    assert ops._compiled.__wrapped__(name, "a library that is not here") is reference


INTERPRETED = """
import contextlib, types, torch
torch.cuda.device_of = lambda x: contextlib.nullcontext()
torch.cuda.get_device_properties = lambda d: types.SimpleNamespace(shared_memory_per_block_optin=1 << 30)
from fewcal.ops import cuda, reference
from test_ops import points, weights
for n, m in ((5, 300), (7, 257)):
    x, labels = points(n, m, 20)
    z, along = (reference.logits(x, labels, s * weights(n, 20)) for s in (1.0, -0.8))
    loss, p = torch.logsumexp(z, 1).mean(1).double(), torch.softmax(z, 1)
    slope = (p * along).sum(1).mean(1).double()
    slopes = torch.stack([slope, torch.zeros_like(slope), torch.full_like(slope, 0.02)])
    found, expected = (k.line_search(z, along, loss, slopes, 0.05) for k in (cuda, reference))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    found, expected = [], []
    for k, out in ((cuda, found), (reference, expected)):
        orders = torch.stack([torch.randperm(m, generator=torch.Generator().manual_seed(i)) for i in range(6)])
        weight, bias = torch.zeros(2, n, 20), torch.zeros(2, n)
        out += [k.sgd_epochs(x, labels, orders.view(2, 3, m), weight, bias, 100, 0.05), weight, bias]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
"""


@needs_triton
def test_triton_kernels_in_the_interpreter_of_triton_are_the_reference() -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda:
    @pytest.mark.parametrize(("n_classes", "m"), [(5, 300), (40, 1000)])
    def test_a_line_search_is_that_of_the_reference(self, n_classes: int, m: int) -> None:
        x, labels = (v.cuda() for v in points(n_classes, m, 20))
        z, along = (reference.logits(x, labels, s * weights(n_classes, 20).cuda()) for s in (1.0, -0.8))
        loss, p = torch.logsumexp(z, dim=1).mean(dim=1).double(), torch.softmax(z, dim=1)
        slope = (p * along).sum(dim=1).mean(dim=1).double()
        slopes = torch.stack([slope, torch.zeros_like(slope), torch.full_like(slope, 0.02)])
        expected = reference.line_search(z, along, loss, slopes, 0.05)
        torch.testing.assert_close(ops.line_search(z, along, loss, slopes, 0.05), expected, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        ("dim", "n_classes", "m", "batch"), [(640, 5, 1000, 300), (48, 8, 264, 100), (904, 2, 80, 64)]
    )
    def test_sgd_is_that_of_the_reference(self, dim: int, n_classes: int, m: int, batch: int) -> None:
        x, labels = points(n_classes, m, dim, 0.1)
        orders = torch.stack([torch.stack([torch.randperm(m) for _ in range(5)]) for _ in range(2)]).cuda()
        found = []
        for function in (ops.sgd_epochs, reference.sgd_epochs):
            weight, bias = torch.zeros(2, n_classes, dim).cuda(), torch.zeros(2, n_classes).cuda()
            loss = function(x.cuda().bfloat16(), labels.cuda(), orders, weight, bias, batch, 0.08)
            found.append((loss, weight, bias))
        for compiled, plain in zip(*found, strict=True):
            torch.testing.assert_close(compiled, plain, rtol=0.01, atol=0.01 * float(plain.abs().max()))
