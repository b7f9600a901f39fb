"""Parts of local web servers: a socket, allowed names and tokens, the size of bodies, headers of answers."""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewcal.errors import InputError

LOCAL = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


_ADDRESS = r"(https?://(?:[\w.\-]+|\[[\da-f:.]+\])(?::\d+)?)((?:/[\w.~@%+\-]+)*)/?"


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to a port; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it a kept connection waits 40 ms a request.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        wrong = f"cannot listen on {host}:{port} ({error.strerror})"
        raise InputError(f"{wrong}; choose another --host or --port") from error
    return listening


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """Values of the Host header that a server bound to `host` accepts.

    A foreign name that resolves to this machine (DNS rebinding) is not accepted.

    >>> sorted(allowed_hosts("127.0.0.1", 80))
    ['127.0.0.1:80', '[::1]:80', 'localhost:80']
    """
    own = socket.gethostname() if host in EVERYWHERE else bracketed(host)
    return frozenset(f"{name}:{port}" for name in {LOCAL, "localhost", "[::1]", own.lower()})


@dataclass(frozen=True)
class Proxy:
    """Where browsers find the page behind a proxy, which takes `path` away from what it passes on.

    >>> Proxy.parse("https://hub.example/user/me/proxy/8000/")
    Proxy(origin='https://hub.example', path='/user/me/proxy/8000')
    """

    origin: str
    path: str = ""

    @classmethod
    def parse(cls, address: str) -> Proxy:
        found = re.fullmatch(_ADDRESS, address, re.ASCII | re.IGNORECASE)
        if found is None:
            example = "https://hub.example/user/me/proxy/8000"
            raise InputError(f"--behind-proxy {address!r} is no address of a page; give one such as {example}")
        return cls(found[1].lower(), found[2])


def is_own_address(host: str, scope: Scope) -> bool:
    """Whether a Host header is the address at which this connection came in, which no foreign name can be.

    The name of a machine often resolves to 127.0.1.1 alone, so its other addresses cannot be listed beforehand.
    """
    address, port = scope.get("server") or ("", None)
    return host == f"{bracketed(address.removeprefix('::ffff:'))}:{port}"


def shown_address(host: str, port: int) -> str:
    """The address of the server for a person; of one that listens everywhere, the address for other machines."""
    return f"http://{bracketed(_outward_address(host) if host in EVERYWHERE else host)}:{port}"


def _outward_address(host: str) -> str:
    """The address of this machine in its network; without a network "localhost"."""
    family, far = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # chooses a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "localhost"


def bracketed(host: str) -> str:
    """An IPv6 address as URLs have it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def has_token(headers: Headers, token: str) -> bool:
    """Whether a request has the header `Authorization: Bearer TOKEN`."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """`send` that adds headers to every answer without them."""

    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = MutableHeaders(scope=message)
            for name, value in headers.items():
                given.setdefault(name, value)
        await send(message)

    return secured


class BodyTooLarge(Exception):
    """A body goes beyond the limit, as announced or while it is read."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is too large; the limit is {max_bytes:,} bytes")


def limited(receive: Receive, max_bytes: int) -> Receive:
    """`receive` that raises `BodyTooLarge` once a body grows beyond the limit, whatever length was announced."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > max_bytes:
            raise BodyTooLarge(max_bytes)
        return message

    return counted


def announced_too_large(length: str | None, max_bytes: int) -> bool:
    """Whether a Content-Length is beyond the limit, or no number at all."""
    return length is not None and (not length.isdecimal() or len(length) > 18 or int(length) > max_bytes)


def error_answer(status: int, message: str = "") -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler that answers with the message of an error, or with a message of its own."""

    async def answer(request: Request, error: Exception) -> Response:
        return refused(status, message or str(error))

    return answer


def refused(status: int, message: str) -> Response:
    """An error as JSON."""
    return JSONResponse({"error": message}, status)


class Guard:
    """An ASGI layer around an application: what is refused, the size of bodies, the headers of answers."""

    def __init__(self, app: ASGIApp, max_bytes: int, policy: str) -> None:
        self.app, self.max_bytes = app, max_bytes
        self.headers = SECURITY_HEADERS | {"content-security-policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":  # no web sockets
            return
        refusal = self.refusal(scope, Headers(scope=scope))
        if refusal is None and announced_too_large(Headers(scope=scope).get("content-length"), self.max_bytes):
            refusal = refused(413, str(BodyTooLarge(self.max_bytes)))
        await (refusal or self.app)(scope, limited(receive, self.max_bytes), with_headers(send, self.headers))

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that is refused; None for one that the application gets."""
        raise NotImplementedError
