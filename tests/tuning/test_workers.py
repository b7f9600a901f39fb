"""Who computes the trials of a search, and where they are kept: storage, workers that die, Dask, PostgreSQL."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from fewcal.presets import get_preset
from fewcal.tuning import Search, signed, tune
from fewcal.tuning.search import SearchData, run_trial
from fewcal.tuning.start import start_points
from fewcal.tuning.storage import count, drop_lost, give_up, open_storage
from fewcal.tuning.study import StudyPlace, open_study
from fewcal.tuning.worker_process import WORKER, alive, me
from fewcal.tuning.workers import ignore_sigint
from limits import PATIENCE
from processes import FORKED, forked_dask_workers
from small_features import feature_set, save_features
from small_search import QUICK, in_memory, quick, runner


def test_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    result = quick(tmp_path / "s", storage=url, study="mine")
    loaded = optuna.load_study(study_name="mine", storage=url)
    assert len([t for t in loaded.trials if t.state.is_finished()]) == result.counts.finished == QUICK.trials


def test_an_empty_database_that_another_worker_fills_in_this_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, real, calls = f"sqlite:///{tmp_path}/study.db", signed.SignedDatabase, []

    def crowded(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) < 3:
            raise RuntimeError("(sqlite3.OperationalError) table studies already exists")
        return real(*args, **more)

    monkeypatch.setattr(signed, "SignedDatabase", crowded)
    assert isinstance(open_storage(tmp_path, url), real)
    assert len(calls) == 3


def test_trials_of_the_dead_are_taken_over() -> None:
    search = Search(trials=2, tasks=10, query=5, heads=("closed_form",))
    study = in_memory(search)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert zombie.stdout is not None
    assert zombie.stdout.read() == b""  # it ends now, and nobody fetches it
    deadline = time.monotonic() + PATIENCE
    host = os.uname().nodename
    while alive({"host": host, "pid": zombie.pid, "born": None}) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive({"host": host, "pid": zombie.pid, "born": None}) is False
    zombie.wait()
    zombie.stdout.close()
    dead, other = study.ask(), study.ask()
    dead.suggest_float("m", 0, 1)
    dead.set_user_attr("worker", {"host": host, "pid": gone.pid})
    other.set_user_attr("worker", {"host": host, "pid": os.getpid()})
    assert drop_lost(study) == 1
    assert [t.state for t in study.trials] == [TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING]
    assert study.ask().suggest_float("m", 0, 1) == dead.params["m"]
    assert count(study).finished == 0  # a lost trial does not count
    far = study.ask()
    far.set_user_attr("worker", {"host": "elsewhere", "pid": gone.pid})
    assert drop_lost(study) == 0  # another machine's, and only just begun


def test_a_process_with_the_number_of_a_dead_one_is_not_taken_for_it() -> None:
    study = in_memory(QUICK)
    trial = study.ask()
    trial.suggest_float("m", 0, 1)
    trial.set_user_attr("worker", me())
    assert drop_lost(study) == 0
    if me()["born"] is None:
        pytest.skip("this system does not tell when a process began")
    trial.set_user_attr("worker", me() | {"born": me()["born"] - 1})
    assert drop_lost(study) == 1


def test_a_trial_without_a_worker_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of versions that signed a trial after they had asked for it, or of another machine."""
    study = in_memory(QUICK)
    study.enqueue_trial({"m": 0.5}, user_attrs={"claim elsewhere 7": {"host": "elsewhere", "pid": 7, "born": 7}})
    study.ask()
    assert drop_lost(study) == 0
    monkeypatch.setattr("fewcal.tuning.storage._NAMELESS", timedelta(0))
    assert drop_lost(study) == 1
    assert study.ask().suggest_float("m", 0, 1) == 0.5


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str | None]:
    """A folder and an address, for `open_storage`."""
    if request.param == "postgresql":
        return tmp_path, request.getfixturevalue("postgresql")
    return tmp_path, {"journal": None, "sqlite": f"sqlite:///{tmp_path}/study.db"}[request.param]


