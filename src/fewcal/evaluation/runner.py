"""Evaluation: methods × tasks → accuracies of every task, the same tasks for every method.

`evaluate` draws N-way K-shot tasks, runs every method on each of them and keeps every accuracy. With `out` the run has
a folder that grows block by block; killed at any moment and resumed, it ends with the same numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal.episodes import Episodes, EpisodeSpec, labels_fingerprint, sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation.engine import Block, Engine, Job, blocks, check_methods, method_settings
from fewcal.evaluation.stats import CalibrationBins, class_bootstrap, paired_table, per_class_accuracy, summarise
from fewcal.features import FeatureSet
from fewcal.methods import Method, parse_methods

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Protocol:
    """How tasks are drawn: `tasks` N-way K-shot tasks with Q queries a class, from one split, by one seed.

    >>> Protocol(shot=5).spec.shot
    5
    """

    way: int = 5
    shot: int = 1
    query: int = 15
    tasks: int = 1000
    seed: int = 0
    split: str = "novel"
    replacement: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.tasks, bool) or not isinstance(self.tasks, int | np.integer) or self.tasks < 1:
            raise InputError(f"tasks is {self.tasks!r}; it must be an integer of at least 1")
        object.__setattr__(self, "tasks", int(self.tasks))
        _ = self.spec  # validates the rest

    @property
    def spec(self) -> EpisodeSpec:
        """The same as the sampler wants it."""
        return EpisodeSpec(self.way, self.shot, self.query, self.seed, self.replacement)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


@dataclass(eq=False)
class Results:
    """Every task's outcome for every method.

    Attributes
    ----------
    protocol : Protocol
    class_names : list of str
        Classes of the split that tasks were drawn from.
    classes : array (T, N), positions in `class_names`
    correct : dict of arrays (T, N), right answers among the Q queries of each class
    bins : dict of CalibrationBins
    seconds : dict of float
        Time spent in each method, added up over worker processes.
    settings : dict of dict, parameters of each method, as they were used on this bank
    identity : dict
        What fixes the tasks: fingerprints of the features, and the protocol.
    """

    protocol: Protocol
    class_names: list[str]
    classes: np.ndarray
    correct: dict[str, np.ndarray]
    bins: dict[str, CalibrationBins]
    seconds: dict[str, float]
    settings: dict[str, dict[str, Any]]
    identity: dict[str, Any] = field(default_factory=dict)

    def accuracy(self, method: str) -> np.ndarray:
        """Accuracy of every task, `(T,)`, in 0..1."""
        return self.correct[method].sum(axis=1) / (self.protocol.way * self.protocol.query)

    def summary(self, reference: str | None = None, class_intervals: bool = True) -> dict[str, Any]:
        """Figures of every method and paired differences, ready for JSON."""
        methods: dict[str, Any] = {}
        accuracies = {name: self.accuracy(name) for name in self.correct}
        for name, acc in accuracies.items():
            s = summarise(acc)
            totals = np.bincount(self.classes.ravel(), minlength=len(self.class_names)) * self.protocol.query
            right = np.bincount(self.classes.ravel(), self.correct[name].ravel(), minlength=len(self.class_names))
            each = per_class_accuracy(right, totals)
            spent = self.seconds[name]
            interval = class_bootstrap(acc, self.classes) if class_intervals else None
            methods[name] = {
                "accuracy": s.mean,
                **{k: v for k, v in s.to_dict().items() if k not in ("mean", "n")},
                "class_interval": interval.to_dict() if interval is not None else None,
                "ece": self.bins[name].error(),
                "per_class": {c: _number(v) for c, v in zip(self.class_names, each.tolist(), strict=True)},
                "tasks": s.n,
                "seconds": spent,
                "tasks_per_second": s.n / spent if spent > 0 else None,
                "settings": self.settings[name],
            }
        pairs = paired_table(accuracies, reference) if len(accuracies) > 1 else []
        return {"protocol": self.protocol.to_dict(), "methods": methods, "paired": [p.to_dict() for p in pairs]}


def _number(value: float) -> float | None:
    return None if value != value else value


def evaluate(
    methods: str | Sequence[str] | Mapping[str, Method],
    features: FeatureSet | str | os.PathLike[str],
    protocol: Protocol | None = None,
    device: str | torch.device | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    episodes: Episodes | None = None,
    n_jobs: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run methods on the same tasks.

    Parameters
    ----------
    methods : names, or methods by display name
        A name is one of `METHODS`, or `gdc:PRESET`; a string may hold several with commas between them.
    features : FeatureSet or folder
    protocol : Protocol
    device : "cpu", "cuda", "auto"
    out : folder or None
        Where the run is kept. It must be new or empty unless `resume`.
    resume : bool
        Continue the run in `out`; its protocol, methods and features must be the same.
    episodes : Episodes or None
        A fixed list of tasks (see `Episodes.load`) instead of drawn ones; it brings its own way, shot, query and seed.
    n_jobs : int
        Worker processes on this machine (joblib).
    scheduler : str or None
        Address of a Dask scheduler, or "local:N" for N worker processes on this machine.
    progress : callable(done_tasks, all_tasks) or None

    Examples
    --------
    >>> import numpy as np
    >>> from fewcal.features import FeatureSet, FeatureSplit
    >>> rng = np.random.default_rng(0)
    >>> def split(names):
    ...     centres = rng.random((len(names), 6))
    ...     labels = np.repeat(np.arange(len(names)), 20)
    ...     return FeatureSplit.from_arrays(centres[labels] + 0.1 * rng.random((len(labels), 6)), labels, names)
    >>> fs = FeatureSet(base=split(list("abcdefgh")), novel=split(list("uvwxyz")))
    >>> results = evaluate(["ncm", "gdc"], fs, Protocol(tasks=20, query=5))
    >>> results.accuracy("gdc").shape
    (20,)
    """
    protocol = protocol or Protocol()
    fs = features if isinstance(features, FeatureSet) else FeatureSet.load(features)
    if isinstance(methods, Mapping):
        named = dict(methods)
    else:
        named = parse_methods(methods if isinstance(methods, str) else ",".join(methods))
    if not named:
        raise InputError("no methods were given; choose some of those that `fewcal evaluate --help` lists")
    split = fs.split(protocol.split)
    has_base = fs.base is not None and protocol.split != "base"
    check_methods(named, has_base, protocol.split)
    base = (fs.base.features, fs.base.require_labels()) if has_base and fs.base is not None else None
    labels = split.require_labels()
    if episodes is not None:
        episodes, protocol = _fixed_tasks(episodes, labels, protocol)
    else:
        sample_episodes(labels, protocol.spec, range(1), split.classes)  # refuses classes or rows that do not suffice
    chosen = pick_device(device)
    # The kind of device counts: CPU and CUDA draw other samples from the same seed.
    identity = _identity(fs, protocol, named, episodes) | {"device": chosen.type}

    from fewcal.evaluation.executors import run_blocks
    from fewcal.evaluation.run_folder import Run, environment

    run = None if out is None else Run.open(Path(out), identity, resume=resume)
    if run is not None and (complete := run.results()) is not None:
        if progress is not None:
            progress(protocol.tasks, protocol.tasks)
        return complete
    job = Job(
        base,
        split.features,
        labels,
        named,
        protocol.spec,
        episodes,
        str(chosen),
        uuid.uuid4().hex,
        rows_recur=protocol.tasks * protocol.way * protocol.query > len(labels),
    )
    engine = Engine(job)  # here for its plan and its errors, before any worker is started
    plan = engine.plan() if run is None else run.plan(engine.plan)
    engine.job = job = dataclasses.replace(job, batches=plan["batches"])
    borders = list(blocks(protocol.tasks, plan["block"]))
    finished = {} if run is None else run.load_blocks(list(named), borders, protocol.way)
    todo = [border for border in borders if border[0] not in finished]
    done = protocol.tasks - sum(b - a for a, b in todo)
    if progress is not None:
        progress(done, protocol.tasks)
    for block in run_blocks(job, todo, engine=engine, n_jobs=n_jobs, scheduler=scheduler):
        finished[block.start] = block
        if run is not None:
            run.save_block(block)
        done += block.stop - block.start
        if progress is not None:
            progress(done, protocol.tasks)
    results = _assemble(protocol, split.classes, finished, plan["settings"], identity)
    if run is not None:
        run.finish(results, environment(chosen))
    return results


