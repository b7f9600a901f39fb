"""What a studio project remembers, in one SQLite file inside its folder.

Every change is one transaction, committed before it is answered, so that a killed server loses nothing. Changes made by
people are edits, with what was before and what came after: undo and redo write the one or the other.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewcal.errors import FewcalError, FileFormatError, InputError
from fewcal.features.io.tables import class_name

HOME = ".fewcal"  # hidden, so that no listing of pictures goes into it
FILE = "studio.sqlite"
SCHEMA = 1
NONE_CLASS = 0  # the class id of "none of these"
MAX_NAME = 120
MAX_ID = 2**63  # what SQLite can hold

TABLES = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8").partition("\n")[2]
# What no table can check alone: labels without an item or a class, features of several lengths.
_CONTRADICTIONS = """
SELECT 'a label without its item' FROM labels WHERE item NOT IN (SELECT id FROM items)
UNION ALL SELECT 'a label without its class' FROM labels WHERE class != 0 AND class NOT IN (SELECT id FROM classes)
UNION ALL SELECT 'features of several lengths' WHERE (
  SELECT count(DISTINCT length(features)) > 1 OR max(length(features)) % 4 > 0 FROM items WHERE state = 'ready')
"""
_STEPS = (  # the edits that undo and redo begin with
    "SELECT id, edit FROM history WHERE undone = 0 ORDER BY id DESC LIMIT 1",
    "SELECT id, edit FROM history WHERE undone = 1 ORDER BY id LIMIT 1",
)
_ITEM = "SELECT id, name, text, state, error, named FROM items"


class Found(NamedTuple):
    """What may become an item: a picture (`text` is None), or a text, with the class that its file names or None."""

    name: str
    text: str | None = None
    named: str | None = None


@dataclass(frozen=True)
class Item:
    """A picture (`text` is None; the name is its path below the folder) or a text.

    `state` is "waiting" for features, "ready", "failed" (for the reason in `error`) or "gone", as its file is. `named`
    is the class that the file of a text names for it, which is no label until a person takes it.
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
    if len(name) > MAX_NAME:
        raise InputError(f"the class name has {len(name)} characters; the limit is {MAX_NAME}")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InputError(f"the class name {name!r} holds control characters; use one plain line")
    if name == reserved or name in taken:
        raise InputError(f"there is a class {name!r} already; choose another name")
    return name


