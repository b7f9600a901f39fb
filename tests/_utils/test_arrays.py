"""The edge to the user's arrays: what is accepted, and what each refusal says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fewcal._utils.arrays import LARGEST, as_features, check_finite, encode_labels, pick_device
from fewcal.errors import FewcalError, InputError

# ---- features -------------------------------------------------------------------------------------------------

GOOD = np.arange(12, dtype=np.float64).reshape(4, 3)


@pytest.mark.parametrize(
    "given_as",
    [
        GOOD.tolist(),
        GOOD,
        GOOD.astype(np.float32),
        GOOD.astype(np.float16),
        GOOD.astype(np.longdouble),
        GOOD.astype(">f4"),
        GOOD.astype(np.int64),
        GOOD.astype(np.uint8),
        GOOD.astype(object),
        np.asfortranarray(GOOD),
        GOOD[::-1][::-1],
        np.repeat(GOOD, 2, axis=1)[:, ::2],
        torch.from_numpy(GOOD),
        torch.from_numpy(GOOD).to(torch.int32),
        pd.DataFrame(GOOD, columns=list("abc")),
    ],
    ids=lambda v: f"{type(v).__name__} {getattr(v, 'dtype', '')}",
)
def test_numbers_of_any_kind_become_float32(given_as: object) -> None:
    t = as_features(given_as)
    assert t.dtype == torch.float32
    assert np.array_equal(t.numpy(), GOOD)


def test_views_that_run_backwards_and_read_only_arrays() -> None:
    frozen = GOOD.astype(np.float32)
    frozen.flags.writeable = False
    assert np.array_equal(as_features(frozen).numpy(), GOOD)
    assert np.array_equal(as_features(GOOD[::-1]).numpy(), GOOD[::-1])
    assert np.array_equal(as_features(GOOD[:, ::-1]).numpy(), GOOD[:, ::-1])


def test_tensors_that_need_gradients_are_detached() -> None:
    assert not as_features(torch.ones(2, 2, requires_grad=True)).requires_grad


def test_booleans_are_zero_and_one() -> None:
    assert as_features([[True, False]]).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([[1.0, np.nan]], ["support", "NaN", "row 0", "drop or impute"]),
        ([[1.0, 2.0], [np.inf, 0.0]], ["support", "infinity", "row 1", "drop or impute"]),
        ([[-np.inf, np.inf]], ["support", "infinity", "row 0"]),
        ([1.0, 2.0], ["support", "(2,)", "2-D"]),
        (np.zeros((2, 2, 2)), ["support", "(2, 2, 2)", "2-D"]),
        (3.0, ["support", "()", "2-D"]),
        (np.zeros((3, 0)), ["support", "0 features", "at least one column"]),
        ([["a", "b"]], ["support", "not numbers", "2-D array of floats"]),
        (np.array([[object()]]), ["support", "object", "not numbers"]),
        (np.array([[None, 1.0]]), ["support", "NaN", "row 0"]),
        ([[1.0, 2.0], [3.0]], ["support", "rows of different length"]),
        (np.zeros((2, 2), dtype=complex), ["support", "complex128", "real numbers"]),
        (torch.zeros(2, 2, dtype=torch.complex64), ["support", "complex64", "real numbers"]),
        (np.zeros((2, 2), dtype="datetime64[s]"), ["support", "datetime64", "real numbers"]),
        (np.zeros((2, 2), dtype=[("a", "f4"), ("b", "f4")]), ["support", "not numbers"]),
        (None, ["support", "2-D"]),
    ],
    ids=lambda v: None if isinstance(v, list) and isinstance(v[0], str) else type(v).__name__,
)
def test_bad_features_are_refused_by_name(bad: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        as_features(bad, "support")
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_values_beyond_the_storage_are_named_as_such() -> None:
    with pytest.raises(InputError, match=r"1e\+06 in row 1, .*float16"):
        as_features([[1.0], [1e6]], dtype=torch.float16)
    with pytest.raises(InputError, match=r"1e\+300 in row 0, .*float32"):
        as_features(np.array([[1e300]]))


def test_wrong_dimension_names_both_sides() -> None:
    with pytest.raises(InputError, match="query has 3 features, but the bank has 5"):
        as_features(GOOD, "query", dim=5)


@settings(deadline=None)
@given(
    npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(width=32)),
)
def test_accepted_exactly_when_finite_and_of_sound_size(x: np.ndarray) -> None:
    t = torch.from_numpy(x)
    good = np.abs(x) < LARGEST
    if good.all():
        check_finite(t, "X")
        assert np.array_equal(as_features(x).numpy(), x)
    else:
        row = int((~good.all(axis=1)).argmax())
        with pytest.raises(InputError, match=rf"row {row}[;,]"):
            check_finite(t, "X")


@pytest.mark.parametrize("size", [1e15, 1e200, torch.finfo(torch.float64).max])
def test_numbers_whose_squares_overflow_are_refused(size: float) -> None:
    x = torch.ones(3, 2, dtype=torch.float64)
    x[1, 0] = -size
    with pytest.raises(InputError, match=r"row 1, and sums of squares of such do not fit .* below 1e\+15"):
        check_finite(x, "X")


# ---- labels ---------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.text(max_size=2), st.integers(0, 3), st.tuples(st.integers(0, 1))), max_size=20))
def test_codes_restore_the_labels(y: list) -> None:
    classes, codes = encode_labels(y, len(y))
    assert [classes[c] for c in codes] == y
    assert len(set(classes)) == len(classes)
    assert sorted(set(codes.tolist())) == list(range(len(classes)))


@pytest.mark.parametrize(
    "y", [np.array(["a", "b"]), torch.tensor([4, 2]), pd.Series(["x", "y"]), ("u", 3), [np.int64(1), np.str_("s")]]
)
def test_labels_of_any_container(y: object) -> None:
    classes, codes = encode_labels(y, 2)
    assert codes.tolist() == [0, 1]
    assert not any(isinstance(c, np.generic) for c in classes)


@pytest.mark.parametrize(
    ("y", "rows", "words"),
    [
        ([0, 1], 3, "2 labels for 3 rows"),
        ([0, float("nan")], 2, "nan as the label of row 1"),
        ([0, [1]], 2, r"\[1\] of row 1 is not hashable"),
        (np.zeros((2, 1)), 2, r"shape \(2, 1\); expected one label per row"),
        (np.array(1), 1, "expected one label per row"),
        (None, 2, "one label per row"),
        (5, 1, "one label per row"),
    ],
)
def test_bad_labels(y: object, rows: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encode_labels(y, rows)


# ---- devices --------------------------------------------------------------------------------------------------


def test_devices() -> None:
    assert pick_device(None).type == "cpu"
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="'gpu' is not a device; use 'cpu'"):
        pick_device("gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(InputError, match="no usable CUDA device; use device='cpu'"):
        pick_device("cuda")


def test_errors_are_value_errors_too() -> None:
    assert issubclass(InputError, FewcalError)
    assert issubclass(InputError, ValueError)
