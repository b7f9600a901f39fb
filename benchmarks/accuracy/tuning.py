"""What tuning brings: parameters chosen on validation classes, measured on 1000 novel tasks.

    python benchmarks/accuracy/tuning.py FEATURES --out STUDIES

FEATURES is a folder with the feature sets below. The studies stay in STUDIES; a second call goes on where the first one
ended. Novel classes are opened once in each study, after the choice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.tuning import Search, tune
from fewcal.tuning.novel import PLAIN

# Goals for the tuned parameters: whitened GDC tuned on validation classes by hand, in % at 1 and 5 shots.
GOALS = {
    "cub-resnet12": (76.4, 89.5),
    "dogs-resnet12p64": (66.1, 80.9),
    "mini-resnet12": (59.3, 77.1),
    "mini2cub-conv4": (None, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the studies are kept")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=1000, help="novel tasks")
    parser.add_argument("--space", default="whitened")
    arguments = parser.parse_args()
    there = [name for name in GOALS if (arguments.features / name).is_dir()]
    if not there:
        parser.error(f"{arguments.features} has none of {', '.join(GOALS)}")
    print("| features | shots | simpleshot | lr | default | tuned | tuned − simpleshot | tuned − lr | goal |")
    print(f"|---|{'---:|' * 8}")
    gains: dict[str, list[float]] = {"default": [], "tuned": []}
    for name in there:
        features = FeatureSet.load(arguments.features / name)
        for shot, goal in zip((1, 5), GOALS[name], strict=True):
            search = Search(shot=shot, space=arguments.space, heads=("closed_form",), trials=arguments.trials)
            found = tune(
                features,
                search,
                out=arguments.out / f"{name}-{shot}",
                resume=True,
                novel_tasks=arguments.tasks,
            )
            assert found.novel is not None
            figures, gaps = found.novel.figures, [found.novel.difference(name) for name in PLAIN]
            others = evaluate("simpleshot,gdc", features, Protocol(shot=shot, tasks=arguments.tasks))
            plain = others.accuracy("simpleshot").mean()
            tuned = figures[f"trial {found.novel.chosen_trial}"]
            for key, value in (
                ("default", others.accuracy("gdc").mean()),
                ("tuned", tuned.accuracy),
            ):
                gains[key].append(100 * (value - plain))
            print(
                f"| {name} | {shot} | {100 * plain:.2f} | {100 * figures['lr'].accuracy:.2f} "
                f"| {100 * others.accuracy('gdc').mean():.2f} "
                f"| {100 * tuned.accuracy:.2f} ± {100 * tuned.ci95:.2f} "
                + "".join(f"| {100 * gap.difference:+.2f} ± {100 * gap.ci95:.2f} " for gap in gaps)
                + f"| {goal or ''} |",
                flush=True,
            )
    print("\npoints above SimpleShot, mean and worst of all cells:")
    for key, values in gains.items():
        print(f"{key}: {sum(values) / len(values):+.2f}, {min(values):+.2f}")


if __name__ == "__main__":
    main()
