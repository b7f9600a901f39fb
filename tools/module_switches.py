"""How often does control pass from one module of fewcal to another while a classifier is fitted on a cold bank?

python tools/module_switches.py        the number, and which modules were entered how often

A design whose parts are asked for one thing after another switches often; one that hands a whole task down and gets a
whole answer back does not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import numpy as np

from fewcal import BaseBank, GDCClassifier
from fewcal.features.synthetic import make_features


def module_switches(work: Callable[[], object]) -> Counter[str]:
    """Times that each module of fewcal was entered from another one while `work` ran."""
    entered: Counter[str] = Counter()
    stack: list[str] = []
    here = [""]

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        name = frame.f_globals.get("__name__", "")
        inside = name.startswith("fewcal.")
        if event == "call":
            stack.append(here[0])
            if inside and name != here[0]:
                here[0] = name
                entered[name] += 1
        elif stack:
            before = stack.pop()
            if before != here[0]:
                here[0] = before
                if before:
                    entered[before] += 1

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def fit_on_a_cold_bank() -> Callable[[], object]:
    """A fit of five classes with one row each, on a bank from which nothing has been derived yet."""
    features = make_features(base=40, val=0, novel=5, rows=20, dim=16)
    base, novel = features.split("base"), features.split("novel")
    bank = BaseBank().fit(base.features, base.require_labels())
    support = np.unique(novel.require_labels(), return_index=True)[1]
    classifier = GDCClassifier(bank)
    return lambda: classifier.fit(novel.features[support], np.arange(5))


def main() -> None:
    entered = module_switches(fit_on_a_cold_bank())
    print(f"{entered.total()} switches between {len(entered)} modules")
    for name, times in entered.most_common():
        print(f"{times:5d}  {name}")


if __name__ == "__main__":
    main()
