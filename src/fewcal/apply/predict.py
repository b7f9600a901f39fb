"""Real use from files: fit on a few labelled examples, predict rows, write a table."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.text import csv_text, storable
from fewcal._utils.types import StrPath
from fewcal.apply.checks import checked_reject, checked_table_file
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.features.sources.items import Items
from fewcal.features.sources.texts import Texts
from fewcal.methods import parse_settings

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier

NONE_OF_THESE = "none of these"
Setting: TypeAlias = str | int | float | bool | None
# Columns of a table of predictions, all of one length.
Columns: TypeAlias = dict[str, np.ndarray]
# item, answer, its probability, the next class, its probability
AnswerRow: TypeAlias = tuple[str, str, float, str, float]


class Classifier(Protocol):
    """What predictions need of a classifier in the manner of scikit-learn."""

    classes_: np.ndarray

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self: ...

    def predict_proba(self, X: np.ndarray) -> np.ndarray: ...


def make_classifier(
    bank: BaseBank | None,
    preset: str | None = None,
    settings: Sequence[str] = (),
    device: str | None = None,
    seed: int = 0,
) -> TaskClassifier:
    """The recommended classifier, or the paper's GDC with a preset; `settings` are `key=value` for its parameters."""
    from fewcal.estimators import FewShotClassifier, GDCClassifier

    changes = model_settings(settings, preset)
    if preset is None:
        return FewShotClassifier(bank, device=device, **changes)  # type: ignore[arg-type]
    return GDCClassifier(bank, preset, device=device, random_state=seed, **changes)  # type: ignore[arg-type]


def check_names(names: bool, bank: object, preset: str | None) -> None:
    """Refuse `names` without base classes, or with a model that does not use them."""
    if names and (bank is None or preset is not None):
        raise InputError("--names compares with the names of base classes by HGDC; give --bank, and no --preset")


def fit_named(classifier: TaskClassifier, x: np.ndarray, labels: np.ndarray, names: bool) -> TaskClassifier:
    """Fit on rows and labels; with `names` the labels help to find near base classes."""
    return classifier.fit(x, labels, class_names=True) if names else classifier.fit(x, labels)  # type: ignore[call-arg]


def model_settings(settings: Sequence[str], preset: str | None = None) -> dict[str, Setting]:
    """Parameters of HGDC, or with a preset of GDC, from `key=value` texts; wrong ones are refused.

    >>> model_settings(["ridge=0.5"]), model_settings(["k=4"], "paper")
    ({'ridge': 0.5}, {'k': 4})
    """
    from fewcal.methods import make_method

    changes = parse_settings(settings)
    name = "hgdc" if preset is None else "gdc"
    if wrong := [m for m in changes if m not in ("gdc", name)]:
        raise InputError(f"--set {wrong[0]}.…: only parameters of {name} can be set here")
    given = changes.get("gdc", {}) | changes.get(name, {})
    make_method(name, preset, **given)
    return given


def rejected(table: Columns) -> int | None:
    """How many rows of a table of predictions were answered "none of these"; None without a limit."""
    return int(np.sum(table["prediction"] == NONE_OF_THESE)) if "outlier_pvalue" in table else None


def true_classes(labels: list[str] | None, classes: Sequence[str], rejects: bool) -> list[str] | None:
    """The classes that a source names, where they are those of the classifier; some of them, where it may reject.

    >>> true_classes(["cat", "cow"], ["cat", "dog"], rejects=False)
    """
    shared = set(labels or ()) & set(classes)
    return labels if shared and (rejects or shared == set(labels or ())) else None


def accuracy(table: Columns, truth: Sequence[str] | None) -> float | None:
    """Share of right answers, None without a truth; what was turned away has no answer and is not counted."""
    answered = _answered(table)
    return None if truth is None or not answered.any() else float(_right(table, truth).sum() / answered.sum())


def _answered(table: Columns) -> np.ndarray:
    """Rows that were not turned away; "none of these" may also be a class with examples, as in the studio."""
    found = table["prediction"]
    return found != NONE_OF_THESE if "outlier_pvalue" in table else np.ones(len(found), bool)


def _right(table: Columns, truth: Sequence[str]) -> np.ndarray:
    return (table["prediction"] == np.array(truth, object)) & _answered(table)


