"""The service's HTTP interface."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import platform
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fewcal._utils.types import JSON
from fewcal._version import __version__
from fewcal.apply.serve.batching import Batcher, BatchLimits, Overloaded
from fewcal.apply.serve.model import Item, ServedModel
from fewcal.apply.serve.openapi import docs_page, openapi
from fewcal.apply.web import (
    SECURITY_HEADERS,
    BodyTooLarge,
    announced_too_large,
    is_own_address,
    limited,
    refused,
    too_large,
    with_headers,
)
from fewcal.errors import FewcalError, InputError
from fewcal.features.extractors import Extractor
from fewcal.features.sources.pictures import check_size

# The page is one file with its own style; nothing else is loaded.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class ServiceLimits:
    """What one request may bring and cost.

    most_bytes : of a body; most_items : in a request; pixels : of a picture; text_length : characters of a text;
    seconds : until an answer is given up
    """

    most_bytes: int = 20_000_000
    most_items: int = 256
    pixels: int = 50_000_000
    text_length: int = 20_000
    seconds: float = 30.0
    batch: BatchLimits = field(default_factory=BatchLimits)


class HostGuard:
    """Refuses foreign names of the server (DNS rebinding), pages of other sites, and bodies that are too large."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], most_bytes: int) -> None:
        self.app, self.hosts, self.most_bytes = app, hosts, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        secured = with_headers(send, SECURITY_HEADERS | {"content-security-policy": _POLICY})
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        refusal = None
        if host not in self.hosts and not is_own_address(host, scope):
            refusal = refused(403, "this name of the server is not allowed; start it with --host NAME to allow it")
        elif origin is not None and urlsplit(origin).netloc.lower() != host:
            refusal = refused(403, "pages of other sites may not use this service")
        elif announced_too_large(headers.get("content-length"), self.most_bytes):
            refusal = refused(413, f"too large; at most {self.most_bytes:,} bytes are taken")
        if refusal is not None:
            await refusal(scope, receive, secured)
            return
        await self.app(scope, limited(receive, self.most_bytes), secured)


