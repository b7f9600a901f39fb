"""`make demo`: every method on the same tasks of a made-up feature set, at one and five shots."""

from __future__ import annotations

import argparse

from fewcal.evaluation import Protocol, evaluate
from fewcal.progress import ProgressBar
from fewcal.runs import markdown
from fewcal.synthetic import make_features


def main(argv: list[str] | None = None) -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(prog="python -m fewcal.demo", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    features = make_features(spread=1.6, seed=options.seed)
    for shot in (1, 5):
        protocol = Protocol(shot=shot, tasks=options.tasks, seed=options.seed)
        with ProgressBar("tasks") as report:
            results = evaluate(["ncm", "simpleshot", "lr", "dc", "gdc"], features, protocol, progress=report)
        print(markdown(results.summary("simpleshot")))
    print("gdc is the default preset. Next: `fewcal evaluate DIR` on your own features; see README.md.")


if __name__ == "__main__":
    main()
