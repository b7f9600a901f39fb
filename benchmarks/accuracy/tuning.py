"""What tuning brings: parameters chosen on validation classes, beside the default on the same novel tasks.

    python benchmarks/accuracy/tuning.py FEATURES --out STUDIES

FEATURES is a folder with the feature sets below. The studies stay in STUDIES; a second call goes on where the first one
ended. Novel classes are opened once in each study, after the choice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import Table, add_record_option

from fewcal.features import FeatureSet
from fewcal.tuning import Search, tune

SETS = ("cub-resnet12", "dogs-resnet12p64", "mini-resnet12", "mini2cub-conv4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the studies are kept")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=1000, help="novel tasks")
    parser.add_argument("--space", default="hgdc")
    parser.add_argument("--device", default="cpu")
    add_record_option(parser)
    options = parser.parse_args()
    names = [name for name in SETS if (options.features / name).is_dir()]
    if not names:
        parser.error(f"{options.features} has none of {', '.join(SETS)}")
    table = Table("features", "shots", "default", "best trial", "minus default", "on validation", "chosen")
    for name in names:
        features = FeatureSet.load(options.features / name)
        for shot in (1, 5):
            search = Search(shot=shot, space=options.space, trials=options.trials)
            out, tasks = options.out / f"{name}-{shot}", options.tasks
            found = tune(features, search, out=out, resume=True, novel_tasks=tasks, device=options.device, plots=False)
            assert found.novel is not None
            novel, fresh = found.novel.scores[found.best.name], found.best.fresh
            gains = [f"{100 * s.gain:+.2f} ± {196 * (s.error or 0):.2f}" for s in (novel, fresh)]
            default = found.novel.scores["default"].accuracy
            table.add(name, shot, f"{100 * default:.2f}", f"{100 * novel.accuracy:.2f}", *gains, found.chosen.name)
    table.keep(options.record)


if __name__ == "__main__":
    main()
