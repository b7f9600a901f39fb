"""None of these: p-values of queries against examples of the base classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
    test = OutlierTest.from_bank(z[:3], white)
    assert len(test.reference) == 1024
    assert (test.reference.diff() >= 0).all()
    nearest = torch.cdist(z.double(), z[:3].double()).square().amin(dim=1)
    expected = (test.reference.double()[None] <= nearest[:, None]).double().mean(dim=1)
    torch.testing.assert_close(test.pvalue(z), expected, rtol=0, atol=2 / 1024)  # ties may fall on either side


def test_examples_of_a_bank_are_the_same_without_its_rows(features) -> None:
    bank, _, _ = features
    whole, small = (bank.transformed(center=True, l2=True, moments=m) for m in (False, True))
    prototypes = whole.means[:4]
    torch.testing.assert_close(
        OutlierTest.from_bank(prototypes, whole).reference, OutlierTest.from_bank(prototypes, small).reference
    )
