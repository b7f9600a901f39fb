"""The GPU suite in one call: agreement with the CPU, seconds for 5000 tasks of every kind of GDC, and then the other
benchmarks on the GPU: floors of each stage, the cost of a trial, many ways, a bank of 20,000 classes.

python benchmarks/speed/gpu.py [--features DIR] [--tasks 5000] [--only-tasks]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from common import Table, add_record_option, features_or_synthetic

from fewcal.evaluation import Protocol, evaluate
from fewcal.methods import make_method


def kinds(shot: int) -> dict:
    paper = f"paper/mini/{shot}shot"
    return {
        "hgdc": lambda: make_method("hgdc"),
        "gdc closed form": lambda: make_method("gdc", paper, head="closed_form"),
        "gdc sampled + L-BFGS": lambda: make_method("gdc", paper, head="lbfgs", n_per="class"),
        "gdc paper's SGD": lambda: make_method("gdc", paper, head="sgd", n_per="class"),
        "dc": lambda: make_method("dc"),
        "simpleshot": lambda: make_method("simpleshot"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features")
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--check", type=int, default=100, help="tasks on which CPU and GPU are compared")
    parser.add_argument("--only-tasks", action="store_true", help="leave out the other benchmarks")
    add_record_option(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    warnings.simplefilter("ignore")
    features = features_or_synthetic(options.features)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, D={features.dimension}, n=750 a class\n")
    table = Table(f"{options.tasks} tasks, 5-way", "shots", "s", "with preparation, s", "%", "GPU − CPU")
    for shot in (1, 5):
        for name, make in kinds(shot).items():
            check = options.check // 5 if "SGD" in name else options.check
            short = Protocol(shot=shot, tasks=check)
            cpu, gpu = (evaluate({name: make()}, features, short, device).accuracy(name) for device in ("cpu", "cuda"))
            protocol = Protocol(shot=shot, tasks=options.tasks)
            began = time.perf_counter()
            results = evaluate({name: make()}, features, protocol, "cuda")
            wall = time.perf_counter() - began
            difference = 100 * (gpu - cpu)
            half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
            table.add(
                name,
                shot,
                f"{results.seconds[name]:.3f}",
                f"{wall:.2f}",
                f"{100 * results.accuracy(name).mean():.2f}",
                f"{difference.mean():+.3f} ± {half:.3f} on {check} tasks",
            )
    table.keep(options.record)
    if options.only_tasks:
        return
    features_given = ["--features", options.features] if options.features else []
    for name in ("floors", "prepare", "ways", "bigbank"):
        print(f"\n{name}.py", flush=True)
        extra = features_given if name in ("floors", "prepare") else []
        script = Path(__file__).with_name(f"{name}.py")
        subprocess.run([sys.executable, str(script), "--device", "cuda", *extra], check=True)


if __name__ == "__main__":
    main()
