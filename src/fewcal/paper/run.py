"""Running experiments: each finished record is written at once, and a killed run continues where it was.

OUT/config.json                  the budget, see `fewcal.evaluation.run_folder`
OUT/runs/                        evaluations, see `fewcal.paper.measure`
OUT/results/EXPERIMENT/SET.json  one record for each experiment, feature set and number of shots
OUT/figures/, report.html, summary.md, summary.json    what `fewcal.paper.report` draws of them
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch

from fewcal._utils.atomic import atomic_path
from fewcal._utils.types import Log
from fewcal._version import __version__
from fewcal.errors import InputError
from fewcal.evaluation.run_folder import Run
from fewcal.paper.blocks import Experiment, Place
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import EXPERIMENTS
from fewcal.paper.measure import Case, Runs
from fewcal.paper.published import DATASETS, stand_in_note
from fewcal.paper.sets import Features


class Record(TypedDict):
    """A finished record: what computed it, on what, where and how long; `data` is the experiment's own.

    `prints` and `classes` are fingerprints and numbers of classes of the feature set, by split.
    """

    experiment: str
    name: str
    dataset: str
    shot: int
    prints: dict[str, str]
    classes: dict[str, int]
    budget: dict[str, int | None]
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
    features: Sequence[Features],
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
    features : list of Features
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
    with Run.open(folder, {"kind": "paper", "budget": budget.to_dict()}, resume=resume) as run:
        _check_features(folder, features)
        runs = Runs(folder / "runs", device)
        steps, left_out = _plan(experiments, {of.name: of for of in features})
        for reason in left_out:
            log(f"left out: {reason}")
        todo = [step for step in steps if _read(step.file(folder)) is None]
        if len(todo) < len(steps):
            log(f"{len(steps) - len(todo)} of {len(steps)} are there already")
        for i, step in enumerate(todo, 1):
            log(f"[{i}/{len(todo)}] {step.title}")
            record = _compute(step, Case(step.of, step.shot, budget, runs))
            run.lock.check()
            with atomic_path(step.file(folder)) as temporary:
                text = json.dumps(record, ensure_ascii=False, default=str) + "\n"
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            log(f"[{i}/{len(todo)}] {step.title}: {record['seconds']:.1f} s")
        run.lock.check()
    return left_out


def _check_features(folder: Path, features: Sequence[Features]) -> None:
    """Refuse other features under the name of a set that has records."""
    before = {record["name"]: record["prints"] for record in _records(folder)}
    for of in features:
        if before.get(of.name, of.prints) != of.prints:
            raise InputError(
                f"{folder} was begun with other features of {of.name}; give the same or choose another folder"
            )


def _compute(step: Step, case: Case) -> Record:
    began = time.perf_counter()
    data = step.experiment.compute(case)
    return {
        "experiment": step.experiment.name,
        "name": step.of.name,
        "dataset": step.of.dataset,
        "shot": step.shot,
        "prints": step.of.prints,
        "classes": {name: len(split.classes) for name, split in step.of.features.splits().items()},
        "budget": case.budget.to_dict(),
        "device": torch.cuda.get_device_name(case.device) if case.device.startswith("cuda") else "cpu",
        "fewcal": __version__,
        "seconds": round(time.perf_counter() - began, 2),
        "data": data,
    }


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


# ---- records --------------------------------------------------------------------------------------------------------


def _read(file: Path) -> Record | None:
    """A record; None where there is none that can be read."""
    try:
        found: Record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and Record.__required_keys__ <= found.keys() else None


def _records(folder: Path) -> Iterable[Record]:
    return (record for file in (folder / "results").glob("*/*.json") if (record := _read(file)) is not None)


def read_records(out: str | Path) -> dict[str, dict[Place, Record]]:
    """All finished records by experiment and place, datasets in the order of the paper's tables."""
    if not (Path(out) / "config.json").is_file():
        raise InputError(f"{out} holds no run of experiments; make one with `fewcal paper run`")
    order = {dataset: i for i, dataset in enumerate(DATASETS)}
    read = sorted(_records(Path(out)), key=lambda r: (order.get(r["dataset"], len(order)), r["name"], r["shot"]))
    datasets = {r["name"]: r["dataset"] for r in read}
    found: dict[str, dict[Place, Record]] = {}
    for name in EXPERIMENTS:
        if own := {_place(r, datasets): r for r in read if r["experiment"] == name}:
            found[name] = own
    return found


def _place(record: Record, datasets: Mapping[str, str]) -> Place:
    """Where a record was computed; the title names the feature set where the dataset has several or a stand-in."""
    name, dataset = record["name"], record["dataset"]
    notes = [name] if list(datasets.values()).count(dataset) > 1 else []
    notes += ["stand-in"] if stand_in_note(dataset, record["classes"]) else []
    title = DATASETS.get(dataset, dataset) + (f" ({', '.join(notes)})" if notes else "")
    return Place(name, dataset, record["shot"], title + (f", {record['shot']}-shot" if record["shot"] else ""))
