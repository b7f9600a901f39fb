"""Reading and writing one feature file: npz, parquet, safetensors, and the `.plk` dictionaries of public repositories.

Each reader returns the raw arrays as they stand in the file, `RawSplit`; meaning and validation live in
`featureset.py`. Each writer is atomic: a file is either the old one or the whole new one, never half of it.

| extension | features | labels | class names |
|---|---|---|---|
| .npz | `features` (R, D) | `labels` (R,), int or str | `classes` (C,), optional |
| .parquet | columns `f0`..`fD-1`, or one list column `features` | column `label`, int or str | schema metadata |
| .safetensors | tensor `features` | tensor `labels` | metadata `classes`, a JSON list, optional |
| .plk, .pkl | `{class: [vector, ...]}`, read only | the keys | the keys, where they are text |
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal.errors import FileFormatError, InputError

# Lets a folder hold our class order in parquet, where the label column alone would only give the sorted names.
PARQUET_CLASSES = b"fewcal.classes"


@dataclass(frozen=True)
class RawSplit:
    """What a file holds: features (R, D) of any dtype, labels (R,) int or str or None, class names or None."""

    features: np.ndarray
    labels: np.ndarray | None
    classes: list[str] | None


def _read_npz(path: Path) -> RawSplit:
    with np.load(path, allow_pickle=False) as archive:
        if isinstance(archive, np.ndarray):
            raise FileFormatError(f"{path} is a single array (npy), not an npz; save features and labels with np.savez")
        names = archive.files
        if "features" not in names:
            raise FileFormatError(f"{path} has no array 'features' (it has: {_listed(names)}); save it under that name")
        arrays = {}
        for name in ("features", "labels", "classes"):
            if name in names:
                try:
                    arrays[name] = archive[name]
                except ValueError as error:
                    if "allow_pickle" not in str(error):
                        raise
                    raise FileFormatError(
                        f"{path}: array {name!r} holds Python objects, which are never loaded; "
                        f"save it as plain numbers or text (np.asarray(x.tolist()))"
                    ) from None
    classes = arrays.get("classes")
    return RawSplit(
        arrays["features"], arrays.get("labels"), None if classes is None else [_text(c) for c in np.ravel(classes)]
    )


def _read_parquet(path: Path) -> RawSplit:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        label = next((name for name in ("label", "labels") if name in schema.names), None)
        wide = [name for name in schema.names if re.fullmatch(r"f(0|[1-9]\d*)", name)]
        if "features" in schema.names:
            columns = ["features"]
        elif wide:
            columns = [f"f{i}" for i in range(len(wide))]
            if missing := [name for name in columns if name not in schema.names]:
                raise FileFormatError(
                    f"{path} has {len(wide)} feature columns but no {missing[0]!r}; "
                    f"name them f0..f{len(wide) - 1} without gaps"
                )
        else:
            raise FileFormatError(
                f"{path} has no column 'features' and no columns f0, f1, ... (it has: {_listed(schema.names)}); "
                f"rename the feature columns"
            )
        for name in columns:
            kind = schema.field(name).type
            if name == "features":
                if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
                    raise FileFormatError(
                        f"{path}: column 'features' is {kind}, not a list of numbers; store one list per row"
                    )
                kind = kind.value_type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                raise FileFormatError(f"{path}: column {name!r} is non-numeric ({kind}); store numbers")
        table = file.read(columns=columns + ([label] if label else []))
        metadata = (schema.metadata or {}).get(PARQUET_CLASSES)

    for name in table.column_names:
        if nulls := table[name].null_count:
            raise FileFormatError(f"{path}: column {name!r} has {nulls} missing values; fill or drop those rows")
    if columns == ["features"]:
        features = _list_column(table["features"].combine_chunks(), path)
    else:
        kinds = {str(table[name].type) for name in columns}
        dtype = np.float16 if kinds == {"halffloat"} else np.float32
        features = np.empty((table.num_rows, len(columns)), dtype)
        for i, name in enumerate(columns):
            features[:, i] = table[name].to_numpy()
    labels = None
    if label is not None:
        column = table[label]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        labels = np.asarray(column.to_pylist()) if not pa.types.is_integer(column.type) else column.to_numpy()
    return RawSplit(features, labels, None if metadata is None else _classes_from_json(metadata.decode(), path))


def _list_column(column: Any, path: Path) -> np.ndarray:
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    blocks = []
    for chunk in chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        if len(chunk) and not pa.types.is_fixed_size_list(chunk.type):
            lengths = np.asarray(chunk.value_lengths())
            if (lengths != lengths[0]).any():
                raise FileFormatError(
                    f"{path}: rows of 'features' have {lengths.min()} to {lengths.max()} numbers; all need the same"
                )
        if chunk.flatten().null_count:
            raise FileFormatError(f"{path}: 'features' has missing values; fill or drop those rows")
        blocks.append(values.reshape(len(chunk), -1) if len(chunk) else np.empty((0, 0), np.float32))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks) if blocks else np.empty((0, 0), np.float32)


def _read_safetensors(path: Path) -> RawSplit:
    from safetensors import safe_open

    with safe_open(str(path), framework="np") as file:
        names = list(file.keys())
        if "features" not in names:
            raise FileFormatError(
                f"{path} has no tensor 'features' (it has: {_listed(names)}); save it under that name"
            )
        if "BF16" in str(file.get_slice("features").get_dtype()):
            raise FileFormatError(
                f"{path}: 'features' is bfloat16, which NumPy cannot hold; save it as float16 or float32"
            )
        features = file.get_tensor("features")
        labels = file.get_tensor("labels") if "labels" in names else None
        classes = (file.metadata() or {}).get("classes")
    return RawSplit(features, labels, None if classes is None else _classes_from_json(classes, path))


def _read_plk(path: Path) -> RawSplit:
    from fewcal.features.io.plk import read_plk

    return RawSplit(*read_plk(path))


_READERS = {
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
    ".plk": _read_plk,
    ".pkl": _read_plk,
}
EXTENSIONS = tuple(_READERS)


def read_file(path: str | os.PathLike[str]) -> RawSplit:
    """The raw arrays of one feature file, by its extension; any trouble is one line that names the file."""
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise FileFormatError(
            f"{path} has the unknown extension {path.suffix or '(none)'!r}; known are {', '.join(EXTENSIONS)}"
        )
    try:
        if path.is_dir():
            raise FileFormatError(f"{path} is a folder, not a feature file; name a file inside it")
        if path.stat().st_size == 0:
            raise FileFormatError(f"{path} is empty (0 bytes); write it again")
        return reader(path)
    except FileFormatError:
        raise
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise FileFormatError(f"{path} may not be read; check its permissions") from None
    except ImportError as error:
        raise InputError(f"{path} needs the package {error.name}; install it (pip install {error.name})") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        raise _unreadable(path, error) from error
    except Exception as error:
        # safetensors has an error class of its own, that must not be imported for every file.
        if type(error).__name__ != "SafetensorError":
            raise
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> FileFormatError:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    kind = path.suffix.lower().lstrip(".")
    return FileFormatError(
        f"{path} cannot be read as {kind} ({reason}); it may be truncated or of another kind: write it again"
    )


def _write_npz(path: Path, raw: RawSplit) -> None:
    arrays = {"features": raw.features}
    if raw.labels is not None:
        arrays["labels"] = raw.labels
    if raw.classes is not None:
        arrays["classes"] = np.asarray(raw.classes, dtype=np.str_)
    with path.open("wb") as file:  # an open file, since np.savez appends .npz to a name
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_parquet(path: Path, raw: RawSplit) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, dimension = raw.features.shape
    flat = pa.array(np.ascontiguousarray(raw.features).reshape(rows * dimension))
    columns: dict[str, Any] = {"features": pa.FixedSizeListArray.from_arrays(flat, dimension)}
    metadata = None
    if raw.labels is not None and raw.classes is not None:
        columns["label"] = pa.DictionaryArray.from_arrays(
            pa.array(raw.labels.astype(np.int32)), pa.array(raw.classes, pa.string())
        ).cast(pa.string())
        metadata = {PARQUET_CLASSES: json.dumps(raw.classes).encode()}
    elif raw.labels is not None:
        columns["label"] = pa.array(raw.labels)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


def _write_safetensors(path: Path, raw: RawSplit) -> None:
    from safetensors.numpy import save_file

    # safetensors writes the buffer as it lies, so a transposed view would come back scrambled.
    arrays = {"features": np.ascontiguousarray(raw.features)}
    if raw.labels is not None:
        arrays["labels"] = np.ascontiguousarray(raw.labels)
    save_file(arrays, str(path), None if raw.classes is None else {"classes": json.dumps(raw.classes)})


_WRITERS = {"npz": _write_npz, "parquet": _write_parquet, "safetensors": _write_safetensors}
WRITABLE = tuple(_WRITERS)


def write_file(path: str | os.PathLike[str], raw: RawSplit) -> None:
    """Write one feature file atomically, in the format of its extension (npz, parquet or safetensors)."""
    path = Path(path)
    writer = _WRITERS.get(path.suffix.lower().lstrip("."))
    if writer is None:
        raise InputError(f"features cannot be written as {path.suffix or path.name!r}; choose {', '.join(WRITABLE)}")
    with atomic_path(path) as temporary:
        writer(temporary, raw)


def _classes_from_json(text: str, path: Path) -> list[str]:
    classes = json.loads(text)
    if not isinstance(classes, list):
        raise FileFormatError(f"{path}: the class names in its metadata are not a JSON list; write the file again")
    return [str(c) for c in classes]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _listed(names: list[str]) -> str:
    return (", ".join(names[:8]) + (", ..." if len(names) > 8 else "")) or "nothing"
