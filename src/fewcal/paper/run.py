"""Running experiments: each finished record is written at once, and a killed run continues where it was.

OUT/config.json                  budget, and fingerprints and classes of the feature sets
OUT/runs/                        evaluations, see `fewcal.paper.measure`
OUT/results/EXPERIMENT/SET.json  one record for each experiment, feature set and number of shots
OUT/figures/, report.html, summary.md, summary.json    what `fewcal.paper.report` draws of them
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import torch

from fewcal._utils.atomic import atomic_path, read_json, write_json
from fewcal._utils.folder_lock import OutputLock, folder_lock
from fewcal._utils.types import Log
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError
from fewcal.paper.blocks import Experiment, Place
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import EXPERIMENTS
from fewcal.paper.measure import Case, Runs
from fewcal.paper.published import DATASETS, stand_in_note
from fewcal.paper.sets import Features, Folder

FORMAT, FORMAT_VERSION = "fewcal-paper", 3


class SetFacts(TypedDict):
    """A feature set of a run: its dataset of the paper; fingerprint and number of classes of each split."""

    dataset: str
    prints: dict[str, str]
    classes: dict[str, int]


class Config(TypedDict):
    """`config.json`: what every number of a run depends on."""

    format: str
    version: int
    budget: dict[str, int | None]
    sets: dict[str, SetFacts]


class Record(TypedDict):
    """A finished record: what computed it, on what, where and how long; `data` is the experiment's own."""

    experiment: str
    name: str
    dataset: str
    shot: int
    device: str
    fewcal: str
    seconds: float
    data: Any


class Step(NamedTuple):
    """One record to compute."""

    experiment: Experiment
    of: Features
    shot: int

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.experiment.name}, {self.of.name}" + (f", {self.shot}-shot" if self.shot else "")

    def file(self, out: Path) -> Path:
        """Where its record is."""
        shots = f"-{self.shot}shot" if self.shot else ""
        return out / "results" / self.experiment.name / f"{self.of.name}{shots}.json"


def run_experiments(
    experiments: Sequence[Experiment],
    features: Sequence[Features | Folder],
    out: str | Path,
    budget: Budget,
    *,
    resume: bool = False,
    device: str = "cpu",
    log: Log = lambda line: None,
) -> list[str]:
    """Compute what is not there yet; the experiments left out, each with its reason.

    Parameters
    ----------
    experiments : list of Experiment
    features : list of Features or Folder
        As `fewcal.paper.sets.find_folders` finds them; one dataset may have several.
    out : folder
        New or empty, or that of the run to `resume`.
    budget : Budget
    resume : bool
        Continue a run with the same budget; experiments and feature sets may be added.
    device : "cpu", "cuda", "auto"
    log : callable(line)
    """
    folder = Path(out)
    if not features:
        raise InputError("no features were given; add --features DIR")
    loaded = {of.name: of.load() if isinstance(of, Folder) else of for of in features}
    with folder_lock(folder) as lock:
        _open(folder, budget, {name: _facts(of) for name, of in loaded.items()}, resume)
        runs = Runs(folder / "runs", device)
        steps, left_out = _plan(experiments, loaded)
        for reason in left_out:
            log(f"left out: {reason}")
        todo = [step for step in steps if _read(step.file(folder)) is None]
        if len(todo) < len(steps):
            log(f"{len(steps) - len(todo)} of {len(steps)} are there already")
        for i, step in enumerate(todo, 1):
            log(f"[{i}/{len(todo)}] {step.title}")
            seconds = _compute(step, Case(step.of, step.shot, budget, runs), folder, lock)
            log(f"[{i}/{len(todo)}] {step.title}: {seconds:.1f} s")
        lock.check()
    return left_out


def _compute(step: Step, case: Case, folder: Path, lock: OutputLock) -> float:
    """Compute and keep one record; the seconds that it took."""
    began = time.perf_counter()
    data = step.experiment.compute(case)
    record: Record = {
        "experiment": step.experiment.name,
        "name": step.of.name,
        "dataset": step.of.dataset,
        "shot": step.shot,
        "device": torch.cuda.get_device_name(case.device) if case.device.startswith("cuda") else "cpu",
        "fewcal": __version__,
        "seconds": round(time.perf_counter() - began, 2),
        "data": data,
    }
    lock.check()
    with atomic_path(step.file(folder)) as temporary:
        text = json.dumps(record, ensure_ascii=False, default=str) + "\n"
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return record["seconds"]


