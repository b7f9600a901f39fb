"""What an experiment is: a table or figure of the paper that is computed on features and shown beside the paper's.

To add one, write a module in `paper/experiments/` with a function that computes a record from a `Case`, one that shows
records as a `Section`, and `EXPERIMENTS = (Experiment(...),)`; then name the module in `paper/experiments/__init__.py`.
Figures of the paper to stand beside it are either in `published.json` or given to `blocks.cited` as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fewcal.paper.blocks import Picture, Section, Verdict
from fewcal.paper.budget import WHOLE, Case
from fewcal.paper.control import CONTROL
from fewcal.paper.published import DATASETS, dataset_title
from fewcal.paper.settings import PRINTED, Variant

if TYPE_CHECKING:
    import matplotlib.figure

R = TypeVar("R")
# Records of an experiment by dataset and shots.
Records: TypeAlias = Mapping[tuple[str, int], R]


@dataclass(frozen=True)
class Figure(Generic[R]):
    """A figure of the paper: where it is, and the functions that compute, draw and describe it.

    `compute(features, seed=…, **arguments)` gives plain data that JSON can hold.
    """

    name: str
    title: str
    source: str
    compute: Callable[..., R]
    draw: Callable[[R], matplotlib.figure.Figure]
    say: Callable[[R], str]


AnyFigure: TypeAlias = Figure[Any]


@dataclass(frozen=True)
class Experiment(Generic[R]):
    """One table or figure.

    Attributes
    ----------
    name, title, source : str
    says : str
        What the paper says about it.
    compute : callable(case) → record that JSON can hold
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
    others_only : bool
        Whether it is computed on features of datasets that the paper does not have, and on no others.
    cost : str
        About what it takes on two CPU cores with five feature sets, one for each dataset of the paper, at 1000 tasks.
    figure : Figure or None
        The figure that it draws, if any.
    variants : tuple of Variant
        What it is computed with, the paper's own setting first; () where the question is not one of settings.
    control : str
        What its verdicts are held against beside the paper's statement; or "none: " and why there is none.
    """

    name: str
    title: str
    source: str
    says: str
    compute: Callable[[Case], R]
    show: Callable[[Records[R]], Section]
    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = (1, 5)
    needs: tuple[str, ...] = ("base", "novel")
    packages: tuple[str, ...] = ()
    elsewhere: bool = False
    others_only: bool = False
    cost: str = ""
    figure: AnyFigure | None = None
    variants: tuple[Variant, ...] = ()
    control: str = CONTROL

    @property
    def as_printed(self) -> bool:
        """Whether it is computed with the paper's own setting."""
        return PRINTED in self.variants

    def on(self, given: Sequence[str]) -> list[str]:
        """Those of the given datasets that it is computed on."""
        if self.others_only:
            return [d for d in given if d not in DATASETS]
        if not self.datasets:
            return list(given)
        own = [d for d in given if d in self.datasets]
        return own if own or not self.elsewhere else list(given[:1])


AnyExperiment: TypeAlias = Experiment[Any]


def figure_experiment(
    figure: Figure[R],
    says: str,
    dataset: str,
    *,
    cost: str,
    needs: tuple[str, ...] = ("base", "novel"),
    packages: tuple[str, ...] = (),
    arguments: Callable[[Case], Mapping[str, object]] = lambda case: {},
    judge: Callable[[R, str], Sequence[Verdict]] | None = None,
    variants: tuple[Variant, ...] = (),
    control: str = CONTROL,
) -> Experiment[R]:
    """A figure as an experiment.

    `arguments(case)` go to its computation where they matter; `judge(record, where)` says whether the paper's
    statements hold, a verdict for each and for each group.
    """

    def compute(case: Case) -> R:
        return figure.compute(case.features, seed=case.budget.seed, **arguments(case))

    def show(records: Records[R]) -> Section:
        section = Section()
        for (name, _), record in records.items():
            words = f"{figure.title}, {dataset_title(name)}. {figure.say(record)}"
            if judge is not None:
                section.verdicts += judge(record, dataset_title(name))
            section.blocks.append(Picture(f"{figure.name}-{name}", figure.draw(record), words, words))
        return section

    return Experiment(
        figure.name,
        figure.title,
        figure.source,
        says,
        compute,
        show,
        (dataset,),
        (WHOLE,),
        needs,
        packages,
        elsewhere=True,
        cost=cost,
        figure=figure,
        variants=variants,
        control=control,
    )
