"""What a studio project remembers, in one SQLite file inside its folder.

Every change is one transaction, committed before it is answered, so that a killed server loses nothing. Changes made by
people are edits, which know what was before and what came after: undo and redo write the one or the other.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewcal.errors import FileFormatError, InputError
from fewcal.features.io.tables import class_name

HOME = ".fewcal"  # hidden, so that no listing of pictures goes into it
FILE = "studio.sqlite"
SCHEMA = 1
NONE_CLASS = 0  # the class id of "none of these"
MOST_NAME = 120
MOST_ID = 2**63  # what SQLite can hold

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, text TEXT, state TEXT NOT NULL, error TEXT, features BLOB);
CREATE TABLE IF NOT EXISTS named (item INTEGER PRIMARY KEY REFERENCES items (id), class TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS classes (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS labels (item INTEGER PRIMARY KEY REFERENCES items (id), class INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS history (
  id INTEGER PRIMARY KEY AUTOINCREMENT, edit TEXT NOT NULL, undone INTEGER NOT NULL DEFAULT 0);
"""


class Found(NamedTuple):
    """What may become an item: a picture (`text` is None), or a text, with the class that its file names or None."""

    name: str
    text: str | None = None
    named: str | None = None


@dataclass(frozen=True)
class Item:
    """A picture (`text` is None; the name is its path below the folder) or a text.

    `state` is "waiting" for features, "ready", "failed" (`error` says why) or "gone" (its file is). `named` is the
    class that the file of a text names for it, which is no label until a person says so.
    """

    id: int
    name: str
    text: str | None
    state: str
    error: str | None
    named: str | None = None


@dataclass(frozen=True)
class Edit:
    """A change by a person: in words, and by id what was before and what came after; None is no label, no class."""

    what: str
    labels: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    classes: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps([self.what, list(self.labels.items()), list(self.classes.items())])

    @classmethod
    def from_json(cls, text: str) -> Edit:
        what, labels, classes = json.loads(text)
        return cls(what, {k: tuple(v) for k, v in labels}, {k: tuple(v) for k, v in classes})


def checked_class_name(name: str, taken: Iterable[str], reserved: str) -> str:
    """A class name as it is kept, or an error: one line, not empty, not too long, not there yet.

    >>> checked_class_name(" robin ", ["wren"], "none of these")
    'robin'
    """
    name = class_name(name)
    if not name:
        raise InputError("a class needs a name; type one")
    if len(name) > MOST_NAME:
        raise InputError(f"the class name has {len(name)} characters; use at most {MOST_NAME}")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InputError(f"the class name {name!r} holds control characters; use one plain line")
    if name == reserved or name in taken:
        raise InputError(f"there is a class {name!r} already; choose another name")
    return name


