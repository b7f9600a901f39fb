"""Figures 1, 2 (right) and 4: where drawn points lie, in the plane and by numbers.

"Closer to the query points" is scored by the energy distance between drawn points and held-out rows of their class.
With k = 1, eq. 4 reads X' = x̃ + s·(X₁ − x̃), s = w/(1 + w): a copy of the base class, shrunk towards the support point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal._utils.threads import in_parallel
from fewcal._utils.types import JSONObject
from fewcal.bank import BaseBank
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.evaluation.stats import MeanAccuracy, paired, summarise
from fewcal.factor_gaussian import FactorGaussian
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods.base import TaskBatch
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.paper.blocks import Experiment, Picture, Records, Section, Table
from fewcal.paper.measure import Case, quiet, support_batch
from fewcal.paper.settings import MATCHED, PRINTED, UNIT_DRAWN, Variant, gdc, paper_params, params_text
from fewcal.paper.statements import Verdict, within
from fewcal.params import GDCParams
from fewcal.render import figures

if TYPE_CHECKING:
    import matplotlib.figure

# Held-out rows of a class that points are compared with, and tasks (or support points) that are scored.
MAX_ROWS, SCORED = 150, 50
# A mean that moved by so much of the way to the base class, at most and at least, is at the support point and far away.
NEAR, FAR = 0.05, 0.2
# Two clouds overlap where they share half of their mass.
OVERLAP = 0.5
POWERS = (0, 1, 2, 4)


def energy_distance(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""Distance of clouds `x (*B, n, D)` from classes that `y (*B, P, D)` are rows of, and their width, `(*B)`.

    The energy distance is 2·E‖X − Y‖ − E‖X − X'‖ − E‖Y − Y'‖; the width is E‖X − X'‖. Both are divided by E‖Y − Y'‖.
    The distance is 0 where X has the distribution of Y and above 0 elsewhere (Székely and Rizzo 2013).

    >>> y = torch.randn(800, 20, generator=torch.Generator().manual_seed(0))
    >>> [round(float(energy_distance(x, y[400:])[0]), 1) for x in (y[:400], y[:1], 6 * y[:400])]
    [0.0, 1.0, 1.6]
    """
    origin = y.mean(dim=-2, keepdim=True)  # distances do not change, and rounding is least there
    x, y = x - origin, y - origin
    p = y.shape[-2]
    # Y stands for a class, whose rows are all different; X is the cloud itself, n points of equal weight.
    inside = torch.cdist(y, y).sum(dim=(-2, -1)) / (p * (p - 1))
    width = torch.cdist(x, x).mean(dim=(-2, -1))
    return (2 * torch.cdist(x, y).mean(dim=(-2, -1)) - width) / inside - 1, width / inside


