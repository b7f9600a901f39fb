"""What pages and exports see of a project, as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TypeAlias

import numpy as np

from fewcal.apply.studio.answers import doubt
from fewcal.apply.studio.exports import Row
from fewcal.apply.studio.project import Answered, Studio
from fewcal.errors import InputError

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
MOST_NEAREST = 6
MOST_BASES = 5
_TOP = 3  # probabilities that a card shows


def state(studio: Studio) -> dict[str, Json]:
    """Everything a page shows."""
    with studio.lock:
        return _state(studio)


def _state(studio: Studio) -> dict[str, Json]:
    answered, labels = studio.answers(), studio.store.labels()
    undo, redo = studio.store.history()
    counts = list(labels.values())
    estimate = studio.estimate
    return {
        "revision": studio.revision,
        "title": studio.folder.resolve().name,
        "kind": studio.kind,
        "extractor": studio.store.meta("extractor"),
        "base_classes": None if studio.settings.bank is None else len(studio.settings.bank),
        "reject": studio.reject,
        "classes": [{"id": i, "name": name, "count": counts.count(i)} for i, name in studio.class_names.items()],
        "items": _items(studio, answered, labels),
        "next": list(answered.suggested),
        "progress": asdict(studio.progress()),
        "estimate": None if estimate is None else asdict(estimate),
        "undo": undo,
        "redo": redo,
    }


def _items(studio: Studio, answered: Answered, labels: dict[int, int]) -> list[Json]:
    place = {i: n for n, i in enumerate(answered.ids)}
    p = answered.probabilities
    top = doubts = None
    if p is not None:
        top, doubts = np.argsort(-p, axis=1, kind="stable")[:, :_TOP], doubt(p)
    out: list[Json] = []
    for item in studio.store.items():
        row: dict[str, Json] = {"id": item.id, "name": item.name, "state": item.state}
        if item.text is not None:
            row["text"] = item.text
        if item.error is not None:
            row["error"] = item.error
        if item.id in labels:
            row["label"] = labels[item.id]
        n = place.get(item.id)
        if n is not None and p is not None and top is not None and doubts is not None:
            row["answer"] = studio.answer_of(answered, n)
            row["doubt"] = round(float(doubts[n]), 4)
            row["top"] = [[answered.columns[c], round(float(p[n, c]), 4)] for c in top[n]]
        out.append(row)
    return out


def why(studio: Studio, number: int) -> dict[str, Json]:
    """What speaks for the answer to one item: all probabilities, the nearest examples, base classes of the answer."""
    with studio.lock:
        answered, names = studio.answers(), studio.class_names
    item = studio.store.item(number)
    if number not in answered.ids:
        raise InputError(f"{item.name} has no features yet")
    n = answered.ids.index(number)
    answer = studio.answer_of(answered, n)
    p = answered.probabilities
    order = [] if p is None else np.argsort(-p[n], kind="stable").tolist()
    return {
        "id": number,
        "name": item.name,
        "answer": None if answer is None else names[answer],
        "probabilities": [] if p is None else [[names[answered.columns[c]], round(float(p[n, c]), 4)] for c in order],
        "nearest": _nearest(answered, n, names),
        "bases": _bases(studio, answered, answer, names),
        "outlier": None if answered.outliers is None else round(float(answered.outliers[n]), 4),
    }


def _nearest(answered: Answered, n: int, names: dict[int, str]) -> list[Json]:
    """The labelled items most similar to row n, by the cosine of centred features."""
    at = [m for m, i in enumerate(answered.ids) if i in answered.labels and m != n]
    if not at:
        return []
    x = answered.x - answered.x.mean(axis=0)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    cosines = x[at] @ x[n]
    nearest = np.argsort(-cosines, kind="stable")[:MOST_NEAREST]
    return [
        {
            "id": answered.ids[at[m]],
            "class": names[answered.labels[answered.ids[at[m]]]],
            "similarity": round(float(cosines[m]), 3),
        }
        for m in nearest
    ]


def _bases(studio: Studio, answered: Answered, answer: int | None, names: dict[int, str]) -> list[Json]:
    """Base classes that shaped the class of the answer, with their shares in its calibrated mean."""
    if studio.settings.bank is None or answered.classifier is None or answer is None:
        return []
    story = answered.classifier.explain()
    for one in story.classes:
        if str(one.label) == names[answer]:
            pairs = list(zip(one.bases, one.shares, strict=True))[:MOST_BASES]
            seen = studio.settings.base_picture is not None
            return [{"name": str(base), "share": round(float(share), 3), "picture": seen} for base, share in pairs]
    return []


def export_rows(studio: Studio) -> tuple[list[Row], list[str]]:
    """All items as exports have them, labels of people where they are and answers elsewhere; names of the columns."""
    with studio.lock:
        answered, names, labels = studio.answers(), studio.class_names, studio.store.labels()
    place = {i: n for n, i in enumerate(answered.ids)}
    out = []
    for item in studio.store.items():
        n, answer = place.get(item.id), labels.get(item.id)
        shown = None
        if n is not None and answered.probabilities is not None:
            shown = tuple(answered.probabilities[n].tolist())
            answer = studio.answer_of(answered, n) if answer is None else answer
        name = None if answer is None else names[answer]
        out.append(Row(item.name, item.text, name, item.id in labels, shown))
    return out, [names[c] for c in answered.columns]
