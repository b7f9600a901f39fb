"""The studio's process: a free port, the link with its token, an orderly stop."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fewcal.apply.studio.project import Studio, StudioSettings
from fewcal.errors import InputError

LOCAL = "127.0.0.1"


def serve_studio(
    folder: Path,
    settings: StudioSettings,
    *,
    host: str = LOCAL,
    port: int = 0,
    token: str | None = None,
    opened: Callable[[str], None] = print,
) -> None:
    """Serve a project until interrupted; `opened` gets the link once the server listens. Port 0 takes a free one."""
    try:
        import uvicorn

        from fewcal.apply.studio.app import Broadcast, make_app
        from fewcal.apply.studio.guard import Access
    except ImportError as error:
        raise InputError(f"the studio needs {error.name}: pip install 'fewcal[studio]'") from error

    listening = bound_socket(host, port)
    port = listening.getsockname()[1]
    access = Access(allowed_hosts(host, port), token or secrets.token_urlsafe(24), settings.limits.upload_bytes)
    news = Broadcast()
    app = make_app(Studio(folder, settings), access, news)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                shown = "localhost" if host in ("0.0.0.0", "::") else host
                opened(f"http://{_bracketed(shown)}:{port}/?token={access.token}")

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            news.close()  # open event streams would be waited for
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )
    with listening, suppress(KeyboardInterrupt):  # the way to stop it; uvicorn passes it on when all is closed
        Server(config).run([listening])


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --host or --port"
        ) from error
    return listening


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """What may stand in the Host header of requests to a server that was bound to `host`.

    >>> sorted(allowed_hosts("127.0.0.1", 80))
    ['127.0.0.1:80', '[::1]:80', 'localhost:80']
    """
    names = {LOCAL, "localhost", "[::1]"}
    if host in ("0.0.0.0", "::"):  # all addresses: by name of this machine, or one of its addresses
        names |= {socket.gethostname().lower(), *_own_addresses()}
    else:
        names.add(_bracketed(host).lower())
    return frozenset(f"{name}:{port}" for name in names)


def _own_addresses() -> set[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return set()
    return {_bracketed(str(entry[4][0])) for entry in found}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
