"""A run's folder: configuration, environment, blocks as they finish, and the results at the end.

    config.json        what the numbers depend on, and the batch sizes
    blocks/            finished blocks, until the run is complete
    tasks.parquet      one row for each method and task
    results.npz        counts of right answers, for re-reading
    summary.json       figures and paired differences
    summary.md         the same as a table
    environment.json   versions and machine

Every file is written under another name first, so that what is there is whole.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal._version import __version__
from fewcal.atomic import atomic_path
from fewcal.engine import Block
from fewcal.errors import FileFormatError, InputError
from fewcal.evaluation import Protocol, Results
from fewcal.stats import CalibrationBins

FORMAT = "fewcal-run"
FORMAT_VERSION = 1


class Run:
    """The folder of one evaluation."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config

    @classmethod
    def open(cls, folder: Path, identity: dict[str, Any], *, resume: bool) -> Run:
        """Begin a run in a new or empty folder, or continue the one that is there."""
        file = folder / "config.json"
        plain = json.loads(json.dumps(identity, default=str))
        if file.is_file():
            if not resume:
                raise InputError(f"{folder} already holds a run; continue it with --resume or choose another folder")
            config = _read_json(file)
            if config.get("format") != FORMAT:
                raise FileFormatError(f"{file} is not the configuration of a fewcal run")
            if config["identity"] != plain:
                raise InputError(
                    f"{folder} holds another run: {_first_difference(config['identity'], plain)}; "
                    "resume with the same settings or choose another folder"
                )
            return cls(folder, config)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is not empty and holds no run; choose a new folder")
        config = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "fewcal": __version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "identity": plain,
        }
        run = cls(folder, config)
        run._write_json("config.json", config)
        return run

    def batches(self, make: Callable[[], dict[str, int]]) -> dict[str, int]:
        """The batch sizes of this run: those it began with, or new ones."""
        if "batches" not in self.config:
            self.config["batches"] = make()
            self._write_json("config.json", self.config)
        return dict(self.config["batches"])

    # ---- blocks -------------------------------------------------------------------------------------------------

    def save_block(self, block: Block) -> None:
        """Keep a finished block."""
        arrays: dict[str, Any] = {"classes": block.classes}
        for name in block.correct:
            state = block.bins[name].to_dict()
            arrays[f"correct/{name}"] = block.correct[name]
            arrays[f"seconds/{name}"] = np.float64(block.seconds[name])
            for key, value in state.items():
                arrays[f"bins.{key}/{name}"] = np.array(value, np.int64)
        with atomic_path(self.folder / "blocks" / f"{block.start:08d}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)

    def load_blocks(self, methods: list[str]) -> dict[int, Block]:
        """Blocks that an earlier start of this run has finished; a damaged one is computed again."""
        if (self.folder / "results.npz").is_file():
            return _as_blocks(load_run(self.folder))
        found = {}
        for file in sorted((self.folder / "blocks").glob("*.npz")):
            try:
                with np.load(file, allow_pickle=False) as f:
                    block = Block(
                        int(file.stem),
                        f["classes"],
                        {m: f[f"correct/{m}"] for m in methods},
                        {m: _bins(f, m) for m in methods},
                        {m: float(f[f"seconds/{m}"]) for m in methods},
                    )
            except (OSError, ValueError, KeyError, EOFError):
                continue
            found[block.start] = block
        return found

    # ---- the end --------------------------------------------------------------------------------------------------

    def finish(self, results: Results, env: dict[str, Any]) -> None:
        """Write the results and drop the blocks."""
        summary = results.summary()
        self._write_json("environment.json", env)
        self._write_json("summary.json", summary)
        with atomic_path(self.folder / "summary.md") as temporary:
            temporary.write_text(markdown(summary), encoding="utf-8")
        _write_parquet(self.folder / "tasks.parquet", results)
        arrays: dict[str, Any] = {"classes": results.classes}
        for name in results.correct:
            arrays[f"correct/{name}"] = results.correct[name]
            arrays[f"seconds/{name}"] = np.float64(results.seconds[name])
            for key, value in results.bins[name].to_dict().items():
                arrays[f"bins.{key}/{name}"] = np.array(value, np.int64)
        with atomic_path(self.folder / "results.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        shutil.rmtree(self.folder / "blocks", ignore_errors=True)

    def _write_json(self, name: str, value: Any) -> None:
        with atomic_path(self.folder / name) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def load_run(folder: str | Path) -> Results:
    """Re-read a finished run."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no run (no config.json); give a folder made by `fewcal evaluate --out`")
    config = _read_json(folder / "config.json")
    if not (folder / "results.npz").is_file():
        raise InputError(
            f"the run in {folder} is not finished; continue it with `fewcal evaluate … --out {folder} --resume`"
        )
    identity = config["identity"]
    methods = list(identity["methods"])
    try:
        with np.load(folder / "results.npz", allow_pickle=False) as f:
            return Results(
                Protocol(**identity["protocol"]),
                list(identity["class_names"]),
                f["classes"],
                {m: f[f"correct/{m}"] for m in methods},
                {m: _bins(f, m) for m in methods},
                {m: float(f[f"seconds/{m}"]) for m in methods},
                identity["methods"],
                identity,
            )
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise FileFormatError(f"{folder / 'results.npz'} is damaged ({error}); run the evaluation again") from error


def compare_runs(folders: Sequence[str | Path], reference: str | None = None) -> dict[str, Any]:
    """Methods of several finished runs side by side, with paired statistics; all runs must have the same tasks.

    A method that two runs share is named `run/method`.
    """
    if not folders:
        raise InputError("no runs were given")
    loaded = {str(Path(f)): load_run(f) for f in folders}
    first_name, first = next(iter(loaded.items()))
    for name, other in loaded.items():
        for part in ("protocol", "features", "episodes"):
            if first.identity[part] != other.identity[part]:
                difference = _first_difference(first.identity[part], other.identity[part], part)
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
    if reference is not None and reference not in merged.correct:
        raise InputError(f"reference {reference!r} is not among {', '.join(merged.correct)}")
    return merged.summary(reference)


def markdown(summary: dict[str, Any]) -> str:
    """The summary as a Markdown table."""
    p = summary["protocol"]
    lines = [
        f"{p['tasks']} tasks, {p['way']}-way {p['shot']}-shot, {p['query']} queries a class, split {p['split']}, "
        f"seed {p['seed']}",
        "",
        "| method | accuracy % | 95% half-width | over classes 95% | worst 10% | ECE | tasks/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, m in summary["methods"].items():
        interval = m["class_interval"]
        span = f"{100 * interval['low']:.1f} to {100 * interval['high']:.1f}" if interval else "–"
        speed = f"{m['tasks_per_second']:.0f}" if m["tasks_per_second"] else "–"
        cells = [f"{100 * m['accuracy']:.2f}", f"{100 * (m['ci95'] or 0):.2f}", span, f"{100 * m['worst10']:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} | {m['ece']:.3f} | {speed} |")
    if summary["paired"]:
        lines += [
            "",
            "| difference | points | 95% half-width | p (t, Holm) | p (Wilcoxon, Holm) |",
            "|---|---:|---:|---:|---:|",
        ]
        for d in summary["paired"]:
            lines.append(
                f"| {d['a']} − {d['b']} | {100 * d['difference']:+.2f} | {100 * (d['ci95'] or 0):.2f} | "
                f"{_p(d['p_t_holm'])} | {_p(d['p_wilcoxon_holm'])} |"
            )
    return "\n".join(lines) + "\n"


def environment(device: torch.device) -> dict[str, Any]:
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


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _bins(f: Any, method: str) -> CalibrationBins:
    return CalibrationBins.from_dict({k: f[f"bins.{k}/{method}"] for k in ("counts", "correct", "confidence")})


def _write_parquet(path: Path, results: Results) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tasks = len(results.classes)
    names = np.array(results.class_names, dtype=object)[results.classes]
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{path} is not a JSON object")
    return value


def _first_difference(a: Any, b: Any, where: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                return _first_difference(a.get(key), b.get(key), f"{where}.{key}" if where else key)
    return f"{where} was {a!r} and is now {b!r}"


def _as_blocks(results: Results) -> dict[int, Block]:
    """A finished run as one set of blocks, so that resuming it computes nothing."""
    from fewcal.engine import blocks

    out = {}
    for a, b in blocks(results.protocol.tasks):
        first = a == 0
        out[a] = Block(
            a,
            results.classes[a:b],
            {m: c[a:b] for m, c in results.correct.items()},
            {m: results.bins[m] if first else CalibrationBins() for m in results.correct},
            {m: results.seconds[m] if first else 0.0 for m in results.correct},
        )
    return out
