"""Extraction: from a source of pictures or texts to feature files, in batches, in parallel, and safe against kills.

While it runs, features grow in a `PartFile` beside the target, which one process at a time may write. Batches begin at
fixed places, so that a run that was interrupted and continued gives the same bytes as one that was not. The finished
file is an `.npz` that every command reads (`features`, `labels`, `classes`); it also holds `names`, the item of each
row, and `extractor`, so that features of different extractors are not mixed by accident.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TypeAlias, TypedDict

import numpy as np
import torch

from fewcal._utils.atomic import atomic_path
from fewcal._utils.folder_lock import file_lock
from fewcal._utils.npz import read_npz
from fewcal._utils.types import Progress, StrPath
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.extractors import Extractor
from fewcal.features.featureset import SPLITS, FeatureSplit
from fewcal.features.part_file import PartFile, check_identity
from fewcal.features.sources.find import find_items
from fewcal.features.sources.items import LEAVE_OUT, Items, decoded, refuse_bad
from fewcal.features.sources.pictures import class_folders

# Seconds between the moments from which a killed run can go on.
SAVE_EVERY = 5.0


# ---- sources --------------------------------------------------------------------------------------------------------


def find_splits(
    source: StrPath, kind: str, labelled: bool = True, text: str = "text", label: str = "label"
) -> dict[str, Items]:
    """The splits of a source by name (base, val, novel), or all of it under the name "features".

    A folder has splits if it holds folders or files of those names (also `cub_base.npz`), a list if it has a column
    `split`.
    """
    path = Path(source)
    found: dict[str, Items] = {}
    if path.is_dir():
        folders = [p for p in class_folders(path) if p.name in SPLITS]
        if len(folders) < len(class_folders(path)):
            folders = []  # class folders, one of which happens to be called like a split
        files = [p for p in path.iterdir() if p.is_file() and p.suffix in (".csv", ".npz", ".jsonl")]
        # base.npz, or cub_base.npz
        places = {p.stem.rpartition("_")[2]: p for p in sorted([*files, *folders])}
        found = {name: find_items(places[name], kind, labelled, text, label) for name in SPLITS if name in places}
    if not found:
        whole = find_items(path, kind, labelled, text, label)
        if whole.splits is None:
            return {"features": whole}
        if wrong := sorted(set(whole.splits) - set(SPLITS)):
            raise InputError(f"{path}: split {wrong[0]!r} is unknown; the splits are {', '.join(SPLITS)}")
        for name in SPLITS:
            if rows := [i for i, split in enumerate(whole.splits) if split == name]:
                found[name] = whole.take(rows)
    for (a, first), (b, second) in combinations(found.items(), 2):
        if shared := sorted(set(first.classes) & set(second.classes)):
            raise InputError(f"{path}: class {shared[0]!r} is in both {a} and {b}; a class belongs to one split")
    return found


def checked_dtype(dtype: str) -> str:
    """How features are stored."""
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype={dtype!r} must be 'float32' or 'float16'")
    return dtype


# ---- in memory ------------------------------------------------------------------------------------------------------


def embed(
    items: Items,
    extractor: Extractor,
    *,
    batch: int = 32,
    workers: int | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> tuple[np.ndarray, Items]:
    """Features `(R, D)` of the items, and the items they belong to: all, or with `skip_bad` those that can be read.

    >>> from fewcal.features.extractors import as_extractor
    >>> from fewcal.features.sources.texts import Texts
    >>> length = as_extractor(lambda texts: [[len(t)] for t in texts], name="length", kind="text")
    >>> embed(Texts(["a", "b"], None, None, "here", ["one", "three"]), length)[0].tolist()
    [[3.0], [5.0]]
    """
    rows, errors, kept = [], [], []
    for done in _batches(items, extractor, _starts(len(items), batch), batch, workers):
        rows.append(done.features)
        kept += done.rows
        errors += list(done.errors.values())
        if progress is not None:
            progress(done.stop, len(items))
    if not skip_bad or not kept:
        refuse_bad(errors, len(items), LEAVE_OUT)
    if errors:
        shown = "; ".join(str(error) for error in errors[:3]) + ("; …" if len(errors) > 3 else "")
        warnings.warn(f"left out {len(errors)} of {len(items)}: {shown}", FewcalWarning, stacklevel=2)
    return np.concatenate(rows), items.take(kept)


@dataclass(frozen=True)
class _Batch:
    start: int
    stop: int
    rows: list[int]  # those that could be read
    features: np.ndarray  # theirs
    errors: dict[int, InputError]  # of the others


def _starts(total: int, batch: int) -> range:
    if batch < 1:
        raise InputError(f"batch={batch} must be at least 1")
    return range(0, total, batch)


def _batches(
    items: Items, extractor: Extractor, starts: range | list[int], batch: int, workers: int | None
) -> Iterator[_Batch]:
    """The batches that begin at `starts`, in order; reading goes on for the next while some are computed."""
    if items.kind != extractor.kind:
        raise InputError(f"{extractor.name} takes {extractor.kind}s and {items.source} holds {items.kind}s")
    together = 2 + torch.get_num_threads() // 8 if extractor.concurrent else 1
    read = _read_batches(items, extractor, starts, batch, workers, ahead=(1 + together) * batch)
    if together == 1:
        yield from (_computed(items, extractor, *one) for one in read)
        return
    # The last pieces of a batch leave threads without work, which the next one has.
    for done in decoded(read, lambda one: _computed(items, extractor, *one), together, together):
        if isinstance(done, InputError):
            raise done
        yield done


_Read: TypeAlias = tuple[range, dict[int, np.ndarray | str], dict[int, InputError]]


def _read_batches(
    items: Items, extractor: Extractor, starts: range | list[int], batch: int, workers: int | None, ahead: int
) -> Iterator[_Read]:
    """For each batch its indices, the items that could be read, and why the others could not."""
    batches = [range(start, min(start + batch, len(items))) for start in starts]
    indices = [i for one in batches for i in one]
    stream = decoded(indices, lambda i: extractor.prepare(items, i), workers, ahead)
    for one in batches:
        found = {i: next(stream) for i in one}
        errors = {i: item for i, item in found.items() if isinstance(item, InputError)}
        yield one, {i: item for i, item in found.items() if not isinstance(item, InputError)}, errors


def _computed(
    items: Items,
    extractor: Extractor,
    indices: range,
    ready: dict[int, np.ndarray | str],
    errors: dict[int, InputError],
) -> _Batch:
    rows = list(ready)
    features = extractor(list(ready.values())) if ready else np.empty((0, extractor.dim), np.float32)
    if (wrong := ~np.isfinite(features).all(axis=1)).any():
        raise InputError(
            f"extractor {extractor.name} gave NaN or infinity for {items.names[rows[int(wrong.argmax())]]}"
        )
    return _Batch(indices.start, indices.stop, rows, features, errors)


# ---- to a file ------------------------------------------------------------------------------------------------------


class Extracted(TypedDict):
    """Facts about a feature file: what it holds, who made it, and the items left out."""

    file: str
    rows: int
    classes: int
    features: int
    extractor: str
    skipped: list[str]


def extract(
    items: Items,
    extractor: Extractor,
    target: StrPath,
    *,
    batch: int = 32,
    workers: int | None = None,
    skip_bad: bool = False,
    resume: bool = False,
    dtype: str = "float32",
    progress: Progress | None = None,
) -> Extracted:
    """Write the features of the items to `target`, an `.npz`; returns facts about it.

    Items that cannot be read do not stop the others. At the end they are listed all at once as an error, and
    everything else is kept: fix them and resume, or resume with `skip_bad`. Resuming takes the batch size of
    the first start.
    """
    target = Path(target)
    if target.suffix != ".npz":
        raise InputError(f"{target}: features are extracted into .npz files")
    checked_dtype(dtype)
    _starts(1, batch)
    with file_lock(target) as lock:
        job = _Extraction(target, items, extractor, dtype)
        if target.exists():
            if not resume:
                raise InputError(f"{target} is there already; resume, remove it, or choose another place")
            return job.finished()
        job.run(batch, workers, resume, progress)
        lock.check()
        return job.finish(skip_bad)


class _Extraction:
    """One target, its items and their extractor."""

    def __init__(self, target: Path, items: Items, extractor: Extractor, dtype: str) -> None:
        self.target, self.items, self.extractor = target, items, extractor
        self.identity = {
            "extractor": extractor.stamp,
            "source": items.fingerprint(),
            "rows": len(items),
            "dim": extractor.dim,
            "dtype": dtype,
        }
        self.part = PartFile(target, self.identity, (len(items), extractor.dim), dtype)

    def run(self, batch: int, workers: int | None, resume: bool, progress: Progress | None) -> None:
        """Compute the batches that are not there yet; what could not be saved at the end is computed again."""
        self.part.open(batch, resume)
        saved = time.monotonic()
        try:
            for done in _batches(self.items, self.extractor, self.part.left(), self.part.batch, workers):
                errors = {i: str(error) for i, error in done.errors.items()}
                self.part.put(done.start, done.stop, done.rows, done.features, errors)
                if time.monotonic() - saved >= SAVE_EVERY:
                    self.part.save()
                    saved = time.monotonic()
                if progress is not None:
                    progress(self.part.done, len(self.items))
        except BaseException:
            with suppress(InputError):  # the first error is the one to tell
                self.part.save()
            self.part.close()
            raise
        self.part.save()

    def finish(self, skip_bad: bool) -> Extracted:
        """Write the target, or the list of what could not be read."""
        bad, total = self.part.bad, len(self.items)
        listing = self.target.with_name(f"{self.target.stem}.unreadable.txt")
        if bad and (not skip_bad or len(bad) == total):
            self.part.close()
            with atomic_path(listing) as temporary:
                lines = "".join(f"{m}\n" for m in bad.values())
                temporary.write_text(lines, encoding="utf-8", errors="backslashreplace")
            refuse_bad(
                [InputError(m) for m in bad.values()],
                total,
                f"fix them and resume, or leave them out (--resume --skip-bad); all in {listing}",
            )
        kept = [i for i in range(total) if i not in bad]
        items = self.items.take(kept)
        features = self.part.array()
        arrays: dict[str, np.ndarray] = {"features": features if len(kept) == total else features[kept]}
        if items.labels is not None:
            arrays |= {"labels": items.label_codes(), "classes": np.array(items.classes)}
        arrays |= {
            "names": np.array(items.names),
            "extractor": np.array(self.extractor.stamp),
            "source": np.array(self.identity["source"]),
        }
        with atomic_path(self.target) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        self.part.remove()
        listing.unlink(missing_ok=True)
        return self._facts(len(kept), len(items.classes), list(bad.values()))

    def finished(self) -> Extracted:
        """Facts about a target that is there already, if it is what this run would write."""
        found = read_npz(self.target, ("extractor", "source", "labels", "names"))
        there = {k: str(found.get(k)) for k in ("extractor", "source")}
        check_identity(self.target, self.identity, {**self.identity, **there})
        classes = len(np.unique(found["labels"])) if "labels" in found else 0
        return self._facts(len(found["names"]), classes, [])

    def _facts(self, rows: int, classes: int, skipped: list[str]) -> Extracted:
        return {
            "file": str(self.target),
            "rows": rows,
            "classes": classes,
            "features": self.extractor.dim,
            "extractor": self.extractor.stamp,
            "skipped": skipped,
        }


def extractor_of(path: StrPath) -> str | None:
    """The stamp of the extractor that made a feature file, where the file says so."""
    if Path(path).suffix.lower() != ".npz":
        return None
    stamp = read_npz(Path(path), ("extractor",)).get("extractor")
    return None if stamp is None else str(stamp)


def bank_source(split: FeatureSplit) -> str:
    """What a bank keeps of where its rows come from: the extractor, where their file says so, and their fingerprint."""
    stamp = extractor_of(split.source)
    return split.fingerprint() if stamp is None else f"{stamp} {split.fingerprint()}"
