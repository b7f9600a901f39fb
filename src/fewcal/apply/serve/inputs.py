"""Items of a request from its body: JSON, arrays, pictures as they are, in base64 or as uploaded files.

What is wrong with one item becomes an `InputError` in its place, whose message has its number. What is wrong with the
body as a whole is raised.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from fewcal._utils.memory import release_memory
from fewcal._utils.types import JSON
from fewcal.apply.serve.model import ServedModel
from fewcal.errors import InputError
from fewcal.features.sources.pictures import check_size

# Decoding so many pixels takes some 100 MB, and returning memory to the system a millisecond.
TRIM_PIXELS = 10_000_000
V = TypeVar("V")
R = TypeVar("R")


@dataclass(frozen=True)
class ServiceLimits:
    """What requests may bring and cost.

    max_bytes, max_held_bytes : of a body, and of the bodies of all requests at work
    max_items, max_waiting, max_batch : items in a request, items that may wait, items computed at once
    picture_pixels, max_pixels : of a picture, and of all pictures in a request
    decoders : pictures decoded at once; each takes a sixteenth of the free memory or less (`pictures.MEMORY_SHARE`)
    text_length : characters of a text
    seconds : until an answer is given up
    """

    max_bytes: int = 20_000_000
    max_held_bytes: int = 400_000_000
    max_items: int = 256
    max_waiting: int = 1024
    max_batch: int = 32
    picture_pixels: int = 50_000_000
    max_pixels: int = 100_000_000
    decoders: int = min(4, os.cpu_count() or 1)
    text_length: int = 20_000
    seconds: float = 30.0


def each(values: Sequence[V], noun: str, use: Callable[[V, str], R], limits: ServiceLimits) -> list[R | InputError]:
    """`use(value, name)` of all values; an error stands in the place of its value."""
    if len(values) > limits.max_items:
        raise InputError(f"the request has {len(values)} {noun}s; the limit is {limits.max_items}")
    return [attempt(use, value, f"{noun} {number}") for number, value in enumerate(values, 1)]


def attempt(use: Callable[[V, str], R], value: V, name: str) -> R | InputError:
    """The result, or the error."""
    try:
        return use(value, name)
    except InputError as error:
        return error


def rows(body: bytes, content_type: str, model: ServedModel, limits: ServiceLimits) -> list[np.ndarray | InputError]:
    """Rows of features from `{"rows": […]}` or an .npy array."""
    values: Any = _array(body) if content_type == "application/x-npy" else _listed(body, "rows")
    return each(values, "row", model.row, limits)


def texts(body: bytes, limits: ServiceLimits) -> list[str | InputError]:
    """Texts from `{"texts": […]}`."""

    def text(value: JSON, name: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name} is empty, or no text")
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise InputError(f"{name} holds half of a character (a lone surrogate); send it as UTF-8")
        if len(value) > limits.text_length:
            raise InputError(f"{name} has {len(value)} characters; the limit is {limits.text_length}")
        return value.strip()

    return each(_listed(body, "texts"), "text", text, limits)


async def encoded_pictures(request: Request, content_type: str, limits: ServiceLimits) -> list[bytes | InputError]:
    """Files of pictures: the body itself, uploads (multipart/form-data), or `{"pictures": [base64, …]}`."""
    if content_type == "multipart/form-data":
        return list(await _uploads(request, limits))
    body = await request.body()
    if content_type.startswith("image/") or content_type == "application/octet-stream":
        return [body]
    if not body.lstrip().startswith(b"{"):
        raise InputError('send a picture with the header content-type: image/jpeg, or {"pictures": [base64, …]}')
    return each(_listed(body, "pictures"), "picture", _from_base64, limits)


async def decoded_pictures(
    encoded: list[bytes | InputError], model: ServedModel, limits: ServiceLimits, decoders: CapacityLimiter
) -> list[np.ndarray | InputError]:
    """Pictures as the extractor takes them; all headers are checked before a picture is decoded."""

    def header(data: bytes | InputError, name: str) -> tuple[bytes, int]:
        if isinstance(data, InputError):
            raise data
        return data, check_size(data, name, limits.picture_pixels)

    async def decoded(checked: tuple[bytes, int] | InputError, name: str) -> np.ndarray | InputError:
        if isinstance(checked, InputError):
            return checked
        return await to_thread.run_sync(attempt, model.picture, checked[0], name, limiter=decoders)

    headers = await to_thread.run_sync(each, encoded, "picture", header, limits, limiter=decoders)
    total = sum(one[1] for one in headers if not isinstance(one, InputError))
    if total > limits.max_pixels:
        raise InputError(f"the pictures have {total:,} pixels together; the limit is {limits.max_pixels:,}")
    pictures = await asyncio.gather(*(decoded(one, f"picture {number}") for number, one in enumerate(headers, 1)))
    if total > TRIM_PIXELS:
        await to_thread.run_sync(release_memory, limiter=decoders)
    return pictures


async def _uploads(request: Request, limits: ServiceLimits) -> list[bytes]:
    parser = MultiPartParser(request.headers, request.stream(), max_files=limits.max_items, max_fields=limits.max_items)
    parser.spool_max_size = limits.max_bytes + 1  # in memory: there may be no disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InputError(f"the form cannot be read: {error.message}") from error
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    if not files:
        raise InputError("the form holds no file; send pictures as files (curl -F file=@photo.jpg)")
    return [await file.read() for file in files]


def _listed(body: bytes, name: str) -> list[JSON]:
    try:
        value = json.loads(body)
    except (RecursionError, ValueError) as error:
        raise InputError(f'the request is not JSON; send {{"{name}": […]}}') from error
    items = value.get(name) if isinstance(value, dict) else None
    if not isinstance(items, list) or not items:
        raise InputError(f'the request has no list {name!r}; send {{"{name}": […]}}')
    return items


def _array(body: bytes) -> np.ndarray:
    try:
        array = np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)
    except Exception as error:  # a forged header ends in whatever its parser stumbles over
        raise InputError("the body is no .npy array") from error
    if array.ndim != 2 or not len(array) or array.dtype.kind not in "fiu":
        raise InputError("the body is no .npy array of rows of real numbers")
    return np.asarray(array)


def _from_base64(value: JSON, name: str) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "!", validate=True)
    except ValueError as error:
        raise InputError(f"{name} is no text in base64; send the bytes of its file so") from error
