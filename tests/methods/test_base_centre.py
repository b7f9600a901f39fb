"""Where base classes are centred, and what the classifier of the examples alone makes of it at one shot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fewcal import BaseBank, GDCClassifier
from fewcal.bank.build import UnitCentre
from fewcal.bank.io import described, restored
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods.bankless import base_centre, common_part

DIM = 48


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def classes(count: int, rows: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of classes that scatter around one centre."""
    rng = np.random.default_rng(seed)
    means = 2 * np.ones(DIM) + rng.normal(size=(count, 1, DIM))
    x = means + noise * rng.normal(size=(count, rows, DIM))
    return x.reshape(-1, DIM).astype(np.float32), np.repeat(np.arange(count), rows)


def reference(rows: np.ndarray, mean: np.ndarray, variance: float) -> np.ndarray:
    """The formula for unit rows `(N, D)` of one task, in float64."""
    n, own = len(rows), rows.mean(axis=0)
    rho = max((rows @ rows.T).sum() - n, 0) / n / (n - 1)
    a = (1 - rho) / n
    delta = max(((own - mean) ** 2).sum() - a - variance, 0)
    w = a / (a + variance + 2 * delta)
    effective = n / (1 - w)
    return rho * effective / (rho * effective + 1 - rho) * ((1 - w) * own + w * mean)


@pytest.mark.parametrize("away", [0.0, 0.3, 3.0])
def test_the_common_part_is_that_of_the_formula(away: float) -> None:
    rows = unit(classes(5, 1, seed=0)[0].astype(np.float64))
    mean = np.full(DIM, (0.8 + away) / DIM**0.5)
    found = common_part(torch.from_numpy(rows)[None], UnitCentre(torch.from_numpy(mean), 0.02))
    np.testing.assert_allclose(found[0, 0].numpy(), reference(rows, mean, 0.02), rtol=1e-9)


def test_base_classes_of_another_domain_leave_the_centre_of_the_examples() -> None:
    rows = torch.from_numpy(unit(classes(5, 1, seed=0)[0]))[None]
    mean = torch.zeros(DIM)
    mean[0] = 1.0
    apart = [float((common_part(rows, UnitCentre(s * mean, 0.0)) - common_part(rows)).norm()) for s in (1, 10, 100)]
    assert apart[0] > apart[1] > apart[2]
    assert apart[2] < 0.01


def test_moments_tell_where_rows_of_unit_length_are_centred() -> None:
    x, y = classes(12, 30, seed=1)
    found, of_moments = base_centre(BaseBank().fit(x, y)), base_centre(BaseBank(0).fit(x, y))
    assert found is not None
    assert of_moments is not None
    means = unit(x).reshape(12, 30, DIM).mean(axis=1)
    np.testing.assert_allclose(found.mean.numpy(), means.mean(axis=0), atol=0.01)
    assert found.variance == pytest.approx(means.var(axis=0, ddof=1).sum() / 12, rel=0.1)
    np.testing.assert_allclose(of_moments.mean.numpy(), found.mean.numpy(), atol=1e-6)


def test_one_class_few_features_or_a_transform_tell_nothing() -> None:
    x, y = classes(3, 30, seed=1)
    assert base_centre(BaseBank().fit(x[:30], y[:30])) is None
    assert base_centre(BaseBank().fit(x[:, :20], y)) is None
    assert base_centre(BaseBank().fit(x, y).transformed(center=True, l2=True)) is None


@pytest.mark.filterwarnings("ignore:4 base classes are few:fewcal.errors.FewcalWarning")
def test_a_few_base_classes_tell_the_examples_where_they_are_centred() -> None:
    base, novel = (FeatureSplit.from_arrays(*classes(count, 40, seed=count, noise=2.0)) for count in (4, 30))
    found = evaluate(["bankless", "gdc"], FeatureSet(base, None, novel), Protocol(way=3, tasks=200))
    assert found.accuracy("gdc").mean() > found.accuracy("bankless").mean() + 0.01


@pytest.mark.filterwarnings("ignore:4 base classes are few:fewcal.errors.FewcalWarning")
def test_a_saved_classifier_knows_it_too(tmp_path: Path) -> None:
    base, labels = classes(4, 40, seed=2)
    novel, names = classes(5, 20, seed=3)
    fitted = GDCClassifier(BaseBank().fit(base, labels)).fit(novel[::20], names[::20])
    loaded = GDCClassifier.load(fitted.save(tmp_path / "a.fewcal"))
    without = GDCClassifier(bank=_forgotten(loaded.bank)).fit(novel[::20], names[::20])
    np.testing.assert_allclose(loaded.predict_proba(novel), fitted.predict_proba(novel), atol=2e-5)
    assert np.abs(without.predict_proba(novel) - fitted.predict_proba(novel)).max() > 1e-3


def _forgotten(bank: BaseBank) -> BaseBank:
    return BaseBank.from_parts(replace(bank.parts, unit_centre=None))


@pytest.mark.parametrize(("shape", "variance"), [(DIM + 1, 0.1), (DIM, -1.0), (DIM, float("inf"))])
def test_a_damaged_centre_in_a_bank_file_is_told(shape: int, variance: float) -> None:
    bank = BaseBank().fit(*classes(4, 5, seed=0))
    centre = UnitCentre(torch.zeros(shape), variance)
    with pytest.raises(ValueError, match="unit_centre"):
        restored(*described(replace(bank.parts, unit_centre=centre), bank.fingerprint))
