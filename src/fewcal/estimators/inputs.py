"""What users give the estimators, made ready: rows, banks, parameters, seeds.

Arrays of floats with plain labels are checked here, in microseconds; whatever else there is goes through
scikit-learn's own validation, which is loaded when it is first needed.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import fields
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, TypeGuard
from warnings import catch_warnings, filterwarnings, warn

import numpy as np
import torch

from fewcal._utils.arrays import check_finite, pick_device
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.methods.base import RowMap
from fewcal.params import GDCParams
from fewcal.presets import get_preset

# What rows may be held in; anything else becomes the first.
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_HALF = np.dtype(np.float16)
FIELDS = tuple(f.name for f in fields(GDCParams))


def check_fitted(estimator: object) -> None:
    """Raise scikit-learn's `NotFittedError` unless `fit` was called, or `partial_fit` has had rows of two classes."""
    waits = hasattr(estimator, "support_") and not hasattr(estimator, "classes_")
    if waits or not hasattr(estimator, "n_features_in_"):
        from sklearn.exceptions import NotFittedError

        remedy = "call partial_fit with rows of a second class" if waits else "call fit first"
        raise NotFittedError(f"this {type(estimator).__name__} is not fitted yet; {remedy}")


def check_rows(estimator: Any, X: object, *, reset: bool) -> np.ndarray:
    """Rows `X (R, D)` of numbers below `LARGEST`; one-line errors for anything else."""
    X = _from_torch(X)
    plain = _plain_rows(estimator, X, reset)
    rows = _as_floats(np.asarray(X)) if plain else _validated(estimator, X, "no_validation", reset)
    check_finite(as_tensor(rows), "X")
    return rows


def check_support(estimator: Any, X: object, y: object) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their labels, with one-line errors for what few-shot data gets wrong."""
    X, y = _from_torch(X), _from_torch(y)
    if isinstance(X, np.ndarray) and _plain_labels(y) and len(y) == len(X) and _plain_rows(estimator, X, reset=True):
        rows = _as_floats(X)
        check_finite(as_tensor(rows), "X")
        return rows, y
    if y is not None:
        _check_shape(X)
        _check_missing(y)
        from sklearn.utils.validation import _num_samples  # private of sklearn: no public row count

        if (given := _num_samples(X)) == 0:
            raise InputError("X has no rows; the support set needs at least one row of each class")
        if given != (labels := _num_samples(y)):
            raise InputError(f"X has {given} rows and y has {labels} labels; give exactly one label per row")
    rows, names = _validated(estimator, X, y, True)
    check_finite(as_tensor(rows), "X")
    return rows, names


def _from_torch(x: object) -> Any:
    """Tensors as arrays, wherever they are and whether they require gradients; all else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def _check_shape(X: object) -> None:
    if (axes := getattr(X, "ndim", 2)) != 2:
        raise InputError(
            f"X has {axes} dimension(s), expected 2, a row an example. Reshape your data: X.reshape(1, -1) is one row"
        )


def _check_missing(y: object) -> None:
    """Refuse None, NaN and the missing values of pandas, of which each library raises an error of its own."""
    labels = y.tolist() if hasattr(y, "tolist") else y
    for i, label in enumerate(labels if isinstance(labels, list | tuple) else []):
        nan = isinstance(label, float) and label != label
        if nan or label is None or type(label).__name__ in ("NAType", "NaTType"):
            raise InputError(f"y has no label in row {i} ({label}); every row needs a class")


def _plain_rows(estimator: Any, X: object, reset: bool) -> TypeGuard[np.ndarray]:
    """Whether scikit-learn would return `_as_floats` of X, without a warning; what it notes is then noted."""
    if type(X) is not np.ndarray or X.ndim != 2 or X.dtype not in (*_FLOATS, _HALF) or 0 in X.shape:
        return False
    if reset:
        vars(estimator).pop("feature_names_in_", None)
        estimator.n_features_in_ = X.shape[1]
    return X.shape[1] == estimator.n_features_in_ and not hasattr(estimator, "feature_names_in_")


def _as_floats(X: np.ndarray) -> np.ndarray:
    return X.astype(_FLOATS[0]) if X.dtype == _HALF else X


def _plain_labels(y: object) -> TypeGuard[np.ndarray]:
    """Whether y is an array of integers or texts, which are classes whatever they hold."""
    return type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "iubU"


def _validated(estimator: object, X: object, y: object, reset: bool) -> Any:
    from sklearn.utils.validation import validate_data

    _check_shape(X)
    try:
        return validate_data(estimator, X, y, dtype=list(_FLOATS), ensure_all_finite=False, reset=reset)
    except ValueError as error:
        if "could not convert" in str(error):
            raise InputError(f"X holds values that are not numbers ({error}); pass a 2-D array of floats") from error
        if str(error).startswith("Complex data"):  # the rest of the message is all the data
            raise InputError("Complex data not supported: X holds complex numbers; pass real ones") from error
        raise


