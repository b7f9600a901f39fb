"""Pictures that are read before they are asked for: while torch is imported, cores have nothing else to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np

from fewcal.errors import InputError
from fewcal.features.sources.items import LEAVE_OUT, Items, refuse_bad
from fewcal.features.sources.pictures import Pictures

# Pictures that are held until somebody asks for them, of 150 kB each.
MOST = 128
# Pictures of a source whose headers are looked at; it takes up to half a millisecond each.
MOST_CHECKED = 1000


@dataclass(frozen=True, eq=False)
class PicturesAhead(Pictures):
    """Pictures of which some are being brought to squares of `size` and `crop`; each of these is handed out once."""

    size: int = 0
    crop: float = 1.0
    begun: dict[int, Future[np.ndarray]] = field(default_factory=dict)

    def square(self, i: int, size: int | None, crop: float | None = 1.0) -> np.ndarray:
        """Picture i as uint8 `(size, size, 3)`; see `decode_fitted`."""
        begun = self.begun.pop(i, None) if (size, crop) == (self.size, self.crop) else None
        return super().square(i, size, crop) if begun is None else begun.result()

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """Some of them, in the order given; those are read when they are asked for."""
        return replace(super().take(indices), begun={})


def check_first(sources: Sequence[Items]) -> None:
    """Refuse sources with empty texts, or whose first pictures cannot be read by their headers: empty files, other
    kinds, other formats."""
    for source in sources:
        most = MOST_CHECKED if isinstance(source, Pictures) else len(source)
        found = (_error(source, i) for i in range(min(len(source), most)))
        refuse_bad([error for error in found if error is not None], len(source), LEAVE_OUT)


def _error(items: Items, i: int) -> InputError | None:
    try:
        items.check(i)
    except InputError as error:
        return error
    return None


@contextmanager
def reading_ahead(
    sources: Sequence[Items], size: int, crop: float, workers: int | None = None
) -> Iterator[list[Items]]:
    """The same sources, with threads that decode the first pictures until the context ends."""
    pool = ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1), "fewcal-read-ahead")
    left, out = MOST, []
    try:
        for source in sources:
            if isinstance(source, Pictures):
                first = range(min(left, len(source)))
                left -= len(first)
                begun = {i: pool.submit(source.square, i, size, crop) for i in first}
                given = {f.name: getattr(source, f.name) for f in fields(source)}
                source = PicturesAhead(**given, size=size, crop=crop, begun=begun)
            out.append(source)
        yield out
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
