"""Small studio projects for tests: pictures of plain colours, whose mean colour is the feature, and short texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from PIL import Image

from fewcal.apply.studio import Studio, StudioSettings
from fewcal.apply.studio.server import serve_studio
from fewcal.features.extractors import Extractor, as_extractor
from limits import PATIENCE

COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 200)}
Open = Callable[..., Studio]  # the fixtures `open_studio` and `open_texts`


def colour_extractor() -> Extractor:
    return as_extractor(lambda x: x.reshape(len(x), -1, 3).mean(axis=1), name="mean colour", size=8)


def word_extractor() -> Extractor:
    counts = [lambda t: t.count("sun"), lambda t: t.count("rain"), lambda t: 1]
    return as_extractor(lambda texts: [[c(t) for c in counts] for t in texts], name="words", kind="text")


def write_picture(path: Path, colour: tuple[int, int, int], seed: int) -> Path:
    rng = np.random.default_rng(seed)
    grain = np.array(colour) + rng.normal(0, 20, (24, 32, 3)) + rng.normal(0, 12, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(path)
    return path


def colour_folder(folder: Path, each: int = 6) -> Path:
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(each):
            write_picture(folder / f"{name}-{i}.png", colour, 100 * c + i)
    return folder


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for work of other threads; the limit is there for a broken test, not to measure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def embedded(studio: Studio) -> Studio:
    """Wait until nothing waits for features."""
    wait_until(lambda: studio.store.count("waiting") == 0 and studio.progress().stage == "idle")
    return studio


def ids(studio: Studio, name: str) -> list[int]:
    """The items whose name begins like this."""
    return [item.id for item in studio.store.items() if item.name.startswith(name)]


def assign(studio: Studio, items: list[int], number: int | None) -> None:
    """Give items one class."""
    studio.assign(dict.fromkeys(items, number))


def label_each(studio: Studio, shots: int = 1) -> dict[str, int]:
    """Give each colour a class and examples; the classes by name."""
    made = {}
    for name in COLOURS:
        made[name] = studio.add_class(name)
        assign(studio, ids(studio, name)[:shots], made[name])
    return made


def serve_texts(folder: Path, link: Connection) -> None:
    """What the command runs, with an extractor of lengths of texts; its address goes through `link`."""
    lengths = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="lengths", kind="text")
    serve_studio(folder, StudioSettings(extractor=lengths), token="token", opened=link.send)


def serve_colours(folder: Path, link: Connection) -> None:
    """The same for pictures of colours."""
    serve_studio(folder, StudioSettings(extractor=colour_extractor()), token="token", opened=link.send)
