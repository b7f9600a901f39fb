"""Saved classifiers with the extractor they need: fit from pictures, texts or features; load; predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fewcal._utils.types import StrPath
from fewcal.apply.checks import check_reject
from fewcal.apply.predict import (
    Columns,
    check_names,
    fit_named,
    in_words,
    make_classifier,
    named_rows,
    predict_features,
    true_classes,
)
from fewcal.apply.reading import Reading, load_bank, read_examples
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.estimators import load_classifier
from fewcal.estimators.base import TaskClassifier
from fewcal.estimators.saved import read_meta
from fewcal.features import FeatureSplit, load_split
from fewcal.features.extractors import Extractor, find_entry, get_extractor
from fewcal.features.sources.find import check_headers
from fewcal.features.sources.items import Items
from fewcal.features.sources.kinds import kind_of


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
    bank = load_bank(bank)
    classifier = make_classifier(bank, preset, settings, how.device, seed)  # refuses what is wrong at once
    examples = read_examples(support, extractor, bank, how)
    fit_named(classifier, examples.x, examples.names, names)
    classifier.extractor_ = examples.stamp
    return classifier


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
        query = how.find(source, entry.kind)
        if not how.skip_bad:
            check_headers([query])
    classifier, extractor = load_model(model, how.device, how.allow_download)
    table, kept = predict_source(classifier, extractor, query, reject, how, together)
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
    return predict_source(classifier, None, rows, reject, how, together)[0]


def predict_source(
    classifier: TaskClassifier,
    extractor: Extractor | None,
    source: StrPath | Items | FeatureSplit,
    reject: float | None = None,
    reading: Reading | None = None,
    together: bool = False,
) -> tuple[Columns, Items | None]:
    """Answers as columns, and the items that could be read; None where these are rows of features."""
    how = reading or Reading()
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
    x, kept = how.embed(how.find(source, extractor.kind), extractor)
    return named_rows(predict_features(classifier, x, reject, together), kept), kept
