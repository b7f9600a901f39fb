"""Saved classifiers with the extractor they need: fit from pictures, texts or features; load; predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewcal._utils.types import Progress, StrPath
from fewcal.apply.checks import check_reject
from fewcal.apply.classify import check_none_lost, check_same_extractor, load_bank, named_rows
from fewcal.apply.predict import (
    Columns,
    check_names,
    fit_named,
    in_words,
    make_classifier,
    model_settings,
    predict_features,
    true_classes,
)
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.estimators import load_classifier
from fewcal.estimators.base import TaskClassifier
from fewcal.estimators.saved import read_meta
from fewcal.features import FeatureSplit, load_split
from fewcal.features.extract import embed
from fewcal.features.extractors import Extractor, find_entry, get_extractor
from fewcal.features.sources.find import check_headers, find_items, labelled_items
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import default_extractor, kind_of


@dataclass(frozen=True)
class Reading:
    """How items become features: columns of text and class, items at once, threads, whether bad ones are left out."""

    columns: tuple[str, str] = ("text", "label")
    batch: int = 32
    workers: int | None = None
    skip_bad: bool = False
    device: str | None = None
    allow_download: bool = False
    progress: Progress | None = None


def fit_model(
    support: StrPath | Items,
    *,
    extractor: str | None = None,
    bank: StrPath | BaseBank | None = None,
    preset: str | None = None,
    settings: Sequence[str] = (),
    names: bool = False,
    seed: int = 0,
    reading: Reading | None = None,
) -> TaskClassifier:
    """A classifier from labelled pictures, texts or features, with the stamp of its extractor in `extractor_`."""
    how = reading or Reading()
    check_names(names, bank, preset)
    model_settings(settings, preset)  # refuses what is wrong before anything is read
    bank = load_bank(bank)
    classifier = make_classifier(bank, preset, settings, how.device, seed)
    examples = read_examples(support, extractor, bank, how)
    fit_named(classifier, examples.x, examples.names, names)
    classifier.extractor_ = examples.stamp
    return classifier


class Examples(NamedTuple):
    """Labelled examples: features `(R, D)`, class names `(R,)`; of pictures and texts the items and their extractor."""

    x: np.ndarray
    names: np.ndarray
    items: Items | None = None
    stamp: str | None = None


def read_examples(support: StrPath | Items, extractor: str | None, bank: BaseBank | None, how: Reading) -> Examples:
    """Read labelled pictures, texts or features; an extractor that is not that of the bank is refused."""
    if extractor is None and not isinstance(support, Items) and kind_of(support, how.columns[0]) == "features":
        rows = load_split(support, labelled=True)
        # Labels that were integers in the file are integers in the answers.
        classes = np.array(rows.classes if rows.named else [int(c) for c in rows.classes])
        return Examples(rows.float32(), classes[rows.require_labels()])
    model = get_extractor(extractor or default_extractor(support, how.columns[0]), how.device, how.allow_download)
    if bank is not None:
        check_same_extractor(bank, model)
    items = labelled_items(support, model.kind, how.columns)
    x, kept = embed(items, model, batch=how.batch, workers=how.workers, skip_bad=how.skip_bad, progress=how.progress)
    check_none_lost(items.classes, kept)
    return Examples(x, np.array(kept.labels), kept, model.stamp)


def load_model(
    path: StrPath, device: str | None = None, allow_download: bool = False
) -> tuple[TaskClassifier, Extractor | None]:
    """A saved classifier and its extractor, None where it was fitted on features without a name."""
    classifier = load_classifier(path, device)
    if classifier.extractor_ is None:
        return classifier, None
    name = classifier.extractor_.rpartition("@")[0]
    extractor = get_extractor(name, device, allow_download)
    if extractor.stamp != classifier.extractor_:
        raise InputError(
            f"{path} was fitted on features of {classifier.extractor_} and the extractor here is {extractor.stamp}; "
            "install the version it was made with, or fit it again"
        )
    return classifier, extractor


def predict_with_model(
    model: StrPath,
    source: StrPath,
    reject: float | None = None,
    reading: Reading | None = None,
    together: bool = False,
) -> tuple[Columns, list[str]]:
    """Answers of a saved classifier (`predict_features`), and in words how many are right, where classes are named.

    A wrong source is refused before the classifier is loaded.
    """
    how = reading or Reading()
    stamp = read_meta(Path(model))["extractor"]
    entry = None if stamp is None else find_entry(stamp.rpartition("@")[0])
    query: StrPath | Items | FeatureSplit = source
    kind = kind_of(source, how.columns[0])
    if stamp is None and kind != "features":
        raise InputError(f"{model} was fitted on features and {source} holds {kind}s; give a file of features")
    if kind == "features":
        query = load_split(source)
    elif entry is not None and entry.kind != "either":
        query = find_items(source, entry.kind, False, *how.columns)
        if not how.skip_bad:
            check_headers([query])
    classifier, extractor = load_model(model, how.device, how.allow_download)
    table, kept = _answered(classifier, extractor, query, reject, how, together)
    classes = [str(name) for name in classifier.classes_]
    truth = None if kept is None else true_classes(kept.labels, classes, reject is not None)
    return table, in_words(table, truth, classes)


def predict_files(
    support: StrPath,
    query: StrPath,
    *,
    bank: StrPath | None = None,
    preset: str | None = None,
    settings: Sequence[str] = (),
    reject: float | None = None,
    together: bool = False,
    seed: int = 0,
    device: str | None = None,
) -> Columns:
    """Predictions for a file of rows from one of labelled rows, as columns; see `predict_features`."""
    check_reject(reject, preset)
    rows = load_split(query)
    how = Reading(device=device)
    classifier = fit_model(support, bank=bank, preset=preset, settings=settings, seed=seed, reading=how)
    return _answered(classifier, None, rows, reject, how, together)[0]


def predict_source(
    classifier: TaskClassifier,
    extractor: Extractor | None,
    source: StrPath | Items | FeatureSplit,
    reject: float | None = None,
    reading: Reading | None = None,
) -> Columns:
    """Answers to the pictures, texts or rows of a source, as columns: item (or row), prediction, probabilities."""
    return _answered(classifier, extractor, source, reject, reading or Reading())[0]


def _answered(
    classifier: TaskClassifier,
    extractor: Extractor | None,
    source: StrPath | Items | FeatureSplit,
    reject: float | None,
    how: Reading,
    together: bool = False,
) -> tuple[Columns, Items | None]:
    """Answers, and the items that could be read; None where these are rows of features."""
    if not isinstance(source, Items | FeatureSplit) and (
        extractor is None or kind_of(source, how.columns[0]) == "features"
    ):
        source = load_split(source)
    if isinstance(source, FeatureSplit):
        if source.dimension != classifier.n_features_in_:
            wanted = classifier.n_features_in_
            raise InputError(f"{source.source} has {source.dimension} features and the model takes {wanted}")
        return predict_features(classifier, source.float32(), reject, together), None
    assert extractor is not None
    items = source if isinstance(source, Items) else find_items(source, extractor.kind, False, *how.columns)
    x, kept = embed(
        items, extractor, batch=how.batch, workers=how.workers, skip_bad=how.skip_bad, progress=how.progress
    )
    return named_rows(predict_features(classifier, x, reject, together), kept), kept
