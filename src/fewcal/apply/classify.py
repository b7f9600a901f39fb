"""Real use, end to end: a few labelled pictures or texts, some to classify, and out come answers with probabilities.

answers = classify("photos", "new", "efficientnet-lite0")
answers.write_csv("predictions.csv")
answers.write_html("sheet.html")
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal._utils.types import JSON, Progress, StrPath
from fewcal.apply.checks import check_reject_has_bank, checked_reject
from fewcal.apply.contact_sheet import contact_sheet
from fewcal.apply.predict import (
    NONE_OF_THESE,
    AnswerRow,
    accuracy,
    answer_rows,
    in_words,
    make_classifier,
    model_settings,
    predict_features,
    rejected,
    true_classes,
    write_predictions,
)
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.extract import embed
from fewcal.features.extractors import EmbedFunction, Extractor, as_extractor
from fewcal.features.sources.find import find_items, labelled_items
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import default_extractor
from fewcal.features.sources.texts import Texts

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions for pictures or texts.

    Attributes
    ----------
    table : columns: item (the text itself, or the name of the picture), prediction, probability, `p_other` if asked
        for, one probability for each class
    support, query : the items that could be read
    truth : the classes of the queries where the source names them (as folders or labels), or None; where "none of
        these" is an answer, there may be others among them than those of the support
    method : in words, what answered
    classifier : the fitted classifier, for more rows from the same extractor
    """

    table: dict[str, np.ndarray]
    support: Items
    query: Items
    truth: list[str] | None
    method: str
    extractor: Extractor
    classifier: TaskClassifier

    def __len__(self) -> int:
        return len(self.query)

    @property
    def accuracy(self) -> float | None:
        """Share of right answers, where the truth is known; "none of these" is no answer and not counted."""
        return accuracy(self.table, self.truth)

    @property
    def rejected(self) -> int | None:
        """How many items were answered "none of these"; None where that was not asked for."""
        return rejected(self.table)

    def in_words(self) -> list[str]:
        """How many answers are right, and how many items got none, where that can be told; a sentence each."""
        return in_words(self.table, self.truth, self.support.classes)

    def counts(self) -> dict[str, int]:
        """Number of answers of each kind, in the order of the classes."""
        names = [*self.support.classes, NONE_OF_THESE]
        found = [str(p) for p in self.table["prediction"]]
        return {name: found.count(name) for name in names if name in self.support.classes or name in found}

    def facts(self) -> dict[str, JSON]:
        """How many items got which answers, and how they were made."""
        return {
            "items": len(self),
            "answers": dict(self.counts()),
            "accuracy": self.accuracy,
            "method": self.method,
            "rejected": self.rejected,
            "extractor": self.extractor.stamp,
        }

    def rows(self) -> list[AnswerRow]:
        """For each query: item, prediction, its probability, the next class, its probability."""
        return answer_rows(self.table)

    def write_csv(self, path: StrPath, raw: bool = False) -> None:
        """The table as .csv or .parquet; `raw` CSV may hold what a spreadsheet takes for a formula."""
        write_predictions(self.table, path, raw)

    def write_html(self, path: StrPath) -> None:
        """A contact sheet to look at: every query under its answer, the doubtful ones last."""
        contact_sheet(self).write(path)

    def write(self, table: StrPath | None, sheet: StrPath | None, raw: bool = False) -> list[str]:
        """Both, or those that are asked for; the files."""
        if table is not None:
            self.write_csv(table, raw)
        if sheet is not None:
            self.write_html(sheet)
        return [str(path) for path in (table, sheet) if path is not None]


def classify(
    support: StrPath | Items,
    query: StrPath | Items,
    extractor: str | Extractor | EmbedFunction | None = None,
    *,
    bank: StrPath | BaseBank | None = None,
    preset: str | None = None,
    settings: Sequence[str] = (),
    reject: float | None = None,
    batch: int = 32,
    workers: int | None = None,
    device: str | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    allow_download: bool = False,
    progress: Progress | None = None,
    columns: tuple[str, str] = ("text", "label"),
) -> Answers:
    """Classify pictures or texts from a few labelled ones.

    Parameters
    ----------
    support : a folder with one folder for each class, a list, a pack, a file of texts, or `Items` with labels
    query : the same without labels, or a single picture; labels, where there are some, serve to score the answers
    extractor : a name (`features.extractors`), a torch module, or a function; None takes the usual one of pictures or
        texts, whichever the support holds
    bank : base classes from the same extractor. Without them the answer comes from a plain discriminant on
        L2-normalised features (after a square root, where these are ≥ 0).
    reject : with a bank, answer "none of these" where more than this share of base examples fit as well
    columns : names of the columns or keys of text and class in files of texts
    """

    check_reject_has_bank(checked_reject(reject), bank)
    model_settings(settings, preset)  # refuses what is wrong before anything is read
    loaded = bank if bank is None or isinstance(bank, BaseBank) else BaseBank.load(bank)
    if extractor is None:
        extractor = default_extractor(support, columns[0])
    model = as_extractor(extractor, device=device, allow_download=allow_download)
    known = labelled_items(support, model.kind, columns)
    asked = query if isinstance(query, Items) else find_items(query, model.kind, False, *columns)
    if loaded is not None:
        check_same_extractor(loaded, model)
    if Path(known.source).resolve() == Path(asked.source).resolve() and not set(known.names).isdisjoint(asked.names):
        warnings.warn(
            "the examples themselves are classified; how many answers are right says nothing of new ones",
            FewcalWarning,
            stacklevel=2,
        )
    total = len(known) + len(asked)

    def features_of(items: Items, done_before: int) -> tuple[np.ndarray, Items]:
        report = None if progress is None else lambda done, _: progress(done_before + done, total)
        return embed(items, model, batch=batch, workers=workers, skip_bad=skip_bad, progress=report)

    classes = known.classes
    x, known = features_of(known, 0)
    check_none_lost(classes, known)
    z, asked = features_of(asked, total - len(asked))
    classifier = make_classifier(loaded, preset, settings, device, seed).fit(x, np.array(known.labels))
    table = predict_features(classifier, z, reject)
    shown = asked.texts if isinstance(asked, Texts) else asked.names
    table = {"item": np.array(shown, object), **{k: v for k, v in table.items() if k != "row"}}
    truth = true_classes(asked.labels, classes, reject is not None)
    return Answers(table, known, asked, truth, _method_name(loaded, preset), model, classifier)


def check_none_lost(classes: Sequence[str], kept: Items) -> None:
    """Refuse examples of which a class has lost all, since they cannot be read: it would never be an answer."""
    if lost := sorted(set(classes) - set(kept.classes)):
        raise InputError(f"no example of class {lost[0]!r} can be read; add one that can")


def _method_name(bank: BaseBank | None, preset: str | None) -> str:
    model = "HGDC" if preset is None else f"GDC, preset {preset}"
    return "support-only, no base classes" if bank is None else f"{model}, {len(bank)} base classes"


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
    """Refuse a bank of another extractor; warn where a bank does not say."""
    check_same_features(bank, extractor.stamp, extractor.dim)
    if "@" not in (bank.source or "").partition(" ")[0]:
        warnings.warn(
            f"the bank does not say which extractor made it; it must be {extractor.name} for the answers to make sense",
            FewcalWarning,
            stacklevel=3,
        )
