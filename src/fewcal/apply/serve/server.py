"""The service's process: the model, a port, an orderly stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fewcal.apply.saved import load_model
from fewcal.apply.serve.model import ServedModel
from fewcal.errors import InputError
from fewcal.estimators.saved import read_meta


def serve_model(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    reject: float | None = None,
    device: str | None = None,
    opened: Callable[[str], None] = print,
) -> None:
    """Serve a saved classifier until interrupted; `opened` gets the address once the server listens."""
    read_meta(model)  # a file that is none is told before a server is loaded
    try:
        import uvicorn

        from fewcal.apply.serve.app import ServiceLimits, make_app
        from fewcal.apply.web import allowed_hosts, bound_socket, shown_address
    except ImportError as error:
        raise InputError(f"the service needs {error.name}: pip install 'fewcal[serve]'") from error

    classifier, extractor = load_model(model, device)
    served = ServedModel(classifier, extractor, reject)
    if reject is not None:
        classifier.outlier_pvalue(classifier.support_[0][:1])  # without base classes it is refused here, not later
    listening = bound_socket(host, port)
    port = listening.getsockname()[1]
    limits = ServiceLimits()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                opened(shown_address(host, port))

    config = uvicorn.Config(
        make_app(served, allowed_hosts(host, port), limits),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=512,  # connections; beyond them a client is told to come again (503)
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds),
    )
    with listening, suppress(KeyboardInterrupt):  # the way to stop it
        Server(config).run([listening])  # passes Ctrl-C on when all is closed
