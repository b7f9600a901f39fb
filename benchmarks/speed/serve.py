"""The service under load: 64 clients beside the same work by the library in batches.

    python benchmarks/speed/serve.py [--clients 64] [--requests 10] [--extractor efficientnet-lite0]

Every client posts pictures one by one, as JPEG, each waiting for its answer, to a `fewcal serve` of its own process.
The library decodes the same pictures, embeds and classifies them in batches of 32. Both have the same cores, which the
clients share with the service. Prints errors, throughput, latencies, and the throughput as a share of the library's.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from common import Table, add_record_option, photographs

from fewcal import GDCClassifier
from fewcal.features.extractors import Extractor, get_extractor
from fewcal.features.sources.items import decoded
from fewcal.features.sources.pictures import decode_fitted

CLASSES, SHOTS, BATCH = 10, 5, 32


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


def client(
    address: str, pictures: list[bytes], number: int, requests: int, seconds: list[float], wrong: list[str]
) -> None:
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


def load(address: str, pictures: list[bytes], clients: int, requests: int) -> tuple[float, list[float], list[str]]:
    """Pictures a second, latencies and errors of many clients at once."""
    seconds: list[float] = []
    wrong: list[str] = []
    threads = [
        threading.Thread(target=client, args=(address, pictures, n, requests, seconds, wrong)) for n in range(clients)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients * requests / (time.perf_counter() - began), seconds, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10, help="of each client")
    parser.add_argument("--extractor", default="efficientnet-lite0")
    add_record_option(parser)
    options = parser.parse_args()
    extractor, pictures = get_extractor(options.extractor), photographs(CLASSES * SHOTS)
    rows = extractor([prepared(p, extractor) for p in pictures])
    names = [f"class {i}" for i in range(CLASSES) for _ in range(SHOTS)]
    classifier = GDCClassifier().fit(rows, names)
    total = options.clients * options.requests
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.fewcal"
        classifier.save(model, extractor=extractor.stamp)
        command = [sys.executable, "-m", "fewcal", "serve", str(model), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://([\d.:]+)", server.stdout.readline())
            assert found is not None
            load(found[1], pictures, 8, 4)  # the first batches are slower
            library(pictures, extractor, classifier, 2 * BATCH)
            # Before and after, since a machine is rarely as quiet as it was.
            before = library(pictures, extractor, classifier, total)
            rate, seconds, wrong = load(found[1], pictures, options.clients, options.requests)
            alone = (before + library(pictures, extractor, classifier, total)) / 2
        finally:
            server.terminate()
            server.wait(60)
    p50, p99 = (1000 * float(np.quantile(seconds, q)) for q in (0.5, 0.99))
    print(f"{options.extractor}, {options.clients} clients, {total} pictures, {os.cpu_count()} cores\n")
    table = Table("", "pictures/s", "of the library", "p50 ms", "p99 ms", "errors")
    table.add(f"library, batches of {BATCH}", f"{alone:.1f}", "1.00", "", "", "")
    table.add("service", f"{rate:.1f}", f"{rate / alone:.2f}", f"{p50:.0f}", f"{p99:.0f}", len(wrong))
    table.keep(options.record)


if __name__ == "__main__":
    main()
