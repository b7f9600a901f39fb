"""Projects of the studio, opened for a test and closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fewcal.apply.studio import Studio, StudioSettings
from fewcal.apply.studio.store import ProjectStore
from fewcal.features.extractors import Extractor
from studio_project import colour_extractor, colour_folder, embedded, word_extractor


@pytest.fixture
def open_studio() -> Iterator[Callable[..., Studio]]:
    """Opens a project, started and embedded, after it has closed the last one."""
    last = ExitStack()

    def make(folder: Path, extractor: Extractor | None = None, start: bool = True, **settings: object) -> Studio:
        last.close()
        chosen = extractor or colour_extractor()
        studio = Studio(folder, StudioSettings(extractor=chosen, **settings))  # type: ignore[arg-type]
        last.callback(studio.close)
        if start:
            studio.start()
            embedded(studio)
        return studio

    with last:
        yield make


@pytest.fixture
def studio(tmp_path: Path, open_studio: Callable[..., Studio]) -> Studio:
    """Six pictures of each of three colours."""
    return open_studio(colour_folder(tmp_path / "photos"))


@pytest.fixture
def open_texts(tmp_path: Path, open_studio: Callable[..., Studio]) -> Callable[..., Studio]:
    """Opens a project of texts, by default in the folder of the test."""
    return lambda folder=tmp_path, **settings: open_studio(folder, word_extractor(), **settings)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], ProjectStore]]:
    """Opens the store of the folder of the test, after it has closed the last one."""
    last = ExitStack()

    def make() -> ProjectStore:
        last.close()
        store = ProjectStore(tmp_path)
        last.callback(store.close)
        return store

    with last:
        yield make
