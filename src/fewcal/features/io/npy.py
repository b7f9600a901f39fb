"""`.npy` pairs: `NAME.npy` with features (R, D) beside `NAME_labels.npy`, and `NAME_classes.npy` where it is there.

`features` in a name becomes `labels` in that of its pair: `features.npy` and `labels.npy`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, class_names
from fewcal.features.io.regular import open_regular


def read_npy(path: Path) -> RawSplit:
    arrays = {"features": _array(path)}
    for part in ("labels", "classes"):
        name = path.stem.replace("features", part) if "features" in path.stem else f"{path.stem}_{part}"
        if (file := path.with_name(f"{name}.npy")).is_file():
            arrays[part] = _array(file)
    return RawSplit(arrays["features"], arrays.get("labels"), class_names(arrays.get("classes")))


def _array(path: Path) -> np.ndarray:
    with open_regular(path) as file:
        try:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except ValueError as error:
            if "Object arrays" in str(error):
                message = f"{path} holds Python objects, which are never loaded; save numbers or text"
                raise FileFormatError(message) from None
            raise


FORMAT = FileFormat((".npy",), read_npy)
