"""How long a label takes in the studio: from the request to the whole new state, with many items embedded.

    python benchmarks/speed/studio.py [--items 1000] [--features 1280] [--classes 10] [--labels 50] [--bank 100]

Items are rows around class means; requests go through the whole HTTP interface in this process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from common import Table, add_record_option
from starlette.testclient import TestClient

from fewcal import BaseBank
from fewcal.apply.studio import Studio, StudioSettings
from fewcal.apply.studio.app import make_app
from fewcal.apply.studio.guard import Access
from fewcal.features.extractors import as_extractor


def rows(rng: np.random.Generator, means: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.maximum(means[labels] + 0.6 * rng.normal(size=(len(labels), means.shape[1])), 0).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"items": 1000, "features": 1280, "classes": 10, "labels": 50, "bank": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    add_record_option(parser)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    means = rng.random((options.classes + options.bank, options.features))
    labels = rng.integers(0, options.classes, options.items)
    x = rows(rng, means, labels)
    base = options.classes + np.repeat(np.arange(options.bank), 20)
    place = {f"item {i}": i for i in range(options.items)}
    extractor = as_extractor(lambda texts: [x[place.get(t, 0)] for t in texts], name="rows", kind="text")
    table = Table("base classes", "items", "median ms", "p95 ms", "largest ms")
    for bank in (None, BaseBank().fit(rows(rng, means, base), base)):
        with tempfile.TemporaryDirectory() as folder:
            studio = Studio(Path(folder), StudioSettings(extractor=extractor, bank=bank))
            access = Access(frozenset({"testserver:80", "testserver"}), "token", 10**7)
            with TestClient(make_app(studio, access), headers={"authorization": "Bearer token"}) as client:
                client.post("/api/texts", json={"text": "\n".join(place)})
                while studio.store.count("waiting"):
                    time.sleep(0.05)
                ids = [
                    client.post("/api/classes", json={"name": f"class {c}"}).json()["done"]
                    for c in range(options.classes)
                ]
                seconds = []
                for i in range(options.labels):
                    body = {"items": [i + 1], "class": ids[labels[i]]}
                    began = time.perf_counter()
                    client.post("/api/labels", json=body).raise_for_status()
                    seconds.append(1000 * (time.perf_counter() - began))
        shown = [f"{v:.0f}" for v in (np.median(seconds), np.quantile(seconds, 0.95), max(seconds))]
        table.add(0 if bank is None else len(bank), options.items, *shown)
    table.keep(options.record)


if __name__ == "__main__":
    main()