def _before_a_trial_is_signed(do: Callable[[], None]) -> None:
    """Call it between the two steps in which a trial is taken from the queue and signed."""
    for kind in (signed.SignedJournal, signed.SignedDatabase):

        def set_attr(self: Any, trial: int, key: str, value: Any, real: Any = kind.set_trial_user_attr) -> None:
            if key == WORKER:
                do()
            real(self, trial, key, value)

        kind.set_trial_user_attr = set_attr  # type: ignore[method-assign]


def _die_while_asking(storage: tuple[Path, str | None], name: str) -> None:
    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    study = optuna.load_study(study_name=name, storage=open_storage(*storage))
    study.sampler.before_trial = die  # type: ignore[method-assign]  # a new trial is there, and its parameters are sought
    _before_a_trial_is_signed(die)
    study.ask()


@pytest.mark.parametrize("name", ["new", "queued"])
def test_a_trial_whose_worker_is_killed_while_it_asks_is_taken_over_at_once(
    storage: tuple[Path, str | None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("_NAMELESS", "_LOST"):
        monkeypatch.setattr(f"fewcal.tuning.storage.{patience}", timedelta.max)
    kept = open_storage(*storage)
    study = optuna.create_study(study_name=name, storage=kept, direction="maximize")
    if name == "queued":
        study.enqueue_trial({"m": 0.5})
    process = FORKED.Process(target=_die_while_asking, args=(storage, name))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    [trial] = study.trials
    assert trial.state == TrialState.RUNNING
    assert (WORKER in trial.user_attrs) == (name == "new")
    if name == "queued":  # one who comes too late to take it lives, and has no part in it
        assert not kept.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
    assert drop_lost(study) == 1
    if name == "queued":
        assert study.ask().suggest_float("m", 0, 1) == 0.5


def test_a_trial_is_left_to_the_worker_that_is_about_to_sign_it(
    storage: tuple[Path, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(study_name="s", storage=open_storage(*storage), direction="maximize")
    other = optuna.load_study(study_name="s", storage=open_storage(*storage))
    study.enqueue_trial({"m": 0.5})
    seen = []
    for kind in (signed.SignedJournal, signed.SignedDatabase):  # so that they are as before at the end
        monkeypatch.setattr(kind, "set_trial_user_attr", kind.set_trial_user_attr)
    _before_a_trial_is_signed(lambda: seen.append((other.trials[0].state, drop_lost(other))))
    trial = study.ask()
    assert seen == [(TrialState.RUNNING, 0)]
    assert other.trials[0].user_attrs[WORKER] == me()
    assert (trial.suggest_float("m", 0, 1), drop_lost(other)) == (0.5, 0)


def test_an_interrupted_trial_is_begun_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    r = runner()
    space, study = QUICK.make_space(len(r.bank)), in_memory(QUICK)
    values = start_points(space, r.bank)[0]
    study.enqueue_trial(values)

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(r, "run", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                run_trial(study, study.ask(), space, r, QUICK)
    assert [t.state for t in study.trials] == [TrialState.FAIL, TrialState.FAIL, TrialState.WAITING]
    trial = study.ask()
    assert space.suggest(trial) == space.params(values)
    assert give_up(study, trial)
    assert not give_up(study, trial)
    assert TrialState.WAITING not in [t.state for t in study.trials]  # three times were enough


def test_a_trial_that_others_took_for_lost_does_not_stop_its_worker() -> None:
    r = runner()
    space, study = QUICK.make_space(len(r.bank)), in_memory(QUICK)
    trial = study.ask()
    give_up(study, trial)
    assert run_trial(study, trial, space, r, QUICK) is None
    assert study.trials[0].state == TrialState.FAIL


def _join(folder: Path, features: Path, trials: int) -> None:
    """A worker as a user would start it on another machine."""
    search = Search(**(QUICK.to_dict() | {"trials": trials, "heads": ("closed_form",)}))
    tune(features, search, out=folder, resume=True, plots=False)


def test_four_processes_two_of_them_killed_lose_no_finished_trial(tmp_path: Path) -> None:
    features = save_features(tmp_path / "features", **feature_set().splits())
    folder, trials = tmp_path / "s", 60
    # The first one makes the study, so that the others can join it.
    open_study(StudyPlace(folder), QUICK, SearchData.of(feature_set(), QUICK), resume=False)
    processes = [FORKED.Process(target=_join, args=(folder, features, trials)) for _ in range(4)]
    for process in processes:
        process.start()
    journal = folder / "study.journal"

    def finished() -> dict[int, float | None]:
        study = optuna.load_study(study_name="fewcal", storage=open_storage(folder))
        return {t.number: t.value for t in study.trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)}

    def refused() -> int:
        return count(optuna.load_study(study_name="fewcal", storage=open_storage(folder))).refused

    deadline = time.monotonic() + PATIENCE
    while len(finished()) < 10 and time.monotonic() < deadline:
        time.sleep(0.1)
    seen: dict[int, float | None] = {}
    pick = random.Random(0)
    for process in pick.sample(processes, 2):
        seen |= finished()
        os.kill(process.pid or 0, signal.SIGKILL)
        time.sleep(pick.random())
    for process in processes:
        process.join(120)
    assert sorted(p.exitcode or 0 for p in processes) == [-signal.SIGKILL, -signal.SIGKILL, 0, 0]
    at_end = finished()
    assert len(seen) >= 10
    assert all(at_end[number] == value for number, value in seen.items())
    assert len(at_end) + refused() >= trials
    assert journal.is_file()
    assert get_preset(folder / "preset.json").head == "closed_form"


def test_workers_leave_ctrl_c_to_their_parent() -> None:
    before = signal.getsignal(signal.SIGINT)
    ask = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"]
    with ignore_sigint():
        assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip() == "True"
    assert signal.getsignal(signal.SIGINT) is before
    thread = threading.Thread(target=ignore_sigint().__enter__)  # where signals cannot be set, nothing is
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


def test_worker_processes_share_a_study(tmp_path: Path) -> None:
    result = quick(tmp_path / "s", workers=2)
    assert result.counts.finished >= QUICK.trials
    pids = {t.user_attrs["worker"]["pid"] for t in result.study.trials if "worker" in t.user_attrs}
    assert pids - {os.getpid()}


def test_a_dask_cluster_computes_the_trials(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with forked_dask_workers():
        result = quick(tmp_path / "s", scheduler="local:2")
    assert result.counts.finished == QUICK.trials
    r = runner()
    space = QUICK.make_space(len(r.bank))
    for trial in result.study.trials:
        if trial.state == TrialState.COMPLETE:
            assert trial.value == pytest.approx(r.accuracy(space.params(trial.params)).mean(), abs=0.011)


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real server on loopback, for as long as the tests of this file."""
    tools = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []
    found = shutil.which("initdb", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, tools)]))
    if found is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg")
    tool = Path(found).resolve().parent
    root = os.geteuid() == 0
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    # The server refuses to run as root.
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if root else []
    if root:
        shutil.chown(folder, "nobody", "nogroup")
    port = 20_000 + os.getpid() % 20_000
    data = folder / "data"

    def call(*command: str) -> None:
        subprocess.run([*user, *command], check=True, capture_output=True, text=True, cwd=folder)

    try:
        call(str(tool / "initdb"), "-D", str(data), "-U", "fewcal", "-A", "trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        call(str(tool / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"PostgreSQL does not start here: {getattr(error, 'stderr', error)}")
    yield f"postgresql://fewcal@127.0.0.1:{port}/postgres"
    call(str(tool / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


def test_postgresql_for_real(tmp_path: Path, postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_context", lambda _: FORKED)
    result = quick(tmp_path / "s", storage=postgresql, study="together", workers=2)
    storage = open_storage(tmp_path, postgresql)
    study = optuna.load_study(study_name="together", storage=storage)
    done = [t for t in study.trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    assert len(done) == result.counts.finished >= QUICK.trials
    assert not (tmp_path / "s" / "study.journal").exists()
