"""Accuracies of methods on the same tasks, from runs of `fewcal.evaluation` that are kept and found again.

    OUT/runs/SET-1shot-novel/00000-01000-1a2b3c4d   a run: tasks 0 to 999 for some methods

Tables and figures have many settings in common. A method that some run has evaluated on these features is not computed
again, whatever asks for it, and a larger number of tasks adds the ones that are missing. Each run is one of
`fewcal.evaluation.evaluate`: a killed one goes on block by block.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.types import JSONObject
from fewcal.bank import BaseBank
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import FewcalError, FewcalWarning
from fewcal.evaluation import Paired, Protocol, evaluate, load_run
from fewcal.evaluation.engine import method_settings
from fewcal.methods import Method, TaskBatch
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.budget import QUERY, WAY, Budget
from fewcal.paper.control import SupportAlone
from fewcal.paper.sets import Features
from fewcal.paper.settings import MATCHED, PRINTED, Variant, params_text
from fewcal.paper.statements import Claim, difference, judge
from fewcal.params import GDCParams


class Outcome(NamedTuple):
    """Accuracy of the first tasks of a method `(T,)`, its parameters, and the seconds that its runs took."""

    accuracy: np.ndarray
    settings: JSONObject
    seconds: float


class Choice(TypedDict):
    """What a search chose on validation tasks: the setting, its accuracy there, trials, and tasks of each."""

    setting: dict[str, float]
    accuracy: float
    trials: int
    tasks: int


class Runs:
    """Evaluations in a folder, and those that are added to it."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, str(pick_device(device))
        self._parts: dict[str, dict[tuple[int, int], Outcome]] = {}  # by method; by first task and the one after
        for path in sorted(folder.glob("*/*/config.json")):
            self._add(path.parent)

    def _add(self, folder: Path) -> None:
        """Index the methods of a finished run; one that cannot be read counts for nothing."""
        with suppress(FewcalError, ValueError):
            start, stop, _ = folder.name.split("-")
            results = load_run(folder)
            of = results.identity["features"], results.protocol, results.identity["device"]
            for name, settings in results.identity["methods"].items():
                part = Outcome(results.accuracy(name), results.settings[name], float(results.seconds[name]))
                self._parts.setdefault(_key(*of, settings), {})[int(start), int(stop)] = part

    def evaluate(
        self, methods: Mapping[str, Method], of: Features, shot: int, tasks: int, split: str = "novel", seed: int = 0
    ) -> dict[str, Outcome]:
        """The first tasks of a split for every method; what is missing is computed."""
        protocol = Protocol(WAY, shot, QUERY, tasks, seed, split)
        prints = {s: of.prints[s] for s in ("base", split) if s in of.prints}
        keys = {n: _key(prints, protocol, self.device.partition(":")[0], _settings(m)) for n, m in methods.items()}
        missing: dict[int, dict[str, str]] = {}  # by the first task that is missing: names by key, each once
        for name, key in keys.items():
            if (start := len(self._collect(key, tasks).accuracy)) < tasks:
                missing.setdefault(start, {}).setdefault(key, name)
        for start, names in missing.items():
            self._compute({name: methods[name] for name in names.values()}, of, protocol, start)
        return {name: self._collect(key, tasks) for name, key in keys.items()}

    def _collect(self, key: str, tasks: int) -> Outcome:
        """Runs that follow each other from task 0, the longest first, until there are enough tasks."""
        found, start = [Outcome(np.empty(0), {}, 0.0)], 0
        while start < tasks:
            after = {stop: part for (first, stop), part in self._parts.get(key, {}).items() if first == start}
            if not after:
                break
            start = max(after)
            found.append(after[start])
        accuracy = np.concatenate([part.accuracy for part in found])[:tasks]
        return Outcome(accuracy, found[-1].settings, sum(part.seconds for part in found))

    def _compute(self, methods: dict[str, Method], of: Features, protocol: Protocol, start: int) -> None:
        spec, split, tasks = protocol.spec, of.features.split(protocol.split), protocol.tasks
        text = json.dumps([_settings(m) for m in methods.values()], sort_keys=True, default=str)
        digest = hashlib.sha256(f"{of.prints}{text}{self.device}".encode()).hexdigest()[:8]
        seed = "" if spec.seed == 0 else f"-seed{spec.seed}"
        name = f"{of.name}-{spec.shot}shot-{protocol.split}{seed}/{start:05d}-{tasks:05d}-{digest}"
        drawn = sample_episodes(split.require_labels(), spec, range(start, tasks), split.classes) if start else None
        own = Protocol(spec.way, spec.shot, spec.query, tasks - start, spec.seed, protocol.split)
        with quiet():
            evaluate(methods, of.features, own, self.device, out=self.folder / name, resume=True, episodes=drawn)
        self._add(self.folder / name)


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


