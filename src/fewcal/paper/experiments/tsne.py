"""Figures 1 and 4: support, sampled and query points of a task in the plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.evaluation.stats import paired
from fewcal.features import FeatureSet
from fewcal.methods.base import TaskBatch
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.blocks import Verdict
from fewcal.paper.measured import points as points_text
from fewcal.paper.measured import quiet
from fewcal.paper.registry import Figure, figure_experiment
from fewcal.paper.sampled import SCALED, bank_of, embed
from fewcal.paper.settings import gdc
from fewcal.params import GDCParams
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure


class TsnePanel(figures.Panel):
    """Points of one method, and the share of queries whose nearest sample is of their class."""

    agreement: float


class TsneData(TypedDict):
    """A panel for DC and one for GDC; `gain` is GDC's agreement minus DC's over many tasks."""

    panels: dict[str, TsnePanel]
    class_names: list[str]
    shot: int
    task: int
    seed: int
    n: int
    gain: float
    gain_half: float


def tsne_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    task: int = 0,
    way: int = 5,
    shot: int = 1,
    query: int = 15,
    n: int = 60,
    params: GDCParams = SCALED,
    split: str = "novel",
    iterations: int = 1000,
) -> TsneData:
    """Support, `n` samples of each support point and queries of one task in the plane, for DC and for GDC.

    Each method is seen in its own space. `agreement` is the share of queries whose nearest sampled point is of their
    own class: "closer to the query points" as a number, over 50 tasks.
    """
    bank = bank_of(features)
    methods: dict[str, DC | GDC] = {
        "DC": DC(n=n * shot),
        "GDC": gdc(params.with_changes(n=n, n_per="point")),
    }
    spec = EpisodeSpec(way, shot, query, seed)
    rows = features.split(split)
    labels = rows.require_labels()
    one = sample_episodes(labels, spec, range(task, task + 1), rows.classes)
    panels: dict[str, TsnePanel] = {}
    agreements: dict[str, np.ndarray] = {}
    for name, method in methods.items():
        method.prepare(bank)
        agreements[name] = _agreement(method, features, split, spec)
        x, y, z, truth = _augmented(method, features, split, spec, task)
        points = torch.cat([x[0], z[0]]).numpy()
        kinds = ["support"] * (way * shot) + ["sample"] * (len(x[0]) - way * shot) + ["query"] * len(z[0])
        panels[name] = {
            "points": embed(points, seed, iterations),
            "classes": torch.cat([y[0], truth]).tolist(),
            "kinds": kinds,
            "agreement": round(float(agreements[name].mean()), 4),
        }
    names = [rows.classes[int(c)] for c in one.classes[0]]
    gain = paired(agreements["GDC"], agreements["DC"])
    return {
        "panels": panels,
        "class_names": names,
        "shot": shot,
        "task": task,
        "seed": seed,
        "n": n,
        "gain": gain.difference,
        "gain_half": gain.ci95,
    }


def draw_tsne(data: TsneData) -> matplotlib.figure.Figure:
    """DC beside GDC, with the paper's markers."""
    return figures.embedding_panels(data["panels"], data["class_names"])


def say_tsne(data: TsneData) -> str:
    """What the picture of one task and the count over many show."""
    dc, gdc = (data["panels"][name]["agreement"] for name in ("DC", "GDC"))
    verdict = "no clear difference"
    if abs(data["gain"]) > data["gain_half"]:
        verdict = "as the paper says" if data["gain"] > 0 else "against what the paper says"
    return (
        f"Task {data['task']} of seed {data['seed']}, {data['shot']}-shot. Support points are + in black circles, "
        f"sampled points semi-transparent o, queries *. Over 50 tasks the sampled point nearest to a query "
        f"has its class in {100 * dc:.1f}% of the cases with DC and in {100 * gdc:.1f}% with GDC "
        f"({100 * data['gain']:+.1f} ± {100 * data['gain_half']:.1f} points): {verdict}."
    )


def _agreement(method: DC | GDC, features: FeatureSet, split: str, spec: EpisodeSpec, tasks: int = 50) -> np.ndarray:
    """For each task, the share of queries whose nearest sampled point is of their class, `(T,)`."""
    right = []
    for first in range(0, tasks, 10):
        x, y, z, truth = _augmented(method, features, split, spec, first, 10)
        support = spec.way * spec.shot
        nearest = torch.cdist(z, x[:, support:]).argmin(dim=-1)
        right.append((y[:, support:].gather(1, nearest) == truth).double().mean(dim=1))
    return torch.cat(right).numpy()


def _augmented(
    method: DC | GDC, features: FeatureSet, split: str, spec: EpisodeSpec, first: int, tasks: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Support ∪ samples `(T, M, D)`, their classes `(T, M)`, queries `(T, NQ, D)` and their classes `(NQ,)`."""
    rows = features.split(split)
    episodes = sample_episodes(rows.require_labels(), spec, range(first, first + tasks), rows.classes)
    order = torch.arange(spec.way)

    def take(index: np.ndarray) -> Tensor:
        flat = np.asarray(rows.features[index.reshape(-1)], np.float32)
        return method.transform(torch.from_numpy(flat)).view(tasks, -1, flat.shape[1])

    labels = order.repeat_interleave(spec.shot).expand(tasks, -1)
    random = TaskRandom(spec.seed, list(range(first, first + tasks)))
    with torch.no_grad(), quiet():
        support = take(episodes.support)
        x, y = method.calibrated(TaskBatch(support, labels, spec.way, random)).points()
        return x, y, take(episodes.query), order.repeat_interleave(spec.query)


def judge(record: TsneData, where: str) -> list[Verdict]:
    """Whether the samples of GDC are closer to the queries than those of DC."""
    gain, half = record["gain"], record["gain_half"]
    found = (
        f"{points_text(gain)} ± {100 * half:.2f} points of queries whose nearest sample is of their class (50 tasks)"
    )
    claim = "sampled points of GDC are closer to the queries than those of DC"
    holds = gain > 0 if abs(gain) > half else None
    return [Verdict(claim, f"{where}, {record['shot']}-shot", found, holds, "tuned or rescaled")]


FIGURE = Figure("tsne", "Support, sampled and query points", "figures 1 and 4", tsne_data, draw_tsne, say_tsne)
EXPERIMENTS = (
    figure_experiment(
        FIGURE,
        "Sampled points of GDC are closer to the queries than those of DC.",
        "mini",
        packages=("sklearn", "scipy"),
        judge=judge,
        cost="20 s",
    ),
)
