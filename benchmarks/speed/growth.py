"""How time and memory grow with C, D, P, N, K and n: measured, with the exponents of a log-log fit, and a plot.

    python benchmarks/speed/growth.py                  the table
    python benchmarks/speed/growth.py --out FOLDER     also growth.svg, growth.png and growth.json
    python benchmarks/speed/growth.py --parts          where the time of L-BFGS goes with 5 to 100 ways

One size is varied at a time around a base point. Times are CPU seconds of one thread for a batch of tasks, so that
other work on the machine does not disturb them; memory is the peak of resident memory above what was there before.
`products` are the two of one gradient of L-BFGS, of all points with all classes and back: what grows with them grows as
little as it can while each point is compared with each class.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import json
import pstats
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal import BaseBank
from fewcal._utils.randomness import TaskRandom
from fewcal.methods import Method, TaskBatch, make_method

BASE = {"C": 64, "D": 256, "P": 100, "N": 5, "K": 1, "n": 200}
AXES = {
    "C": (64, 256, 1024, 4096),
    "D": (128, 256, 512, 1024),
    "P": (50, 100, 200, 400, 800),
    "N": (5, 10, 20, 40, 80),
    "K": (1, 2, 4, 8, 16),
    "n": (100, 200, 400, 800, 1600),
}
MEANING = {
    "C": "base classes",
    "D": "features",
    "P": "rows per base class",
    "N": "ways",
    "K": "shots",
    "n": "points sampled for a class",
}
# What L-BFGS of one task consists of, by the functions that do it, and the ways at which it is looked at.
PARTS = {
    "points": "augment",
    "forward": "_forward",
    "back": "gradient",
    "looks": "search",
    "recursion": "direction",
}
PARTS_WAYS = (5, 20, 50, 100)
QUERIES = 15
TASKS = 4


def kinds(n: int) -> dict[str, Method]:
    joint = {"preset": "paper", "l2": True, "distance_scale": 1.0, "k": 8, "alpha1": 100.0}
    return {
        "HGDC": make_method("hgdc"),
        "closed form": make_method("gdc", head="closed_form", **joint),
        "L-BFGS": make_method("gdc", head="lbfgs", n=n, n_per="class", **joint),
    }


def resident(field: str) -> float:
    """Resident memory of this process in MB: `VmRSS` now, `VmHWM` at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1e3
    return float("nan")


def measured(work: Any) -> tuple[float, float]:
    """CPU seconds, the better of two, and peak megabytes of a piece of work."""
    best, peak = float("inf"), 0.0
    for _ in range(2):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed before must not hide what is taken now
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
        before = resident("VmRSS")
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
        peak = max(peak, resident("VmHWM") - before)
    return best, peak


def point(
    size: dict[str, int], names: list[str], profile: cProfile.Profile | None = None
) -> dict[str, dict[str, float]]:
    """Time and memory of each kind at one size; of the bank's preparation as well."""
    c, d, p, n_way, shot = (size[a] for a in "CDPNK")
    random = torch.Generator().manual_seed(0)
    means = torch.randn(c, 1, d, generator=random)
    rows = (means + torch.randn(c, p, d, generator=random)).clamp_(min=0).reshape(c * p, d)
    labels = np.repeat(np.arange(c), p)
    novel = torch.randn(TASKS, n_way, 1, d, generator=random)
    x = (novel + torch.randn(TASKS, n_way, shot + QUERIES, d, generator=random)).clamp_(min=0)
    y = torch.arange(n_way).repeat_interleave(shot).expand(TASKS, -1)
    out = {}
    bank = BaseBank()
    seconds, megabytes = measured(lambda: bank.fit(rows, labels))
    out["build bank"] = {"seconds": seconds, "megabytes": megabytes}
    points, weights = (torch.randn(n, d, generator=random) for n in (n_way * (shot + size["n"]), n_way))
    (weights @ points.T) @ points
    seconds, megabytes = measured(lambda: (weights @ points.T) @ points)
    out["products"] = {"seconds": seconds, "megabytes": megabytes}
    for name, method in kinds(size["n"]).items():
        if name not in names:
            continue
        method.prepare(bank)
        z = method.transform(x.reshape(-1, d)).view(x.shape)
        support = z[:, :, :shot].reshape(TASKS, -1, d)
        query = z[:, :, shot:].reshape(TASKS, -1, d)

        def work(method: Method = method, support: torch.Tensor = support, query: torch.Tensor = query) -> None:
            head = method.fit(TaskBatch(support, y, n_way, TaskRandom(0, range(TASKS))))
            head.logits(query)

        work()  # what is derived from the bank is derived once
        seconds, megabytes = measured(work)
        out[name] = {"seconds": seconds / TASKS, "megabytes": megabytes / TASKS}
        if profile is not None:
            profile.runcall(work)
    return out


