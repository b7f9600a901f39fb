"""A fitted classifier in one safetensors file.

The file of a `FewShotClassifier` holds the support as it was given and the prior: loading fits again, which takes
milliseconds, and later examples are a fit on all of them. That of a `GDCClassifier` holds the support and the fitted
head; for later examples it must be given its bank again. No pickle, no code.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.safetensors_io import read_arrays, read_header, read_tensors, write_tensors
from fewcal._utils.types import JSON
from fewcal._version import __version__
from fewcal.bank.io import label_from_json, label_to_json
from fewcal.errors import FewcalError, FileFormatError, InputError
from fewcal.estimators.inputs import as_tensor
from fewcal.gaussianize import Gaussianization
from fewcal.heads.linear import LinearHead
from fewcal.hgdc.prior import TENSORS, Prior

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier

FORMAT, FORMAT_VERSION = "fewcal-classifier", 1
KINDS = {"hgdc": "FewShotClassifier", "gdc": "GDCClassifier"}
Classifier = TypeVar("Classifier", bound="TaskClassifier")
# The values that a file has, as JSON holds them, and its tensors.
FileMeta: TypeAlias = Mapping[str, Any]
FileTensors: TypeAlias = Mapping[str, Tensor]


def write_classifier(classifier: TaskClassifier, target: Path, extractor: str | None) -> Path:
    """Write a fitted classifier; the file appears under its name only when it is complete."""
    X, y = classifier.support_
    if y.dtype.kind not in "OUSiufb":
        raise InputError(f"labels of type {y.dtype} cannot be saved; use texts or integers")
    classes, codes = np.unique(y, return_inverse=True)
    names = getattr(classifier, "feature_names_in_", None)
    own, parts = classifier.file_parts()
    meta = own | {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": classifier.file_kind,
        "fewcal": __version__,
        "made_with": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "classes": [label_to_json(c) for c in classes.tolist()],
        "label_type": y.dtype.str if y.dtype.kind != "O" else "|O",
        "feature_names": None if names is None else [str(n) for n in names],
        "extractor": extractor,
    }
    write_tensors(target, parts | {"support": as_tensor(X), "labels": torch.from_numpy(codes.astype(np.int64))}, meta)
    return target


def read_classifier(cls: type[Classifier], file: Path, device: str | torch.device | None) -> Classifier:
    """Read a classifier; files of another kind, damaged and newer ones are refused."""
    meta = read_meta(file)
    if meta.get("kind") != cls.file_kind:
        name = KINDS.get(str(meta.get("kind")), "model of no kind")
        raise FileFormatError(f"{file} has a {name}, not a {cls.__name__}")
    _, tensors = read_tensors(file)
    with _damage(file):
        support, labels = _support(meta, tensors)
        made = cls.from_parts(meta, tensors)
        made.device = device
        if meta["feature_names"] is not None:
            made.feature_names_in_ = np.array(meta["feature_names"], dtype=object)
        made.n_features_in_ = support.shape[1]
        made.extractor_ = meta["extractor"]
        made.restore(support, labels, meta, tensors)
        return made


def classifier_facts(file: Path) -> dict[str, JSON]:
    """What a file holds, for people; files are refused as by `read_classifier`, but for parts that do not fit."""
    meta = read_meta(file)
    _, arrays = read_arrays(file)
    with _damage(file):
        names = [str(label_from_json(name)) for name in meta["classes"]]
        counts = np.bincount(arrays["labels"], minlength=len(names)).tolist()
        prior = meta.get("prior")
        return {
            "file": str(file),
            "bytes": file.stat().st_size,
            "model": "GDC" if meta["kind"] == "gdc" else "HGDC" if prior else "support-only",
            "classes": len(names),
            "examples": dict(zip(names, counts, strict=True)),
            "unlabelled": len(arrays["unlabelled"]) if "unlabelled" in arrays else 0,
            "features": arrays["support"].shape[1],
            "extractor": meta["extractor"],
            "base_classes": len(prior["classes"]) if prior else None,
        }


def read_meta(file: Path) -> dict[str, Any]:
    """The header of a classifier; files of another kind and newer ones are refused."""
    if not file.is_file():
        raise InputError(f"no classifier at {file}; make one with FewShotClassifier.save(path) or `fewcal fit`")
    meta = read_header(file)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        bank = isinstance(meta, dict) and meta.get("format") == "fewcal-bank"
        kind = "is a fewcal bank" if bank else "is a safetensors file"
        raise FileFormatError(f"{file} {kind}, but not a fewcal classifier; make one with `fewcal fit`")
    version = meta.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FileFormatError(
            f"{file} has classifier format {version} and this fewcal {__version__} reads up to {FORMAT_VERSION}; "
            "upgrade fewcal"
        )
    if version != FORMAT_VERSION:
        raise FileFormatError(f"{file} is damaged: its format version is {version!r}")
    return meta


def prior_to_file(prior: Prior) -> tuple[dict[str, object], dict[str, Tensor]]:
    """A prior as what JSON can hold and tensors by name."""
    meta: dict[str, object] = {
        "classes": [label_to_json(c) for c in prior.classes],
        "transform": prior.transform.settings(),
        **{name: getattr(prior, name) for name in ("sharpness", "share", "gamma", "weight")},
    }
    tensors = {name: getattr(prior, name) for name in TENSORS}
    return meta, tensors | {f"transform.{name}": t for name, t in prior.transform.tensors().items()}


def prior_from_file(meta: FileMeta, tensors: FileTensors) -> Prior:
    """What `prior_to_file` wrote; parts that do not fit together raise `KeyError`, `TypeError` or `ValueError`."""
    classes = tuple(label_from_json(c) for c in meta["classes"])
    sizes = {"C": len(classes), "D": tensors["origin"].shape[-1]}
    for name, axes in TENSORS.items():
        expected = tuple(sizes[axis] for axis in axes)
        if tensors[name].shape != expected or tensors[name].dtype != torch.float32:
            raise ValueError(f"{name} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}, not {expected}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise ValueError(f"{name} has NaN or infinity")
    own: dict[str, Any] = {name: float(meta[name]) for name in ("sharpness", "share", "gamma", "weight")}
    own |= {name: tensors[name] for name in TENSORS}
    transform = Gaussianization.from_settings(meta["transform"], tensors)
    if transform.whitening is None or transform.whitening.shape != (sizes["D"], sizes["D"]):
        raise ValueError(f"the whitening is not {sizes['D']} × {sizes['D']}")
    return Prior(transform, **own, classes=classes)


def _support(meta: FileMeta, tensors: FileTensors) -> tuple[np.ndarray, np.ndarray]:
    support, codes = tensors["support"], tensors["labels"]
    classes = [label_from_json(c) for c in meta["classes"]]
    if support.ndim != 2 or codes.shape != support.shape[:1] or not len(codes) or codes.dtype != torch.int64:
        raise ValueError(f"support {tuple(support.shape)} and labels {tuple(codes.shape)}")
    if not 0 <= int(codes.min()) <= int(codes.max()) < len(classes):
        raise ValueError(f"labels beyond {len(classes)} classes")
    if not bool(torch.isfinite(support).all()):
        raise ValueError("support has NaN or infinity")
    kind = np.dtype(meta["label_type"])
    return support.numpy(), np.array([classes[c] for c in codes.tolist()], dtype=object if kind.kind == "O" else kind)


def head_from_file(tensors: Mapping[str, Tensor], classes: int, features: int) -> LinearHead:
    """A linear head of so many classes and features."""
    weight, bias = tensors["weight"], tensors["bias"]
    expected = (1, classes, features)
    if weight.shape != expected or bias.shape != expected[:2]:
        raise ValueError(f"the head is {tuple(weight.shape)}, not {expected}")
    return LinearHead(weight, bias)


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, FewcalError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"{file} is damaged: its parts do not fit together ({error})") from error
