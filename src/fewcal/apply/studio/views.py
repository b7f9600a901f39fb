"""What pages and exports see of a project, as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TypeAlias

import numpy as np

from fewcal.apply.studio.answers import doubt
from fewcal.apply.studio.exports import Row
from fewcal.apply.studio.intake import classes_by_folder, classes_by_label
from fewcal.apply.studio.moment import Answered, Moment
from fewcal.apply.studio.project import Studio
from fewcal.apply.studio.store import NONE_CLASS
from fewcal.errors import InputError

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
MOST_NEAREST = 6
MOST_BASES = 5
_TOP = 3  # probabilities that a card shows


def state(studio: Studio) -> dict[str, Json]:
    """Everything a page shows, of one moment."""
    answered = studio.answers()
    moment = answered.moment
    counts = list(moment.labels.values())
    expected = answered.expected()
    undo, redo = moment.history
    return {
        "revision": moment.revision,
        "started": studio.started,
        "title": studio.folder.resolve().name,
        "kind": studio.kind,
        "extractor": moment.extractor,
        "base_classes": None if studio.settings.bank is None else len(studio.settings.bank),
        "reject": moment.reject,
        "classes": [{"id": i, "name": name, "count": counts.count(i)} for i, name in moment.classes.items()],
        # offered as classes as long as there are none
        "folders": list(classes_by_folder(moment.items)) if set(moment.classes) == {NONE_CLASS} else [],
        # offered as long as one of them has no label
        "named": [
            name for name, own in classes_by_label(moment.items).items() if any(i not in moment.labels for i in own)
        ],
        "notes": list(studio.notes),
        "items": _items(answered),
        "next": list(answered.suggested),
        "progress": asdict(moment.progress),
        "expected": None if expected is None else asdict(expected),
        "left_out": None if moment.left_out is None else asdict(moment.left_out),
        "undo": undo,
        "redo": redo,
    }


def _items(answered: Answered) -> list[Json]:
    moment, p = answered.moment, answered.probabilities
    place = {i: n for n, i in enumerate(moment.ids)}
    top = doubts = None
    if p is not None:
        top, doubts = np.argsort(-p, axis=1, kind="stable")[:, :_TOP], doubt(p)
    out: list[Json] = []
    for item in moment.items:
        row: dict[str, Json] = {"id": item.id, "name": item.name, "state": item.state}
        if item.text is not None:
            row["text"] = item.text
        if item.error is not None:
            row["error"] = item.error
        if item.id in moment.labels:
            row["label"] = moment.labels[item.id]
        n = place.get(item.id)
        if n is not None and p is not None and top is not None and doubts is not None:
            row["answer"] = answered.answer(n)
            row["doubt"] = round(float(doubts[n]), 4)
            row["top"] = [[answered.columns[c], round(float(p[n, c]), 4)] for c in top[n]]
        out.append(row)
    return out


def why(studio: Studio, number: int) -> dict[str, Json]:
    """What speaks for the answer to one item: all probabilities, the nearest examples, base classes of the answer."""
    answered = studio.answers()
    ids, names = answered.moment.ids, answered.moment.classes
    item = studio.store.item(number)
    if number not in ids:
        raise InputError(item.error or f"{item.name} has no features yet")
    n = ids.index(number)
    answer = answered.answer(n)
    p = answered.probabilities
    order = [] if p is None else np.argsort(-p[n], kind="stable").tolist()
    return {
        "id": number,
        "name": item.name,
        "answer": None if answer is None else names[answer],
        "probabilities": [] if p is None else [[names[answered.columns[c]], round(float(p[n, c]), 4)] for c in order],
        "nearest": _nearest(answered.moment, n),
        "bases": _bases(studio, answered, answer),
        "outlier": None if answered.outliers is None else round(float(answered.outliers[n]), 4),
    }


def _nearest(moment: Moment, n: int) -> list[Json]:
    """The labelled items most similar to row n, by the cosine of centred features."""
    ids, labels = moment.ids, moment.labels
    at = [m for m, i in enumerate(ids) if i in labels and m != n]
    if not at:
        return []
    x = moment.x - moment.x.mean(axis=0)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    cosines = x[at] @ x[n]
    nearest = np.argsort(-cosines, kind="stable")[:MOST_NEAREST]
    return [
        {
            "id": ids[at[m]],
            "class": moment.classes[labels[ids[at[m]]]],
            "similarity": round(float(cosines[m]), 3),
        }
        for m in nearest
    ]


def _bases(studio: Studio, answered: Answered, answer: int | None) -> list[Json]:
    """Base classes that shaped the class of the answer, with their shares in its calibrated mean."""
    if studio.settings.bank is None or answered.classifier is None or answer is None:
        return []
    story = answered.classifier.explain()
    for one in story.classes:
        if str(one.label) == answered.moment.classes[answer]:
            pairs = list(zip(one.bases, one.shares, strict=True))[:MOST_BASES]
            seen = studio.settings.base_picture is not None
            return [{"name": str(base), "share": round(float(share), 3), "picture": seen} for base, share in pairs]
    return []


def export_rows(answered: Answered) -> tuple[list[Row], list[str]]:
    """All items as exports have them, labels of people where they are and answers elsewhere; names of the columns."""
    moment, names = answered.moment, answered.moment.classes
    place = {i: n for n, i in enumerate(moment.ids)}
    out = []
    for item in moment.items:
        n, answer = place.get(item.id), moment.labels.get(item.id)
        shown = None
        if n is not None and answered.probabilities is not None:
            shown = tuple(answered.probabilities[n].tolist())
            answer = answered.answer(n) if answer is None else answer
        name = None if answer is None else names[answer]
        out.append(Row(item.name, item.text, name, item.id in moment.labels, shown))
    return out, [names[c] for c in answered.columns]
