"""The studio killed, interrupted and started twice: no label that was acknowledged is lost, no error is a traceback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from kills import Disturbed

from fewcal.apply.studio.store import Edit, Found, ProjectStore
from fewcal.errors import FewcalError
from limits import PATIENCE
from processes import FORKED
from studio_project import colour_folder, serve_colours

ITEMS = 24


def post(link: str, labels: dict[int, int]) -> None:
    """Label items through the HTTP interface."""
    base, _, token = link.partition("/?token=")
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    body = json.dumps({"labels": list(labels.items())}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{base}/api/labels", body, headers), timeout=PATIENCE).read()


def new_project(folder: Path) -> Path:
    """A project with two classes and no label."""
    colour_folder(folder, each=ITEMS // 3)
    store = ProjectStore(folder)
    store.add_items([Found(path.name) for path in sorted(folder.glob("*.png"))])
    store.record(Edit("classes", classes={1: (None, "one"), 2: (None, "two")}))
    store.close()
    return folder


def kill_server(runs: int, seed: int = 0, seconds: float = 1.0) -> Disturbed:
    """SIGKILL while a page labels: the next start has every label that was acknowledged."""
    found, rng = Disturbed(), random.Random(f"studio {seed}")
    with tempfile.TemporaryDirectory() as place:
        folder, acknowledged = new_project(Path(place) / "photos"), dict[int, int]()
        for _ in range(runs):
            receiver, sender = FORKED.Pipe(duplex=False)
            process = FORKED.Process(target=serve_colours, args=(folder, sender))
            process.start()
            sender.close()
            link = receiver.recv()
            threading.Timer(rng.uniform(0, seconds), process.kill).start()
            last = dict[int, int]()
            with suppress(OSError, HTTPException):
                while True:
                    last = {rng.randrange(1, ITEMS + 1): rng.randrange(3)}
                    post(link, last)
                    acknowledged |= last
            process.join(PATIENCE)
            found.runs, found.kills = found.runs + 1, found.kills + (process.exitcode == -signal.SIGKILL)
            try:
                kept = _labels(folder)
            except FewcalError:
                found.errors += 1
                continue
            # What was under way may have been written or not.
            found.identical += kept in (acknowledged, acknowledged | last)
            found.lost += sum(kept.get(i) not in (c, last.get(i)) for i, c in acknowledged.items())
            acknowledged = kept
    return found


def interrupt(runs: int, seed: int = 0, seconds: float = 4.0) -> Disturbed:
    """Ctrl-C, once or several times, at any moment from the start on: a line at most, and the project is whole."""
    found, rng = Disturbed(), random.Random(f"interrupt {seed}")
    command = [sys.executable, "-m", "fewcal", "studio", "--no-browser", "-e", "glyphs"]
    with tempfile.TemporaryDirectory() as place:
        folder = new_project(Path(place) / "photos")
        whole = _labels(folder)
        for _ in range(runs):
            process = subprocess.Popen([*command, folder], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(rng.uniform(0.2, seconds))  # before, it is Python that starts
            for _ in range(rng.choice((1, 1, 2, 3))):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
                time.sleep(rng.uniform(0, 0.3))
            errors = process.communicate(timeout=PATIENCE)[1]
            found.runs, found.kills = found.runs + 1, found.kills + 1
            found.errors += "Traceback" in errors or process.returncode not in (0, 130, -signal.SIGINT)
            found.identical += _labels(folder) == whole
    return found


def race(runs: int) -> Disturbed:
    """Two processes open one project at the same moment: one has it, the other gets a line."""
    found = Disturbed()
    with tempfile.TemporaryDirectory() as place:
        for i in range(runs):
            barrier, answers = FORKED.Barrier(2), FORKED.SimpleQueue()
            both = [FORKED.Process(target=_open, args=(Path(place) / str(i), barrier, answers)) for _ in range(2)]
            for process in both:
                process.start()
            outcomes = sorted(answers.get() for _ in both)
            for process in both:
                process.join(PATIENCE)
            found.runs += 1
            found.identical += outcomes == ["open", "refused"]
            found.errors += "other" in outcomes
    return found


def _open(folder: Path, barrier: threading.Barrier, answers: object) -> None:
    outcome, store = "other", None
    barrier.wait(PATIENCE)
    try:
        store = ProjectStore(folder)
        outcome = "open"
    except FewcalError as error:
        outcome = "refused" if "open in another studio" in str(error) else str(error)
    finally:
        answers.put(outcome)  # type: ignore[attr-defined]
        barrier.wait(PATIENCE)  # neither closes before the other has tried
        if store is not None:
            store.close()


def _labels(folder: Path) -> dict[int, int]:
    store = ProjectStore(folder)
    try:
        return store.labels()
    finally:
        store.close()
