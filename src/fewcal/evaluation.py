"""Evaluation: methods × tasks → accuracies of every task, the same tasks for every method.

`evaluate` draws N-way K-shot tasks, runs every method on each of them and keeps every accuracy. With `out` the run has
a folder that grows block by block; killed at any moment and resumed, it ends with the same numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal.arrays import pick_device
from fewcal.engine import BLOCK_TASKS, Block, Engine, Job, blocks, check_methods
from fewcal.episodes import Episodes, EpisodeSpec
from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.methods import Method, make_method
from fewcal.stats import CalibrationBins, class_bootstrap, paired_table, per_class_accuracy, summarise

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
        if isinstance(self.tasks, bool) or self.tasks < 1:
            raise InputError(f"tasks={self.tasks!r} must be at least 1")
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
    seconds : dict of float, time spent in each method
    settings : dict of dict, parameters of each method
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
    methods: Sequence[str] | Mapping[str, Method],
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
    features : FeatureSet or folder
    protocol : Protocol
    device : "cpu", "cuda", "auto"
    out : folder or None
        Where the run is kept. It must be new or empty unless `resume`.
    resume : bool
        Continue the run in `out`; its protocol, methods and features must be the same.
    episodes : Episodes or None
        A fixed list of tasks (see `Episodes.load`) instead of drawn ones.
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
    named = dict(methods) if isinstance(methods, Mapping) else {name: make_method(name) for name in methods}
    if not named:
        raise InputError("no methods were given; choose some of those that `fewcal evaluate --help` lists")
    split = fs.split(protocol.split)
    has_base = fs.base is not None and protocol.split != "base"
    check_methods(named, has_base)
    base = (fs.base.features, fs.base.require_labels()) if has_base and fs.base is not None else None
    labels = split.require_labels()
    spec = protocol.spec
    if episodes is not None:
        if protocol.tasks > len(episodes):
            raise InputError(f"{protocol.tasks} tasks were asked for, but the list has {len(episodes)}; lower tasks")
        spec = episodes.spec
        protocol = dataclasses.replace(
            protocol, way=spec.way, shot=spec.shot, query=spec.query, seed=spec.seed, replacement=spec.replacement
        )
    chosen = pick_device(device)
    identity = _identity(fs, protocol, named, episodes)
    token = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest() + str(chosen)
    job = Job(base, split.features, labels, named, spec, episodes, str(chosen), token)

    from fewcal.runs import Run, environment
    from fewcal.scale import run_blocks

    run = None if out is None else Run.open(Path(out), identity, resume=resume)
    engine = Engine(job)  # here for its batch sizes and its errors, before any worker is started
    sizes = engine.batch_sizes() if run is None else run.batches(engine.batch_sizes)
    job = dataclasses.replace(job, batches=sizes)
    engine.job = job
    finished: dict[int, Block] = {} if run is None else run.load_blocks(list(named))
    todo = [(a, b) for a, b in blocks(protocol.tasks, BLOCK_TASKS) if a not in finished]
    done = sum(b - a for a, b in blocks(protocol.tasks, BLOCK_TASKS) if a in finished)
    if progress is not None:
        progress(done, protocol.tasks)
    for block in run_blocks(job, todo, engine=engine, n_jobs=n_jobs, scheduler=scheduler):
        finished[block.start] = block
        if run is not None:
            run.save_block(block)
        done += block.stop - block.start
        if progress is not None:
            progress(done, protocol.tasks)
    results = _assemble(protocol, split.classes, finished, named, identity)
    if run is not None:
        run.finish(results, environment(chosen))
    return results


def _identity(
    fs: FeatureSet, protocol: Protocol, methods: Mapping[str, Method], episodes: Episodes | None
) -> dict[str, Any]:
    """What a run's numbers depend on, in plain values."""
    fingerprints = {name: fs.split(name).fingerprint() for name in ("base", protocol.split) if name in fs.splits()}
    fixed = None
    if episodes is not None:
        rows = np.concatenate([episodes.support.ravel(), episodes.query.ravel()])
        fixed = hashlib.sha256(rows.tobytes()).hexdigest()
    return {
        "protocol": protocol.to_dict(),
        "features": fingerprints,
        "episodes": fixed,
        "methods": {name: {"method": m.name, **m.settings} for name, m in methods.items()},
        "class_names": fs.split(protocol.split).classes,
    }


def _assemble(
    protocol: Protocol,
    class_names: list[str],
    finished: Mapping[int, Block],
    methods: Mapping[str, Method],
    identity: dict[str, Any],
) -> Results:
    ordered = [finished[start] for start in sorted(finished)]
    merged = {}
    for name in methods:
        total = CalibrationBins()
        for b in ordered:
            total = total.merge(b.bins[name])
        merged[name] = total
    return Results(
        protocol,
        list(class_names),
        np.concatenate([b.classes for b in ordered]),
        {name: np.concatenate([b.correct[name] for b in ordered]) for name in methods},
        merged,
        {name: sum(b.seconds[name] for b in ordered) for name in methods},
        {name: {"method": m.name, **m.settings} for name, m in methods.items()},
        identity,
    )
