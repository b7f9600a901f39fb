"""Long commands that are killed anywhere, meet full disks, or race for a folder; and what is left when they go on.

Every command is a function of a folder that begins or continues. A child runs it and is killed (SIGKILL) at a random
moment, once or twice; then it runs to its end. What it leaves must be what an undisturbed run leaves.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fewcal.errors import FewcalError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features.extract import extract
from fewcal.features.extractors import as_extractor
from fewcal.features.sources.texts import Texts
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import choose
from fewcal.paper.run import run_experiments
from fewcal.paper.sets import Features
from fewcal.training import TrainSettings, train
from fewcal.training.data import PixelSplit
from fewcal.tuning import Search, tune
from limits import largest_file
from small_features import Together


@dataclass(frozen=True)
class Command:
    """`run(folder)` begins or continues; `outcome(folder)` must be the same; `kept` is what a kill must not take."""

    name: str
    run: Callable[[Path], object]
    outcome: Callable[[Path], object]
    kept: Callable[[Path], int] = lambda folder: 0


_SET = make_features(base=6, val=5, novel=5, rows=20, dim=16)
_PAPER = make_features(base=33, val=8, novel=8, rows=20, dim=16)
_PROTOCOL = Protocol(way=3, query=5, tasks=600)
_UNBALANCED = Protocol(way=4, min_way=2, min_shot=1, shot=3, query=5, dirichlet=1.0, outliers=0.2, tasks=400)


def _evaluation(name: str, protocol: Protocol = _PROTOCOL, **more: object) -> Command:
    def run(folder: Path) -> None:
        methods = {"ncm": make_method("ncm"), "gdc": make_method("gdc"), "lr": make_method("lr"), "t": Together()}
        os.chdir(folder.parent)  # a relative name, from which the process then goes away
        evaluate(
            methods, _SET, protocol, out=folder.name, resume=True, progress=lambda done, total: os.chdir("/"), **more  # type: ignore[arg-type]
        )  # fmt: skip

    def outcome(folder: Path) -> str:
        return hashlib.sha256((folder / "tasks.parquet").read_bytes()).hexdigest()

    return Command(name, run, outcome, lambda folder: len(list((folder / "blocks").glob("*.npz"))))


def _slowly(texts: list[str]) -> np.ndarray:
    time.sleep(0.004)
    return np.array([[len(t), 1.0] for t in texts], np.float32)


_TEXTS = Texts(
    [str(i) for i in range(300)], ["a", "b", "c"] * 100, None, "here", ["x" * (1 + i % 37) for i in range(300)]
)


def _extract(folder: Path) -> None:
    extract(_TEXTS, as_extractor(_slowly, name="slow", kind="text"), folder / "x.npz", batch=4, workers=1, resume=True)


def _tune(folder: Path) -> None:
    tune(_SET, Search(trials=8, tasks=20, query=5, final_tasks=20), out=folder, resume=True, plots=False)


def _finished(folder: Path) -> int:
    """Trials that the database has as finished: none may be lost."""
    if not (folder / "study.db").exists():
        return 0
    with closing(sqlite3.connect(folder / "study.db")) as database, suppress(sqlite3.OperationalError):  # no tables yet
        return len(database.execute("SELECT 1 FROM trials WHERE state IN ('COMPLETE', 'PRUNED')").fetchall())
    return 0


def _pictures(seed: int, names: str) -> PixelSplit:
    g = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (8 * len(names), 3, 16, 16), dtype=torch.uint8, generator=g)
    return PixelSplit(pixels, torch.arange(len(names)).repeat_interleave(8), list(names))


def _train(folder: Path) -> None:
    settings = TrainSettings.for_backbone(
        "conv4", size=16, store=16, epochs=3, mixup_epochs=0, batch=8, validations=2, tasks=5,
        backbone_settings={"channels": 4},
    )  # fmt: skip
    data = {"base": _pictures(1, "abcd"), "val": _pictures(2, "efghi")}
    train(data, settings, folder, resume=True, save_seconds=0, final_tasks=5)


def _file(name: str) -> Callable[[Path], str]:
    return lambda folder: hashlib.sha256((folder / name).read_bytes()).hexdigest()


def _paper(folder: Path) -> None:
    budget = Budget(tasks=8, sampled=3, sgd=1, trials=2, trial_tasks=3)
    run_experiments(choose(["table7"]), [Features("cub", "cub", _PAPER)], folder, budget, resume=True)


def _records(folder: Path) -> list[object]:
    return [_untimed(json.loads(file.read_text())["data"]) for file in sorted((folder / "results").rglob("*.json"))]


def _untimed(value: object) -> object:
    """Without how long it took."""
    if isinstance(value, dict):
        return {k: _untimed(v) for k, v in value.items() if "second" not in k}
    return [_untimed(v) for v in value] if isinstance(value, list) else value


COMMANDS = [
    _evaluation("evaluate"),
    _evaluation("evaluate, unbalanced", _UNBALANCED),
    _evaluation("evaluate, n_jobs=2", n_jobs=2),
    _evaluation("evaluate, Dask", scheduler="local:1"),
    Command("extract", _extract, _file("x.npz")),
    Command("tune", _tune, lambda folder: (folder / "settings.json").is_file(), _finished),
    Command("train", _train, _file("best.safetensors")),
    Command("paper", _paper, _records, lambda folder: len(list((folder / "results").rglob("*.json")))),
]


@dataclass
class Disturbed:
    """What became of the disturbed runs of a command."""

    kills: int = 0
    runs: int = 0
    identical: int = 0
    lost: int = 0
    errors: int = 0


def _started(work: Callable[[], object]) -> int:
    """A child that does `work`; its exit status is 0, 3 for an error of ours, 1 for any other."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        warnings.simplefilter("ignore")
        # Dask keeps a thread once it was used, and a fork does not take it along: a child would wait for it forever.
        for name in [name for name in sys.modules if name.partition(".")[0] == "distributed"]:
            del sys.modules[name]
        work()
        code = 0
    except FewcalError:
        code = 3
    finally:
        os._exit(code)


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def disturb(command: Command, runs: int, seed: int = 0, kills: int = 2, by: int = signal.SIGKILL) -> Disturbed:
    """Kill and continue a command, `runs` times; `by` may be SIGINT for Ctrl-C."""
    rng, found = random.Random(f"{command.name} {seed}"), Disturbed()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        if _ended(_started(lambda: command.run(Path(folder) / "whole"))) != 0:
            raise RuntimeError(f"{command.name} does not run")
        seconds = time.monotonic() - began
        truth = command.outcome(Path(folder) / "whole")
        for i in range(runs):
            place = Path(folder) / f"run {i}"
            kept = 0
            for _ in range(kills):
                pid = _started(lambda: command.run(place))  # noqa: B023
                time.sleep(rng.uniform(0, seconds))
                os.kill(pid, by)
                found.kills += _ended(pid) != 0
                now = command.kept(place)
                found.lost += now < kept and not (place / "tasks.parquet").exists()
                kept = now
            code = _ended(_started(lambda: command.run(place)))  # noqa: B023
            found.runs += 1
            found.errors += code != 0
            found.identical += code == 0 and command.outcome(place) == truth
            shutil.rmtree(place, ignore_errors=True)
    return found


