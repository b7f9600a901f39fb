"""What pages and exports see of a project, as plain values."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from fewcal._utils.types import JSON as Json
from fewcal.apply.labelling import MAX_UNSEEN, doubt
from fewcal.apply.studio.exports import Row
from fewcal.apply.studio.intake import classes_by_folder, classes_by_label
from fewcal.apply.studio.moment import Answered, Moment
from fewcal.apply.studio.project import Studio
from fewcal.apply.studio.store import NONE_CLASS
from fewcal.errors import InputError

NEAREST = 6
BASES = 5
TOP = 5  # classes of a card, by probability


def state(studio: Studio) -> dict[str, Json]:
    """Everything a page shows, of one moment."""
    answered = studio.answers()
    moment = answered.moment
    counts = list(moment.labels.values())
    expected = answered.expected()
    undo, redo = moment.history
    return {
        "revision": moment.revision,
        "session": studio.session,
        "title": studio.folder.resolve().name,
        "kind": studio.kind,
        "extractor": moment.extractor,
        "base_classes": None if studio.settings.bank is None else len(studio.settings.bank),
        "reject": moment.reject,
        "classes": [{"id": i, "name": name, "count": counts.count(i)} for i, name in moment.classes.items()],
        # offered as classes as long as there are none
        "folders": list(classes_by_folder(moment.items)) if set(moment.classes) == {NONE_CLASS} else [],
        # offered as long as a text that names its class has no label
        "named": [
            name for name, own in classes_by_label(moment.items).items() if any(i not in moment.labels for i in own)
        ],
        "notes": list(studio.notes),
        "items": _items(answered),
        "next": list(answered.suggested),
        "progress": asdict(moment.progress),
        "expected": None if expected is None else asdict(expected) | {"classes_missing": expected.unseen > MAX_UNSEEN},
        "check": _summary(moment),
        "undo": undo,
        "redo": redo,
    }


def _items(answered: Answered) -> list[Json]:
    moment, p = answered.moment, answered.probabilities
    place = {i: n for n, i in enumerate(moment.ids)}
    top = doubts = None
    if p is not None:
        top, doubts = np.argsort(-p, axis=1, kind="stable")[:, :TOP], doubt(p)
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


def _summary(moment: Moment) -> Json:
    """Of the last check: how many examples were answered correctly, and which otherwise, as far as it still holds."""
    checked = moment.checked
    if checked is None or checked.check is None:
        return None
    numbers = {name: i for i, name in moment.classes.items()}
    found = [(checked.items[s.row], s) for s in checked.check.suspects if s.answer in numbers]
    otherwise: dict[str, Json] = {
        str(i): [numbers[s.answer], round(s.answer_probability, 4), s.likely]
        for i, s in found
        if moment.labels.get(i) == checked.labels.get(i)
    }
    return {"right": checked.check.right, "tested": checked.check.tested, "otherwise": otherwise}


def check(studio: Studio) -> dict[str, Json]:
    """What cross-validation finds of the examples, by items; nothing with fewer than two classes."""
    checked = studio.check()
    found, items = checked.check, checked.items
    if found is None:
        return {}
    suspects: list[Json] = [s.to_dict() | {"item": items[s.row]} for s in found.suspects]
    groups: list[Json] = [[items[row] for row in group] for group in found.duplicates]
    return {**found.to_dict(), "suspects": suspects, "duplicates": groups}


def why(studio: Studio, number: int) -> dict[str, Json]:
    """What supports the answer to one item: all probabilities, the nearest examples, base classes of the answer."""
    answered = studio.answers()
    ids, names = answered.moment.ids, answered.moment.classes
    item = studio.store.item(number)
    if number not in ids:
        raise InputError(item.error or f"{item.name} has no features yet")
    n = ids.index(number)
    answer = answered.answer(n)
    p = answered.probabilities
    outliers = None if answered.prediction is None else answered.prediction.outliers
    order = [] if p is None else np.argsort(-p[n], kind="stable").tolist()
    return {
        "id": number,
        "name": item.name,
        "answer": None if answer is None else names[answer],
        "probabilities": [] if p is None else [[names[answered.columns[c]], round(float(p[n, c]), 4)] for c in order],
        "nearest": _nearest(answered, n),
        "bases": _bases(studio, answered, answer),
        "outlier": None if outliers is None else round(float(outliers[n]), 4),
    }


def _nearest(answered: Answered, n: int) -> list[Json]:
    """The labelled items most similar to row n, by the cosine of centred features."""
    at, classes = answered.moment.examples()
    z, ids = answered.similarity.z, answered.moment.ids
    cosines = z[at] @ z[n]
    order = [m for m in np.argsort(-cosines, kind="stable").tolist() if at[m] != n][:NEAREST]
    return [{"id": ids[at[m]], "class": str(classes[m]), "similarity": round(float(cosines[m]), 3)} for m in order]


def _bases(studio: Studio, answered: Answered, answer: int | None) -> list[Json]:
    """Base classes that shaped the class of the answer, with their shares in its calibrated mean."""
    if studio.settings.bank is None or answered.prediction is None or answer is None:
        return []
    for one in answered.prediction.classifier.explain().classes:
        if str(one.label) == answered.moment.classes[answer]:
            pairs = list(zip(one.bases, one.shares, strict=True))[:BASES]
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
