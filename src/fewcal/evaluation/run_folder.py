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

import dataclasses
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

import numpy as np
import torch

from fewcal._utils.atomic import atomic_path, read_json, write_json
from fewcal._utils.folder_lock import OutputLock, folder_lock, is_leftover
from fewcal._utils.text import one_line, storable
from fewcal._utils.types import JSONObject
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError
from fewcal.evaluation.engine import Block
from fewcal.evaluation.outcome import BY_METHOD, from_arrays, to_arrays
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.results import Results
from fewcal.evaluation.summary import Summary

FORMAT = "fewcal-run"
FORMAT_VERSION = 2
# Files of a finished run beside its configuration.
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
        """Begin a run in a new or empty folder, or continue the one that is there; meanwhile the folder is locked."""
        with folder_lock(folder) as lock:
            yield cls._open(folder, identity, resume, lock)

    @classmethod
    def check(cls, folder: Path, *, resume: bool) -> None:
        """Refuse a folder with a run that is in use, damaged, or not to be continued."""
        if (folder / "config.json").is_file():
            with folder_lock(folder):
                _resumed_config(folder, resume)

    @classmethod
    def _open(cls, folder: Path, identity: JSONObject, resume: bool, lock: OutputLock) -> Run:
        identity = json.loads(json.dumps(identity, default=str))
        if (config := _resumed_config(folder, resume)) is not None:
            if config["identity"] != identity:
                raise InputError(
                    f"{folder} holds another run: {first_difference(config['identity'], identity)}; "
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
            "identity": identity,
        }
        run = cls(folder, config, lock)
        run._write_config()
        return run

    def _write_config(self) -> None:
        self.lock.check()
        write_json(self.folder / "config.json", self.config | {"checksum": _checksum(self.config)})

    @property
    def key(self) -> str:
        """The mark of every file of this run's results."""
        return _checksum(self.config["identity"])

    def plan(self, make: Callable[[], JSONObject]) -> JSONObject:
        """The plan that this run began with, or a new one."""
        if "plan" not in self.config:
            self.config["plan"] = make()
            self._write_config()
        return dict(self.config["plan"])

    @property
    def threads(self) -> int | None:
        """Threads that this run began with; None where it has not begun."""
        threads: int | None = self.config.get("plan", {}).get("threads")
        return threads

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

    @contextmanager
    def _new_file(self, name: str) -> Iterator[Path]:
        """Where to write a file of the run, as long as its folder is there: nothing is left where it was moved away."""
        self.lock.check()
        with atomic_path(self.folder / name) as temporary:
            yield temporary

    def save_block(self, block: Block) -> None:
        """Keep a finished block."""
        with self._new_file(f"blocks/{block.start:08d}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, run=np.array(self.key), **to_arrays(block))

    def load_blocks(self, methods: list[str], borders: Sequence[tuple[int, int]]) -> dict[int, Block]:
        """Blocks that an earlier start of this run has finished; a damaged one is left out, to be computed again."""
        found = {}
        for start, stop in borders:
            try:
                outcome = _read_outcome(self.folder / "blocks" / f"{start:08d}.npz", methods, self.key, stop - start)
            except Exception:  # a torn or forged file can raise anything, and hold bytes in place of an array
                continue
            found[start] = Block(start=start, **outcome)
        return found

    # ---- the end --------------------------------------------------------------------------------------------------

    def finish(self, results: Results, env: JSONObject) -> None:
        """Write the results and drop the blocks."""
        summary = results.summary()
        for name, text in {
            "environment.json": json.dumps(env, indent=2),
            "summary.json": json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, default=str),
            "summary.md": summary.to_markdown().rstrip(),
        }.items():
            with self._new_file(name) as temporary:
                temporary.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
        with self._new_file("tasks.parquet") as temporary:
            _write_parquet(temporary, results)
        with self._new_file("results.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, run=np.array(self.key), **to_arrays(results))
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
        names, settings = list(identity["class_names"]), config["plan"]["settings"]
        outcome = _read_outcome(folder / "results.npz", list(identity["methods"]), _checksum(identity), protocol.tasks)
        if not -1 <= outcome["classes"].min() <= outcome["classes"].max() < len(names):
            raise ValueError("results are of classes that the run does not name")
        return Results(protocol=protocol, class_names=names, settings=settings, identity=identity, **outcome)
    except Exception as error:  # a torn or forged file can raise anything
        raise FileFormatError(
            f"the run in {folder} is damaged ({type(error).__name__}: {one_line(error)}); evaluate again with --resume"
        ) from error


def _read_outcome(file: Path, methods: list[str], key: str, tasks: int) -> JSONObject:
    with np.load(file, allow_pickle=False) as arrays:
        if str(arrays["run"]) != key:
            raise ValueError("results of another run")
        return from_arrays(arrays, methods, tasks)


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
    parts: JSONObject = {name: {} for name in (*BY_METHOD, "settings")}
    for name, run in loaded.items():
        for method in run.correct:
            label = method if counts[method] == 1 else f"{Path(name).name}/{method}"
            if label in parts["correct"]:
                label = f"{name}/{method}"
            for part, merged in parts.items():
                if method in (values := getattr(run, part)):
                    merged[label] = values[method]
    return dataclasses.replace(first, **parts)


def environment(device: torch.device) -> JSONObject:
    """Versions and machine, for the record."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "fewcal": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def _write_parquet(path: Path, results: Results) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tasks, names = len(results.classes), [storable(name) for name in results.class_names]
    classes = [[names[c] for c in task if c >= 0] for task in results.classes]
    own = [task >= 0 for task in results.classes]
    parts = []
    for name in results.correct:
        columns = {
            "method": pa.array([name] * tasks).dictionary_encode(),
            "task": np.arange(tasks),
            "accuracy": results.accuracy(name),
            "correct": [n[mask] for n, mask in zip(results.correct[name], own, strict=True)],
            "queries": [n[mask] for n, mask in zip(results.queries, own, strict=True)],
            "classes": classes,
        }
        if name in results.detection:
            columns |= dict(zip(("auroc", "outlier_recall"), results.detection[name].T, strict=True))
        parts.append(pa.table(columns))
    pq.write_table(pa.concat_tables(parts).unify_dictionaries(), path)


# ---- the configuration ----------------------------------------------------------------------------------------------


def _resumed_config(folder: Path, resume: bool) -> JSONObject | None:
    """The configuration of the run in a folder, None where there is none; a run is refused without `resume`."""
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
            f"use fewcal {config.get('fewcal')} or evaluate again"
        )
    if config.pop("checksum", None) != _checksum(config):
        raise FileFormatError(f"{file} is damaged: it is not what was written; {remedy}")
    return config


def _checksum(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def task_identity(results: Results) -> JSONObject:
    """What two runs must have in common to have the same tasks."""
    i, split = results.identity, results.protocol.split
    common = {name: i[name] for name in ("protocol", "episodes", "class_names")}
    return common | {"features": {split: i["features"][split]}}


def first_difference(a: object, b: object, where: str = "") -> str:
    """The first difference of two records, in words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            inside = f"{where}.{key}" if where else key
            if (key in a) != (key in b):
                return f"only one has {inside}"
            if a[key] != b[key]:
                return first_difference(a[key], b[key], inside)
    return f"{where} is {reprlib.repr(a)} in one and {reprlib.repr(b)} in the other"
