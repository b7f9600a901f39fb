"""The kind of a source, by its names and headers: pictures, texts, recordings or features."""

from __future__ import annotations

import os
from pathlib import Path

from fewcal._utils.npz import read_npz
from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.features.io.regular import require_source
from fewcal.features.io.tables import DELIMITED, csv_header
from fewcal.features.sources.frames import Frame, kind_of_frame
from fewcal.features.sources.items import Items
from fewcal.features.sources.listing import files_below
from fewcal.features.sources.pictures import is_picture, picture_files
from fewcal.features.sources.recordings import Recordings
from fewcal.features.sources.texts import class_text_files

# The extractor where none is named.
DEFAULT_EXTRACTORS = {"picture": "efficientnet-lite0", "text": "minilm"}


def kind_of(source: StrPath | Frame, text: str = "text") -> str:
    """Return "picture", "text", "recording" or "features"; a table with the column `text` holds texts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "new.txt"
    ...     _ = file.write_text("one text a line")
    ...     kind_of(file)
    'text'
    """
    if not isinstance(source, str | os.PathLike):
        return kind_of_frame(source, text)
    path = Path(source)
    require_source(path, "give a folder of pictures, a file of texts or a feature file")
    suffix = path.suffix.lower()
    if path.is_dir():
        if picture_files(path):
            return "picture"
        if any(class_text_files(path)):
            return "text"
        return "recording" if files_below(path, Recordings.extensions) else "picture"
    if is_picture(path.name):
        return "picture"
    if suffix[1:] in Recordings.extensions:
        return "recording"
    if suffix in (".txt", ".jsonl", ".ndjson"):
        return "text"
    if suffix[1:] in DELIMITED:
        columns = csv_header(path)
        return "text" if text.lower() in columns else "picture" if "path" in columns else "features"
    if suffix == ".npz" and "offsets" in read_npz(path, ("offsets",)):  # a pack
        return "picture"
    return "features"


def default_extractor(source: StrPath | Items | Frame, text: str = "text") -> str:
    """Return the extractor for a source where none is named."""
    kind = source.kind if isinstance(source, Items) else kind_of(source, text)
    if kind == "recording":
        raise InputError(
            "no extractor of recordings comes with fewcal; name a model, such as hf:facebook/wav2vec2-base"
        )
    if kind == "features" and (path := Path(str(source))).suffix.lower()[1:] in DELIMITED:
        columns = ", ".join(csv_header(path))
        if not columns:
            raise InputError(f"{source} is empty; it needs a header and at least one row")
        raise InputError(
            f"{source} has the columns {columns} and none named {text!r}; name the one that holds the texts with "
            "--text-column, and that of the classes with --label-column; or add a header line"
        )
    if kind == "features":
        raise InputError(f"{source} holds features, not pictures or texts; use `fewcal predict` for them")
    return DEFAULT_EXTRACTORS[kind]
