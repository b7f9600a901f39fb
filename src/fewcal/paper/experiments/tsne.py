"""Figures 1 and 4: support, sampled and query points of a task in the plane, and how near the samples are to a class.

"Closer to the query points" is scored by the energy distance between the sampled points and held-out rows of the class.
The share of queries whose nearest sampled point is of their class, which is nearest at hand, is no such score: it is
highest where nothing is sampled and each class is its support point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal._utils.threads import in_parallel
from fewcal.episodes import Episodes, EpisodeSpec, sample_episodes
from fewcal.evaluation.stats import paired
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods.base import TaskBatch
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.blocks import Picture, Section, Table, Value, Verdict
from fewcal.paper.budget import WHOLE, Case
from fewcal.paper.evaluations import Evaluations
from fewcal.paper.measured import quiet
from fewcal.paper.published import dataset_title
from fewcal.paper.registry import Experiment, Figure, Records
from fewcal.paper.sampled import TUNED, drawn_text, embed, energy_distance
from fewcal.paper.settings import PRINTED, UNIT_SCALE, gdc, paper_params
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure

VARIANTS = (PRINTED, UNIT_SCALE, TUNED)
_SPEC = EpisodeSpec(way=5, shot=1, query=15)
# Held-out rows of a class that samples are compared with, at most.
_REAL = 150


class TsneTask(TypedDict):
    """A task in the plane, with a panel for each method."""

    task: int
    class_names: list[str]
    panels: dict[str, figures.Panel]


class Nearness(TypedDict):
    """For each task, mean over its classes: energy distance and width of the samples, and distance of the support.

    All in units of the mean distance between two rows of the class.
    """

    distance: list[float]
    width: list[float]
    support: list[float]


class TsneData(TypedDict):
    """Tasks in the plane, and how near the samples of each method are to their class over many tasks."""

    tasks: list[TsneTask]
    nearness: dict[str, Nearness]
    settings: dict[str, str]
    shot: int
    seed: int
    shown: int


def figure_methods(dataset: str, shot: int = 1) -> dict[str, DC | GDC]:
    """DC, and the published row of GDC as printed and in its variants."""
    row = paper_params(dataset, shot)
    return {"DC": DC(), **{f"GDC, {v.name}": gdc(v.params(row)) for v in VARIANTS}}


def tsne_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    methods: Mapping[str, DC | GDC] | None = None,
    tasks: Sequence[int] = (0, 1),
    spec: EpisodeSpec = _SPEC,
    shown: int = 150,
    scored: int = 50,
    split: str = "novel",
    iterations: int = 1000,
    evaluations: Evaluations | None = None,
) -> TsneData:
    """Support, samples and queries of some `tasks` in the plane, and `scored` tasks by their energy distance.

    Each method is seen in its own space. All its points are scored; in the plane are `shown` of each class, evenly
    spaced.
    """
    bank = (evaluations or Evaluations()).bank(features)
    spec = replace(spec, seed=seed)
    rows = features.split(split)
    drawn: list[TsneTask] = [
        {"task": t, "class_names": [rows.classes[int(c)] for c in _episodes(rows, spec, t).classes[0]], "panels": {}}
        for t in tasks
    ]
    nearness: dict[str, Nearness] = {}
    points: dict[tuple[int, str], np.ndarray] = {}
    settings = {}
    for name, method in (methods or figure_methods("mini", spec.shot)).items():
        method.prepare(bank)
        settings[name] = _setting(method)
        nearness[name] = _nearness(method, rows, spec, scored)
        for one in drawn:
            points[one["task"], name], one["panels"][name] = _panel(method, rows, spec, one["task"], shown)
    planes = dict(zip(points, embed(list(points.values()), seed, iterations), strict=True))
    for one in drawn:
        for name, panel in one["panels"].items():
            panel["points"] = planes[one["task"], name]
    return {
        "tasks": drawn,
        "nearness": nearness,
        "settings": settings,
        "shot": spec.shot,
        "seed": seed,
        "shown": shown,
    }


def _setting(method: DC | GDC) -> str:
    if isinstance(method, GDC):
        return drawn_text(method.params)
    return f"k={method.k}, α={method.alpha:g}, β={method.beta:g}; n={method.n} a class; base features not Gaussianized"


def _panel(
    method: DC | GDC, rows: FeatureSplit, spec: EpisodeSpec, task: int, shown: int
) -> tuple[np.ndarray, figures.Panel]:
    """Points of a task, with `shown` samples of each class at most, and the panel that lacks their places."""
    x, query = _task_points(method, rows, spec, task)
    own = _even(x.shape[1] - spec.shot, shown) + spec.shot
    some = torch.cat([x[:, : spec.shot], x[:, own]], dim=1)
    kinds = ["support"] * spec.shot + ["sample"] * len(own)
    points = torch.cat([some.flatten(0, 1), query.flatten(0, 1)]).numpy()
    order = torch.arange(spec.way)
    classes = torch.cat([order.repeat_interleave(some.shape[1]), order.repeat_interleave(spec.query)])
    every = kinds * spec.way + ["query"] * (spec.way * spec.query)
    return points, {"points": [], "classes": classes.tolist(), "kinds": every}


def _nearness(method: DC | GDC, rows: FeatureSplit, spec: EpisodeSpec, tasks: int) -> Nearness:
    """The energy distance of support ∪ samples, and of the support alone, to held-out rows of their class."""
    labels = rows.require_labels()

    def one(task: int) -> tuple[float, float, float]:
        x, _ = _task_points(method, rows, spec, task)
        episode = _episodes(rows, spec, task)
        held_out = [
            np.setdiff1d(np.flatnonzero(labels == c), own)
            for c, own in zip(episode.classes[0], episode.support[0], strict=True)
        ]
        size = min(_REAL, *map(len, held_out))
        real = _take(method, rows, np.stack([own[_even(len(own), size)] for own in held_out]))
        distance, width = energy_distance(x, real)
        alone, _ = energy_distance(x[:, : spec.shot], real)
        return round(float(distance.mean()), 5), round(float(width.mean()), 5), round(float(alone.mean()), 5)

    found = list(in_parallel(one, range(tasks)))
    return {
        "distance": [distance for distance, _, _ in found],
        "width": [width for _, width, _ in found],
        "support": [alone for _, _, alone in found],
    }


def _even(count: int, most: int) -> np.ndarray:
    """Indices of `most` of `count` things, evenly spaced."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def _episodes(rows: FeatureSplit, spec: EpisodeSpec, task: int) -> Episodes:
    return sample_episodes(rows.require_labels(), spec, range(task, task + 1), rows.classes)


