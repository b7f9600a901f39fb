"""Measured time over what the hardware allows, stage by stage.

    python benchmarks/speed/floors.py                 one CPU core (the engine gives each core its own batch of tasks)
    python benchmarks/speed/floors.py --device cuda   a GPU

For each stage the fewest bytes that must be moved, the operations that must be done and the random numbers that must
be drawn are counted; divided by the rates of this machine, measured in the same run, they give three times, of which
the largest is the floor. D=640, 64 × 600 base rows, 5-way, n=750 a class, as everywhere in RESULTS.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from common import base_bank, features_or_synthetic, now

from fewcal import BaseBank
from fewcal._utils.bfloat16 import half_pays
from fewcal._utils.randomness import TaskRandom, fill_normal
from fewcal.evaluation.engine import BLOCK_TASKS, reuse_memory
from fewcal.features import FeatureSet
from fewcal.heads import lbfgs as lbfgs_module
from fewcal.heads.calibrated import augment
from fewcal.heads.closed_form import closed_form_head
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
        m = torch.randn(side, side, device=device).to(dtype)
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
        stages(features, bank, shot, tasks, rates, clock)


def stages(features: FeatureSet, bank: BaseBank, shot: int, tasks: int, rates: Rates, clock: Clock) -> None:
    device = clock.device
    novel = torch.from_numpy(features.split("novel").float32()).to(device)
    rows = torch.randint(len(novel), (tasks, WAY * (shot + QUERY)), generator=torch.Generator().manual_seed(0))
    support_rows = rows[:, : WAY * shot].to(device)
    labels = torch.arange(WAY, device=device).repeat_interleave(shot).expand(tasks, -1)
    print(
        f"\n{WAY}-way {shot}-shot        ms a task        floor   over   bound by       (GB, GFLOP, M normals a task)"
    )
    t, s, d, c, p = tasks, WAY * shot, bank.dim, len(bank), int(bank.counts.min())

    def report(name: str, work: Callable[[], Any], gb: float, flop: float, rate: float, normals: float = 0.0) -> None:
        took = clock.best(work) / t
        limits = {"bytes": gb / rates.bytes, "arithmetic": flop / rate, "random numbers": normals / rates.normals}
        what = max(limits, key=lambda k: limits[k])
        floor = limits[what]
        print(
            f"{name:22s} {1e3 * took:11.4f}   {1e3 * floor:10.4f} {took / floor:6.1f}   {what:14s} "
            f"({gb / 1e9:.4f}, {flop / 1e9:.3f}, {normals / 1e6:.2f})",
            flush=True,
        )

    method = make_method("gdc", f"paper/mini/{shot}shot", head="lbfgs", n_per="class")
    method.prepare(bank)
    z = method.transform(novel)
    support = z[support_rows]
    report("neighbours", lambda: method.calibrator.calibrate(support), 4 * s * d, 2 * s * c * d, rates.float32)
    found = method.calibrator.calibrate(support)
    shrunk = method.shrunk(found)
    half = half_pays(support, support.numel() * p)
    size, low = (2, rates.bfloat16) if half else (4, rates.float32)
    factor_bytes = size * (s * p * d + c * p * d / t)
    report("factor assembly", lambda: shrunk.covariance.factor(half), factor_bytes, 2 * s * c * p * d, low)
    m = WAY * POINTS

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        batch = TaskBatch(support, labels, WAY, TaskRandom(0, range(t), device))
        return augment(batch, found.mean, shrunk, POINTS, "class")

    more = size * s * p * d + 4 * m * d
    report("assembly + sampling", draw, factor_bytes + more, 2 * (s * c + m) * p * d, low, m * (p + d))
    x, y = draw()
    calls = {"half": 0, "full": 0}
    gradient = lbfgs_module._gradient

    def counted(points: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls["full" if points.dtype == torch.float32 else "half"] += len(points)
        return gradient(points, *rest)

    lbfgs_module._gradient = counted  # type: ignore[assignment]
    lbfgs_module.lbfgs_head(x, y, WAY)
    lbfgs_module._gradient = gradient
    halves, fulls = calls["half"] / t, calls["full"] / t
    # Every gradient needs the points twice, before and after the softmax.
    moved = 2 * m * d * (2 * halves + 4 * fulls)
    report(
        f"L-BFGS ({halves:.1f}+{fulls:.1f} its)",
        lambda: lbfgs_module.lbfgs_head(x, y, WAY),
        moved,
        4 * m * d * WAY * (halves + fulls),
        rates.float32,
    )
    report(
        "SGD, 200 epochs",
        lambda: sgd_head(x, y, WAY, TaskRandom(0, range(t), device, stream=1)),
        EPOCHS * m * d * size,  # once an epoch, if both products of a batch could share one reading
        EPOCHS * 4 * m * d * WAY,
        low,
    )
    x = y = x[:0]
    many = 500 if device.type == "cpu" else t
    closed = make_method("gdc", f"paper/mini/{shot}shot", head="closed_form").prepare(bank)
    # As evaluation does it: a whole block of tasks, which share the reading of the base rows.
    t = BLOCK_TASKS if device.type == "cpu" else t
    block = torch.randint(len(novel), (t, s), generator=torch.Generator().manual_seed(2)).to(device)
    found, labels = closed.calibrator.calibrate(z[block]), labels[:1].expand(t, -1)
    shrunk = closed.shrunk(found)
    used = float((shrunk.covariance._shares != 0).any(dim=1).float().mean()) * c
    applications = 2
    report(
        "closed form",
        lambda: closed_form_head(found.mean, labels, WAY, closed.shrunk(found)),
        4 * c * p * d / t * applications * 2,
        applications * 4 * (WAY - 1) * used * p * d,
        rates.float32,
    )
    white = make_method("gdc").prepare(bank)
    z = white.transform(novel)
    random = torch.Generator().manual_seed(1)
    q = torch.randint(len(novel), (many, WAY * QUERY), generator=random).to(device)
    sup = torch.randint(len(novel), (many, s), generator=random).to(device)
    y_many = labels[:1].expand(many, -1)

    def whole() -> None:
        for low_ in range(0, many, 25 if device.type == "cpu" else many):
            part = slice(low_, low_ + (25 if device.type == "cpu" else many))
            head = white.fit(TaskBatch(z[sup[part]], y_many[part], WAY, TaskRandom(0, ())))
            head.logits(z[q[part]])

    t = many
    all_rows = s + WAY * QUERY
    report("whitened, all of it", whole, 3 * 4 * all_rows * d, 2 * all_rows * (c + WAY) * d, rates.float32)


if __name__ == "__main__":
    main()
