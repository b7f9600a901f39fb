"""`fewcal studio --rescue`: what can be read of a damaged project, in a new file; the damaged one is kept beside it."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import numpy as np

from fewcal.apply.studio.store import FILE, HOME, NONE_CLASS, Edit, Found, ProjectStore
from fewcal.errors import FileFormatError, InputError

MAX_ROWS = 100_000  # tried where the number of the last row is damaged: twice the largest project
PAGE = 4096  # bytes of a page; the first one names the tables and where they begin


def rescue(folder: Path) -> str:
    """Replace a damaged project by what can be read of it; a line that counts what was saved.

    The damaged file stays as `.fewcal/studio.damaged-1.sqlite`.
    """
    home, path = folder / HOME, folder / HOME / FILE
    if not path.is_file():
        raise InputError(f"{path} is not there; nothing to rescue")
    try:
        ProjectStore(folder).close()
        return f"{path} is whole; nothing to rescue"
    except FileFormatError:
        pass
    backup = next(p for n in count(1) if not (p := home / f"studio.damaged-{n}.sqlite").exists())
    scratch = home / "rescue.tmp"  # what a kill leaves of it goes at the next start
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        ProjectStore(scratch).close()
        for end in ("", "-wal"):  # changes that wait in the log
            with suppress(FileNotFoundError):
                shutil.copy2(f"{path}{end}", f"{backup}{end}")
                shutil.copy2(f"{path}{end}", f"{scratch / 'damaged'}{end}")
        fresh = scratch / HOME / FILE
        with closing(_open_damaged(scratch / "damaged", fresh)) as source, closing(ProjectStore(scratch)) as store:
            saved = _save(source, store)
        Path(f"{path}-wal").unlink(missing_ok=True)
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"cannot write into {home}: {error.strerror}; make room, or allow to write") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return f"saved {saved}; the damaged file is kept as {backup}"


def _open_damaged(damaged: Path, fresh: Path) -> sqlite3.Connection:
    """Open a damaged file with the first page of a new project: the tables of both begin at the same pages."""
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(damaged)) as db:
        db.execute("PRAGMA wal_checkpoint").fetchall()
    new, old = fresh.read_bytes(), damaged.read_bytes()
    pages = max(len(new), len(old)) // PAGE
    header = new[:28] + pages.to_bytes(4, "big") + new[32:PAGE]
    damaged.write_bytes(header + old[PAGE:] + new[max(PAGE, len(old)) :])
    db = sqlite3.connect(damaged)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return db


def _save(source: sqlite3.Connection, store: ProjectStore) -> str:
    """Copy the rows that can be read and that a project may hold; in words, how many."""
    items = {i: row for i, *row in _rows(source, "items", "id, name, text, named, features") if _is_item(*row)}
    store.add_items([Found(name, text, named) for name, text, named, _ in items.values()])
    place = dict(zip(items, store.ids(name for name, *_ in items.values()), strict=True))
    meta = {key: value for key, value in _rows(source, "meta", "key, value") if isinstance(value, str)}
    if meta.get("kind") in ("picture", "text"):
        store.set_meta("kind", meta["kind"])
    with suppress(KeyError, ValueError, IndexError):  # features without their extractor are computed again
        store.use_extractor(meta["extractor"])
        features = {place[i]: row[-1] for i, row in items.items() if isinstance(row[-1], bytes) and row[-1]}
        width = Counter(len(raw) // 4 * 4 for raw in features.values()).most_common(1)[0][0]
        rows = {i: np.frombuffer(raw, np.float32) for i, raw in features.items() if len(raw) == width}
        store.set_features({i: row for i, row in rows.items() if np.isfinite(row).all()}, {})
    names, given = _classes_and_labels(source)
    classes = {NONE_CLASS, *names.values()}
    labels = {place[i]: c for i, c in given.items() if i in place and c in classes}
    made: dict[int, tuple[str | None, str | None]] = {i: (None, name) for name, i in names.items()}
    store.record(Edit("what could be read of a damaged file", {i: (None, c) for i, c in labels.items()}, made))
    return f"{len(items)} items, {len(names)} classes and {len(labels)} labels"


def _classes_and_labels(source: sqlite3.Connection) -> tuple[dict[str, int], dict[int, int]]:
    """Ids of classes by name and classes of items, from their tables; what these have lost, from the history."""
    classes: dict[int, str | None] = {}
    labels: dict[int, int | None] = {}
    if _is_damaged(source, "classes") or _is_damaged(source, "labels"):
        for text, undone in _rows(source, "history", "edit, undone"):
            with suppress(ValueError, TypeError, AttributeError, IndexError):
                edit = Edit.from_json(text)
                classes |= {i: names[undone == 0] for i, names in edit.classes.items()}
                labels |= {i: numbers[undone == 0] for i, numbers in edit.labels.items()}
    classes |= dict(_rows(source, "classes", "id, name"))
    labels |= dict(_rows(source, "labels", "item, class"))
    return (
        {name: i for i, name in classes.items() if isinstance(name, str)},
        {i: number for i, number in labels.items() if isinstance(number, int)},
    )


def _is_damaged(source: sqlite3.Connection, table: str) -> bool:
    try:
        return bool(source.execute(f"PRAGMA quick_check({table})").fetchall() != [("ok",)])
    except (sqlite3.Error, UnicodeDecodeError):
        return True


def _is_item(name: object, text: object, named: object, _: object) -> bool:
    return isinstance(name, str) and isinstance(text, str | None) and isinstance(named, str | None)


def _rows(source: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple]:
    """The rows one by one by their number, past pages that are damaged."""
    last = MAX_ROWS
    with suppress(sqlite3.Error, UnicodeDecodeError):
        last = source.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0
    for number in range(1, min(last, MAX_ROWS) + 1):
        with suppress(sqlite3.Error, UnicodeDecodeError):
            yield from source.execute(f"SELECT {columns} FROM {table} WHERE rowid = ?", (number,)).fetchall()
