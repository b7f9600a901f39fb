"""How labelled pictures, texts and features are read, and the bank that goes with them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fewcal._utils.types import Progress, StrPath
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.features import load_split
from fewcal.features.extract import embed
from fewcal.features.extractors import Extractor, get_extractor
from fewcal.features.sources.find import find_items, labelled_items
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import default_extractor, kind_of


@dataclass(frozen=True)
class Reading:
    """How items become features: columns of text and class, items at once, threads, whether bad ones are left out."""

    columns: tuple[str, str] = ("text", "label")
    batch: int = 32
    workers: int | None = None
    skip_bad: bool = False
    device: str | None = None
    allow_download: bool = False
    progress: Progress | None = None

    def find(self, source: StrPath | Items, kind: str) -> Items:
        """The items of a source, without labels where it names none."""
        return source if isinstance(source, Items) else find_items(source, kind, False, *self.columns)

    def embed(self, items: Items, extractor: Extractor, progress: Progress | None = None) -> tuple[np.ndarray, Items]:
        """Features `(R, D)` of the items that can be read, and those items."""
        report = progress or self.progress
        return embed(items, extractor, batch=self.batch, workers=self.workers, skip_bad=self.skip_bad, progress=report)


class Examples(NamedTuple):
    """Labelled examples: features `(R, D)`, class names `(R,)`; of pictures and texts the items and their extractor."""

    x: np.ndarray
    names: np.ndarray
    items: Items | None = None
    stamp: str | None = None


def read_examples(support: StrPath | Items, extractor: str | None, bank: BaseBank | None, how: Reading) -> Examples:
    """Read labelled pictures, texts or features; an extractor that is not that of the bank is refused."""
    if extractor is None and not isinstance(support, Items) and kind_of(support, how.columns[0]) == "features":
        rows = load_split(support, labelled=True)
        # Labels that were integers in the file are integers in the answers.
        classes = np.array(rows.classes if rows.named else [int(c) for c in rows.classes])
        return Examples(rows.float32(), classes[rows.require_labels()])
    model = get_extractor(extractor or default_extractor(support, how.columns[0]), how.device, how.allow_download)
    if bank is not None:
        check_same_extractor(bank, model)
    items = labelled_items(support, model.kind, how.columns)
    x, kept = how.embed(items, model)
    check_none_lost(items.classes, kept)
    return Examples(x, np.array(kept.labels), kept, model.stamp)


def load_bank(bank: StrPath | BaseBank | None) -> BaseBank | None:
    """A bank from its file; a bank or None as it is."""
    return bank if bank is None or isinstance(bank, BaseBank) else BaseBank.load(bank)


def check_none_lost(classes: Sequence[str], kept: Items) -> None:
    """Refuse examples of which a class has lost all, since they cannot be read: it would never be an answer."""
    if lost := sorted(set(classes) - set(kept.classes)):
        raise InputError(f"no example of class {lost[0]!r} can be read; add one that can")


def check_same_features(bank: BaseBank, stamp: str, dim: int) -> None:
    """Refuse a bank of another extractor than the one with this stamp, which gives so many features."""
    made = (bank.source or "").partition(" ")[0]
    if "@" in made and made != stamp:
        raise InputError(f"the bank was made with {made} and the extractor is {stamp}; use the extractor of the bank")
    if bank.dim != dim:
        raise InputError(
            f"the bank has {bank.dim} features and {stamp.partition('@')[0]} gives {dim}; "
            "extract the base classes with the same extractor"
        )


def check_same_extractor(bank: BaseBank, extractor: Extractor) -> None:
    """Refuse a bank of another extractor; warn where a bank names none."""
    check_same_features(bank, extractor.stamp, extractor.dim)
    if "@" not in (bank.source or "").partition(" ")[0]:
        warnings.warn(
            f"the bank does not name its extractor; answers make sense only if it is {extractor.name}",
            FewcalWarning,
            stacklevel=3,
        )
