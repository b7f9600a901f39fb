"""Accuracies of methods on tasks that stay the same: the only module here that knows the engine of `evaluate`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol
from fewcal.evaluation.engine import Engine, Job
from fewcal.features import FeatureSet
from fewcal.methods import Method

# Of what a bank remembers of earlier trials: bytes of its rows in other spaces, and number of all values.
SPACES_BYTES, MEMO_VALUES = 1 << 30, 100


class TaskRunner:
    """A bank, features and tasks, made ready once for any number of methods.

    Parameters
    ----------
    features : FeatureSet
    protocol : Protocol
        How tasks are drawn, from classes outside the bank.
    device : str
    bank : BaseBank or None
        The base classes, if they are ready.
    """

    def __init__(self, features: FeatureSet, protocol: Protocol, device: str, bank: BaseBank | None = None) -> None:
        if protocol.split == "base":
            raise InputError("tasks of a search are drawn from classes outside the bank; use split='val'")
        base, split = features.split("base"), features.split(protocol.split)
        labels = split.require_labels()
        sample_episodes(labels, protocol.spec, range(1), split.classes)  # raises if classes or rows do not suffice
        rows = (base.features, base.require_labels())
        self.tasks = protocol.tasks
        self.engine = Engine(Job(rows, split.features, labels, {}, protocol.spec, None, device, "tuning"), bank)
        assert self.engine.bank is not None
        self.bank: BaseBank = self.engine.bank

    def run(self, method: Method, size: int | None = None) -> Iterator[np.ndarray]:
        """Accuracies of `size` tasks at a time; of all at once without `size`, and on a GPU, where that is as fast."""
        if size is None or self.engine.device.type != "cpu":
            size = self.tasks
        self.bank.forget_spaces(SPACES_BYTES)
        self.bank.memo.keep_last(MEMO_VALUES)
        with _ignore_advice():
            engine = self.engine.with_methods({"trial": method})
        queries = engine.job.spec.way * engine.job.spec.query
        for start in range(0, self.tasks, size):
            with _ignore_advice():
                block = engine.run(start, min(start + size, self.tasks))
            yield block.correct["trial"].sum(axis=1) / queries

    def accuracy(self, method: Method) -> np.ndarray:
        """The accuracy of every task, `(T,)`."""
        return np.concatenate(list(self.run(method)))


@contextmanager
def _ignore_advice() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)  # a clipped α2 of one trial in a thousand is expected
        yield
