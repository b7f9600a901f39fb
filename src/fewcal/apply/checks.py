"""Checks of values alone: commands make them before torch is loaded, and functions make them again."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from fewcal._utils.types import StrPath
from fewcal.errors import InputError

TABLES = (".csv", ".parquet")
Given = TypeVar("Given", StrPath, Path | None)


def checked_reject(reject: float | None) -> float | None:
    """A level of "none of these", which is a share.

    >>> checked_reject(0.05)
    0.05
    """
    if reject is not None and not 0 < reject < 1:
        raise InputError(f"--reject {reject} must lie between 0 and 1, e.g. 0.05")
    return reject


def check_reject(reject: float | None, preset: str | None) -> None:
    """Refuse a wrong level of "none of these", and any with a preset of GDC."""
    if checked_reject(reject) is not None and preset is not None:
        raise InputError("'none of these' is an answer of the recommended model alone: leave out --preset or --reject")


def checked_new_file(path: Given) -> Given:
    """A file that is written at the end of some work: a folder of that name would undo it."""
    if path is not None and Path(path).is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    return path


def checked_table_file(path: Given) -> Given:
    """A file for predictions, whose extension is its format."""
    checked_new_file(path)
    if path is not None and Path(path).suffix not in TABLES:
        raise InputError(f"{path}: predictions are written as .parquet or .csv")
    return path


def checked_project_folder(folder: Path | None) -> Path | None:
    """A folder of a studio, which may be missing but not a file."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is no folder; give the folder that holds the pictures or texts")
    return folder
