"""Running experiments: each finished one is kept at once, so that a killed run goes on where it was.

    OUT/config.json                     effort and fingerprints of the features: what every number depends on
    OUT/results/EXPERIMENT/DATASET.json one record for each experiment, feature set and number of shots
    OUT/figures/                        pictures as SVG, PDF and PNG
    OUT/report.html, OUT/summary.md     everything beside the paper's figures
    OUT/summary.json                    the statements and what became of them

Computing needs torch and NumPy alone (experiments that need more are left out with a word); drawing is a step of its
own, which may happen later and elsewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.atomic import atomic_path, write_json
from fewcal._version import __version__
from fewcal.errors import FileFormatError, InputError
from fewcal.features import FeatureSet
from fewcal.features.featureset import SPLITS
from fewcal.features.io.files import EXTENSIONS
from fewcal.paper.blocks import Picture, Section, Verdict, claims_table, to_markdown, to_page, verdict_table
from fewcal.paper.experiments import EXPERIMENTS, WHOLE, Experiment
from fewcal.paper.measured import Budget
from fewcal.paper.published import dataset_title, published

FORMAT, FORMAT_VERSION = "fewcal-paper", 1
# How folders of features are named, by dataset of the paper; the first that fits counts.
_PREFIXES = {
    "mini2cub": ("mini2cub",),
    "mini": ("mini",),
    "cub": ("cub",),
    "dogs": ("dogs", "stanford-dogs", "stanforddogs"),
    "meta-tiered": ("meta-tiered", "metatiered", "tiered"),
}
Say = Callable[[str], None]


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


@dataclass(frozen=True)
class Step:
    """One record to compute."""

    experiment: Experiment
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
    experiments: Sequence[Experiment],
    features: Mapping[str, str | Path | FeatureSet],
    out: str | Path,
    effort: Budget,
    *,
    resume: bool = False,
    device: str = "cpu",
    say: Say = lambda line: None,
) -> list[str]:
    """Compute what is not there yet; the experiments left out, each with its reason.

    Parameters
    ----------
    experiments : list of Experiment
    features : dict of folders or feature sets by dataset
    out : folder
        New or empty, or that of the run to `resume`.
    effort : Budget
    resume : bool
        Continue a run with the same effort; experiments and feature sets may be added.
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
    _open(folder, effort, loaded, resume)
    steps, left_out = _plan(experiments, loaded)
    for reason in left_out:
        say(f"left out: {reason}")
    todo = [step for step in steps if _record(step.file(folder)) is None]
    if len(todo) < len(steps):
        say(f"{len(steps) - len(todo)} of {len(steps)} are there already")
    for i, step in enumerate(todo, 1):
        say(f"[{i}/{len(todo)}] {step.name}")
        began = time.perf_counter()
        data = step.experiment.compute(loaded[step.dataset], step.dataset, step.shot, effort, chosen)
        seconds = round(time.perf_counter() - began, 2)
        kept = {
            "experiment": step.experiment.name,
            "dataset": step.dataset,
            "shot": step.shot,
            "device": _device_name(chosen),
            "fewcal": __version__,
            "seconds": seconds,
            "data": data,
        }
        with atomic_path(step.file(folder)) as temporary:  # in one line: counts of tasks are long lists
            temporary.write_text(json.dumps(kept, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        say(f"[{i}/{len(todo)}] {step.name}: {seconds:.1f} s")
    return left_out


def _plan(experiments: Sequence[Experiment], loaded: Mapping[str, FeatureSet]) -> tuple[list[Step], list[str]]:
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
    return steps, left_out


def _open(folder: Path, effort: Budget, loaded: Mapping[str, FeatureSet], resume: bool) -> None:
    """Begin a run, or make sure that this is its continuation."""
    prints = {name: {s: part.fingerprint() for s, part in fs.splits().items()} for name, fs in loaded.items()}
    file = folder / "config.json"
    if not file.is_file():
        if folder.exists() and (not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir())):
            raise InputError(f"{folder} is not empty and holds no run of experiments; choose a new folder")
        write_json(file, {"format": FORMAT, "version": FORMAT_VERSION, "effort": effort.to_dict(), "features": prints})
        return
    if not resume:
        raise InputError(f"{folder} already holds experiments; continue with --resume or choose another folder")
    config = read_config(folder)
    if config["effort"] != effort.to_dict():
        differing = next(k for k, v in effort.to_dict().items() if config["effort"].get(k) != v)
        raise InputError(
            f"{folder} was begun with {differing}={config['effort'].get(differing)}, not "
            f"{effort.to_dict()[differing]}; resume with the same settings or choose another folder"
        )
    for name, own in prints.items():
        if config["features"].get(name, own) != own:
            raise InputError(
                f"{folder} was begun with other features of {name}; give the same or choose another folder"
            )
    if set(prints) - set(config["features"]):
        write_json(file, config | {"features": config["features"] | prints})


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings of a run."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no run of experiments; make one with `fewcal paper run`")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT or "effort" not in config:
        raise FileFormatError(f"{file} is not that of a run of experiments")
    return config


