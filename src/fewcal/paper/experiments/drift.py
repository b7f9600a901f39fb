"""Figure 2, right: samples drift away from the support point, and come back as m rises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.calibrate import Calibrator
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.features import FeatureSet
from fewcal.methods.gdc import GDC
from fewcal.paper.measured import quiet
from fewcal.paper.registry import Figure, figure_experiment
from fewcal.paper.sampled import PRINTED, bank_of, embed
from fewcal.params import GDCParams
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure


class ShiftedCloud(figures.Cloud):
    """Samples and their mean in the plane; `shift` is the part of the way to the base class that the mean moved."""

    shift: float


class DriftData(TypedDict):
    """The clouds of DC and of each m, and the support point."""

    support: list[float]
    clouds: dict[str, ShiftedCloud]
    class_name: str


def drift_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    task: int = 0,
    powers: Sequence[float] = (0, 1, 2, 4),
    n: int = 80,
    params: GDCParams = PRINTED,
    split: str = "novel",
    iterations: int = 1000,
) -> DriftData:
    """Samples around the calibrated mean of one support point with k = 1, for DC's equal weight and rising m.

    All clouds have the covariance of the nearest base class; only their means differ. `shift` is the distance of the
    mean from the support point, as a share of the distance of that base class. Distances are the paper's, in no unit:
    only those beyond 1 lose weight as m rises.
    """
    p = params.with_changes(k=1, alpha1=0.0, alpha2_ratio=0.0, cov="independent", cov_weights="bases-only")
    method = GDC(p)
    method.prepare(bank_of(features))
    rows = features.split(split)
    spec = EpisodeSpec(2, 1, 1, seed)  # the fewest there can be; the first class is looked at
    episode = sample_episodes(rows.require_labels(), spec, range(task, task + 1), rows.classes)
    x = method.transform(torch.from_numpy(np.asarray(rows.features[episode.support[0, :1, 0]], np.float32)))[None]
    points, starts, shifts = [x[0].numpy()], {}, {}
    with torch.no_grad(), quiet():
        base = method.bank.means[Calibrator(method.bank, k=1).neighbours(x)[1][0, 0, 0]]
        for i, m in enumerate((None, *powers)):
            weighting = replace(method.calibrator, equal=True) if m is None else replace(method.calibrator, m=m)
            found = weighting.calibrate(x)
            drawn = method.shrunk(found).gaussian(found.mean).sample(n, TaskRandom(seed, [task], stream=i))[0, 0]
            name = "DC" if m is None else f"m = {m:g}"
            starts[name] = 1 + i * (1 + n)
            shifts[name] = round(float((found.mean[0, 0] - x[0, 0]).norm() / (base - x[0, 0]).norm()), 4)
            points += [found.mean[0].numpy(), drawn.numpy()]
    plane = embed(np.concatenate(points), seed, iterations)
    clouds: dict[str, ShiftedCloud] = {
        name: {"shift": shifts[name], "mean": plane[at], "points": plane[at + 1 : at + 1 + n]}
        for name, at in starts.items()
    }
    return {"support": plane[0], "clouds": clouds, "class_name": rows.classes[int(episode.classes[0, 0])]}


def draw_drift(data: DriftData) -> matplotlib.figure.Figure:
    """The clouds with their means, and the support point."""
    return figures.drifting_samples(data["clouds"], data["support"])


def say_drift(data: DriftData) -> str:
    """How far each mean went."""
    shifts = ", ".join(f"{name}: {100 * c['shift']:.0f}%" for name, c in data["clouds"].items())
    return (
        f"Sampled points for one support point (class {data['class_name']}; + in a circle) with their means (*). "
        f"The mean moved towards the nearest base class by this part of the way: {shifts}."
    )


FIGURE = Figure("drift", "Samples for rising m", "figure 2, right", drift_data, draw_drift, say_drift)
EXPERIMENTS = (
    figure_experiment(
        FIGURE,
        "With m = 4 the samples overlap with the support point; with DC and m = 0, 1 they do not.",
        "mini2cub",
        packages=("sklearn",),
        cost="20 s",
    ),
)
