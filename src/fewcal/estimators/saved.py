"""A fitted classifier in one safetensors file, and classes or examples that come later.

The file holds what a fit starts from: the support as it was given, the classes, the parameters, and of the bank the
moments that prediction needs. Loading fits again, which takes milliseconds and gives the same classifier whatever head
it has; adding examples is a fit on all of them. No pickle, no code.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from warnings import catch_warnings, simplefilter

import numpy as np
import torch

from fewcal._utils.safetensors_io import read_arrays, read_header, read_tensors, write_tensors
from fewcal._utils.types import JSON, StrPath
from fewcal._version import __version__
from fewcal.bank import BaseBank
from fewcal.bank.build import OneShotScale
from fewcal.bank.io import described, label_from_json, label_to_json, restored
from fewcal.errors import FewcalError, FewcalWarning, FileFormatError, InputError
from fewcal.methods.bankless import base_centre
from fewcal.methods.hierarchical import HierarchicalGDC
from fewcal.params import GDCParams, current_values

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "fewcal-classifier"
FORMAT_VERSION = 1
_BANK = "bank."


@dataclass(frozen=True, eq=False)
class SavedFit:
    """What a file holds.

    Attributes
    ----------
    support : Tensor (S, D), as it was given
    labels : ndarray (S,)
    params : the parameters in force; None without a bank
    plain : parameters of the transform without a bank
    bank : the base classes, moments alone unless all was asked for; None without
    preset, extractor, random_state : as they were given
    about : further facts for people
    """

    support: Tensor
    labels: np.ndarray
    params: GDCParams | None
    plain: dict[str, JSON]
    bank: BaseBank | None
    preset: str | None
    extractor: str | None
    random_state: int | None
    about: dict[str, JSON]


def moments_only(bank: BaseBank, params: GDCParams) -> BaseBank:
    """What is left of a bank when it has been seen through the transform of `params`: means and pooled covariance.

    And what its rows tell of one example a class, and where they lay before.
    """
    space = bank.transformed(**params.space, moments=True)
    parts = replace(space.parts, rank=0, rows=None, factors=None)
    if params.model == "hierarchical":
        parts = replace(parts, one_shot=_one_shot(bank, params), unit_centre=base_centre(bank))
    return BaseBank.from_parts(parts)


def _one_shot(bank: BaseBank, params: GDCParams) -> OneShotScale | None:
    method = HierarchicalGDC(params)
    with catch_warnings():
        simplefilter("ignore", FewcalWarning)  # told by `fit`
        method.prepare(bank)
    return method.one_shot


def write_fit(fit: SavedFit, path: StrPath) -> Path:
    """Write a fit; the file appears under its name only when it is complete."""
    classes, codes = np.unique(fit.labels, return_inverse=True)
    if fit.labels.dtype.kind not in "OUSiufb":
        raise InputError(f"labels of type {fit.labels.dtype} cannot be saved; use texts or integers")
    meta: dict[str, object] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fewcal": __version__,
        "made_with": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "classes": [label_to_json(c) for c in classes.tolist()],
        "label_type": fit.labels.dtype.str if fit.labels.dtype.kind != "O" else "|O",
        "params": None if fit.params is None else _params_to_json(fit.params),
        "plain": fit.plain,
        "preset": fit.preset,
        "extractor": fit.extractor,
        "random_state": fit.random_state,
        "about": fit.about,
        "bank": None,
    }
    tensors = {"support": fit.support, "labels": torch.from_numpy(codes.astype(np.int64))}
    if fit.bank is not None:
        meta["bank"], parts = described(fit.bank.parts, fit.bank.fingerprint)
        tensors |= {f"{_BANK}{name}": tensor for name, tensor in parts.items()}
    target = Path(path)
    write_tensors(target, tensors, meta)
    return target


def read_fit(path: StrPath) -> SavedFit:
    """Read a fit; files of another kind, damaged and newer ones are refused."""
    meta = read_meta(path)
    _, tensors = read_tensors(Path(path))
    with _damage_told(path):
        return _restored(meta, tensors)


def fit_facts(path: StrPath) -> dict[str, JSON]:
    """What a file holds, for people; files are refused as by `read_fit`, but for parts that do not fit together."""
    meta = read_meta(path)
    _, arrays = read_arrays(Path(path))
    with _damage_told(path):
        counts = np.bincount(arrays["labels"], minlength=len(meta["classes"])).tolist()
        names = [str(label_from_json(name)) for name in meta["classes"]]
        bank = meta["bank"]
        return {
            "file": str(path),
            "bytes": Path(path).stat().st_size,
            "classes": len(names),
            "examples": dict(zip(names, counts, strict=True)),
            "features": arrays["support"].shape[1],
            "extractor": meta["extractor"],
            "preset": None if bank is None else meta["preset"],
            "base_classes": None if bank is None else len(bank["classes"]),
            "bank": None if bank is None else "all" if bank["rank"] != 0 else "moments",
        }


def read_meta(path: StrPath) -> dict[str, Any]:
    """The header of a fit, without torch; files of another kind and newer ones are refused."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no classifier at {file}; make one with GDCClassifier.save(path) or `fewcal fit`")
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


