"""The default preset beside the plain baselines on real features: points above SimpleShot on the same tasks.

    python benchmarks/accuracy/default.py FEATURES [--split novel] [--tasks 1000]

FEATURES holds one feature folder for each data set. Tune on val; novel is for the final figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import feature_folders

from fewcal.evaluation import Protocol, evaluate

ASKED = {  # points above SimpleShot at 1 and 5 shots
    "cub-resnet12": (5.5, 2.5),
    "dogs-resnet12p64": (2.0, 1.0),
    "mini-resnet12": (1.0, 1.0),
    "mini2cub-conv4": (3.0, 3.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default="ncm,lr,simpleshot,gdc")
    options = parser.parse_args()
    folders = feature_folders(options.features)
    methods = options.methods.split(",")
    print(
        f"{options.tasks} {options.split} tasks, seed {options.seed}, 5-way, accuracy % (95% half-width over tasks)\n"
    )
    print(f"| features | shots | {' | '.join(methods)} | gdc − simpleshot | asked |")
    print(f"|---|---:|{'---:|' * len(methods)}---:|---:|")
    for folder in folders:
        for column, shot in enumerate((1, 5)):
            protocol = Protocol(shot=shot, tasks=options.tasks, split=options.split, seed=options.seed)
            summary = evaluate(methods, folder, protocol, options.device).summary("simpleshot", class_intervals=False)
            cells = [f"{100 * m.accuracy:.2f} ± {100 * m.ci95:.2f}" for m in summary.methods.values()]
            gain = summary.difference("gdc", "simpleshot")
            asked = ASKED.get(folder.name, ("–", "–"))[column]
            points = f"{100 * gain.difference:+.2f} ± {100 * gain.ci95:.2f}"
            print(f"| {folder.name} | {shot} | {' | '.join(cells)} | {points} | {asked} |", flush=True)


if __name__ == "__main__":
    main()
