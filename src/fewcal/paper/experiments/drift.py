"""Figure 2, right: samples of one support point for rising m, k = 1.

With k = 1, eq. 4 reads X' = x̃ + s·(X₁ − x̃), s = w/(1 + w): a copy of the base class, shrunk towards the support point
in place and in size alike. What m does depends on the distance to the base class alone, and so on the scale of the
features: at a distance of 1 every m gives s = 1/3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.evaluation.stats import MeanAccuracy, summarise
from fewcal.factor_gaussian import FactorGaussian
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods.gdc import GDC
from fewcal.paper.blocks import Verdict
from fewcal.paper.budget import Case
from fewcal.paper.evaluations import Evaluations
from fewcal.paper.measured import quiet
from fewcal.paper.published import implied_distances
from fewcal.paper.registry import Figure, figure_experiment
from fewcal.paper.sampled import drawn_text, embed, sentence
from fewcal.paper.settings import PRINTED, UNIT_SCALE, Variant, paper_params
from fewcal.params import GDCParams
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure

# Distances divided by a number, so that the median support point is as far from its nearest base class as the paper's
# are on miniImageNet, by the weights in table 9.
PAPER_DISTANCE = implied_distances("mini", 1)[0]
RESCALED = Variant(f"rescaled to d = {PAPER_DISTANCE:.2g}", "tuned or rescaled")
VARIANTS = (PRINTED, UNIT_SCALE, RESCALED)
# A mean that moved by so much of the way to the base class, at most and at least, is at the support point and far away.
_NEAR, _FAR = 0.05, 0.2
# Two clouds overlap where they share half of their mass.
_OVERLAPPING = 0.5


class Moves(TypedDict):
    """Over many support points: how far each mean moved, and how much clouds overlap.

    `shift` is the part of the way to the base class by which the mean of DC and of each m moved; `overlap` the mass
    that the clouds of m = 0 and m = 1 share along that way; `distance` is d of the nearest base class.
    """

    shift: dict[str, list[float]]
    overlap: list[float]
    distance: list[float]


class DriftPanel(TypedDict):
    """The clouds of one support point in the plane."""

    support: list[float]
    clouds: dict[str, figures.Cloud]


class DriftData(TypedDict):
    """A panel and the moves of many support points for each variant."""

    panels: dict[str, DriftPanel]
    moves: dict[str, Moves]
    settings: dict[str, str]
    class_name: str
    shown: int


def drift_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    row: GDCParams | None = None,
    powers: Sequence[float] = (0, 1, 2, 4),
    shown: int = 100,
    measured: int = 50,
    split: str = "novel",
    iterations: int = 1000,
    evaluations: Evaluations | None = None,
) -> DriftData:
    """Samples around the calibrated mean of one support point with k = 1, for DC's equal weight and rising m.

    `row` is the published setting, by default that of miniImageNet → CUB; of its n points `shown` are drawn. The
    moves are those of `measured` support points of different tasks.
    """
    bank = (evaluations or Evaluations()).bank(features)
    rows = features.split(split)
    row = (row or paper_params("mini2cub", 1)).with_changes(k=1)
    out: DriftData = {"panels": {}, "moves": {}, "settings": {}, "class_name": "", "shown": shown}
    for variant in VARIANTS:
        params, words = variant.params(row), ""
        if variant is RESCALED:
            median = float(np.median(out["moves"][PRINTED.name]["distance"]))
            scale = median / PAPER_DISTANCE
            words = f"; distances divided by {scale:.3g}"
            params = params.with_changes(distance_scale=scale, distance_scale_of="one")
        method = GDC(params)
        method.prepare(bank)
        x, names = _support(method, rows, seed, measured)
        out["class_name"] = names[0]
        out["settings"][variant.name] = drawn_text(params).replace(f"m={row.m:g}, ", "") + words
        out["moves"][variant.name] = _moves(method, x, powers)
        out["panels"][variant.name] = _panel(method, x[:1], powers, shown, seed, iterations)
    return out


def _support(method: GDC, rows: FeatureSplit, seed: int, count: int) -> tuple[Tensor, list[str]]:
    """A support point of each of `count` tasks in the space of the method, `(T, 1, D)`, and their classes."""
    spec = EpisodeSpec(2, 1, 1, seed)  # the fewest there can be; the first class is looked at
    episodes = sample_episodes(rows.require_labels(), spec, range(count), rows.classes)
    flat = np.asarray(rows.features[episodes.support[:, 0, 0]], np.float32)
    return method.transform(torch.from_numpy(flat))[:, None], [rows.classes[int(c)] for c in episodes.classes[:, 0]]


def _clouds(method: GDC, x: Tensor, powers: Sequence[float]) -> dict[str, FactorGaussian]:
    """X' of support points `(T, 1, D)` with DC's weight, which is 1, and with each m."""
    out = {}
    with torch.no_grad(), quiet():
        for m in (None, *powers):
            weighting = replace(method.calibrator, equal=True) if m is None else replace(method.calibrator, m=m)
            found = weighting.calibrate(x)
            out["DC" if m is None else f"m = {m:g}"] = method.shrunk(found).gaussian(found.mean)
    return out


def _moves(method: GDC, x: Tensor, powers: Sequence[float]) -> Moves:
    out: Moves = {"shift": {}, "overlap": [], "distance": []}
    for one in x.split(5):
        index, distance = _nearest(method, one)
        way = method.bank.means[index] - one[:, 0]
        length = way.norm(dim=-1)
        along = way / length[:, None]
        places: dict[str, tuple[Tensor, Tensor]] = {}
        for name, cloud in _clouds(method, one, powers).items():
            moved = ((cloud.mean - one)[:, 0] * along).sum(dim=-1)
            places[name] = moved, _deviation(cloud, along)
            out["shift"].setdefault(name, []).extend(_rounded(moved / length))
        if {"m = 0", "m = 1"} <= places.keys():
            out["overlap"] += _rounded(overlap(*places["m = 0"], *places["m = 1"]))
        out["distance"] += _rounded(distance)
    return out


def _nearest(method: GDC, x: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest base class of each support point `(T,)`, and its distance d."""
    found = method.calibrator.calibrate(x)
    return found.index[:, 0, 0], found.distances[:, 0, 0]


