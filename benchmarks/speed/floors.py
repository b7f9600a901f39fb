"""Measured time over what the hardware allows, stage by stage.

    python benchmarks/speed/floors.py                 one CPU core (the engine gives each core its own batch of tasks)
    python benchmarks/speed/floors.py --device cuda   a GPU

For each stage the fewest bytes that must be moved, the operations that must be done and the random numbers that must
be drawn are counted; divided by the rates of this machine, measured in the same run, they give three times, of which
the largest is the floor. D=640, 64 × 600 base rows, 5-way, n=750 a class, as everywhere in docs/results.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from common import base_bank, features_or_synthetic, now

from fewcal import BaseBank, ops
from fewcal._utils.bfloat16 import half_pays
from fewcal._utils.randomness import TaskRandom, fill_normal
from fewcal.calibrate import scatter_dense
from fewcal.evaluation.engine import BLOCK_TASKS, reuse_memory
from fewcal.features import FeatureSet
from fewcal.heads.calibrated import augment
from fewcal.heads.closed_form import closed_form_head
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.sgd import sgd_head
from fewcal.methods import TaskBatch, make_method

WAY, QUERY, POINTS, EPOCHS = 5, 15, 750, 200


@dataclass(frozen=True)
class Rates:
    """What this machine does in a second: bytes copied, operations in float32 and bfloat16, normal numbers drawn."""

    bytes: float
    float32: float
    bfloat16: float
    normals: float


class Clock:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def best(self, work: Callable[[], Any], repeats: int = 3) -> float:
        work()
        times = []
        for _ in range(repeats):
            began = now(self.device)
            work()
            times.append(now(self.device) - began)
        return min(times)


def measure_rates(clock: Clock) -> Rates:
    device = clock.device
    size, side = ((1 << 30), 8192) if device.type == "cuda" else ((1 << 26), 2048)
    a = torch.empty(size // 4, device=device).uniform_()
    b = torch.empty_like(a)
    copied = 2 * size / clock.best(lambda: b.copy_(a))
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        m = torch.randn(side, side, device=device)
        if dtype == torch.bfloat16 and not half_pays(m):  # emulated there, which nobody waits for
            rates[dtype] = rates[torch.float32]
            continue
        m = m.to(dtype)
        rates[dtype] = 2 * side**3 / clock.best(lambda m=m: m @ m)  # type: ignore[misc]
    random = torch.Generator(device).manual_seed(0)
    normals = a.numel() / clock.best(lambda: fill_normal(a, random))
    return Rates(copied, rates[torch.float32], rates[torch.bfloat16], normals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", type=int, help="tasks of the batch (8 on a CPU, 500 on a GPU)")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(options.device)
    clock = Clock(device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    rates = measure_rates(clock)
    tasks = options.tasks or (500 if device.type == "cuda" else 8)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "one CPU core"
    print(
        f"{where}: {rates.bytes / 1e9:.0f} GB/s, float32 {rates.float32 / 1e12:.2f} and bfloat16 "
        f"{rates.bfloat16 / 1e12:.2f} TFLOP/s, {rates.normals / 1e9:.2f} G normals/s; {tasks} tasks together"
    )
    reuse_memory()
    features = features_or_synthetic(options.features)
    bank = base_bank(features, device)
    for shot in options.shots:
        Stages(features, bank, shot, tasks, rates, clock).run()


class Stages:
    """The stages of one number of shots, each timed and set beside its floor."""

    def __init__(self, features: FeatureSet, bank: BaseBank, shot: int, tasks: int, rates: Rates, clock: Clock) -> None:
        self.bank, self.shot, self.tasks, self.rates, self.clock = bank, shot, tasks, rates, clock
        self.device = clock.device
        self.novel = torch.from_numpy(features.split("novel").float32()).to(self.device)
        self.preset = f"paper/mini/{shot}shot"
        # S support points, D features, C base classes of P rows
        self.s, self.d, self.c, self.p = WAY * shot, bank.dim, len(bank), int(bank.counts.min())

    def labels(self, tasks: int) -> torch.Tensor:
        return torch.arange(WAY, device=self.device).repeat_interleave(self.shot).expand(tasks, -1)

    def rows(self, tasks: int, count: int, random: torch.Generator) -> torch.Tensor:
        return torch.randint(len(self.novel), (tasks, count), generator=random).to(self.device)

    def report(
        self, name: str, work: Callable[[], object], tasks: int, gb: float, flop: float, rate: float, normals: float = 0
    ) -> None:
        """One line: time of a task, its floor, and what the floor is made of."""
        took, rates = self.clock.best(work) / tasks, self.rates
        limits = {"bytes": gb / rates.bytes, "arithmetic": flop / rate, "random numbers": normals / rates.normals}
        what = max(limits, key=lambda k: limits[k])
        floor = limits[what]
        print(
            f"{name:22s} {1e3 * took:11.4f}   {1e3 * floor:10.4f} {took / floor:6.1f}   {what:14s} "
            f"({gb / 1e9:.4f}, {flop / 1e9:.3f}, {normals / 1e6:.2f})",
            flush=True,
        )

    def run(self) -> None:
        print(
            f"\n{WAY}-way {self.shot}-shot        ms a task        floor   over   bound by       "
            "(GB, GFLOP, M normals a task)"
        )
        x, y, size, rate = self.sampling()
        self.training(x, y, size, rate)
        del x, y
        self.closed_form()
        self.whitened()

    def sampling(self) -> tuple[torch.Tensor, torch.Tensor, int, float]:
        """Neighbours, factors, points: the points, their labels, bytes of a number and operations a second."""
        t, s, d, c, p = self.tasks, self.s, self.d, self.c, self.p
        method = make_method("gdc", self.preset, head="lbfgs", n_per="class").prepare(self.bank)
        rows = self.rows(t, WAY * (self.shot + QUERY), torch.Generator().manual_seed(0))[:, :s]
        support = method.transform(self.novel)[rows]
        calibrator = method.calibrator
        self.report(
            "neighbours", lambda: calibrator.calibrate(support), t, 4 * s * d, 2 * s * c * d, self.rates.float32
        )
        found = calibrator.calibrate(support)
        shrunk = method.shrunk(found)
        half = half_pays(support, support.numel() * p)
        size, rate = (2, self.rates.bfloat16) if half else (4, self.rates.float32)
        factor_bytes = size * (s * p * d + c * p * d / t)
        self.report("factor assembly", lambda: shrunk.covariance.factor(half), t, factor_bytes, 2 * s * c * p * d, rate)

        def draw() -> tuple[torch.Tensor, torch.Tensor]:
            batch = TaskBatch(support, self.labels(t), WAY, TaskRandom(0, range(t), self.device))
            return augment(batch, found.mean, shrunk, POINTS, "class")

        m = WAY * POINTS
        moved = factor_bytes + size * s * p * d + 4 * m * d
        self.report("assembly + sampling", draw, t, moved, 2 * (s * c + m) * p * d, rate, m * (p + d))
        return *draw(), size, rate

    def training(self, x: torch.Tensor, y: torch.Tensor, size: int, rate: float) -> None:
        """The heads that train on points."""
        t, d, m = self.tasks, self.d, WAY * POINTS
        halves, fulls = (n / t for n in count_gradients(x, y))
        # Every gradient needs the points twice, before and after the softmax.
        moved, flop = 2 * m * d * (2 * halves + 4 * fulls), 4 * m * d * WAY * (halves + fulls)
        name = f"L-BFGS ({halves:.1f}+{fulls:.1f} its)"
        self.report(name, lambda: lbfgs_head(x, y, WAY), t, moved, flop, self.rates.float32)
        self.report(
            "SGD, 200 epochs",
            lambda: sgd_head(x, y, WAY, TaskRandom(0, range(t), self.device, stream=1)),
            t,
            EPOCHS * m * d * size,  # once an epoch, if both products of a batch could share one reading
            EPOCHS * 4 * m * d * WAY,
            rate,
        )

    def closed_form(self) -> None:
        """As evaluation does it: a whole block of tasks, which share the reading of the base rows."""
        method = make_method("gdc", self.preset, head="closed_form").prepare(self.bank)
        t = BLOCK_TASKS if self.device.type == "cpu" else self.tasks
        rows = self.rows(t, self.s, torch.Generator().manual_seed(2))
        found = method.calibrator.calibrate(method.transform(self.novel)[rows])
        # Base classes that have a share in a task, on average.
        used = float((scatter_dense(found.index, found.weights, self.c) != 0).any(dim=1).sum()) / t
        applications = 2
        self.report(
            "closed form",
            lambda: closed_form_head(found.mean, self.labels(t), WAY, method.shrunk(found)),
            t,
            4 * self.c * self.p * self.d / t * applications * 2,
            applications * 4 * (WAY - 1) * used * self.p * self.d,
            self.rates.float32,
        )

    def whitened(self) -> None:
        """The default preset from support to scores."""
        method = make_method("gdc").prepare(self.bank)
        z = method.transform(self.novel)
        t, together = (500, 25) if self.device.type == "cpu" else (self.tasks, self.tasks)
        random = torch.Generator().manual_seed(1)
        queries, support = self.rows(t, WAY * QUERY, random), self.rows(t, self.s, random)

        def work() -> None:
            for begin in range(0, t, together):
                part = slice(begin, begin + together)
                batch = TaskBatch(z[support[part]], self.labels(len(support[part])), WAY, TaskRandom(0, ()))
                method.fit(batch).logits(z[queries[part]])

        rows = self.s + WAY * QUERY
        flop = 2 * rows * (self.c + WAY) * self.d
        self.report("whitened, all of it", work, t, 3 * 4 * rows * self.d, flop, self.rates.float32)


def count_gradients(x: torch.Tensor, y: torch.Tensor) -> tuple[int, int]:
    """Gradients of single tasks that L-BFGS takes, in half and in full precision."""
    calls = {torch.bfloat16: 0, torch.float32: 0}
    gradient = ops.gradient

    def counted(points: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        calls[points.dtype] += len(points)
        return gradient(points, *rest)

    ops.gradient = counted
    try:
        lbfgs_head(x, y, WAY)
    finally:
        ops.gradient = gradient
    return calls[torch.bfloat16], calls[torch.float32]


if __name__ == "__main__":
    main()
