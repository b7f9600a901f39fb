"""The kind of a source (pictures, texts, recordings or features), and items that are in memory already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np

from fewcal._utils.npz import read_npz
from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.features.io.regular import require_source
from fewcal.features.io.tables import DELIMITED, class_name, csv_header
from fewcal.features.sources.items import Items
from fewcal.features.sources.listing import files_below
from fewcal.features.sources.pictures import Pictures, is_picture, picture_files
from fewcal.features.sources.recordings import Recordings
from fewcal.features.sources.texts import Texts, class_text_files

KINDS: dict[str, type[Items]] = {"picture": Pictures, "text": Texts, "recording": Recordings}
# The extractor where none is named.
DEFAULT_EXTRACTORS = {"picture": "efficientnet-lite0", "text": "minilm"}


class Frame(Protocol):
    """A table with named columns, such as a DataFrame of pandas."""

    columns: Any

    def __getitem__(self, name: Any, /) -> Any: ...


def kind_of(source: StrPath | Frame, text: str = "text") -> str:
    """Return "picture", "text", "recording" or "features"; a table with the column `text` holds texts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "new.txt"
    ...     _ = file.write_text("one text a line")
    ...     kind_of(file)
    'text'
    """
    if not isinstance(source, str | os.PathLike):
        return kind_of_frame(source, text)
    path = Path(source)
    require_source(path, "give a folder of pictures, a file of texts or a feature file")
    suffix = path.suffix.lower()
    if path.is_dir():
        if picture_files(path):
            return "picture"
        if any(class_text_files(path)):
            return "text"
        return "recording" if files_below(path, Recordings.extensions) else "picture"
    if is_picture(path.name):
        return "picture"
    if suffix[1:] in Recordings.extensions:
        return "recording"
    if suffix in (".txt", ".jsonl", ".ndjson"):
        return "text"
    if suffix[1:] in DELIMITED:
        columns = csv_header(path)
        return "text" if text.lower() in columns else "picture" if "path" in columns else "features"
    if suffix == ".npz" and "offsets" in read_npz(path, ("offsets",)):  # a pack
        return "picture"
    return "features"


def default_extractor(source: StrPath | Items | Frame, text: str = "text") -> str:
    """Return the extractor for a source where none is named."""
    kind = source.kind if isinstance(source, Items) else kind_of(source, text)
    if kind == "recording":
        raise InputError(
            "no extractor of recordings comes with fewcal; name a model, such as hf:facebook/wav2vec2-base"
        )
    if kind == "features" and (path := Path(str(source))).suffix.lower()[1:] in DELIMITED:
        columns = ", ".join(csv_header(path))
        if not columns:
            raise InputError(f"{source} is empty; it needs a header and at least one row")
        raise InputError(
            f"{source} has the columns {columns} and none named {text!r}; name the one that holds the texts with "
            "--text-column, and that of the classes with --label-column; or add a header line"
        )
    if kind == "features":
        raise InputError(f"{source} holds features, not pictures or texts; use `fewcal predict` for them")
    return DEFAULT_EXTRACTORS[kind]


# ---- in memory ------------------------------------------------------------------------------------------------------


def is_frame(source: object) -> TypeGuard[Frame]:
    """Return whether this is a table with named columns."""
    return hasattr(source, "columns") and hasattr(source, "__getitem__")


def kind_of_frame(frame: Frame, text: str = "text") -> str:
    """Return "text", "picture" or "recording" by the columns of a table: `text`, or `path`."""
    if text in list(frame.columns):
        return "text"
    if "path" not in list(frame.columns):
        raise InputError(f"the table has the columns {', '.join(map(str, frame.columns))}; call one {text!r} or 'path'")
    endings = {Path(str(path)).suffix.lower()[1:] for path in frame["path"]}
    return "recording" if endings and endings <= Recordings.extensions else "picture"


def find_frame(frame: Frame, kind: str, labelled: bool = True, text: str = "text", label: str = "label") -> Items:
    """Return the rows of a table as items: a column of texts or paths, and the columns of labels and splits."""
    column = text if kind == "text" else "path"
    for name in [column, label] if labelled else [column]:
        if name not in list(frame.columns):
            raise InputError(f"the table has no column {name!r} (it has: {', '.join(map(str, frame.columns))})")
    labels = [class_name(str(x)) for x in frame[label]] if label in list(frame.columns) else None
    splits = [str(x) for x in frame["split"]] if "split" in list(frame.columns) else None
    return in_memory(list(frame[column]), kind, labels, splits, f"table {id(frame):#x}")


def in_memory(
    content: Sequence[Any] | np.ndarray,
    kind: str,
    labels: list[str] | None = None,
    splits: list[str] | None = None,
    source: str = "X",
) -> Items:
    """Return a list of paths, encoded or decoded pictures, texts or sounds as items; paths name themselves."""
    items = list(content)
    if kind == "text" and (odd := [x for x in items if not isinstance(x, str)]):
        raise InputError(f"{source} has a {type(odd[0]).__name__} where a text is needed")
    paths = kind != "text" and all(isinstance(x, str | Path) for x in items)
    names = [str(x) for x in items] if paths else [f"{kind} {i + 1}" for i in range(len(items))]
    return KINDS[kind](names, labels, splits, source, items)
