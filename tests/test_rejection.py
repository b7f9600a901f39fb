"""None of these: p-values of queries against examples of the base classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fewcal.domain_match import simulated_rows

from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.estimators import GDCClassifier
from fewcal.features.synthetic import make_features
from fewcal.rejection import OutlierTest


@pytest.fixture(scope="module")
def features() -> tuple[BaseBank, np.ndarray, np.ndarray]:
    """A bank and rows of novel classes, of which two share a family at most."""
    fs = make_features(base=80, val=0, novel=40, rows=30, dim=32, families=40, spread=0.8, relu=False, seed=3)
    bank = BaseBank().fit(fs.base.features, fs.base.require_labels())
    return bank, fs.novel.features, fs.novel.require_labels()


def test_rows_of_other_classes_are_let_through_at_the_promised_rate(features) -> None:
    """p-values of rows of unseen classes are about uniform near 0, those of the fitted classes are small."""
    bank, x, y = features
    own, outside = [], []
    for seed in range(8):
        classes = np.random.default_rng(seed).permutation(40)[:5]
        support = np.concatenate([np.flatnonzero(y == c)[:5] for c in classes])
        fitted = GDCClassifier(bank=bank).fit(x[support], y[support])
        rest = np.concatenate([np.flatnonzero(y == c)[5:] for c in classes])
        own.append((fitted.outlier_pvalue(x[rest]) < 0.05).mean())
        outside.append((fitted.outlier_pvalue(x[~np.isin(y, classes)]) < 0.05).mean())
    assert np.mean(outside) < 0.12
    assert np.mean(own) > 0.5


def test_a_support_row_itself_is_nearer_than_any_base_example(features) -> None:
    bank, x, y = features
    support = np.array([np.flatnonzero(y == c)[0] for c in range(5)])
    fitted = GDCClassifier(bank=bank).fit(x[support], y[support])
    assert fitted.outlier_pvalue(x[support]).max() == 0.0


def test_none_of_these_needs_base_classes() -> None:
    fitted = GDCClassifier().fit(np.eye(3), [0, 1, 2])
    with pytest.raises(InputError, match="give a bank"):
        fitted.outlier_pvalue(np.eye(3))


def test_pvalues_are_ranks_among_base_examples(features) -> None:
    bank, x, _ = features
    white = bank.transformed(center=True, l2=True, whiten=2.0)
    assert white.transform is not None
    z = white.transform(torch.from_numpy(x))
    test = OutlierTest.from_bank(z[:3], z[:3], torch.arange(3), white)
    assert len(test.reference) == 1024
    assert (test.reference.diff() >= 0).all()
    nearest = torch.cdist(z.double(), z[:3].double()).square().amin(dim=1)
    expected = (test.reference.double()[None] <= nearest[:, None]).double().mean(dim=1)
    torch.testing.assert_close(test.pvalue(z), expected, rtol=0, atol=2 / 1024)  # ties may fall on either side


def test_examples_of_a_bank_are_the_same_without_its_rows(features) -> None:
    bank, _, _ = features
    whole, small = (bank.transformed(center=True, l2=True, moments=m) for m in (False, True))
    prototypes = whole.means[:4]
    task = prototypes, prototypes, torch.arange(4)
    torch.testing.assert_close(
        OutlierTest.from_bank(*task, whole).reference, OutlierTest.from_bank(*task, small).reference
    )


def test_examples_have_the_mean_and_covariance_of_their_class(features) -> None:
    bank, _, _ = features
    drawn = simulated_rows(bank, torch.zeros(1, dtype=torch.int64), 40000, torch.Generator().manual_seed(0), tails=8)[0]
    torch.testing.assert_close(drawn.mean(dim=0), bank.means[0], rtol=0, atol=0.03)
    own = (bank.within_scatter[0] + bank.within_scatter.sum() / (bank.n_rows - len(bank))) / bank.counts[0]
    assert float(drawn.var(dim=0).sum()) == pytest.approx(float(own), rel=0.03)
    far = ((drawn - drawn.mean(dim=0)) / drawn.std(dim=0)).pow(4).mean()
    assert float(far) == pytest.approx(3 * (8 - 2) / (8 - 4), rel=0.15)  # kurtosis of Student's t


def test_classes_near_each_other_bring_the_base_examples_nearer(features) -> None:
    """Rows of the task's own kind pass less often, where that kind is one that the bank does not know."""
    bank, _, _ = features
    random = torch.Generator().manual_seed(0)
    away = bank.means[0] + 3.0
    support = away + 0.1 * torch.randn(6, bank.dim, generator=random)
    labels = torch.arange(6)
    test = OutlierTest.from_bank(support, support, labels, bank)
    unmoved = OutlierTest.from_bank(support, bank.means[:6], labels, bank)
    moved = unmoved.reference - test.reference
    assert float(moved.min()) == pytest.approx(float(moved.max()), rel=1e-3)
    stranger = away + 0.1 * torch.randn(1, bank.dim, generator=random)
    assert float(unmoved.pvalue(stranger)) == 0.0 < float(test.pvalue(stranger))
