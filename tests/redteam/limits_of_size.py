"""Many classes, and many fits."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np

from fewcal import FewShotClassifier
from fewcal.features.synthetic import make_features
from services import live_service, many_rows

MAX_GROWTH = 20 << 20  # bytes that 2,000 fits may leave


def thousand_classes(requests: int) -> int:
    """Wrong or missing answers of a service with a thousand classes."""
    rows, wrong = many_rows(), 0
    with live_service("many classes") as service:
        client = service.client()
        for i in range(requests):
            some = [(i * 16 + j) % len(rows) for j in range(16)]
            body = json.dumps({"rows": rows[some].tolist()})
            client.request("POST", "/predict/embeddings", body, {"content-type": "application/json"})
            answer = client.getresponse()
            found = json.loads(answer.read())
            names = [one["class"] for one in found["predictions"]] if answer.status == 200 else []
            wrong += names != [f"class {j}" for j in some]
    return wrong


def leak(fits: int) -> int:
    """Bytes that a process holds more after so many fits with a bank."""
    data = make_features(base=20, novel=5, rows=20, dim=64)
    classifier = FewShotClassifier((data.base.features, data.base.require_labels()))
    x, y = data.novel.features, data.novel.require_labels()
    before = 0
    for i in range(fits):
        if i == fits // 10:  # what is kept once is no leak
            gc.collect()
            before = _resident()
        few = np.flatnonzero(np.arange(len(y)) % 20 < 1 + i % 5)
        classifier.fit(x[few], y[few]).predict_proba(x)
    gc.collect()
    return _resident() - before


def _resident() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10
