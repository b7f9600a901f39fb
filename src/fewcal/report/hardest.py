"""The hardest tasks of a run computed again: which classes were confused, and which base classes contributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.errors import InputError
from fewcal.estimators.explain import Explanation, explain_contributions
from fewcal.heads.base import TaskBatch
from fewcal.methods import METHODS, Method
from fewcal.methods.base import Contributions
from fewcal.render import figures
from fewcal.render.figures import TaskView
from fewcal.render.page import Cell, Page, Value
from fewcal.report.groups import Group


@dataclass(frozen=True, eq=False)
class ExplainedTask:
    """One task computed again: what calibration did, what was mistaken for what, and a map.

    Attributes
    ----------
    task : int
    explanation : Explanation
    confusion : array (N, N), queries by truth (rows) and answer (columns)
    view : TaskView, for `figures.task_map`
    """

    task: int
    explanation: Explanation
    confusion: np.ndarray
    view: TaskView


def explain_tasks(group: Group, name: str, tasks: Sequence[int]) -> list[ExplainedTask]:
    """Compute tasks of a run again with one of its methods, which must calibrate, and explain them."""
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
    method = method.prepare(bank)
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
        batch = TaskBatch(support[None], labels[None], spec.way, TaskRandom(spec.seed, [task]))
        head = method.fit(batch)
        with torch.no_grad():
            answer = head.logits(query[None])[0].argmax(dim=-1)
            found = method.contributions(batch)
        assert found is not None
        truth = order.repeat_interleave(spec.query)
        confusion = np.zeros((spec.way, spec.way), int)
        np.add.at(confusion, (truth.numpy(), answer.numpy()), 1)
        plane = _plane(support, query, found)
        view: TaskView = {
            **plane,
            "labels": labels.tolist(),
            "truth": truth.tolist(),
            "right": (answer == truth).tolist(),
        }
        explanation = explain_contributions(found, names, [spec.shot] * spec.way, "")
        out.append(ExplainedTask(task, explanation, confusion, view))
    return out


class _Plane(TypedDict):
    """Examples, queries and class means before and after calibration, all (…, 2)."""

    support: list[list[float]]
    queries: list[list[float]]
    before: list[list[float]]
    after: list[list[float]]


def _plane(support: Tensor, query: Tensor, found: Contributions) -> _Plane:
    """Points of a task in the plane of the two directions in which its calibrated class means differ most."""
    before, after = found.before[0], found.after[0]
    support, query = (x[:, : after.shape[1]] for x in (support, query))
    centre = after.mean(dim=0)
    directions = torch.linalg.svd(after - centre, full_matrices=False)[2][:2]

    def seen(x: Tensor) -> list[list[float]]:
        points: list[list[float]] = ((x - centre) @ directions.T).tolist()
        return points

    return {"support": seen(support), "queries": seen(query), "before": seen(before), "after": seen(after)}


def best_explainable(group: Group) -> str | None:
    """The best method whose calibration can be explained."""
    methods = group.summary.methods
    able = [name for name in methods if _rebuilt(group.results.settings[name]) is not None]
    return max(able, key=lambda name: methods[name].accuracy, default=None)


def _rebuilt(settings: Mapping[str, object]) -> Method | None:
    """A method that calibrates, as it was used, or `None` for another or a head that is known by its repr alone."""
    name = str(settings.get("method"))
    if name not in ("gdc", "hgdc"):
        return None
    own = {k: v for k, v in settings.items() if k != "method"}
    try:
        return METHODS[name].make(None, own)  # type: ignore[arg-type]
    except InputError:
        return None


def show_hardest(page: Page, group: Group, level: int, hardest: int) -> None:
    """The part of the page that says why the hardest tasks are hard."""
    page.heading("Why the hardest tasks are hard", level)
    name = best_explainable(group)
    if name is None:
        page.text("None of these methods calibrates with base classes, so there is nothing to explain here.")
        return
    if group.features is None:
        page.text(
            "Make the report with `--features DIR`, the features that this run was evaluated on, to see which "
            "classes were confused and which base classes contributed."
        )
        return
    if group.results.identity["episodes"] is not None:
        page.text(
            "The tasks of this run come from a list of their own, which the run does not keep; they cannot be redrawn."
        )
        return
    tasks = explain_tasks(group, name, group.hardest(hardest, name).tolist())
    page.text(
        f"The hardest tasks for {name}, computed again. Shares say what the calibrated mean of a class is made of: "
        "its own examples and its nearest base classes. Moved is how far that took it, 1 being the typical distance "
        "between neighbouring base classes."
    )
    for explained in tasks:
        _show_task(page, group, level, name, explained)


def _show_task(page: Page, group: Group, level: int, method: str, explained: ExplainedTask) -> None:
    task, explanation, confusion = explained.task, explained.explanation, explained.confusion
    names = [group.results.class_names[c] for c in group.results.classes[task]]
    page.heading(f"Task {task}: {100 * float(group.results.accuracy(method)[task]):.1f}%", level + 1, listed=False)
    for note in explanation.notes:
        page.note(note, "warning")
    page.figure(
        figures.task_map(explained.view, names),
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
                Cell(f"{c.own_share:.0%}", sort=c.own_share),
                bases or "none",
                Cell(f"{c.moved:.2f}", sort=c.moved),
            ]
        )
    header = ["class", "right", "mistaken for", "itself", "nearest base classes (share)", "moved"]
    page.table(header, rows, f"Task {task} with {method}; weight of the base classes {explanation.weight:.2f}")
