"""The short cuts of large problems give what the plain way gives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from fewcal import BaseBank, GDCClassifier
from fewcal._utils import bfloat16 as precision
from fewcal._utils.randomness import TaskRandom
from fewcal.calibrate import Calibrator, MetricOptions, distances, squared_distances, uses_gather
from fewcal.factor_gaussian import FactorGaussian
from fewcal.gaussianize import Gaussianization
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import class_means, class_sizes
from fewcal.heads.sgd import sgd_head
from fewcal.methods import TaskBatch, make_method


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision everywhere, whatever the size and the processor."""
    monkeypatch.setattr(precision, "MIN_NUMBERS", 0)
    monkeypatch.setattr(precision, "_cpu_has_bfloat16", lambda: True)
    monkeypatch.delenv("FEWCAL_FLOAT32", raising=False)


def rows(classes: int, per: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.random((classes, 1, dim)) * 3 + rng.random((classes, per, dim))
    return x.reshape(-1, dim).astype(np.float32), np.repeat(np.arange(classes), per)


def test_half_precision_is_for_large_points_and_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_cpu_has_bfloat16", lambda: True)
    large = torch.zeros(1, precision.MIN_NUMBERS)
    assert precision.half_pays(large)
    assert not precision.half_pays(large[:, 1:])
    assert precision.half_pays(large[:, 1:], precision.MIN_NUMBERS)
    assert not precision.half_pays(large.double())
    monkeypatch.setenv("FEWCAL_FLOAT32", "1")
    assert not precision.half_pays(large)


def test_half_precision_is_for_processors_whose_library_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have it, while the library that makes products is kept from it: then these take many times as long."""
    monkeypatch.delenv("FEWCAL_FLOAT32", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    for supported in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)  # noqa: B023
        assert precision.half_pays(torch.zeros(1, precision.MIN_NUMBERS)) == supported


def blobs(tasks: int, per: int, dim: int, ways: int, gap: float) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(ways).repeat_interleave(per).expand(tasks, -1)
    centres = gap * torch.randn(tasks, ways, dim, generator=random)
    return centres.gather(1, labels[..., None].expand(-1, -1, dim)) + torch.randn(
        tasks, ways * per, dim, generator=random
    ), labels


def test_lbfgs_ends_at_the_true_minimum_whatever_it_rounds_on_the_way(half: None) -> None:
    x, labels = blobs(3, 61, 20, 4, 0.5)
    low = lbfgs_head(x, labels, 4)
    z = torch.cat([low.weight, low.bias[..., None]], dim=-1).requires_grad_()
    m = x.shape[1]
    logits = x @ z[..., :-1].mT + z[:, None, :, -1]
    loss = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none").mean(dim=1)
    (loss + z[..., :-1].square().sum(dim=(1, 2)) / (2 * m)).sum().backward()
    assert z.grad is not None
    assert float(z.grad.abs().max()) <= 1.1e-4


def test_sgd_in_half_precision_learns_the_same(half: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = blobs(2, 43, 16, 5, 1.0)
    low = sgd_head(x, labels, 5, TaskRandom(0, [0, 1]), batch_size=100, epochs=30)
    monkeypatch.setenv("FEWCAL_FLOAT32", "1")
    full = sgd_head(x, labels, 5, TaskRandom(0, [0, 1]), batch_size=100, epochs=30)
    torch.testing.assert_close(low.logits(x), full.logits(x), rtol=0.05, atol=0.08)


def test_samples_drawn_in_half_precision_have_the_covariance(half: None) -> None:
    random = torch.Generator().manual_seed(0)
    factor = torch.randn(1, 1, 7, 6, generator=random)
    g = FactorGaussian(torch.ones(1, 1, 6), factor, torch.full((1, 1), 0.5), torch.full((1, 1), 0.1))
    x = g.sample(40_000, TaskRandom(0))[0, 0]
    np.testing.assert_allclose(np.cov(x.T.numpy()), g.dense()[0, 0].numpy(), atol=0.35)
    low = FactorGaussian(g.mean, factor.bfloat16(), g.a, g.b)
    torch.testing.assert_close(low.dense(), g.dense(), rtol=0.02, atol=0.05)


def test_gdc_in_half_precision_answers_alike(half: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(12, 20, 16)
    support, labels = torch.from_numpy(x[::40][:5])[None] + 0.1, torch.arange(5)[None]
    query = torch.from_numpy(x[::7])[None]
    for head in ("lbfgs", "sgd"):
        method = make_method("gdc", "paper", head=head, k=3, n=60, l2=True).prepare(BaseBank().fit(x, y))
        answers = []
        for full in ("", "1"):
            monkeypatch.setenv("FEWCAL_FLOAT32", full)
            z = method.transform(support[0])[None]
            head_ = method.fit(TaskBatch(z, labels, 5, TaskRandom(0)))
            answers.append(head_.logits(method.transform(query[0])[None]).softmax(-1))
        torch.testing.assert_close(answers[0], answers[1], rtol=0.1, atol=0.05)


def test_class_means_of_many_classes_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 300, 3)
    labels = torch.stack([torch.randperm(300) % 70, torch.randperm(300) % 70])
    product = class_means(x.double(), labels, 70)
    monkeypatch.setattr("fewcal.heads.linear._MANY", 1000)
    torch.testing.assert_close(class_means(x.double(), labels, 70), product)
    assert class_sizes(labels).tolist() == [[int((row == v).sum()) for v in row] for row in labels]


@pytest.mark.parametrize("delta", [1.0, 0.7])
def test_distances_from_what_a_bank_remembers(delta: float) -> None:
    x, y = rows(9, 6, 5)
    bank = BaseBank().fit(x, y).transformed(center=True, l2=True)
    points = torch.randn(2, 4, 5)
    want = squared_distances(points, delta * bank.means)
    torch.testing.assert_close(distances(points, bank, "delta", MetricOptions(delta)), want, rtol=1e-4, atol=1e-5)


def test_means_are_gathered_from_many_classes_and_multiplied_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(70, 3, 4)
    bank = BaseBank().fit(x, y)
    points = torch.rand(3, 2, 4) * 3
    assert uses_gather(bank, 2)
    assert not uses_gather(bank, 3)
    gathered = Calibrator(bank, k=2).calibrate(points)
    monkeypatch.setattr("fewcal.calibrate.GATHER_RATIO", 1000)
    torch.testing.assert_close(Calibrator(bank, k=2).calibrate(points).mean, gathered.mean)


# ---- banks of many classes -------------------------------------------------------------------------------------------


def test_some_classes_are_unpacked_without_the_others() -> None:
    x, y = rows(8, 6, 5)
    some = torch.tensor([6, 1])
    bank = BaseBank().fit(x, y)
    torch.testing.assert_close(bank.class_factors(some), bank.class_factors()[some])
    torch.testing.assert_close(bank.paired_rows(4, some), bank.paired_rows(4)[some])


def test_a_large_bank_fits_and_explains_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every limit at its smallest, the ways of large banks are taken."""
    x, y = rows(40, 8, 12)
    support, query = x[::90][:3] + 0.05, x[1::37]
    bank = BaseBank(transform=Gaussianization("none", l2=True)).fit(x, y)
    settings = {"preset": "paper", "beta": 1.0, "l2": True, "cov": "independent", "head": "closed_form", "k": 2}
    plain = GDCClassifier(bank, **settings).fit(support, [0, 1, 2])
    monkeypatch.setattr("fewcal.covariance.base.ALL_CLASSES", 0)
    monkeypatch.setattr("fewcal.calibrate.GATHER_RATIO", 0)
    large = GDCClassifier(copy.copy(bank), **settings).fit(support, [0, 1, 2])
    np.testing.assert_allclose(large.predict_proba(query), plain.predict_proba(query), atol=1e-3)
    assert [c.bases for c in large.explain().classes] == [c.bases for c in plain.explain().classes]


# ---- banks from parts ------------------------------------------------------------------------------------------------


def write_parts(folder, x: np.ndarray, y: np.ndarray) -> list:
    from fewcal.apply.build_bank import find_parts
    from fewcal.features import FeatureSplit

    names = [f"class {c:02d}" for c in range(int(y.max()) + 1)]
    for i, at in enumerate(np.array_split(np.random.default_rng(0).permutation(len(x)), 3)):
        here = sorted(set(y[at].tolist()))
        labels = np.searchsorted(here, y[at])
        FeatureSplit.from_arrays(x[at], labels, [names[c] for c in here]).save(folder / f"part-{i}.npz")
    return find_parts(folder)


def test_a_bank_from_parts_is_the_bank_of_all_rows(tmp_path) -> None:
    from fewcal.apply.build_bank import bank_from_parts
    from fewcal.presets import get_preset

    x, y = rows(10, 9, 6)
    params = get_preset("paper").with_changes(center=True, l2=True)
    parts = write_parts(tmp_path, x, y)
    bank = bank_from_parts(parts, params, keep_rows=True)
    raw = BaseBank().fit(x, [f"class {c:02d}" for c in y])
    space = raw.transformed(beta=params.beta, kind=params.kind, center=params.center, l2=params.l2, eps=params.eps)
    at = [bank.classes.index(c) for c in space.classes]
    torch.testing.assert_close(bank.means[at], space.means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bank.class_covariances()[at], space.class_covariances(), rtol=1e-2, atol=1e-5)


@pytest.mark.slow
def test_a_dask_cluster_builds_the_same_bank(tmp_path) -> None:
    pytest.importorskip("distributed")
    from fewcal.apply.build_bank import bank_from_parts
    from fewcal.presets import get_preset

    parts = write_parts(tmp_path, *rows(10, 9, 6))
    here = bank_from_parts(parts, get_preset("paper"))
    there = bank_from_parts(parts, get_preset("paper"), scheduler="local:2")
    assert here.classes == there.classes
    torch.testing.assert_close(there.means, here.means)
    torch.testing.assert_close(there.scatter, here.scatter, rtol=1e-4, atol=1e-6)


def test_parts_that_are_not_there(tmp_path) -> None:
    from fewcal.apply.build_bank import bank_from_parts, find_parts
    from fewcal.errors import InputError
    from fewcal.presets import get_preset

    with pytest.raises(InputError, match="holds no parts"):
        find_parts(tmp_path)
    with pytest.raises(InputError, match="no parts were given"):
        bank_from_parts([], get_preset("paper"))
