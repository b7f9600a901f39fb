"""Blocks in other processes: joblib and a real Dask cluster, with workers lost on the way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fewcal.errors import FewcalError, FewcalWarning, InputError
from fewcal.evaluation import Protocol, Results, evaluate
from fewcal.evaluation import engine as engine_module
from fewcal.evaluation.executors import _local_workers, dask_client, remove_leftovers
from fewcal.evaluation.run_folder import load_run
from fewcal.evaluation.stats import calibration_error
from fewcal.features import FeatureSet
from fewcal.methods import Method, make_method
from limits import PATIENCE
from processes import forked_dask_workers
from small_features import Broken, Slow, feature_set

distributed = pytest.importorskip("distributed")

PROTOCOL = Protocol(way=3, query=5, tasks=120, seed=5)


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return feature_set()


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    with forked_dask_workers():
        yield


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", 5)


def methods(notes: Path | None = None, pause: float = 0.05) -> dict[str, Method]:
    """Slow enough that a worker dies in the midst of it, with samples that would show a mixed-up seed."""
    return {"slow": Slow(pause, None if notes is None else str(notes)), "dc": make_method("dc", n=6)}


@pytest.fixture(scope="module")
def serial(features: FeatureSet) -> Results:
    return evaluate(methods(pause=0), features, PROTOCOL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """A scheduler and two worker processes, each with a nanny that starts it again when it dies."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as running:
        yield running


def pids(cluster: distributed.LocalCluster) -> list[int]:
    with distributed.Client(cluster) as client:
        return list(client.run(os.getpid).values())


def same(a: Results, b: Results) -> None:
    np.testing.assert_array_equal(a.classes, b.classes)
    for name in b.correct:
        assert a.correct[name].tobytes() == b.correct[name].tobytes(), name
        # Probabilities may differ in their last digits with the number of threads, and so cross the border of a bin.
        error = calibration_error(b.bins[name])
        assert calibration_error(a.bins[name]) == pytest.approx(error, abs=5e-3), name


def test_cluster_gives_the_serial_result_and_gets_the_job_once_a_worker(
    features: FeatureSet, serial: Results, cluster: distributed.LocalCluster, tmp_path: Path
) -> None:
    with distributed.Client(cluster) as client:
        workers = set(client.run(os.getpid).values())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = evaluate(methods(tmp_path), features, PROTOCOL, scheduler=cluster.scheduler_address)
        deadline = time.monotonic() + PATIENCE  # the scheduler frees memory in its own time
        while any(held := client.run(lambda dask_worker: len(dask_worker.data)).values()):
            assert time.monotonic() < deadline, f"the run stays in the workers' memory: {held}"
            time.sleep(0.05)
    same(results, serial)
    notes = {int(p.name): p.read_text().count("prepared") for p in tmp_path.iterdir()}
    # This process prepares it as well, to size batches and to find errors before any work is sent out.
    assert notes == dict.fromkeys({*workers, os.getpid()}, 1)