def _take(method: DC | GDC, rows: FeatureSplit, index: np.ndarray) -> Tensor:
    """Rows in the space of a method, `(*index.shape, D)`."""
    flat = np.asarray(rows.features[index.reshape(-1)], np.float32)
    return method.transform(torch.from_numpy(flat)).view(*index.shape, -1)


def _task_points(method: DC | GDC, rows: FeatureSplit, spec: EpisodeSpec, task: int) -> tuple[Tensor, Tensor]:
    """Support, then samples, of each class `(N, K + n, D)`, and its queries `(N, Q, D)`."""
    episode = _episodes(rows, spec, task)
    labels = torch.arange(spec.way).repeat_interleave(spec.shot)[None]
    with torch.no_grad(), quiet():
        support = _take(method, rows, episode.support).view(1, spec.way * spec.shot, -1)
        batch = TaskBatch(support, labels, spec.way, TaskRandom(spec.seed, [task]))
        x, y = method.calibrated(batch).points()
        by_class = torch.stack([x[0, y[0] == c] for c in range(spec.way)])  # the support comes first
        return by_class, _take(method, rows, episode.query)[0].view(spec.way, spec.query, -1)


# ---- showing --------------------------------------------------------------------------------------------------------


def draw_tsne(data: TsneData, place: int = 0) -> matplotlib.figure.Figure:
    """One of the tasks: DC beside GDC, with the paper's markers."""
    task = data["tasks"][place]
    return figures.embedding_panels(task["panels"], task["class_names"])


def say_tsne(data: TsneData, place: int = 0) -> str:
    """What the picture of one task shows, and with which settings."""
    settings = "; ".join(f"{name} ({words})" for name, words in data["settings"].items())
    return (
        f"Task {data['tasks'][place]['task']} of seed {data['seed']}, {data['shot']}-shot, each method in its own "
        f"space. Support points are + in a circle, sampled points semi-transparent o (at most {data['shown']} of each "
        f"class are drawn, evenly spaced), queries *. Settings: {settings}. No classifier is trained here."
    )