def check_priors(priors: object, classes: list[Hashable]) -> dict[Hashable, float]:
    """Frequencies by class, of the sorted classes or by name, scaled to the sum 1.

    >>> check_priors([1, 3], ["cat", "dog"])
    {'cat': 0.25, 'dog': 0.75}
    """
    values = priors if isinstance(priors, Mapping) else np.asarray(priors)
    if isinstance(values, np.ndarray):
        if values.shape != (len(classes),):
            raise InputError(f"priors has shape {values.shape}; give one frequency for each of {len(classes)} classes")
        values = dict(zip(classes, values.tolist(), strict=True))
    if missing := [c for c in classes if c not in values]:
        raise InputError(f"priors lacks the class {missing[0]!r}; give every class a frequency")
    if other := [c for c in values if c not in classes]:
        raise InputError(f"priors has {other[0]!r}, which is no class of y")
    try:
        found = {c: float(values[c]) for c in classes}
    except (TypeError, ValueError) as error:
        raise InputError("priors must be numbers") from error
    if not all(0 < v < float("inf") for v in found.values()):
        raise InputError(f"priors={list(found.values())} must be positive; leave out a class that cannot occur")
    return {c: v / sum(found.values()) for c, v in found.items()}


def class_codes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted classes of labels `y (S,)`, at least two, and the position of each label among them."""
    if _plain_labels(y):  # the same as below: a set of a few labels is much faster than sorting an array
        given = y.tolist()
        at = {label: i for i, label in enumerate(sorted(set(given)))}
        classes, codes = np.array(list(at), y.dtype), np.array([at[label] for label in given])
    else:
        _check_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y has one class only, {classes.tolist()[0]!r}; give support rows of at least two classes")
    return classes, codes


def _check_targets(y: np.ndarray) -> None:
    from sklearn.utils.multiclass import check_classification_targets

    with catch_warnings():
        # A class for every row or two is what few-shot means; scikit-learn would take it for a regression.
        filterwarnings("ignore", "The number of unique classes", UserWarning)
        try:
            check_classification_targets(y)
            np.unique(y)
        except (TypeError, ValueError) as error:
            types = sorted({type(label).__name__ for label in np.ravel(y).tolist()})
            if len(types) == 1:
                raise
            raise InputError(f"y mixes labels of several types ({', '.join(types)}); use one, e.g. str") from error


def as_tensor(x: np.ndarray) -> torch.Tensor:
    """Rows as a tensor on the same memory, copied only where PyTorch cannot share it."""
    shared = x.flags.writeable and x.dtype.isnative and min(x.strides) >= 0
    return torch.from_numpy(x if shared else x.astype(x.dtype.newbyteorder("="), order="C"))


def map_rows(row_map: RowMap, x: np.ndarray, device: torch.device) -> torch.Tensor:
    """Rows that were checked, in the space of a method, on `device`."""
    rows = as_tensor(x).to(device)
    return row_map.to(device)(rows.float() if row_map.shift is None else rows, "X")


def resolve_bank(bank: object, device: str | torch.device | None) -> BaseBank:
    """A bank from what users give (a bank, a path, or base rows with their labels), on a device as users name it."""
    if isinstance(bank, BaseBank):
        ready = bank
    elif isinstance(bank, str | os.PathLike):
        file = Path(bank).absolute()
        stat = file.stat() if file.is_file() else None
        ready = _load(file, stat and (stat.st_mtime_ns, stat.st_size))
    elif isinstance(bank, tuple) and len(bank) == 2:
        ready = BaseBank().fit(*bank)
    else:
        raise InputError(
            f"bank={_short(bank)} is not a bank; use a BaseBank, a path to a saved one, a tuple (X, y) of base rows "
            "and labels, or None"
        )
    return ready.on(pick_device(device))


@lru_cache(maxsize=4)
def _load(path: Path, stamp: tuple[int, int] | None) -> BaseBank:
    """Clones in a grid search name the same file; they get the same bank, unless the file has changed."""
    return BaseBank.load(path)


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}… ({type(value).__name__})"


def join_labels(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Labels of two fits in one array; texts and numbers are not mixed.

    >>> join_labels(np.array(["cat"]), np.array(["mouse"])).tolist()
    ['cat', 'mouse']
    """
    text = {a.dtype.kind in "US" for a in (old, new) if a.dtype.kind != "O"}
    if len(text) == 2:
        raise InputError(f"the classes so far are {old.dtype} and the new ones {new.dtype}; use labels of one type")
    return np.concatenate([old, new])


def given_params(estimator: object) -> dict[str, object]:
    """Parameters of GDC that an estimator has and was given: those that are not None."""
    return {name: value for name in FIELDS if (value := vars(estimator).get(name)) is not None}


def resolve_params(preset: object, given: dict[str, object]) -> GDCParams:
    """The preset's parameters with those that were given in their place."""
    if not isinstance(preset, str | os.PathLike | GDCParams):
        raise InputError(f"preset={_short(preset)} is not a preset; use a name, a preset file or GDCParams(...)")
    params = preset if isinstance(preset, GDCParams) else get_preset(preset)
    # Grids made with NumPy hold its scalars, which are not Python's.
    return params.with_changes(**{f: v.item() if isinstance(v, np.generic) else v for f, v in given.items()})


def cap_k(params: GDCParams, bank: BaseBank, *, quiet: bool) -> GDCParams:
    """Limit k of a preset to the number of base classes: a preset is for any bank."""
    k, most = params.k, len(bank)
    if k <= most:
        return params
    if not quiet:  # once for each bank: a cross-validation fits many times
        text = f"the preset has k={k} base classes and the bank {most}; k={most} is used"
        bank.memo.get(("warned of k", k), lambda: warn(text, FewcalWarning, 5))
    return params.with_changes(k=most)


def seed_from(random_state: object) -> int:
    """An integer seed from scikit-learn's `random_state`."""
    if type(random_state) is int or isinstance(random_state, Integral):
        return int(random_state)
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
