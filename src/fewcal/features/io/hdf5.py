"""`.h5`: data sets `features`, `labels` and optionally `classes`; or `all_feats`, `all_labels` and `count`, as the
feature files of Chen et al. 2019 and of S2M2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fewcal._utils.memory import require_memory
from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, require_features


def read_hdf5(path: Path) -> RawSplit:
    import h5py

    with h5py.File(path, "r") as file:
        theirs = {"all_feats": "features", "all_labels": "labels"} if "all_feats" in file else {}
        names = {
            theirs.get(name, name): name
            for name in file
            if file.get(name, getlink=True, getclass=True) is h5py.HardLink
        }
        require_features(path, names, "data set")
        arrays = {part: _array(path, file[names[part]]) for part in ("features", "labels", "classes") if part in names}
        if "count" in file and theirs:  # rows behind it were never written
            arrays = {part: array[: int(np.ravel(file["count"][()])[0])] for part, array in arrays.items()}
    return RawSplit(**arrays)


def _array(path: Path, data: Any) -> np.ndarray:
    """Return a data set whose numbers are in the file itself."""
    if not hasattr(data, "shape") or data.is_virtual or data.external:
        raise FileFormatError(f"{path}: {data.name} is no data set with its numbers in this file; write them into it")
    require_memory(data.size * data.dtype.itemsize, f"{path}: {data.name}", "split it into several files")
    return np.asarray(data.asstr()[()] if data.dtype.kind == "O" else data[()])


FORMAT = FileFormat((".h5", ".hdf5"), read_hdf5)
