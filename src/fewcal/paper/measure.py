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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

from fewcal._utils.arrays import pick_device
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import FewcalError, FewcalWarning
from fewcal.evaluation import Paired, Protocol, Results, evaluate, load_run
from fewcal.evaluation.engine import method_settings
from fewcal.methods import Method
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.budget import QUERY, WAY, Budget
from fewcal.paper.control import SupportAlone
from fewcal.paper.sets import Features
from fewcal.paper.settings import PRINTED, Variant
from fewcal.paper.statements import Claim, difference, judge

_RUN = re.compile(r"(\d+)-(\d+)-[0-9a-f]{8}")


class Part(TypedDict):
    """Where some tasks of a method are: a run in OUT/runs, the name of the method there, and how many of its tasks."""

    run: str
    method: str
    count: int


class Choice(TypedDict):
    """What a search chose on validation tasks: the setting, its accuracy there, trials, and tasks of each."""

    setting: dict[str, float]
    accuracy: float
    trials: int
    tasks: int


@dataclass(frozen=True)
class Row:
    """A method of a table: its variant, its label, its features and their split."""

    variant: str
    label: str
    method: Method
    of: Features
    split: str = "novel"

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
            self._parts.setdefault(key, {})[int(found[1]), int(found[2])] = {
                "run": name,
                "method": method,
                "count": int(found[2]) - int(found[1]),
            }

    def results(self, name: str) -> Results:
        """The results of a run by the name of its folder."""
        if name not in self._results:
            self._results[name] = load_run(self.folder / name)
        return self._results[name]

    def accuracy(self, parts: Sequence[Part]) -> np.ndarray:
        """Accuracy of every task, `(T,)`."""
        return np.concatenate([self.results(p["run"]).accuracy(p["method"])[: p["count"]] for p in parts])

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
        return {name: self._cut(key, tasks) for name, key in keys.items()}

    def _cut(self, key: str, tasks: int) -> list[Part]:
        """The parts that hold exactly these tasks."""
        chain = self._chain(key, tasks)
        return [{**self._parts[key][at], "count": min(at[1], tasks) - at[0]} for at in chain]

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
        prints = [part.fingerprint() for part in of.features.splits().values()]
        digest = hashlib.sha256(f"{prints}{text}{self.device}".encode()).hexdigest()[:8]
        seed = "" if spec.seed == 0 else f"-seed{spec.seed}"
        name = f"{of.name}-{spec.shot}shot-{protocol.split}{seed}/{start:05d}-{tasks:05d}-{digest}"
        drawn = None
        if start:
            drawn = sample_episodes(split.require_labels(), spec, range(start, tasks), split.classes)
        asked = Protocol(spec.way, spec.shot, spec.query, tasks - start, spec.seed, protocol.split)
        with quiet():
            evaluate(methods, of.features, asked, self.device, out=self.folder / name, resume=True, episodes=drawn)
        self._add(name)


def _settings(method: Method) -> dict[str, object]:
    return method_settings({"": method})[""]


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
    """Rows by key, choices of searches by key, notes for the reader, and how often statements were judged.

    `settings` are parameters in words, by variant.
    """

    rows: dict[str, RowRecord]
    choices: dict[str, Choice]
    settings: dict[str, str]
    notes: list[str]
    looks: int


@dataclass
class Plan:
    """The rows of a table, what searches chose for them, parameters in words by variant, and notes."""

    of: Features
    rows: list[Row] = field(default_factory=list)
    choices: dict[str, Choice] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(
        self, variant: Variant, label: str, method: Method, split: str = "novel", of: Features | None = None
    ) -> None:
        """A row, on the features of the plan at the scale of the variant, or on others."""
        own = self.of.matched if variant.matched else self.of
        self.rows.append(Row(variant.name, label, method, of or own, split))


