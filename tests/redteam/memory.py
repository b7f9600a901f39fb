"""Commands with less memory than they want: done, or refused in a line; no traceback, no signal, no hang.

Features are so wide that a covariance takes hundreds of megabytes, and the address space of the command is limited.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from fewcal._utils.memory import LEAST_ADDRESS_SPACE

SECONDS = 300.0
# From what is refused at once to what is enough for most commands.
LIMITS = tuple(int(LEAST_ADDRESS_SPACE * share) for share in (0.5, 1, 1.4, 2))
COMMANDS = {
    "version": "version",
    "features info": "features info wide",
    "evaluate": "evaluate wide --methods gdc,dc,lr --tasks 20 --query 5 --out OUT",
    "evaluate, n_jobs=2": "evaluate wide --methods gdc,ncm --tasks 400 --query 5 --n-jobs 2 --out OUT",
    "evaluate, Dask": "evaluate wide --methods gdc,ncm --tasks 20 --query 5 --scheduler local:1 --out OUT",
    "tune": "tune wide --trials 2 --tasks 5 --query 5 --final-tasks 5 --out OUT",
    "bank build": "bank build wide/base.npz --out OUT.safetensors",
    "fit": "fit --support wide/novel.npz --out OUT.fewcal",
    "predict": "predict --support wide/novel.npz --query wide/val.npz --out OUT.csv",
    "extract": "extract pictures --out OUT",
    "classify": "classify --support pictures --query pictures/a --html OUT.html",
    "train": "train trained --backbone conv4 --size 16 --epochs 1 --mixup-epochs 0 --out OUT",
    "paper": "paper run mean-curve --features dogs --quick --out OUT",
}


@dataclass
class Limited:
    """What became of a command under each limit."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def surroundings(folder: Path) -> None:
    """Features of 9000 columns, and small pictures."""
    rng = np.random.default_rng(0)
    for name in ("wide", "dogs"):
        (folder / name).mkdir()
        for split, first, n in (("base", 0, 30), ("val", 30, 6), ("novel", 36, 6)):
            np.savez(
                folder / name / f"{split}.npz",
                features=rng.random((n * 16, 9000), dtype=np.float32),
                labels=np.repeat(np.arange(n), 16),
                classes=np.array([f"class {first + i}" for i in range(n)]),
            )
    for place in ("pictures/a", "pictures/b", *(f"trained/{s}/{s}{i}" for s in ("base", "val") for i in range(5))):
        (folder / place).mkdir(parents=True)
        for i in range(20 if place.startswith("trained") else 3):
            pixels = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{i}.png")


def limited(command: str, limits: tuple[int, ...] = LIMITS) -> Limited:
    """Run a command under each limit of its address space, in bytes."""
    found = Limited()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        surroundings(folder)
        for i, limit in enumerate(limits):
            words = [word.replace("OUT", f"out{i}") for word in command.split()]
            outcome = _outcome(words, folder, limit)
            found.counts[outcome.split(":")[0]] += 1
            if not outcome.startswith(("done", "refused")):
                found.examples.append(f"fewcal {command}, {limit / 1e9:.2f} GB: {outcome}")
            for left in folder.glob(f"out{i}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return found


def _outcome(words: list[str], folder: Path, limit: int) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "fewcal", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    try:
        errors = process.communicate(timeout=SECONDS)[1].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "hang: no end"
    last = (errors.strip().splitlines() or [""])[-1]
    if process.returncode < 0:
        return f"crash: signal {-process.returncode}, {last}"
    if "Traceback" in errors:
        return f"traceback: {last}"
    if process.returncode == 0:
        return "done"
    # BLAS ends the process by itself, with exit code 1 and a line of its own.
    told = process.returncode in (2, 3) and last.startswith("fewcal: ")
    return f"refused: {last}" if told or last.startswith("OpenBLAS error: ") else f"traceback: {last}"
