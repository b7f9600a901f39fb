"""The studio's process: a free port, the link with its token, an orderly stop."""

from __future__ import annotations

import secrets
import threading
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from fewcal.apply.studio.project import Studio, StudioSettings
from fewcal.errors import FewcalWarning, InputError


def serve_studio(
    folder: Path,
    settings: StudioSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    behind_proxy: str | None = None,
    opened: Callable[[str], None] = print,
) -> None:
    """Serve a project until interrupted; `opened` gets the link once the server listens. Port 0 takes a free one.

    `behind_proxy` is the page's address there; see `guard`.
    """
    try:
        from fewcal.apply.connections import run_app
        from fewcal.apply.studio.app import make_app
        from fewcal.apply.studio.guard import Access
        from fewcal.apply.web import Proxy, allowed_hosts, bound_socket, shown_address
    except ImportError as error:
        raise InputError(f"the studio needs {error.name}: pip install 'fewcal[studio]'") from error

    proxy = None if behind_proxy is None else Proxy.parse(behind_proxy)
    # Every label is a fit, and every fit of poor base classes warns.
    warnings.simplefilter("once", FewcalWarning)
    listening = bound_socket(host, port)
    port = listening.getsockname()[1]
    token = token or secrets.token_urlsafe(24)
    access = Access(allowed_hosts(host, port), token, settings.limits.upload_bytes, proxy)
    address = shown_address(host, port) if proxy is None else f"{proxy.origin}{proxy.path}"
    closed, studio = threading.Event(), Studio(folder, settings)
    app = make_app(studio, access, closed)

    with listening, closing(studio), suppress(KeyboardInterrupt):  # which may come before the server listens
        studio.start()  # here, where what is wrong with the folder becomes a line
        # Open streams of events would be waited for.
        run_app(app, listening, lambda: opened(f"{address}/?token={token}"), stopping=closed.set)