def _deviation(cloud: FactorGaussian, along: Tensor) -> Tensor:
    """Standard deviation of clouds `(T, 1)` along unit vectors `(T, D)`: uᵀ(FᵀF + a·I + b·11ᵀ)u."""
    factor = cloud.factor.to(along.dtype)[:, 0] @ along[..., None]
    isotropic = torch.zeros_like(cloud.b) if cloud.a is None else cloud.a
    common = cloud.b[:, 0] * along.sum(dim=-1).square()
    return (factor.square().sum(dim=(-2, -1)) + isotropic[:, 0] + common).clamp(min=0).sqrt()


def overlap(mean1: Tensor, sd1: Tensor, mean2: Tensor, sd2: Tensor) -> Tensor:
    """The mass that two normal distributions share: the area under the lower of their densities.

    >>> zero, one = torch.zeros(1), torch.ones(1)
    >>> [round(float(overlap(zero, one, zero + m, one * s)), 2) for m, s in ((0, 1), (2, 1), (0, 100))]
    [1.0, 0.32, 0.03]
    """
    narrow, wide = torch.minimum(sd1, sd2).double(), torch.maximum(sd1, sd2).double()
    wide = torch.maximum(wide, narrow * (1 + 1e-6))  # equal densities would meet in one place only
    gap = (mean1 - mean2).double().abs() / narrow
    ratio = wide / narrow
    # Where the densities meet, in deviations of the narrow one from its mean: (t − gap)² = r²·(t² − 2·ln r).
    a, b, c = ratio**2 - 1, 2 * gap, -(gap**2) - 2 * ratio**2 * ratio.log()
    root = (b**2 - 4 * a * c).clamp(min=0).sqrt()
    low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
    phi = torch.special.ndtr
    inside = phi((high - gap) / ratio) - phi((low - gap) / ratio)
    return (1 - (phi(high) - phi(low)) + inside).clamp(0, 1)


def _rounded(values: Tensor) -> list[float]:
    return [round(float(v), 5) for v in values]