def fill_disk(command: Command, runs: int, seed: int = 0) -> Disturbed:
    """Run a command on a disk that is full from a random size of file on; then with room."""
    rng, found = random.Random(f"{command.name} {seed}"), Disturbed()

    def limited(place: Path, size: int) -> None:
        with largest_file(size):
            command.run(place)

    with tempfile.TemporaryDirectory() as folder:
        _ended(_started(lambda: command.run(Path(folder) / "whole")))
        truth = command.outcome(Path(folder) / "whole")
        largest = max(p.stat().st_size for p in (Path(folder) / "whole").rglob("*") if p.is_file())
        for i in range(runs):
            place, size = Path(folder) / f"run {i}", rng.randrange(largest)
            code = _ended(_started(lambda: limited(place, size)))  # noqa: B023
            kept = command.kept(place)
            found.errors += code not in (0, 3)  # a signal, or an error that is none of ours
            found.lost += _ended(_started(lambda: command.run(place))) != 0 or command.kept(place) < kept  # noqa: B023
            found.runs += 1
            found.identical += command.outcome(place) == truth
    return found


def vanish(command: Command, runs: int, seed: int = 0) -> Disturbed:
    """Move the folder away at a random moment: the command is refused, and goes on in the folder's new place."""
    rng, found = random.Random(f"{command.name} {seed}"), Disturbed()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        _ended(_started(lambda: command.run(Path(folder) / "whole")))
        seconds, truth = time.monotonic() - began, command.outcome(Path(folder) / "whole")
        for i in range(runs):
            place, moved = Path(folder) / f"run {i}", Path(folder) / f"moved {i}"
            pid = _started(lambda: command.run(place))  # noqa: B023
            time.sleep(rng.uniform(0, seconds))
            with suppress(FileNotFoundError):
                place.rename(moved)
            found.errors += _ended(pid) not in (0, 3)
            found.lost += place.exists() and moved.exists()
            end = moved if moved.exists() else place
            found.errors += _ended(_started(lambda: command.run(end))) != 0  # noqa: B023
            found.runs += 1
            found.identical += command.outcome(end) == truth
    return found