def show_parts() -> None:
    """Milliseconds of a task by L-BFGS, of its parts, and how many gradients it took."""
    print("ways   in all  " + "  ".join(f"{name:>9s}" for name in PARTS) + "  gradients")
    for ways in PARTS_WAYS:
        profile = cProfile.Profile(time.process_time)
        seconds = point(BASE | {"N": ways}, ["L-BFGS"], profile)["L-BFGS"]["seconds"]
        stats = pstats.Stats(profile).get_stats_profile().func_profiles
        parts = "  ".join(f"{1e3 * stats[name].cumtime / TASKS:9.1f}" for name in PARTS.values())
        # Tasks that are worked on together have their gradients together.
        print(f"{ways:4d} {1e3 * seconds:8.1f}  {parts}  {stats['gradient'].ncalls:>9s}", flush=True)


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of log value against log size over the upper half of the sizes, where fixed costs matter least."""
    keep = [(s, v) for s, v in zip(sizes, values, strict=True) if v > 0][-3:]
    if len(keep) < 2:
        return float("nan")
    return float(np.polyfit(np.log([s for s, _ in keep]), np.log([v for _, v in keep]), 1)[0])


def plot(found: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    )
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        2, len(found), figsize=(2.2 * len(found), 5), squeeze=False, sharey="row", layout="constrained"
    )
    colours = {"build bank": "0.6", "HGDC": "#0072b2", "closed form": "#009e73", "L-BFGS": "#d55e00"}
    for column, (axis, by_kind) in enumerate(found.items()):
        for row, what in enumerate(("seconds", "megabytes")):
            panel = panels[row, column]
            for name, colour in colours.items():
                values = by_kind[name]
                panel.loglog(by_kind["sizes"], values[what], "o-", ms=3, lw=1.2, color=colour, label=name)
            panel.set_xticks(by_kind["sizes"], [str(s) for s in by_kind["sizes"]])
            panel.minorticks_off()
            if row == 0:
                panel.set_title(f"{axis}: {MEANING[axis]}")
    panels[0, 0].set_ylabel("CPU seconds a task")
    panels[1, 0].set_ylabel("megabytes a task")
    panels[0, 0].legend(frameon=False, fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "growth.svg")
    figure.savefig(folder / "growth.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--parts", action="store_true", help="Where the time of L-BFGS goes, and nothing else.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.parts:
        return show_parts()
    names = ["build bank", "HGDC", "closed form", "L-BFGS", "products"]
    print(
        "around " + ", ".join(f"{a}={v}" for a, v in BASE.items()) + "; milliseconds a task [exponent of time, memory]"
    )
    found: dict[str, Any] = {}
    for axis in options.axes:
        points = [point(BASE | {axis: size}, names) for size in AXES[axis]]
        by_kind: dict[str, Any] = {"sizes": list(AXES[axis])}
        print(f"\n{axis}, {MEANING[axis]}: " + ", ".join(map(str, AXES[axis])))
        for name in names:
            columns = {w: [p[name][w] for p in points] for w in ("seconds", "megabytes")}
            slopes = {w: exponent(by_kind["sizes"], v) for w, v in columns.items()}
            by_kind[name] = columns | {"exponents": slopes}
            times = "  ".join(f"{1e3 * s:9.2f}" for s in columns["seconds"])
            print(f"  {name:12s} {times}   [{slopes['seconds']:5.2f}, {slopes['megabytes']:5.2f}]", flush=True)
        found[axis] = by_kind
    if options.out:
        plot(found, options.out)
        (options.out / "growth.json").write_text(json.dumps(found, indent=1))
    return None


if __name__ == "__main__":
    main()
