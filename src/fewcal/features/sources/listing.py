"""Files of a source: a folder with one folder for each class, a list, or one file. Nothing is opened but lists."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from fewcal.errors import InputError
from fewcal.features.io.tables import DELIMITED, class_name, read_csv
from fewcal.features.sources.items import Items

_IGNORED_FOLDERS = {"__MACOSX", "@eaDir"}


T = TypeVar("T", bound=Items)


def list_files(kind: type[T], path: Path, labelled: bool) -> T:
    """List the files of a source by the extensions of their kind; names are paths relative to the source.

    With `labelled` a folder must hold one folder for each class. Without, every file below it is taken, and the
    folder right above a file counts as its label where all files lie in folders.
    """
    if path.is_dir():
        return (_labelled_folder if labelled else _loose_folder)(kind, path)
    suffix = path.suffix.lower()[1:]
    if suffix in DELIMITED:
        return _list(kind, path, labelled)
    if suffix in kind.extensions and not labelled:
        return kind([path.name], None, None, str(path), [path])
    one = kind.kind
    wanted = "a folder with one folder a class" if labelled else f"a {one}, a folder of {one}s"
    more = " or an .npz pack" if one == "picture" else ""
    raise InputError(f"{path} is no source of {one}s; give {wanted}, a CSV list{more}")


def files_below(folder: Path, extensions: Collection[str]) -> list[Path]:
    """Return all regular files below a folder that have one of these extensions, sorted by their path.

    Hidden ones are skipped. Links to folders are followed, but no folder is entered twice, nor one that holds the
    present one: links may form a circle.
    """
    found: list[Path] = []
    entered: set[Path] = set()

    def visit(place: Path) -> None:
        if (here := place.resolve()) in entered:
            return
        entered.add(here)
        try:
            with os.scandir(place) as entries:
                shown = [entry for entry in entries if is_shown(entry.name)]
        except OSError as error:
            raise InputError(f"{place} cannot be listed ({error.strerror}); check its permissions") from error
        for entry in sorted(shown, key=lambda entry: entry.name):
            path = Path(entry.path)
            probe = path if entry.is_symlink() else entry  # which has its type without a look at the disk
            if probe.is_dir():
                if not _holds(path, here):
                    visit(path)
            elif path.suffix.lower()[1:] in extensions and probe.is_file():
                found.append(path)

    visit(folder)
    return sorted(found, key=lambda path: _name(path, folder))


def class_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; hidden ones, and links back to the folder or above it, are skipped."""
    here = folder.resolve()
    found = (p for p in folder.iterdir() if p.is_dir() and is_shown(p.name) and not _holds(p, here))
    return sorted(found, key=lambda p: p.name)


def is_shown(name: str) -> bool:
    """Return whether a file or folder of this name is neither hidden nor made by an archive program."""
    return not name.startswith(".") and name not in _IGNORED_FOLDERS


def _holds(folder: Path, inner: Path) -> bool:
    """Return whether a link leads to `inner` (resolved) itself or to a folder above it."""
    return folder.is_symlink() and inner.is_relative_to(folder.resolve())


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _labelled_folder(kind: type[T], folder: Path) -> T:
    found = {below: files_below(below, kind.extensions) for below in class_folders(folder)}
    empty = [below.name for below, files in found.items() if not files]
    things = f"{kind.kind}s"
    remedy = f"put the {things} of each class into a folder of its own"
    loose = [p.name for p in sorted(folder.iterdir()) if is_shown(p.name) and p.suffix.lower()[1:] in kind.extensions]
    if loose:
        more = f" and {len(loose) - 1} more" if len(loose) > 1 else ""
        some = len(empty) < len(found)
        raise InputError(f"{folder}: {loose[0]}{more} in no class folder; {'move them into one' if some else remedy}")
    if len(empty) == len(found):
        kinds = f" (its folders {', '.join(empty[:3])} hold none)" if empty else ""
        raise InputError(f"{folder} holds no {things}{kinds}; {remedy}")
    if empty:
        raise InputError(f"{folder}: the class folder {empty[0]!r} holds no {things}; add some or remove it")
    pairs = [(path, below) for below, files in found.items() for path in files]
    inner = {path.relative_to(below).parts[0] for path, below in pairs if path.parent != below}
    if len(found) == 1 and len(inner) > 1:
        only = next(iter(found))
        raise InputError(f"{folder} has one class folder only, {only.name!r}, with folders in it; give {only}")
    labels = [class_name(below.name) for _, below in pairs]
    return kind([_name(path, folder) for path, _ in pairs], labels, None, str(folder), [path for path, _ in pairs])


def _loose_folder(kind: type[T], folder: Path) -> T:
    paths = files_below(folder, kind.extensions)
    if not paths:
        raise InputError(f"{folder} holds no {kind.kind}s; known are {', '.join(sorted(kind.extensions))}")
    labels = None
    if all(path.parent != folder for path in paths):
        labels = [class_name(path.relative_to(folder).parts[0]) for path in paths]
    return kind([_name(path, folder) for path in paths], labels, None, str(folder), paths)


def _list(kind: type[T], path: Path, labelled: bool) -> T:
    table = read_csv(path, need=["path", "label"] if labelled else ["path"])
    labels = [class_name(x) for x in table["label"]] if "label" in table else None
    if labels is not None and "" in labels:
        if labelled:
            raise InputError(f"{path}: row {labels.index('') + 2} has no label; every {kind.kind} needs a class")
        labels = None
    return kind(table["path"], labels, table.get("split"), str(path), [path.parent / p for p in table["path"]])
