"""The hardest tasks of a run computed again: which classes were confused, and which base classes contributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.episodes import Group as Tasks
from fewcal.episodes import sample_episodes
from fewcal.errors import InputError
from fewcal.estimators.explain import Explanation, explain_contributions
from fewcal.heads.base import TaskBatch
from fewcal.methods import METHODS, Method
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
    method = _rebuilt(results.settings[name])
    assert features is not None
    assert method is not None
    base, split = features.split("base"), features.split(results.protocol.split)
    if split.classes != results.class_names:
        raise InputError(
            "the features list their classes in another order than the run did, so its tasks cannot be redrawn; "
            "give the folder that the run was evaluated on"
        )
    bank = BaseBank().fit(base.features, np.array(base.classes, dtype=object)[base.require_labels()])
    method = method.prepare(bank)
    out = []
    spec = results.protocol.spec
    for task in tasks:
        [drawn] = sample_episodes(split.require_labels(), spec, [task], split.classes).groups()
        names = [split.classes[c] for c in results.classes[task][: drawn.way]]
        out.append(_explain(method, split.features, drawn, TaskRandom(spec.seed, [task]), names))
    return out


def _explain(method: Method, rows: np.ndarray, drawn: Tasks, random: TaskRandom, names: Sequence[str]) -> ExplainedTask:
    """One task, of the rows (R, D) of its split; queries of no class are left out."""
    own = drawn.truth[0] >= 0
    labels, truth = torch.tensor(drawn.labels[0]), torch.tensor(drawn.truth[0][own])
    support, query = (
        method.transform(torch.from_numpy(rows[at].astype(np.float32)))
        for at in (drawn.support[0], drawn.query[0][own])
    )
    batch = TaskBatch(support[None], labels[None], drawn.way, random)
    with torch.no_grad():
        answer = method.fit(batch).logits(query[None])[0].argmax(dim=-1)
        contributions = method.contributions(batch)
    assert contributions is not None
    confusion = np.zeros((drawn.way, drawn.way), int)
    np.add.at(confusion, (truth.numpy(), answer.numpy()), 1)
    # The plane of the two directions in which the calibrated class means differ most.
    before, after = contributions.before[0], contributions.after[0]
    support, query = (x[:, : after.shape[1]] for x in (support, query))
    centre = after.mean(dim=0)
    plane = torch.linalg.svd(after - centre, full_matrices=False)[2][:2].T
    view: TaskView = {
        "support": ((support - centre) @ plane).tolist(),
        "labels": labels.tolist(),
        "queries": ((query - centre) @ plane).tolist(),
        "truth": truth.tolist(),
        "right": (answer == truth).tolist(),
        "before": ((before - centre) @ plane).tolist(),
        "after": ((after - centre) @ plane).tolist(),
    }
    counts = torch.bincount(labels, minlength=drawn.way).tolist()
    explanation = explain_contributions(contributions, list(names), counts, "")
    return ExplainedTask(random.tasks[0], explanation, confusion, view)


def best_explainable(group: Group) -> str | None:
    """The best method whose calibration can be explained."""
    able = {name: m.accuracy for name, m in group.summary.methods.items() if _rebuilt(m.settings) is not None}
    return max(able, key=lambda name: able[name], default=None)


def _rebuilt(settings: Mapping[str, object]) -> Method | None:
    """A method that calibrates, as it was used, or `None` for others and for heads that the record has by repr."""
    name = str(settings.get("method"))
    if name not in ("gdc", "hgdc"):
        return None
    own = {k: v for k, v in settings.items() if k != "method"}
    try:
        return METHODS[name].make(None, own)  # type: ignore[arg-type]
    except InputError:
        return None


def show_hardest(page: Page, group: Group, level: int, hardest: int) -> None:
    """Add the part of the page on why the hardest tasks are hard."""
    page.heading("Why the hardest tasks are hard", level)
    name = best_explainable(group)
    if name is None:
        page.text("None of these methods calibrates with base classes, so there is nothing to explain here.")
    elif group.features is None:
        page.text(
            "Make the report with `--features DIR`, the features that this run was evaluated on, to see which "
            "classes were confused and which base classes contributed."
        )
    elif group.results.identity["episodes"] is not None:
        page.text(
            "The tasks of this run come from a list of their own, which the run does not keep; they cannot be redrawn."
        )
    else:
        page.text(
            f"The hardest tasks for {name}, computed again. Shares are those of a class's own examples and of its "
            "nearest base classes in its calibrated mean. Moved is how far that took it, 1 being the typical distance "
            "between neighbouring base classes."
        )
        for explained in explain_tasks(group, name, group.hardest(hardest, name).tolist()):
            _show_task(page, group, level, name, explained)


def _show_task(page: Page, group: Group, level: int, method: str, explained: ExplainedTask) -> None:
    task, explanation, confusion = explained.task, explained.explanation, explained.confusion
    names = [str(c.label) for c in explanation.classes]
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
        right, total = int(confusion[i, i]), int(confusion[i].sum())
        wrong = [(int(confusion[i, j]), names[j]) for j in np.argsort(-confusion[i]) if j != i and confusion[i, j]]
        rows.append(
            [
                names[i],
                Cell(f"{right}/{total}", sort=right / max(total, 1)),
                ", ".join(f"{n}\u00a0×\u00a0{other}" for n, other in wrong[:3]) or "nothing",
                Cell(f"{c.own_share:.0%}", sort=c.own_share),
                ", ".join(f"{b} {s:.0%}" for b, s in zip(c.bases[:4], c.shares[:4], strict=True)) or "none",
                Cell(f"{c.moved:.2f}", sort=c.moved),
            ]
        )
    header = ["class", "right", "mistaken for", "itself", "nearest base classes (share)", "moved"]
    page.table(header, rows, f"Task {task} with {method}; weight of the base classes {explanation.weight:.2f}")