def _record(file: Path) -> dict[str, Any] | None:
    """A kept record; None where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "data" in found else None


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


# ---- showing --------------------------------------------------------------------------------------------------------


def kept_records(out: str | Path) -> dict[str, list[dict[str, Any]]]:
    """All finished records by experiment, feature sets in the order of the paper's tables."""
    folder = Path(out)
    found: dict[str, list[dict[str, Any]]] = {}
    order = ["dogs", "cub", "mini", "mini2cub", "meta-tiered"]
    for name in EXPERIMENTS:
        files = sorted((folder / "results" / name).glob("*.json"))
        records = [r for r in map(_record, files) if r is not None]
        place = {d: i for i, d in enumerate(order)}
        records.sort(key=lambda r: (place.get(r["dataset"], len(order)), r["dataset"], r["shot"]))
        if records:
            found[name] = records
    return found


def draw_report(out: str | Path, left_out: Sequence[str] = (), say: Say = lambda line: None) -> dict[str, Any]:
    """Draw everything that is computed: report, summary, figures; the statements as plain values."""
    from fewcal.render import Page
    from fewcal.render.figures import save

    folder = Path(out)
    config = read_config(folder)
    kept = kept_records(folder)
    if not kept:
        raise InputError(f"{folder} has no finished experiment to draw")
    shown: dict[str, Section] = {}
    for name, records in kept.items():
        say(f"drawing {name}")
        shown[name] = EXPERIMENTS[name].show({(r["dataset"], r["shot"]): r["data"] for r in records})
    verdicts = [v for one in shown.values() for v in one.verdicts]
    words = _opening(config, kept, left_out)
    page = Page("The paper, measured", "every table and figure of the GDC paper beside what these features give")
    to_page(page, words)
    markdown = ["# The paper, measured\n", to_markdown(words)]
    if verdicts:
        page.heading("Where the paper's statements hold")
        markdown.append("## Where the paper's statements hold\n")
        for blocks in _verdict_blocks(verdicts):
            to_page(page, blocks)
            markdown.append(to_markdown(blocks))
    for name, one in shown.items():
        e = EXPERIMENTS[name]
        page.heading(f"{e.title} ({name})")
        said = f"{e.source[0].upper()}{e.source[1:]}. {'The paper: ' if e.datasets else ''}{e.says}"
        page.text(said)
        to_page(page, one.blocks)
        markdown += [f"## {e.title} ({name})\n", f"{said}\n", to_markdown(one.blocks, Path("figures"))]
        for block in one.blocks:
            if isinstance(block, Picture):
                save(block.figure, folder / "figures" / block.stem)
    timing = [
        [r["experiment"], r["dataset"], r["shot"] or None, r["device"], r["seconds"]]
        for rs in kept.values()
        for r in rs
    ]
    page.heading("How it was computed")
    with page.details("Seconds of each part"):
        page.table(["experiment", "features", "shots", "device", "seconds"], timing)
    page.facts({"command": f"fewcal paper run {' '.join(kept)} --features …", "effort": config["effort"]})
    page.write(folder / "report.html")
    with atomic_path(folder / "summary.md") as temporary:
        temporary.write_text("\n".join(markdown), encoding="utf-8")
    summary = {
        "effort": config["effort"],
        "seconds": {n: round(sum(r["seconds"] for r in rs), 2) for n, rs in kept.items()},
        "verdicts": [
            {"claim": v.claim, "features": v.where, "found": v.found, "verdict": v.word, "experiment": n}
            for n, one in shown.items()
            for v in one.verdicts
        ],
        "left_out": list(left_out),
    }
    write_json(folder / "summary.json", summary)
    return summary


