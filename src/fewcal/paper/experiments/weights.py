"""Tables 8 and 9 and figure 5 (appendix H): the weights of the k base classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.features import FeatureSet
from fewcal.methods import TaskBatch
from fewcal.paper.blocks import Picture, Section, Table, Value, Verdict
from fewcal.paper.budget import WHOLE, Case
from fewcal.paper.evaluations import Evaluations
from fewcal.paper.published import WeightList, dataset_title, published
from fewcal.paper.registry import Experiment, Figure, Records
from fewcal.paper.sampled import times_smaller
from fewcal.paper.settings import PRINTED, UNIT_SCALE, gdc, paper_params
from fewcal.params import GDCParams
from fewcal.render import Cell, figures

if TYPE_CHECKING:
    import matplotlib.figure

VARIANTS = (PRINTED, UNIT_SCALE)
SHOTS = (1, 5)
# "At least an order of magnitude"; "100 times smaller", where the paper's own tables have 132 and 74; DC's 1/(k + 1).
_ORDER, _HUNDRED, _DC_SHARE = 10, 30, 1 / 3


class WeightsData(TypedDict):
    """Shares of the base classes by "N-shot": all of them, their means nearest first, DC's constant share."""

    panels: dict[str, list[float]]
    means: dict[str, list[float]]
    dc: float
    tasks: int


class WeightsRecord(TypedDict):
    """The weights with each variant, and its setting in words by "N-shot"."""

    variants: dict[str, WeightsData]
    settings: dict[str, dict[str, str]]


def weights_data(
    features: FeatureSet,
    *,
    seed: int = 0,
    tasks: int = 50,
    shots: Sequence[int] = SHOTS,
    params: GDCParams | Mapping[int, GDCParams] | None = None,
    dc_k: int = 2,
    split: str = "novel",
    evaluations: Evaluations | None = None,
) -> WeightsData:
    """Shares w_i/(1+Σw) of the k base classes, of every support point of many tasks; the paper's lists are their means.

    `params` may differ by the number of shots, as in the paper; by default they are its rows for miniImageNet.
    """
    params = params or {shot: paper_params("mini", shot) for shot in shots}
    bank = (evaluations or Evaluations()).bank(features)
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
        means[f"{shot}-shot"] = [float(f"{v:.4g}") for v in share.mean(dim=0).tolist()]
    return {"panels": panels, "means": means, "dc": round(1 / (1 + dc_k), 4), "tasks": tasks}


def draw_weights(data: WeightsData) -> matplotlib.figure.Figure:
    """A histogram for each number of shots, with DC's constant share."""
    return figures.weight_histograms(data["panels"], {f"DC: {data['dc']:.2f}": data["dc"]})


def say_weights(data: WeightsData) -> str:
    """The nearest, the farthest, and DC."""
    parts = [f"{name}: {m[0]:.2g} to {m[-1]:.2g} for {len(m)} base classes" for name, m in data["means"].items()]
    return (
        f"{data['tasks']} tasks. Mean share, nearest to farthest: {'; '.join(parts)}. DC gives each {data['dc']:.2f}."
    )


def merge_weights(sets: Mapping[str, WeightsData]) -> WeightsData:
    """The weights of several feature sets in one figure, a row for each, as the paper's figure 5 has them."""
    first = next(iter(sets.values()))
    return {
        "panels": {f"{s}, {k}": v for s, data in sets.items() for k, v in data["panels"].items()},
        "means": {f"{s}, {k}": v for s, data in sets.items() for k, v in data["means"].items()},
        "dc": first["dc"],
        "tasks": first["tasks"],
    }


def weights(case: Case) -> WeightsRecord:
    """Shares w_i/(1+Σw) of the base classes with the published rows, 1 and 5 shots, as printed and at unit scale."""
    out: WeightsRecord = {"variants": {}, "settings": {}}
    tasks = min(50, case.budget.tasks)
    for variant in VARIANTS:
        rows = {shot: variant.params(paper_params(case.dataset, shot)) for shot in SHOTS}
        out["variants"][variant.name] = weights_data(
            case.features,
            seed=case.budget.seed,
            tasks=tasks,
            shots=SHOTS,
            params=rows,
            evaluations=case.evaluations,
        )
        out["settings"][variant.name] = {f"{shot}-shot": weights_text(p) for shot, p in rows.items()}
    return out


def weights_text(p: GDCParams) -> str:
    """What the weights depend on, in words.

    >>> weights_text(paper_params("mini", 5))
    'm=3, k=30, β=0.5, features at their own scale'
    """
    return f"m={p.m:g}, k={p.k}, β={p.beta}, {'centred unit vectors' if p.l2 else 'features at their own scale'}"


# ---- showing --------------------------------------------------------------------------------------------------------


