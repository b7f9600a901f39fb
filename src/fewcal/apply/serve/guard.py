"""Who may use the service and how much a request may bring: an ASGI layer around the application.

- **Token.** With one, every address but the page and `/health` needs `Authorization: Bearer TOKEN`.
- **Host, Origin.** Without a token, foreign names of the server (DNS rebinding) and pages of other sites are refused.
- **Size.** A body beyond the limit is refused, and one for which the bodies of other requests leave no memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewcal.apply.serve.batching import Overloaded
from fewcal.apply.serve.inputs import ServiceLimits
from fewcal.apply.web import Guard, has_token, is_own_address, refused

OPEN_PATHS = ("/", "/docs", "/health")  # they show nothing of the model


@dataclass(frozen=True)
class Access:
    """Values of the Host header that are accepted, a token, the origin of a proxy before the service."""

    hosts: frozenset[str]
    token: str | None = None
    origin: str | None = None


class Metrics:
    """Counters for Prometheus; addresses that are not among `paths` are counted together."""

    def __init__(self, paths: frozenset[str]) -> None:
        self.registry = registry = CollectorRegistry()
        self.paths = paths
        ProcessCollector(registry=registry)
        self.requests = Counter("fewcal_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram("fewcal_request_seconds", "Header to answer.", ["path"], registry=registry)
        self.items = Counter("fewcal_items", "Items of requests.", ["outcome"], registry=registry)
        self.waiting = Gauge("fewcal_waiting_items", "Items that wait for a batch.", registry=registry)

    def count(self, path: str, status: int, began: float) -> None:
        """Count an answer to a request that began at a time of `perf_counter`."""
        name = path if path in self.paths else "other"
        self.requests.labels(name, status).inc()
        self.seconds.labels(name).observe(time.perf_counter() - began)


class ServiceGuard(Guard):
    """The ASGI layer; see the module."""

    def __init__(self, app: ASGIApp, access: Access, limits: ServiceLimits, metrics: Metrics, policy: str) -> None:
        super().__init__(app, limits.max_bytes, policy)
        self.access, self.limits, self.metrics = access, limits, metrics
        self.held = 0  # bytes of the bodies of all requests at work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        status, own, began = 0, 0, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        async def held() -> Message:
            nonlocal own
            message = await receive()
            size = len(message.get("body", b""))
            own += size
            self.held += size
            if self.held > self.limits.max_held_bytes:
                raise Overloaded("bodies of other requests fill the memory; try again in a moment")
            return message

        try:
            await super().__call__(scope, held, noted)
        finally:
            self.held -= own
            self.metrics.count(scope["path"], status, began)

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host, origin, token = headers.get("host", "").lower(), headers.get("origin"), self.access.token
        if token is not None:
            if scope["path"] not in OPEN_PATHS and not has_token(headers, token):
                answer = refused(401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN")
                answer.headers["www-authenticate"] = "Bearer"
                return answer
        elif host not in self.access.hosts and not is_own_address(host, scope):
            return refused(403, "this name of the server is not allowed; start it with --behind-proxy http://NAME")
        elif origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}", self.access.origin):
            return refused(403, "pages of other sites may not use this service")
        return None
