"""`.safetensors`: tensors `features` and `labels`; metadata `classes`, a JSON list, and `checksums`, both optional.

Files of others need no checksums. Where a file has them, features, labels and class names are compared with them:
safetensors itself reads a flipped bit as another number.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, classes_from_json, require_features


def read_safetensors(path: Path) -> RawSplit:
    from safetensors import safe_open

    with safe_open(str(path), framework="np") as file:
        names = list(file.keys())
        require_features(path, names, "tensor")
        if "BF16" in str(file.get_slice("features").get_dtype()):
            raise FileFormatError(
                f"{path}: 'features' is bfloat16, which NumPy cannot hold; save it as float16 or float32"
            )
        features = file.get_tensor("features")
        labels = file.get_tensor("labels") if "labels" in names else None
        metadata = file.metadata() or {}
    classes = metadata.get("classes")
    sums = _checksums(features, labels, classes)
    # Found by key or by how they begin: damage that hits the one leaves the other.
    stored = [v for key, v in metadata.items() if key == "checksums" or v.startswith(sums[:8])]
    if stored not in ([], [sums]):
        raise FileFormatError(f"{path} is damaged: it does not hold what was written; get or make it again")
    return RawSplit(features, labels, None if classes is None else classes_from_json(classes, path))


def write_safetensors(path: Path, raw: RawSplit) -> None:
    from safetensors.numpy import save_file

    # safetensors writes the buffer as it lies, so a transposed view would come back scrambled.
    arrays = {"features": np.ascontiguousarray(raw.features)}
    if raw.labels is not None:
        arrays["labels"] = np.ascontiguousarray(raw.labels)
    classes = None if raw.classes is None else json.dumps(raw.classes)
    sums = _checksums(arrays["features"], arrays.get("labels"), classes)
    save_file(arrays, str(path), {"checksums": sums} | ({} if classes is None else {"classes": classes}))
    _sort_metadata(path)


def _checksums(features: np.ndarray, labels: np.ndarray | None, classes: str | None) -> str:
    """Return the CRC-32 of each array, with its type and shape, and of the class names, as JSON."""

    def checksum(array: np.ndarray | None) -> int | None:
        if array is None:
            return None
        start = zlib.crc32(f"{array.dtype.str} {array.shape}".encode())
        return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)

    names = None if classes is None else zlib.crc32(classes.encode())
    return json.dumps({"crc32": {"features": checksum(features), "labels": checksum(labels), "classes": names}})


def _sort_metadata(path: Path) -> None:
    """Sort the metadata, which safetensors writes in a random order: the same features give the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) == size:
            file.seek(8)
            file.write(text)


FORMAT = FileFormat((".safetensors",), read_safetensors, write_safetensors)
