"""Extraction: from pictures or texts to features, in memory or in files that survive a kill.

Batches begin at fixed places, so a run that was interrupted and resumed gives the bytes of one that was not. The
finished file is an `.npz` that every command reads (`features`, `labels`, `classes`). It also holds `names`, the item
of each row, and `extractor`, so that features of different extractors are not mixed by accident.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from fewcal._utils.atomic import atomic_path
from fewcal._utils.folder_lock import file_lock
from fewcal._utils.npz import read_npz
from fewcal._utils.types import JSONObject, Progress, StrPath
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.extractors import Extractor
from fewcal.features.featureset import SPLITS, FeatureSplit
from fewcal.features.parts import Parts, check_identity
from fewcal.features.sources.find import find_items
from fewcal.features.sources.items import LEAVE_OUT, Items, decoded, refuse_bad
from fewcal.features.sources.pictures import class_folders


def find_splits(
    source: StrPath, kind: str, labelled: bool = True, text: str = "text", label: str = "label"
) -> dict[str, Items]:
    """Return the splits of a source by name (base, val, novel), or all of it under the name "features".

    A folder has splits if it holds folders or files of those names (also `cub_base.npz`), a list if it has a column
    `split`.
    """
    path = Path(source)
    found: dict[str, Items] = {}
    if path.is_dir():
        places: dict[str, Path] = {}
        folders = class_folders(path)
        if any(_split_name(folder) is None for folder in folders):  # classes, one of which may be called like a split
            folders = []
        for place in [*folders, *(p for p in sorted(path.iterdir()) if p.suffix in (".csv", ".npz", ".jsonl"))]:
            if (name := _split_name(place)) is None:
                continue
            if name in places:
                raise InputError(f"{path} holds both {places[name].name} and {place.name}; keep one")
            places[name] = place
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


def _split_name(place: Path) -> str | None:
    """Return the split that a file or folder is called after: `base.csv`, `cub_base.npz`, `base/`."""
    name = (place.name if place.is_dir() else place.stem).rpartition("_")[2]
    return name if name in SPLITS else None


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
    """Return features `(R, D)` and the items they belong to: all, or with `skip_bad` those that can be read.

    >>> from fewcal.features.extractors import as_extractor
    >>> from fewcal.features.sources.texts import Texts
    >>> length = as_extractor(lambda texts: [[len(t)] for t in texts], name="length", kind="text")
    >>> embed(Texts(["a", "b"], None, None, "here", ["one", "three"]), length)[0].tolist()
    [[3.0], [5.0]]
    """
    blocks: list[np.ndarray] = []
    errors: list[InputError] = []
    kept: list[int] = []
    _check_batch(batch)
    for done, rows, features, bad in _batches(items, extractor, range(0, len(items), batch), batch, workers):
        blocks.append(features)
        kept += rows
        errors += bad.values()
        if progress is not None:
            progress(done.stop, len(items))
    if not skip_bad or not kept:
        refuse_bad(errors, len(items), LEAVE_OUT)
    if errors:
        shown = "; ".join(str(error) for error in errors[:3]) + ("; …" if len(errors) > 3 else "")
        warnings.warn(f"left out {len(errors)} of {len(items)}: {shown}", FewcalWarning, stacklevel=2)
    return np.concatenate(blocks), items.take(kept)


def _check_batch(batch: int) -> None:
    """Refuse a number of items computed at once that is below 1."""
    if batch < 1:
        raise InputError(f"batch={batch} must be at least 1")


# Its items, those that were read and their features, and errors of the others.
Batch: TypeAlias = tuple[range, list[int], np.ndarray, dict[int, InputError]]


def _batches(
    items: Items, extractor: Extractor, starts: Sequence[int], batch: int, workers: int | None
) -> Iterator[Batch]:
    """Yield the batches that begin at `starts`, in order; the next ones are read while some are computed."""
    if items.kind != extractor.kind:
        raise InputError(f"{extractor.name} takes {extractor.kind}s and {items.source} holds {items.kind}s")
    ranges = [range(start, min(start + batch, len(items))) for start in starts]
    # The last pieces of a batch leave threads without work, which the next one has.
    together = 2 + torch.get_num_threads() // 8 if extractor.concurrent else 1
    indices = [i for one in ranges for i in one]
    stream = decoded(indices, lambda i: extractor.prepare(items, i), workers, ahead=(1 + together) * batch)
    read = ((one, [next(stream) for _ in one]) for one in ranges)

    def compute(task: tuple[range, list[np.ndarray | str | InputError]]) -> Batch:
        errors = {i: item for i, item in zip(*task, strict=True) if isinstance(item, InputError)}
        rows = [i for i in task[0] if i not in errors]
        ready = [item for item in task[1] if not isinstance(item, InputError)]
        features = extractor(ready) if ready else np.empty((0, extractor.dim), np.float32)
        if (wrong := ~np.isfinite(features).all(axis=1)).any():
            name = items.names[rows[int(wrong.argmax())]]
            raise InputError(f"extractor {extractor.name} gave NaN or infinity for {name}")
        return task[0], rows, features, errors

    if together == 1:
        yield from map(compute, read)
        return
    for done in decoded(read, compute, together, together):
        if isinstance(done, InputError):
            raise done
        yield done


# ---- to a file ------------------------------------------------------------------------------------------------------


def checked_dtype(dtype: str) -> str:
    """Return the dtype that features are stored in."""
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype={dtype!r} must be 'float32' or 'float16'")
    return dtype


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
) -> JSONObject:
    """Write the features of the items to `target`, an `.npz`, and return facts: file, rows, classes, skipped items, ….

    Items that cannot be read do not stop the others. At the end they are listed all at once as an error, and
    everything else is kept: fix them and resume, or resume with `skip_bad`.
    """
    target = Path(target)
    if target.suffix != ".npz":
        raise InputError(f"{target}: features are extracted into .npz files")
    identity = {
        "extractor": extractor.stamp,
        "source": items.fingerprint(),
        "rows": len(items),
        "dim": extractor.dim,
        "dtype": checked_dtype(dtype),
    }
    _check_batch(batch)
    with file_lock(target) as lock:
        if target.exists():
            if not resume:
                raise InputError(f"{target} is there already; resume, remove it, or choose another place")
            return _finished(target, identity, extractor)
        parts = Parts(target, identity, (len(items), extractor.dim), dtype, batch, resume)
        left = parts.left()
        errors: dict[int, InputError] = {}
        count = len(items) - sum(min(parts.batch, len(items) - start) for start in left)
        try:
            for done, rows, features, bad in _batches(items, extractor, left, parts.batch, workers):
                parts.put(rows, features, done.start, whole=not bad)
                errors |= bad
                count += len(done)
                if progress is not None:
                    progress(count, len(items))
        finally:
            parts.save()
        lock.check()
        return _write(target, items, extractor, parts, errors, skip_bad)


def _write(
    target: Path, items: Items, extractor: Extractor, parts: Parts, errors: dict[int, InputError], skip_bad: bool
) -> JSONObject:
    """Write the target, or the list of what could not be read."""
    reasons = [str(error) for error in errors.values()]
    listing = target.with_name(f"{target.stem}.unreadable.txt")
    if reasons and (not skip_bad or len(reasons) == len(items)):
        with atomic_path(listing) as temporary:
            temporary.write_text("".join(f"{r}\n" for r in reasons), encoding="utf-8", errors="backslashreplace")
        remedy = f"fix them and resume, or leave them out (--resume --skip-bad); all in {listing}"
        refuse_bad(list(errors.values()), len(items), remedy)
    kept = [i for i in range(len(items)) if i not in errors]
    items = items.take(kept)
    arrays = {"features": parts.features[kept] if reasons else parts.features}
    if items.labels is not None:
        arrays |= {"labels": items.label_codes(), "classes": np.array(items.classes)}
    arrays |= {
        "names": np.array(items.names),
        "extractor": np.array(extractor.stamp),
        "source": np.array(parts.identity["source"]),
    }
    with atomic_path(target) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    parts.remove()
    listing.unlink(missing_ok=True)
    return _facts(target, extractor, len(kept), len(items.classes), reasons)


def _finished(target: Path, identity: dict[str, object], extractor: Extractor) -> JSONObject:
    """Return facts about a target that is there already, if it is what this run would write."""
    found = read_npz(target, ("extractor", "source", "labels", "names"))
    check_identity(target, identity, identity | {k: str(found.get(k)) for k in ("extractor", "source")})
    return _facts(target, extractor, len(found["names"]), len(np.unique(found.get("labels", []))), [])


def _facts(target: Path, extractor: Extractor, rows: int, classes: int, skipped: list[str]) -> JSONObject:
    return {
        "file": str(target),
        "rows": rows,
        "classes": classes,
        "features": extractor.dim,
        "extractor": extractor.stamp,
        "skipped": skipped,
    }


def extractor_of(path: StrPath) -> str | None:
    """Return the stamp of the extractor that made a feature file, where the file has one."""
    if Path(path).suffix.lower() != ".npz":
        return None
    stamp = read_npz(Path(path), ("extractor",)).get("extractor")
    return None if stamp is None else str(stamp)


def bank_source(split: FeatureSplit) -> str:
    """Return where the rows of a bank come from: the extractor, where their file has one, and their fingerprint."""
    stamp = extractor_of(split.source)
    return split.fingerprint() if stamp is None else f"{stamp} {split.fingerprint()}"
