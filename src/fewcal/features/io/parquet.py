"""`.parquet`: columns `f0`..`fD-1`, or one list column `features`; column `label`; class order in the metadata."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, classes_from_json, listed

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray

# Lets a folder hold our class order in parquet, where the label column alone would only give the sorted names.
PARQUET_CLASSES = b"fewcal.classes"


def read_parquet(path: Path) -> RawSplit:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
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
                f"{path} has no column 'features' and no columns f0, f1, ... (it has: {listed(schema.names)}); "
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
    return RawSplit(features, labels, None if metadata is None else classes_from_json(metadata.decode(), path))


def _list_column(column: Array | ChunkedArray, path: Path) -> np.ndarray:
    from pyarrow import types

    chunks = getattr(column, "chunks", [column])
    blocks = []
    for chunk in chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        if len(chunk) and not types.is_fixed_size_list(chunk.type):
            lengths = np.asarray(chunk.value_lengths())
            if (lengths != lengths[0]).any():
                raise FileFormatError(
                    f"{path}: rows of 'features' have {lengths.min()} to {lengths.max()} numbers; all need the same"
                )
        if chunk.flatten().null_count:
            raise FileFormatError(f"{path}: 'features' has missing values; fill or drop those rows")
        blocks.append(values.reshape(len(chunk), -1) if len(chunk) else np.empty((0, 0), np.float32))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks) if blocks else np.empty((0, 0), np.float32)


def write_parquet(path: Path, raw: RawSplit) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, dimension = raw.features.shape
    flat = pa.array(np.ascontiguousarray(raw.features).reshape(rows * dimension))
    columns: dict[str, Array] = {"features": pa.FixedSizeListArray.from_arrays(flat, dimension)}
    metadata = None
    if raw.labels is not None and raw.classes is not None:
        columns["label"] = pa.DictionaryArray.from_arrays(
            pa.array(raw.labels.astype(np.int32)), pa.array(raw.classes, pa.string())
        ).cast(pa.string())
        metadata = {PARQUET_CLASSES: json.dumps(raw.classes).encode()}
    elif raw.labels is not None:
        columns["label"] = pa.array(raw.labels)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path, write_page_checksum=True)


FORMAT = FileFormat((".parquet",), read_parquet, write_parquet)