def _opening(config: Mapping[str, Any], kept: Mapping[str, Any], left_out: Sequence[str]) -> list[str]:
    effort = config["effort"]
    sets = ", ".join(dict.fromkeys(dataset_title(r["dataset"]) for rs in kept.values() for r in rs))
    words = [
        f"Computed on {sets}: {effort['tasks']} novel tasks (5 ways, 15 queries a class) for methods in closed form, "
        f"{effort['sampled']} for those that train on sampled points, {effort['sgd']} for the paper's own SGD head, "
        f"{effort['study']} for each variant of a study; at most {effort['trials']} settings on "
        f"{effort['trial_tasks']} validation tasks where something is tuned. Seed {effort['seed']}. "
        "Nothing was chosen on novel classes.",
        f"† marks figures of the paper, on the paper's own features ({published()['paper']}). Intervals are 95% over "
        "tasks, paired where two methods are compared; they say nothing about other classes.",
        "The paper's settings assume the scale of the paper's features: a distance of about 1.4 to the nearest base "
        "class, where 1/(1 + d^m) is neither 0 nor 1 and SGD with a learning rate of 0.08 is stable. Features of other "
        "backbones lie elsewhere, so the paper's settings are also shown at unit scale (centred, L2).",
    ]
    if left_out:
        words.append(f"Left out: {'; '.join(left_out)}.")
    return words


def _verdict_blocks(verdicts: Sequence[Verdict]) -> list[list[Any]]:
    counts = {word: sum(v.word == word for v in verdicts) for word in ("holds", "does not hold", "cannot tell")}
    above = [v for v in verdicts if v.claim.startswith("GDC is above DC")]
    rest = [v for v in verdicts if v not in above]
    out: list[list[Any]] = [
        [
            f"Of {len(verdicts)} statements {counts['holds']} hold, {counts['does not hold']} do not hold, and for "
            f"{counts['cannot tell']} the 95% interval has both signs."
        ]
    ]
    if above:
        caption = "GDC minus DC on the same tasks, points of accuracy; ▲ and ▼ are beyond the 95% interval"
        out.append([_above_words(above), claims_table(above, caption)])
    if rest:
        out.append([verdict_table(rest, "Other statements, each gain with its 95% interval")])
    return out


def _above_words(above: Sequence[Verdict]) -> str:
    """Where GDC is above DC and where not, form by form, in words."""
    parts = []
    for claim in dict.fromkeys(v.claim for v in above):
        own = [v for v in above if v.claim == claim]
        told = [f"above DC in {sum(v.holds is True for v in own)} of {len(own)} cases"]
        for holds, word in ((False, "below DC"), (None, "not to be told from DC")):
            if where := [v.where for v in own if v.holds is holds]:
                told.append(f"{word} on {'; '.join(where)}")
        parts.append(f"GDC {claim.partition('(')[2].rstrip(')')}: {', '.join(told)}.")
    return " ".join(parts)
