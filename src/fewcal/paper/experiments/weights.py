"""Tables 8 and 9 and figure 5 (appendix H): the weights of the k base classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.features import FeatureSet
from fewcal.methods import TaskBatch
from fewcal.paper.blocks import Picture, Section, Table, Value
from fewcal.paper.budget import WHOLE, Case
from fewcal.paper.published import dataset_title, published
from fewcal.paper.registry import Experiment, Figure, Records
from fewcal.paper.sampled import SCALED, bank_of
from fewcal.paper.settings import SCALES, gdc, paper_params
from fewcal.params import GDCParams
from fewcal.render import Cell, figures

if TYPE_CHECKING:
    import matplotlib.figure


class WeightsData(TypedDict):
    """Shares of the base classes by "N-shot": all of them, their means nearest first, DC's constant share."""

    panels: dict[str, list[float]]
    means: dict[str, list[float]]
    dc: float
    tasks: int


class WeightsRecord(TypedDict):
    """The weights at each scale."""

    scales: dict[str, WeightsData]


def weights_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    tasks: int = 50,
    shots: Sequence[int] = (1, 5),
    params: GDCParams | Mapping[int, GDCParams] = SCALED,
    dc_k: int = 2,
    split: str = "novel",
) -> WeightsData:
    """Shares w_i/(1+Σw) of the k base classes, of every support point of many tasks; the paper's lists are their means.

    `params` may differ by the number of shots, as in the paper.
    """
    bank = bank_of(features)
    rows = features.split(split)
    panels, means = {}, {}
    for shot in shots:
        method = gdc(params if isinstance(params, GDCParams) else params[shot])
        method.prepare(bank)
        episodes = sample_episodes(rows.require_labels(), EpisodeSpec(5, shot, 1, seed), range(tasks), rows.classes)
        flat = np.asarray(rows.features[episodes.support.reshape(-1)], np.float32)
        x = method.transform(torch.from_numpy(flat)).view(tasks, -1, flat.shape[1])
        with torch.no_grad():
            labels = torch.arange(5).repeat_interleave(shot).expand(tasks, -1)
            found = method.calibration(TaskBatch(x, labels, 5, TaskRandom(seed, range(tasks))))
        share = found.normalised.reshape(-1, found.normalised.shape[-1])
        panels[f"{shot}-shot"] = [float(f"{v:.4g}") for v in share.flatten().tolist()]
        means[f"{shot}-shot"] = [round(v, 6) for v in share.mean(dim=0).tolist()]
    return {"panels": panels, "means": means, "dc": round(1 / (1 + dc_k), 4), "tasks": tasks}


def draw_weights(data: WeightsData) -> matplotlib.figure.Figure:
    """A histogram for each number of shots, with DC's constant share."""
    return figures.weight_histograms(data["panels"], {f"DC: {data['dc']:.2f}": data["dc"]})


def say_weights(data: WeightsData) -> str:
    """The nearest, the farthest, and DC."""
    parts = [f"{name}: {m[0]:.4f} to {m[-1]:.4f} for {len(m)} base classes" for name, m in data["means"].items()]
    return (
        f"{data['tasks']} tasks. Mean share, nearest to farthest: {'; '.join(parts)}. DC gives each {data['dc']:.2f}."
    )


def merge_weights(sets: Mapping[str, WeightsData]) -> WeightsData:
    """The weights of several feature sets in one figure, as the paper's figure 5 has them."""
    first = next(iter(sets.values()))
    return {
        "panels": {f"{s} {k}": v for s, data in sets.items() for k, v in data["panels"].items()},
        "means": {f"{s} {k}": v for s, data in sets.items() for k, v in data["means"].items()},
        "dc": first["dc"],
        "tasks": first["tasks"],
    }


def weights(case: Case) -> WeightsRecord:
    """Shares w_i/(1+Σw) of the base classes with the paper's parameters, 1-shot and 5-shot, at both scales."""
    out = {}
    for scale, change in SCALES.items():
        params = {s: paper_params(case.dataset, s).with_changes(**change) for s in (1, 5)}
        tasks = min(50, case.budget.tasks)
        out[scale] = weights_data(case.features, seed=case.budget.seed, tasks=tasks, params=params)
    return {"scales": out}


def show_weights(records: Records[WeightsRecord]) -> Section:
    """The paper's lists beside ours, nearest base class first, then histograms."""
    section = Section()
    pictures = []
    for (dataset, _), record in records.items():
        rows: list[list[Value]] = []
        for shot in (1, 5):
            cites = [r for r in published()["weights"]["rows"] if (r["dataset"], r["shot"]) == (dataset, shot)]
            for row in cites:
                rows.append([f"{row['method']} (paper), {shot}-shot", Cell(_numbers(row["values"]), mark="cited")])
            for scale, data in record["scales"].items():
                rows.append([f"GDC, {shot}-shot, {scale}", _numbers(data["means"][f"{shot}-shot"])])
        tasks = next(iter(record["scales"].values()))["tasks"]
        caption = f"{dataset_title(dataset)}: mean share of each of the k base classes, {tasks} tasks (the paper: 5)"
        section.blocks.append(Table(["method", "w_i/(1 + Σw), nearest first"], rows, caption))
        for scale, data in record["scales"].items():
            words = f"{dataset_title(dataset)}, {scale}. {say_weights(data)}"
            stem = f"weights-{dataset}-{scale.split()[0]}"
            pictures.append(Picture(stem, draw_weights(data), f"Histograms of the weights. {words}", words))
    section.blocks += pictures
    return section


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4f}" for v in values)


FIGURE = Figure(
    "weights", "Weights of the base classes", "figure 5, appendix H", weights_data, draw_weights, say_weights
)
EXPERIMENTS = (
    Experiment(
        "weights",
        "Weights of the k base classes",
        "Appendix H, tables 8 and 9, figure 5",
        "Weights on meta-tieredImageNet are ten times smaller than on miniImageNet, and a hundred times than DC's.",
        weights,
        show_weights,
        ("mini", "meta-tiered"),
        (WHOLE,),
        elsewhere=True,
        cost="seconds",
        figure=FIGURE,
    ),
)
