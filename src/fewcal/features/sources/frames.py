"""Items in memory: lists, arrays, and DataFrames with a column of texts or of paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np

from fewcal.errors import InputError
from fewcal.features.io.tables import class_name
from fewcal.features.sources.items import Items
from fewcal.features.sources.pictures import Pictures
from fewcal.features.sources.recordings import Recordings
from fewcal.features.sources.texts import Texts

KINDS: dict[str, type[Items]] = {"picture": Pictures, "text": Texts, "recording": Recordings}


class Frame(Protocol):
    """A table with named columns, such as a DataFrame of pandas."""

    columns: Any

    def __getitem__(self, name: Any, /) -> Any: ...


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
