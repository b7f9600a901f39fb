"""Runs that belong together: those on the same tasks, with the features that they were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.evaluation import Results, Summary, load_run
from fewcal.evaluation.run_folder import merge_runs, task_identity
from fewcal.features import FeatureSet


@dataclass(frozen=True, eq=False)
class Group:
    """Runs on the same tasks, as one.

    Attributes
    ----------
    title : str, the names of the runs
    folders : list of Path
    results : Results, with the methods of all runs
    summary : Summary
    features : FeatureSet or None, those that the runs were made with, where they were given
    """

    title: str
    folders: list[Path]
    results: Results
    summary: Summary
    features: FeatureSet | None = None

    @property
    def protocol(self) -> str:
        """Its tasks in a few words."""
        p = self.results.protocol
        pool = "" if p.spec.is_balanced else f", {p.pool}"
        return f"{p.shape}{pool}, {p.tasks} tasks from {p.split}"

    @property
    def best(self) -> str:
        """The best inductive method."""
        return self.summary.best

    def hardest(self, count: int, name: str | None = None) -> np.ndarray:
        """Tasks with the lowest accuracy of a method, by default the best one; of equals the first."""
        order: np.ndarray = np.argsort(self.results.accuracy(name or self.best), kind="stable")[:count]
        return order


def group_runs(
    runs: Sequence[StrPath],
    reference: str | None = None,
    features: Sequence[StrPath] = (),
) -> list[Group]:
    """Finished runs, those on the same tasks together, in the order given, each with its features if they are there."""
    if not runs:
        raise InputError("no runs were given; name folders made by `fewcal evaluate --out`")
    folders = [Path(r) for r in runs]
    if len({f.resolve() for f in folders}) < len(folders):
        raise InputError("a run is named twice; name each folder once")
    loaded = {folder: load_run(folder) for folder in folders}
    together: dict[str, list[Path]] = {}
    for folder, results in loaded.items():
        together.setdefault(json.dumps(task_identity(results), sort_keys=True), []).append(folder)
    given = {Path(f): FeatureSet.load(f) for f in features}
    used: set[Path] = set()
    groups = []
    for members in together.values():
        merged = merge_runs({str(f): loaded[f] for f in members})
        if reference is not None and reference not in merged.correct:
            raise InputError(f"reference {reference!r} is not among {', '.join(merged.correct)} of {members[0]}")
        found = _own_features([loaded[f] for f in members], given, used)
        title = " + ".join(f.resolve().name for f in members)
        groups.append(Group(title, members, merged, merged.summary(reference), found))
    if unused := [f for f in given if f not in used]:
        raise InputError(
            f"no run was made with the features in {unused[0]} (their fingerprints differ); "
            "give the folder that the run was evaluated on, or leave --features out"
        )
    return groups


def _own_features(runs: Sequence[Results], given: Mapping[Path, FeatureSet], used: set[Path]) -> FeatureSet | None:
    """The features that all these runs were made with: runs on the same tasks may differ in their base classes."""
    found = None
    for folder, features in given.items():
        digests = {name: part.fingerprint() for name, part in features.splits().items()}
        fits = [r.identity["features"].items() <= digests.items() for r in runs]
        if any(fits):
            used.add(folder)
        if all(fits):
            found = features
    return found
