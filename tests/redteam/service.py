"""Damaged requests to a running service: each is answered or refused in a line; nothing hangs, crashes or fails inside.

Four of five have a damaged body behind a true header, the others are damaged as a whole. Outcomes as in `fuzz`, where
`other` is an answer: a damaged request may still be a good one.
"""

from __future__ import annotations

import base64
import json
import random
import re
import socket
from collections.abc import Callable
from pathlib import Path

from fuzz import BAD, Tally, mutated

from services import LiveService, live_service, npy, png

# An incomplete request gets no answer: after the first time the client closes its side, after the second it hangs.
PATIENCE_S, SECONDS = 0.5, 40.0
MAX_GROWTH = 200 << 20  # bytes that a service may hold more than after its first hundred requests


def _form(*files: bytes) -> bytes:
    parts = (
        b'--x\r\ncontent-disposition: form-data; name="f"; filename="a"\r\n\r\n' + file + b"\r\n" for file in files
    )
    return b"".join(parts) + b"--x--\r\n"


def _base64(*files: bytes) -> bytes:
    return json.dumps({"pictures": [base64.b64encode(file).decode() for file in files]}).encode()


_PICTURES = [png((200, 40, 40), (40, 30), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")]
# Model, address, type of content and a good body of each kind of request.
REQUESTS: dict[str, tuple[str, str, str, Callable[[random.Random], bytes]]] = {
    "rows as JSON": (
        "row",
        "embeddings",
        "application/json",
        lambda rng: b'{"rows": [[%s]]}' % b", ".join([b"0.5"] * 16),
    ),
    "rows as .npy": ("row", "embeddings", "application/x-npy", lambda rng: npy([[0.5] * 16] * 3)),
    "texts": ("text", "texts", "application/json", lambda rng: b'{"texts": ["much sun", "rain \\u00e9"]}'),
    "a picture": ("picture", "pictures", "image/png", lambda rng: rng.choice(_PICTURES)),
    "pictures in base64": ("picture", "pictures", "application/json", lambda rng: _base64(*rng.sample(_PICTURES, 2))),
    "uploaded pictures": (
        "picture",
        "pictures",
        "multipart/form-data; boundary=x",
        lambda rng: _form(*rng.sample(_PICTURES, 2)),
    ),
}


def attack(name: str, count: int, seed: int = 0) -> Tally:
    """Send damaged requests of a kind to a service of their own."""
    model, path, content_type, body = REQUESTS[name]
    tally = Tally()
    with live_service(model) as service:
        memory = 0
        for i in range(count):
            rng = random.Random(f"{name} {seed} {i}")
            whole = i % 5 == 4
            good = body(rng)
            data = good if whole else mutated(good, rng)
            head = f"POST /predict/{path} HTTP/1.1\r\nhost: {service.place[0]}:{service.place[1]}\r\n"
            request = f"{head}content-type: {content_type}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
            outcome = _outcome(service, mutated(request, rng) if whole else request)
            tally.counts[outcome] += 1
            if outcome in BAD:
                tally.examples.append(f"{name}, seed {seed}, request {i}")
            if i == 100:
                memory = _resident(service)
        tally.peak = _resident(service)
        if memory and tally.peak - memory > MAX_GROWTH:
            tally.counts["wrong"] += 1
            tally.examples.append(f"{name}: memory grew by {(tally.peak - memory) >> 20} MB")
    return tally


def _outcome(service: LiveService, request: bytes) -> str:
    try:
        with service.connect() as link:
            link.settimeout(PATIENCE_S)
            link.sendall(request)
            answer = _read(link)
    except TimeoutError:
        return "hang"
    except ConnectionRefusedError:
        return "crash"
    except OSError:  # closed while the request was on its way
        return "refused"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int((head.split() or [b"0", b"0"])[1])
    one_line = body.count(b"\n") == 0 and b"Traceback" not in body
    if status == 200:
        return "other"
    return "refused" if one_line and (status == 0 or 400 <= status < 500) else "traceback"


def _read(link: socket.socket) -> bytes:
    """The answer; what is left of it where the service closes before."""
    data = b""
    while True:
        try:
            more = link.recv(65536)
        except TimeoutError:
            if link.gettimeout() == SECONDS:
                raise
            link.settimeout(SECONDS)
            link.shutdown(socket.SHUT_WR)
            continue
        data += more
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.findall(rb"content-length: (\d+)", head.lower())
        if end and length and len(body) >= int(length[0]):
            return head + end + body[: int(length[0])]  # what follows answers the garbage behind the request
        if not more:
            return data


def _resident(service: LiveService) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) << 10
