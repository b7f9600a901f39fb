"""What users pass by mistake gets one clear line; what is only unusual works."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.base import clone

from fewcal import BaseBank, FewShotClassifier, GDCClassifier
from fewcal.errors import FewcalWarning
from small_worlds import SmallData


@pytest.fixture
def task(world: SmallData) -> tuple[np.ndarray, np.ndarray]:
    return world.support[0], np.array(["ant", "bee", "cat"])[world.labels[0]]


BAD_ROWS = {
    "sparse": (scipy.sparse.csr_matrix, "parse"),
    "one dimension": (lambda x: x[0], "Reshape your data"),
    "three dimensions": (lambda x: x[None], "Reshape your data"),
    "complex": (lambda x: x.astype(complex), "Complex data not supported"),
    "texts": (lambda x: x.astype(str) + "?", "not numbers"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows_in_every_door_get_one_line(kind: str, task: tuple[np.ndarray, np.ndarray]) -> None:
    (x, y), (make, words) = task, BAD_ROWS[kind]
    fitted = FewShotClassifier().fit(x, y)
    for use in (lambda bad: clone(fitted).fit(bad, y), fitted.predict, lambda bad: fitted.add_examples(bad, y)):
        with pytest.raises((ValueError, TypeError), match=words) as error:
            use(make(x))
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="base X") as error:
        BaseBank().fit(make(x), y)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT], ids=str)
def test_missing_label_is_named_by_its_row(missing: object, task: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = task
    labels = pd.Series([*y[:-1], missing], dtype=object)
    for use in (FewShotClassifier().fit, BaseBank().fit):
        with pytest.raises(ValueError, match=rf"row {len(y) - 1}\b"):
            use(x, labels)


def test_bytes_labels_get_one_line(task: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = task
    with pytest.raises(TypeError, match="labels represented as bytes"):
        FewShotClassifier().fit(x, y.astype("S"))


@pytest.mark.parametrize(
    "make",
    [torch.Tensor.requires_grad_, torch.Tensor.bfloat16, torch.Tensor.half],
    ids=["gradients", "bfloat16", "half"],
)
def test_tensors_answer_as_their_values_do(make: object, task: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = task
    tensor = make(torch.tensor(x))  # type: ignore[operator]
    values = tensor.detach().float().numpy()
    np.testing.assert_allclose(
        FewShotClassifier().fit(tensor, y).predict_proba(tensor),
        FewShotClassifier().fit(values, y).predict_proba(values),
        atol=1e-6,
    )


def test_warning_about_a_bank_comes_once_for_all_fits(task: tuple[np.ndarray, np.ndarray]) -> None:
    (x, y), rng = task, np.random.default_rng(0)
    meaningless = BaseBank().fit(rng.normal(size=(80, x.shape[1])), np.repeat(np.arange(20), 4))
    few = BaseBank().fit(np.repeat(x[:1], 6, axis=0) + rng.random((6, x.shape[1])), [0, 0, 1, 1, 2, 2])
    for classifier in (FewShotClassifier(meaningless), GDCClassifier(few, head="closed_form", alpha2_ratio=0.0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                clone(classifier).fit(x, y)
        assert [one.category for one in caught] == [FewcalWarning]


def test_explanation_of_integer_base_classes_names_them(world: SmallData, task: tuple[np.ndarray, np.ndarray]) -> None:
    bank = BaseBank().fit(world.x, np.unique(world.y, return_inverse=True)[1])
    assert "base class " in str(FewShotClassifier(bank).fit(*task).explain())
