"""FeatureSet: base, validation and novel classes as arrays, checked on the way in."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from fewcal._utils.types import StrPath
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features.io.files import EXTENSIONS, read_file, writable, write_file
from fewcal.features.io.formats import RawSplit

SPLITS = ("base", "val", "novel")
CHUNK = 4096  # rows converted at a time, so that float16 data is never held twice as float32


@dataclass(frozen=True, eq=False)
class FeatureSplit:
    """Rows of some classes: features `(R, D)` float32 or float16, labels `(R,)` int64 in 0..C-1, C class names.

    `labels` is None for a query file without labels. `named` is False where a file had integer labels only; the class
    names are then those integers as text.

    >>> split = FeatureSplit.from_arrays([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], ["b", "a", "b"])
    >>> split.classes, split.labels.tolist(), split.rows_per_class().tolist()
    (['a', 'b'], [1, 0, 1], [1, 2])
    """

    features: np.ndarray
    labels: np.ndarray | None
    classes: list[str]
    named: bool = True
    source: str = field(default="features", repr=False)

    @classmethod
    def from_arrays(
        cls,
        features: np.ndarray | Sequence[Sequence[float]],
        labels: np.ndarray | Sequence[int] | Sequence[str] | None = None,
        classes: Sequence[str] | np.ndarray | None = None,
        source: str = "features",
    ) -> FeatureSplit:
        """Check the arrays and bring them to the standard form; `source` names them in errors.

        Integer labels index `classes`; without `classes` they are the names themselves. Labels of text are the names.
        Classes without a row are left out, with a warning. float16 and float32 are kept without a copy, other numbers
        become float32.
        """
        features = _checked_features(features, source)
        if labels is None:
            return cls(features, None, [], named=False, source=source)
        names = None if classes is None else [_text(name) for name in np.ravel(classes)]
        index, names, named = _checked_labels(np.asarray(labels), names, len(features), source)
        return cls(features, index, names, named, source)

    @property
    def rows(self) -> int:
        return self.features.shape[0]

    @property
    def dimension(self) -> int:
        return self.features.shape[1]

    def __len__(self) -> int:
        return self.rows

    def require_labels(self) -> np.ndarray:
        """Return labels `(R,)`, or raise an error where there are none."""
        if self.labels is None:
            raise InputError(f"{self.source} has no labels; add an array 'labels' with one class per row")
        return self.labels

    def rows_per_class(self) -> np.ndarray:
        """Return the number of rows of each class `(C,)`."""
        return np.bincount(self.require_labels(), minlength=len(self.classes))

    def float32(self) -> np.ndarray:
        """Return features `(R, D)` as float32, without a copy where they are."""
        return self.features.astype(np.float32, copy=False)

    def fingerprint(self) -> str:
        """Return a digest of the contents: the same for any file format, dtype that holds the numbers, and class order.

        >>> a = FeatureSplit.from_arrays(np.ones((2, 3), np.float16), ["x", "y"])
        >>> b = FeatureSplit.from_arrays(np.ones((2, 3), np.float32), [1, 0], classes=["y", "x"])
        >>> a.fingerprint() == b.fingerprint()
        True
        """
        digest = hashlib.sha256(f"{self.rows},{self.dimension},{self.labels is not None};".encode())
        for chunk in self.float32_chunks():
            digest.update(chunk.tobytes())
        if self.labels is not None:
            order = sorted(range(len(self.classes)), key=self.classes.__getitem__)
            rank = np.empty(len(order), "<i8")
            rank[order] = np.arange(len(order))
            digest.update(rank[self.labels].tobytes())
            digest.update("\0".join(self.classes[i] for i in order).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def float32_chunks(self) -> Iterator[np.ndarray]:
        """Yield the features some thousand rows at a time as float32; -0.0 becomes 0.0, which compares equal."""
        for start in range(0, self.rows, CHUNK):
            yield self.features[start : start + CHUNK].astype("<f4") + np.float32(0)

    def save(self, path: StrPath) -> None:
        """Write one file in the format of its extension (npz, parquet, safetensors), atomically."""
        labels, classes = self.labels, self.classes if self.labels is not None else None
        if labels is not None and not self.named:
            # Without names the integers are all there is.
            labels, classes = np.array([int(name) for name in self.classes], np.int64)[labels], None
        write_file(path, RawSplit(self.features, labels, classes))


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The splits of a few-shot problem, None where a split is missing.

    A class in two splits is an error, since the evaluation would then see its own test classes; `allow_leaks` is for
    tools that only describe the data.

    >>> base = FeatureSplit.from_arrays(np.zeros((4, 2)), ["cat", "cat", "dog", "dog"])
    >>> novel = FeatureSplit.from_arrays(np.zeros((2, 2)), ["owl", "owl"])
    >>> FeatureSet(base, None, novel).dimension
    2
    """

    base: FeatureSplit | None = None
    val: FeatureSplit | None = None
    novel: FeatureSplit | None = None
    allow_leaks: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        present = self.splits()
        for split in present.values():
            split.require_labels()
        for (name, split), (other_name, other) in combinations(present.items(), 2):
            if split.dimension != other.dimension:
                raise InputError(
                    f"{name} has {split.dimension} dimensions ({split.source}) and {other_name} {other.dimension} "
                    f"({other.source}); extract both with the same model"
                )
            if not self.allow_leaks:
                _refuse_leak(name, split, other_name, other)

    def splits(self) -> dict[str, FeatureSplit]:
        """Return the splits that are there, by name, in the order base, val, novel."""
        return {name: split for name in SPLITS if (split := getattr(self, name)) is not None}

    def split(self, name: str) -> FeatureSplit:
        """Return one split by name, or raise an error that lists those there are."""
        present = self.splits()
        if name not in present:
            raise InputError(f"there is no split {name!r}; this feature set has {', '.join(present) or 'none'}")
        return present[name]

    @property
    def dimension(self) -> int:
        """D, the same for all splits."""
        for split in self.splits().values():
            return split.dimension
        raise InputError("an empty feature set has no dimension; give it at least one split")

    @classmethod
    def load(cls, folder: StrPath, splits: Sequence[str] | None = None, allow_leaks: bool = False) -> FeatureSet:
        """Read a folder of `base`, `val` and `novel` files, in any format of `io.files`.

        `splits` names those needed, each of which must be there; without it, all that are there are read.
        """
        folder = Path(folder)
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise InputError(f"{folder} {what}; give the folder that holds base, val and novel files")
        for name in splits or ():
            if name not in SPLITS:
                raise InputError(f"unknown split {name!r}; the splits are {', '.join(SPLITS)}")
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        found: dict[str, Path] = {}
        for path in files:
            if path.stem in SPLITS and path.suffix.lower() in EXTENSIONS:
                if path.stem in found:
                    raise InputError(f"{folder} holds both {found[path.stem].name} and {path.name}; keep one")
                found[path.stem] = path
        content = ", ".join(path.name for path in files[:8]) + (", ..." if len(files) > 8 else "") or "nothing"
        for name in splits or ():
            if name not in found:
                raise InputError(
                    f"{folder} has no {name} split (it holds: {content}); "
                    f"add {name} with one of the extensions {', '.join(EXTENSIONS)}"
                )
        wanted = [name for name in SPLITS if name in found and (splits is None or name in splits)]
        if not wanted:
            raise InputError(f"{folder} has none of base, val and novel (it holds: {content}); add e.g. base.npz")
        return cls(**{name: load_split(found[name], labelled=True) for name in wanted}, allow_leaks=allow_leaks)

    def save(self, folder: StrPath, format: str = "npz") -> None:
        """Write each split to `folder`, each file atomically; refused where it would stand beside another format."""
        if format not in writable():
            raise InputError(f"format is {format!r}; choose {', '.join(writable())}")
        folder = Path(folder)
        for name in self.splits():
            for extension in EXTENSIONS:
                if extension != f".{format}" and (folder / f"{name}{extension}").exists():
                    raise InputError(f"{folder} already holds {name}{extension}; remove it or save elsewhere")
        for name, split in self.splits().items():
            split.save(folder / f"{name}.{format}")


