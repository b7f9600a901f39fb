"""`.npz`: arrays `features` (R, D), `labels` (R,) int or str, and optionally `classes` (C,)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, class_names, require_features


def read_npz(path: Path) -> RawSplit:
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise FileFormatError(f"{path} is a single array (npy), not an npz; save features and labels with np.savez")
    with archive:
        require_features(path, archive.files, "array")
        arrays = {}
        for name in {"features", "labels", "classes"} & set(archive.files):
            try:
                arrays[name] = archive[name]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                raise FileFormatError(
                    f"{path}: array {name!r} holds Python objects, which are never loaded; "
                    "save it as plain numbers or text (np.asarray(x.tolist()))"
                ) from None
    return RawSplit(arrays["features"], arrays.get("labels"), class_names(arrays.get("classes")))


def write_npz(path: Path, raw: RawSplit) -> None:
    arrays = {"features": raw.features}
    if raw.labels is not None:
        arrays["labels"] = raw.labels
    if raw.classes is not None:
        arrays["classes"] = np.asarray(raw.classes, dtype=np.str_)
    with path.open("wb") as file:  # an open file, since np.savez appends .npz to a name
        np.savez(file, **arrays)  # type: ignore[arg-type]


FORMAT = FileFormat((".npz",), read_npz, write_npz)