def embed(clouds: Sequence[np.ndarray], seed: int, iterations: int = 1000) -> list[list[list[float]]]:
    """Points (P, D) of each cloud in a plane of its own by t-SNE, (P, 2)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    def one(points: np.ndarray) -> list[list[float]]:
        tsne = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init="pca", random_state=seed, max_iter=iterations)
        with threadpool_limits(1):  # OpenMP counts for each thread
            plane: np.ndarray = tsne.fit_transform(points.astype(np.float64))
        rounded: list[list[float]] = np.round(plane.astype(np.float64), 3).tolist()
        return rounded

    threads = torch.get_num_threads()  # which the limit hides
    with threadpool_limits(1):
        return list(in_parallel(one, clouds, threads))


def drawn_text(method: DC | GDC) -> str:
    """The setting of drawn points, less the head, which is not trained."""
    if isinstance(method, DC):
        return f"k={method.k}, α={method.alpha:g}, β={method.beta:g}; n={method.n} a class"
    return "; ".join(part for part in params_text(method.params).split("; ") if not part.endswith("head"))


# ---- figures 1 and 4 ------------------------------------------------------------------------------------------------


def tsne(case: Case) -> JSONObject:
    """Figures 1 and 4: two tasks of five novel classes, and scores over many tasks."""
    row = paper_params(case.dataset, 1)
    methods: dict[str, tuple[DC | GDC, FeatureSet]] = {"DC": (DC(), case.of.features)}
    for v in (PRINTED, MATCHED, UNIT_DRAWN):
        of = case.of.matched if v.matched else case.of
        methods[f"GDC, {v.name}"] = gdc(v.params(row)), of.features
    return tsne_data(methods, seed=case.budget.seed, scored=min(SCORED, case.budget.sampled))


def tsne_data(
    methods: Mapping[str, tuple[DC | GDC, FeatureSet]],
    *,
    seed: int = 0,
    tasks: Sequence[int] = (0, 1),
    spec: EpisodeSpec | None = None,
    shown: int = 150,
    scored: int = SCORED,
    split: str = "novel",
    iterations: int = 1000,
) -> JSONObject:
    """Support, samples and queries of some `tasks` in the plane, and `scored` tasks by their energy distance.

    Each method comes with its features and is seen in its own space. All points are scored; in the plane are `shown` of
    each class.
    """
    spec = replace(spec or EpisodeSpec(5, 1, 15), seed=seed)
    drawn: list[JSONObject] = [{"task": t, "class_names": [], "panels": {}} for t in tasks]
    nearness: dict[str, dict[str, list[float]]] = {}
    clouds: dict[tuple[int, str], np.ndarray] = {}
    for name, (method, features) in methods.items():
        base, rows = features.split("base"), features.split(split)
        method.prepare(BaseBank().fit(base.features, base.require_labels()))
        nearness[name] = _nearness(method, rows, spec, scored)
        for one in drawn:
            task = _Task(method, rows, spec, one["task"])
            one["class_names"] = [rows.classes[int(c)] for c in task.episode.classes[0]]
            clouds[one["task"], name], one["panels"][name] = task.panel(shown)
    planes = dict(zip(clouds, embed(list(clouds.values()), seed, iterations), strict=True))
    for one in drawn:
        for name, panel in one["panels"].items():
            panel["points"] = planes[one["task"], name]
    settings = {name: drawn_text(method) for name, (method, _) in methods.items()}
    return {"tasks": drawn, "nearness": nearness, "settings": settings, "shot": spec.shot, "shown": shown}


class _Task:
    """One task in the space of a method: support, then samples, of each class `(N, K + n, D)`; queries `(N, Q, D)`."""

    def __init__(self, method: DC | GDC, rows: FeatureSplit, spec: EpisodeSpec, task: int) -> None:
        self.method, self.rows, self.spec = method, rows, spec
        self.episode = sample_episodes(rows.require_labels(), spec, range(task, task + 1), rows.classes)
        labels = torch.arange(spec.way).repeat_interleave(spec.shot)[None]
        with torch.no_grad(), quiet():
            support = self.take(self.episode.support).view(1, spec.way * spec.shot, -1)
            x, y = method.calibrated(TaskBatch(support, labels, spec.way, TaskRandom(spec.seed, [task]))).points()
            self.points = torch.stack([x[0, y[0] == c] for c in range(spec.way)])  # the support comes first
            self.query = self.take(self.episode.query)[0].view(spec.way, spec.query, -1)

    def take(self, index: np.ndarray) -> Tensor:
        """Rows in the space of the method, `(*index.shape, D)`."""
        flat = np.asarray(self.rows.features[index.reshape(-1)], np.float32)
        return self.method.transform(torch.from_numpy(flat)).view(*index.shape, -1)

    def panel(self, shown: int) -> tuple[np.ndarray, JSONObject]:
        """Points of the task, with `shown` samples of each class at most, and the panel that lacks their places."""
        spec, x = self.spec, self.points
        own = _even(x.shape[1] - spec.shot, shown) + spec.shot
        some = torch.cat([x[:, : spec.shot], x[:, own]], dim=1)
        kinds = ["support"] * spec.shot + ["sample"] * len(own)
        cloud = torch.cat([some.flatten(0, 1), self.query.flatten(0, 1)]).numpy()
        order = torch.arange(spec.way)
        classes = torch.cat([order.repeat_interleave(some.shape[1]), order.repeat_interleave(spec.query)])
        every = kinds * spec.way + ["query"] * (spec.way * spec.query)
        return cloud, {"points": [], "classes": classes.tolist(), "kinds": every}


def _nearness(method: DC | GDC, rows: FeatureSplit, spec: EpisodeSpec, tasks: int) -> dict[str, list[float]]:
    """Per task: energy distance of support ∪ samples, its width, and the distance of the support alone."""
    labels = rows.require_labels()

    def one(number: int) -> tuple[float, ...]:
        task = _Task(method, rows, spec, number)
        held_out = [
            np.setdiff1d(np.flatnonzero(labels == c), own)
            for c, own in zip(task.episode.classes[0], task.episode.support[0], strict=True)
        ]
        size = min(MAX_ROWS, *map(len, held_out))
        real = task.take(np.stack([own[_even(len(own), size)] for own in held_out]))
        distance, width = energy_distance(task.points, real)
        alone, _ = energy_distance(task.points[:, : spec.shot], real)
        return tuple(round(float(v.mean()), 5) for v in (distance, width, alone))

    found = zip(*in_parallel(one, range(tasks)), strict=True)
    return dict(zip(("distance", "width", "support"), map(list, found), strict=True))


def _even(count: int, most: int) -> np.ndarray:
    """Indices of `most` of `count` things, evenly spaced."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def draw_tsne(data: Mapping[str, Any], place: int = 0) -> matplotlib.figure.Figure:
    """One of the tasks, a panel for each method, with the paper's markers."""
    task = data["tasks"][place]
    return figures.embedding_panels(task["panels"], task["class_names"])


