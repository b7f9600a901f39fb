"""Gaussianizer against the core, in parts, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fewcal import Gaussianizer
from fewcal.errors import InputError
from fewcal.gaussianize import fit_gaussianization
from small_worlds import make_world

X = make_world(1, signed=True, tasks=1, ways=4, shots=3).support[0]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
def test_gaussianizer_is_the_core_and_has_a_way_back(signed: bool, beta: float) -> None:
    x = make_world(4, signed=signed).x.astype(np.float64)
    g = Gaussianizer(beta, center=True).fit(x)
    z = g.transform(x)
    np.testing.assert_allclose(
        z, fit_gaussianization(torch.from_numpy(x), beta, center=True)(torch.from_numpy(x)), atol=1e-5
    )
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(g.inverse_transform(z), x, atol=1e-6)
    assert g.kind_ == ("yeo-johnson" if signed else "tukey")


def test_gaussianizer_in_parts_types_and_names() -> None:
    x = make_world(4, signed=True).x
    whole = Gaussianizer(center=True, l2=True).fit(x)
    parts = Gaussianizer(center=True, l2=True)
    for chunk in np.array_split(x, 5):
        parts.partial_fit(chunk)
    assert parts.n_samples_seen_ == len(x)
    np.testing.assert_allclose(parts.transform(x), whole.transform(x), rtol=1e-5, atol=1e-6)
    assert whole.transform(x).dtype == np.float32
    assert whole.transform(x.astype(np.float64)).dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(whole.transform(x), axis=1), 1, rtol=1e-5)
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])
    out = Gaussianizer(beta=1.0).set_output(transform="pandas").fit_transform(frame)
    assert out.columns.tolist() == frame.columns.tolist()
    assert not hasattr(whole, "inverse_transform")
    with pytest.raises(AttributeError) as refused:
        whole.inverse_transform(x)
    assert "cannot be undone; use l2=False" in str(refused.value.__cause__)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 11}, "beta=11 is out of range"),
        ({"kind": "box-cox"}, "kind='box-cox' is unknown; use one of auto, tukey"),
        ({"eps": 0.0}, "eps=0.0 must be > 0"),
        ({"kind": "tukey"}, "kind='tukey' with negative base features"),
    ],
)
def test_gaussianizer_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Gaussianizer(**settings).fit(X)


def test_gaussianizer_leaves_its_input_alone() -> None:
    x = np.abs(X)
    before = x.copy()
    out = Gaussianizer(beta=1.0).fit_transform(x)
    out += 1
    assert (x == before).all()