class ProjectStore:
    """The SQLite file of a project. Safe for use by several threads; a second process is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / HOME / FILE
        self._lock = threading.RLock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with suppress(PermissionError):  # of another owner, who lets us write
                self.path.chmod(0o600)
            found = self.path.stat()
            self._db = sqlite3.connect(self.path, timeout=0.5, check_same_thread=False, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write {self.path}: {reason}; choose a folder that you may write into") from error
        self._place = found.st_dev, found.st_ino
        # Text that is no UTF-8 is damage that no check sees.
        self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        """Take the file for this process alone; make the tables, or check what they hold."""
        # Held for as long as the process lives: two servers on one folder would not see each other's changes.
        for pragma in ("trusted_schema = OFF", "locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._rows(f"PRAGMA {pragma}")
        with self._transaction():
            version = int(self._rows("PRAGMA user_version")[0][0])
            if version > SCHEMA:
                wrong = f"{self.path} has project format {version} and this fewcal reads up to {SCHEMA}"
                raise FileFormatError(f"{wrong}; upgrade fewcal")
            if not self._rows("SELECT 1 FROM sqlite_master"):
                for statement in [*TABLES.split(";"), f"PRAGMA user_version = {SCHEMA}"]:
                    self._rows(statement)
            self._check()

    def _check(self) -> None:
        expected = sqlite3.connect(":memory:")
        expected.executescript(TABLES)
        query = "SELECT name, sql FROM sqlite_master ORDER BY name"
        if self._rows(query) != expected.execute(query).fetchall():
            raise self._damage("its tables are others than those of a studio")
        expected.close()
        if (found := self._rows("PRAGMA quick_check(1)")) != [("ok",)]:
            raise self._damage(str(found[0][0]).splitlines()[-1])
        if found := self._rows(_CONTRADICTIONS):
            raise self._damage(found[0][0])
        try:
            for (edit,) in self._rows("SELECT edit FROM history"):
                Edit.from_json(edit)
            float(self.meta("reject") or 1.0)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._damage(f"unreadable history or settings: {error}") from error

    def _damage(self, reason: str) -> FileFormatError:
        rescue = f"`fewcal studio --rescue {self.folder}` saves what can be read"
        return FileFormatError(f"{self.path} is damaged ({reason}); {rescue}")

    def _failure(self, error: Exception) -> FewcalError:
        """An error of SQLite in our words."""
        if isinstance(error, sqlite3.ProgrammingError):
            return InputError(f"{self.path} is closed; start the studio again")
        if not isinstance(error, sqlite3.OperationalError):
            return self._damage(str(error))
        if "locked" in str(error):
            return InputError(f"{self.folder} is open in another studio ({error}); close that one first")
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_ERROR:
            return self._damage(str(error))
        return InputError(f"cannot write {self.path} ({error}); nothing has changed: make room, or allow to write")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            if self._db.in_transaction:  # part of a larger one
                yield
                return
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._check_place()
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:  # a full disk ends it
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                    raise self._failure(error) from error
                raise

    def _check_place(self) -> None:
        """Refuse to write into a file that is no longer in the folder, where nothing would ever find it."""
        try:
            found = self.path.stat()
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._place:
            raise InputError(f"{self.path} is not there any more; nothing has changed: bring the folder back")

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:  # messages quote what is damaged
                raise self._failure(error) from error

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
        return [Item(*row) for row in self._rows(f"{_ITEM} WHERE state != 'gone' ORDER BY id")]

    def item(self, number: int) -> Item:
        rows = self._rows(f"{_ITEM} WHERE id = ?", (number,)) if abs(number) < MAX_ID else []
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
        """Remember the classes that files name for their texts; how many are new."""
        query = "UPDATE items SET named = ?1 WHERE name = ?2 AND text = ?3 AND named IS NOT ?1"
        with self._transaction():
            before = self._db.total_changes
            self._db.executemany(query, [(one.named, one.name, one.text) for one in items if one.named])
            return self._db.total_changes - before

    def mark_gone(self, numbers: Iterable[int]) -> None:
        with self._transaction():
            self._db.executemany("UPDATE items SET state = 'gone' WHERE id = ?", [(i,) for i in numbers])

    def retry_failed(self, numbers: Iterable[int]) -> None:
        """Let some of what could not be read wait again: files may have been mended, or what reads them installed."""
        query = "UPDATE items SET error = NULL, state = 'waiting' WHERE id = ? AND state = 'failed'"
        with self._transaction():
            self._db.executemany(query, [(i,) for i in numbers])

    def waiting(self, limit: int) -> list[Item]:
        return [Item(*row) for row in self._rows(f"{_ITEM} WHERE state = 'waiting' ORDER BY id LIMIT ?", (limit,))]

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
        """Ids and features `(R, D)` of the ready items, ordered by id; rows that are not finite wait again."""
        rows = self._rows("SELECT id, features FROM items WHERE state = 'ready' ORDER BY id")
        if not rows:
            return [], np.empty((0, 0), np.float32)
        x = np.frombuffer(b"".join(r[1] for r in rows), np.float32).reshape(len(rows), -1)
        finite = np.isfinite(x).all(axis=1)
        if finite.all():
            return [r[0] for r in rows], x
        with self._transaction():
            bad = [(rows[n][0],) for n in np.flatnonzero(~finite)]
            self._db.executemany("UPDATE items SET state = 'waiting' WHERE id = ?", bad)
        return self.features()

    def forget_features(self) -> None:
        """Let all items wait again: another extractor is in use."""
        with self._transaction():
            self._db.execute("UPDATE items SET features = NULL, error = NULL, state = 'waiting' WHERE state != 'gone'")

    def use_extractor(self, stamp: str) -> bool:
        """Remember whose features these are. Those of another one cannot be compared: whether they are forgotten."""
        with self._transaction():
            other = self.meta("extractor") != stamp
            if other:
                self.forget_features()
                self.set_meta("extractor", stamp)
            return other

    # ---- classes and labels ---------------------------------------------------------------------------------------

    def classes(self) -> dict[int, str]:
        """Names by id, in the order of creation."""
        return dict(self._rows("SELECT id, name FROM classes ORDER BY id"))

    def labels(self) -> dict[int, int]:
        """Class ids by item in the order in which they were given, those of items that are gone left out."""
        query = "SELECT item, class FROM labels JOIN items ON items.id = item WHERE state != 'gone' ORDER BY turn"
        return dict(self._rows(query))

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
        return self._step(_STEPS[0], 0)

    def redo(self) -> Edit | None:
        """Make the change again that was undone last."""
        return self._step(_STEPS[1], 1)

    def history(self) -> tuple[str | None, str | None]:
        """In words, what undo and redo would do."""
        last, first = (Edit.from_json(rows[0][1]).what if (rows := self._rows(query)) else None for query in _STEPS)
        return last, first

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
                self._db.execute("INSERT OR REPLACE INTO labels (item, class) VALUES (?, ?)", (item, label))