def load_split(path: StrPath, labelled: bool = False) -> FeatureSplit:
    """Read one feature file; labels may be missing (a query file) unless `labelled`."""
    raw = read_file(path)
    if raw.labels is None and labelled:
        raise FileFormatError(f"{path} has no labels; add one class per row under 'labels' (parquet: column 'label')")
    return FeatureSplit.from_arrays(raw.features, raw.labels, raw.classes, source=str(path))


def _checked_features(values: np.ndarray | Sequence[Sequence[float]], source: str) -> np.ndarray:
    try:
        features = np.asarray(values)
    except ValueError:
        raise InputError(f"{source}: rows of different lengths; all need the same number of features") from None
    if features.dtype.kind not in "fiu":
        raise InputError(
            f"{source}: features are non-numeric (dtype {features.dtype}); store them as float16 or float32"
        )
    if features.ndim != 2:
        raise InputError(f"{source}: features have the shape {features.shape}; they must be (rows, dimensions)")
    if 0 in features.shape:
        raise InputError(
            f"{source}: features are empty, {features.shape[0]} rows of {features.shape[1]}; write at least one row"
        )
    if features.dtype not in (np.float16, np.float32):
        # Also byte-swapped floats, which torch cannot take. Overflow becomes inf and is reported below.
        native = features.dtype.newbyteorder("=")
        with np.errstate(over="ignore"):
            features = features.astype(native if native in (np.float16, np.float32) else np.float32)
    bad, first = 0, -1
    for start in range(0, len(features), CHUNK):
        rows = np.flatnonzero(~np.isfinite(features[start : start + CHUNK]).all(axis=1))
        if rows.size and first < 0:
            first = start + int(rows[0])
        bad += rows.size
    if bad:
        kind = "NaN" if np.isnan(features[first]).any() else "infinite"
        raise InputError(
            f"{source}: {bad} of {len(features)} rows have NaN or infinite values, the first is row {first} ({kind}); "
            f"drop those rows or extract them again"
        )
    return features


