"""The edge between the user's arrays and the engine's tensors: one place for checks and conversions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.names import checked_device
from fewcal.errors import FewcalWarning, InputError


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The device of that name; `None` means CPU and "auto" means CUDA where there is one.

    >>> pick_device(None)
    device(type='cpu')
    """
    if device is None:
        return torch.device("cpu")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(checked_device(device) if isinstance(device, str) else device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={device!r}: this machine has no usable CUDA device; use device='cpu'")
    return chosen


def as_features(
    x: Any,
    name: str = "X",
    *,
    dim: int | None = None,
    against: str = "the bank",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    check: bool = True,
    shift: Tensor | None = None,
) -> Tensor:
    """Rows of numbers as a 2-D tensor `(R, D)` on `device`, float32 by default; all else is refused with a reason.

    `shift (D,)` is subtracted in double precision.

    >>> as_features([[1, 2], [3, 4]]).dtype
    torch.float32
    >>> as_features([[1.0, float("nan")]], "support")
    Traceback (most recent call last):
    ...
    fewcal.errors.InputError: support has NaN in row 0; drop or impute such rows first
    """
    where = pick_device(device)
    if isinstance(x, torch.Tensor):
        t = x.detach()
        if t.is_complex():
            raise InputError(f"{name} has dtype {t.dtype}; pass real numbers (float32 is best)")
    else:
        if hasattr(x, "toarray"):
            raise InputError(f"{name} is sparse; pass {name.split()[-1]}.toarray()")
        try:
            a = np.asarray(x)
        except ValueError as error:
            raise InputError(f"{name} has rows of different length; pass a 2-D array of floats ({error})") from error
        if a.dtype.kind in "OUSV":
            try:
                a = a.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{name} holds {a.dtype} values that are not numbers ({error}); pass a 2-D array of floats"
                ) from error
        if a.dtype.kind not in "fiub":
            raise InputError(f"{name} has dtype {a.dtype}; pass real numbers (float32 is best)")
        if a.dtype.kind == "f" and a.dtype.itemsize > 8:
            a = a.astype(np.float64)  # torch has no long double
        if not (a.flags.writeable and a.dtype.isnative) or any(s < 0 for s in a.strides):
            a = a.astype(a.dtype.newbyteorder("="), order="C", copy=True)
        exact = np.float32 if a.dtype.itemsize <= 2 else np.float64
        t = torch.from_numpy(a if a.dtype.kind == "f" else a.astype(exact))
    if t.ndim != 2:
        raise InputError(
            f"{name} has shape {tuple(t.shape)}; expected 2-D: one row per example, one column per feature"
        )
    if t.shape[1] == 0:
        raise InputError(f"{name} has 0 features; it needs at least one column")
    if dim is not None and t.shape[1] != dim:
        raise InputError(
            f"{name} has {t.shape[1]} features, but {against} has {dim}; both must come from the same feature extractor"
        )
    if shift is not None:
        t = t.double() - shift.to(t.device)
    out = t.to(device=where, dtype=dtype or torch.float32)
    if check:
        check_finite(out, name, t)
    return out


# Rounding error of features, as a share of their standard deviation, from which on precision counts as lost.
ROUNDING_SHARE = 1e-3
# Rows by which that is judged, at most.
SHIFT_ROWS = 1024


