"""None of these: p-values of queries, small for what is unlike all classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.estimators import FewShotClassifier
from fewcal.features.synthetic import make_features
from fewcal.rejection import OutlierTest

Data = tuple[BaseBank, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def features() -> Data:
    """A bank and rows of novel classes, of which two share a family at most."""
    fs = make_features(base=80, val=0, novel=40, rows=30, dim=32, families=40, spread=0.8, relu=False, seed=3)
    bank = BaseBank().fit(fs.base.features, fs.base.require_labels())
    return bank, fs.novel.features, fs.novel.require_labels()


def fitted(
    features: Data, seed: int, shots: int, with_bank: bool = True
) -> tuple[FewShotClassifier, np.ndarray, np.ndarray]:
    """A classifier of five classes, further rows of them, and rows of other classes."""
    bank, x, y = features
    classes = np.random.default_rng(seed).permutation(40)[:5]
    support, rest = (
        np.concatenate([np.flatnonzero(y == c)[part] for c in classes]) for part in (slice(shots), slice(shots, None))
    )
    return FewShotClassifier(bank if with_bank else None).fit(x[support], y[support]), x[rest], x[~np.isin(y, classes)]


@pytest.mark.parametrize(("shots", "with_bank"), [(1, True), (3, True), (5, True), (3, False), (5, False)])
def test_pvalue_of_members_has_the_stated_level_and_finds_outliers(features: Data, shots: int, with_bank: bool) -> None:
    own, outside = [], []
    for seed in range(12):
        classifier, members, others = fitted(features, seed, shots, with_bank)
        own.append((classifier.outlier_pvalue(members) < 0.05).mean())
        outside.append((classifier.outlier_pvalue(others) < 0.05).mean())
    assert np.mean(own) < 0.09
    assert np.mean(outside) > 3 * np.mean(own)


def test_pvalue_falls_with_the_distance_from_all_classes(features: Data) -> None:
    classifier, _, _ = fitted(features, 0, 5)
    assert classifier.prior_ is not None
    support, labels = torch.randn(10, 32), torch.arange(10) % 5
    test = OutlierTest.fit(support, labels, classifier.prior_)
    steps = torch.linspace(0, 40, 9)[:, None]
    p = test.pvalue(test.means[:1] + steps * torch.nn.functional.normalize(support.sum(0, keepdim=True), dim=1))
    assert (p.diff() <= 0).all()
    assert (float(p[0]), float(p[-1])) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-3))


def test_pvalues_of_classes_as_the_prior_has_them_are_uniform(features: Data) -> None:
    prior = fitted(features, 0, 1)[0].prior_
    assert prior is not None
    random, d = torch.Generator().manual_seed(5), len(prior.origin)
    means = prior.origin + (prior.psi * prior.within).sqrt() * torch.randn(4, 1, d, generator=random)
    rows = means + prior.within.sqrt() * torch.randn(4, 530, d, generator=random)
    rows = torch.nn.functional.normalize(rows, dim=2) - prior.origin
    test = OutlierTest.fit(rows[:, :30].flatten(0, 1), torch.arange(4).repeat_interleave(30), prior)
    assert stats.kstest(test.pvalue(rows[:, 30:].flatten(0, 1)).numpy(), "uniform").statistic < 0.1


def test_pvalues_do_not_depend_on_the_order_of_rows_or_classes(features: Data) -> None:
    bank, x, y = features
    support = np.concatenate([np.flatnonzero(y == c)[:3] for c in range(5)])
    turned = np.random.default_rng(0).permutation(support)
    base = bank.all_rows().numpy()
    labels = np.repeat(np.random.default_rng(1).permutation(80), 30)
    order = np.random.default_rng(2).permutation(len(base))
    other = BaseBank().fit(base[order], labels[order])
    first = FewShotClassifier(bank).fit(x[support], y[support])
    second = FewShotClassifier(other).fit(x[turned], -y[turned])
    np.testing.assert_allclose(first.outlier_pvalue(x[:300]), second.outlier_pvalue(x[:300]), atol=1e-5)


def test_outlier_pvalue_of_single_examples_without_base_classes_is_refused() -> None:
    classifier = FewShotClassifier().fit(np.eye(3), [0, 1, 2])
    with pytest.raises(InputError, match="a bank or a class with two examples"):
        classifier.outlier_pvalue(np.eye(3))
