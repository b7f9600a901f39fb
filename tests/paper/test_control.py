"""The control: the support alone in the space of a setting."""

from __future__ import annotations

import pytest

from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper.control import SupportAlone
from fewcal.paper.settings import paper_params
from fewcal.params import GDCParams

pytestmark = pytest.mark.usefixtures("two_epochs")


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return make_features(base=6, val=2, novel=6, rows=24, dim=8, seed=0)


def correct(features: FeatureSet, **methods: object) -> dict[str, list[int]]:
    results = evaluate(methods, features, Protocol(tasks=6))  # type: ignore[arg-type]
    return {name: results.correct[name].sum(axis=1).tolist() for name in methods}


def test_support_alone_with_each_head_is_the_baseline_of_that_head(features: FeatureSet) -> None:
    raw = GDCParams(beta=1.0, head="lbfgs")
    found = correct(
        features,
        lbfgs=SupportAlone(raw),
        lr=make_method("lr"),
        centroid=SupportAlone(raw.with_changes(head="closed_form")),
        ncm=make_method("ncm"),
        unit=SupportAlone(raw.with_changes(head="closed_form", center=True, l2=True)),
        simpleshot=make_method("simpleshot"),
    )
    assert found["lbfgs"] == found["lr"]
    assert found["centroid"] == found["ncm"]
    assert found["unit"] == found["simpleshot"]


def test_support_alone_with_sgd_differs_by_the_space(features: FeatureSet) -> None:
    own = paper_params("cub", 1)
    found = correct(features, own=SupportAlone(own), unit=SupportAlone(own.with_changes(center=True, l2=True)))
    assert found["own"] != found["unit"]