@contextmanager
def _damage_told(file: StrPath) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, FewcalError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"{file} is damaged: its parts do not fit together ({error})") from error


def _restored(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SavedFit:
    support, codes = tensors["support"], tensors["labels"]
    classes = [label_from_json(c) for c in meta["classes"]]
    if support.ndim != 2 or codes.shape != support.shape[:1] or not len(codes) or codes.dtype != torch.int64:
        raise ValueError(f"support {tuple(support.shape)} and labels {tuple(codes.shape)}")
    if not 0 <= int(codes.min()) <= int(codes.max()) < len(classes):
        raise ValueError(f"labels beyond {len(classes)} classes")
    if not bool(torch.isfinite(support).all()):
        raise ValueError("support holds NaN or infinity")
    kind = np.dtype(meta["label_type"])
    bank = None
    if meta["bank"] is not None:
        parts = {k.removeprefix(_BANK): t for k, t in tensors.items() if k.startswith(_BANK)}
        bank = BaseBank.from_parts(restored(meta["bank"], parts)).check()
        if bank.dim != support.shape[1]:
            raise ValueError(f"the bank has {bank.dim} features and the support {support.shape[1]}")
    labels = np.array([classes[c] for c in codes.tolist()], dtype=object if kind.kind == "O" else kind)
    params = None if meta["params"] is None else GDCParams().with_changes(**current_values(meta["params"]))
    seed = meta["random_state"]
    return SavedFit(
        support, labels, params, meta["plain"], bank, meta["preset"], meta["extractor"], seed, meta["about"]
    )


def _params_to_json(params: GDCParams) -> dict[str, JSON]:
    values = asdict(replace(params, head=params.head if isinstance(params.head, str) else "closed_form"))
    if not isinstance(params.head, str):
        raise InputError(f"head={params.head!r} is an object; a classifier with a named head can be saved")
    return values


def joined_labels(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Labels of two fits in one array; texts and numbers are not mixed.

    >>> joined_labels(np.array(["cat"]), np.array(["mouse"])).tolist()
    ['cat', 'mouse']
    """
    text = {a.dtype.kind in "US" for a in (old, new) if a.dtype.kind != "O"}
    if len(text) == 2:
        raise InputError(f"the classes so far are {old.dtype} and the new ones {new.dtype}; use labels of one type")
    return np.concatenate([old, new])


class Answering(Protocol):
    """What can be asked for probabilities."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray: ...


def same_answers(one: Answering, other: Callable[[], Answering], x: np.ndarray) -> bool:
    """Whether a second classifier can be made and gives rows the same probabilities as the first."""
    try:
        return bool(np.allclose(one.predict_proba(x), other().predict_proba(x), rtol=0, atol=1e-4))
    except FewcalError:
        return False
