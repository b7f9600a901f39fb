"""Tasks per second against the loop that one would write today, in one run on one machine.

    python benchmarks/speed/run.py                         made-up features, D=640, 64 × 600 base rows
    python benchmarks/speed/run.py --features DIR          a real feature folder
    python benchmarks/speed/run.py --only hgdc dc           methods with these words in their names
    python benchmarks/speed/run.py --load 2                other work beside all of it, in so many processes
    python benchmarks/speed/run.py --naive-rate 0.41       ratios to a baseline that was measured before

The baseline is a plain NumPy + scikit-learn loop of DC, as its public script has it: per-class means and covariances,
`multivariate_normal` (SVD), `LogisticRegression(max_iter=1000)`. Everything else is measured as a ratio to it, with all
methods on the same tasks, n = 750 points a class. Methods that train on sampled points run in one process for each core
(`n_jobs`), the others in threads, as each is fastest; the processes' start is not counted, nor what depends on the base
classes alone: the naive loop's means and covariances, and what methods take from the bank. Beside it, how long one task
takes by the scikit-learn estimator: `fit` on the support and `predict` of 75 queries, median.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from common import Table, add_record_option, base_bank, features_or_synthetic, now

from fewcal import FewShotClassifier
from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.evaluation import Protocol, engine, evaluate
from fewcal.evaluation.stats import paired
from fewcal.features import FeatureSet
from fewcal.methods import make_method

# Other work on the same cores: products of matrices, without an end.
LOAD = "import numpy as np\na = np.ones((700, 700), np.float32)\nwhile True: a @ a"


def naive_dc(
    features: FeatureSet, protocol: Protocol, beta: float = 0.5, k: int = 2, alpha: float = 0.21
) -> np.ndarray:
    """DC task by task; accuracies (T,)."""
    from sklearn.linear_model import LogisticRegression

    base = features.split("base")
    labels = base.require_labels()
    rows = base.features.astype(np.float64)
    means = np.stack([rows[labels == c].mean(axis=0) for c in range(len(base.classes))])
    covariances = np.stack([np.cov(rows[labels == c].T) for c in range(len(base.classes))])
    novel = features.split(protocol.split)
    x_all = novel.features.astype(np.float64)
    episodes = sample_episodes(novel.require_labels(), protocol.spec, range(protocol.tasks))
    rng = np.random.default_rng(protocol.seed)
    accuracies = []
    started = time.perf_counter()
    for t in range(protocol.tasks):
        support = np.power(x_all[episodes.support[t].ravel()], beta)
        query = np.power(x_all[episodes.query[t].ravel()], beta)
        y = np.repeat(np.arange(protocol.way), protocol.shot)
        points, targets = [support], [y]
        for x, label in zip(support, y, strict=True):
            nearest = np.argpartition(np.linalg.norm(x - means, axis=1), k)[:k]
            mean = np.concatenate([means[nearest], x[None]]).mean(axis=0)
            covariance = covariances[nearest].mean(axis=0) + alpha
            points.append(rng.multivariate_normal(mean, covariance, size=750 // protocol.shot, method="svd"))
            targets.append(np.full(750 // protocol.shot, label))
        head = LogisticRegression(max_iter=1000).fit(np.concatenate(points), np.concatenate(targets))
        truth = np.repeat(np.arange(protocol.way), protocol.query)
        accuracies.append((head.predict(query) == truth).mean())
    naive_dc.seconds = time.perf_counter() - started  # type: ignore[attr-defined]
    return np.array(accuracies)


def one_task(features: FeatureSet, bank: BaseBank, shot: int, device: str) -> float:
    """Median milliseconds of `fit` and `predict` of a 5-way task with 75 queries."""
    novel = features.split("novel")
    of_class = [np.flatnonzero(novel.require_labels() == c) for c in range(5)]
    support, query = (np.concatenate([rows[part] for rows in of_class]) for part in (slice(shot), slice(-15, None)))
    x, y, queries = novel.features[support], novel.require_labels()[support], novel.features[query]
    seconds = []
    for _ in range(40):
        began = now(device)
        FewShotClassifier(bank, device=device).fit(x, y).predict(queries)
        seconds.append(now(device) - began)
    return 1000 * float(np.median(seconds[5:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", help="a feature folder instead of made-up features")
    parser.add_argument("--naive-tasks", type=int, default=10, help="tasks for the baseline (seconds each)")
    parser.add_argument("--naive-rate", type=float, help="tasks/s of the baseline in an earlier run")
    parser.add_argument("--tasks", type=int, default=40, help="tasks in tens for the closed form, in hundreds for HGDC")
    parser.add_argument("--jobs", type=int, help="processes of sampled methods, 1 for threads (one for each core)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="methods whose names have one of these words")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5], choices=[1, 5])
    parser.add_argument("--each", type=int, default=engine.BLOCK_TASKS, help="tasks of each process of sampled methods")
    parser.add_argument("--load", type=int, default=0, help="processes with other work beside the benchmark")
    parser.add_argument("--device", default="cpu")
    add_record_option(parser)
    options = parser.parse_args()
    others = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(options.load)]
    try:
        measure(options)
    finally:
        for other in others:
            other.kill()


def measure(options: argparse.Namespace) -> None:
    """Print the table of each number of shots."""
    block = engine.BLOCK_TASKS
    warnings.simplefilter("ignore")
    features = features_or_synthetic(options.features)
    if options.features:
        family = Path(options.features).name.split("-")[0]
        preset = family if family in ("cub", "dogs", "mini2cub") else "mini"
    else:
        preset = "mini"
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    if options.load:
        machine += f", {options.load} processes with other work"
    print(f"{machine}, torch {torch.__version__}, {options.device}")
    rows = len(features.split("base"))
    print(f"features: {options.features or 'made-up'}, D={features.dimension}, {rows} base rows\n")
    bank = base_bank(features, options.device)
    checks: list[str] = []
    table = Table("5-way, n=750 a class", "shots", "tasks/s", "ratio", "fit + predict ms")
    for shot in options.shots:
        protocol = Protocol(shot=shot, tasks=options.naive_tasks)
        naive, rate = None, options.naive_rate
        if rate is None:
            naive = naive_dc(features, protocol)
            rate = options.naive_tasks / naive_dc.seconds  # type: ignore[attr-defined]
        name = f"paper/{preset}/{shot}shot"
        jobs = options.jobs or (torch.get_num_threads() if options.device == "cpu" else 1)
        many = options.each * jobs if options.device == "cpu" else 500
        runs = {
            "dc": (make_method("dc"), many, jobs),
            "gdc sampled + L-BFGS": (make_method("gdc", name, head="lbfgs", n_per="class"), many, jobs),
            "gdc paper's SGD": (make_method("gdc", name, head="sgd", n_per="class"), many, jobs),
            "gdc closed form": (make_method("gdc", name, head="closed_form"), options.tasks * 10, 1),
            "hgdc": (make_method("hgdc"), options.tasks * 100, 1),
        }
        if options.only:
            runs = {name: run for name, run in runs.items() if set(name.split()) & set(options.only)}
        table.add("naive DC (NumPy + scikit-learn)", shot, f"{rate:.2f}", "1.0", "")
        for label, (method, tasks, processes) in runs.items():
            if processes == 1:  # the same method twice: the first, short run warms caches and pages
                evaluate({label: method}, features, Protocol(shot=shot, tasks=min(tasks, 20)), options.device)
            protocol = Protocol(shot=shot, tasks=tasks)
            engine.BLOCK_TASKS = options.each if processes > 1 else block  # each process has one block
            results = evaluate({label: method}, features, protocol, options.device, n_jobs=processes)
            speed = tasks * processes / results.seconds[label]  # seconds are those of all processes together
            of_one = f"{one_task(features, bank, shot, options.device):.2f}" if label == "hgdc" else ""
            table.add(label, shot, f"{speed:.2f}", f"{speed / rate:.1f}", of_one)
            if label == "dc" and naive is not None:
                ours = results.accuracy(label)[: len(naive)]
                d = paired(ours, naive)
                checks.append(
                    f"{shot}-shot: dc less naive DC on the same {len(naive)} tasks {100 * d.difference:+.2f} "
                    f"± {100 * d.ci95:.2f} points ({100 * ours.mean():.2f} and {100 * naive.mean():.2f})"
                )
    table.keep(options.record)
    print("", *checks, sep="\n")


if __name__ == "__main__":
    main()
