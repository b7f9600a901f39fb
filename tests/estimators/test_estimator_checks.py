"""The checks that scikit-learn and imbalanced-learn run on their own estimators.

Classifiers are checked without a bank: the checks make data of many widths, and a bank has one. That those
with a bank keep the same contract is in test_classifiers.py.
"""

from __future__ import annotations

from typing import Any

import imblearn.utils.estimator_checks as imblearn_checks
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewcal.estimators import FewShotClassifier, Gaussianizer, GDCClassifier
from fewcal.estimators.sampler import GDCSampler

# No expected failures.
ESTIMATORS = [
    Gaussianizer(),
    Gaussianizer(kind="yeo-johnson", beta=0.0, center=True, l2=True),
    FewShotClassifier(),
    GDCClassifier(n=5),
    GDCClassifier(alpha1=1.0, alpha2_ratio=0.0, head="closed_form"),
    GDCSampler(random_state=0),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS)
def test_estimator_checks_of_scikit_learn(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it scikit-learn skips a check
    check(estimator)


@pytest.mark.filterwarnings("ignore")
@imblearn_checks.parametrize_with_checks([GDCSampler(random_state=0)])
def test_estimator_checks_of_imbalanced_learn(estimator: Any, check: Any) -> None:
    check(estimator)
