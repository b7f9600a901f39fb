"""A search in pictures and words: history, importances and slices, and all of it as one page."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewcal.errors import InputError
from fewcal.render.page import Page
from fewcal.tuning.result import Tuning
from fewcal.tuning.search import Search
from fewcal.tuning.selection import Score
from fewcal.tuning.storage import require_optuna

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna import Study
    from optuna.trial import FrozenTrial

# Trials from which importances can be fitted, and parameters of which slices are drawn.
MIN_TRIALS, MAX_SLICES = 8, 6


def write_page(file: Path, result: Tuning, search: Search) -> None:
    """Write the outcome of a search with its plots as one HTML file."""
    page = Page(f"Tuning of {result.best.method.name}", f"{search.way}-way {search.shot}-shot, {search.split} classes")
    page.heading("Result")
    page.text(result.verdict)
    page.facts(
        {
            "space": search.make_space().name,
            "protocol": f"{search.protocol}: {search.rules.summary}",
            "trials": f"{result.trials}, of which {result.pruned} pruned",
            "tasks of a trial": search.tasks,
        }
    )
    page.heading("Finalists", 3)
    names = list(dict.fromkeys(name for f in result.finalists for name in f.values))
    page.table(
        ["model", "search tasks %", *SCORE_COLUMNS, *names],
        [
            [f.name, percent(f.searched), *score_cells(f.fresh), *(_short(f.values.get(n)) for n in names)]
            for f in result.finalists
        ],
        caption=f"The default and the best trials, on the same {search.final_tasks} fresh validation tasks",
    )
    if result.novel is not None:
        page.heading("Novel classes", 3)
        page.text(f"Opened on {result.novel.opened}, after the choice on validation classes.")
        rows = [[name, *score_cells(score), score.tasks] for name, score in result.novel.scores.items()]
        page.table(["model", *SCORE_COLUMNS, "tasks"], rows)
    page.heading(f"Parameters of {result.chosen.method.name}, {result.chosen.name}")
    page.facts(result.chosen.method.settings)
    page.heading("Plots")
    for name, (figure, alt) in study_figures(result.study).items():
        page.figure(figure, alt, name)
    page.write(file)


SCORE_COLUMNS = ("accuracy %", "minus default", "standard error")


def score_cells(score: Score) -> list[float | None]:
    """Values for `SCORE_COLUMNS`; no gain for the default itself."""
    is_default = score.error == 0 and score.gain == 0
    gain, error = (None, None) if is_default else (score.gain, score.error)
    return [percent(score.accuracy), percent(gain), percent(error)]


def percent(value: float | None) -> float | None:
    """A share in per cent, with two decimals."""
    return None if value is None else round(100 * value, 2)


def _short(value: object) -> str | None:
    return None if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


# ---- plots ----------------------------------------------------------------------------------------------------------


def study_figures(study: Study) -> dict[str, tuple[Figure, str]]:
    """Figures of a study with alternative texts, by name: those that its trials suffice for."""
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = _varied(complete)
    history = _draw("plot_optimization_history", study, target_name="accuracy")
    figures = {"history": (history, "accuracy of each trial in order, and the best so far")}
    if len(complete) >= MIN_TRIALS and len(names) > 1:
        importance = require_optuna().importance
        evaluator = importance.PedAnovaImportanceEvaluator()
        names = list(importance.get_param_importances(study, params=names, evaluator=evaluator))
        figure = _draw("plot_param_importances", study, params=names, evaluator=evaluator)
        figures["importances"] = (figure, "share of each parameter in the differences of accuracy between trials")
    if names := names[:MAX_SLICES]:
        figure = _draw("plot_slice", study, params=names, target_name="accuracy")
        figure.set_size_inches(3.0 * len(names), 3.2)
        figures["slices"] = (figure, f"accuracy of trials against each of {', '.join(names)}")
    return figures


def _draw(plot: str, study: Study, **options: Any) -> Figure:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("plots need the package matplotlib: pip install 'fewcal[plots]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    from optuna.visualization import matplotlib as visual

    with warnings.catch_warnings(), plt.rc_context():
        warnings.simplefilter("ignore")
        axes = getattr(visual, plot)(study, **options)
        figure: Figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
        plt.close(figure)  # it is drawn later, and not shown
    for axis in (a for each in figure.axes for a in (each.xaxis, each.yaxis)):
        if axis.get_scale() == "log":  # a few plain numbers, where powers of ten run into each other
            axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=5))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    return figure


def _varied(trials: Sequence[FrozenTrial]) -> list[str]:
    """Parameters that all of the trials have, with more than one value."""
    seen = Counter(name for t in trials for name in t.params)
    return [n for n, times in seen.items() if times == len(trials) and len({str(t.params[n]) for t in trials}) > 1]
