"""Names of extractors with options, of several side by side, and of several crops of each picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import numpy as np
import torch

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError
from fewcal.features.extractors.base import REGISTRY, Entry, Extractor, Prepared, fingerprint_of
from fewcal.features.sources.pictures import Picture, read_picture

if TYPE_CHECKING:
    from PIL.Image import Image

# Views of a picture by the value of `crops`: whether its corners are taken, whether mirror images are.
CROPS = {"1": (False, False), "2": (False, True), "5": (True, False), "10": (True, True)}
# The share of width and height that a corner takes; with less, objects are cut.
CORNER_SHARE = 0.75


def list_extractors() -> list[str]:
    """Return the names of extractors that take no prefix."""
    return [name for name in REGISTRY if name[0] != "." and name[-1] != ":"]


def prefixes() -> list[str]:
    """Return the beginnings of names that lead to models of other libraries, such as "timm:"."""
    return [name for name in REGISTRY if name.endswith(":")]


def require_extractor(name: str) -> Entry:
    """Return what makes an extractor of this name; an unknown name or a file that is no checkpoint is refused."""
    entry = find_entry(name) or (REGISTRY[".safetensors"] if Path(name).is_file() else None)
    if entry is None:
        raise InputError(
            f"extractor {name!r} is unknown, and none of {', '.join(f'{p}NAME' for p in prefixes())} or a "
            f"checkpoint file{nearest_names(name, list_extractors())}"
        )
    if entry.check is not None:
        entry.check(name)
    return entry


def find_entry(name: str) -> Entry | None:
    """Return the entry of an extractor's name: the name itself, its prefix, the extension of a file, or a combination.

    >>> find_entry("glyphs?crops=5+efficientnet-lite0").kind
    'picture'
    """
    entries = [_entry(part) for part in name.split("+")]
    if len(entries) > 1 and all(entries):
        kinds = {entry.kind for entry in entries if entry is not None} - {"either"}
        _refuse_kinds(name, kinds)
        return Entry(name, _side_by_side, kinds.pop() if kinds else "either")
    entry = _entry(name)
    return replace(entry, make=_with_crops) if entry is not None and _crops(name) is not None else entry


def _entry(name: str) -> Entry | None:
    place, _, query = name.partition("?")
    prefix, _, rest = place.partition(":")
    if rest and f"{prefix}:" in REGISTRY:
        return REGISTRY[f"{prefix}:"]
    entry = REGISTRY.get(place if place in list_extractors() else Path(place).suffix)
    if entry is not None and query:
        parse_name(name, "crops")  # all that these take
    return entry


def parse_name(name: str, *options: str) -> tuple[str, dict[str, str]]:
    """Return what follows the prefix of a name, and its options, of which only these are allowed.

    >>> parse_name("hf:e5?prompt=query:%20&dim=64", "prompt", "dim")
    ('e5', {'prompt': 'query: ', 'dim': '64'})
    """
    place, _, query = name.partition("?")
    values = dict(parse_qsl(query, keep_blank_values=True))
    if odd := [key for key in values if key not in options]:
        allowed = ", ".join(dict.fromkeys([*options, "crops"]))
        raise InputError(f"extractor {name} has no option {odd[0]!r}; it takes {allowed}")
    return place.partition(":")[2] or place, values


# ---- several extractors ---------------------------------------------------------------------------------------------


def _refuse_kinds(name: str, kinds: set[str]) -> None:
    if len(kinds) > 1:
        listed = " and ".join(f"{kind}s" for kind in sorted(kinds))
        raise InputError(f"extractor {name} joins extractors of {listed}; join those of one kind")


def _side_by_side(name: str, device: torch.device, allow_download: bool) -> Extractor:
    return side_by_side([require_extractor(part).make(part, device, allow_download) for part in name.split("+")])


def side_by_side(parts: Sequence[Extractor]) -> Extractor:
    """Return the extractor of the features of several, one after the other, each brought to length 1.

    A vector of large numbers would otherwise decide alone.
    """
    kinds = {part.kind for part in parts}
    _refuse_kinds("+".join(part.name for part in parts), kinds)

    def decode(picture: Picture, name: str | None) -> tuple[Prepared, ...]:
        return tuple(part.decode(picture, name) for part in parts)

    def embed(batch: Sequence[Prepared]) -> np.ndarray:
        columns = [list(column) for column in zip(*batch, strict=True)] if decoder else [batch] * len(parts)
        blocks = [part(column) for part, column in zip(parts, columns, strict=True)]
        return np.hstack([x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in blocks])

    decoder = None if kinds == {"text"} else decode
    return Extractor(
        "+".join(part.name for part in parts),
        parts[0].kind,
        sum(part.dim for part in parts),
        fingerprint_of(b"side by side", *(part.fingerprint for part in parts)),
        embed,
        concurrent=all(part.concurrent for part in parts),
        decoder=decoder,
    )


# ---- several crops --------------------------------------------------------------------------------------------------


def _crops(name: str) -> str | None:
    return dict(parse_qsl(name.partition("?")[2])).get("crops")


def _with_crops(name: str, device: torch.device, allow_download: bool) -> Extractor:
    place, _, query = name.partition("?")
    others = [option for option in query.split("&") if not option.startswith("crops=")]
    plain = place + ("?" + "&".join(others) if others else "")
    return with_crops(require_extractor(plain).make(plain, device, allow_download), str(_crops(name)))


def with_crops(extractor: Extractor, crops: str) -> Extractor:
    """Return the extractor of the mean features of several views of a picture.

    These are the whole picture, with 5 or 10 crops its corners too, and with 2 or 10 all mirrored, too.
    """
    if extractor.kind != "picture":
        raise InputError(f"{extractor.name} takes {extractor.kind}s; crops are for pictures")
    if crops not in CROPS:
        raise InputError(f"crops={crops!r} must be one of {', '.join(CROPS)}")
    corners, mirror = CROPS[crops]

    def decode(picture: Picture, name: str | None) -> list[Prepared]:
        out: list[Prepared] = []

        def use(image: Image) -> np.ndarray:
            out.extend(extractor.decode(view, name) for view in views(image, corners, mirror))
            return np.empty(0)

        read_picture(picture, use, None, name)
        return out

    def embed(batch: Sequence[list[Prepared]]) -> np.ndarray:
        rows = extractor([view for views in batch for view in views])
        return rows.reshape(len(batch), -1, rows.shape[1]).mean(axis=1)

    mark = "&" if "?" in extractor.name else "?"
    return replace(
        extractor,
        name=f"{extractor.name}{mark}crops={crops}",
        fingerprint=fingerprint_of(extractor.fingerprint.encode(), "crops", crops, CORNER_SHARE),
        embed=embed,
        decoder=decode,
    )


def views(image: Image, corners: bool, mirror: bool) -> list[Image]:
    """Return an image, its corners, and all of these mirrored."""
    from PIL import ImageOps

    found = [image]
    if corners:
        width, height = (max(1, round(CORNER_SHARE * side)) for side in image.size)
        right, low = image.width - width, image.height - height
        places = [(0, 0), (right, 0), (0, low), (right, low)]
        found += [image.crop((left, top, left + width, top + height)) for left, top in places]
    return found + [ImageOps.mirror(one) for one in found] if mirror else found
