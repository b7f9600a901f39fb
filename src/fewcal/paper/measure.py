"""Accuracies of methods on the same tasks, from runs of `fewcal.evaluation` that are kept and found again.

    OUT/runs/SET-1shot-novel/00000-01000-1a2b3c4d   a run: tasks 0 to 999 for some methods

Tables and figures have many settings in common. A method that some run has evaluated on these features is not computed
again, whatever asks for it, and a larger number of tasks adds the ones that are missing. Each run is one of
`fewcal.evaluation.evaluate`: a killed one goes on block by block.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

from fewcal._utils.arrays import pick_device
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import FewcalError, FewcalWarning
from fewcal.evaluation import Protocol, Results, evaluate, load_run
from fewcal.methods import Method
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.budget import QUERY, WAY, Budget
from fewcal.paper.control import SupportAlone
from fewcal.paper.sets import Features
from fewcal.paper.statements import Claim, judge

_RUN = re.compile(r"(\d+)-(\d+)-[0-9a-f]{8}")


class Part(TypedDict):
    """Where some tasks of a method are: the folder of a run in OUT/runs, and the name of the method there."""

    run: str
    method: str


class Choice(TypedDict):
    """What a search chose on validation tasks: the setting, its accuracy there, trials, and tasks of each."""

    setting: dict[str, float]
    accuracy: float
    trials: int
    tasks: int


@dataclass(frozen=True)
class Row:
    """A method of a table: its variant, its label, and whether the features have the paper's scale."""

    variant: str
    label: str
    method: Method
    matched: bool = False

    @property
    def key(self) -> str:
        """Its name in a record."""
        return f"{self.variant}: {self.label}"


class Runs:
    """Evaluations in a folder, and those that are added to it."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, str(pick_device(device))
        self._parts: dict[str, dict[tuple[int, int], Part]] = {}
        self._results: dict[str, Results] = {}
        for path in sorted(folder.glob("*/*/config.json")):
            self._add(path.parent.relative_to(folder).as_posix())

    def _add(self, name: str) -> None:
        """Index the methods of a finished run; one that cannot be read counts for nothing."""
        found = _RUN.fullmatch(Path(name).name)
        try:
            results = self.results(name)
        except FewcalError:
            return
        if found is None:
            return
        identity = results.identity
        for method, settings in identity["methods"].items():
            key = _key(identity["features"], results.protocol, identity["device"], settings)
            self._parts.setdefault(key, {})[int(found[1]), int(found[2])] = {"run": name, "method": method}

    def results(self, name: str) -> Results:
        """The results of a run by the name of its folder."""
        if name not in self._results:
            self._results[name] = load_run(self.folder / name)
        return self._results[name]

    def accuracy(self, parts: Sequence[Part]) -> np.ndarray:
        """Accuracy of every task, `(T,)`."""
        return np.concatenate([self.results(p["run"]).accuracy(p["method"]) for p in parts])

    def evaluate(
        self, methods: Mapping[str, Method], of: Features, shot: int, tasks: int, split: str = "novel", seed: int = 0
    ) -> dict[str, list[Part]]:
        """The first tasks of a split for every method; what is missing is computed."""
        protocol = Protocol(WAY, shot, QUERY, tasks, seed, split)
        prints = {s: of.features.split(s).fingerprint() for s in ("base", split) if s in of.features.splits()}
        keys = {n: _key(prints, protocol, self.device.partition(":")[0], _settings(m)) for n, m in methods.items()}
        missing: dict[int, dict[str, str]] = {}  # by the first task that is missing: names by key, each once
        for name, key in keys.items():
            start = sum(stop - first for first, stop in self._chain(key, tasks))
            if start < tasks:
                missing.setdefault(start, {}).setdefault(key, name)
        for start, names in missing.items():
            self._compute({name: methods[name] for name in names.values()}, of, protocol, start)
        return {n: [self._parts[key][at] for at in self._chain(key, tasks)] for n, key in keys.items()}

    def _chain(self, key: str, tasks: int) -> list[tuple[int, int]]:
        """Parts that follow each other from task 0, the longest first, until there are enough tasks."""
        out: list[tuple[int, int]] = []
        while (start := out[-1][1] if out else 0) < tasks:
            following = [at for at in self._parts.get(key, {}) if at[0] == start]
            if not following:
                break
            out.append(max(following))
        return out

    def _compute(self, methods: dict[str, Method], of: Features, protocol: Protocol, start: int) -> None:
        spec = EpisodeSpec(protocol.way, protocol.shot, protocol.query, protocol.seed)
        split, tasks = of.features.split(protocol.split), protocol.tasks
        text = json.dumps([_settings(m) for m in methods.values()], sort_keys=True, default=str)
        digest = hashlib.sha256(f"{of.features.split('base').fingerprint()}{text}{self.device}".encode()).hexdigest()[:8]
        seed = "" if spec.seed == 0 else f"-seed{spec.seed}"
        name = f"{of.name}-{spec.shot}shot-{protocol.split}{seed}/{start:05d}-{tasks:05d}-{digest}"
        drawn = None
        if start:
            drawn = sample_episodes(split.require_labels(), spec, range(start, tasks), split.classes)
        asked = Protocol(spec.way, spec.shot, spec.query, tasks - start, spec.seed, protocol.split)
        with quiet():
            evaluate(
                methods, of.features, asked, self.device, out=self.folder / name, resume=True, episodes=drawn
            )
        self._add(name)


def _settings(method: Method) -> dict[str, object]:
    return {"method": method.name, **method.settings}


def _key(prints: Mapping[str, str], protocol: Protocol, device: str, settings: Mapping[str, object]) -> str:
    """What the accuracies of a method depend on, but for the number of tasks."""
    tasks = [protocol.way, protocol.shot, protocol.query, protocol.seed, protocol.split]
    return json.dumps([prints, tasks, device, settings], sort_keys=True, default=str)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings about parameters: grids and the paper's rows go through values that one would not choose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        yield


# ---- the rows of a table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What one record is computed on.

    Attributes
    ----------
    of : Features
    shot : int
        Support points a class; 0 for an experiment with one record for a feature set.
    budget : Budget
    runs : Runs
    """

    of: Features
    shot: int
    budget: Budget
    runs: Runs

    @property
    def dataset(self) -> str:
        """The dataset of the paper that the features stand for."""
        return self.of.dataset

    @property
    def device(self) -> str:
        """Where it is computed."""
        return self.runs.device


