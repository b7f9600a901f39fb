"""Real use, end to end: a few labelled pictures or texts, some to classify, and out come answers with probabilities.

answers = classify("photos", "new", "efficientnet-lite0")
answers.write_csv("predictions.csv")
answers.write_html("sheet.html")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewcal.apply.predict import NONE_OF_THESE, check_reject, gdc_settings, predict_features, write_predictions
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.extract import Progress, embed, find_items
from fewcal.features.extractors import Extractor, as_extractor
from fewcal.features.sources.items import Items
from fewcal.features.sources.texts import Texts

# A sheet with more pictures than this is slow to open and nobody looks through it.
MOST_ON_SHEET = 600


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions for pictures or texts.

    Attributes
    ----------
    table : columns: item (the text itself, or the name of the picture), prediction, probability, `p_other` if asked
        for, one probability for each class
    support, query : the items that could be read
    truth : the classes of the queries where the source names them (as folders or labels), or None
    method : in words, what answered
    classifier : the fitted classifier, for more rows from the same extractor
    """

    table: dict[str, Any]
    support: Items
    query: Items
    truth: list[str] | None
    method: str
    extractor: Extractor
    classifier: Any

    def __len__(self) -> int:
        return len(self.query)

    @property
    def accuracy(self) -> float | None:
        """Share of right answers, where the truth is known."""
        if self.truth is None:
            return None
        return float(np.mean(self.table["prediction"] == np.array(self.truth, object)))

    def counts(self) -> dict[str, int]:
        """Number of answers of each kind, in the order of the classes."""
        names = [*self.support.classes, NONE_OF_THESE]
        found = [str(p) for p in self.table["prediction"]]
        return {name: found.count(name) for name in names if name in self.support.classes or name in found}

    def rows(self) -> list[tuple[str, str, float, str, float]]:
        """For each query: item, prediction, its probability, the next class, its probability."""
        classes = [k for k in self.table if k.startswith("p(")]
        p = np.stack([self.table[k] for k in classes], axis=1)
        order = np.argsort(-p, axis=1, kind="stable")
        out = []
        for i, item in enumerate(self.table["item"]):
            first, second = order[i, 0], order[i, 1]
            name = str(self.table["prediction"][i])
            out.append((item, name, float(p[i, first]), classes[second][2:-1], float(p[i, second])))
        return out

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """The table as .csv or .parquet."""
        write_predictions({k: np.asarray(v) for k, v in self.table.items()}, path)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """A contact sheet to look at: every query under its answer, the doubtful ones last."""
        _sheet(self).write(path)


def classify(
    support: str | os.PathLike[str] | Items,
    query: str | os.PathLike[str] | Items,
    extractor: str | Extractor | Callable[[Any], Any] = "efficientnet-lite0",
    *,
    bank: str | os.PathLike[str] | BaseBank | None = None,
    preset: str = "default",
    settings: Sequence[str] = (),
    reject: float | None = None,
    batch: int = 32,
    workers: int | None = None,
    device: str | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    allow_download: bool = False,
    progress: Progress | None = None,
) -> Answers:
    """Classify pictures or texts from a few labelled ones.

    Parameters
    ----------
    support : a folder with one folder for each class, a list, a pack, a file of texts, or `Items` with labels
    query : the same without labels, or a single picture; labels, where there are some, serve to score the answers
    extractor : a name (`features.extractors`), a torch module, or a function
    bank : base classes from the same extractor. Without them the answer comes from a plain discriminant on
        L2-normalised features (after a square root, where these are ≥ 0).
    reject : with a bank, answer "none of these" where more than this share of base examples fit as well
    """
    check_reject(reject)
    if reject is not None and bank is None:
        raise InputError("'none of these' is judged against base classes: --reject needs --bank")
    changes = gdc_settings(settings)
    model = as_extractor(extractor, device=device, allow_download=allow_download)
    known = _listed(support, model, labelled=True)
    if len(known.classes) < 2:
        raise InputError(
            f"{known.source} has one class only, {known.classes[0]!r}; give examples of at least two classes"
        )
    asked = _listed(query, model, labelled=False)
    loaded = bank if bank is None or isinstance(bank, BaseBank) else BaseBank.load(bank)
    if loaded is not None:
        check_same_extractor(loaded, model)
    total = len(known) + len(asked)
    how: dict[str, Any] = {"batch": batch, "workers": workers, "skip_bad": skip_bad}

    def offset(by: int) -> Progress | None:
        return None if progress is None else lambda done, _: progress(by + done, total)

    classes = known.classes
    x, known = embed(known, model, progress=offset(0), **how)
    if lost := sorted(set(classes) - set(known.classes)):
        raise InputError(f"no example of class {lost[0]!r} can be read; add one that can")
    z, asked = embed(asked, model, progress=offset(total - len(asked)), **how)
    classifier = _fitted(x, known.labels or [], model.beta, loaded, preset, changes, device, seed)
    table = predict_features(classifier, z, reject)
    shown = asked.texts if isinstance(asked, Texts) else asked.names
    table = {"item": shown, **{k: v for k, v in table.items() if k != "row"}}
    truth = asked.labels if asked.labels is not None and set(asked.labels) <= set(known.classes) else None
    if loaded is None:
        method = "plain discriminant, no base classes"
    else:
        method = f"GDC, preset {preset}, {len(loaded)} base classes"
    return Answers(table, known, asked, truth, method, model, classifier)


