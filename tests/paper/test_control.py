"""Controls: the support alone in the space of a setting, and the same tasks with other random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper.control import Redrawn, SupportOnly
from fewcal.paper.settings import DEFAULT, gdc, paper_params
from fewcal.params import GDCParams

pytestmark = pytest.mark.usefixtures("two_epochs")


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return make_features(base=6, val=2, novel=6, rows=24, dim=8, seed=0)


def correct(features: FeatureSet, **methods: object) -> dict[str, list[int]]:
    results = evaluate(methods, features, Protocol(tasks=6))  # type: ignore[arg-type]
    return {name: results.correct[name].sum(axis=1).tolist() for name in methods}


def test_the_support_alone_is_the_baseline_of_its_head(features: FeatureSet) -> None:
    """Where a baseline of the package does the same, it gives the same."""
    raw = GDCParams(beta=1.0, head="lbfgs")
    found = correct(
        features,
        lbfgs=SupportOnly(raw),
        lr=make_method("lr"),
        centroid=SupportOnly(raw.with_changes(head="closed_form")),
        ncm=make_method("ncm"),
        unit=SupportOnly(raw.with_changes(head="closed_form", center=True, l2=True)),
        simpleshot=make_method("simpleshot"),
    )
    assert found["lbfgs"] == found["lr"]
    assert found["centroid"] == found["ncm"]
    assert found["unit"] == found["simpleshot"]


def test_the_support_alone_has_the_space_of_the_setting(features: FeatureSet) -> None:
    for params in (paper_params("cub", 1), DEFAULT.params(paper_params("cub", 1))):
        alone = SupportOnly(params)
        assert alone.settings["head"] == ("sgd" if params.head == "sgd" else "centroid")
        assert (alone.settings["center"], alone.settings["l2"]) == (params.center, params.l2)
        results = evaluate({"x": alone}, features, Protocol(tasks=2))
        assert results.accuracy("x").min() > 0.2


def test_redrawing_changes_the_points_and_not_the_tasks(features: FeatureSet) -> None:
    params = paper_params("dogs", 1).with_changes(n=3, k=4, alpha1=1.0)
    found = correct(features, a=gdc(params), b=Redrawn(params, cap_k=True), c=Redrawn(params, cap_k=True))
    assert found["b"] == found["c"]
    assert found["a"] != found["b"]
    # In closed form nothing is drawn, and nothing changes.
    closed = params.with_changes(head="closed_form")
    same = correct(features, a=gdc(closed), b=Redrawn(closed, cap_k=True))
    assert np.array_equal(same["a"], same["b"])
