"""`.npz`: arrays `features` (R, D), `labels` (R,) int or str, and optionally `classes` (C,); or `.npy` files of them.

`NAME.npy` has the features beside `NAME_labels.npy`, and `NAME_classes.npy` where it is there. `features` in a name
becomes `labels` in that of its pair: `features.npy` and `labels.npy`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, require_features
from fewcal.features.io.regular import open_regular


def read_npz(path: Path) -> RawSplit:
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise FileFormatError(f"{path} is a single array (npy), not an npz; save features and labels with np.savez")
    with archive:
        require_features(path, archive.files, "array")
        names = {"features", "labels", "classes"} & set(archive.files)
        return RawSplit(
            **{name: _array(f"{path}: array {name!r}", partial(archive.__getitem__, name)) for name in names}
        )


def read_npy(path: Path) -> RawSplit:
    files = {"features": path}
    for part in ("labels", "classes"):
        name = path.stem.replace("features", part) if "features" in path.stem else f"{path.stem}_{part}"
        files[part] = path.with_name(f"{name}.npy")
    arrays = {}
    for part, file in files.items():
        if part == "features" or file.is_file():
            with open_regular(file) as stream:
                arrays[part] = _array(str(file), partial(np.lib.format.read_array, stream, allow_pickle=False))
    return RawSplit(**arrays)


def _array(where: str, read: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return np.asarray(read())
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise FileFormatError(
            f"{where} holds Python objects, which are never loaded; save numbers or text (np.asarray(x.tolist()))"
        ) from None


def write_npz(path: Path, raw: RawSplit) -> None:
    arrays = {"features": raw.features}
    if raw.labels is not None:
        arrays["labels"] = raw.labels
    if raw.classes is not None:
        arrays["classes"] = np.asarray(raw.classes, dtype=np.str_)
    with path.open("wb") as file:  # an open file, since np.savez appends .npz to a name
        np.savez(file, **arrays)  # type: ignore[arg-type]


FORMAT = FileFormat((".npz",), read_npz, write_npz)
NPY_FORMAT = FileFormat((".npy",), read_npy)
