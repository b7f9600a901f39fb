"""Right answers of methods on the first tasks of a split, each computed once in a run and kept in its folder.

The tables and figures of the paper have many settings in common, and the same search comes several times. What was
computed for one of them is taken up by the next, also after a kill: one line of `OUT/evaluations.jsonl` for each.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewcal._version import __version__
from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalError, InputError
from fewcal.evaluation import Protocol
from fewcal.evaluation.engine import Engine, Job, blocks, check_methods, method_settings
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import Method

FILE = "evaluations.jsonl"
# Memory for spaces of a bank that may be asked for again.
_SPACES_BYTES = 3 << 30


@dataclass(frozen=True)
class Evaluated:
    """Right answers of every task, the parameters as the bank has them, and the seconds that it took."""

    correct: list[int]
    settings: dict[str, object]
    seconds: float

    def first(self, tasks: int) -> Evaluated:
        """The same for the first tasks alone."""
        return replace(self, correct=self.correct[:tasks], seconds=self.seconds * tasks / len(self.correct))


class _Ready(NamedTuple):
    """Bank and engines of one feature set on one device; engines by split and kind of task."""

    base: str
    bank: BaseBank | None
    engines: dict[object, Engine]


class Evaluations:
    """What was computed so far, in memory and in a file; and bank and features of the last feature set, made ready.

    >>> from fewcal.features.synthetic import make_features
    >>> from fewcal.methods import make_method
    >>> features, made = make_features(base=8, val=0, novel=6, rows=20, dim=6), Evaluations()
    >>> many = made.run({"a": make_method("ncm")}, features, Protocol(tasks=6))["a"]
    >>> few = made.run({"b": make_method("ncm")}, features, Protocol(tasks=4))["b"]
    >>> few.correct == many.correct[:4]
    True
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._found: dict[str, Evaluated] = {} if file is None else _read(file)
        self._ready: dict[str, _Ready] = {}
        self._prints: dict[int, tuple[FeatureSplit, str]] = {}

    def fingerprint(self, split: FeatureSplit | None) -> str:
        """The fingerprint of a split, computed once; "" for none."""
        if split is None:
            return ""
        known = self._prints.get(id(split))  # the split is kept beside it, so that no other has its id
        if known is None:
            known = self._prints[id(split)] = (split, split.fingerprint())
        return known[1]

    def bank(self, features: FeatureSet, device: str = "cpu") -> BaseBank:
        """The base classes as a bank, which keeps the spaces that methods ask it for."""
        bank = self._made_ready(features, device).bank
        if bank is None:
            raise InputError("the paper's figures need base classes; add a base split to the features")
        return bank

    def run(
        self, methods: Mapping[str, Method], features: FeatureSet, protocol: Protocol, device: str = "cpu"
    ) -> dict[str, Evaluated]:
        """Methods on the tasks of a protocol; what is known of them is not computed again."""
        keys = {name: self._key(method, features, protocol, device) for name, method in methods.items()}
        missing: dict[str, str] = {}  # the first name of each setting that is not known
        for name, key in keys.items():
            if key not in self._found or len(self._found[key].correct) < protocol.tasks:
                missing.setdefault(key, name)
        if missing:
            computed = self._compute({n: methods[n] for n in missing.values()}, features, protocol, device)
            self._keep({key: computed[name] for key, name in missing.items()})
        return {name: self._found[key].first(protocol.tasks) for name, key in keys.items()}

    def _key(self, method: Method, features: FeatureSet, protocol: Protocol, device: str) -> str:
        """Everything that the numbers depend on, except for the number of tasks."""
        kind = type(method)
        parts = {
            "fewcal": __version__,
            "device": device.partition(":")[0],  # CPU and CUDA draw other points from the same seed
            "features": [self.fingerprint(features.base), self.fingerprint(features.split(protocol.split))],
            "protocol": {name: v for name, v in protocol.to_dict().items() if name != "tasks"},
            "method": [kind.__module__, kind.__qualname__, method.settings],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def _made_ready(self, features: FeatureSet, device: str) -> _Ready:
        """Bank and engines of a feature set; those of the last one are dropped."""
        base = features.base
        mark = self.fingerprint(base)
        known = self._ready.get(device)
        if known is None or known.base != mark:
            bank = None if base is None else BaseBank().fit(base.features, base.require_labels(), device=device)
            known = self._ready[device] = _Ready(mark, bank, {})
        return known

    def _engine(self, features: FeatureSet, protocol: Protocol, device: str) -> Engine:
        """The tasks of a protocol made ready, without a method."""
        ready = self._made_ready(features, device)
        rows = features.split(protocol.split)
        labels, spec, tasks = rows.require_labels(), protocol.spec, protocol.tasks
        key = (self.fingerprint(rows), spec)
        engine = ready.engines.get(key)
        if engine is None or len(engine.job.episodes or ()) < tasks:
            episodes = sample_episodes(labels, spec, range(tasks), rows.classes)
            job = Job(None, rows.features, labels, {}, spec, episodes, device, "paper")
            engine = ready.engines[key] = Engine(job, ready.bank)
        return engine

    def _compute(
        self, methods: dict[str, Method], features: FeatureSet, protocol: Protocol, device: str
    ) -> dict[str, Evaluated]:
        check_methods(methods, features.base is not None, protocol.split)
        engine = self._engine(features, protocol, device)
        if engine.bank is not None:
            engine.bank.forget_spaces(_SPACES_BYTES)
        engine = engine.with_methods(methods)
        # Few tasks of a slow method would be one batch, and keep one core busy.
        each = -(-protocol.tasks // engine.threads)
        engine.job = replace(engine.job, batches={n: min(size, each) for n, size in engine.job.batches.items()})
        found = [engine.run(start, stop) for start, stop in blocks(protocol.tasks, engine.block_tasks)]
        settings = method_settings(engine.methods)
        return {
            name: Evaluated(
                np.concatenate([block.correct[name].sum(axis=1) for block in found]).tolist(),
                settings[name],
                sum(block.seconds[name] for block in found),
            )
            for name in methods
        }

    def _keep(self, found: Mapping[str, Evaluated]) -> None:
        self._found |= found
        if self.file is None:
            return
        lines = [json.dumps({"key": key, **_plain(one)}, ensure_ascii=False, default=str) for key, one in found.items()]
        try:
            with self.file.open("ab") as file:  # on a line of its own, where a kill left half of one behind
                file.write(("\n" + "\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise FewcalError(
                f"cannot write {self.file}: {error.strerror or error}; what is finished is kept: make room and --resume"
            ) from error


# ---- in a file ------------------------------------------------------------------------------------------------------


def _plain(one: Evaluated) -> dict[str, object]:
    counts = np.array(one.correct, "<u2").tobytes()
    return {"correct": base64.b64encode(counts).decode(), "settings": one.settings, "seconds": round(one.seconds, 4)}


def _read(file: Path) -> dict[str, Evaluated]:
    """What a file holds; lines that a kill or a full disk cut short count for nothing."""
    found: dict[str, Evaluated] = {}
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return found
    for line in lines:
        try:
            one = json.loads(line)
            counts = np.frombuffer(base64.b64decode(one["correct"], validate=True), "<u2")
            made = Evaluated(counts.tolist(), dict(one["settings"]), float(one["seconds"]))
            known = found.get(one["key"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if made.correct and (known is None or len(known.correct) < len(made.correct)):
            found[one["key"]] = made
    return found
