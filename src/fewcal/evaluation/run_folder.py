"""A run's folder: configuration, environment, blocks as they finish, and the results at the end.

    config.json        what the numbers depend on, and the plan: borders of blocks, batch sizes, parameters as used
    blocks/            finished blocks, until the run is complete
    tasks.parquet      one row for each method and task
    results.npz        counts of right answers, for re-reading
    summary.json       figures and paired differences
    summary.md         the same as a table
    environment.json   versions and machine

Every file is written under another name first, so that what is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import platform
import reprlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal._utils.atomic import atomic_path, read_json, write_json
from fewcal._utils.folder_lock import OutputLock, folder_lock, is_leftover
from fewcal._utils.text import one_line, storable
from fewcal._utils.types import JSONObject
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError
from fewcal.evaluation.engine import Block
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.results import Results
from fewcal.evaluation.stats import CalibrationBins
from fewcal.evaluation.summary import Summary

FORMAT = "fewcal-run"
FORMAT_VERSION = 1
# What a finished run has beside its configuration.
FILES = ("environment.json", "summary.json", "summary.md", "tasks.parquet", "results.npz")


class Run:
    """The folder of one evaluation."""

    def __init__(self, folder: Path, config: JSONObject, lock: OutputLock) -> None:
        self.folder = folder
        self.config = config
        self.lock = lock

    @classmethod
    @contextmanager
    def open(cls, folder: Path, identity: JSONObject, *, resume: bool) -> Iterator[Run]:
        """Begin a run in a new or empty folder, or continue the one that is there; nobody else may meanwhile."""
        with folder_lock(folder) as lock:
            yield cls._opened(folder, identity, resume, lock)

    @classmethod
    def check(cls, folder: Path, *, resume: bool) -> None:
        """Refuse a folder with a run that is in use, damaged, or not to be continued."""
        if (folder / "config.json").is_file():
            with folder_lock(folder):
                _kept_config(folder, resume)

    @classmethod
    def _opened(cls, folder: Path, identity: JSONObject, resume: bool, lock: OutputLock) -> Run:
        plain = json.loads(json.dumps(identity, default=str))
        if (config := _kept_config(folder, resume)) is not None:
            known = _current(config["identity"])
            if known != plain:
                raise InputError(
                    f"{folder} holds another run: {first_difference(known, plain)}; "
                    "resume with the same settings or choose another folder"
                )
            return cls(folder, config, lock)
        # A run killed while it wrote its very first file leaves only that, half-written under another name.
        if not all(p.match(".config.json.*.tmp") or is_leftover(p) for p in folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no run; choose a new folder")
        config = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "fewcal": __version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "identity": plain,
        }
        run = cls(folder, config, lock)
        run._write_config()
        return run

    def _write_config(self) -> None:
        self.lock.check()
        write_json(self.folder / "config.json", self.config | {"checksum": _checksum(self.config)})

    @property
    def key(self) -> str:
        """What every file of this run's results bears."""
        return _checksum(self.config["identity"])

    def plan(self, make: Callable[[], JSONObject]) -> JSONObject:
        """The plan that this run began with, or a new one."""
        if "plan" not in self.config:
            self.config["plan"] = make()
            self._write_config()
        return dict(self.config["plan"])

    @property
    def threads(self) -> int | None:
        """Threads that this run began with; None where it has not begun, or in an earlier version."""
        found = self.config.get("plan", {}).get("threads")
        return found if type(found) is int and found > 0 else None

    def results(self) -> Results | None:
        """The results, if the run is finished and they can be read."""
        if not (self.folder / "results.npz").is_file():
            return None
        try:
            return load_run(self.folder)
        except FileFormatError:
            return None

    @property
    def has_all_files(self) -> bool:
        """Whether a finished run has kept all that it wrote."""
        return all((self.folder / name).is_file() for name in FILES)

    # ---- blocks -------------------------------------------------------------------------------------------------

    def save_block(self, block: Block) -> None:
        """Keep a finished block."""
        self.lock.check()
        arrays = _arrays(block.classes, block.correct, block.bins, block.seconds) | {"run": np.array(self.key)}
        with atomic_path(self.folder / "blocks" / f"{block.start:08d}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)

    def load_blocks(self, methods: list[str], borders: Sequence[tuple[int, int]], way: int) -> dict[int, Block]:
        """Blocks that an earlier start of this run has finished; a damaged one is left out, to be computed again."""
        found = {}
        for start, stop in borders:
            try:
                with np.load(self.folder / "blocks" / f"{start:08d}.npz", allow_pickle=False) as f:
                    block = Block(start, *_outcome(f, methods, self.key))
                whole = all(a.shape == (stop - start, way) for a in (block.classes, *block.correct.values()))
            except Exception:  # a torn or forged file can raise anything at all, and hold bytes in place of an array
                continue
            if whole:
                found[start] = block
        return found

    # ---- the end --------------------------------------------------------------------------------------------------

    def finish(self, results: Results, env: JSONObject) -> None:
        """Write the results and drop the blocks."""
        self.lock.check()
        summary = results.summary()
        write_json(self.folder / "environment.json", env)
        write_json(self.folder / "summary.json", summary.to_dict())
        with atomic_path(self.folder / "summary.md") as temporary:
            temporary.write_text(summary.to_markdown(), encoding="utf-8", errors="backslashreplace")
        _write_parquet(self.folder / "tasks.parquet", results)
        arrays = _arrays(results.classes, results.correct, results.bins, results.seconds) | {"run": np.array(self.key)}
        with atomic_path(self.folder / "results.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        shutil.rmtree(self.folder / "blocks", ignore_errors=True)
        for left in self.folder.glob(".*.tmp"):  # of earlier starts that were killed while they wrote
            left.unlink(missing_ok=True)
        self.lock.check()  # what was written to a folder that is gone is no result


def load_run(folder: str | Path) -> Results:
    """Re-read a finished run."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no run (no config.json); give a folder made by `fewcal evaluate --out`")
    config = _read_config(folder)
    if not (folder / "results.npz").is_file():
        raise InputError(
            f"the run in {folder} is not finished; continue it with `fewcal evaluate … --out {folder} --resume`"
        )
    identity = config["identity"]
    try:
        protocol = Protocol(**identity["protocol"])
        with np.load(folder / "results.npz", allow_pickle=False) as f:
            outcome = _outcome(f, list(identity["methods"]), _checksum(identity))
        _check_shapes(outcome, protocol, len(identity["class_names"]))
        return Results(protocol, list(identity["class_names"]), *outcome, config["plan"]["settings"], identity)
    except Exception as error:  # a torn or forged file can raise anything at all
        raise FileFormatError(
            f"the run in {folder} is damaged ({type(error).__name__}: {one_line(error)}); evaluate again with --resume"
        ) from error


def compare_runs(folders: Sequence[str | Path], reference: str | None = None) -> Summary:
    """Methods of several finished runs side by side, with paired statistics; all runs must have the same tasks.

    A method that two runs share is named `run/method`.
    """
    if not folders:
        raise InputError("no runs were given")
    merged = merge_runs({str(Path(f)): load_run(f) for f in folders})
    if reference is not None and reference not in merged.correct:
        raise InputError(f"reference {reference!r} is not among {', '.join(merged.correct)}")
    return merged.summary(reference)


def merge_runs(loaded: Mapping[str, Results]) -> Results:
    """The methods of several runs on the same tasks, by folder, as one run."""
    first_name, first = next(iter(loaded.items()))
    for name, other in loaded.items():
        # The base classes may differ: tasks are drawn from one split, in the order of its classes.
        a, b = task_identity(first), task_identity(other)
        if a != b:
            difference = first_difference(a, b)
            raise InputError(
                f"{first_name} and {name} have different tasks: {difference}; only equal tasks can be paired"
            )
    counts = Counter(m for r in loaded.values() for m in r.correct)
    merged = Results(first.protocol, first.class_names, first.classes, {}, {}, {}, {}, first.identity)
    for name, r in loaded.items():
        for method in r.correct:
            label = method if counts[method] == 1 else f"{Path(name).name}/{method}"
            if label in merged.correct:
                label = f"{name}/{method}"
            merged.correct[label], merged.bins[label] = r.correct[method], r.bins[method]
            merged.seconds[label], merged.settings[label] = r.seconds[method], r.settings[method]
    return merged


def environment(device: torch.device) -> JSONObject:
    """Versions and machine, for the record."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "fewcal": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "gpu": gpu,
    }


def _arrays(
    classes: np.ndarray,
    correct: dict[str, np.ndarray],
    bins: dict[str, CalibrationBins],
    seconds: dict[str, float],
) -> JSONObject:
    """What a block or a whole run found, as arrays for npz; `_outcome` reads them back."""
    arrays: JSONObject = {"classes": classes}
    for name in correct:
        arrays[f"correct/{name}"] = correct[name]
        arrays[f"seconds/{name}"] = np.float64(seconds[name])
        for key, value in bins[name].to_dict().items():
            arrays[f"bins.{key}/{name}"] = np.array(value, np.int64)
    return arrays


Outcome = tuple[np.ndarray, dict[str, np.ndarray], dict[str, CalibrationBins], dict[str, float]]


def _outcome(f: Any, methods: list[str], key: str) -> Outcome:
    if "run" in f.files and str(f["run"]) != key:  # files of earlier versions do not say
        raise ValueError("results of another run")
    return (
        f["classes"],
        {m: f[f"correct/{m}"] for m in methods},
        {m: _bins(f, m) for m in methods},
        {m: float(f[f"seconds/{m}"]) for m in methods},
    )


def _bins(f: Any, method: str) -> CalibrationBins:
    return CalibrationBins.from_dict({k: f[f"bins.{k}/{method}"] for k in ("counts", "correct", "confidence")})


def _check_shapes(outcome: Outcome, protocol: Protocol, classes: int) -> None:
    drawn, correct = outcome[0], outcome[1]
    if any(a.shape != (protocol.tasks, protocol.way) or a.dtype.kind not in "iu" for a in (drawn, *correct.values())):
        raise ValueError(f"results are not of {protocol.tasks} tasks with {protocol.way} classes")
    if drawn.size and not 0 <= drawn.min() <= drawn.max() < classes:
        raise ValueError("results are of classes that the run does not name")
    if any(a.size and not 0 <= a.min() <= a.max() <= protocol.query for a in correct.values()):
        raise ValueError(f"results count more right answers than {protocol.query} queries")


def _write_parquet(path: Path, results: Results) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tasks = len(results.classes)
    names = np.array([storable(name) for name in results.class_names], dtype=object)[results.classes]
    parts = []
    for name in results.correct:
        parts.append(
            pa.table(
                {
                    "method": pa.array([name] * tasks).dictionary_encode(),
                    "task": np.arange(tasks),
                    "accuracy": results.accuracy(name),
                    "correct": list(results.correct[name]),
                    "classes": names.tolist(),
                }
            )
        )
    with atomic_path(path) as temporary:
        pq.write_table(pa.concat_tables(parts).unify_dictionaries(), temporary)


def _kept_config(folder: Path, resume: bool) -> JSONObject | None:
    """The configuration of the run in a folder, None where there is none; one is refused unless it is to go on."""
    if not (folder / "config.json").is_file():
        return None
    if not resume:
        raise InputError(f"{folder} already holds a run; continue it with --resume or choose another folder")
    return _read_config(folder)


def _read_config(folder: Path) -> JSONObject:
    file = folder / "config.json"
    remedy = "choose another folder"
    config = read_json(file, remedy)
    if config.get("format") != FORMAT or not isinstance(config.get("identity"), dict):
        raise FileFormatError(f"{file} is not the configuration of a fewcal run; {remedy}")
    if config.get("version") != FORMAT_VERSION:
        raise FileFormatError(
            f"{file} is of run format {config.get('version')}, this fewcal reads {FORMAT_VERSION}; "
            f"use fewcal {config.get('fewcal')} or evaluate anew"
        )
    known = config.pop("checksum", None)  # runs of earlier versions have none
    plan = config.get("plan", {})
    if known not in (None, _checksum(config)) or not isinstance(plan, dict) or (plan and not _is_plan(plan)):
        raise FileFormatError(f"{file} is damaged: it is not what was written; {remedy}")
    return config


def _is_plan(plan: JSONObject) -> bool:
    block = plan.get("block")
    return type(block) is int and block > 0 and all(isinstance(plan.get(k), dict) for k in ("batches", "settings"))


def _checksum(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _current(identity: JSONObject) -> JSONObject:
    """The identity of a run, which may be older than some parameters of GDC and their names."""
    methods = identity.get("methods")
    if not isinstance(methods, dict) or not all(isinstance(values, dict) for values in methods.values()):
        return identity
    return identity


def task_identity(results: Results) -> JSONObject:
    """What two runs must have in common to have the same tasks."""
    i, split = results.identity, results.protocol.split
    return {
        "protocol": i["protocol"],
        "features": {split: i["features"][split]},
        "episodes": i["episodes"],
        "class_names": i["class_names"],
    }


def first_difference(a: object, b: object, where: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            inside = f"{where}.{key}" if where else key
            if (key in a) != (key in b):
                return f"only one has {inside}"
            if a[key] != b[key]:
                return first_difference(a[key], b[key], inside)
    return f"{where} is {reprlib.repr(a)} in one and {reprlib.repr(b)} in the other"
