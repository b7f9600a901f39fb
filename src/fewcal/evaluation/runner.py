"""`evaluate`: methods × tasks → accuracies of every task, the same tasks for every method.

It draws few-shot tasks, runs every method on each and keeps every accuracy. With `out` the run has a folder that grows
block by block; killed at any moment and resumed, it ends with the same numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.types import JSONObject, Progress, StrPath
from fewcal.episodes import Episodes, labels_fingerprint, sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation.engine import Block, Engine, Job, blocks, check_methods, method_settings
from fewcal.evaluation.executors import check_workers, run_blocks, torch_threads, worker_threads
from fewcal.evaluation.outcome import join
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.results import Results
from fewcal.evaluation.run_folder import Run, environment
from fewcal.features import FeatureSet
from fewcal.methods import Method, parse_methods


def evaluate(
    methods: str | Sequence[str] | Mapping[str, Method],
    features: FeatureSet | StrPath,
    protocol: Protocol | None = None,
    device: str | torch.device | None = None,
    *,
    out: StrPath | None = None,
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
        A name is one of `METHODS`, `gdc:PRESET`, or `module:Class` for a method of your own; a string may hold several
        with commas between them.
    features : FeatureSet or folder
    protocol : Protocol or None
        How tasks are drawn; None for 1000 tasks with 5 ways, 1 shot and 15 queries a class.
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
    >>> from fewcal.features.synthetic import make_features
    >>> fs = make_features(base=8, val=0, novel=6, rows=20, dim=6)
    >>> results = evaluate(["ncm", "gdc"], fs, Protocol(tasks=20, query=5))
    >>> results.accuracy("gdc").shape
    (20,)
    """
    check_workers(n_jobs, scheduler)
    fs = features if isinstance(features, FeatureSet) else FeatureSet.load(features)
    # Absolute, so that the run stays in one folder if the process changes its own.
    folder = None if out is None else Path(os.path.abspath(out))  # noqa: PTH100  (resolve would follow links)
    if folder is not None:
        Run.check(folder, resume=resume)  # refused before anything is loaded
    evaluation = _Evaluation(_named(methods), fs, protocol or Protocol(), device, episodes)
    if folder is None:
        return evaluation.results(None, n_jobs, scheduler, progress or _silent)
    with Run.open(folder, evaluation.identity, resume=resume) as run:
        return evaluation.results(run, n_jobs, scheduler, progress or _silent)


