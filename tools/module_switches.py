"""How often does control pass from one module of fewcal to another while a classifier is fitted on a cold bank?

python tools/module_switches.py        the number, and how often each module was entered

Counted are calls of functions and methods, in the order in which they happen: a call in another module than the call
before it is a switch. Reading an attribute (a property, `len`, a hash), making a record and the toolbox (`_utils`) do
not count. A design whose parts are asked for one thing after another switches often; one that hands a whole task down
does not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from types import CodeType, FrameType

import numpy as np

from fewcal import BaseBank, GDCClassifier
from fewcal.features.synthetic import make_features


def properties() -> set[CodeType]:
    """The code of all properties of classes in fewcal."""
    modules = [module for name, module in sys.modules.items() if name.startswith("fewcal.")]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    values = [value for cls in classes for value in vars(cls).values()]
    found = [value.fget for value in values if isinstance(value, property)]
    found += [value.func for value in values if isinstance(value, cached_property)]
    return {one.__code__ for one in found if one is not None}


def module_switches(work: Callable[[], object]) -> Counter[str]:
    """Times that each module of fewcal was entered while `work` ran."""
    calls: list[tuple[str, CodeType]] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        own = name.startswith("fewcal.") and not name.startswith("fewcal._utils.")
        if event == "call" and own and frame.f_code.co_name[:1] != "<":
            calls.append((name, frame.f_code))

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    read = properties()
    way = [name for name, code in calls if code not in read and not code.co_name.startswith("__")]
    return Counter(name for before, name in zip([None, *way], way, strict=False) if name != before)


def fit_on_a_cold_bank() -> Callable[[], object]:
    """A fit of five classes with one row each, on a bank from which nothing has been derived yet.

    What a process reads once, such as presets, was read before: on another bank.
    """
    _cold_fit()()
    return _cold_fit()


def _cold_fit() -> Callable[[], object]:
    features = make_features(base=80, val=0, novel=5, rows=20, dim=16)
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
