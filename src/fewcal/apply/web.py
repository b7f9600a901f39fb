"""What local web servers share: a socket, the names they answer to, the size of bodies, headers of answers."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

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


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that holds a port, or an error that says what to do; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        wrong = f"cannot listen on {host}:{port} ({error.strerror})"
        raise InputError(f"{wrong}; choose another --host or --port") from error
    return listening


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """What may stand in the Host header of requests to a server that was bound to `host`.

    A foreign name that resolves to this machine (DNS rebinding) is not among them.

    >>> sorted(allowed_hosts("127.0.0.1", 80))
    ['127.0.0.1:80', '[::1]:80', 'localhost:80']
    """
    own = socket.gethostname() if host in EVERYWHERE else bracketed(host)
    return frozenset(f"{name}:{port}" for name in {LOCAL, "localhost", "[::1]", own.lower()})


def is_own_address(host: str, scope: Scope) -> bool:
    """Whether a Host header is the number at which this very connection came in, which no foreign name can be.

    A machine with several addresses need not know them all: its own name often means 127.0.1.1 alone.
    """
    address, port = scope.get("server") or ("", None)
    return host == f"{bracketed(address.removeprefix('::ffff:'))}:{port}"


def shown_address(host: str, port: int) -> str:
    """Where a person finds the server; one that listens everywhere, from this machine and from others."""
    return f"http://{bracketed(_outward_address(host) if host in EVERYWHERE else host)}:{port}"


def _outward_address(host: str) -> str:
    """The address under which others see this machine; without a network its own name for itself."""
    family, far = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # chooses a way there and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "localhost"


def bracketed(host: str) -> str:
    """An IPv6 address as it stands in addresses of pages."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """`send` that adds headers to every answer that does not have them."""

    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = MutableHeaders(scope=message)
            for name, value in headers.items():
                given.setdefault(name, value)
        await send(message)

    return secured


class BodyTooLarge(Exception):
    """A body went beyond the limit while it was read."""


def limited(receive: Receive, most_bytes: int) -> Receive:
    """`receive` that counts: bodies without a length are refused when they grow too large."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most_bytes:
            raise BodyTooLarge(f"too large; at most {most_bytes:,} bytes are taken")
        return message

    return counted


def announced_too_large(length: str | None, most_bytes: int) -> bool:
    """Whether a Content-Length is beyond the limit, or no number at all."""
    return length is not None and (not length.isdecimal() or int(length) > most_bytes)


async def too_large(request: Request, error: Exception) -> Response:
    """The answer to `BodyTooLarge`."""
    return refused(413, str(error))


def refused(status: int, message: str) -> Response:
    """An answer that says why there is none."""
    return JSONResponse({"error": message}, status)
