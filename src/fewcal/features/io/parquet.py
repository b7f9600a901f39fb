"""`.parquet`: columns `f0`..`fD-1`, or one list column `features`; column `label`; class order in the metadata."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit, classes_from_json

if TYPE_CHECKING:
    from pyarrow import Schema, Table

# Keeps the order of the classes, of which the label column alone gives the sorted names.
CLASSES_KEY = b"fewcal.classes"


def read_parquet(path: Path) -> RawSplit:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        schema = file.schema_arrow
        columns = _feature_columns(path, schema)
        label = next((name for name in ("label", "labels") if name in schema.names), None)
        table = file.read(columns=columns + ([label] if label else []))
    for name in table.column_names:
        if nulls := table[name].null_count:
            raise FileFormatError(f"{path}: column {name!r} has {nulls} missing values; fill or drop those rows")
    labels = None
    if label is not None:
        numbers = pa.types.is_integer(table[label].type)
        labels = table[label].to_numpy() if numbers else np.asarray(table[label].to_pylist())
    classes = (schema.metadata or {}).get(CLASSES_KEY)
    names = None if classes is None else classes_from_json(classes.decode(), path)
    return RawSplit(_matrix(path, table, columns), labels, names)


def _feature_columns(path: Path, schema: Schema) -> list[str]:
    """Return the columns that hold features, after a look at their types."""
    from pyarrow import types

    count = sum(re.fullmatch(r"f(0|[1-9]\d*)", name) is not None for name in schema.names)
    columns = ["features"] if "features" in schema.names else [f"f{i}" for i in range(count)]
    if not columns:
        listed = ", ".join(schema.names[:8]) or "nothing"
        raise FileFormatError(
            f"{path} has no column 'features' and no columns f0, f1, ... (it has: {listed}); rename the feature columns"
        )
    if missing := [name for name in columns if name not in schema.names]:
        raise FileFormatError(
            f"{path} has {count} feature columns but no {missing[0]!r}; name them f0..f{count - 1} without gaps"
        )
    for name in columns:
        kind = schema.field(name).type
        if name == "features":
            if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
                raise FileFormatError(
                    f"{path}: column 'features' is {kind}, not a list of numbers; store one list per row"
                )
            kind = kind.value_type
        if not (types.is_floating(kind) or types.is_integer(kind)):
            raise FileFormatError(f"{path}: column {name!r} is non-numeric ({kind}); store numbers")
    return columns


def _matrix(path: Path, table: Table, columns: list[str]) -> np.ndarray:
    """Return features `(R, D)` of one list column, or of one column for each feature."""
    import pyarrow.compute as pc

    if columns != ["features"]:
        half = {str(table[name].type) for name in columns} == {"halffloat"}
        features = np.empty((table.num_rows, len(columns)), np.float16 if half else np.float32)
        for i, name in enumerate(columns):
            features[:, i] = table[name].to_numpy()
        return features
    lengths = np.asarray(pc.list_value_length(table["features"]))
    values = pc.list_flatten(table["features"])
    if len(lengths) and (lengths != lengths[0]).any():
        raise FileFormatError(
            f"{path}: rows of 'features' have {lengths.min()} to {lengths.max()} numbers; all need the same"
        )
    if values.null_count:
        raise FileFormatError(f"{path}: 'features' has missing values; fill or drop those rows")
    return np.asarray(values.to_numpy()).reshape(len(lengths), int(lengths[0]) if len(lengths) else 0)


def write_parquet(path: Path, raw: RawSplit) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"features": pa.FixedSizeListArray.from_arrays(pa.array(raw.features.ravel()), raw.features.shape[1])}
    metadata = None
    if raw.labels is not None:
        names = raw.labels if raw.classes is None else np.array(raw.classes)[raw.labels]
        columns["label"] = pa.array(names)
        metadata = None if raw.classes is None else {CLASSES_KEY: json.dumps(raw.classes).encode()}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path, write_page_checksum=True)


FORMAT = FileFormat((".parquet",), read_parquet, write_parquet)
