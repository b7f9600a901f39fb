"""The paper's search as it describes it, from nothing, and its best trials beside the published setting.

    python benchmarks/accuracy/paper_search.py FEATURES --out STUDY [--shot 1] [--trials 1000] [--device cuda]

FEATURES is a folder of one of the paper's datasets. TPE proposes, the median prunes, 200 validation tasks with the SGD
head judge each trial, and no trial is given. The three best and the published setting then meet on the same 5000 novel
tasks, as in the paper; beside them the published one at unit scale. Needs torch, NumPy and Optuna, and no SciPy:
intervals are normal ones. `STUDY/search.json` holds what is printed. A killed search goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import warnings
from pathlib import Path

import numpy as np
from common import Table, add_record_option

from fewcal._utils.terminal import ProgressBar
from fewcal.errors import FewcalWarning
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods.gdc import GDC
from fewcal.paper.sets import dataset_of
from fewcal.params import GDCParams
from fewcal.presets import get_preset
from fewcal.tuning import Search, make_objective, tune

SETTING = ("beta", "m", "k", "n", "alpha1", "alpha2_ratio")


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting, its accuracy on the validation tasks of the search, and on each novel task."""

    name: str
    setting: dict[str, float]
    searched: float
    novel: np.ndarray

    def to_dict(self, published: Row) -> dict[str, object]:
        """Per cent, with half-widths of 95% intervals; `gain` is over the published setting, on the same tasks."""
        return {
            "name": self.name,
            "setting": self.setting,
            "validation": 100 * self.searched,
            "novel": mean_and_half_width(self.novel),
            "gain": mean_and_half_width(self.novel - published.novel),
        }


def mean_and_half_width(accuracy: np.ndarray) -> tuple[float, float]:
    """Mean over tasks in per cent and the half-width of its normal 95% interval.

    >>> mean_and_half_width(np.array([0.5, 0.7]))[0]
    60.0
    """
    half = 1.96 * accuracy.std(ddof=1) / len(accuracy) ** 0.5 if len(accuracy) > 1 else float("nan")
    return 100 * float(accuracy.mean()), 100 * float(half)


def published_settings(dataset: str, shot: int, head: str) -> dict[str, GDCParams]:
    """The paper's setting for a dataset (appendix F), on features as they come and at unit scale."""
    row = get_preset(f"paper/{dataset}/{shot}shot").with_changes(head=head)
    return {"published": row, "published, unit scale": row.with_changes(center=True, l2=True)}


def compare(features: FeatureSet, search: Search, settings: dict[str, GDCParams], tasks: int, device: str) -> list[Row]:
    """Each setting on the validation tasks of the search and on novel tasks, the same for all."""
    objective = make_objective(features, search.make_space(), search.search_tasks, device=device)
    methods = {name: GDC(params, cap_k=True) for name, params in settings.items()}
    protocol = Protocol(search.way, search.shot, search.query, tasks, search.seed, "novel")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)  # of clipped α2, which the record of a trial has too
        found = evaluate(methods, features, protocol, device)
        return [
            Row(
                name,
                {field: getattr(params, field) for field in SETTING},
                float(objective.accuracy(GDC(params, cap_k=True)).mean()),
                found.accuracy(name),
            )
            for name, params in settings.items()
        ]


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shot", type=int, default=1, choices=(1, 5))
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=200, help="validation tasks of a trial")
    parser.add_argument("--novel-tasks", type=int, default=5000)
    parser.add_argument("--head", default="sgd")
    parser.add_argument("--published", action="store_true", help="begin with the published setting")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--resume", action="store_true")
    add_record_option(parser)
    return parser.parse_args()


def main() -> None:
    """Search, compare, print and keep."""
    options = arguments()
    features = FeatureSet.load(options.features)
    dataset = dataset_of(options.features.resolve().name)
    search = Search(
        "paper",
        f"paper/{dataset}",
        options.head,
        trials=options.trials,
        tasks=options.tasks,
        shot=options.shot,
        published=options.published,
    )
    begin = time.perf_counter()
    with ProgressBar("trials") as progress:
        found = tune(
            features,
            search,
            out=options.out,
            resume=options.resume,
            device=options.device,
            progress=progress,
            plots=False,
        )
    seconds = time.perf_counter() - begin
    settings = published_settings(dataset, options.shot, options.head)
    settings |= {f.name: f.method.params for f in found.finalists if isinstance(f.method, GDC)}
    rows = compare(features, search, settings, options.novel_tasks, options.device)
    record = {
        "features": options.features.name,
        "shot": options.shot,
        "trials": found.trials,
        "pruned": found.pruned,
        "seconds": seconds,
        "novel tasks": options.novel_tasks,
        "rows": [row.to_dict(rows[0]) for row in rows],
    }
    (options.out / "search.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(
        f"\n{options.features.name}, {options.shot}-shot, {found.trials} trials of {options.tasks} tasks "
        f"({found.pruned} pruned) in {seconds:.0f} s; {options.novel_tasks} novel tasks\n"
    )
    table = Table("setting", *SETTING, "validation %", "novel %", "minus published")
    for row in rows:
        (mean, half), (gain, width) = mean_and_half_width(row.novel), mean_and_half_width(row.novel - rows[0].novel)
        numbers = [f"{row.setting[name]:g}" for name in SETTING]
        found_in = [f"{100 * row.searched:.2f}", f"{mean:.2f} ± {half:.2f}", f"{gain:+.2f} ± {width:.2f}"]
        table.add(row.name, *numbers, *found_in)
    table.keep(options.record)


if __name__ == "__main__":
    main()
