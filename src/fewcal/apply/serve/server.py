"""The service's process: the model, a port, an orderly stop."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
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
    token: str | None = None,
    behind_proxy: str | None = None,
    opened: Callable[[str], None] = print,
) -> None:
    """Serve a saved classifier until interrupted; `opened` gets the address once the server listens."""
    read_meta(model)  # a file of another kind is refused before a server is loaded
    if token is not None and not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise InputError("the token must be ASCII letters, digits and signs without spaces")
    try:
        import python_multipart  # noqa: F401  # starlette asks for it at the first upload

        from fewcal.apply.connections import run_app
        from fewcal.apply.serve.app import make_app
        from fewcal.apply.serve.guard import Access
        from fewcal.apply.web import Proxy, allowed_hosts, bound_socket, shown_address
    except ImportError as error:
        raise InputError(f"the service needs {error.name}: pip install 'fewcal[serve]'") from error

    origin = None if behind_proxy is None else Proxy.parse(behind_proxy).origin
    classifier, extractor = load_model(model, device)
    if reject is not None:
        classifier.outlier_pvalue(classifier.support_[0][:1])  # without base classes it is refused here, not later
    listening = bound_socket(host, port)
    port = listening.getsockname()[1]
    hosts = allowed_hosts(host, port) | (set() if origin is None else {origin.partition("://")[2]})
    # What is wrong with an item goes to its client, not into the log.
    warnings.filterwarnings("ignore", module="PIL")
    for parser in ("PIL", "python_multipart"):
        logging.getLogger(parser).setLevel(logging.CRITICAL)
    app = make_app(ServedModel(classifier, extractor, reject), Access(hosts, token, origin))
    run_app(app, listening, lambda: opened(shown_address(host, port)))
