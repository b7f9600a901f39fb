"""Start and small calls, where nothing large is computed: python benchmarks/speed/calls.py [--runs 9] [--threads 2]

- the command until its help stands there, until an error, and until ten pictures are classified, each in a process of
  its own, beside what importing takes of it; median and slowest;
- `FewShotClassifier.fit` and `predict` of one 5-way 1-shot task on a prepared bank of 100 classes, D = 640;
- `BaseBank.load` of a bank with its rows: time, memory of its own, and what is resident (mapped pages of the file).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import Table, add_record_option

from fewcal import BaseBank, FewShotClassifier
from fewcal.features.synthetic import make_features

# As installed: bytecode of fewcal is there from the first start on, whatever is set here.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def processes(table: Table, name: str, command: list[str], runs: int, code: int = 0) -> None:
    """Time a command from its start to its end."""
    times = []
    for _ in range(runs + 1):  # the first is not counted
        began = time.perf_counter()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=ENVIRONMENT)
        times.append(time.perf_counter() - began)
        if done.returncode != code:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    del times[0]
    table.add(name, f"{statistics.median(times):.2f} s", f"slowest {max(times):.2f} s")


def start(table: Table, runs: int, folder: Path) -> None:
    """The command line, from nothing."""
    rng = np.random.default_rng(0)
    from PIL import Image

    for kind, count in (("photos/a", 5), ("photos/b", 5), ("new", 10)):
        (folder / kind).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (240, 320, 3), np.uint8)).save(folder / kind / f"{i}.jpg")
    fewcal = ["-m", "fewcal"]
    processes(table, "fewcal --help", [*fewcal, "--help"], runs)
    processes(table, "fewcal classify --help", [*fewcal, "classify", "--help"], runs)
    processes(
        table,
        "fewcal classify, a folder that is not there",
        [*fewcal, "classify", "--support", "a", "--query", "b"],
        runs,
        2,
    )
    processes(table, "fewcal evaluate, an option that is none", [*fewcal, "evaluate", "--shots", "1"], runs, 2)
    support, query = str(folder / "photos"), str(folder / "new")
    classify = [*fewcal, "classify", "--support", support, "--query", query, "-q"]
    processes(table, "fewcal classify, an extractor that is none", [*classify, "-e", "nope"], runs, 2)
    processes(table, "fewcal classify, a preset that is none", [*classify, "--preset", "nope"], runs, 2)
    (folder / "none").mkdir()
    (folder / "none" / "empty.jpg").touch()
    none = [*fewcal, "classify", "--support", support, "--query", str(folder / "none")]
    processes(table, "fewcal classify, a picture that is none", none, runs, 2)
    torn = folder / "torn.fewcal"
    torn.write_bytes(b"torn")
    processes(table, "fewcal model info, a file that is torn", [*fewcal, "model", "info", str(torn)], runs, 2)
    processes(table, "fewcal serve, a file that is torn", [*fewcal, "serve", str(torn)], runs, 2)
    processes(table, "import torch", ["-c", "import torch"], runs)
    needed = "fewcal.apply.classify, fewcal.estimators.few_shot, fewcal.features.extractors.efficientnet_lite"
    processes(table, "all that classify imports, torch included", ["-c", f"import {needed}"], runs)
    one = ["classify", "--support", support, "--query", f"{query}/0.jpg", "-q"]
    processes(table, "fewcal classify, 10 examples and 1 picture", [*fewcal, *one], runs)
    processes(table, "fewcal classify, 10 examples and 10 pictures", classify, runs)
    parts(table, runs, support, query)


# What `fewcal classify` does, step by step, with the time of each.
STEPS = """
import gc, sys, time
told = [time.perf_counter()]
step = lambda: told.append(time.perf_counter())
gc.set_threshold(5_000, 10, 10)
support, query = sys.argv[1:]
import fewcal.cli.extract
step()
import torch
step()
import fewcal.apply.classify, fewcal.estimators.few_shot
from fewcal.features.extract import embed
from fewcal.features.sources.find import find_pair
step()
known, asked = find_pair(support, query)
from fewcal.features.extractors import get_extractor
extractor = get_extractor("efficientnet-lite0")
step()
(x, known), (z, asked) = embed(known, extractor), embed(asked, extractor)
step()
print(*(b - a for a, b in zip(told, told[1:])))
"""


def parts(table: Table, runs: int, support: str, query: str) -> None:
    """Where the time of the first `classify` goes."""
    times = []
    for _ in range(runs):
        steps = [sys.executable, "-c", STEPS, support, query]
        done = subprocess.run(steps, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        times.append([float(t) for t in done.stdout.split()])
    names = ("command line, sources", "import torch", "other imports", "weights", "network")
    for name, taken in zip(names, zip(*times, strict=True), strict=True):
        table.add(f"of that: {name}", f"{statistics.median(taken):.2f} s", "")


def one_task(bank: BaseBank, x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """As a user would write it."""
    return FewShotClassifier(bank).fit(x, y).predict(asked)


def calls(table: Table, repeats: int) -> None:
    """One task by the estimator."""
    data = make_features(base=100, val=0, novel=5, rows=20, dim=640)
    bank = BaseBank().fit(data.base.features, data.base.labels)
    few = np.arange(100) % 20 == 0
    x, y = data.novel.features[few], data.novel.labels[few]
    for queries in (5, 75):
        asked = data.novel.features[~few][:queries]
        task = partial(one_task, bank, x, y, asked)
        timed(table, f"fit and predict of {queries} queries", task, repeats)
    timed(table, "fit", lambda: FewShotClassifier(bank).fit(x, y), repeats)


def timed(table: Table, name: str, work: Callable[[], object], repeats: int) -> None:
    for _ in range(20):
        work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    median, low = statistics.median(times), statistics.quantiles(times, n=10)[0]
    table.add(name, f"{median:.2f} ms", f"10% below {low:.2f} ms")


def memory() -> dict[str, float]:
    """Resident memory of this process in MB: its own (RssAnon), mapped files (RssFile), and the most so far (VmHWM)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    wanted = ("RssAnon:", "RssFile:", "VmHWM:")
    return {line[0][:-1]: int(line[1]) / 1e3 for line in lines if line and line[0] in wanted}


