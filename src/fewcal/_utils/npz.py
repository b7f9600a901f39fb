"""NumPy's `.npz` files of others: read whole, or refused with a reason."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from fewcal._utils.text import one_line
from fewcal.errors import FileFormatError


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file, or those of them with some names; objects are never unpickled."""
    try:
        if path.stat().st_size == 0:
            raise ValueError("it is empty")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if names is None or name in names}
    except Exception as error:  # a torn or forged file can raise anything at all
        reason = one_line(error)
        raise FileFormatError(f"{path} cannot be read as npz ({reason}); write or get it again") from error
