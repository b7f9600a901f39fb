"""Features in the background: one thread that takes what waits, shows its progress, and outlives every bad file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewcal.apply.studio.intake import inside
from fewcal.apply.studio.store import Item, ProjectStore
from fewcal.errors import FewcalError, InputError
from fewcal.features.extractors import Extractor

BATCH = 16


@dataclass(frozen=True)
class Progress:
    """How far the features are: items done and in all, seconds left (None as long as that is open), what is wrong."""

    done: int
    total: int
    seconds_left: float | None
    stage: str  # "idle", "loading" (the network), "working" or "stopped"
    error: str | None = None


class Embedder:
    """Runs an extractor over the waiting items of a store, in a thread.

    Parameters
    ----------
    make : gives the extractor, called once in the thread, since networks take seconds to load; it lets items wait that
        have features of another one
    keep : takes the features of a batch, by item, and what is wrong with others of it
    changed : called when the stage changes
    """

    def __init__(
        self,
        store: ProjectStore,
        folder: Path,
        make: Callable[[], Extractor],
        keep: Callable[[dict[int, np.ndarray], dict[int, str]], None],
        changed: Callable[[], None],
    ) -> None:
        self._store, self._folder, self._make, self._keep, self._changed = store, folder, make, keep, changed
        self._news, self._stop = threading.Event(), False
        self._stage, self._rate = "idle", 0.0  # items a second
        self._error: str | None = None
        self._extractor: Extractor | None = None
        self._files: dict[int, tuple[int, int] | None] = {}  # as they were before they were read
        self._thread = threading.Thread(target=self._run, name="fewcal-embedder", daemon=True)
        self.start = self._thread.start
        self.wake = self._news.set

    def stop(self) -> None:
        """Finish the batch at hand and end."""
        self._stop = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def outdated(self, item: Item) -> bool:
        """Whether the file of an item has changed since it was read."""
        return item.id in self._files and self._files[item.id] != self._version(item)

    def _version(self, item: Item) -> tuple[int, int] | None:
        try:
            found = inside(self._folder, item.name).stat()
        except (InputError, OSError):
            return None
        return found.st_mtime_ns, found.st_size

    def progress(self) -> Progress:
        waiting, ready, failed = map(self._store.count, ("waiting", "ready", "failed"))
        left = 0.0 if not waiting else waiting / self._rate if self._rate else None
        return Progress(ready + failed, waiting + ready + failed, left, self._stage, self._error)

    def _set(self, stage: str, error: str | None = None) -> None:
        self._stage, self._error = stage, error
        self._changed()

    def _run(self) -> None:
        while not self._stop:
            self._news.clear()
            try:
                self._work()
            except Exception as error:
                # Without an extractor nothing can be done until the next start; a full disk may have room again.
                reason = str(error) if isinstance(error, FewcalError) else f"unexpected {type(error).__name__}: {error}"
                self._set("stopped", reason)
                if self._extractor is None:
                    return
            self._news.wait()

    def _work(self) -> None:
        while not self._stop and self._store.count("waiting"):
            if self._extractor is None:
                self._set("loading")
                self._extractor = self._make()
            self._stage = "working"
            began, batch = time.monotonic(), self._store.waiting(BATCH)
            features, errors = self._features(self._extractor, batch)
            rate = len(batch) / max(time.monotonic() - began, 1e-6)
            self._rate = 0.7 * (self._rate or rate) + 0.3 * rate
            self._keep(features, errors)
        if self._stage != "idle":
            self._set("idle")

    def _features(self, extractor: Extractor, batch: list[Item]) -> tuple[dict[int, np.ndarray], dict[int, str]]:
        ready, errors = {}, {}
        for item in batch:
            try:
                ready[item.id] = self._prepared(extractor, item)
            except InputError as error:
                errors[item.id] = str(error)
        if not ready:
            return {}, errors
        rows = extractor(list(ready.values()))
        good = np.isfinite(rows).all(axis=1)
        features = {i: row for i, row, ok in zip(ready, rows, good, strict=True) if ok}
        errors |= {i: f"{extractor.name} gave no finite features" for i in ready if i not in features}
        return features, errors

    def _prepared(self, extractor: Extractor, item: Item) -> np.ndarray | str:
        if (item.text is None) != (extractor.kind == "picture"):
            raise InputError(f"{extractor.name} takes {extractor.kind}s")
        if item.text is not None:
            return item.text
        self._files[item.id] = self._version(item)
        return extractor.decode(inside(self._folder, item.name), item.name)