def in_words(table: Columns, truth: Sequence[str] | None, classes: Sequence[str]) -> list[str]:
    """Sentences on how many answers are right and how many rows got none, as far as the truth allows."""
    lines, refused, rows = [], rejected(table), len(table["prediction"])
    if refused is not None:
        lines.append(f"{refused} of {rows} were answered {NONE_OF_THESE!r}")
    if truth is None:
        return lines
    own = np.isin(np.array(truth, object).astype(str), classes)
    away = ~_answered(table)
    if refused:
        lines[0] += f", {int((own & away).sum())} of which are of one of the classes by their names"
    if not own.all():
        lines.append(f"{int((~own & ~away).sum())} of {int((~own).sum())} of other classes got an answer")
    if (share := accuracy(table, truth)) is not None:
        right, answered = int(_right(table, truth).sum()), rows - int(away.sum())
        lines.append(f"{right} of {answered} answers are right ({share:.1%}), by the class names in the source")
    return lines


def answer_rows(table: Columns) -> list[AnswerRow]:
    """For each row of a table of predictions: item, answer, its probability, the next class, its probability.

    "None of these" has no probability (NaN), and the class that would have been the answer is next to it.
    """
    classes = [k for k in table if k.startswith("p(")]
    p = np.stack([table[k] for k in classes], axis=1)
    order = np.argsort(-p, axis=1, kind="stable")
    items = table["item"] if "item" in table else table["row"]
    out = []
    for i, (item, name) in enumerate(zip(items, table["prediction"], strict=True)):
        away = "outlier_pvalue" in table and name == NONE_OF_THESE
        best, following = (math.nan, order[i, 0]) if away else (float(p[i, order[i, 0]]), order[i, 1])
        out.append((str(item), str(name), best, classes[following][2:-1], float(p[i, following])))
    return out


def by_doubt(rows: Sequence[AnswerRow]) -> list[AnswerRow]:
    """Rows of answers, those whose two best classes are nearest to each other first, and "none of these" last."""
    return sorted(rows, key=lambda row: (math.isnan(row[2]), row[4] if math.isnan(row[2]) else row[2] - row[4]))


def predict_features(
    classifier: Classifier, x: np.ndarray, reject: float | None = None, together: bool = False
) -> Columns:
    """Predictions for rows `x (Q, D)`, as columns: row, prediction, probability, one probability for each class.

    Rows are classified one by one, or `together`, where the others help (`FewShotClassifier.predict_together`).

    With `reject` there is also `outlier_pvalue`, small for rows that are unlike all classes; rows with a p-value below
    `reject` are answered "none of these".
    """
    from fewcal.estimators.few_shot import FewShotClassifier

    checked_reject(reject)
    if together and not isinstance(classifier, FewShotClassifier):
        raise InputError(f"{type(classifier).__name__} classifies one by one; that takes FewShotClassifier")
    predict_proba = classifier.predict_proba_together if together else classifier.predict_proba  # type: ignore[attr-defined]
    probabilities = predict_proba(x)
    best = probabilities.argmax(axis=1)
    answers = classifier.classes_[best].astype(object)
    table: Columns = {"row": np.arange(len(x)), "prediction": answers, "probability": probabilities.max(axis=1)}
    if reject is not None:
        if not isinstance(classifier, FewShotClassifier):
            raise InputError(
                f"{type(classifier).__name__} cannot answer {NONE_OF_THESE!r}; that takes FewShotClassifier"
            )
        p_values = classifier.outlier_pvalue(x)
        answers[p_values < reject] = NONE_OF_THESE
        table["outlier_pvalue"] = p_values
    for c, name in enumerate(classifier.classes_):
        table[f"p({name})"] = probabilities[:, c]
    return table


def named_rows(table: Columns, items: Items) -> Columns:
    """A table of predictions with the texts or names of the items in place of the numbers of rows."""
    shown = items.texts if isinstance(items, Texts) else items.names
    return {"item": np.array(shown, object), **{k: v for k, v in table.items() if k != "row"}}


def write_predictions(table: Columns, path: StrPath, raw: bool = False) -> None:
    """Write the columns as parquet or, by extension, CSV.

    In CSV a text that a spreadsheet would take for a formula begins with an apostrophe, unless `raw`.
    """
    target = Path(checked_table_file(path))
    cell = storable if raw else lambda text: csv_text(storable(text))
    if target.suffix == ".csv":
        with atomic_path(target) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(map(cell, table))
            for row in zip(*table.values(), strict=True):
                writer.writerow([cell(value) if isinstance(value, str) else value for value in row])
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {storable(k): pa.array(_storable(v)) for k, v in table.items()}
    with atomic_path(target) as temporary:
        pq.write_table(pa.table(columns), temporary)


def _storable(column: np.ndarray) -> np.ndarray | list[object]:
    if column.dtype.kind not in "OU":
        return column
    return [storable(value) if isinstance(value, str) else value for value in column.tolist()]