class RowRecord(TypedDict):
    """A row in a record: its parts, its parameters, and the seconds that its tasks took."""

    parts: list[Part]
    settings: dict[str, object]
    seconds: float


class TableRecord(TypedDict):
    """Rows by key, choices of searches by key, notes for the reader, and how often statements were judged."""

    rows: dict[str, RowRecord]
    choices: dict[str, Choice]
    notes: list[str]
    looks: int


@dataclass(frozen=True)
class Measured:
    """A record with the accuracies of its rows, each `(T,)`."""

    record: TableRecord
    accuracy: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def load(cls, record: TableRecord, runs: Runs) -> Measured:
        """The record with what its runs hold."""
        return cls(record, {key: runs.accuracy(row["parts"]) for key, row in record["rows"].items()})

    def labels(self, variant: str) -> list[str]:
        """Labels of the rows of a variant."""
        return [key.removeprefix(f"{variant}: ") for key in self.accuracy if key.startswith(f"{variant}: ")]

    def of(self, variant: str, label: str) -> np.ndarray:
        """Accuracy of every task of a row."""
        return self.accuracy[f"{variant}: {label}"]


def kind(method: Method) -> str:
    """What the tasks of a method cost: "sgd", "sampled" (points are drawn) or "plain"."""
    params = method.params if isinstance(method, GDC | SupportAlone) else None
    if params is not None and params.as_dict()["head"] == "sgd":
        return "sgd"
    drawn = isinstance(method, DC) or (isinstance(method, GDC) and method.params.trainer.samples)
    return "sampled" if drawn else "plain"


def measure(case: Case, rows: Sequence[Row], claims: Sequence[Claim] = (), control: str = "") -> TableRecord:
    """Evaluate rows as the budget has it: those with SGD until every claim about them is decided, or at the end."""
    budget, looks = case.budget, case.budget.looks(case.shot)
    counts = {"plain": budget.tasks, "sampled": budget.sampled}
    parts = _evaluate(case, [(row, counts[kind(row.method)]) for row in rows if kind(row.method) in counts])
    left = [row for row in rows if row.key not in parts]
    for count in looks if left else ():
        parts |= _evaluate(case, [(row, count) for row in left])
        found = Measured({"rows": {}, "choices": {}, "notes": [], "looks": 0}, {})
        found.accuracy.update({key: case.runs.accuracy(p) for key, p in parts.items()})
        undecided = {key for variant in {r.variant for r in rows} for key in _open(found, variant, claims, control, looks)}
        left = [row for row in left if row.key in undecided]
        if not left:
            break
    return {
        "rows": {row.key: _row_record(case.runs, row, parts[row.key]) for row in rows},
        "choices": {},
        "notes": [],
        "looks": len(looks),
    }


def _evaluate(case: Case, rows: Sequence[tuple[Row, int]]) -> dict[str, list[Part]]:
    """Parts by key; rows with the same features and number of tasks are one run."""
    groups: dict[tuple[bool, int], list[Row]] = {}
    for row, tasks in rows:
        groups.setdefault((row.matched, tasks), []).append(row)
    out: dict[str, list[Part]] = {}
    for (matched, tasks), own in groups.items():
        of = case.of.matched if matched else case.of
        methods = {row.key: row.method for row in own}
        out |= case.runs.evaluate(methods, of, case.shot, tasks, seed=case.budget.seed)
    return out


def _open(found: Measured, variant: str, claims: Sequence[Claim], control: str, looks: Sequence[int]) -> set[str]:
    """Rows of a variant that an undecided claim is about."""
    labels = set(found.labels(variant))
    out: set[str] = set()
    for claim in claims:
        if labels.issuperset(claim.labels):
            verdict = judge(claim, lambda label: found.of(variant, label), "", variant, looks=len(looks))
            if verdict.holds is None:
                out |= {f"{variant}: {label}" for label in (*claim.labels, *([control] if control else []))}
    return out


def _row_record(runs: Runs, row: Row, parts: list[Part]) -> RowRecord:
    last = runs.results(parts[-1]["run"])
    seconds = sum(runs.results(p["run"]).seconds[p["method"]] for p in parts)
    return {"parts": parts, "settings": dict(last.settings[parts[-1]["method"]]), "seconds": round(float(seconds), 3)}
