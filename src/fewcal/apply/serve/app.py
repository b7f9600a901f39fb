"""The service's HTTP interface."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import platform
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TypeVar

import numpy as np
from anyio import CapacityLimiter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fewcal._utils.types import JSON
from fewcal._version import __version__
from fewcal.apply.serve import inputs
from fewcal.apply.serve.batching import Batcher, Overloaded
from fewcal.apply.serve.guard import Access, Metrics, ServiceGuard
from fewcal.apply.serve.model import Item, ServedModel
from fewcal.apply.serve.openapi import openapi
from fewcal.apply.web import BodyTooLarge, error_answer, refused
from fewcal.errors import FewcalError, InputError

T = TypeVar("T")
PAGE = files("fewcal.apply.serve").joinpath("page.html").read_text(encoding="utf-8")
_SCRIPT = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)[0]
POLICY = (
    "default-src 'none'; img-src blob: data:; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def make_app(model: ServedModel, access: Access, limits: inputs.ServiceLimits | None = None) -> ServiceGuard:
    """The service around a model."""
    allowed = limits or inputs.ServiceLimits()
    description = openapi(model, allowed, access.token is not None)
    metrics = Metrics(frozenset(description["paths"]))
    service = Service(model, allowed, metrics)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.rows.start()
        service.items.start()
        yield
        await service.rows.stop()
        await service.items.stop()

    pages: dict[str, Response] = {
        "/": HTMLResponse(PAGE),
        "/docs": RedirectResponse("./#interface"),
        "/health": JSONResponse({"status": "ok"}),
        "/version": JSONResponse(facts(model)),
        "/openapi.json": JSONResponse(description),
    }
    routes = [Route(path, page, methods=["GET"]) for path, page in pages.items()]
    routes.append(Route("/metrics", service.show_metrics))
    for kind, path in {None: "/predict/embeddings", "text": "/predict/texts", "picture": "/predict/pictures"}.items():
        if kind in (None, model.kind):
            routes.append(Route(path, service.timed(kind), methods=["POST"]))
    handlers = {
        FewcalError: error_answer(400),
        BodyTooLarge: error_answer(413),
        Overloaded: error_answer(503),
        HTTPException: unknown_address,
        ClientDisconnect: error_answer(400),  # no one reads it
        Exception: error_answer(500, "the service failed; its log has the reason"),
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return ServiceGuard(app, access, allowed, metrics, POLICY)


def facts(model: ServedModel) -> dict[str, JSON]:
    """Versions, classes and what the model takes."""
    return {
        "fewcal": __version__,
        "python": platform.python_version(),
        "classes": model.classes,
        "features": model.width,
        "extractor": None if model.extractor is None else model.extractor.stamp,
        "kind": model.kind,
    }


async def unknown_address(request: Request, error: Exception) -> Response:
    """A handler of errors of the router."""
    assert isinstance(error, HTTPException)
    problem = f"{error.detail}: {request.method} {request.url.path}; /docs lists the requests of this service"
    return JSONResponse({"error": problem}, error.status_code, headers=error.headers)


class Service:
    """The endpoints, and the batches behind them."""

    def __init__(self, model: ServedModel, limits: inputs.ServiceLimits, metrics: Metrics) -> None:
        self.model, self.limits, self.metrics = model, limits, metrics
        # Rows cost little, so that those of a request make one batch.
        self.rows: Batcher[np.ndarray, bytes] = Batcher(model.answer_rows, limits.max_items, limits.max_waiting)
        self.items: Batcher[Item, bytes] = Batcher(model.answer_items, limits.max_batch, limits.max_waiting)
        self.decoders = CapacityLimiter(limits.decoders)
        metrics.waiting.set_function(lambda: self.rows.waiting + self.items.waiting)

    async def show_metrics(self, request: Request) -> Response:
        """Answer with all counters."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def timed(self, kind: str | None) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint for a kind of items, within the limit of time."""
        endpoint = {None: self.embeddings, "text": self.texts, "picture": self.pictures}[kind]

        async def answered(request: Request) -> Response:
            content_type = request.headers.get("content-type", "").partition(";")[0].lower()
            try:
                async with asyncio.timeout(self.limits.seconds):
                    return await endpoint(request, content_type)
            except TimeoutError:
                return refused(504, f"no answer within {self.limits.seconds:g} s; send fewer items at once")

        return answered

    async def embeddings(self, request: Request, content_type: str) -> Response:
        rows = inputs.rows(await request.body(), content_type, self.model, self.limits)
        return await self._answer("row", rows, self.rows)

    async def texts(self, request: Request, content_type: str) -> Response:
        texts = inputs.texts(await request.body(), self.limits)
        return await self._answer("text", texts, self.items)

    async def pictures(self, request: Request, content_type: str) -> Response:
        encoded = await inputs.encoded_pictures(request, content_type, self.limits)
        pictures = await inputs.decoded_pictures(encoded, self.model, self.limits, self.decoders)
        return await self._answer("picture", pictures, self.items)

    async def _answer(self, noun: str, items: Sequence[T | InputError], batcher: Batcher[T, bytes]) -> Response:
        """Answers in the order of the items; the error of an item stands in its place, unless all have one."""
        computed = iter(await batcher.submit([item for item in items if not isinstance(item, InputError)]))
        answers = [item if isinstance(item, InputError) else next(computed) for item in items]
        parts: list[bytes] = []
        problems: list[str] = []
        for number, answer in enumerate(answers, 1):
            if isinstance(answer, FewcalError):
                name, message = f"{noun} {number}", str(answer)
                problems.append(message if message.startswith(name) else f"{name}: {message}")
                parts.append(json.dumps({"error": problems[-1]}).encode())
            elif isinstance(answer, BaseException):
                raise answer
            else:
                parts.append(answer)
        self.metrics.items.labels("answered").inc(len(items) - len(problems))
        self.metrics.items.labels("refused").inc(len(problems))
        if len(problems) == len(items):
            raise InputError(problems[0] + (f" (and {len(problems) - 1} more)" if problems[1:] else ""))
        return Response(b'{"predictions": [' + b", ".join(parts) + b"]}", media_type="application/json")
