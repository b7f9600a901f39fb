"""From what a user names to items, before anything heavy is imported: what is wrong with a source is told at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.features.sources.ahead import reading_ahead
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import EXTRACTOR_KINDS, SQUARES, default_extractor
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
) -> Iterator[tuple[StrPath | Items, StrPath | Items | None]]:
    """Examples and what to classify, as items whose first pictures are read while the caller imports torch.

    Sources for an extractor that only torch's side knows (`EXTRACTOR_KINDS`) come back as they are.
    """
    name = extractor or default_extractor(support, columns[0])
    kind = EXTRACTOR_KINDS.get(name)
    if kind is None:
        yield support, query
        return
    known = labelled_items(support, kind, columns)
    asked = None if query is None else find_items(query, kind, False, *columns)
    if name not in SQUARES:
        yield known, asked
        return
    with reading_ahead([known] if asked is None else [known, asked], *SQUARES[name], workers) as begun:
        yield begun[0], None if asked is None else begun[1]
