"""One page about finished runs: which method is how good, on which classes and tasks, and why the hardest are hard.

Runs on the same tasks are put together and compared task by task; others stand side by side. With the features at hand
the hardest tasks are computed again, which shows which classes were confused and which base classes contributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from fewcal._utils.atomic import read_json
from fewcal._utils.types import JSONObject, StrPath
from fewcal.errors import FileFormatError
from fewcal.evaluation import MethodSummary
from fewcal.evaluation.stats import bin_sums
from fewcal.evaluation.summary import is_undefined, show_p, show_points
from fewcal.render import figures
from fewcal.render.page import Cell, Page, Value
from fewcal.report.groups import Group, group_runs
from fewcal.report.hardest import show_hardest

_HARDEST_LISTED = 10
_MANY_ROWS = 25
_STAR = "Accuracy % ± 95% half-width over tasks. ★ the highest of its column"


def run_report(
    runs: Sequence[StrPath],
    *,
    features: Sequence[StrPath] = (),
    reference: str | None = None,
    title: str = "Few-shot evaluation",
    hardest: int = 3,
) -> Page:
    """The page about these runs; `page.write(path)` saves it.

    Parameters
    ----------
    runs : folders made by `evaluate(..., out=folder)` or `fewcal evaluate --out`
    features : feature folders
        Those the runs were made with; for each run whose features are among them, the hardest tasks are explained.
    reference : str or None
        Compare every method with this one; None for the best.
    hardest : int
        Tasks to explain for each group of runs.
    """
    return page_of(group_runs(runs, reference, features), title, hardest)


def page_of(groups: Sequence[Group], title: str, hardest: int = 3) -> Page:
    """The page about groups of runs."""
    page = Page(title, " · ".join(f"{g.title}: {g.protocol}" for g in groups))
    if len(groups) > 1:
        _overview(page, groups)
    for group in groups:
        if len(groups) > 1:
            page.heading(f"{group.title} ({group.protocol})")
        level = 3 if len(groups) > 1 else 2
        for part in (_results, _differences, _classes, _tasks):
            part(page, group, level)
        show_hardest(page, group, level, hardest)
        _confidence(page, group, level)
        _record(page, group, level)
    page.heading("How to read this")
    page.items(_READING)
    return page


# ---- parts of the page -------------------------------------------------------------------------------------------


def _overview(page: Page, groups: Sequence[Group]) -> None:
    """Accuracy of every method on every set of tasks."""
    page.heading("Overview")
    labels = {name: g.summary.label(name) for g in groups for name in g.summary.methods}
    rows: list[list[Value]] = [
        [label, *(_accuracy(g, name) if name in g.summary.methods else None for g in groups)]
        for name, label in labels.items()
    ]
    page.table(["method", *(f"{g.title}, {g.results.protocol.shape}" for g in groups)], rows, _caption(*groups))
    page.text("Columns have different tasks, so differences between columns are not paired; those within a column are.")


def _results(page: Page, group: Group, level: int) -> None:
    page.heading("Accuracy", level)
    summary = group.summary
    # The half-width stands beside the accuracy; every other statistic has a column.
    columns = [s for s in summary.columns() if s.name not in ("accuracy", "ci95")]
    rows: list[list[Value]] = []
    for name, m in summary.methods.items():
        cells = [Cell(s.text(m.value(s.name)), sort=s.sort_key(m.value(s.name))) for s in columns]
        rows.append([summary.label(name), _accuracy(group, name), *cells])
    page.table(["method", "accuracy %", *(s.title for s in columns)], rows, _caption(group))
    page.figure(
        figures.accuracy_intervals({summary.label(name): _interval(m) for name, m in summary.methods.items()}),
        f"Accuracies with intervals; {group.best} has {100 * summary.methods[group.best].accuracy:.1f} per cent.",
    )


def _differences(page: Page, group: Group, level: int) -> None:
    summary = group.summary
    pairs = sorted(summary.differences, key=lambda d: -d.difference)
    if not pairs:
        return
    page.heading("Differences on the same tasks", level)
    names = [f"{summary.label(d.a)} − {summary.label(d.b)}" for d in pairs]
    rows: list[list[Value]] = []
    for name, d in zip(names, pairs, strict=True):
        clear = d.p_t_holm is not None and d.p_t_holm < 0.05  # NaN is not
        mark = "" if not clear else "good" if d.difference > 0 else "bad"
        points = f"{100 * d.difference:+.2f} ± {show_points(d.ci95)}"
        rows.append(
            [
                name,
                Cell(points, sort=100 * d.difference, mark=mark, title="" if clear else "may be chance"),
                Cell(show_p(d.p_t_holm), sort=d.p_t_holm),
                Cell(show_p(d.p_wilcoxon_holm), sort=d.p_wilcoxon_holm),
                Cell(f"{100 * d.won:.0f} / {100 * d.tied:.0f} / {100 * d.lost:.0f}", sort=d.won),
            ]
        )
    header = ["difference", "points", "p (t, Holm)", "p (Wilcoxon, Holm)", "won / tied / lost %"]
    page.table(header, rows, "▲ better, ▼ worse where p (t, Holm) < 0.05: more than chance on these classes.")
    for note in summary.notes():
        page.text(note)
    alt = "; ".join(f"{name} {100 * d.difference:+.1f}" for name, d in zip(names, pairs, strict=True))
    page.figure(
        figures.difference_forest([(summary.label(d.a), summary.label(d.b), d.difference, d.ci95) for d in pairs]),
        f"Differences of accuracy with intervals: {alt}",
    )


def _classes(page: Page, group: Group, level: int) -> None:
    page.heading("Classes", level)
    results, summary = group.results, group.summary
    per_class = summary.methods[group.best].per_class
    order = sorted((c for c, share in per_class.items() if not math.isnan(share)), key=lambda c: per_class[c])
    seen = np.bincount(results.classes[results.queries > 0], minlength=len(results.class_names))
    count = dict(zip(results.class_names, seen.tolist(), strict=True))
    if order:
        low, high = (f"{100 * per_class[order[i]]:.1f}%" for i in (0, -1))
        page.text(f"With {group.best} the hardest class is {order[0]} ({low}), the easiest {order[-1]} ({high}).")
    rows: list[list[Value]] = [
        [c, *(_number(m.per_class[c]) for m in summary.methods.values()), count[c]] for c in order
    ]
    header = ["class", *(f"{summary.label(name)} %" for name in summary.methods), "tasks"]
    caption = f"Queries of each class that were answered rightly, hardest for {group.best} first"
    with page.details(f"All {len(rows)} classes") if len(rows) > _MANY_ROWS else nullcontext():
        page.table(header, rows, caption)


def _tasks(page: Page, group: Group, level: int) -> None:
    page.heading("Tasks", level)
    results = group.results
    accuracies = {group.summary.label(name): results.accuracy(name) for name in results.correct}
    page.figure(
        figures.task_distribution(accuracies),
        f"Histograms of the accuracy of single tasks, one for each of {', '.join(accuracies)}.",
        "One task is few queries: methods differ far less than tasks do, which is why they are compared task by task.",
    )
    rows: list[list[Value]] = []
    for task in group.hardest(_HARDEST_LISTED):
        counts = zip(results.classes[task], results.correct[group.best][task], results.queries[task], strict=True)
        parts = [f"{results.class_names[c]} {right}/{queries}" for c, right, queries in counts if queries]
        rows.append([int(task), *(_number(float(a[task])) for a in accuracies.values()), ", ".join(parts)])
    header = ["task", *(f"{name} %" for name in accuracies), f"right answers of {group.best} by class"]
    page.table(header, rows, f"The hardest tasks for {group.best}")


def _confidence(page: Page, group: Group, level: int) -> None:
    methods = {name: m for name, m in group.summary.methods.items() if not is_undefined(m.ece)}
    if not methods:
        return
    page.heading("Confidence", level)
    errors = ", ".join(f"{name} {m.ece:.3f}" for name, m in methods.items())
    page.figure(
        figures.reliability(
            {group.summary.label(name): bin_sums(bins) for name, bins in group.results.bins.items() if name in methods}
        ),
        f"Share of right answers against confidence; expected calibration errors: {errors}.",
        "Above the diagonal a method is more often right than it claims, below it promises too much.",
    )
    if without := [name for name in group.summary.methods if name not in methods]:
        page.text(f"Scores of {', '.join(without)} are distances, not probabilities.")


def _record(page: Page, group: Group, level: int) -> None:
    page.heading("Protocol and surroundings", level)
    p, results = group.results.protocol, group.results
    page.facts(
        {
            "tasks": f"{p.tasks}, {p.shape}, {p.pool}",
            "classes": f"{len(results.class_names)} of split {p.split}",
            "rows": "drawn again for every task" if p.replacement else "dealt without replacement",
            "seed": p.seed,
            "features": {name: f"sha256 {digest[:16]}…" for name, digest in results.identity["features"].items()},
        }
    )
    with page.details("Parameters of the methods"):
        for name, settings in results.settings.items():
            page.heading(name, level + 1, listed=False)
            page.facts(dict(settings))
    with page.details("Surroundings"):
        for folder in group.folders:
            page.heading(folder.resolve().name, level + 1, listed=False)
            page.facts(_environment(folder))


_READING = [
    "Half-widths over tasks are for other tasks drawn from the same classes; more tasks make them smaller. The "
    "interval over classes is for other classes of the same kind: quote it for a claim about the domain.",
    "Differences are taken task by task, on identical tasks, and corrected for their number by Holm's method.",
    "The worst tenth is the mean of the 10% hardest tasks. ECE is the expected calibration error: the mean gap between "
    "confidence and the share of right answers.",
    "Outliers are queries of none of a task's classes. Accuracy leaves them out. Their recall is the share that is "
    "found where 5% of the other queries are turned away.",
    "The script behind the paper's tables printed twice the half-width after its ±; here it is the half-width.",
]


# ---- small things ------------------------------------------------------------------------------------------------


def _caption(*groups: Group) -> str:
    kinds = any(m.transductive for g in groups for m in g.summary.methods.values())
    return f"{_STAR}{', of each kind of method' if kinds else ''}."


def _accuracy(group: Group, name: str) -> Cell:
    m = group.summary.methods[name]
    text = f"{100 * m.accuracy:.2f} ± {show_points(m.ci95)}"
    return Cell(text, sort=100 * m.accuracy, mark="best" if name in group.summary.leaders else "")


def _interval(m: MethodSummary) -> dict[str, float | None]:
    over = m.class_interval
    half = None if math.isnan(m.ci95) else m.ci95
    return {"accuracy": m.accuracy, "ci95": half} | ({} if over is None else {"low": over.low, "high": over.high})


def _number(share: float) -> float | None:
    return None if math.isnan(share) else round(100 * share, 1)


def _environment(folder: Path) -> JSONObject:
    try:
        return read_json(folder / "environment.json", "evaluate again")
    except FileFormatError:
        return {"environment": "not recorded"}
