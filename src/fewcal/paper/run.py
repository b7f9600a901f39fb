"""Running experiments: each finished one is kept at once, so that a killed run goes on where it was.

    OUT/config.json                     effort and fingerprints of the features: what every number depends on
    OUT/evaluations.jsonl               right answers of every setting that was evaluated, for whoever asks again
    OUT/results/EXPERIMENT/DATASET.json one record for each experiment, feature set and number of shots
    OUT/figures/                        pictures as SVG, PDF and PNG
    OUT/report.html, OUT/summary.md     everything beside the paper's figures
    OUT/summary.json                    the statements and what became of them

Computing needs torch and NumPy alone (experiments that need more are left out, with a message); drawing (`draw.py`)
is a step of its own, which may happen later and elsewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.atomic import atomic_path, read_json, write_json
from fewcal._utils.folder_lock import OutputLock, folder_lock
from fewcal._utils.types import Log
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError
from fewcal.features import FeatureSet
from fewcal.features.featureset import SPLITS
from fewcal.features.io.files import EXTENSIONS
from fewcal.paper.budget import WHOLE, Budget, Case
from fewcal.paper.evaluations import FILE, Evaluations
from fewcal.paper.experiments import EXPERIMENTS
from fewcal.paper.published import dataset_title
from fewcal.paper.registry import AnyExperiment

# Version 1 had other columns and no groups of verdicts.
FORMAT, FORMAT_VERSION = "fewcal-paper", 2
# How folders of features are named, by dataset of the paper; the first that fits counts.
_PREFIXES = {
    "mini2cub": ("mini2cub",),
    "mini": ("mini",),
    "cub": ("cub",),
    "dogs": ("dogs", "stanford-dogs", "stanforddogs"),
    "meta-tiered": ("meta-tiered", "metatiered", "tiered"),
}


# ---- features -------------------------------------------------------------------------------------------------------


def dataset_of(folder: str) -> str:
    """The paper's dataset that a folder's name begins with, or the name itself.

    >>> dataset_of("mini2cub-conv4"), dataset_of("tiered-wrn"), dataset_of("birds")
    ('mini2cub', 'meta-tiered', 'birds')
    """
    for dataset, prefixes in _PREFIXES.items():
        if folder.lower().startswith(prefixes):
            return dataset
    return folder


def find_features(given: Sequence[str | Path]) -> dict[str, Path]:
    """Datasets and their folders, from folders of features, folders of such folders, or DATASET=DIR."""
    out: dict[str, Path] = {}
    for item in given:
        text = str(item)
        named, equals, place = text.partition("=")
        folder = Path(place if equals and not Path(text).exists() else text)
        if not folder.is_dir():
            raise InputError(f"--features {text}: there is no folder {folder}; give a folder with base, val and novel")
        here = [folder] if _has_splits(folder) else sorted(p for p in folder.iterdir() if p.is_dir() and _has_splits(p))
        if not here:
            raise InputError(
                f"--features {folder} holds no features; give a folder with base and novel, or one of such"
            )
        if equals and folder != Path(text) and len(here) > 1:
            raise InputError(f"--features {text}: {folder} holds {len(here)} feature sets; name one of them")
        for one in here:
            dataset = named if equals and folder != Path(text) else dataset_of(one.resolve().name)
            if not dataset or any(c in dataset for c in '/\\:*?"<>|') or dataset.startswith("."):
                raise InputError(
                    f"--features {text}: {dataset!r} cannot be the name of a dataset; use letters and digits"
                )
            if dataset in out:
                raise InputError(
                    f"{out[dataset]} and {one} are both taken for {dataset}; name one of them: --features NAME={one}"
                )
            out[dataset] = one
    return out


def _has_splits(folder: Path) -> bool:
    return any((folder / f"{name}{extension}").is_file() for name in SPLITS for extension in EXTENSIONS)


# ---- a run's folder -------------------------------------------------------------------------------------------------


class Config(TypedDict):
    """`config.json`: what every number of a run depends on; the budget stands under its first name, effort.

    `features` are fingerprints and `classes` numbers of classes, both by dataset and split.
    """

    format: str
    version: int
    effort: dict[str, int]
    features: dict[str, dict[str, str]]
    classes: NotRequired[dict[str, dict[str, int]]]  # not in runs of before 2026-11-16


class Kept(TypedDict):
    """A finished record: where, how long and with which variants it was computed; `data` is the experiment's own.

    `control` is what its verdicts are held against, or why there is nothing.
    """

    experiment: str
    dataset: str
    shot: int
    device: str
    fewcal: str
    seconds: float
    variants: list[str]
    control: NotRequired[str]  # not in records of before 2026-11-16
    data: object


@dataclass(frozen=True)
class Step:
    """One record to compute."""

    experiment: AnyExperiment
    dataset: str
    shot: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.experiment.name}, {self.dataset}" + (f", {self.shot}-shot" if self.shot != WHOLE else "")

    def file(self, out: Path) -> Path:
        """Where it is kept."""
        shots = f"-{self.shot}shot" if self.shot != WHOLE else ""
        return out / "results" / self.experiment.name / f"{self.dataset}{shots}.json"


def run_experiments(
    experiments: Sequence[AnyExperiment],
    features: Mapping[str, str | Path | FeatureSet],
    out: str | Path,
    budget: Budget,
    *,
    resume: bool = False,
    device: str = "cpu",
    say: Log = lambda line: None,
) -> list[str]:
    """Compute what is not there yet; the experiments left out, each with its reason.

    Parameters
    ----------
    experiments : list of Experiment
    features : dict of folders or feature sets by dataset
    out : folder
        New or empty, or that of the run to `resume`.
    budget : Budget
    resume : bool
        Continue a run with the same budget; experiments and feature sets may be added.
    device : "cpu", "cuda", "auto"
    say : callable(line)
        Told what is going on.
    """
    folder = Path(out)
    chosen = str(pick_device(device))
    loaded: dict[str, FeatureSet] = {
        name: place if isinstance(place, FeatureSet) else FeatureSet.load(place) for name, place in features.items()
    }
    if not loaded:
        raise InputError("no features were given; add --features DIR")
    with folder_lock(folder) as lock:
        evaluations = Evaluations(folder / FILE)
        prints = {n: {s: evaluations.fingerprint(part) for s, part in fs.splits().items()} for n, fs in loaded.items()}
        counts = {n: {s: len(part.classes) for s, part in fs.splits().items()} for n, fs in loaded.items()}
        _open(folder, budget, prints, counts, resume)
        steps, left_out = _plan(experiments, loaded)
        for reason in left_out:
            say(f"left out: {reason}")
        todo = [step for step in steps if _record(step.file(folder)) is None]
        if len(todo) < len(steps):
            say(f"{len(steps) - len(todo)} of {len(steps)} are there already")
        for i, step in enumerate(todo, 1):
            say(f"[{i}/{len(todo)}] {step.name}")
            case = Case(loaded[step.dataset], step.dataset, step.shot, budget, chosen, evaluations)
            seconds = _compute(step, case, folder, lock)
            say(f"[{i}/{len(todo)}] {step.name}: {seconds:.1f} s")
        lock.check()
    return left_out


def _compute(step: Step, case: Case, folder: Path, lock: OutputLock) -> float:
    """Compute and keep one record; the seconds that it took."""
    began = time.perf_counter()
    data = step.experiment.compute(case)
    seconds = round(time.perf_counter() - began, 2)
    lock.check()
    kept: Kept = {
        "experiment": step.experiment.name,
        "dataset": step.dataset,
        "shot": step.shot,
        "device": _device_name(case.device),
        "fewcal": __version__,
        "seconds": seconds,
        "variants": [v.name for v in step.experiment.variants],
        "control": step.experiment.control,
        "data": data,
    }
    with atomic_path(step.file(folder)) as temporary:  # in one line: counts of tasks are long lists
        temporary.write_text(
            json.dumps(kept, ensure_ascii=False, default=str) + "\n", encoding="utf-8", errors="backslashreplace"
        )
    return seconds


def _plan(experiments: Sequence[AnyExperiment], loaded: Mapping[str, FeatureSet]) -> tuple[list[Step], list[str]]:
    steps, left_out = [], []
    for e in experiments:
        missing = [p for p in e.packages if find_spec(p) is None]
        if missing:
            left_out.append(f"{e.name} needs {', '.join(missing)}; continue with --resume where it is installed")
            continue
        on = e.on(list(loaded))
        if not on and e.datasets:
            left_out.append(f"{e.name} is about {' and '.join(map(dataset_title, e.datasets))}, no such features given")
        for dataset in on:
            absent = [s for s in e.needs if s not in loaded[dataset].splits()]
            if absent:
                left_out.append(f"{e.name} needs the split {absent[0]}, which the features of {dataset} do not have")
                continue
            steps += [Step(e, dataset, shot) for shot in e.shots]
    # One feature set after the other: its bank and the spaces in it are made once.
    order = list(loaded)
    return sorted(steps, key=lambda step: order.index(step.dataset)), left_out


def _open(
    folder: Path, budget: Budget, prints: dict[str, dict[str, str]], counts: dict[str, dict[str, int]], resume: bool
) -> None:
    """Begin a run with features of these fingerprints and classes, or make sure that this is its continuation."""
    file = folder / "config.json"
    if not file.is_file():
        if folder.exists() and (not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir())):
            raise InputError(f"{folder} is not empty and holds no run of experiments; choose a new folder")
        begun: Config = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "effort": budget.to_dict(),
            "features": prints,
            "classes": counts,
        }
        write_json(file, begun)
        return
    if not resume:
        raise InputError(f"{folder} already holds experiments; continue with --resume or choose another folder")
    config = read_config(folder)
    if config["effort"] != budget.to_dict():
        differing = next(k for k, v in budget.to_dict().items() if config["effort"].get(k) != v)
        raise InputError(
            f"{folder} was begun with {differing}={config['effort'].get(differing)}, not "
            f"{budget.to_dict()[differing]}; resume with the same settings or choose another folder"
        )
    for name, own in prints.items():
        if config["features"].get(name, own) != own:
            raise InputError(
                f"{folder} was begun with other features of {name}; give the same or choose another folder"
            )
    known = config.get("classes", {})
    if set(prints) - set(config["features"]) or set(counts) - set(known):
        write_json(file, config | {"features": config["features"] | prints, "classes": known | counts})


def read_config(folder: str | Path) -> Config:
    """The settings of a run."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no run of experiments; make one with `fewcal paper run`")
    config = read_json(file, "choose another folder")
    known = isinstance(config.get("effort"), dict) and isinstance(config.get("features"), dict)
    if config.get("format") != FORMAT or not known:
        raise FileFormatError(f"{file} is not that of a run of experiments")
    if config.get("version") != FORMAT_VERSION:
        raise FileFormatError(
            f"{folder} holds a run of format {config.get('version')}, and this fewcal has format {FORMAT_VERSION} with "
            "other columns; its report.html and summary.md stay readable: compute in a new folder"
        )
    return cast(Config, config)


def _record(file: Path) -> Kept | None:
    """A kept record; None where there is none that can be read."""
    try:
        found: Kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "data" in found else None


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def kept_records(out: str | Path) -> dict[str, list[Kept]]:
    """All finished records by experiment, feature sets in the order of the paper's tables."""
    folder = Path(out)
    found: dict[str, list[Kept]] = {}
    order = ["dogs", "cub", "mini", "mini2cub", "meta-tiered"]
    for name in EXPERIMENTS:
        files = sorted((folder / "results" / name).glob("*.json"))
        records = [r for r in map(_record, files) if r is not None]
        place = {d: i for i, d in enumerate(order)}
        records.sort(key=lambda r: (place.get(r["dataset"], len(order)), r["dataset"], r["shot"]))
        if records:
            found[name] = records
    return found
