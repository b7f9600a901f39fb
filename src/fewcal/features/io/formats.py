"""A file format of features: how to read and, where that makes sense, write the arrays of one split.

To add a format, write a module beside this one that ends with `FORMAT = FileFormat(...)`, and name it in `files.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError


@dataclass(frozen=True)
class RawSplit:
    """Contents of a file: features `(R, D)` of any dtype, labels `(R,)` int or str or None, class names or None."""

    features: np.ndarray
    labels: np.ndarray | None = None
    classes: Sequence[str] | np.ndarray | None = None  # bytes are UTF-8


@dataclass(frozen=True)
class FileFormat:
    """A format by the extensions of its files.

    Attributes
    ----------
    extensions : such as (".npz",); the first is the one that is written
    read : the arrays as they stand in a file; its errors are reported with the name of the file
    write : to a path that replaces the old file when the writer is done; None for a format that is only read
    """

    extensions: tuple[str, ...]
    read: Callable[[Path], RawSplit]
    write: Callable[[Path, RawSplit], None] | None = None


def require_features(path: Path, names: Iterable[str], item: str) -> None:
    """Refuse a file whose named arrays include no 'features'."""
    names = list(names)
    if "features" not in names:
        content = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing"
        raise FileFormatError(f"{path} has no {item} 'features' (it has: {content}); save it under that name")


def classes_from_json(text: str, path: Path) -> list[str]:
    """Return the class names of a JSON list in a file's metadata."""
    classes = json.loads(text)
    if not isinstance(classes, list):
        raise FileFormatError(f"{path}: the class names in its metadata are not a JSON list; write the file again")
    return [str(c) for c in classes]
