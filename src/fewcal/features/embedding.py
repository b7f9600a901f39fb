"""Extractors as transformers of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from fewcal.errors import InputError
from fewcal.features.extract import embed
from fewcal.features.extractors import EmbedFunction, Extractor, as_extractor
from fewcal.features.sources.kinds import in_memory, is_frame


class Embed(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features of pictures, texts or recordings.

    Parameters
    ----------
    extractor : a name (`fewcal extract --list-extractors`), several for features side by side, an `Extractor`, a torch
        module, or a function
    column : the column of a DataFrame; None where it has one column only
    batch : items computed at once
    workers : threads that read and decode; None: as many as cores, up to 8
    device : "cpu", "cuda", …
    allow_download : let other libraries fetch weights that are not on this machine

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from fewcal.features.extractors import as_extractor
    >>> length = as_extractor(lambda texts: [[len(t)] for t in texts], name="length", kind="text")
    >>> short_or_long = make_pipeline(Embed(length), LogisticRegression())
    >>> short_or_long.fit(["a", "no", "yesterday", "tomorrow"], ["short", "short", "long", "long"]).predict(["on"])
    array(['short'], dtype='<U5')
    """

    def __init__(
        self,
        extractor: str | Sequence[str] | Extractor | EmbedFunction = "efficientnet-lite0",
        *,
        column: str | None = None,
        batch: int = 32,
        workers: int | None = None,
        device: str | None = None,
        allow_download: bool = False,
    ) -> None:
        self.extractor, self.column = extractor, column
        self.batch, self.workers, self.device, self.allow_download = batch, workers, device, allow_download

    def fit(self, X: Any, y: object = None) -> Self:
        """Load the extractor; X is not looked at."""
        self.extractor_ = self._loaded()
        self._n_features_out = self.extractor_.dim  # private of scikit-learn: names of features are made from it
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return features `(R, D)` of a list, array, column or DataFrame of paths, pictures or texts."""
        extractor = getattr(self, "extractor_", None) or self._loaded()
        if is_frame(X):
            names = list(X.columns)
            if self.column is None and len(names) != 1:
                raise InputError(f"the table has the columns {', '.join(map(str, names))}; choose one (column=…)")
            X = X[names[0] if self.column is None else self.column]
        elif isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1:  # a column from a ColumnTransformer
            X = X[:, 0]
        items = in_memory(X, extractor.kind)
        return embed(items, extractor, batch=self.batch, workers=self.workers)[0]

    def _loaded(self) -> Extractor:
        given = self.extractor
        name = given if isinstance(given, str | Extractor) or callable(given) else "+".join(given)
        return as_extractor(name, device=self.device, allow_download=self.allow_download)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {key: value for key, value in state.items() if key != "extractor_"}  # it is loaded again by its name

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
        return tags
