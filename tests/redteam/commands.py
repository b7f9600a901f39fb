"""Real command lines, disturbed: killed, interrupted, started twice, in folders and on clocks that misbehave.

Whatever happens, there is no traceback, and `--resume` ends with the result of an undisturbed run and no litter.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from kills import Disturbed
from PIL import Image

from fewcal.features.synthetic import make_features
from limits import PATIENCE

# What a user types, and the file that must be the same to the byte. Trials that are repeated change a search.
LINES = {
    "evaluate": ("evaluate small --methods ncm,simpleshot,hgdc --way 3 --query 5 --tasks 600", "tasks.parquet"),
    "tune": ("tune small --trials 4 --tasks 10 --way 3 --query 5 --final-tasks 10", ""),
    "train": ("train pictures --backbone conv4 --size 16 --epochs 2 --mixup-epochs 0", "best.safetensors"),
    "paper": ("paper run mean-curve --features cub=small --quick", ""),
}
# A clock that jumps by up to 12 days at every look.
JUMPING = """
import random, time
_time, _monotonic = time.time, time.monotonic
time.time = lambda: _time() + random.uniform(-1e6, 1e6)
"""


class Trial:
    """A folder with the input of one command, and its undisturbed result in `whole`."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.line, self.result = LINES[name]
        self.folder, self.rng = folder, random.Random(f"{name} {seed}")
        make_features(base=33, val=8, novel=8, rows=20, dim=16).save(folder / "small")
        rng = np.random.default_rng(0)
        for split in ("base", "val"):
            for c in range(5):
                (folder / "pictures" / split / f"{split} {c}").mkdir(parents=True)
                for i in range(20):
                    pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / "pictures" / split / f"{split} {c}" / f"{i}.png")
        began = time.monotonic()
        code, errors = self.run("whole")
        self.seconds = time.monotonic() - began
        if code != 0:
            raise RuntimeError(f"fewcal {self.line} does not run: {errors}")

    def start(self, out: str, *more: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-m", "fewcal", *self.line.split(), "--out", out, "--quiet", *more]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, out: str, *more: str, **options: object) -> tuple[int, str]:
        process = self.start(out, *more, **options)  # type: ignore[arg-type]
        errors = process.communicate(timeout=10 * PATIENCE)[1]
        return process.returncode, errors

    def moment(self) -> float:
        return self.rng.uniform(0, self.seconds)

    def same(self, out: str) -> bool:
        """Whether a folder has what the undisturbed one has, and no more."""
        ours, theirs = self.folder / out, self.folder / "whole"
        if _names(ours) != _names(theirs):
            return False
        return not self.result or (ours / self.result).read_bytes() == (theirs / self.result).read_bytes()


def _names(folder: Path) -> set[Path]:
    """Files of a folder, without those that SQLite makes beside a database as it needs them."""
    return {p.relative_to(folder) for p in folder.rglob("*") if not p.name.endswith(("-wal", "-shm"))}


def disturbed(name: str, runs: int, seed: int, disturb: Callable[[Trial, str, Disturbed], None]) -> Disturbed:
    """Disturb a command `runs` times; `disturb` counts errors."""
    found = Disturbed()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(name, Path(folder), seed)
        for i in range(runs):
            disturb(trial, f"run {i}", found)
            found.runs += 1
            shutil.rmtree(trial.folder / f"run {i}", ignore_errors=True)
    return found


def _continued(trial: Trial, out: str, found: Disturbed) -> None:
    code, errors = trial.run(out, "--resume")
    found.errors += code != 0 or "Traceback" in errors
    found.identical += trial.same(out)


def killed(trial: Trial, out: str, found: Disturbed) -> None:
    """SIGKILL twice, then --resume."""
    for _ in range(2):
        process = trial.start(out, "--resume")
        time.sleep(trial.moment())
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found.kills += process.returncode == -signal.SIGKILL
    _continued(trial, out, found)


def interrupted(trial: Trial, out: str, found: Disturbed) -> None:
    """Ctrl-C, one to three times, then --resume."""
    process = trial.start(out, "--resume")
    time.sleep(max(trial.moment(), 0.5))  # before, it is Python that starts
    for _ in range(trial.rng.choice((1, 1, 2, 3))):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(trial.rng.uniform(0, 0.3))
    errors = process.communicate(timeout=PATIENCE)[1]
    found.kills += process.returncode != 0
    found.errors += "Traceback" in errors or process.returncode not in (0, 130, -signal.SIGINT)
    _continued(trial, out, found)


def two_at_once(trial: Trial, out: str, found: Disturbed) -> None:
    """Two processes in one folder: one has it, the other gets a line."""
    both = [trial.start(out) for _ in range(2)]
    ends = [(process.communicate(timeout=10 * PATIENCE)[1], process.returncode) for process in both]
    found.errors += sorted(code for _, code in ends) != [0, 2] or any("Traceback" in errors for errors, _ in ends)
    found.identical += trial.same(out)


def read_only(trial: Trial, out: str, found: Disturbed) -> None:
    """A folder that nobody may write to: a line."""
    (trial.folder / out).mkdir(mode=0o555)
    before = ("setpriv", "--bounding-set", "-dac_override") if os.geteuid() == 0 else ()
    code, errors = trial.run(out, before=before)
    found.errors += code not in (2, 3) or "Traceback" in errors or errors.count("fewcal: ") != 1
    found.identical += not list((trial.folder / out).iterdir())


def vanished(trial: Trial, out: str, found: Disturbed) -> None:
    """A folder that is deleted at any moment: a line or the result; after it, a new run is whole."""
    process = trial.start(out)
    time.sleep(trial.moment())
    shutil.rmtree(trial.folder / out, ignore_errors=True)
    errors = process.communicate(timeout=10 * PATIENCE)[1]
    found.errors += process.returncode not in (0, 2, 3) or "Traceback" in errors
    shutil.rmtree(trial.folder / out, ignore_errors=True)
    _continued(trial, out, found)


def clock_jumps(trial: Trial, out: str, found: Disturbed) -> None:
    """A clock that jumps back and forth: the same result."""
    place = trial.folder / "clock"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(JUMPING)
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH", ""))))
    code, errors = trial.run(out, PYTHONPATH=path)
    found.errors += code != 0 or "Traceback" in errors
    found.identical += trial.same(out)


DISTURBANCES = {
    "SIGKILL twice, --resume": killed,
    "Ctrl-C, --resume": interrupted,
    "two at once": two_at_once,
    "read-only folder": read_only,
    "folder deleted": vanished,
    "clock that jumps": clock_jumps,
}
