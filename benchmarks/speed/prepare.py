"""What a trial of a parameter search costs: seconds to prepare a new β, and of 200 tasks with each head.

python benchmarks/speed/prepare.py [--features DIR] [--device cuda] [--tasks 200]
"""

from __future__ import annotations

import argparse
import statistics
import uuid
import warnings

from common import features_or_synthetic, now

from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.evaluation.engine import Engine, Job
from fewcal.methods import make_method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    features = features_or_synthetic(options.features)
    base, novel = features.split("base"), features.split("novel")
    labels = novel.require_labels()

    for shot in (1, 5):
        spec = EpisodeSpec(5, shot, 15, 0, True)
        episodes = sample_episodes(labels, spec, range(options.tasks))
        rows = (base.features, base.require_labels())
        began = now(options.device)
        engine = Engine(Job(rows, novel.features, labels, {}, spec, episodes, options.device, uuid.uuid4().hex))
        print(f"5-way {shot}-shot: raw bank and features {now(options.device) - began:.3f} s", flush=True)
        for head in ("closed_form", "lbfgs", "sgd"):
            prepare, run = [], []
            betas = (0.5, 0.75, 1.25) if head != "sgd" or options.device == "cuda" else (0.5,)
            for beta in betas:
                for repeat in range(2):  # the second time β is known, as in most trials
                    method = make_method("gdc", f"paper/mini/{shot}shot", head=head, n_per="class", beta=beta, l2=True)
                    began = now(options.device)
                    ready = engine.with_methods({"trial": method})
                    prepared = now(options.device)
                    ready.run(0, options.tasks)
                    if not repeat:
                        prepare.append(prepared - began)
                    run.append(now(options.device) - prepared)
            print(
                f"  {head:12s} a new β {1e3 * statistics.median(prepare):7.1f} ms; {options.tasks} tasks, first time "
                f"at this β {statistics.median(run[::2]):.3f} s, later {statistics.median(run[1::2]):.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