def _panel(method: GDC, x: Tensor, powers: Sequence[float], shown: int, seed: int, iterations: int) -> DriftPanel:
    """The clouds of the support point `x (1, 1, D)` in the plane."""
    clouds = _clouds(method, x, powers)
    points = [x[0].numpy()]
    with quiet():
        for i, cloud in enumerate(clouds.values()):
            drawn = cloud.sample(shown, TaskRandom(seed, [0], stream=i))[0, 0]
            points += [cloud.mean[0].numpy(), drawn.numpy()]
    [plane] = embed([np.concatenate(points)], seed, iterations)
    starts = {name: 1 + i * (1 + shown) for i, name in enumerate(clouds)}
    return {
        "support": plane[0],
        "clouds": {name: {"mean": plane[at], "points": plane[at + 1 : at + 1 + shown]} for name, at in starts.items()},
    }


# ---- showing --------------------------------------------------------------------------------------------------------


def draw_drift(data: DriftData) -> matplotlib.figure.Figure:
    """The clouds with their means, and the support point, a panel for each variant."""
    return figures.drifting_samples({name: (p["clouds"], p["support"]) for name, p in data["panels"].items()})


def say_drift(data: DriftData) -> str:
    """How far each mean went."""
    parts = []
    for name, moves in data["moves"].items():
        shifts = ", ".join(f"{cloud} {100 * np.mean(s):.0f}%" for cloud, s in moves["shift"].items())
        median = float(np.median(moves["distance"]))
        shared = (
            f"; m = 0 and m = 1 share {100 * np.mean(moves['overlap']):.0f}% of their mass" if moves["overlap"] else ""
        )
        parts.append(
            f"{sentence(name)} ({data['settings'][name]}; nearest base class at d = {median:.3g}): {shifts}{shared}"
        )
    tasks = len(next(iter(data["moves"].values()))["distance"])
    return (
        f"Sampled points ({data['shown']} of n) for one support point (class {data['class_name']}; + in a circle) with "
        f"k = 1, and their means (*). How far the mean moved on its way to the nearest base class, mean over {tasks} "
        f"support points: {'. '.join(parts)}."
    )


def judge(data: DriftData, where: str) -> list[Verdict]:
    """Whether the cloud of m = 4 is at the support point, those of DC and m = 0, 1 far from it, the last two mixed."""
    out = []
    for variant in VARIANTS:
        moves = data["moves"][variant.name]
        place = f"{where}, {variant.name}"
        shift = {name: summarise(np.array(s)) for name, s in moves["shift"].items()}
        at = "; ".join(f"{name}: {_share(shift[name])}" for name in ("DC", "m = 0", "m = 1", "m = 4"))
        found = f"part of the way to the base class that the mean moved: {at}"
        near = _below(shift["m = 4"], _NEAR)
        far = [_below(shift[name], _FAR) for name in ("DC", "m = 0", "m = 1")]
        away = False if True in far else None if None in far else True
        shared = summarise(np.array(moves["overlap"]))
        below = _below(shared, _OVERLAPPING)
        said = f"m = 0 and m = 1 share {_share(shared)} of their mass ({shared.n} support points)"
        out += [
            Verdict("with m = 4 the samples overlap with the support point", place, found, near, variant.group),
            Verdict("samples of DC, m = 0 and m = 1 are far from the support point", place, found, away, variant.group),
            Verdict(
                "samples of m = 0 and m = 1 overlap", place, said, None if below is None else not below, variant.group
            ),
        ]
    return out


def _share(s: MeanAccuracy) -> str:
    return f"{100 * s.mean:.1f} ± {100 * s.ci95:.1f}%"


def _below(s: MeanAccuracy, limit: float) -> bool | None:
    """Whether a mean is below a limit; None where its interval has the limit inside."""
    return None if abs(s.mean - limit) <= s.ci95 else s.mean < limit


def arguments(case: Case) -> dict[str, object]:
    """The published row of the dataset."""
    return {"row": paper_params(case.dataset, 1), "evaluations": case.evaluations}


FIGURE = Figure("drift", "Samples for rising m", "figure 2, right", drift_data, draw_drift, say_drift)
EXPERIMENTS = (
    figure_experiment(
        FIGURE,
        "With m = 4 the samples overlap with the support point; those of DC and m = 0, 1 are far from it and overlap.",
        "mini2cub",
        packages=("sklearn", "scipy"),
        arguments=arguments,
        judge=judge,
        variants=VARIANTS,
        control="none: about where sampled points lie; no classifier is trained",
        cost="15 s",
    ),
)
