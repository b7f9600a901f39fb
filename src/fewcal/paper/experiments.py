"""The registry: every table and figure of the paper as a named experiment.

>>> [name for name in EXPERIMENTS if name.startswith("table")]
['table1', 'table2', 'table3', 'table4']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.paper import tables
from fewcal.paper.blocks import Picture, Section, Verdict
from fewcal.paper.fidelity import fidelity, show_fidelity
from fewcal.paper.figures import FIGURES
from fewcal.paper.measured import Budget, points
from fewcal.paper.published import DATASETS, dataset_title
from fewcal.paper.tables import Records

Compute = Callable[[FeatureSet, str, int, Budget, str], dict[str, Any]]
# Shots of an experiment that has a single record for a feature set, whatever it looks at.
WHOLE = 0


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    Attributes
    ----------
    name, title, source : str
    says : str
        What the paper says about it.
    compute : callable(features, dataset, shot, effort, device) → record that JSON can hold
    show : callable(records by (dataset, shot)) → Section
    datasets : tuple of str
        The paper's for it; () for any. Where none of them is given, `elsewhere` decides.
    shots : tuple of int
    needs : tuple of str
        Splits.
    packages : tuple of str
        Beyond torch and NumPy, for computing.
    elsewhere : bool
        Whether it is computed on the first features given where none are the paper's.
    cost : str
        What it takes on two CPU cores with the four feature sets of the paper at 1000 tasks.
    """

    name: str
    title: str
    source: str
    says: str
    compute: Compute
    show: Callable[[Records], Section]
    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = (1, 5)
    needs: tuple[str, ...] = ("base", "novel")
    packages: tuple[str, ...] = ()
    elsewhere: bool = False
    cost: str = ""

    def on(self, given: Sequence[str]) -> list[str]:
        """Those of the given datasets that it is computed on."""
        if self.name == "comparison":
            return [d for d in given if d not in DATASETS]
        if not self.datasets:
            return list(given)
        own = [d for d in given if d in self.datasets]
        return own if own or not self.elsewhere else list(given[:1])


def _figure(name: str, **more: Any) -> Experiment:
    """A figure as an experiment; `arguments` go to its computation, with the effort where it takes any."""
    figure = FIGURES[name]
    arguments = more.pop("arguments", lambda effort, device: {})
    judge = more.pop("judge", None)

    def compute(features: FeatureSet, dataset: str, shot: int, effort: Budget, device: str) -> dict[str, Any]:
        return figure.compute(features, seed=effort.seed, **arguments(effort, device))

    def show(records: Records) -> Section:
        shown = Section()
        for (dataset, _), record in records.items():
            said = figure.say(record)
            title = f"{figure.title}, {dataset_title(dataset)}"
            if judge is not None:
                shown.verdicts.append(judge(record, dataset_title(dataset)))
            shown.blocks.append(
                Picture(f"{name}-{dataset}", figure.draw(record), f"{title}. {said}", f"{title}. {said}")
            )
        return shown

    defaults: dict[str, Any] = {"shots": (WHOLE,), "elsewhere": True}
    return Experiment(name, figure.title, figure.source, compute=compute, show=show, **(defaults | more))


def _weights_shown(records: Records) -> Section:
    figure = FIGURES["weights"]
    shown = tables.show_weights(records)
    for (dataset, _), record in records.items():
        for scale, data in record["scales"].items():
            stem = f"weights-{dataset}-{scale.split()[0]}"
            said = f"{dataset_title(dataset)}, {scale}. {figure.say(data)}"
            shown.blocks.append(Picture(stem, figure.draw(data), f"Histograms of the weights. {said}", said))
    return shown


def _closer(record: Mapping[str, Any], where: str) -> Verdict:
    gain, half = record["gain"], record["gain_half"]
    found = f"{points(gain)} ± {100 * half:.2f} points of queries whose nearest sample is of their class (50 tasks)"
    claim = "sampled points of GDC are closer to the queries than those of DC"
    return Verdict(claim, f"{where}, {record['shot']}-shot", found, gain > 0 if abs(gain) > half else None)


def _few(effort: Budget, device: str) -> dict[str, Any]:
    return {"tasks": min(200, effort.tasks), "device": device}