def support_batch(method: GDC, of: Features, spec: EpisodeSpec, tasks: int) -> TaskBatch:
    """Prepare a method; support points of the first novel tasks in its space, `(T, N·K, D)`."""
    base, rows = of.features.split("base"), of.features.split("novel")
    method.prepare(BaseBank().fit(base.features, base.require_labels()))
    index = sample_episodes(rows.require_labels(), spec, range(tasks), rows.classes).support
    x = method.transform(torch.from_numpy(np.asarray(rows.features[index.reshape(-1)], np.float32)))
    labels = torch.arange(spec.way).repeat_interleave(spec.shot).expand(tasks, -1)
    return TaskBatch(x.view(tasks, -1, x.shape[1]), labels, spec.way, TaskRandom(spec.seed, range(tasks)))


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
    """A row in a record: right answers of each task, its parameters, and the seconds that its tasks took."""

    right: list[int]
    settings: JSONObject
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


@dataclass
class Plan:
    """The rows of a table, what searches chose for them, parameters in words by variant, and notes."""

    of: Features
    rows: list[Row] = field(default_factory=list)
    choices: dict[str, Choice] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def describe(self, row: GDCParams, variants: Iterable[Variant], text: str = "") -> None:
        """Keep the parameters of a row in words, by variant; `text` in place of them."""
        for variant in variants:
            scale = f"; features times {self.of.constant:.4g}" if variant is MATCHED else ""
            self.settings[variant.name] = (text or params_text(variant.params(row))) + scale

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
    def load(cls, record: TableRecord) -> Measured:
        """What a record holds."""
        return cls({key: np.array(row["right"]) / (WAY * QUERY) for key, row in record["rows"].items()})

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
    if params is not None and str(params.head) == "sgd":
        return "sgd"
    drawn = isinstance(method, DC) or (isinstance(method, GDC) and method.params.trainer.samples)
    return "sampled" if drawn else "plain"


def measure(case: Case, plan: Plan, claims: Sequence[Claim] = (), control: str = "") -> TableRecord:
    """Evaluate rows as the budget has it: those with SGD until every claim about them is decided, or at the end."""
    rows, looks = plan.rows, case.budget.looks(case.shot)
    counts = {"plain": case.budget.tasks, "sampled": case.budget.sampled}
    found = _evaluate(case, [(row, counts[kind(row.method)]) for row in rows if kind(row.method) in counts])
    left = [row for row in rows if row.key not in found]
    for count in looks:
        found |= _evaluate(case, [(row, count) for row in left])
        measured = Measured({key: outcome.accuracy for key, outcome in found.items()})
        undecided = {
            key for variant in {row.variant for row in left} for key in _open(measured, variant, claims, control, looks)
        }
        left = [row for row in left if row.key in undecided]
    return {
        "rows": {
            row.key: {
                "right": np.rint(found[row.key].accuracy * WAY * QUERY).astype(int).tolist(),
                "settings": found[row.key].settings,
                "seconds": round(found[row.key].seconds, 3),
            }
            for row in rows
        },
        "choices": plan.choices,
        "settings": plan.settings,
        "notes": plan.notes,
        "looks": len(looks),
    }


def _evaluate(case: Case, rows: Sequence[tuple[Row, int]]) -> dict[str, Outcome]:
    """Outcomes by key; rows with the same features and number of tasks are one run."""
    groups: dict[tuple[Features, str, int], dict[str, Method]] = {}
    for row, tasks in rows:
        groups.setdefault((row.of, row.split, tasks), {})[row.key] = row.method
    out: dict[str, Outcome] = {}
    for (of, split, tasks), methods in groups.items():
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
