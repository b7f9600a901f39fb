"""Fixed lists of tasks: read, checked against features and a protocol, saved."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace

import numpy as np

from fewcal._utils.types import StrPath
from fewcal.episodes import Episodes, labels_fingerprint, sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation.protocol import Protocol
from fewcal.features import FeatureSet


def load_tasks(
    path: StrPath, features: FeatureSet, protocol: Protocol, tasks: int | None = None
) -> tuple[Episodes, Protocol]:
    """The list of tasks in a file, and the protocol with `tasks` of them, or all."""
    episodes = Episodes.load(path, features.split(protocol.split).require_labels())
    return episodes, replace(protocol, tasks=len(episodes) if tasks is None else tasks)


def save_tasks(path: StrPath, features: FeatureSet, protocol: Protocol) -> None:
    """Draw the tasks of a protocol and save them for later runs."""
    labels = features.split(protocol.split).require_labels()
    sample_episodes(labels, protocol.spec, range(protocol.tasks)).save(path)


def match_tasks(episodes: Episodes, labels: np.ndarray, protocol: Protocol) -> tuple[Episodes, Protocol]:
    """The first tasks of a list, and the protocol that describes them."""
    if protocol.tasks > len(episodes):
        raise InputError(f"the protocol has {protocol.tasks} tasks, but the list has {len(episodes)}; lower tasks")
    if labels_fingerprint(labels) != episodes.labels_fingerprint:
        raise InputError(
            f"the list of tasks was drawn from other labels than those of split {protocol.split!r}; "
            "use the split it was made for, or sample the tasks again"
        )
    return episodes[: protocol.tasks], replace(protocol, **asdict(episodes.spec))


def tasks_fingerprint(episodes: Episodes, labels: np.ndarray) -> str | None:
    """A digest that tells a list of tasks from drawn ones; None where drawing gives the same, and so the same run."""
    drawn = sample_episodes(labels, episodes.spec, range(len(episodes)))
    parts = ("task_ids", "support", "query", "outliers")
    if all(np.array_equal(getattr(episodes, p), getattr(drawn, p)) for p in parts):
        return None
    rows = np.concatenate([getattr(episodes, p).ravel() for p in parts])
    return hashlib.sha256(rows.tobytes()).hexdigest()