def common_shift(x: Any, name: str = "X") -> Tensor | None:
    """The mean `(D,)` of rows `(R, D)` in double precision, where single precision would not hold their differences.

    None for rows that it does hold, and for those that are given in less than double precision: what they have lost
    cannot be given back, and a warning says so.

    >>> common_shift(np.array([[1e8, 1.0], [1e8 + 1, 2.0]])).tolist(), common_shift(np.eye(2))
    ([100000000.5, 1.5], None)
    """
    every = x.detach().cpu() if isinstance(x, torch.Tensor) else _array(x)
    if every is None or every.ndim != 2 or not len(every):
        return None
    some = every[:: -(-len(every) // SHIFT_ROWS)]
    t = some if isinstance(some, torch.Tensor) else torch.from_numpy(np.array(some, some.dtype.newbyteorder("=")))
    if t.is_complex():
        return None
    exact = not t.is_floating_point() or t.dtype == torch.float64
    mean = t.mean(dim=0, dtype=torch.float64)
    deviation = (t.double() - mean).square().sum().div(len(t)).sqrt()
    length = torch.linalg.vector_norm(mean)

    def loses(dtype: torch.dtype) -> bool:
        return bool(length * torch.finfo(dtype).eps / 2 > ROUNDING_SHARE * deviation > 0)

    if not bool(torch.isfinite(length + deviation)) or not loses(torch.float32):
        return None
    if not exact or loses(torch.float64):
        given = str(t.dtype).removeprefix("torch.")
        warn(
            f"{name} has a mean of length {float(length):.3g} and a standard deviation of {float(deviation):.3g}: "
            f"{given} has lost precision; subtract the mean of the features before they are stored",
            FewcalWarning,
            stacklevel=3,
        )
    if not exact:
        return None
    whole = every.double().mean(dim=0) if isinstance(every, torch.Tensor) else every.mean(axis=0, dtype=np.float64)
    return torch.as_tensor(whole)


def _array(x: Any) -> np.ndarray | None:
    """Numbers as an array; None for anything else, which is refused elsewhere."""
    try:
        a = np.asarray(x)
    except ValueError:
        return None
    return a if a.dtype.kind in "fiu" and a.dtype.itemsize <= 8 else None


# Sums of squares of numbers beyond this leave the range of float32: distances and covariances would be infinite.
LARGEST = 1e15


def check_finite(t: Tensor, name: str, given: Tensor | None = None) -> None:
    """Raise when `t (R, D)` holds NaN, infinity or numbers whose squares do not fit, naming the first bad row.

    `given` is what `t` was made from.
    """
    # NaN, infinity and large numbers show in the length of all, which is much cheaper than an elementwise test.
    wide = torch.float32 if t.dtype.itemsize < 4 else t.dtype
    if float(torch.linalg.vector_norm(t, dtype=wide)) < LARGEST:
        return
    bad = ~(t.abs() < LARGEST).all(dim=1)
    if not bool(bad.any()):
        return
    row = int(bad.nonzero()[0])
    if bool(torch.isfinite(t[row]).all()):
        raise InputError(
            f"{name} has values up to {float(t[row].abs().max()):.3g} in row {row}, and sums of squares of such do not "
            f"fit single precision; divide all features by a constant so that they stay below {LARGEST:.0e}"
        )
    if given is not None and bool(torch.isfinite(given[row]).all()):
        dtype = str(t.dtype).removeprefix("torch.")
        raise InputError(
            f"{name} has values up to {float(given[row].abs().max()):.3g} in row {row}, beyond what {dtype} holds; "
            "rescale the features or use a wider dtype"
        )
    what = "NaN" if bool(torch.isnan(t[row]).any()) else "infinity"
    raise InputError(f"{name} has {what} in row {row}; drop or impute such rows first")


def encode_labels(y: Any, rows: int, name: str = "y") -> tuple[list[Hashable], np.ndarray]:
    """Classes in order of first appearance and the position of each row's class, for any hashable labels.

    >>> encode_labels(["b", "a", "b"], rows=3)
    (['b', 'a'], array([0, 1, 0]))
    """
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu().numpy()
    if isinstance(y, np.ndarray) and y.ndim != 1:
        raise InputError(f"{name} has shape {y.shape}; expected one label per row")
    try:
        values: Sequence[Any] = y.tolist() if hasattr(y, "tolist") else list(y)
    except TypeError as error:
        raise InputError(f"{name}={y!r} is not a list of labels; give exactly one label per row") from error
    if len(values) != rows:
        raise InputError(f"{name} has {len(values)} labels for {rows} rows; give exactly one label per row")
    position: dict[Hashable, int] = {}
    codes = np.empty(len(values), dtype=np.int64)
    for i, value in enumerate(values):
        if isinstance(value, np.generic):
            value = value.item()
        missing = value is None or (isinstance(value, float) and value != value)
        if missing or type(value).__name__ in ("NAType", "NaTType"):
            raise InputError(f"{name} has {value} as the label of row {i}; every row needs a class")
        try:
            codes[i] = position.setdefault(value, len(position))
        except TypeError as error:
            raise InputError(f"label {value!r} of row {i} is not hashable; use strings, numbers or tuples") from error
    return list(position), codes
