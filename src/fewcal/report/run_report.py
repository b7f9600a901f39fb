"""One page about finished runs: which method is how good, on which classes and tasks, and why the hardest are hard.

Runs on the same tasks are put together and compared task by task; others stand side by side. With the features at hand
the hardest tasks are computed again, which shows what was mistaken for what and which base classes were borrowed from.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.errors import InputError
from fewcal.estimators.explain import Explanation, explain_calibration
from fewcal.evaluation import STATISTICS, MethodSummary, Results, Summary, load_run
from fewcal.evaluation.run_folder import merge_runs, task_identity
from fewcal.evaluation.summary import show_p, show_points
from fewcal.features import FeatureSet
from fewcal.heads.linear import class_means
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.render import figures
from fewcal.render.page import Cell, Page, Value

_HARDEST_LISTED = 10
_MANY_ROWS = 25
_MANY_PAIRS = 12


@dataclass(frozen=True, eq=False)
class Group:
    """Runs on the same tasks, as one.

    Attributes
    ----------
    title : str
        Names of the runs.
    folders : list of Path
    results : Results, the methods of all of them
    summary : Summary of them
    features : FeatureSet or None
        The features that the runs were made with, where they were given.
    """

    title: str
    folders: list[Path]
    results: Results
    summary: Summary
    features: FeatureSet | None = None

    @property
    def protocol(self) -> str:
        p = self.results.protocol
        return f"{p.way}-way {p.shot}-shot, {p.tasks} tasks from {p.split}"

    @property
    def best(self) -> str:
        return self.summary.best


def run_report(
    runs: Sequence[str | os.PathLike[str]],
    *,
    features: Sequence[str | os.PathLike[str]] = (),
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
        Compare every method with this one instead of all pairs.
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
        _why(page, group, level, hardest)
        _confidence(page, group, level)
        _record(page, group, level)
    _reading(page)
    return page


def group_runs(
    runs: Sequence[str | os.PathLike[str]],
    reference: str | None = None,
    features: Sequence[str | os.PathLike[str]] = (),
) -> list[Group]:
    """Finished runs, those on the same tasks together, in the order given, each with its features if they are there."""
    if not runs:
        raise InputError("no runs were given; name folders made by `fewcal evaluate --out`")
    folders = [Path(r) for r in runs]
    if len({f.resolve() for f in folders}) < len(folders):
        raise InputError("a run is named twice; name each folder once")
    loaded = {folder: load_run(folder) for folder in folders}
    together: dict[str, list[Path]] = {}
    for folder, results in loaded.items():
        together.setdefault(json.dumps(task_identity(results), sort_keys=True), []).append(folder)
    given = {Path(f): FeatureSet.load(f) for f in features}
    used: set[Path] = set()
    groups = []
    for members in together.values():
        merged = merge_runs({str(f): loaded[f] for f in members})
        if reference is not None and reference not in merged.correct:
            raise InputError(f"reference {reference!r} is not among {', '.join(merged.correct)} of {members[0]}")
        found = _own_features([loaded[f] for f in members], given, used)
        title = " + ".join(f.resolve().name for f in members)
        groups.append(Group(title, members, merged, merged.summary(reference), found))
    if unused := [f for f in given if f not in used]:
        raise InputError(
            f"no run was made with the features in {unused[0]} (their fingerprints differ); "
            "give the folder that the run was evaluated on, or leave --features out"
        )
    return groups


def _own_features(runs: Sequence[Results], given: Mapping[Path, FeatureSet], used: set[Path]) -> FeatureSet | None:
    """The features that all these runs were made with: runs on the same tasks may differ in their base classes."""
    found = None
    for folder, features in given.items():
        digests = {name: part.fingerprint() for name, part in features.splits().items()}
        fits = [r.identity["features"].items() <= digests.items() for r in runs]
        if any(fits):
            used.add(folder)
        if all(fits):
            found = features
    return found


# ---- parts of the page -------------------------------------------------------------------------------------------


def _overview(page: Page, groups: Sequence[Group]) -> None:
    """Accuracy of every method on every set of tasks."""
    page.heading("Overview")
    names = list(dict.fromkeys(name for g in groups for name in g.summary.methods))
    rows: list[list[Value]] = []
    for name in names:
        row: list[Value] = [name]
        for g in groups:
            m = g.summary.methods.get(name)
            row.append(None if m is None else _accuracy(m, name == g.best))
        rows.append(row)
    header = ["method", *(f"{g.title}, {g.results.protocol.shot}-shot" for g in groups)]
    page.table(header, rows, "Accuracy % ± 95% half-width over tasks. ★ the highest of its column.")
    page.text("Columns have different tasks, so differences between columns are not paired; those within a column are.")


def _results(page: Page, group: Group, level: int) -> None:
    page.heading("Accuracy", level)
    # The half-width stands beside the accuracy; every other statistic has a column.
    columns = [s for name, s in STATISTICS.items() if name not in ("accuracy", "ci95")]
    rows: list[list[Value]] = []
    for name, m in group.summary.methods.items():
        cells = [Cell(s.text(m.value(s.name)), sort=s.sort_key(m.value(s.name))) for s in columns]
        rows.append([name, _accuracy(m, name == group.best), *cells])
    header = ["method", "accuracy %", *(s.title for s in columns)]
    page.table(header, rows, "Accuracy ± 95% half-width over tasks. ★ the highest.")
    best = group.summary.methods[group.best]
    alt = f"Accuracies with intervals; the highest is {group.best} with {100 * best.accuracy:.1f} per cent."
    page.figure(figures.accuracy_intervals({name: _interval(m) for name, m in group.summary.methods.items()}), alt)


def _differences(page: Page, group: Group, level: int) -> None:
    better_first = [d if d.difference >= 0 else d.reversed() for d in group.summary.paired]
    pairs = sorted(better_first, key=lambda d: -d.difference)
    if not pairs:
        return
    page.heading("Differences on the same tasks", level)
    rows: list[list[Value]] = []
    for d in pairs:
        clear = d.p_t_holm is not None and d.p_t_holm < 0.05  # NaN is not
        words = "p (t, Holm) < 0.05" if clear else "may be chance"
        points = f"{100 * d.difference:+.2f} ± {show_points(d.ci95)}"
        rows.append(
            [
                f"{d.a} − {d.b}",
                Cell(points, sort=100 * d.difference, mark="good" if clear else "", title=words),
                Cell(show_p(d.p_t_holm), sort=d.p_t_holm),
                Cell(show_p(d.p_wilcoxon_holm), sort=d.p_wilcoxon_holm),
                Cell(f"{100 * d.won:.0f} / {100 * d.tied:.0f} / {100 * d.lost:.0f}", sort=d.won),
            ]
        )
    header = ["difference", "points", "p (t, Holm)", "p (Wilcoxon, Holm)", "won / tied / lost %"]
    caption = (
        "The better method first. ▲ where p (t, Holm) < 0.05: the difference is more than chance on these classes."
    )
    page.table(header, rows, caption)
    shown = pairs if len(pairs) <= _MANY_PAIRS else [d for d in pairs if group.best in (d.a, d.b)]
    alt = "Differences of accuracy with intervals: " + "; ".join(
        f"{d.a} minus {d.b} {100 * d.difference:+.1f}" for d in shown[:_MANY_PAIRS]
    )
    page.figure(figures.difference_forest([d.to_dict() for d in shown]), alt)


def _classes(page: Page, group: Group, level: int) -> None:
    page.heading("Classes", level)
    methods = group.summary.methods
    per_class = methods[group.best].per_class
    order = sorted((c for c, share in per_class.items() if not math.isnan(share)), key=lambda c: per_class[c])
    seen = np.bincount(group.results.classes.ravel(), minlength=len(group.results.class_names))
    count = dict(zip(group.results.class_names, seen.tolist(), strict=True))
    if order:
        low, high = (_share(per_class[order[i]]) for i in (0, -1))
        page.text(f"With {group.best} the hardest class is {order[0]} ({low}), the easiest {order[-1]} ({high}).")
    rows: list[list[Value]] = [[c, *(_number(m.per_class[c]) for m in methods.values()), count[c]] for c in order]
    header = ["class", *(f"{name} %" for name in methods), "tasks"]
    caption = f"Queries of each class that were answered rightly, hardest for {group.best} first"
    if len(rows) > _MANY_ROWS:
        with page.details(f"All {len(rows)} classes"):
            page.table(header, rows, caption)
    else:
        page.table(header, rows, caption)


def _tasks(page: Page, group: Group, level: int) -> None:
    page.heading("Tasks", level)
    results = group.results
    accuracies = {name: results.accuracy(name) for name in results.correct}
    names = ", ".join(accuracies)
    page.figure(
        figures.task_distribution(accuracies),
        f"Histograms of the accuracy of single tasks, one for each of {names}.",
        "One task is few queries: methods differ far less than tasks do, which is why they are compared task by task.",
    )
    rows: list[list[Value]] = []
    for task in _hardest(group, _HARDEST_LISTED):
        parts = [
            f"{results.class_names[c]} {right}/{results.protocol.query}"
            for c, right in zip(results.classes[task], results.correct[group.best][task], strict=True)
        ]
        rows.append([int(task), *(_number(float(a[task])) for a in accuracies.values()), ", ".join(parts)])
    header = ["task", *(f"{name} %" for name in accuracies), f"right answers of {group.best} by class"]
    page.table(header, rows, f"The hardest tasks for {group.best}")


def _why(page: Page, group: Group, level: int, hardest: int) -> None:
    page.heading("Why the hardest tasks are hard", level)
    name = _explainable(group)
    if name is None:
        page.text("None of these methods calibrates with base classes, so there is nothing to explain here.")
        return
    if group.features is None:
        page.text(
            "Make the report with `--features DIR`, the features that this run was evaluated on, to see what was "
            "mistaken for what and which base classes were borrowed from."
        )
        return
    if group.results.identity["episodes"] is not None:
        page.text(
            "The tasks of this run come from a list of their own, which the run does not keep; they cannot be redrawn."
        )
        return
    page.text(
        f"The hardest tasks for {name}, computed again. Shares say what the calibrated mean of a class is made of: "
        "its own examples and its nearest base classes. Moved is how far that took it, 1 being the typical distance "
        "between neighbouring base classes."
    )
    for story in explain_tasks(group, name, _hardest(group, hardest, name).tolist()):
        task, explanation, confusion = story.task, story.explanation, story.confusion
        accuracy = float(group.results.accuracy(name)[task])
        names = [group.results.class_names[c] for c in group.results.classes[task]]
        page.heading(f"Task {task}: {_share(accuracy)}", level + 1, listed=False)
        for warning in explanation.warnings:
            page.note(warning, "warning")
        page.figure(
            figures.task_map(story.view, names),
            f"Task {task} in the plane: examples, calibrated means and queries of {', '.join(names)}.",
            "The plane that the calibrated means span best. Arrows lead from the examples' mean to the calibrated one.",
        )
        rows: list[list[Value]] = []
        for i, c in enumerate(explanation.classes):
            right = int(confusion[i, i])
            wrong = [(int(confusion[i, j]), names[j]) for j in np.argsort(-confusion[i]) if j != i and confusion[i, j]]
            bases = ", ".join(f"{b} {s:.0%}" for b, s in zip(c.bases[:4], c.shares[:4], strict=True))
            total = int(confusion[i].sum())
            rows.append(
                [
                    names[i],
                    Cell(f"{right}/{total}", sort=right / max(total, 1)),
                    ", ".join(f"{n}\u00a0×\u00a0{other}" for n, other in wrong[:3]) or "nothing",
                    Cell(f"{c.support_share:.0%}", sort=c.support_share),
                    bases or "none",
                    Cell(f"{c.moved_relative:.2f}", sort=c.moved_relative),
                ]
            )
        header = ["class", "right", "mistaken for", "itself", "nearest base classes (share)", "moved"]
        page.table(header, rows, f"Task {task} with {name}; trust in the base classes {explanation.trust:.2f}")


@dataclass(frozen=True, eq=False)
class TaskStory:
    """One task computed again: what calibration did, what was mistaken for what, and a map.

    Attributes
    ----------
    task : int
    explanation : Explanation
    confusion : array (N, N), queries by truth (rows) and answer (columns)
    view : dict, as `figures.task_map` wants it
    """

    task: int
    explanation: Explanation
    confusion: np.ndarray
    view: dict[str, Any]


def explain_tasks(group: Group, name: str, tasks: Sequence[int]) -> list[TaskStory]:
    """Compute tasks of a run again with one of its methods, which must be GDC, and explain them."""
    features, results = group.features, group.results
    assert features is not None
    base = features.split("base")
    split = features.split(results.protocol.split)
    if split.classes != results.class_names:
        raise InputError(
            "the features list their classes in another order than the run did, so its tasks cannot be redrawn; "
            "give the folder that the run was evaluated on"
        )
    method = _rebuilt(results.settings[name])
    assert method is not None
    bank = BaseBank().fit(base.features, np.array(base.classes, dtype=object)[base.require_labels()])
    method.prepare(bank)
    spec = results.protocol.spec
    order = torch.arange(spec.way)
    out = []
    for task in tasks:
        episode = sample_episodes(split.require_labels(), spec, range(task, task + 1), split.classes)
        names = [split.classes[c] for c in episode.classes[0]]
        support, query = (
            method.transform(torch.from_numpy(np.asarray(split.features[rows[0].reshape(-1)], np.float32)))
            for rows in (episode.support, episode.query)
        )
        labels = order.repeat_interleave(spec.shot)
        shared: dict[Hashable, Any] = {}
        head = method.fit(support[None], labels[None], spec.way, TaskRandom(spec.seed, [task]), shared)
        with torch.no_grad():
            answer = head.logits(query[None])[0].argmax(dim=-1)
            calibrated = method.calibrate(support[None], labels[None]).mean[0]
        truth = order.repeat_interleave(spec.query)
        confusion = np.zeros((spec.way, spec.way), int)
        np.add.at(confusion, (truth.numpy(), answer.numpy()), 1)
        view = _view(support, labels, query, calibrated, spec.way)
        view |= {"truth": truth.tolist(), "right": (answer == truth).tolist()}
        out.append(TaskStory(task, explain_calibration(method, support, labels.numpy(), names), confusion, view))
    return out


def _view(support: Tensor, labels: Tensor, query: Tensor, calibrated: Tensor, way: int) -> dict[str, Any]:
    """Points of a task in the plane of the two directions in which its calibrated class means differ most."""
    before, after = (class_means(x[None], labels[None], way)[0] for x in (support, calibrated))
    centre = after.mean(dim=0)
    directions = torch.linalg.svd(after - centre, full_matrices=False)[2][:2]
    parts = {"support": support, "queries": query, "before": before, "after": after}
    plane = {name: ((x - centre) @ directions.T).tolist() for name, x in parts.items()}
    return {**plane, "labels": labels.tolist()}


def _explainable(group: Group) -> str | None:
    """The best method whose calibration can be explained."""
    methods = group.summary.methods
    able = [name for name in methods if _rebuilt(group.results.settings[name]) is not None]
    return max(able, key=lambda name: methods[name].accuracy, default=None)


def _rebuilt(settings: Mapping[str, Any]) -> GDC | None:
    """GDC as it was used, or `None` for another method or a head that is known by its description alone."""
    if settings.get("method") != "gdc":
        return None
    known = {f.name for f in fields(GDCParams)}
    try:
        return GDC(GDCParams(**{k: v for k, v in settings.items() if k in known}))
    except InputError:
        return None


def _confidence(page: Page, group: Group, level: int) -> None:
    page.heading("Confidence", level)
    bins = {
        name: {"counts": b.counts.tolist(), "correct": b.correct.tolist(), "confidence": b.confidence.tolist()}
        for name, b in group.results.bins.items()
    }
    errors = ", ".join(f"{name} {m.ece:.3f}" for name, m in group.summary.methods.items())
    page.figure(
        figures.reliability(bins),
        f"Share of right answers against confidence; expected calibration errors: {errors}.",
        "Above the diagonal a method is more often right than it claims, below it promises too much.",
    )


def _record(page: Page, group: Group, level: int) -> None:
    page.heading("Protocol and surroundings", level)
    p = group.results.protocol
    page.facts(
        {
            "tasks": f"{p.tasks}, {p.way}-way {p.shot}-shot, {p.query} queries a class",
            "classes": f"{len(group.results.class_names)} of split {p.split}",
            "rows": "drawn anew for every task" if p.replacement else "dealt without replacement",
            "seed": p.seed,
            "features": {name: f"sha256 {digest[:16]}…" for name, digest in group.results.identity["features"].items()},
        }
    )
    with page.details("Parameters of the methods"):
        for name, settings in group.results.settings.items():
            page.heading(name, level + 1, listed=False)
            page.facts(dict(settings))
    with page.details("Surroundings"):
        for folder in group.folders:
            page.heading(folder.resolve().name, level + 1, listed=False)
            page.facts(_environment(folder))


def _reading(page: Page) -> None:
    page.heading("How to read this")
    page.items(
        [
            "Half-widths over tasks say how far the mean would move with other tasks drawn from the same classes; more "
            "tasks make them smaller. The interval over classes says how far it would move with other classes of the "
            "same kind, and is the honest one for a claim about the domain.",
            "Differences are taken task by task, on identical tasks, and corrected for their number by Holm's method.",
            "The worst tenth is the mean of the 10% hardest tasks. ECE is the expected calibration error: the mean gap "
            "between confidence and the share of right answers.",
            "The script behind the paper's tables printed twice the half-width after its ±; here it is the half-width.",
        ]
    )


# ---- small things ------------------------------------------------------------------------------------------------


def _hardest(group: Group, count: int, name: str | None = None) -> np.ndarray:
    """Tasks with the lowest accuracy; of equals the first."""
    order: np.ndarray = np.argsort(group.results.accuracy(name or group.best), kind="stable")[:count]
    return order


def _accuracy(m: MethodSummary, best: bool) -> Cell:
    text = f"{100 * m.accuracy:.2f} ± {show_points(m.ci95)}"
    return Cell(text, sort=100 * m.accuracy, mark="best" if best else "")


def _interval(m: MethodSummary) -> dict[str, float | None]:
    over = m.class_interval
    half = None if math.isnan(m.ci95) else m.ci95
    return {"accuracy": m.accuracy, "ci95": half} | ({} if over is None else {"low": over.low, "high": over.high})


def _number(share: float) -> float | None:
    return None if math.isnan(share) else round(100 * share, 1)


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _environment(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"environment": "not recorded"}
    return dict(found) if isinstance(found, dict) else {"environment": "not recorded"}