def show_tsne(records: Records) -> Section:
    """Both figures, the scores, and whether the samples of GDC are nearer to their class and more compact than DC's."""
    section = Section()
    for place, record in records.items():
        rows = []
        dc = record["nearness"]["DC"]
        for name, one in record["nearness"].items():
            means = {key: float(np.mean(values)) for key, values in one.items()}
            rows.append(
                [name, *(f"{means[k]:.3f}" for k in ("distance", "width", "support")), record["settings"][name]]
            )
            for claim, key, word in (
                ("sampled points of GDC are closer to their class than those of DC", "distance", "energy distance"),
                ("clusters of sampled points are more compact than those of DC", "width", "mean distance of samples"),
            ):
                if name != "DC":
                    gain = paired(np.array(dc[key]), np.array(one[key]))
                    found = (
                        f"{word} {means[key]:.2f}, DC {np.mean(dc[key]):.2f} (difference {-gain.difference:+.2f} ± "
                        f"{gain.ci95:.2f}); the support alone: {means['support']:.2f} ({gain.n} tasks)"
                    ).replace("-", "−")
                    holds = gain.difference > 0 if abs(gain.difference) > gain.ci95 else None
                    variant = name.removeprefix("GDC, ")
                    section.verdicts.append(Verdict(claim, place.title, variant, found, holds))
        caption = (
            f"{place.title}, {record['shot']}-shot, {len(dc['distance'])} tasks: energy distance between support ∪ "
            "samples and held-out rows of the class (0: the class itself), and mean distance of samples. Both are in "
            "units of the mean distance between two rows of the class"
        )
        header = ["method", "energy distance", "width", "support alone", "setting"]
        section.blocks.append(Table(header, rows, caption))
        for at, number in zip(range(len(record["tasks"])), ("1", "4"), strict=False):
            words = (
                f"Figure {number} on {place.title}: task {record['tasks'][at]['task']}, each method in its own space. "
                f"Support points are + in a circle, sampled points o (at most {record['shown']} a class), queries *."
            )
            section.blocks.append(Picture(f"tsne-{place.name}-figure{number}", draw_tsne(record, at), words))
    return section


# ---- figure 2, right ------------------------------------------------------------------------------------------------


