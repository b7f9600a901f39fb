"""From what a user names to items, before anything heavy is imported: what is wrong with a source is told at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.features.extractors import require_extractor
from fewcal.features.extractors.base import Entry
from fewcal.features.sources.ahead import check_first, reading_ahead
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import default_extractor
from fewcal.features.sources.pictures import find_pictures
from fewcal.features.sources.texts import find_texts


def find_items(source: StrPath, kind: str, labelled: bool = True, text: str = "text", label: str = "label") -> Items:
    """The pictures or texts of one source; see `find_pictures` and `find_texts`."""
    return find_pictures(source, labelled) if kind == "picture" else find_texts(source, labelled, text, label)


def labelled_items(source: StrPath | Items, kind: str, columns: tuple[str, str] = ("text", "label")) -> Items:
    """Examples to learn from: items with classes, of which there are at least two."""
    items = source if isinstance(source, Items) else find_items(source, kind, True, *columns)
    if items.labels is None:
        raise InputError(f"{items.source} has no labels; every example needs a class")
    if len(items.classes) < 2:
        raise InputError(
            f"{items.source} has one class only, {items.classes[0]!r}; give examples of at least two classes"
        )
    return items


@contextmanager
def found_ahead(
    support: StrPath,
    query: StrPath | None = None,
    extractor: str | None = None,
    columns: tuple[str, str] = ("text", "label"),
    workers: int | None = None,
    skip_bad: bool = False,
) -> Iterator[tuple[StrPath | Items, StrPath | Items | None]]:
    """Examples and what to classify, as items whose first pictures are read while the caller imports torch.

    Without `skip_bad`, empty texts and pictures that cannot be read by their headers are refused before.

    Sources for an extractor that may take pictures or texts come back as they are: only its model tells which.
    """
    entry = require_extractor(extractor or default_extractor(support, columns[0]))
    if entry.kind == "either":
        yield support, query
        return
    known = labelled_items(support, entry.kind, columns)
    asked = [] if query is None else [find_items(query, entry.kind, False, *columns)]
    with read_ahead([known, *asked], entry, workers, skip_bad) as begun:
        yield begun[0], begun[1] if asked else None


@contextmanager
def read_ahead(
    sources: Sequence[Items], entry: Entry, workers: int | None = None, skip_bad: bool = False
) -> Iterator[Sequence[Items]]:
    """The same sources; threads begin to read pictures as an extractor takes them, where that is known already."""
    if not skip_bad:
        check_first(sources)
    with nullcontext(sources) if entry.square is None else reading_ahead(sources, *entry.square, workers) as begun:
        yield begun