def _plan(experiments: Sequence[Experiment], loaded: Mapping[str, Features]) -> tuple[list[Step], list[str]]:
    steps, left_out = [], []
    for e in experiments:
        if missing := [p for p in e.packages if find_spec(p) is None]:
            left_out.append(f"{e.name} needs {', '.join(missing)}; continue with --resume where it is installed")
            continue
        on = e.on({name: of.dataset for name, of in loaded.items()})
        if not on and e.datasets:
            left_out.append(
                f"{e.name} is about {' and '.join(DATASETS[d] for d in e.datasets)}; no such features given"
            )
        for name in on:
            if absent := [s for s in e.needs if s not in loaded[name].features.splits()]:
                left_out.append(f"{e.name} needs the split {absent[0]}, which the features {name} do not have")
                continue
            steps += [Step(e, loaded[name], shot) for shot in e.shots]
    order = list(loaded)
    return sorted(steps, key=lambda step: order.index(step.of.name)), left_out


# ---- the folder of a run --------------------------------------------------------------------------------------------


def _facts(of: Features) -> SetFacts:
    splits = of.features.splits()
    return {
        "dataset": of.dataset,
        "prints": {name: split.fingerprint() for name, split in splits.items()},
        "classes": {name: len(split.classes) for name, split in splits.items()},
    }


def _open(folder: Path, budget: Budget, sets: dict[str, SetFacts], resume: bool) -> None:
    """Begin a run, or make sure that this is its continuation."""
    file = folder / "config.json"
    if not file.is_file():
        if folder.exists() and (not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir())):
            raise InputError(f"{folder} is not empty and holds no run of experiments; choose a new folder")
        write_json(file, Config(format=FORMAT, version=FORMAT_VERSION, budget=budget.to_dict(), sets=sets))
        return
    if not resume:
        raise InputError(f"{folder} already holds experiments; continue with --resume or choose another folder")
    config = read_config(folder)
    for name, value in budget.to_dict().items():
        if config["budget"].get(name) != value:
            raise InputError(
                f"{folder} was begun with {name}={config['budget'].get(name)}, not {value}; resume with the same "
                "settings or choose another folder"
            )
    for name, facts in sets.items():
        if config["sets"].get(name, facts)["prints"] != facts["prints"]:
            raise InputError(
                f"{folder} was begun with other features of {name}; give the same or choose another folder"
            )
    if set(sets) - set(config["sets"]):
        write_json(file, {**config, "sets": config["sets"] | sets})


def read_config(folder: str | Path) -> Config:
    """The settings of a run."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no run of experiments; make one with `fewcal paper run`")
    config = read_json(file, "choose another folder")
    if config.get("format") != FORMAT:
        raise FileFormatError(f"{file} is not that of a run of experiments")
    if config.get("version") != FORMAT_VERSION or not isinstance(config.get("sets"), dict):
        raise FileFormatError(
            f"{folder} holds a run of format {config.get('version')}, and this fewcal has format {FORMAT_VERSION}; its "
            "report.html and summary.md stay readable: compute in a new folder"
        )
    return cast(Config, config)


def _read(file: Path) -> Record | None:
    """A record; None where there is none that can be read."""
    try:
        found: Record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "data" in found else None


def read_records(out: str | Path) -> dict[str, dict[Place, Record]]:
    """All finished records by experiment and place, datasets in the order of the paper's tables."""
    folder, sets = Path(out), read_config(out)["sets"]
    order = list(DATASETS)
    found: dict[str, dict[Place, Record]] = {}
    for name in EXPERIMENTS:
        read = [r for r in map(_read, (folder / "results" / name).glob("*.json")) if r is not None]
        place = {d: i for i, d in enumerate(order)}
        read.sort(key=lambda r: (place.get(r["dataset"], len(order)), r["name"], r["shot"]))
        if read:
            found[name] = {_place(r, sets): r for r in read}
    return found


def _place(record: Record, sets: Mapping[str, SetFacts]) -> Place:
    """Where a record was computed; the title names the feature set where the dataset has several or a stand-in."""
    name, dataset = record["name"], record["dataset"]
    title = DATASETS.get(dataset, dataset)
    several = sum(facts["dataset"] == dataset for facts in sets.values()) > 1
    notes = [name] if several else []
    if name in sets and stand_in_note(dataset, sets[name]["classes"]):
        notes.append("stand-in")
    title += f" ({', '.join(notes)})" if notes else ""
    return Place(name, dataset, record["shot"], title + (f", {record['shot']}-shot" if record["shot"] else ""))