def load(path: str) -> None:
    """Load a bank in this process and tell what it took."""
    before, began = memory(), time.perf_counter()
    bank = BaseBank.load(path)
    seconds, after = time.perf_counter() - began, memory()
    own, peak = after["RssAnon"] - before["RssAnon"], after["VmHWM"] - before["VmHWM"]
    size = Path(path).stat().st_size / 1e6
    print(f"load {bank}")
    print(f"  {size:.0f} MB on disk: {1e3 * seconds:.0f} ms, {own:.0f} MB of its own, peak {peak:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="Starts of each command.")
    parser.add_argument("--repeats", type=int, default=500, help="Small calls.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=["start", "calls", "load"], help="One part alone.")
    parser.add_argument("--load", metavar="BANK", help=argparse.SUPPRESS)
    add_record_option(parser)
    options = parser.parse_args()
    if options.load:
        return load(options.load)
    torch.set_num_threads(options.threads)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {options.threads} threads")
    table = Table("", "median", "spread")
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "start"):
            start(table, options.runs, Path(folder))
        if options.only in (None, "calls"):
            calls(table, options.repeats)
        if options.only in (None, "load"):
            path = f"{folder}/bank.safetensors"
            rows = np.random.default_rng(0).random((60_000, 640), np.float32)
            BaseBank().fit(rows, np.arange(60_000) % 100).save(path)
            subprocess.run([sys.executable, __file__, "--load", path], check=True)
    table.keep(options.record)
    return None


if __name__ == "__main__":
    main()