@pytest.mark.parametrize("how_many", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_killed_on_the_way_lose_nothing(
    features: FeatureSet, serial: Results, cluster: distributed.LocalCluster, tmp_path: Path, how_many: int
) -> None:
    cluster.get_client().wait_for_workers(2, timeout=PATIENCE)
    victims = pids(cluster)[:how_many]  # with both of them all copies of the job are gone
    killed = []

    def kill_once(done: int, total: int) -> None:
        if 30 <= done < total and not killed:
            killed.append(done)
            for pid in victims:
                os.kill(pid, signal.SIGKILL)

    where = {"scheduler": cluster.scheduler_address, "out": tmp_path / "run"}
    results = evaluate(methods(), features, PROTOCOL, progress=kill_once, **where)  # type: ignore[arg-type]
    assert killed == [30]
    assert not set(victims) & set(pids(cluster)), "the workers did die"
    same(results, serial)
    same(load_run(tmp_path / "run"), serial)


def test_worker_killed_while_it_starts_is_started_again(
    features: FeatureSet, serial: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, made = distributed.LocalCluster, []

    def fragile(*args: object, **kwargs: object) -> distributed.LocalCluster:
        made.append(args)
        if len(made) == 1:
            raise RuntimeError("Nanny failed to start.")  # as Dask tells it
        return true(*args, **kwargs)

    monkeypatch.setattr(distributed, "LocalCluster", fragile)
    scatter, sent = distributed.Client.scatter, []

    def lost(self: distributed.Client, *args: object, **kwargs: object) -> object:
        sent.append(args)
        if len(sent) == 1:
            raise distributed.comm.CommClosedError("a worker died with the job on its way")
        return scatter(self, *args, **kwargs)

    monkeypatch.setattr(distributed.Client, "scatter", lost)
    same(evaluate(methods(pause=0), features, PROTOCOL, scheduler="local:1"), serial)
    assert (len(made), len(sent)) == (2, 2)

    def never(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "LocalCluster", never)
    with pytest.raises(FewcalError, match=r"ended while they started, 5 times .* use fewer workers"):
        evaluate("ncm", features, PROTOCOL, scheduler="local:1")


def test_error_on_a_worker_comes_back_as_it_is(features: FeatureSet, cluster: distributed.LocalCluster) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug in a method"):
        evaluate({"broken": Broken()}, features, PROTOCOL, scheduler=cluster.scheduler_address)


@pytest.mark.slow
def test_scheduler_that_goes_away_keeps_the_blocks_there_are(
    features: FeatureSet, serial: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewcal.evaluation.executors._WORKERS", 5)
    own = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
    closing = threading.Thread(target=own.close)

    def close(done: int, total: int) -> None:
        if done == 20:
            closing.start()

    with pytest.raises(FewcalError, match="has no workers or is gone") as caught:
        evaluate(methods(), features, PROTOCOL, scheduler=own.scheduler_address, progress=close, out=tmp_path / "run")
    closing.join()
    assert "\n" not in str(caught.value)
    kept = len(list((tmp_path / "run" / "blocks").glob("*.npz")))
    assert 4 <= kept < 24
    same(evaluate(methods(), features, PROTOCOL, out=tmp_path / "run", resume=True), serial)


def test_scheduler_that_is_not_there_is_one_line(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fewcal.cli import main

    monkeypatch.setattr("fewcal.evaluation.executors._CONNECT", 1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and never listening, so that no other answers there
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        features.save(tmp_path / "features")
        with pytest.raises(SystemExit) as stop:
            main(["evaluate", str(tmp_path / "features"), "--methods", "ncm", "--quiet", "--scheduler", address])
    assert stop.value.code == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith(f"fewcal: no Dask scheduler answers at '{address}'")
    assert "start one with `dask scheduler`" in line


@pytest.mark.slow
def test_killed_scheduler_is_one_line(features: FeatureSet, tmp_path: Path) -> None:
    """Dask itself prints a traceback for every connection that it loses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    features.save(tmp_path / "features")
    port, quiet = address.partition(":")[2], {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port]
    join = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    options = ["--methods", "ncm", "--tasks", "100000", "--scheduler", address, "--out", str(tmp_path / "run")]
    with (
        subprocess.Popen([*start, "--no-dashboard"], **quiet) as scheduler,  # type: ignore[call-overload]
        subprocess.Popen(join, **quiet) as worker,  # type: ignore[call-overload]
        subprocess.Popen(
            [sys.executable, "-m", "fewcal", "evaluate", str(tmp_path / "features"), *options],
            stderr=subprocess.PIPE,
            text=True,
        ) as command,
    ):
        deadline = time.monotonic() + PATIENCE
        while not list(tmp_path.glob("run/blocks/*.npz")) and time.monotonic() < deadline:
            time.sleep(0.05)
        scheduler.kill()
        printed = command.communicate(timeout=PATIENCE)[1]
        worker.kill()
    assert command.returncode == 3, printed
    assert "Traceback" not in printed
    last = printed.rstrip().splitlines()[-1]
    assert last.startswith(f"fewcal: the Dask cluster at '{address}' has no workers or is gone")


def test_own_cluster_prints_nothing_and_listens_on_this_machine_alone() -> None:
    logging.getLogger("distributed.client").setLevel(logging.WARNING)  # as its configuration has it
    with dask_client("local:1") as client:
        assert not logging.getLogger("distributed.client").isEnabledFor(logging.ERROR)
        assert not logging.getLogger("distributed.core").isEnabledFor(logging.ERROR)
        assert client.scheduler_info()["address"].startswith("tcp://127.0.0.1:")
        assert client.dashboard_link.startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_workers_on_this_machine_give_the_serial_result(features: FeatureSet, serial: Results, tmp_path: Path) -> None:
    same(evaluate(methods(tmp_path), features, PROTOCOL, scheduler="local:2"), serial)
    assert len(list(tmp_path.iterdir())) == 3, "two workers and this process"


def test_local_workers_differ_from_localhost() -> None:
    assert _local_workers("local:2") == 2
    assert _local_workers("local") == (os.cpu_count() or 1)
    for address in ("localhost:8786", "tcp://localhost:8786", "10.0.0.1:8786"):
        assert _local_workers(address) is None
    for wrong in ("local:", "local:0", "local:two", "local:-1"):
        with pytest.raises(InputError, match="neither an address nor local:N"):
            _local_workers(wrong)


def test_contradicting_executors_are_refused(features: FeatureSet) -> None:
    with pytest.raises(InputError, match="n_jobs=0 has no meaning"):
        evaluate("ncm", features, PROTOCOL, n_jobs=0)
    with pytest.raises(InputError, match="exclude each other"):
        evaluate("ncm", features, PROTOCOL, n_jobs=2, scheduler="local:2")


# ---- joblib ---------------------------------------------------------------------------------------------------------


def test_processes_prepare_the_job_once_each(features: FeatureSet, serial: Results, tmp_path: Path) -> None:
    same(evaluate(methods(tmp_path, 0.01), features, PROTOCOL, n_jobs=2), serial)
    notes = {int(p.name): p.read_text().count("prepared") for p in tmp_path.iterdir()}
    assert notes.pop(os.getpid()) == 1
    assert set(notes.values()) == {1}
    assert 1 <= len(notes) <= 2


def test_killed_process_is_one_line_and_the_run_can_be_resumed(
    features: FeatureSet, serial: Results, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()

    def kill(done: int, total: int) -> None:
        if done >= 30:
            for note in (tmp_path / "notes").iterdir():
                if int(note.name) != os.getpid():
                    with contextlib.suppress(ProcessLookupError):  # killed at an earlier report, not yet noticed
                        os.kill(int(note.name), signal.SIGKILL)
                    return

    with pytest.raises(FewcalError, match="a worker process was killed") as caught:
        evaluate(methods(tmp_path / "notes"), features, PROTOCOL, n_jobs=2, out=tmp_path / "run", progress=kill)
    assert "\n" not in str(caught.value)
    assert len(list((tmp_path / "run" / "blocks").glob("*.npz"))) >= 6
    # Where the notes are is no setting of the method, so this is the same run.
    same(evaluate(methods(), features, PROTOCOL, out=tmp_path / "run", resume=True), serial)


def test_worker_does_not_repeat_a_warning_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    class Prepared:
        def __init__(self, job: object) -> None:
            warnings.warn("the bank is not used", FewcalWarning, stacklevel=1)

        def run(self, start: int, stop: int) -> tuple[int, int]:
            return start, stop

    monkeypatch.setattr(engine_module, "Engine", Prepared)
    monkeypatch.setattr(engine_module, "_READY", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine_module.run_block(SimpleNamespace(token="job"), 3, 5) == (3, 5)  # type: ignore[arg-type, comparison-overlap]


def test_shared_memory_of_killed_runs_is_removed_and_no_other(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead = tmp_path / f"joblib_memmapping_folder_{int(ended.stdout)}_abc_1"
    alive = tmp_path / f"joblib_memmapping_folder_{os.getpid()}_abc_1"
    others = [tmp_path / name for name in ("joblib_memmapping_folder_x_1", "precious")]
    for folder in (dead, alive, *others):
        folder.mkdir()
        (folder / "array.pkl").write_bytes(b"x")
    assert remove_leftovers([tmp_path, tmp_path / "not there"]) == [dead]
    assert sorted(tmp_path.iterdir()) == sorted([alive, *others])
