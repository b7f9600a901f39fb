"""What tuning brings: parameters chosen on validation classes, measured on 1000 novel tasks.

    python benchmarks/accuracy/tuning.py FEATURES --out STUDIES

FEATURES is a folder with the feature sets below. The studies stay in STUDIES; a second call goes on where the first one
ended. Novel classes are opened once in each study, after the choice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import Table, add_record_option

from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.tuning import Search, tune
from fewcal.tuning.novel import PLAIN

SETS = ("cub-resnet12", "dogs-resnet12p64", "mini-resnet12", "mini2cub-conv4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the studies are kept")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=1000, help="novel tasks")
    parser.add_argument("--space", default="whitened")
    add_record_option(parser)
    arguments = parser.parse_args()
    there = [name for name in SETS if (arguments.features / name).is_dir()]
    if not there:
        parser.error(f"{arguments.features} has none of {', '.join(SETS)}")
    table = Table("features", "shots", "simpleshot", "lr", "default", "tuned", "tuned − simpleshot", "tuned − lr")
    gains: dict[str, list[float]] = {"default": [], "tuned": []}
    for name in there:
        features = FeatureSet.load(arguments.features / name)
        for shot in (1, 5):
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
            table.add(
                name,
                shot,
                f"{100 * plain:.2f}",
                f"{100 * figures['lr'].accuracy:.2f}",
                f"{100 * others.accuracy('gdc').mean():.2f}",
                f"{100 * tuned.accuracy:.2f} ± {100 * tuned.ci95:.2f}",
                *(f"{100 * gap.difference:+.2f} ± {100 * gap.ci95:.2f}" for gap in gaps),
            )
    table.keep(arguments.record)
    print("\npoints above SimpleShot, mean and worst of all cells:")
    for key, values in gains.items():
        print(f"{key}: {sum(values) / len(values):+.2f}, {min(values):+.2f}")


if __name__ == "__main__":
    main()
