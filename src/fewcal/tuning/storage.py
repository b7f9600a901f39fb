"""Where a study is kept: a journal file, SQLite or PostgreSQL; and what became of trials whose worker has died."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fewcal._utils.text import one_line
from fewcal._utils.types import JSONObject
from fewcal.errors import FewcalError, InputError
from fewcal.tuning.worker_process import CLAIM, WORKER, alive

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

JOURNAL = "study.journal"
# A trial of another machine that began this long ago and has not ended is taken for lost.
_LOST = timedelta(hours=2)
# One that has no name of a worker after this long, and that nobody of this machine tried to take: its worker names it
# in the next moment, and was killed in this one.
_NAMELESS = timedelta(minutes=1)
# A trial is begun this often at most, so that one which brings down its workers does so no more.
_TRIES = 3
# What databases say where two workers make the tables of an empty one at the same moment; the second look finds them.
_COLLISION = ("already exists", "unique constraint", "duplicate key")
_ATTEMPTS = 5


def require_optuna() -> ModuleType:
    """Optuna, quiet, or what to install."""
    try:
        import optuna
    except ImportError as error:
        raise InputError("tuning needs the package optuna: pip install 'fewcal[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_storage(folder: Path, url: str | None = None) -> BaseStorage:
    """The journal file in `folder`, or the database at `url`."""
    require_optuna()
    from fewcal.tuning import signed

    if url is None:
        from fewcal.tuning.journal import JournalFile

        try:
            folder.mkdir(parents=True, exist_ok=True)
            return signed.SignedJournal(JournalFile(folder / JOURNAL))
        except OSError as error:
            raise InputError(f"cannot write {folder / JOURNAL}: {error.strerror or error}") from error
        except FewcalError:
            raise
        except Exception as error:  # records that are none can make Optuna raise anything
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InputError(f"{folder / JOURNAL} is damaged ({reason}); choose another folder") from error
    scheme = storage_scheme(url)
    options: JSONObject = {"pool_pre_ping": True}
    if scheme == "sqlite":
        options["connect_args"] = {"timeout": 120}  # workers wait for each other instead of failing
    if scheme == "postgresql":
        url = url.replace("postgresql:", "postgresql+psycopg:", 1)
    for attempt in range(_ATTEMPTS):
        try:
            return signed.SignedDatabase(url, engine_kwargs=options)
        except ImportError as error:
            raise InputError(f"storage {scheme} needs a driver: pip install 'fewcal[postgresql]' ({error})") from error
        except Exception as error:
            if attempt + 1 < _ATTEMPTS and any(sign in str(error).lower() for sign in _COLLISION):
                time.sleep(0.2 * (attempt + 1))
                continue
            first = str(error).strip().splitlines()[0]
            raise FewcalError(f"the storage {without_password(url)} cannot be opened: {first}") from error
    raise AssertionError("unreachable")


def storage_scheme(url: str) -> str:
    """The kind of a database; one that studies cannot be kept in is refused.

    >>> storage_scheme("sqlite:///study.db")
    'sqlite'
    """
    scheme = url.partition(":")[0]
    if not scheme.startswith(("sqlite", "postgresql")):
        raise InputError(
            f"storage {without_password(url)!r} is neither sqlite:///FILE nor postgresql://USER@HOST/DATABASE"
        )
    return scheme


def without_password(url: str) -> str:
    """
    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:…@host/db'
    """
    before, at, after = url.rpartition("@")
    scheme, slashes, who = before.partition("://")
    user, colon, _ = who.partition(":")
    return f"{scheme}{slashes}{user}{colon}{'…' if colon else ''}{at}{after}" if at else url


# ---- trials and their workers ---------------------------------------------------------------------------------------


def _lost(trial: FrozenTrial) -> bool:
    """Whether nobody works on a running trial any more."""
    worker = trial.user_attrs.get(WORKER)
    claims = [given for name, given in trial.user_attrs.items() if name.startswith(CLAIM) and given is not None]
    found = {alive(who) for who in ([worker] if worker is not None else claims)}
    if True in found:
        return False
    if found == {False}:
        return True
    patience = _NAMELESS if worker is None else _LOST
    return trial.datetime_start is not None and datetime.now() - trial.datetime_start > patience


def drop_lost(study: optuna.Study) -> int:
    """Give up trials whose worker has died; how many there were."""
    from optuna.trial import TrialState

    lost = [t for t in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if _lost(t)]
    return sum(give_up(study, trial) for trial in lost)


def give_up(study: optuna.Study, trial: optuna.Trial | FrozenTrial) -> bool:
    """Mark a trial as failed and put its parameters in the queue again; False where it had ended already."""
    from optuna.trial import TrialState

    number = trial._trial_id  # private of optuna: the storage knows a trial by no other name
    try:
        study._storage.set_trial_state_values(number, TrialState.FAIL)  # private of optuna: `tell` is for workers
    except Exception:  # another worker was faster
        return False
    now = study._storage.get_trial(number)  # private of optuna: the trial as others have left it
    picked = now.system_attrs.get("fixed_params", {}) | now.params
    tries = now.user_attrs.get("tries", 1)
    if picked and tries < _TRIES:
        study.enqueue_trial(picked, user_attrs={"tries": tries + 1})
    return True


@dataclass(frozen=True)
class Counts:
    """Trials by what became of them; `finished` are those that count: complete, pruned, or refused with a reason."""

    complete: int
    pruned: int
    refused: int
    running: int

    @property
    def finished(self) -> int:
        return self.complete + self.pruned + self.refused


def count(study: optuna.Study) -> Counts:
    """What became of the trials so far."""
    from optuna.trial import TrialState

    states = dict.fromkeys(TrialState, 0)
    refused = 0
    for trial in study.get_trials(deepcopy=False):
        states[trial.state] += 1
        refused += trial.state == TrialState.FAIL and "refused" in trial.user_attrs
    return Counts(states[TrialState.COMPLETE], states[TrialState.PRUNED], refused, states[TrialState.RUNNING])


def enqueued(study: optuna.Study) -> int:
    """How many trials were given to the study, those not counted that took over from a lost worker."""
    trials = study.get_trials(deepcopy=False)
    return sum("fixed_params" in t.system_attrs and "tries" not in t.user_attrs for t in trials)


def complete_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Complete trials, the best first."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda t: (-(t.value or 0.0), t.number))
