"""`.safetensors`: tensors `features` and `labels`; metadata `classes`, a JSON list, optional."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, classes_from_json, listed


def read_safetensors(path: Path) -> RawSplit:
    from safetensors import safe_open

    with safe_open(str(path), framework="np") as file:
        names = list(file.keys())
        if "features" not in names:
            raise FileFormatError(f"{path} has no tensor 'features' (it has: {listed(names)}); save it under that name")
        if "BF16" in str(file.get_slice("features").get_dtype()):
            raise FileFormatError(
                f"{path}: 'features' is bfloat16, which NumPy cannot hold; save it as float16 or float32"
            )
        features = file.get_tensor("features")
        labels = file.get_tensor("labels") if "labels" in names else None
        classes = (file.metadata() or {}).get("classes")
    return RawSplit(features, labels, None if classes is None else classes_from_json(classes, path))


def write_safetensors(path: Path, raw: RawSplit) -> None:
    from safetensors.numpy import save_file

    # safetensors writes the buffer as it lies, so a transposed view would come back scrambled.
    arrays = {"features": np.ascontiguousarray(raw.features)}
    if raw.labels is not None:
        arrays["labels"] = np.ascontiguousarray(raw.labels)
    save_file(arrays, str(path), None if raw.classes is None else {"classes": json.dumps(raw.classes)})


FORMAT = FileFormat((".safetensors",), read_safetensors, write_safetensors)