def _checked_labels(
    labels: np.ndarray, names: list[str] | None, rows: int, source: str
) -> tuple[np.ndarray, list[str], bool]:
    """Return labels `(R,)` in 0..C-1, the C names, and whether these are names or mere integers."""
    if labels.ndim != 1 or len(labels) != rows:
        raise InputError(
            f"{source}: {rows} rows of features but labels of shape {labels.shape}; give one label per row"
        )
    if labels.dtype.kind == "f" and (labels == np.round(labels)).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iuUS" and labels.dtype != object:
        raise InputError(f"{source}: labels are {labels.dtype}; store class names or integers")
    if labels.dtype.kind in "iu":
        if names is None:
            values, index = np.unique(labels.astype(np.int64), return_inverse=True)
            return index.astype(np.int64), [str(v) for v in values], False
        index = labels.astype(np.int64)
        if ((index < 0) | (index >= len(names))).any():
            odd = index.min() if index.min() < 0 else index.max()
            raise InputError(
                f"{source}: label {odd} has no name, there are {len(names)} classes; labels must be 0..{len(names) - 1}"
            )
    else:
        text = [_text(label) for label in labels]
        names = sorted(set(text)) if names is None else names
        place = {name: i for i, name in enumerate(names)}
        if missing := sorted(set(text) - set(names)):
            raise InputError(
                f"{source}: label {missing[0]!r} is not among its {len(names)} classes; add it to 'classes'"
            )
        index = np.array([place[name] for name in text])
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{source}: the class name {twice!r} occurs twice in 'classes'; give every class its own name")
    used, index = np.unique(index, return_inverse=True)
    if empty := [name for i, name in enumerate(names) if i not in set(used.tolist())]:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        warnings.warn(f"{source}: class {empty[0]!r}{more} without any row is left out", FewcalWarning, stacklevel=3)
    return index.astype(np.int64), [names[i] for i in used], True


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _refuse_leak(name: str, split: FeatureSplit, other_name: str, other: FeatureSplit) -> None:
    if _own_numbering(split) and _own_numbering(other):
        warnings.warn(
            f"{name} and {other_name} both number their classes from 0 and give no names, so they count as different "
            "classes; add 'classes' to the files to be sure",
            FewcalWarning,
            stacklevel=4,
        )
    if shared := leaked_classes(split, other):
        listed = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
        raise InputError(
            f"{len(shared)} classes are in both {name} ({split.source}) and {other_name} ({other.source}): {listed}; "
            "remove them from one split, or the evaluation would see its own test classes"
        )


def leaked_classes(a: FeatureSplit, b: FeatureSplit) -> list[str]:
    """Return the classes that two splits share, in the order of the first; numbers from 0 in both are none."""
    if _own_numbering(a) and _own_numbering(b):
        return []
    names = set(b.classes)
    return [name for name in a.classes if name in names]


def _own_numbering(split: FeatureSplit) -> bool:
    return not split.named and split.classes == [str(i) for i in range(len(split.classes))]
