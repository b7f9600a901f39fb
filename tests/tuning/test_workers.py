"""Workers of a study and its database: kills, Ctrl-C, full disks, two processes at once, PostgreSQL."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from fewcal.errors import FewcalError, InputError
from fewcal.tuning import Search, storage, tune
from fewcal.tuning.storage import open_storage, storage_url
from fewcal.tuning.study import Session, _work
from limits import PATIENCE, largest_file
from processes import FORKED
from small_features import feature_set, save_features
from small_search import QUICK, quick

DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def finished(url: str, name: str = "fewcal") -> dict[int, float | None]:
    study = optuna.load_study(study_name=name, storage=open_storage(url))
    return {t.number: t.value for t in study.get_trials(states=DONE)}


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def session(folder: Path, search: Search = QUICK, url: str | None = None, name: str = "fewcal") -> Session:
    return Session(feature_set(), search.for_features(feature_set()), "cpu", storage_url(folder, url), name)


def begin(made: Session) -> str:
    made.open(made.objective(), resume=False)
    return made.url


def start(target: Callable[..., None], *arguments: object) -> Any:
    process = FORKED.Process(target=target, args=arguments)
    process.start()
    return process


def join(folder: Path, search: Search, url: str | None = None, name: str = "fewcal") -> None:
    """A process as a user would start it on each machine."""
    tune(feature_set(), search, out=folder, storage=url, study=name, resume=True, plots=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        address: str = request.getfixturevalue("postgresql")
        return address
    return f"sqlite:///{tmp_path}/study.db"


class TestKills:
    def test_two_of_four_processes_killed_lose_no_finished_trial(self, tmp_path: Path, url: str) -> None:
        search = dataclasses.replace(QUICK, trials=40)
        place = begin(session(tmp_path, search, url, "kills"))
        processes = [start(join, tmp_path / str(i), search, url, "kills") for i in range(4)]
        seen: dict[int, float | None] = {}
        for count, process in ((6, processes[1]), (15, processes[2])):
            wait(lambda n=count: len(finished(place, "kills")) >= n)  # type: ignore[misc]
            seen |= finished(place, "kills")
            os.kill(process.pid or 0, signal.SIGKILL)
        for process in processes:
            process.join(PATIENCE)
        assert [p.exitcode for p in processes] == [0, -signal.SIGKILL, -signal.SIGKILL, 0]
        at_end = finished(place, "kills")
        assert len(at_end) >= 40
        assert {number: at_end[number] for number in seen} == seen
        assert all((tmp_path / str(i) / "settings.json").is_file() for i in (0, 3))

    def test_trial_of_a_killed_worker_is_repeated_with_its_parameters(
        self, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage, "GRACE_SECONDS", 1)
        monkeypatch.setattr(storage, "HEARTBEAT_SECONDS", 1)
        place = begin(session(tmp_path, url=url, name="repeat"))
        process = start(_die_in_a_trial, place)
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
        study = optuna.load_study(study_name="repeat", storage=open_storage(place))
        assert [t.state for t in study.trials] == [TrialState.RUNNING]
        time.sleep(2.1)
        study.optimize(lambda trial: trial.suggest_float("floor", 0.02, 1.0), n_trials=1)
        assert [t.state for t in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
        assert study.trials[1].params == study.trials[0].params

    def test_interrupted_command_ends_its_workers_and_can_be_resumed(self, tmp_path: Path) -> None:
        features = save_features(tmp_path / "f", **feature_set().splits())
        options = ["--tasks", "20", "--query", "5", "--final-tasks", "20"]
        command = [sys.executable, "-m", "fewcal", "tune", str(features), "--out", str(tmp_path / "s"), *options]
        process = subprocess.Popen(
            [*command, "--trials", "5000", "--workers", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        place = storage_url(tmp_path / "s", None)
        wait((tmp_path / "s" / "study.db").exists)
        wait(lambda: len(_quiet_finished(place)) >= 3)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (130, "")
        assert errors.splitlines()[-1] == "fewcal: interrupted; continue with the same command and --resume"
        assert "Traceback" not in errors
        before = finished(place)
        done = subprocess.run([*command, "--trials", "1", "--resume", "--quiet"], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert finished(place) == before  # no worker goes on

    def test_worker_without_its_parent_ends(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        class Gone:
            def is_alive(self) -> bool:
                return False

        made = session(tmp_path)
        place = begin(made)
        monkeypatch.setattr("multiprocessing.parent_process", Gone)
        with pytest.raises(SystemExit):
            _work(made, 1)
        assert len(finished(place)) == 1


def _die_in_a_trial(place: str) -> None:
    def die(trial: Any) -> float:
        trial.suggest_float("floor", 0.02, 1.0)
        time.sleep(1.0)  # until it has sent a heartbeat
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    optuna.load_study(study_name="repeat", storage=open_storage(place)).optimize(die, n_trials=1)


def _quiet_finished(place: str) -> dict[int, float | None]:
    try:
        return finished(place)
    except KeyError:  # the study is not begun yet
        return {}


class TestProcesses:
    def test_worker_processes_share_a_study(self, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("multiprocessing.get_context", lambda _: FORKED)
        result = quick(tmp_path / "s", storage=url, study="together", workers=3)
        assert len(finished(storage_url(tmp_path, url), "together")) == result.trials >= QUICK.trials
        values = [t.params for t in result.study.get_trials(states=DONE)]
        assert all(a != b for i, a in enumerate(values) for b in values[:i])  # none was computed twice
        assert not (tmp_path / "s" / "study.db").exists()

    def test_queued_trial_is_taken_by_one_worker_alone(self, tmp_path: Path, url: str) -> None:
        place = storage_url(tmp_path, url)
        study = optuna.create_study(storage=open_storage(place), study_name="queue", direction="maximize")
        for x in range(30):
            study.enqueue_trial({"x": x})
        processes = [start(_take, place, 10) for _ in range(3)]
        for process in processes:
            process.join(PATIENCE)
        assert sorted(t.params["x"] for t in study.trials) == list(range(30))

    def test_trial_that_another_worker_repeated_does_not_stop_the_search(self, tmp_path: Path) -> None:
        made = session(tmp_path, dataclasses.replace(QUICK, trials=2))
        objective = made.objective()
        study = made.open(objective, resume=False)

        def suspended(trial: Any) -> float:
            if trial.number < 2:
                study.tell(trial.number, state=TrialState.FAIL)
            if trial.number == 1:
                trial.report(0.5, 1)
            return 0.5

        made.optimize(study, suspended, lambda done, total: None)  # type: ignore[arg-type]
        assert [t.state for t in study.trials] == [TrialState.FAIL] * 2 + [TrialState.COMPLETE] * 2


def _take(place: str, count: int) -> None:
    study = optuna.load_study(study_name="queue", storage=open_storage(place))
    study.optimize(lambda trial: trial.suggest_int("x", 0, 100), n_trials=count)


class TestDatabase:
    def test_tables_that_another_worker_makes_at_this_moment_are_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, calls = storage._connect, []

        def crowded(url: str) -> Any:
            calls.append(url)
            if len(calls) < 3:
                raise optuna.exceptions.StorageInternalError from RuntimeError("table studies already exists")
            return real(url)

        monkeypatch.setattr(storage, "_connect", crowded)
        assert open_storage(f"sqlite:///{tmp_path}/study.db").get_all_studies() == []
        assert len(calls) == 3

    def test_full_disk_loses_no_finished_trial(self, tmp_path: Path) -> None:
        quick(tmp_path)
        place = storage_url(tmp_path, None)
        before = finished(place)
        size = max(file.stat().st_size for file in tmp_path.glob("study.db*"))
        more = dataclasses.replace(QUICK, trials=60)
        with largest_file(size + 5000), pytest.raises(FewcalError, match=r"cannot be read or written .*--resume"):
            quick(tmp_path, more, resume=True)
        after = finished(place)
        assert {number: after[number] for number in before} == before
        assert quick(tmp_path, more, resume=True).trials >= 60

    @pytest.mark.parametrize("content", [b"no database\nat all\n" * 100, b"SQLite format 3\0" + b"x" * 5000])
    def test_damaged_database_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "study.db").write_bytes(content)
        with pytest.raises(InputError, match=r"the study in .*study\.db is damaged .*; choose another folder"):
            quick(tmp_path)

    def test_deleted_database_is_named(self, tmp_path: Path) -> None:
        def delete(done: int, total: int) -> None:
            for file in tmp_path.glob("study.db*"):
                file.unlink()

        with pytest.raises(FewcalError, match=r"study\.db"):
            quick(tmp_path, progress=delete)

    @pytest.mark.parametrize(
        ("address", "words"),
        [
            ("mysql://me:secret@host/x", "must be sqlite:///FILE or postgresql://"),
            ("sqlite:///:memory:", "must be sqlite:///FILE or postgresql://"),
            ("postgresql://me:secret@127.0.0.1:1/none", "cannot be read or written"),
            ("sqlite:////no/such/folder/x.db", "cannot be read or written"),
        ],
    )
    def test_unusable_address_is_refused_without_its_password(self, tmp_path: Path, address: str, words: str) -> None:
        with pytest.raises(FewcalError, match=words) as error:
            quick(tmp_path / "s", storage=address)
        assert "secret" not in str(error.value)

    def test_folder_stays_the_same_when_the_process_changes_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "elsewhere").mkdir()
        result = quick(Path("s"), progress=lambda done, total: os.chdir(tmp_path / "elsewhere"))
        assert result.file == tmp_path / "s" / "settings.json"
        assert result.file.is_file()
        with pytest.raises(InputError, match="cannot write"):
            quick(result.file / "s")


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on loopback, for as long as the tests of this file."""
    tools = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []
    initdb = shutil.which("initdb", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, tools)]))
    if initdb is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg")
    tool = Path(initdb).resolve().parent
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        shutil.chown(folder, "nobody", "nogroup")
    port, data = 20_000 + os.getpid() % 20_000, folder / "data"

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