def _fixed_tasks(episodes: Episodes, labels: np.ndarray, protocol: Protocol) -> tuple[Episodes, Protocol]:
    """The tasks of the list that are wanted, and the protocol that describes them."""
    if protocol.tasks > len(episodes):
        raise InputError(f"{protocol.tasks} tasks were asked for, but the list has {len(episodes)}; lower tasks")
    if labels_fingerprint(labels) != episodes.labels_fingerprint:
        raise InputError(
            f"the list of tasks was drawn from other labels than those of split {protocol.split!r}; "
            "use the split it was made for, or sample the tasks again"
        )
    spec = episodes.spec
    described = dataclasses.replace(
        protocol, way=spec.way, shot=spec.shot, query=spec.query, seed=spec.seed, replacement=spec.replacement
    )
    return episodes[: protocol.tasks], described


def _identity(
    fs: FeatureSet, protocol: Protocol, methods: Mapping[str, Method], episodes: Episodes | None
) -> dict[str, Any]:
    """What a run's numbers depend on, in plain values."""
    fingerprints = {name: fs.split(name).fingerprint() for name in ("base", protocol.split) if name in fs.splits()}
    fixed = None
    if episodes is not None:
        drawn = sample_episodes(fs.split(protocol.split).require_labels(), episodes.spec, range(len(episodes)))
        parts = ("task_ids", "support", "query")
        # A saved list of drawn tasks gives the run that drawing them gives, and so the same identity.
        if not all(np.array_equal(getattr(episodes, p), getattr(drawn, p)) for p in parts):
            rows = np.concatenate([getattr(episodes, p).ravel() for p in parts])
            fixed = hashlib.sha256(rows.tobytes()).hexdigest()
    return {
        "protocol": protocol.to_dict(),
        "features": fingerprints,
        "episodes": fixed,
        "methods": method_settings(methods),
        "class_names": fs.split(protocol.split).classes,
    }


def _assemble(
    protocol: Protocol,
    class_names: list[str],
    finished: Mapping[int, Block],
    settings: dict[str, dict[str, Any]],
    identity: dict[str, Any],
) -> Results:
    ordered = [finished[start] for start in sorted(finished)]
    merged = {}
    for name in settings:
        total = CalibrationBins()
        for b in ordered:
            total = total.merge(b.bins[name])
        merged[name] = total
    return Results(
        protocol,
        list(class_names),
        np.concatenate([b.classes for b in ordered]),
        {name: np.concatenate([b.correct[name] for b in ordered]) for name in settings},
        merged,
        {name: sum(b.seconds[name] for b in ordered) for name in settings},
        settings,
        identity,
    )