def show_weights(records: Records[WeightsRecord]) -> Section:
    """The paper's lists beside ours, nearest base class first; then figure 5, meta-tieredImageNet on top."""
    section = Section()
    found = {dataset: record for (dataset, _), record in records.items()}
    for dataset, record in found.items():
        rows: list[list[Value]] = []
        for shot in SHOTS:
            for row in _cited(dataset, shot):
                rows.append(
                    [f"{row['method']} (paper), {shot}-shot", Cell(_numbers(row["values"]), mark="cited"), None]
                )
            for name, data in record["variants"].items():
                values = _numbers(data["means"][f"{shot}-shot"])
                rows.append([f"GDC, {shot}-shot, {name}", values, record["settings"][name][f"{shot}-shot"]])
        tasks = next(iter(record["variants"].values()))["tasks"]
        caption = f"{dataset_title(dataset)}: mean share of each of the k base classes, {tasks} tasks (the paper: 5)"
        section.blocks.append(Table(["method", "w_i/(1 + Σw), nearest first", "setting"], rows, caption))
    order: list[str] = [d for d in ("meta-tiered", "mini") if d in found]
    order = order or list(found)
    for variant in VARIANTS:
        sets = {dataset_title(d): found[d]["variants"][variant.name] for d in order}
        settings = "; ".join(
            f"{dataset_title(d)}, {shot} ({text})"
            for d in order
            for shot, text in found[d]["settings"][variant.name].items()
        )
        merged = merge_weights(sets)
        words = f"Figure 5, {variant.name}: {settings}. {say_weights(merged)}"
        stem = f"weights-{variant.name.replace(' ', '-')}"
        section.blocks.append(Picture(stem, draw_weights(merged), f"Histograms of the weights. {words}", words))
    section.verdicts += judge(found)
    section.blocks.append(
        "The paper's own tables 8 and 9 have mean shares "
        + " and ".join(f"{_printed_ratio(shot):.0f} times ({shot}-shot)" for shot in SHOTS)
        + " larger on miniImageNet than on meta-tieredImageNet, while its caption of figure 5 says at least ten times."
    )
    return section


def judge(found: Mapping[str, WeightsRecord]) -> list[Verdict]:
    """How many times smaller the weights of meta-tieredImageNet are than those of miniImageNet, and than DC's."""
    to_mini = f"weights on meta-tieredImageNet are at least {_ORDER} times smaller than on miniImageNet"
    to_dc = f"weights on meta-tieredImageNet are of the order of a hundred times ({_HUNDRED} or more) smaller than DC's"
    if absent := " and ".join(dataset_title(d) for d in ("meta-tiered", "mini") if d not in found):
        words = f"no features of {absent} were given"
        return [Verdict(c, dataset_title("meta-tiered"), words, None, PRINTED.group) for c in (to_mini, to_dc)]
    out = []
    for variant in VARIANTS:
        for shot in SHOTS:
            meta, mini = (_log_shares(found[d]["variants"][variant.name], shot) for d in ("meta-tiered", "mini"))
            where = f"{dataset_title('meta-tiered')}, {shot}-shot, {variant.name}"
            dc = np.array([math.log10(_DC_SHARE)])
            out.append(Verdict(to_mini, where, *times_smaller(meta, mini, _ORDER), variant.group))
            out.append(Verdict(to_dc, where, *times_smaller(meta, dc, _HUNDRED), variant.group))
    return out


def _log_shares(data: WeightsData, shot: int) -> np.ndarray:
    """log₁₀ of the mean share of each task, `(T,)`."""
    share = np.asarray(data["panels"][f"{shot}-shot"], float).reshape(data["tasks"], -1)
    return np.log10(np.maximum(share.mean(axis=1), 1e-30))


def _cited(dataset: str, shot: int) -> list[WeightList]:
    return [r for r in published()["weights"]["rows"] if (r["dataset"], r["shot"]) == (dataset, shot)]


def _printed_ratio(shot: int) -> float:
    """How many times larger the paper's mean share on miniImageNet is than that on meta-tieredImageNet."""
    mini, meta = (
        np.mean(next(r["values"] for r in _cited(d, shot) if r["method"] == "GDC")) for d in ("mini", "meta-tiered")
    )
    return float(mini / meta)


def _numbers(values: Sequence[float]) -> str:
    """Numbers with four decimals, as the paper has them, or two significant digits where that would be zero.

    >>> _numbers([0.1008, 0.00003])
    '0.1008, 3e-05'
    """
    return ", ".join(f"{v:.4f}" if v >= 5e-4 else f"{v:.2g}" for v in values)


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
        variants=VARIANTS,
        control="none: about weights of base classes; no classifier is trained",
    ),
)