def drift(
    case: Case, *, row: GDCParams | None = None, shown: int = 100, measured: int = SCORED, iterations: int = 1000
) -> JSONObject:
    """Samples around the calibrated mean of a support point with k = 1, for DC's equal weight and rising m.

    `shown` points of each cloud are drawn; the moves are those of `measured` support points of different tasks.
    """
    row = (row or paper_params(case.dataset, 1)).with_changes(k=1)
    out: JSONObject = {"panels": {}, "moves": {}, "settings": {}, "constant": case.of.constant, "shown": shown}
    for variant in (PRINTED, MATCHED, UNIT_DRAWN):
        of = case.of.matched if variant.matched else case.of
        method = GDC(variant.params(row))
        # The first class of each task counts.
        x = support_batch(method, of, EpisodeSpec(2, 1, 1, case.budget.seed), measured).support[:, :1]
        out["settings"][variant.name] = drawn_text(method).replace(f"m={row.m:g}, ", "")
        out["moves"][variant.name] = _moves(method, x)
        out["panels"][variant.name] = _panel(method, x[:1], shown, case.budget.seed, iterations)
    return out


def _clouds(method: GDC, x: Tensor) -> dict[str, FactorGaussian]:
    """X' of support points `(T, 1, D)` with DC's weight, which is 1, and with each m."""
    out = {}
    with torch.no_grad(), quiet():
        for m in (None, *POWERS):
            weighting = replace(method.calibrator, equal=True) if m is None else replace(method.calibrator, m=m)
            found = weighting.calibrate(x)
            out["DC" if m is None else f"m = {m:g}"] = method.shrunk(found).gaussian(found.mean)
    return out


def _moves(method: GDC, x: Tensor) -> JSONObject:
    """Of support points: the part of the way to the base class that each mean moved, and what m = 0 and m = 1 share."""
    out: JSONObject = {"shift": {}, "overlap": [], "distance": []}
    for part in x.split(5):
        found = method.calibrator.calibrate(part)
        way = method.bank.means[found.index[:, 0, 0]] - part[:, 0]
        length = way.norm(dim=-1)
        along = way / length[:, None]
        places: dict[str, tuple[Tensor, Tensor]] = {}
        for name, cloud in _clouds(method, part).items():
            moved = ((cloud.mean - part)[:, 0] * along).sum(dim=-1)
            places[name] = moved, _deviation(cloud, along)
            out["shift"].setdefault(name, []).extend(_rounded(moved / length))
        zero, one = (map(NormalDist, *(v.tolist() for v in places[name])) for name in ("m = 0", "m = 1"))
        out["overlap"] += [round(a.overlap(b), 5) for a, b in zip(zero, one, strict=True)]
        out["distance"] += _rounded(found.distances[:, 0, 0])
    return out


def _deviation(cloud: FactorGaussian, along: Tensor) -> Tensor:
    """Standard deviation of clouds `(T, 1)` along unit vectors `(T, D)`: uᵀ(FᵀF + a·I + b·11ᵀ)u."""
    factor = cloud.factor.to(along.dtype)[:, 0] @ along[..., None]
    isotropic = torch.zeros_like(cloud.b) if cloud.a is None else cloud.a
    common = cloud.b[:, 0] * along.sum(dim=-1).square()
    return (factor.square().sum(dim=(-2, -1)) + isotropic[:, 0] + common).clamp(min=1e-30).sqrt()


def _rounded(values: Tensor) -> list[float]:
    return [round(float(v), 5) for v in values]


def _panel(method: GDC, x: Tensor, shown: int, seed: int, iterations: int) -> JSONObject:
    """The clouds of the support point `x (1, 1, D)` in the plane."""
    clouds = _clouds(method, x)
    points = [x[0].numpy()]
    with quiet():
        for i, cloud in enumerate(clouds.values()):
            drawn = cloud.sample(shown, TaskRandom(seed, [0], stream=i))[0, 0]
            points += [cloud.mean[0].numpy(), drawn.numpy()]
    [plane] = embed([np.concatenate(points)], seed, iterations)
    starts = {name: 1 + i * (1 + shown) for i, name in enumerate(clouds)}
    shares = {name: {"mean": plane[at], "points": plane[at + 1 : at + 1 + shown]} for name, at in starts.items()}
    return {"support": plane[0], "clouds": shares}