def make_app(model: ServedModel, hosts: frozenset[str], limits: ServiceLimits | None = None) -> HostGuard:
    """The service around a model, for requests to these names."""
    allowed = limits or ServiceLimits()
    service = Service(model, allowed)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    address = f"http://{sorted(hosts)[0]}"
    routes = [
        Route("/", lambda request: RedirectResponse("/docs")),
        Route("/health", service.health),
        Route("/version", service.version),
        Route("/openapi.json", lambda request: JSONResponse(openapi(model))),
        Route("/docs", lambda request: HTMLResponse(docs_page(model, address))),
        Route("/predict/embeddings", service.timed(service.embeddings), methods=["POST"]),
    ]
    if model.kind == "picture":
        routes.append(Route("/predict/pictures", service.timed(service.pictures), methods=["POST"]))
    if model.kind == "text":
        routes.append(Route("/predict/texts", service.timed(service.texts), methods=["POST"]))
    handlers = {
        FewcalError: _told,
        BodyTooLarge: too_large,
        Overloaded: _overloaded,
        HTTPException: _unknown,
        Exception: _broken,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return HostGuard(app, hosts, allowed.most_bytes)


async def _told(request: Request, error: Exception) -> Response:
    return refused(400, str(error))


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong = f"{error.detail}: {request.method} {request.url.path}; /docs lists what this service answers"
    return JSONResponse({"error": wrong}, error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    return refused(500, "the service failed; its log says how")


async def _overloaded(request: Request, error: Exception) -> Response:
    return refused(503, str(error))


class Service:
    """The endpoints, and the batches behind them."""

    def __init__(self, model: ServedModel, limits: ServiceLimits) -> None:
        self.model, self.limits = model, limits
        self._rows: Batcher[np.ndarray, JSON] = Batcher(model.answer_rows, limits.batch)
        self._items: Batcher[Item, JSON] = Batcher(model.answer_items, limits.batch)

    def start(self) -> None:
        self._rows.start()
        self._items.start()

    async def stop(self) -> None:
        await self._rows.stop()
        await self._items.stop()

    def timed(self, endpoint: Callable[[Request], Awaitable[list[JSON]]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint with the limit of time around it."""

        async def answered(request: Request) -> Response:
            try:
                async with asyncio.timeout(self.limits.seconds):
                    return JSONResponse({"predictions": await endpoint(request)})
            except TimeoutError:
                return refused(504, f"no answer within {self.limits.seconds:g} s; ask for fewer items at once")

        return answered

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def version(self, request: Request) -> Response:
        extractor = self.model.extractor
        facts: dict[str, JSON] = {
            "fewcal": __version__,
            "python": platform.python_version(),
            "classes": self.model.classes,
            "features": int(self.model.classifier.n_features_in_),
            "extractor": None if extractor is None else extractor.stamp,
            "kind": self.model.kind,
        }
        return JSONResponse(facts)

    async def embeddings(self, request: Request) -> list[JSON]:
        body = await request.body()
        kind = request.headers.get("content-type", "").partition(";")[0]
        values = _npy(body) if kind == "application/x-npy" else _listed(body, "rows", self.limits.most_items)
        if len(values) > self.limits.most_items:
            raise InputError(f"{len(values)} rows are asked for; at most {self.limits.most_items} are taken at once")
        return await self._rows.submit(list(self.model.rows(values)))

    async def texts(self, request: Request) -> list[JSON]:
        texts = _listed(await request.body(), "texts", self.limits.most_items)
        for n, text in enumerate(texts, 1):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"text {n} is empty, or no text; send texts that are not empty")
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise InputError(f"text {n} holds half of a character (a lone surrogate); send it as UTF-8")
            if len(text) > self.limits.text_length:
                raise InputError(f"text {n} has {len(text)} characters; at most {self.limits.text_length} are taken")
        return await self._items.submit([str(text).strip() for text in texts])

    async def pictures(self, request: Request) -> list[JSON]:
        body = await request.body()
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind.startswith("image/") or kind == "application/octet-stream":
            encoded = [body]
        elif not body.lstrip().startswith(b"{"):
            raise InputError('send a picture with the header content-type: image/jpeg, or {"pictures": [base64, …]}')
        else:
            listed = _listed(body, "pictures", self.limits.most_items)
            encoded = [_from_base64(text, n) for n, text in enumerate(listed, 1)]
        extractor = self.model.extractor
        assert extractor is not None
        ready = await asyncio.gather(
            *(run_in_threadpool(_prepared, data, n, extractor, self.limits.pixels) for n, data in enumerate(encoded, 1))
        )
        return await self._items.submit(ready)


def _prepared(data: bytes, number: int, extractor: Extractor, pixels: int) -> np.ndarray:
    name = f"picture {number}"
    check_size(data, name, pixels)
    return extractor.decode(data, name)


def _listed(body: bytes, name: str, most: int) -> list[JSON]:
    try:
        value = json.loads(body)
    except (RecursionError, ValueError) as error:
        raise InputError(f'the request is not JSON; send {{"{name}": […]}}') from error
    items = value.get(name) if isinstance(value, dict) else None
    if not isinstance(items, list) or not items:
        raise InputError(f'the request has no list {name!r}; send {{"{name}": […]}}')
    if len(items) > most:
        raise InputError(f"{len(items)} {name} are asked for; at most {most} are taken at once")
    return items


def _npy(body: bytes) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(body), allow_pickle=False)
    except (EOFError, MemoryError, OSError, OverflowError, ValueError) as error:  # a header may claim any size
        raise InputError("the body is no .npy array") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError("the body is no .npy array of rows of real numbers")
    return array


def _from_base64(text: JSON, number: int) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "!", validate=True)
    except binascii.Error as error:
        raise InputError(f"picture {number} is no text in base64; send the bytes of its file so") from error