def lose_workers(runs: int, seed: int = 0) -> Disturbed:
    """Kill the worker process of a Dask cluster of our own, at a random moment from its start on, up to twice."""
    import psutil

    rng, found = random.Random(seed), Disturbed()
    truth = evaluate(["ncm", "lr"], _SET, _PROTOCOL).correct["lr"].tobytes()

    def kill(delay: float, ended: threading.Event) -> None:
        seen: set[int] = set()
        while not ended.wait(0.01) and len(seen) < 2:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if child.pid not in seen and "spawn_main" in " ".join(child.cmdline()):
                        seen.add(child.pid)
                        time.sleep(delay)
                        child.kill()
                        found.kills += 1

    for _ in range(runs):
        ended = threading.Event()
        killer = threading.Thread(target=kill, args=(rng.uniform(0, 4), ended))
        killer.start()
        try:
            results = evaluate(["ncm", "lr"], _SET, _PROTOCOL, scheduler="local:1")
            found.identical += results.correct["lr"].tobytes() == truth
        except FewcalError:
            found.errors += 1
        found.runs += 1
        ended.set()
        killer.join()
    return found


def race(runs: int) -> Disturbed:
    """Two evaluations with different seeds in one folder, at the same moment: one owns it, the other is refused."""
    found = Disturbed()
    with tempfile.TemporaryDirectory() as folder:
        truths = []
        for seed in (0, 1):
            results = evaluate(["ncm"], _SET, Protocol(way=3, query=5, tasks=300, seed=seed))
            truths.append(results.correct["ncm"].tobytes())
        for i in range(runs):
            place = Path(folder) / f"run {i}"

            def work(seed: int, place: Path = place) -> None:
                evaluate(["ncm"], _SET, Protocol(way=3, query=5, tasks=300, seed=seed), out=place)

            codes = [_ended(pid) for pid in [_started(lambda s=s: work(s)) for s in (0, 1)]]  # type: ignore[misc]
            found.runs += 1
            found.errors += sorted(codes) != [0, 3]
            if 0 in codes:
                with np.load(place / "results.npz") as f:
                    seed = json.loads((place / "config.json").read_text())["identity"]["protocol"]["seed"]
                    found.identical += f["correct/ncm"].tobytes() == truths[seed]
    return found