class ProjectStore:
    """The SQLite file of a project. Safe for use by several threads; a second process is refused."""

    def __init__(self, folder: Path) -> None:
        home = folder / HOME
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write into {folder}: {error.strerror}; choose another folder") from error
        self.path = home / FILE
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(self.path, timeout=0.5, check_same_thread=False, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise InputError(f"cannot open {self.path} ({error}); choose another folder") from error
        try:
            # Held for as long as the process lives: two servers on one folder would not see each other's changes.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                self._check_schema()
        except (sqlite3.OperationalError, InputError) as error:
            self._db.close()
            reason = error.__cause__ or error
            if "locked" in str(reason):
                raise InputError(f"{folder} is open in another studio ({reason}); close that one first") from error
            raise InputError(f"cannot write {self.path} ({reason}); choose a folder that you may write into") from error
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise FileFormatError(f"{self.path} is no studio project ({error}); move it away to begin anew") from error
        except FileFormatError:
            self._db.close()
            raise

    def _check_schema(self) -> None:
        found = self.meta("schema")
        if found is None:
            self.set_meta("schema", str(SCHEMA))
        elif int(found) > SCHEMA:
            raise FileFormatError(
                f"{self.path} has project format {found} and this fewcal reads up to {SCHEMA}; upgrade fewcal"
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            if self._db.in_transaction:  # part of a larger one
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:  # a full disk ends it
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise InputError(f"cannot write {self.path}: {error}; nothing has changed, make room") from error
                raise

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    # ---- facts about the project ----------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        found = self._rows("SELECT value FROM meta WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def set_meta(self, key: str, value: str | None) -> None:
        with self._transaction():
            if value is None:
                self._db.execute("DELETE FROM meta WHERE key = ?", (key,))
            else:
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # ---- items ----------------------------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """All but those whose file is gone, in the order of arrival."""
        rows = self._rows(
            "SELECT id, name, text, state, error, named.class FROM items LEFT JOIN named ON named.item = id "
            "WHERE state != 'gone' ORDER BY id"
        )
        return [Item(*row) for row in rows]

    def item(self, number: int) -> Item:
        query = "SELECT id, name, text, state, error FROM items WHERE id = ?"
        rows = self._rows(query, (number,)) if abs(number) < MOST_ID else []
        if not rows:
            raise InputError(f"there is no item {number}; reload the page")
        return Item(*rows[0])

    def ids(self, names: Iterable[str]) -> list[int]:
        """The ids of items by name, those that there are."""
        found = dict(self._rows("SELECT name, id FROM items"))
        return [found[name] for name in names if name in found]

    def add_items(self, items: Sequence[Found]) -> int:
        """Add items by name and text; those that are there stay as they are, those that were gone wait again."""
        with self._transaction():
            before = self._db.total_changes
            self._db.executemany(
                "INSERT INTO items (name, text, state) VALUES (?, ?, 'waiting') ON CONFLICT (name) DO UPDATE "
                "SET state = 'waiting', error = NULL, features = NULL WHERE state = 'gone'",
                [(one.name, one.text) for one in items],
            )
            added = self._db.total_changes - before
            self.name_classes(items)
            return added

    def name_classes(self, items: Iterable[Found]) -> int:
        """Remember the classes that files name for their texts; how many of them are new."""
        with self._transaction():
            before = self._db.total_changes
            self._db.executemany(
                "INSERT INTO named SELECT id, ? FROM items WHERE name = ? AND text = ? "
                "ON CONFLICT (item) DO UPDATE SET class = excluded.class WHERE class != excluded.class",
                [(one.named, one.name, one.text) for one in items if one.named],
            )
            return self._db.total_changes - before

    def mark_gone(self, numbers: Iterable[int]) -> None:
        with self._transaction():
            self._db.executemany("UPDATE items SET state = 'gone' WHERE id = ?", [(i,) for i in numbers])

    def retry_failed(self, numbers: Iterable[int]) -> None:
        """Let some of what could not be read wait again: files may have been mended, or what reads them installed."""
        query = "UPDATE items SET error = NULL, state = 'waiting' WHERE id = ? AND state = 'failed'"
        with self._transaction():
            self._db.executemany(query, [(i,) for i in numbers])

    def waiting(self, most: int) -> list[Item]:
        rows = self._rows(
            "SELECT id, name, text, state, error FROM items WHERE state = 'waiting' ORDER BY id LIMIT ?", (most,)
        )
        return [Item(*row) for row in rows]

    def count(self, state: str) -> int:
        return int(self._rows("SELECT count(*) FROM items WHERE state = ?", (state,))[0][0])

    def set_features(self, features: dict[int, np.ndarray], errors: dict[int, str]) -> None:
        """Features (float32 rows) of some items, what is wrong with others; those that wait no longer stay as is."""
        with self._transaction():
            self._db.executemany(
                "UPDATE items SET features = ?, state = 'ready', error = NULL WHERE id = ? AND state = 'waiting'",
                [(np.ascontiguousarray(row, np.float32).tobytes(), i) for i, row in features.items()],
            )
            self._db.executemany(
                "UPDATE items SET features = NULL, state = 'failed', error = ? WHERE id = ? AND state = 'waiting'",
                [(message, i) for i, message in errors.items()],
            )

    def features(self) -> tuple[list[int], np.ndarray]:
        """Ids and features `(R, D)` of the ready items, ordered by id."""
        rows = self._rows("SELECT id, features FROM items WHERE state = 'ready' ORDER BY id")
        if not rows:
            return [], np.empty((0, 0), np.float32)
        return [r[0] for r in rows], np.frombuffer(b"".join(r[1] for r in rows), np.float32).reshape(len(rows), -1)

    def forget_features(self) -> None:
        """Let all items wait again: another extractor is in use."""
        with self._transaction():
            self._db.execute("UPDATE items SET features = NULL, error = NULL, state = 'waiting' WHERE state != 'gone'")

    def use_extractor(self, stamp: str, beta: float) -> bool:
        """Remember whose features these are. Those of another one cannot be compared: whether they are forgotten."""
        with self._transaction():
            other = self.meta("extractor") != stamp
            if other:
                self.forget_features()
                self.set_meta("extractor", stamp)
            self.set_meta("beta", repr(beta))
            return other

    # ---- classes and labels ---------------------------------------------------------------------------------------

    def classes(self) -> dict[int, str]:
        """Names by id, in the order of creation."""
        return dict(self._rows("SELECT id, name FROM classes ORDER BY id"))

    def labels(self) -> dict[int, int]:
        """Class ids by item, those of items that are gone left out."""
        return dict(
            self._rows(
                "SELECT item, class FROM labels JOIN items ON items.id = item WHERE state != 'gone' ORDER BY item"
            )
        )

    def next_class_id(self) -> int:
        """An id that no class has had, so that undo can never meet another class under the same id."""
        found = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'classes'")
        return 1 + (int(found[0][0]) if found else 0)

    def record(self, edit: Edit) -> None:
        """Make a change and remember it; what had been undone can no longer be redone."""
        with self._transaction():
            self._apply(edit, 1)
            self._db.execute("DELETE FROM history WHERE undone = 1")
            self._db.execute("INSERT INTO history (edit) VALUES (?)", (edit.to_json(),))

    def undo(self) -> Edit | None:
        """Take back the last change that stands; None where there is none."""
        return self._step("SELECT id, edit FROM history WHERE undone = 0 ORDER BY id DESC LIMIT 1", 0)

    def redo(self) -> Edit | None:
        """Make the change again that was undone last."""
        return self._step("SELECT id, edit FROM history WHERE undone = 1 ORDER BY id LIMIT 1", 1)

    def history(self) -> tuple[str | None, str | None]:
        """In words, what undo and redo would do."""
        last = self._rows("SELECT edit FROM history WHERE undone = 0 ORDER BY id DESC LIMIT 1")
        first = self._rows("SELECT edit FROM history WHERE undone = 1 ORDER BY id LIMIT 1")
        return (
            Edit.from_json(last[0][0]).what if last else None,
            Edit.from_json(first[0][0]).what if first else None,
        )

    def _step(self, query: str, side: int) -> Edit | None:
        with self._transaction():
            found = self._rows(query)
            if not found:
                return None
            edit = Edit.from_json(found[0][1])
            self._apply(edit, side)
            self._db.execute("UPDATE history SET undone = ? WHERE id = ?", (1 - side, found[0][0]))
            return edit

    def _apply(self, edit: Edit, side: int) -> None:
        """Write one side of an edit: 0 what was before, 1 what came after."""
        for number, names in edit.classes.items():
            if (name := names[side]) is None:
                self._db.execute("DELETE FROM classes WHERE id = ?", (number,))
            else:
                self._db.execute(
                    "INSERT INTO classes VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                    (number, name),
                )
        for item, classes in edit.labels.items():
            if (label := classes[side]) is None:
                self._db.execute("DELETE FROM labels WHERE item = ?", (item,))
            else:
                self._db.execute("INSERT OR REPLACE INTO labels VALUES (?, ?)", (item, label))
