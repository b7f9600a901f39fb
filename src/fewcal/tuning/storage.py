"""Where a study is kept: SQLite in the folder of the search, or a database that several machines share.

`RDBStorage` does what a search needs of a storage. Commits are atomic, so that a kill tears nothing; the kernel frees
the locks of a killed process; workers send heartbeats, and another one repeats a trial whose worker was lost.
"""

from __future__ import annotations

import re
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fewcal._utils.text import one_line
from fewcal.errors import FewcalError, InputError

if TYPE_CHECKING:
    import sqlalchemy
    from optuna.storages import RDBStorage

FILE = "study.db"
# A worker that is silent for the second of these counts as lost, and its trial is repeated so many times.
HEARTBEAT_SECONDS, GRACE_SECONDS, RETRIES = 15, 60, 2
# Seconds that a worker waits for the lock of another one.
LOCK_SECONDS = 120
# What databases answer where two workers make the tables of an empty one at the same moment.
COLLISIONS, ATTEMPTS = ("already exists", "unique constraint", "duplicate key"), 5


def require_optuna() -> ModuleType:
    """Optuna, quiet, or what to install."""
    try:
        import optuna
    except ImportError as error:
        raise InputError("tuning needs the package optuna: pip install 'fewcal[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def storage_url(folder: Path, url: str | None) -> str:
    """The address of the database; None stands for the file in `folder`. Raises unless studies can be kept in it.

    >>> storage_url(Path("/tmp"), None)
    'sqlite:////tmp/study.db'
    """
    require_optuna()
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if url is None:
        return f"sqlite:///{(folder / FILE).absolute()}"
    with suppress(ArgumentError, ValueError):
        parsed = make_url(url)
        scheme, name = parsed.get_backend_name(), parsed.database
        if scheme == "sqlite" and name and name != ":memory:":
            return f"sqlite:///{Path(name).absolute()}"
        if scheme == "postgresql" and name:
            return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    raise InputError(f"storage {shown_url(url)!r} must be sqlite:///FILE or postgresql://USER@HOST/DATABASE")


def shown_url(url: str) -> str:
    """The address of a database without its password.

    >>> shown_url("postgresql://me:secret@host/db"), shown_url("sqlite:////tmp/study.db")
    ('postgresql://me:***@host/db', '/tmp/study.db')
    """
    return re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", url.removeprefix("sqlite:///"))


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Raise what a database refuses in one line."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError, AssertionError) as caught:
        # Optuna asserts while it handles an error of the database.
        error = caught.__context__ if isinstance(caught, AssertionError) else caught
        if not isinstance(error, StorageInternalError | SQLAlchemyError):
            raise
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = getattr(cause, "orig", None) or cause
        if type(reason) is sqlite3.DatabaseError:  # not one of its subclasses, which are about access and room
            raise damaged(url, reason) from error
        raise FewcalError(
            f"the study in {shown_url(url)} cannot be read or written ({one_line(reason)}); "
            "finished trials are kept: restore access or make room, then --resume"
        ) from error


def damaged(url: str, reason: object) -> InputError:
    """The error for a database that holds something else than a study."""
    return InputError(f"the study in {shown_url(url)} is damaged ({one_line(reason)}); choose another folder")


def open_storage(url: str) -> RDBStorage:
    """Open the database at an address from `storage_url`, and make its tables if it is empty."""
    for attempt in range(ATTEMPTS):
        try:
            with storage_errors(url):
                return _connect(url)
        except ImportError as error:
            raise InputError(f"storage {shown_url(url)!r} needs a driver: pip install 'fewcal[postgresql]'") from error
        except FewcalError as error:
            if attempt + 1 == ATTEMPTS or not any(sign in str(error).lower() for sign in COLLISIONS):
                raise
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable")


def _connect(url: str) -> RDBStorage:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback

    class Storage(RDBStorage):
        def record_heartbeat(self, trial_id: int) -> None:
            with suppress(StorageInternalError):  # the trial itself meets the same error in a moment
                super().record_heartbeat(trial_id)

    is_sqlite = url.startswith("sqlite")
    options: dict[str, Any] = {"connect_args": {"timeout": LOCK_SECONDS}} if is_sqlite else {"pool_pre_ping": True}
    retry = RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
    storage = Storage(
        url,
        options,
        heartbeat_interval=HEARTBEAT_SECONDS,
        grace_period=GRACE_SECONDS,
        heartbeat_stale_trial_callback=retry,
    )
    if is_sqlite:
        _prepare_sqlite(url, storage.engine)
    return storage


def _prepare_sqlite(url: str, engine: sqlalchemy.Engine) -> None:
    """Serialise transactions, so that no two workers take one trial; write ahead, so that none waits for the disk."""
    from sqlalchemy import event

    def connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # transactions begin below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()  # connections that were made before
    with engine.connect() as connection:
        answer = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if answer != "ok":
        raise damaged(url, answer)
