"""The service under load: pictures beside the same work by the library, or rows on kept connections.

    python benchmarks/speed/serve.py [--clients 64] [--requests 10] [--extractor efficientnet-lite0]
    python benchmarks/speed/serve.py --rows 1000000 [--clients 4] [--classes 5] [--silent 500]

Pictures: every client posts JPEGs one by one, each waiting for its answer, to a `fewcal serve` of its own process. The
library decodes the same pictures, embeds and classifies them in batches of 32. Both have the same cores, which the
clients share with the service. Prints errors, throughput, latencies, and the throughput as a share of the library's.

Rows: first one client alone, then all, each on a connection that it keeps; a row of 640 features a request,
among connections that stay silent if there are some. An error is a status other than 200, a lost connection, or an
answer whose probabilities differ from the first to the same row by more than 1e-5 (sums of a batch are taken in another
order than those of one row). Prints latencies, errors, and the memory of the service on the way.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from common import Table, add_record_option, photographs

from fewcal import BaseBank, GDCClassifier
from fewcal.features.extractors import Extractor, get_extractor
from fewcal.features.sources.items import decoded
from fewcal.features.sources.pictures import decode_fitted
from fewcal.features.synthetic import make_features

CLASSES, SHOTS, BATCH, DIM, ROWS = 10, 5, 32, 640, 50


@contextmanager
def service(classifier: GDCClassifier, stamp: str | None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A `fewcal serve` of its own process, and its address."""
    with tempfile.TemporaryDirectory() as folder:
        model = classifier.save(Path(folder) / "model.fewcal", extractor=stamp)
        command = [sys.executable, "-m", "fewcal", "serve", str(model), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://([\d.:]+)", server.stdout.readline())
            assert found is not None
            yield found[1], server
        finally:
            server.terminate()
            server.wait(60)


def at_once(clients: int, work: Callable[[int], None]) -> float:
    """Seconds that clients take which work side by side; each gets its number."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def milliseconds(seconds: list[float], quantile: float) -> str:
    return f"{1000 * float(np.quantile(seconds, quantile)):.2f}"


# ---- pictures -------------------------------------------------------------------------------------------------------


def prepared(data: bytes, extractor: Extractor) -> np.ndarray:
    return decode_fitted(data, extractor.size, extractor.crop)


def library(pictures: list[bytes], extractor: Extractor, classifier: GDCClassifier, total: int) -> float:
    """Pictures a second by the library in batches, decoded by as many threads as there are cores."""
    began = time.perf_counter()
    for start in range(0, total, BATCH):
        indices = range(start, min(start + BATCH, total))
        batch = list(decoded(indices, lambda i: prepared(pictures[i % len(pictures)], extractor)))
        classifier.predict_proba(extractor(np.stack([np.asarray(picture) for picture in batch])))
    return total / (time.perf_counter() - began)


def load(address: str, pictures: list[bytes], clients: int, requests: int) -> tuple[float, list[float], list[str]]:
    """Pictures a second, latencies and errors of many clients at once."""
    seconds: list[float] = []
    wrong: list[str] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        for i in range(requests):
            body = pictures[(number * requests + i) % len(pictures)]
            began = time.perf_counter()
            try:
                connection.request("POST", "/predict/pictures", body, {"content-type": "image/jpeg"})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    wrong.append(str(answer.status))
            except (OSError, http.client.HTTPException) as error:
                wrong.append(type(error).__name__)
            seconds.append(time.perf_counter() - began)

    return clients * requests / at_once(clients, client), seconds, wrong


def serve_pictures(options: argparse.Namespace) -> Table:
    extractor, pictures = get_extractor(options.extractor), photographs(CLASSES * SHOTS)
    rows = extractor([prepared(p, extractor) for p in pictures])
    classifier = GDCClassifier().fit(rows, [f"class {i}" for i in range(CLASSES) for _ in range(SHOTS)])
    clients, total = options.clients or 64, (options.clients or 64) * options.requests
    with service(classifier, extractor.stamp) as (address, _):
        load(address, pictures, 8, 4)  # the first batches are slower
        library(pictures, extractor, classifier, 2 * BATCH)
        # Before and after, since a machine is rarely as quiet as it was.
        before = library(pictures, extractor, classifier, total)
        rate, seconds, wrong = load(address, pictures, clients, options.requests)
        alone = (before + library(pictures, extractor, classifier, total)) / 2
    print(f"{options.extractor}, {clients} clients, {total} pictures, {os.cpu_count()} cores\n")
    table = Table("", "pictures/s", "of the library", "p50 ms", "p99 ms", "errors")
    table.add(f"library, batches of {BATCH}", f"{alone:.1f}", "1.00", "", "", "")
    quantiles = (milliseconds(seconds, q) for q in (0.5, 0.99))
    table.add("service", f"{rate:.1f}", f"{rate / alone:.2f}", *quantiles, len(wrong))
    return table


# ---- rows -----------------------------------------------------------------------------------------------------------


class KeptConnection:
    """A plain socket: `http.client` would take as long as the service."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """The body of the answer; empty for a status other than 200."""
        self.socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := self.socket.recv(65536)):
                raise ConnectionError("closed")
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
        while len(body) < length:
            body += self.socket.recv(65536)
        return body if head.startswith(b"HTTP/1.1 200") else b""


def is_same(answer: bytes, truth: bytes) -> bool:
    """Whether two answers to one row have the same class and, to 1e-5, the same probabilities."""
    if answer == truth:
        return True
    [[one], [other]] = [json.loads(body)["predictions"] for body in (answer, truth)]
    p, q = one["probabilities"], other["probabilities"]
    return one["class"] == other["class"] and all(abs(p[name] - q[name]) < 1e-5 for name in q)


def row_request(row: np.ndarray, address: str) -> bytes:
    file = io.BytesIO()
    np.save(file, row[None])
    head = f"POST /predict/embeddings HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-npy\r\n"
    return f"{head}content-length: {len(file.getvalue())}\r\n\r\n".encode() + file.getvalue()


def resident_megabytes(process: subprocess.Popen[str]) -> float:
    """Memory of a process, on Linux."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def serve_rows(options: argparse.Namespace) -> Table:
    data = make_features(base=64, novel=max(options.classes, 5), rows=30, dim=DIM)
    x, y = data.novel.features, data.novel.require_labels()
    few = np.concatenate([np.flatnonzero(y == c)[:SHOTS] for c in range(options.classes)])
    classifier = GDCClassifier(BaseBank().fit(data.base.features, data.base.require_labels())).fit(x[few], y[few])
    clients, wrong, seconds = options.clients or 4, list[str](), list[float]()
    with service(classifier, None) as (address, process):
        silent = [KeptConnection(address) for _ in range(options.silent)]
        requests = [row_request(row, address) for row in x[np.linspace(0, len(x) - 1, ROWS).astype(int)]]
        truth = [KeptConnection(address).ask(request) for request in requests]
        assert all(truth)
        marks = [options.rows * i // 10 for i in range(11)]
        memory: dict[int, float] = {}

        def client(number: int, count: int, times: list[float]) -> None:
            connection = KeptConnection(address)
            for i in range(count):
                began = time.perf_counter()
                try:
                    if not is_same(connection.ask(requests[i % ROWS]), truth[i % ROWS]):
                        wrong.append("another answer")
                except (OSError, IndexError, ValueError) as error:
                    wrong.append(type(error).__name__)
                    connection = KeptConnection(address)
                times.append(time.perf_counter() - began)
                if number == 0 and i * clients >= marks[len(memory)]:
                    memory[len(memory)] = resident_megabytes(process)

        lone: list[float] = []
        client(-1, 2000, lone)
        taken = at_once(clients, lambda n: client(n, options.rows // clients, seconds))
        last = resident_megabytes(process)
        for one in silent:
            one.socket.close()
    print(f"{DIM} features, {options.classes} classes, {options.silent} silent connections, {os.cpu_count()} cores\n")
    table = Table("clients", "requests", "errors", "requests/s", "p50 ms", "p99 ms", "MB at the first tenth, half, end")
    table.add(1, len(lone), "", f"{len(lone) / sum(lone):.0f}", milliseconds(lone, 0.5), milliseconds(lone, 0.99), "")
    rate, quantiles = len(seconds) / taken, (milliseconds(seconds, q) for q in (0.5, 0.99))
    table.add(
        clients, len(seconds), len(wrong), f"{rate:.0f}", *quantiles, f"{memory[1]:.0f}, {memory[5]:.0f}, {last:.0f}"
    )
    if wrong:
        print({name: wrong.count(name) for name in set(wrong)})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, help="64 for pictures, 4 for rows")
    parser.add_argument("--requests", type=int, default=10, help="pictures of each client")
    parser.add_argument("--extractor", default="efficientnet-lite0")
    parser.add_argument("--rows", type=int, help="this many rows in place of pictures")
    parser.add_argument("--classes", type=int, default=5, help="with --rows")
    parser.add_argument("--silent", type=int, default=0, help="connections that stay silent, with --rows")
    add_record_option(parser)
    options = parser.parse_args()
    (serve_rows if options.rows else serve_pictures)(options).keep(options.record)


if __name__ == "__main__":
    main()