def _listed(source: str | os.PathLike[str] | Items, model: Extractor, labelled: bool) -> Items:
    items = source if isinstance(source, Items) else find_items(source, model.kind, labelled)
    if labelled and items.labels is None:
        raise InputError(f"{items.source} has no labels; every example needs a class")
    return items


def _fitted(
    x: np.ndarray,
    labels: list[str],
    beta: float,
    bank: BaseBank | None,
    preset: str,
    changes: dict[str, Any],
    device: str | None,
    seed: int,
) -> Any:
    from sklearn.pipeline import make_pipeline

    from fewcal.estimators import Gaussianizer, GDCClassifier

    classifier = GDCClassifier(bank=bank, preset=preset, device=device, random_state=seed, **changes)
    if bank is None:
        classifier = make_pipeline(Gaussianizer(beta=beta, l2=True), classifier)
    return classifier.fit(x, np.array(labels))


def check_same_extractor(bank: BaseBank, extractor: Extractor) -> None:
    """Refuse a bank of another extractor; warn where a bank does not say."""
    stamp = (bank.source or "").partition(" ")[0]
    if "@" in stamp and stamp != extractor.stamp:
        raise InputError(
            f"the bank was made with {stamp} and the extractor is {extractor.stamp}; use the extractor of the bank"
        )
    if bank.dim != extractor.dim:
        raise InputError(
            f"the bank has {bank.dim} features and {extractor.name} gives {extractor.dim}; "
            "extract the base classes with the same extractor"
        )
    if "@" not in stamp:
        warnings.warn(
            f"the bank does not say which extractor made it; it must be {extractor.name} for the answers to make sense",
            FewcalWarning,
            stacklevel=3,
        )


# ---- the sheet ------------------------------------------------------------------------------------------------------


def _sheet(answers: Answers) -> Any:
    from fewcal.render.page import Cell, Page

    query, support = answers.query, answers.support
    page = Page(
        f"{len(query)} {query.kind}s, {len(support.classes)} classes",
        f"{answers.extractor.name}; {answers.method}; {len(support)} examples",
    )
    page.heading("Answers")
    examples = {c: (support.labels or []).count(c) for c in support.classes}
    counts = answers.counts()
    page.table(
        ["class", "examples", f"{query.kind}s"], [[c, examples.get(c, 0), n] for c, n in counts.items()], sortable=False
    )
    if answers.accuracy is not None:
        page.text(f"{100 * answers.accuracy:.1f}% agree with the folders or labels of the queries.")
    rows = answers.rows()
    if query.kind == "text":
        page.table(
            ["text", "answer", "%", "next", "%"],
            [[t, a, _percent(p), b, _percent(q)] for t, a, p, b, q in rows],
        )
        page.heading("Examples")
        page.table(["text", "class"], [[support.load(i), c] for i, c in enumerate(support.labels or [])])
        return page
    shown = range(min(len(rows), MOST_ON_SHEET))
    if len(shown) < len(rows):
        page.note(f"Only the first {len(shown)} of {len(rows)} pictures are shown; the table has all of them.")
    for name in counts:
        mine = sorted((i for i in shown if rows[i][1] == name), key=lambda i: -rows[i][2])
        page.heading(name)
        if name in examples:
            with page.details(f"{examples[name]} examples"):
                own = [i for i, c in enumerate(support.labels or []) if c == name][:24]
                page.gallery([(_thumbnail(support, i), support.names[i], Path(support.names[i]).name) for i in own])
        if not mine:
            page.text("None.")
            continue
        page.gallery([(_thumbnail(query, i), rows[i][0], _caption(answers, rows[i], i)) for i in mine])
    page.heading("Table")
    page.table(
        ["picture", "answer", "%", "next", "%"],
        [[r[0], Cell(r[1], mark="warn" if r[2] < 0.5 else ""), _percent(r[2]), r[3], _percent(r[4])] for r in rows],
    )
    return page


def _percent(p: float) -> float:
    return round(100 * p, 1)


def _caption(answers: Answers, row: tuple[str, str, float, str, float], i: int) -> str:
    item, name, p, second, q = row
    wrong = f"⚠ is {answers.truth[i]}; " if answers.truth is not None and answers.truth[i] != name else ""
    return f"{wrong}{100 * p:.0f}%, then {second} {100 * q:.0f}%; {Path(item).name}"


def _thumbnail(items: Items, i: int) -> bytes:
    from fewcal.features.sources.pictures import encoded

    return encoded(items.load(i, 320))
