"""Real use, end to end: a few labelled pictures or texts, some to classify, and out come answers with probabilities.

answers = classify("photos", "new", "efficientnet-lite0")
answers.write_csv("predictions.csv")
answers.write_html("sheet.html")
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal._utils.tables import html_table
from fewcal._utils.text import one_line
from fewcal._utils.types import JSON, StrPath
from fewcal.apply.checks import check_reject
from fewcal.apply.contact_sheet import contact_sheet
from fewcal.apply.predict import (
    NONE_OF_THESE,
    AnswerRow,
    accuracy,
    answer_rows,
    by_doubt,
    check_names,
    fit_named,
    in_words,
    make_classifier,
    model_settings,
    named_rows,
    predict_features,
    rejected,
    true_classes,
    write_predictions,
)
from fewcal.apply.reading import Reading, check_none_lost, check_same_extractor, load_bank
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.features.extractors import EmbedFunction, Extractor, as_extractor
from fewcal.features.sources.find import labelled_items
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import default_extractor

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier

# Answers in the table of a notebook.
MAX_SHOWN = 20


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """Predictions for pictures or texts.

    Attributes
    ----------
    table : columns: item (the text itself, or the name of the picture), prediction, probability, `outlier_pvalue`
        with a limit, one probability for each class
    support, query : the items that could be read
    truth : the classes of the queries where the source names them (as folders or labels), or None; where "none of
        these" is an answer, there may be others among them than those of the support
    method : in words, what answered
    classifier : the fitted classifier, for more rows from the same extractor
    alone : the accuracy to expect of items one by one, by their probabilities; None where these are the answers
    """

    table: dict[str, np.ndarray]
    support: Items
    query: Items
    truth: list[str] | None
    method: str
    extractor: Extractor
    classifier: TaskClassifier
    alone: float | None = None

    def __len__(self) -> int:
        return len(self.query)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {n}" for name, n in self.counts().items())
        return " ".join([f"{len(self)} answers ({counts}).", *self.in_words()])

    def _repr_html_(self) -> str:
        """The same for notebooks, with the answers that are least certain."""
        head = ["item", "answer", "probability", "next", "its probability"]
        rows = [
            [one_line(item), answer, "–" if p != p else f"{p:.0%}", other, f"{q:.0%}"]
            for item, answer, p, other, q in by_doubt(self.rows())[:MAX_SHOWN]
        ]
        return f"<p>{escape(repr(self))}</p>" + html_table(head, rows)

    @property
    def accuracy(self) -> float | None:
        """Share of right answers, None without a truth; "none of these" is no answer and not counted."""
        return accuracy(self.table, self.truth)

    @property
    def rejected(self) -> int | None:
        """How many items were answered "none of these"; None without a limit."""
        return rejected(self.table)

    def in_words(self) -> list[str]:
        """Sentences on the accuracy to expect, and on right answers and rejected items as far as the truth allows."""
        lines = in_words(self.table, self.truth, self.support.classes)
        if self.alone is not None:
            expected = float(self.table["probability"].mean())
            lines.insert(0, f"expected accuracy {expected:.0%} together, {self.alone:.0%} one by one (--each)")
        return lines

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
        """Write table and sheet, or the one that is given; the files."""
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
    each: bool = False,
    names: bool = False,
    seed: int = 0,
    reading: Reading | None = None,
) -> Answers:
    """Classify pictures or texts from a few labelled ones.

    Parameters
    ----------
    support : a folder with one folder for each class, a list, a pack, a file of texts, or `Items` with labels
    query : the same without labels, or a single picture; labels, where there are some, serve to score the answers
    extractor : a name (`features.extractors`), a torch module, or a function; None takes the usual one of pictures or
        texts, whichever the support holds
    bank : base classes from the same extractor. Without them the examples alone classify.
    reject : answer "none of these" where the p-value of belonging to one of the classes is lower
    each : classify the items one by one. By default they are classified together, where each helps with the others;
        without base classes or with a preset of GDC one by one.
    names : let the names of the classes help to find near base classes
    reading : how items become features
    """
    check_reject(reject, preset)
    check_names(names, bank, preset)
    how = reading or Reading()
    model_settings(settings, preset)  # refuses what is wrong before anything is read
    loaded = load_bank(bank)
    if extractor is None:
        extractor = default_extractor(support, how.columns[0])
    model = as_extractor(extractor, device=how.device, allow_download=how.allow_download)
    examples = labelled_items(support, model.kind, how.columns)
    queries = how.find(query, model.kind)
    if loaded is not None:
        check_same_extractor(loaded, model)
    one_source = Path(examples.source).resolve() == Path(queries.source).resolve()
    if one_source and not set(examples.names).isdisjoint(queries.names):
        warnings.warn(
            "the examples themselves are classified; the share of right answers does not hold for new ones",
            FewcalWarning,
            stacklevel=2,
        )
    total = len(examples) + len(queries)

    def report(done: int, _: int) -> None:
        if how.progress is not None:
            how.progress(done, total)

    classes = examples.classes
    given = len(examples)
    x, examples = how.embed(examples, model, report)
    check_none_lost(classes, examples)
    z, queries = how.embed(queries, model, lambda done, _: report(given + done, total))
    classifier = make_classifier(loaded, preset, settings, how.device, seed)
    fit_named(classifier, x, np.array(examples.labels), names)
    each = each or preset is not None or loaded is None
    table = named_rows(predict_features(classifier, z, reject, together=not each), queries)
    alone = None if each else float(classifier.predict_proba(z).max(axis=1).mean())
    truth = true_classes(queries.labels, classes, reject is not None)
    return Answers(table, examples, queries, truth, _method_name(loaded, preset), model, classifier, alone)


def _method_name(bank: BaseBank | None, preset: str | None) -> str:
    model = "HGDC" if preset is None else f"GDC, preset {preset}"
    return "support-only, no base classes" if bank is None else f"{model}, {len(bank)} base classes"