_ABOVE = "GDC is above DC and all methods before it, by 3 to 5 points (by 1 across domains, 1-shot)."

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment(
            "table1",
            "Comparison on Stanford Dogs and CUB",
            "Table 1",
            _ABOVE,
            tables.comparison,
            partial(tables.show_comparison, table="table1"),
            ("dogs", "cub"),
            cost="4 min",
        ),
        Experiment(
            "table2",
            "Comparison on miniImageNet and across domains",
            "Table 2",
            _ABOVE,
            tables.comparison,
            partial(tables.show_comparison, table="table2"),
            ("mini", "mini2cub"),
            cost="15 min",
        ),
        Experiment(
            "table3",
            "Comparison on meta-tieredImageNet",
            "Table 3",
            "GDC is above DC by 4 points (1-shot) and 9 (5-shot) where base classes are unlike the novel ones.",
            tables.comparison,
            partial(tables.show_comparison, table="table3"),
            ("meta-tiered",),
            cost="not measured",
        ),
        Experiment(
            "comparison",
            "The same comparison on other features",
            "Tables 1 to 3",
            "The same methods on features of other datasets; the paper's settings are those of miniImageNet.",
            tables.comparison,
            tables.show_comparison,
            cost="2 to 10 min a feature set",
        ),
        Experiment(
            "table4",
            "Ablation: one component after another",
            "Table 4",
            "Each component adds accuracy, 0.4 to 1.5 points, 4 in all (Stanford Dogs, 1-shot).",
            tables.ablation,
            tables.show_ablation,
            ("dogs",),
            (1,),
            ("base", "val", "novel"),
            elsewhere=True,
            cost="5 min",
        ),
        Experiment(
            "distances",
            "The effect of distances",
            "Appendix A, table 5",
            "No advantage of Mahalanobis or δ over the scaled Euclidean distance; a tuned m is better than m = 1.",
            tables.distances,
            tables.show_distances,
            ("dogs",),
            (1,),
            ("base", "val", "novel"),
            elsewhere=True,
            cost="1 min",
        ),
        Experiment(
            "candidates",
            "The three candidates of the search",
            "Appendix F, table 7",
            "The three best settings on validation classes, in this order on novel classes.",
            tables.candidates,
            tables.show_candidates,
            tuple(DATASETS),
            cost="3 min",
        ),
        Experiment(
            "weights",
            "Weights of the k base classes",
            "Appendix H, tables 8 and 9, figure 5",
            "Weights on meta-tieredImageNet are ten times smaller than on miniImageNet, and a hundred times than DC's.",
            tables.weights,
            _weights_shown,
            ("mini", "meta-tiered"),
            (WHOLE,),
            elsewhere=True,
            cost="seconds",
        ),
        Experiment(
            "fidelity",
            "What the paper leaves open: every choice, one at a time",
            "beyond the paper",
            "Every choice that the paper leaves open is answered otherwise than a preset answers it, one at a time.",
            fidelity,
            show_fidelity,
            cost="12 min",
        ),
        _figure(
            "tsne",
            says="Sampled points of GDC are closer to the queries than those of DC.",
            datasets=("mini",),
            packages=("sklearn", "scipy"),
            judge=_closer,
            cost="20 s",
        ),
        _figure(
            "mean-curve", says="As m rises, X' comes back to the support point.", datasets=("dogs",), cost="seconds"
        ),
        _figure(
            "drift",
            says="With m = 4 the samples overlap with the support point; with DC and m = 0, 1 they do not.",
            datasets=("mini2cub",),
            packages=("sklearn",),
            cost="20 s",
        ),
        _figure(
            "accuracy-n",
            says="Accuracy rises with n until 750.",
            datasets=("dogs",),
            needs=("base", "val", "novel"),
            packages=("scipy",),
            arguments=_few,
            cost="1 min",
        ),
        _figure(
            "alphas",
            says="Accuracy rises with α1 and α2, then drops beyond α1 = 200.",
            datasets=("dogs",),
            packages=("scipy",),
            arguments=_few,
            cost="1 min",
        ),
        _figure(
            "effect-k",
            says="m does not make k superfluous: without k 0.9 points are lost.",
            datasets=("dogs",),
            packages=("scipy",),
            arguments=_few,
            cost="seconds",
        ),
    )
}


def choose(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name; `all` are all of them.

    >>> [e.name for e in choose(["table4", "table1"])]
    ['table1', 'table4']
    """
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise InputError(f"experiment {name!r} is unknown{nearest_names(name, ['all', *EXPERIMENTS])}")
    return [e for e in EXPERIMENTS.values() if "all" in names or e.name in names]


def describe() -> list[dict[str, Any]]:
    """One row for each experiment, for a list."""
    return [
        {
            "name": e.name,
            "title": e.title,
            "source": e.source,
            "datasets": list(e.datasets) or ["any"],
            "says": e.says,
            "cost": e.cost,
        }
        for e in EXPERIMENTS.values()
    ]