@dataclass(frozen=True)
class Measured:
    """Accuracies of the rows of a record by key, each `(T,)`."""

    accuracy: dict[str, np.ndarray]

    @classmethod
    def load(cls, record: TableRecord, runs: Runs) -> Measured:
        """What the runs of a record hold."""
        return cls({key: runs.accuracy(row["parts"]) for key, row in record["rows"].items()})

    def labels(self, variant: str) -> list[str]:
        """Labels of the rows of a variant."""
        return [key.removeprefix(f"{variant}: ") for key in self.accuracy if key.startswith(f"{variant}: ")]

    def has(self, variant: str, labels: Iterable[str]) -> bool:
        """Whether `of` finds all of these rows."""
        return all({f"{variant}: {label}", f"{PRINTED.name}: {label}"} & set(self.accuracy) for label in labels)

    def of(self, variant: str, label: str) -> np.ndarray:
        """Accuracy of every task of a row; a row that the variant lacks is that of the method as printed."""
        own = f"{variant}: {label}"
        return self.accuracy[own if own in self.accuracy else f"{PRINTED.name}: {label}"]

    def difference(self, variant: str, label: str, other: str) -> Paired:
        """One row minus another."""
        return difference(lambda name: self.of(variant, name), (label,), (other,))


def kind(method: Method) -> str:
    """What the tasks of a method cost: "sgd", "sampled" (points are drawn) or "plain"."""
    params = method.params if isinstance(method, GDC | SupportAlone) else None
    if params is not None and params.as_dict()["head"] == "sgd":
        return "sgd"
    drawn = isinstance(method, DC) or (isinstance(method, GDC) and method.params.trainer.samples)
    return "sampled" if drawn else "plain"


def measure(case: Case, plan: Plan, claims: Sequence[Claim] = (), control: str = "") -> TableRecord:
    """Evaluate rows as the budget has it: those with SGD until every claim about them is decided, or at the end."""
    rows = plan.rows
    budget, looks = case.budget, case.budget.looks(case.shot)
    counts = {"plain": budget.tasks, "sampled": budget.sampled}
    parts = _evaluate(case, [(row, counts[kind(row.method)]) for row in rows if kind(row.method) in counts])
    left = [row for row in rows if row.key not in parts]
    for count in looks if left else ():
        parts |= _evaluate(case, [(row, count) for row in left])
        found = Measured({key: case.runs.accuracy(p) for key, p in parts.items()})
        undecided = {
            key for variant in {r.variant for r in rows} for key in _open(found, variant, claims, control, looks)
        }
        left = [row for row in left if row.key in undecided]
        if not left:
            break
    return {
        "rows": {row.key: _row_record(case.runs, row, parts[row.key]) for row in rows},
        "choices": plan.choices,
        "settings": plan.settings,
        "notes": plan.notes,
        "looks": len(looks),
    }


def _evaluate(case: Case, rows: Sequence[tuple[Row, int]]) -> dict[str, list[Part]]:
    """Parts by key; rows with the same features and number of tasks are one run."""
    groups: dict[tuple[Features, str, int], list[Row]] = {}
    for row, tasks in rows:
        groups.setdefault((row.of, row.split, tasks), []).append(row)
    out: dict[str, list[Part]] = {}
    for (of, split, tasks), own in groups.items():
        methods = {row.key: row.method for row in own}
        out |= case.runs.evaluate(methods, of, case.shot or 1, tasks, split, case.budget.seed)
    return out


def _open(found: Measured, variant: str, claims: Sequence[Claim], control: str, looks: Sequence[int]) -> set[str]:
    """Rows of a variant that an undecided claim is about."""
    out: set[str] = set()
    for claim in claims:
        if f"{variant}: {claim.above[0]}" in found.accuracy and found.has(variant, claim.labels):
            verdict = judge(claim, lambda label: found.of(variant, label), "", variant, looks=len(looks))
            if verdict.holds is None:
                out |= {f"{variant}: {label}" for label in (*claim.labels, *([control] if control else []))}
    return out


def _row_record(runs: Runs, row: Row, parts: list[Part]) -> RowRecord:
    last = runs.results(parts[-1]["run"])
    seconds = sum(runs.results(p["run"]).seconds[p["method"]] for p in parts)
    return {"parts": parts, "settings": dict(last.settings[parts[-1]["method"]]), "seconds": round(float(seconds), 3)}