class _Evaluation:
    """An evaluation whose methods, features and tasks fit together."""

    def __init__(
        self,
        methods: dict[str, Method],
        features: FeatureSet,
        protocol: Protocol,
        device: str | torch.device | None,
        episodes: Episodes | None,
    ) -> None:
        split = features.split(protocol.split)
        base = features.base if protocol.split != "base" else None
        check_methods(methods, base is not None, protocol.split)
        labels = split.require_labels()
        if episodes is not None:
            episodes, protocol = _match_tasks(episodes, labels, protocol)
        else:
            sample_episodes(labels, protocol.spec, range(1), split.classes)  # refuses too few classes or rows
        self.protocol, self.device, self.class_names = protocol, pick_device(device), list(split.classes)
        self.identity = _identity(features, protocol, methods, episodes) | {
            "device": self.device.type  # it counts: CPU and CUDA draw other samples from the same seed
        }
        self.job = Job(
            None if base is None else (base.features, base.require_labels()),
            split.features,
            labels,
            methods,
            protocol.spec,
            episodes,
            str(self.device),
            uuid.uuid4().hex,
        )

    def results(self, run: Run | None, n_jobs: int, scheduler: str | None, progress: Progress) -> Results:
        """Compute what the folder of the run does not have yet."""
        total = self.protocol.tasks
        if run is not None and (complete := run.results()) is not None:
            progress(total, total)
            if not run.has_all_files:  # somebody removed a table, which the results suffice to make again
                run.finish(complete, environment(self.device))
            return complete
        # Sums over many threads round otherwise than over few: a run goes on with as many as it began with.
        threads = (run.threads if run is not None else None) or worker_threads(n_jobs, scheduler, total)
        with torch_threads(threads):
            return self._compute(run, n_jobs, scheduler, progress)

    def _compute(self, run: Run | None, n_jobs: int, scheduler: str | None, progress: Progress) -> Results:
        total, threads = self.protocol.tasks, torch.get_num_threads()
        engine = Engine(self.job)  # here for its plan and its errors, before any worker is started
        plan = engine.plan() if run is None else run.plan(lambda: engine.plan() | {"threads": threads})
        engine.job = job = dataclasses.replace(self.job, batches=plan["batches"])
        borders = list(blocks(total, plan["block"]))
        finished = {} if run is None else run.load_blocks(list(job.methods), borders)
        todo = [border for border in borders if border[0] not in finished]
        done = total - sum(b - a for a, b in todo)
        progress(done, total)
        found: Iterable[Block]
        if n_jobs == 1 and scheduler is None:
            found = (engine.run(start, stop) for start, stop in todo)
        else:
            found = run_blocks(job, todo, threads, n_jobs, scheduler)
        for block in found:
            finished[block.start] = block
            if run is not None:
                run.save_block(block)
            done += block.stop - block.start
            progress(done, total)
        results = Results(
            protocol=self.protocol,
            class_names=self.class_names,
            settings=plan["settings"],
            identity=self.identity,
            **join([finished[start] for start in sorted(finished)]),
        )
        if run is not None:
            run.finish(results, environment(self.device))
        return results


def _named(methods: str | Sequence[str] | Mapping[str, Method]) -> dict[str, Method]:
    if isinstance(methods, Mapping):
        named = dict(methods)
    else:
        named = parse_methods(methods if isinstance(methods, str) else ",".join(methods))
    if not named:
        raise InputError("no methods were given; choose some of those that `fewcal evaluate --help` lists")
    return named


def _identity(
    fs: FeatureSet, protocol: Protocol, methods: Mapping[str, Method], episodes: Episodes | None
) -> JSONObject:
    """What a run's numbers depend on, in plain values."""
    split = fs.split(protocol.split)
    return {
        "protocol": protocol.to_dict(),
        "features": {name: fs.split(name).fingerprint() for name in ("base", protocol.split) if name in fs.splits()},
        "episodes": None if episodes is None else _tasks_fingerprint(episodes, split.require_labels()),
        "methods": method_settings(methods),
        "class_names": split.classes,
    }


def _match_tasks(episodes: Episodes, labels: np.ndarray, protocol: Protocol) -> tuple[Episodes, Protocol]:
    """The first tasks of a list, and the protocol that describes them."""
    if protocol.tasks > len(episodes):
        raise InputError(f"the protocol has {protocol.tasks} tasks, but the list has {len(episodes)}; lower tasks")
    if labels_fingerprint(labels) != episodes.labels_fingerprint:
        raise InputError(
            f"the list of tasks was drawn from other labels than those of split {protocol.split!r}; "
            "use the split it was made for, or sample the tasks again"
        )
    return episodes[: protocol.tasks], dataclasses.replace(protocol, **dataclasses.asdict(episodes.spec))


def _tasks_fingerprint(episodes: Episodes, labels: np.ndarray) -> str | None:
    """A digest of a list of tasks; None for those that the protocol would draw, which are the same run."""
    drawn = sample_episodes(labels, episodes.spec, range(len(episodes)))
    parts = ("task_ids", "support", "query", "outliers")
    if all(np.array_equal(getattr(episodes, p), getattr(drawn, p)) for p in parts):
        return None
    rows = np.concatenate([getattr(episodes, p).ravel() for p in parts])
    return hashlib.sha256(rows.tobytes()).hexdigest()


def _silent(done: int, total: int) -> None:
    pass
