"""Facts about a feature set, and remarks on its faults: `fewcal features info`."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.features.featureset import CHUNK, FeatureSet, FeatureSplit, leaked_classes


def features_info(features: FeatureSet) -> JSONObject:
    """Describe a feature set for JSON: `splits` by name, overlaps `across` pairs of splits, `warnings` as sentences.

    The scale of a split has the mean length of a row, and medians of the distance to the nearest class mean.

    >>> base = FeatureSplit.from_arrays([[0.0, 1.0], [0.0, 2.0], [0.0, 2.0]], ["cat", "dog", "dog"])
    >>> info = features_info(FeatureSet(base))
    >>> info["splits"]["base"]["rows"], info["splits"]["base"]["sign"], info["splits"]["base"]["duplicate_rows"]
    (3, '>= 0', 1)
    >>> info["warnings"][0]
    'base: 1 of 2 columns constant, carrying no information.'
    """
    splits = features.splits()
    hashes = {name: _row_hashes(split) for name, split in splits.items()}
    base_means = _class_means(splits["base"]) if "base" in splits else None
    infos: JSONObject = {}
    across: JSONObject = {}
    warnings: list[str] = []
    for name, split in splits.items():
        infos[name] = facts = _describe(split, hashes[name], base_means, is_base=name == "base")
        warnings += _remarks(name, facts)
    for (a, split_a), (b, split_b) in combinations(splits.items(), 2):
        seen = set(hashes[a])
        duplicates = sum(h in seen for h in hashes[b])
        leaks = leaked_classes(split_a, split_b)
        across[f"{a}/{b}"] = {"duplicate_rows": duplicates, "shared_classes": leaks}
        if duplicates:
            warnings.append(f"{a} and {b}: {_rows(duplicates)} of {b} also in {a}, the same pictures may be in both.")
        if leaks:
            warnings.append(f"{a} and {b}: class leak, {len(leaks)} in both ({', '.join(leaks[:3])}); remove from one.")
    if len({facts["sign"] for facts in infos.values()}) > 1:
        warnings.append("Some splits are >= 0 and some signed: they may come from different layers or models.")
    norms = {name: facts["scale"]["mean_row_norm"] for name, facts in infos.items()}
    if norms and max(norms.values()) > 3 * min(norms.values()):
        listed = ", ".join(f"{name} {norm:.3g}" for name, norm in norms.items())
        warnings.append(f"The mean row norms differ by more than 3x ({listed}): check that one model made all splits.")
    return {"dimension": features.dimension, "splits": infos, "across": across, "warnings": warnings}


def _describe(split: FeatureSplit, hashes: list[bytes], base_means: np.ndarray | None, is_base: bool) -> JSONObject:
    counts, labels = split.rows_per_class(), split.require_labels()
    zeros, norms, low, high = 0, 0.0, np.float32(np.inf), np.float32(-np.inf)
    for x in split.float32_chunks():
        zeros += x.size - int(np.count_nonzero(x))
        low, high = np.minimum(low, x.min(axis=0)), np.maximum(high, x.max(axis=0))
        norms += float(np.linalg.norm(x, axis=1).sum(dtype=np.float64))
    first: dict[bytes, int] = {}
    earlier = [first.setdefault(digest, row) for row, digest in enumerate(hashes)]
    again = [row for row, before in enumerate(earlier) if before != row]
    means = base_means if is_base and base_means is not None else _class_means(split)
    to_base = None if base_means is None or is_base else _median_nearest(split, base_means, skip_own=False)
    return {
        "classes": len(split.classes),
        "rows": split.rows,
        "rows_per_class": {"min": int(counts.min()), "median": float(np.median(counts)), "max": int(counts.max())},
        "dimension": split.dimension,
        "dtype": str(split.features.dtype),
        "sign": ">= 0" if low.min() >= 0 else "signed",
        "zeros": zeros / split.features.size,
        "scale": {
            "mean_row_norm": norms / split.rows,
            "nearest_other_class_mean": _median_nearest(split, means, skip_own=True),
            "nearest_base_class_mean": to_base,
        },
        "constant_columns": int((low == high).sum()),
        "duplicate_rows": len(again),
        "conflicting_duplicates": sum(int(labels[row] != labels[earlier[row]]) for row in again),
        "named": split.named,
        "fingerprint": split.fingerprint(),
    }


def _remarks(name: str, facts: JSONObject) -> list[str]:
    remarks = []
    if constant := facts["constant_columns"]:
        remarks.append(f"{name}: {constant} of {facts['dimension']} columns constant, carrying no information.")
    if duplicates := facts["duplicate_rows"]:
        remarks.append(f"{name}: {_rows(duplicates)} repeating an earlier row exactly.")
    if conflicting := facts["conflicting_duplicates"]:
        remarks.append(f"{name}: {_rows(conflicting)} repeating a row of another class; check the labels.")
    smallest, largest = facts["rows_per_class"]["min"], facts["rows_per_class"]["max"]
    if smallest == 1:
        remarks.append(f"{name}: the smallest class has one row, too few for a support and a query row.")
    elif largest > 10 * smallest:
        remarks.append(f"{name}: classes have {smallest} to {largest} rows; the small ones limit shots and queries.")
    if not facts["named"]:
        remarks.append(f"{name}: classes have numbers but no names, so leaks between splits cannot be ruled out.")
    return remarks


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _row_hashes(split: FeatureSplit) -> list[bytes]:
    """Return a digest per row of its numbers as float32, so that equal rows of any dtype match."""
    return [hashlib.blake2b(row.data, digest_size=16).digest() for chunk in split.float32_chunks() for row in chunk]


def _class_means(split: FeatureSplit) -> np.ndarray:
    """Return class means `(C, D)`, summed in float64."""
    labels = split.require_labels()
    order = np.argsort(labels, kind="stable")
    bounds = np.cumsum(split.rows_per_class())[:-1]
    rows = np.split(order, bounds)
    return np.stack([split.features[r].mean(axis=0, dtype=np.float64).astype(np.float32) for r in rows])


def _median_nearest(split: FeatureSplit, means: np.ndarray, skip_own: bool) -> float | None:
    """Return the median distance of a row to the nearest of the class means `(C, D)`, maybe without its own."""
    if len(means) < (2 if skip_own else 1):
        return None
    labels, nearest = split.require_labels(), []
    squares = (means**2).sum(axis=1)
    for chunk, x in enumerate(split.float32_chunks()):
        d = (x**2).sum(axis=1, keepdims=True) - 2 * (x @ means.T) + squares
        if skip_own:
            d[np.arange(len(x)), labels[chunk * CHUNK :][: len(x)]] = np.inf
        nearest.append(np.sqrt(d.min(axis=1).clip(0)))
    return float(np.median(np.concatenate(nearest)))
