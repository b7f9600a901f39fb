"""fewcal: few-shot classification by distribution calibration.

Names are loaded on first use, so that the compute core imports with torch and NumPy alone. Type checkers see them all.

>>> import fewcal
>>> fewcal.__version__.count(".")
2
"""

from fewcal._version import __version__

TYPE_CHECKING = False  # as type checkers know it; `import typing` would delay every start
if TYPE_CHECKING:
    from fewcal.apply.classify import classify
    from fewcal.apply.hub import from_hub, push_to_hub
    from fewcal.bank import BaseBank
    from fewcal.estimators import FewShotClassifier, Gaussianizer, GDCClassifier
    from fewcal.estimators.sampler import GDCSampler
    from fewcal.evaluation import Protocol, Results, evaluate, load_run
    from fewcal.factor_gaussian import FactorGaussian
    from fewcal.features import FeatureSet, FeatureSplit
    from fewcal.features.embedding import Embed
    from fewcal.gaussianize import Gaussianization
    from fewcal.methods import Method, make_method
    from fewcal.params import GDCParams
    from fewcal.presets import get_preset, list_presets
    from fewcal.tuning import Search, tune

__all__ = [
    "BaseBank",
    "Embed",
    "FactorGaussian",
    "FeatureSet",
    "FeatureSplit",
    "FewShotClassifier",
    "GDCClassifier",
    "GDCParams",
    "GDCSampler",
    "Gaussianization",
    "Gaussianizer",
    "Method",
    "Protocol",
    "Results",
    "Search",
    "__version__",
    "classify",
    "evaluate",
    "from_hub",
    "get_preset",
    "list_presets",
    "load_run",
    "make_method",
    "push_to_hub",
    "tune",
]

# The same imports, made at the first use of a name.
_MODULES = {
    "fewcal.apply.classify": ("classify",),
    "fewcal.apply.hub": ("from_hub", "push_to_hub"),
    "fewcal.bank": ("BaseBank",),
    "fewcal.estimators.few_shot": ("FewShotClassifier",),
    "fewcal.estimators.gdc": ("GDCClassifier",),
    "fewcal.estimators.gaussianizer": ("Gaussianizer",),
    "fewcal.estimators.sampler": ("GDCSampler",),
    "fewcal.evaluation": ("Protocol", "Results", "evaluate", "load_run"),
    "fewcal.factor_gaussian": ("FactorGaussian",),
    "fewcal.features": ("FeatureSet", "FeatureSplit"),
    "fewcal.features.embedding": ("Embed",),
    "fewcal.gaussianize": ("Gaussianization",),
    "fewcal.methods": ("Method", "make_method"),
    "fewcal.params": ("GDCParams",),
    "fewcal.presets": ("get_preset", "list_presets"),
    "fewcal.tuning": ("Search", "tune"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw this would take any name for a public one

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
