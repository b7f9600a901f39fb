"""Services of made-up classifiers for tests: pictures of plain colours, texts about weather, rows of features."""

from __future__ import annotations

import http.client
import io
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np
from PIL import Image

from fewcal import BaseBank, FewShotClassifier
from fewcal.apply.serve.model import ServedModel
from fewcal.features.extractors import as_extractor
from fewcal.features.synthetic import make_features
from limits import PATIENCE
from processes import FORKED
from studio_project import COLOURS, colour_extractor

TOKEN = "secret"


def png(colour: tuple[int, int, int], size: tuple[int, int] = (16, 16), kind: str = "PNG") -> bytes:
    """A picture of one colour as a file."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def npy(rows: object) -> bytes:
    """Rows as an .npy file."""
    file = io.BytesIO()
    np.save(file, np.asarray(rows, np.float32))
    return file.getvalue()


def picture_model() -> ServedModel:
    """Classes red, green and blue; the feature is the mean colour."""
    rows, names = np.array(list(COLOURS.values()), np.float32), list(COLOURS)
    shifted = np.concatenate([rows, rows + 9])
    return ServedModel(FewShotClassifier().fit(shifted, names * 2), colour_extractor())


def text_model() -> ServedModel:
    """Classes dry and wet; the features are numbers of words. A text with "bug" breaks the extractor."""

    def count(texts: list[str]) -> list[list[int]]:
        if any("bug" in text for text in texts):
            raise ValueError("a bug in the extractor")
        return [[text.count("sun"), text.count("rain"), 1] for text in texts]

    return ServedModel(
        FewShotClassifier().fit([[1, 0, 1], [0, 1, 1]], ["dry", "wet"]), as_extractor(count, name="w", kind="text")
    )


def row_model() -> ServedModel:
    """Five classes of 16 features beside 60 base classes, with a level of "none of these"."""
    data = make_features(base=60, novel=5, rows=20, dim=16)
    x, y = data.novel.features, data.novel.require_labels()
    few = np.flatnonzero(np.arange(len(y)) % 20 < 3)
    bank = BaseBank().fit(data.base.features, data.base.require_labels())
    return ServedModel(FewShotClassifier(bank).fit(x[few], y[few]), None, 0.05)


def many_rows() -> np.ndarray:
    """A row for each of a thousand classes."""
    return np.random.default_rng(0).normal(size=(1000, 64)).astype(np.float32)


def many_classes() -> ServedModel:
    """A thousand classes of two examples."""
    names = np.array([f"class {i}" for i in range(len(many_rows()))])
    x = np.concatenate([many_rows(), 1.01 * many_rows()])
    return ServedModel(FewShotClassifier().fit(x, np.tile(names, 2)), None)


MODELS = {"many classes": many_classes, "picture": picture_model, "text": text_model, "row": row_model}


def run_service(kind: str, token: str | None, link: Connection) -> None:
    """What the command runs, with a made-up model; its address goes through `link`."""
    from fewcal.apply.connections import run_app
    from fewcal.apply.serve.app import make_app
    from fewcal.apply.serve.guard import Access
    from fewcal.apply.web import allowed_hosts, bound_socket, shown_address

    listening = bound_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    app = make_app(MODELS[kind](), Access(allowed_hosts("127.0.0.1", port), token))
    run_app(app, listening, lambda: link.send(shown_address("127.0.0.1", port)))


class LiveService:
    """A service in a process of its own."""

    def __init__(self, kind: str, token: str | None = None) -> None:
        receiver, sender = FORKED.Pipe(duplex=False)
        self.process = FORKED.Process(target=run_service, args=(kind, token, sender))
        self.process.start()
        sender.close()  # an early end of the process is noticed
        self.address: str = receiver.recv()
        host, port = re.findall(r"//(.*):(\d+)", self.address)[0]
        self.place = (host, int(port))

    def connect(self) -> socket.socket:
        """A connection that has sent nothing."""
        return socket.create_connection(self.place, timeout=PATIENCE)

    def client(self) -> http.client.HTTPConnection:
        """A kept connection."""
        return http.client.HTTPConnection(*self.place, timeout=PATIENCE)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(PATIENCE)


@contextmanager
def live_service(kind: str, token: str | None = None) -> Iterator[LiveService]:
    """A service that is stopped at the end."""
    service = LiveService(kind, token)
    try:
        yield service
    finally:
        service.stop()