def show_drift(records: Records) -> Section:
    """The clouds, how far each mean went, and whether they lie where the paper has them."""
    section = Section()
    for place, data in records.items():
        panels = {name: (panel["clouds"], panel["support"]) for name, panel in data["panels"].items()}
        parts = []
        for name, moves in data["moves"].items():
            shift = {cloud: summarise(np.array(s)) for cloud, s in moves["shift"].items()}
            shared = summarise(np.array(moves["overlap"]))
            found = "; ".join(f"{cloud} {_percent(s)}" for cloud, s in shift.items())
            parts.append(
                f"{name} ({data['settings'][name]}; nearest base class at d = "
                f"{np.median(moves['distance']):.3g}): {found}"
            )
            section.verdicts += _judge_drift(place.title, name, shift, shared)
        words = (
            f"Figure 2, right, on {place.title}: {data['shown']} samples for one support point (+ in a circle) with "
            f"k = 1, and their means (*). At the paper's scale features are multiplied by {data['constant']:.4g}. "
            f"The part of the way to the nearest base class that the mean moved: {'. '.join(parts)}."
        )
        section.blocks.append(Picture(f"drift-{place.name}", figures.drifting_samples(panels), words))
    return section


def _judge_drift(where: str, variant: str, shift: Mapping[str, MeanAccuracy], shared: MeanAccuracy) -> list[Verdict]:
    """Whether the cloud of m = 4 is at the support point, those of DC and m = 0, 1 far from it, the last two mixed."""
    found = "the mean moved " + "; ".join(
        f"{name}: {_percent(shift[name])}" for name in ("DC", "m = 0", "m = 1", "m = 4")
    )
    far = [within(shift[name].mean, shift[name].ci95, FAR) for name in ("DC", "m = 0", "m = 1")]
    mixed = within(shared.mean, shared.ci95, OVERLAP)
    holds = {
        "with m = 4 the samples overlap with the support point": within(shift["m = 4"].mean, shift["m = 4"].ci95, NEAR),
        "samples of DC, m = 0 and m = 1 are far from the support point": (
            False if True in far else None if None in far else True
        ),
    }
    mass = f"m = 0 and m = 1 share {_percent(shared)} of their mass ({shared.n} support points)"
    return [
        *(Verdict(claim, where, variant, found, verdict) for claim, verdict in holds.items()),
        Verdict("samples of m = 0 and m = 1 overlap", where, variant, mass, None if mixed is None else not mixed),
    ]


def _percent(s: MeanAccuracy) -> str:
    return f"{100 * s.mean:.1f} ± {100 * s.ci95:.1f}%"


_NO_CONTROL = "none: about where sampled points lie; no classifier is trained"
_VARIANTS: tuple[Variant, ...] = (PRINTED, MATCHED, UNIT_DRAWN)
EXPERIMENTS = (
    Experiment(
        "tsne",
        "Support, sampled and query points",
        "Figures 1 and 4",
        "Sampled points of GDC are closer to the queries than those of DC, in more compact clusters.",
        tsne,
        show_tsne,
        ("mini",),
        (0,),
        elsewhere=True,
        variants=_VARIANTS,
        control=f"{_NO_CONTROL}. The support point alone stands beside",
        cost="2 min",
    ),
    Experiment(
        "drift",
        "Samples for rising m",
        "Figure 2, right",
        "With m = 4 the samples overlap with the support point; those of DC and m = 0, 1 are far from it and overlap.",
        drift,
        show_drift,
        ("mini2cub",),
        (0,),
        elsewhere=True,
        variants=_VARIANTS,
        control=_NO_CONTROL,
        cost="15 s",
    ),
)
