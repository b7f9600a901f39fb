"""From what a user names to items, before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.features.extractors import require_extractor
from fewcal.features.sources.items import LEAVE_OUT, Items, refuse_bad
from fewcal.features.sources.kinds import Frame, default_extractor, find_frame
from fewcal.features.sources.pictures import Pictures, find_pictures
from fewcal.features.sources.recordings import find_recordings
from fewcal.features.sources.texts import find_texts

# Pictures of a source whose headers are looked at; each takes up to half a millisecond.
MAX_CHECKED = 1000


def find_items(
    source: StrPath | Frame, kind: str, labelled: bool = True, text: str = "text", label: str = "label"
) -> Items:
    """Return the items of one source, a path or a DataFrame; see `find_pictures`, `find_texts`, `find_recordings`."""
    if not isinstance(source, str | os.PathLike):
        return find_frame(source, kind, labelled, text, label)
    if kind == "text":
        return find_texts(source, labelled, text, label)
    return find_pictures(source, labelled) if kind == "picture" else find_recordings(source, labelled)


def labelled_items(source: StrPath | Items | Frame, kind: str, columns: tuple[str, str] = ("text", "label")) -> Items:
    """Return examples to learn from: items of at least two classes."""
    items = source if isinstance(source, Items) else find_items(source, kind, True, *columns)
    if items.labels is None:
        raise InputError(f"{items.source} has no labels; every example needs a class")
    if len(items.classes) < 2:
        raise InputError(
            f"{items.source} has one class only, {items.classes[0]!r}; give examples of at least two classes"
        )
    return items


def find_pair(
    support: StrPath,
    query: StrPath | None = None,
    extractor: str | None = None,
    columns: tuple[str, str] = ("text", "label"),
    skip_bad: bool = False,
) -> tuple[StrPath | Items, StrPath | Items | None]:
    """Return examples and what to classify as items; without `skip_bad` unreadable ones are refused by their headers.

    Sources for an extractor of several kinds come back as they are, since only its model has the kind.
    """
    kind = require_extractor(extractor or default_extractor(support, columns[0])).kind
    if kind == "either":
        return support, query
    examples = labelled_items(support, kind, columns)
    queries = None if query is None else find_items(query, kind, False, *columns)
    if not skip_bad:
        check_headers([examples] if queries is None else [examples, queries])
    return examples, queries


def check_headers(sources: Sequence[Items]) -> None:
    """Refuse sources with empty texts, or with files among the first that are no pictures by their headers."""
    for source in sources:
        errors = []
        for i in range(min(len(source), MAX_CHECKED) if isinstance(source, Pictures) else len(source)):
            try:
                source.check(i)
            except InputError as error:
                errors.append(error)
        refuse_bad(errors, len(source), LEAVE_OUT)
