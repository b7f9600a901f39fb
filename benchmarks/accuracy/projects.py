"""Projects of a studio to measure with: some classes of a feature folder, or letters drawn on the spot."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from fewcal import BaseBank
from fewcal.apply.studio.answers import Recipe, predict_items
from fewcal.features import FeatureSet
from fewcal.features.glyphs import draw_examples, extract_glyphs, glyph_classes

MADE = "glyphs"  # in place of a folder: letters of scripts that the network never saw
BASE_ROWS = 8


def add_project_options(parser: argparse.ArgumentParser, ways: int, runs: int) -> None:
    parser.add_argument("features", help=f"a feature folder, or {MADE} for letters that are drawn")
    parser.add_argument("--split", default="novel")
    parser.add_argument("--bank", action="store_true", help="with the base classes as a bank")
    parser.add_argument("--ways", type=int, default=ways)
    parser.add_argument("--items", type=int, default=30, help="of each class")
    parser.add_argument("--runs", type=int, default=runs)


def projects(options: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray, Recipe]]:
    """Features, classes and the recipe of each run, whose items come in a random order."""
    made = options.features == MADE
    data = None if made else FeatureSet.load(Path(options.features))
    bank = _bank(data) if options.bank else None
    for seed in range(options.runs):
        rng = np.random.default_rng(seed)
        if data is None:
            chosen = rng.choice(len(glyph_classes()[options.split]), options.ways, replace=False)
            x = np.concatenate([_letter(options.split, int(i), options.items) for i in chosen])
            y = np.repeat(np.arange(options.ways), options.items)
        else:
            rows = data.split(options.split)
            x, y = rows.float32(), rows.require_labels()
            classes = rng.choice(np.unique(y), options.ways, replace=False)
            kept = np.concatenate([rng.permutation(np.flatnonzero(y == c))[: options.items] for c in classes])
            x, y = x[kept], y[kept]
        order = rng.permutation(len(x))
        yield x[order], y[order], Recipe(bank)


def answers(recipe: Recipe, x: np.ndarray, y: np.ndarray, at: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Probabilities (R, N) of all items from the labelled ones, and the class of each column."""
    found = predict_items(recipe, x, np.array(at), y[at].astype(str))
    return None if found is None else (found.probabilities, np.array(found.names).astype(y.dtype))


@cache
def _letter(split: str, number: int, items: int) -> np.ndarray:
    return extract_glyphs(draw_examples(glyph_classes()[split][number], items, seed=1))


def _bank(data: FeatureSet | None) -> BaseBank:
    if data is not None:
        return BaseBank().fit(data.base.float32(), data.base.require_labels())
    letters = glyph_classes()["base"]
    rows = np.concatenate([draw_examples(letter, BASE_ROWS) for letter in letters])
    return BaseBank().fit(extract_glyphs(rows), np.repeat([letter.name for letter in letters], BASE_ROWS))
