"""A bank of 20,000 base classes, built from a stream in bounded memory, and what one few-shot problem then costs.

    python benchmarks/speed/bigbank.py                    20,000 classes × 100 rows × 1024 features, float16
    python benchmarks/speed/bigbank.py --classes 2000     a tenth of it
    python benchmarks/speed/bigbank.py --order shuffled   rows of all classes mixed, as a crawl brings them
    python benchmarks/speed/bigbank.py --device cuda      the same code on a GPU

Rows are made up on the fly by seed, so no file is needed; making them is timed apart. Build and query run in processes
of their own, so that each has its own peak of resident memory.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import peak_gib

from fewcal import BaseBank, FewShotClassifier, GDCClassifier
from fewcal.estimators.base import TaskClassifier
from fewcal.evaluation.engine import reuse_memory
from fewcal.gaussianize import GaussianizationFitter

NUISANCE = 64
FAMILIES = 200
# The space of the bank, which both models take.
SPACE = {"beta": 0.5, "kind": "tukey", "center": True, "l2": True}


class Scenario:
    """Classes in families, rows that differ along directions all classes share: any row again from its number."""

    def __init__(self, classes: int, rows: int, dim: int, device: str = "cpu") -> None:
        self.classes, self.rows, self.dim, self.device = classes, rows, dim, torch.device(device)
        random = torch.Generator().manual_seed(0)  # the same scenario on every device
        self.family = torch.randn(FAMILIES, dim, generator=random).to(self.device)
        self.nuisance = 0.6 * torch.randn(NUISANCE, dim, generator=random).to(self.device)

    def _normal(self, random: torch.Generator, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=self.device)

    def _means(self, classes: torch.Tensor) -> torch.Tensor:
        # Own offset of each class as a fixed mixture of two families and a sinusoid: nothing stored for each class.
        phase = classes[:, None] * 0.7548776662 + torch.arange(self.dim, device=self.device) * 0.5698402909
        offset = torch.sin(6.2831853 * (phase + (classes[:, None] % 977) * (classes[:, None] % 131) * 1e-3))
        return self.family[classes % FAMILIES] + 0.5 * self.family[(7 * classes + 3) % FAMILIES] + offset

    def draw(self, classes: torch.Tensor, seed: int) -> torch.Tensor:
        """One row of each of `classes (R,)`, `(R, D)` float32, ≥ 0 as after a network's last activation."""
        random = torch.Generator(self.device).manual_seed(seed)
        x = self._normal(random, len(classes), self.dim)
        x.addmm_(self._normal(random, len(classes), NUISANCE), self.nuisance)
        unique, at = torch.unique(classes.to(self.device), return_inverse=True)
        return x.add_(self._means(unique)[at]).clamp_(min=0)

    def stream(self, chunk: int, order: str) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
        """All rows, `chunk` at a time, with the labels."""
        labels = np.repeat(np.arange(self.classes), self.rows)
        if order == "shuffled":
            np.random.default_rng(0).shuffle(labels)
        for i, begin in enumerate(range(0, len(labels), chunk)):
            part = labels[begin : begin + chunk]
            yield self.draw(torch.from_numpy(part), 1000 + i), part


def build(options: argparse.Namespace) -> None:
    scenario = Scenario(options.classes, options.rows, options.dim, options.device)
    fitter = GaussianizationFitter(**SPACE)
    spent = dict.fromkeys(("rows", "transform", "bank"), 0.0)

    def timed(stage: str, began: float) -> float:
        if options.device == "cuda":
            torch.cuda.synchronize()
        spent[stage] += (now := time.perf_counter()) - began
        return now

    now = time.perf_counter()
    for x, _ in scenario.stream(options.chunk, options.order):
        now = timed("rows", now)
        fitter.update(x)
        now = timed("transform", now)
    bank = BaseBank(keep_rows=options.keep_rows, dtype="float16", transform=fitter.finish())
    now = time.perf_counter()
    for x, y in scenario.stream(options.chunk, options.order):
        now = timed("rows", now)
        bank.partial_fit(x, y, device=options.device)
        now = timed("bank", now)
    bank.check()
    began = time.perf_counter()
    bank.save(options.out)
    saved = time.perf_counter() - began
    print(f"{bank}")
    print(
        f"build: transform {spent['transform']:.1f} s, bank {spent['bank']:.1f} s, save {saved:.1f} s "
        f"(making up the rows: {spent['rows']:.1f} s); peak {peak_gib():.2f} GiB, file {file_mb(options.out):.0f} MB"
    )


def file_mb(path: str) -> float:
    return Path(path).stat().st_size / 1e6


def query(options: argparse.Namespace) -> None:
    reuse_memory()
    began = time.perf_counter()
    bank = BaseBank.load(options.out, device=None if options.device == "cpu" else options.device)
    print(f"load: {time.perf_counter() - began:.3f} s (memory-mapped)")
    scenario = Scenario(options.classes, options.rows, options.dim)
    unseen = torch.arange(5) * 11 + options.classes  # classes that the bank has not seen
    support = scenario.draw(unseen, 1).numpy()
    queries = scenario.draw(unseen.repeat_interleave(15), 2).numpy()
    truth = np.repeat(np.arange(5), 15)
    kinds: dict[str, Callable[[], TaskClassifier]] = {"HGDC": lambda: FewShotClassifier(bank, device=options.device)}
    if options.keep_rows:
        gdc = partial(
            *(GDCClassifier, bank, "paper"),
            device=options.device,
            cov="independent",
            distance_scale=1.0,
            alpha1=100.0,
            **SPACE,
        )
        kinds["class covariances, closed form"] = partial(gdc, head="closed_form")
        kinds["class covariances, sampled + L-BFGS"] = partial(gdc, head="lbfgs", n_per="class")
    for name, make in kinds.items():
        times, accuracy = [], 0.0
        for repeat in range(options.repeats + 1):
            began = time.perf_counter()
            classifier = make().fit(support, np.arange(5))
            fitted = time.perf_counter()
            accuracy = float((classifier.predict(queries) == truth).mean())
            now = time.perf_counter()
            if repeat == 0:
                first = now - began
            else:
                times.append((now - began, fitted - began, now - fitted))
        total, fit, predict = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{name:36s} fit {fit:6.1f} + predict {predict:5.1f} = {total:6.1f} ms (median of {len(times)}; the first "
            f"{first:.1f} s), accuracy {accuracy:.2f}, peak {peak_gib():.2f} GiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--keep-rows", action="store_true", help="for class covariances")
    parser.add_argument("--chunk", type=int, default=20_000, help="rows of a chunk")
    parser.add_argument("--order", choices=("classes", "shuffled"), default="classes")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", help="keep the bank here")
    parser.add_argument("--stage", choices=("build", "query"), help="one of the two, in this process")
    options = parser.parse_args()
    if options.stage:
        {"build": build, "query": query}[options.stage](options)
        return
    size = f"{options.classes} classes × {options.rows} rows × {options.dim} features"
    print(f"{size}, {options.order}, {options.device}, {torch.get_num_threads()} threads", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = sys.argv[1:] + ([] if options.out else ["--out", f"{folder}/bank.safetensors"])
        for stage in ("build", "query"):
            subprocess.run([sys.executable, __file__, *arguments, "--stage", stage], check=True)


if __name__ == "__main__":
    main()