def judge(data: TsneData, where: str) -> list[Verdict]:
    """Whether the samples of GDC are nearer to their class than those of DC, and more compact, for each variant."""
    out = []
    dc = data["nearness"]["DC"]
    for variant in VARIANTS:
        own = data["nearness"].get(f"GDC, {variant.name}")
        if own is None:
            continue
        place = f"{where}, {data['shot']}-shot, {variant.name}"
        for claim, mine, its, beside in (
            (
                "sampled points of GDC are closer to their class than those of DC",
                own["distance"],
                dc["distance"],
                f"; the support point alone: {np.mean(own['support']):.2f}",
            ),
            (
                "clusters of sampled points are more compact than those of DC",
                own["width"],
                dc["width"],
                "; the class itself: 1",
            ),
        ):
            gain = paired(np.array(its), np.array(mine))
            kind = "energy distance" if mine is own["distance"] else "mean distance between samples"
            found = (
                f"{kind} {np.mean(mine):.2f}, DC {np.mean(its):.2f} (difference {np.mean(mine) - np.mean(its):+.2f} ± "
                f"{gain.ci95:.2f}){beside} ({gain.n} tasks)"
            ).replace("-", "−")
            holds = gain.difference > 0 if abs(gain.difference) > gain.ci95 else None
            out.append(Verdict(claim, place, found, holds, variant.group))
    return out


def nearness_table(data: TsneData, where: str) -> Table:
    """Energy distance and width of each method, with the support alone beside them."""
    rows: list[list[Value]] = []
    for name, one in data["nearness"].items():
        means = [float(np.round(np.mean(one[k]), 3)) for k in ("distance", "width", "support")]
        rows.append([name, *means, data["settings"][name]])
    tasks = len(data["nearness"]["DC"]["distance"])
    caption = (
        f"{where}, {data['shot']}-shot, {tasks} tasks: energy distance between support ∪ samples and held-out rows of "
        "the class (0: the class itself), and mean distance between samples, both in units of the mean distance "
        "between two rows of the class"
    )
    return Table(["method", "energy distance", "width", "support alone", "setting"], rows, caption)


def compute(case: Case) -> TsneData:
    """Figures 1 and 4: two tasks of five novel classes."""
    methods = figure_methods(case.dataset)
    scored = min(50, case.budget.sampled)
    return tsne_data(case.features, seed=case.budget.seed, methods=methods, scored=scored, evaluations=case.evaluations)


def show(records: Records[TsneData]) -> Section:
    """Both figures, and the table that the verdict comes from."""
    section = Section()
    for (dataset, _), record in records.items():
        where = dataset_title(dataset)
        section.verdicts += judge(record, where)
        section.blocks.append(
            "Closer is said of pictures, which no interval goes with. Scored is the energy distance between the points "
            "that a classifier would be trained on and held-out rows of their class: it is lowest for the class itself "
            "and does not reward leaving the sampling out, which a count of queries whose nearest sample has their "
            "class does. `default` draws no points, so these figures say nothing about it."
        )
        section.blocks.append(nearness_table(record, where))
        for place, number in zip(range(len(record["tasks"])), ("1", "4"), strict=False):
            words = f"Figure {number} on {where}. {say_tsne(record, place)}"
            stem = f"tsne-{dataset}-figure{number}"
            section.blocks.append(Picture(stem, draw_tsne(record, place), words, words))
    return section


FIGURE = Figure("tsne", "Support, sampled and query points", "figures 1 and 4", tsne_data, draw_tsne, say_tsne)
EXPERIMENTS = (
    Experiment(
        "tsne",
        FIGURE.title,
        FIGURE.source,
        "Sampled points of GDC are closer to the queries than those of DC, in more compact clusters.",
        compute,
        show,
        ("mini",),
        (WHOLE,),
        packages=("sklearn", "scipy"),
        elsewhere=True,
        cost="1 min",
        figure=FIGURE,
        variants=VARIANTS,
        control="none: about where sampled points lie; no classifier is trained. The support point alone stands beside",
    ),
)
