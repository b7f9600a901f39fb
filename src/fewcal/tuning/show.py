"""What a search looked like: history, importances, slices and contours, as PNG and as one page."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewcal._utils.atomic import atomic_path
from fewcal._utils.types import JSONObject
from fewcal.errors import InputError
from fewcal.render.page import Page, Value
from fewcal.tuning.result import Tuning
from fewcal.tuning.search import Search
from fewcal.tuning.selection import Finalist
from fewcal.tuning.storage import require_optuna

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

# Importances need some trials to be fitted on; slices and contours of more parameters than this cannot be read.
_FEWEST, _SLICES, _CONTOURS = 8, 6, 3


def draw(folder: Path, result: Tuning, search: Search) -> list[Path]:
    """Write the plots into `folder/plots` and everything into `folder/tuning.html`; the files written."""
    pictures = _pictures(result.study)
    written = []
    for name, (png, _) in pictures.items():
        with atomic_path(folder / "plots" / f"{name}.png") as temporary:
            temporary.write_bytes(png)
        written.append(folder / "plots" / f"{name}.png")
    page = Page("Tuning of GDC", f"{search.way}-way {search.shot}-shot, {search.protocol} protocol")
    page.heading("Result")
    page.facts(_facts(result, search))
    page.heading("Finalists", 3)
    fresh = search.rules.fresh_tasks
    names = list(dict.fromkeys(k for f in result.finalists for k in f.values))
    page.table(
        ["trial", *accuracy_columns(fresh), *names],
        [_row(f, names, fresh) for f in result.finalists],
        caption="Trials that the tasks of the search could not tell from the best",
    )
    if result.novel is not None:
        page.heading("Novel classes", 3)
        page.text(f"Opened on {result.novel.opened}, after the choice was made, and recorded in the study.")
        page.table(
            ["method", "accuracy %", "± %", "tasks"],
            [[name, _percent(m.accuracy), _percent(m.ci95), m.tasks] for name, m in result.novel.figures.items()],
        )
    page.heading("Parameters")
    page.facts(result.params.as_dict())
    if pictures:
        page.heading("Plots")
    for name, (png, alt) in pictures.items():
        page.figure(png, alt, name.replace("-", " "))
    page.write(folder / "tuning.html")
    return [*written, folder / "tuning.html"]


def accuracy_columns(fresh_tasks: bool) -> list[str]:
    """Headers of a finalist's accuracies."""
    return ["search tasks %", *(["fresh tasks %"] if fresh_tasks else [])]


def _facts(result: Tuning, search: Search) -> JSONObject:
    counts = result.counts
    facts: JSONObject = {
        "trials": counts.finished,
        "of these": f"{counts.complete} complete, {counts.pruned} pruned, {counts.refused} refused",
        "tasks of a trial": search.tasks,
        "chosen": result.chosen.name,
    }
    if result.chosen.tuned is not None:
        facts["accuracy on the tasks of the search"] = f"{100 * result.chosen.tuned:.2f}%"
    if search.rules.fresh_tasks:
        facts["accuracy on fresh validation tasks"] = f"{100 * result.chosen.mean:.2f}%"
    return facts


def _row(finalist: Finalist, names: list[str], fresh_tasks: bool) -> list[Value]:
    figures = [finalist.tuned, finalist.mean] if fresh_tasks else [finalist.tuned]
    shown = [_short(finalist.values.get(name)) for name in names]
    return [finalist.name, *(_percent(f) for f in figures), *shown]


def _percent(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(100 * value, 2)


def _short(value: object) -> str | None:
    return None if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


# ---- plots ----------------------------------------------------------------------------------------------------------


class _Gallery:
    """PNG and alternative text of plots, by name."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[bytes, str]] = {}

    def add(self, name: str, alt: str, make: Callable[[], Any], size: tuple[float, float] | None = None) -> None:
        """Draw a plot that `make` gives as axes, or as an array of them."""
        import matplotlib.pyplot as plt

        with warnings.catch_warnings(), plt.rc_context():
            warnings.simplefilter("ignore")
            made = make()
            figure = (made.flat[0] if hasattr(made, "flat") else made).figure
            if size is not None:
                figure.set_size_inches(*size)
            for axes in figure.axes:
                _plain_ticks(axes)
            buffer = BytesIO()
            figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)
        self.found[name] = (buffer.getvalue(), alt)


def _pictures(study: optuna.Study) -> dict[str, tuple[bytes, str]]:
    """PNG and alternative text of each plot that the trials suffice for."""
    importance = require_optuna().importance
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("plots need the package matplotlib: pip install 'fewcal[plots]'") from error
    mpl.use("Agg")
    from optuna.trial import TrialState
    from optuna.visualization import matplotlib as visual

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    usable = _varied(complete)
    gallery = _Gallery()
    gallery.add(
        "optimisation-history",
        "accuracy of each trial in order, and the best so far",
        lambda: visual.plot_optimization_history(study, target_name="accuracy"),
    )
    important = usable
    if len(complete) >= _FEWEST and len(usable) > 1:
        evaluator = importance.PedAnovaImportanceEvaluator()
        important = list(importance.get_param_importances(study, params=usable, evaluator=evaluator))
        gallery.add(
            "parameter-importances",
            "share of each parameter in the differences of accuracy between trials",
            lambda: visual.plot_param_importances(study, params=usable, evaluator=evaluator),
        )
    if important:
        shown = important[:_SLICES]
        gallery.add(
            "slices",
            f"accuracy of trials against each of {', '.join(shown)}",
            lambda: visual.plot_slice(study, params=shown, target_name="accuracy"),
            (3.0 * len(shown), 3.2),
        )
    if len(important) > 1 and len(complete) >= _FEWEST:
        pair = important[:_CONTOURS]
        gallery.add(
            "contours",
            f"accuracy over pairs of {', '.join(pair)}",
            lambda: visual.plot_contour(study, params=pair, target_name="accuracy"),
            (4.0 * len(pair), 3.6 * len(pair)) if len(pair) > 2 else None,
        )
    return gallery.found


def _plain_ticks(axes: Any) -> None:
    """Few plain numbers on log scales, where the usual powers of ten run into each other."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
        if scale == "log":
            axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=5))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


def _varied(trials: list[FrozenTrial]) -> list[str]:
    """Parameters that all of the trials have, with more than one value."""
    seen = Counter(name for t in trials for name in t.params)
    return [
        name for name, times in seen.items() if times == len(trials) and len({str(t.params[name]) for t in trials}) > 1
    ]
