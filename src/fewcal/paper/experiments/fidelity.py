"""The fidelity study: what each question that the paper leaves open costs or brings, one at a time.

Three presets (`paper`, `authors`, `whitened`) are starting points; each question is answered otherwise than the preset
answers it, everything else unchanged, on the same tasks. `paper` and `authors` have the values of appendix F for the
dataset. They are studied at unit scale (centred, L2) in closed form, where they work on any features; questions that
only have a meaning at the features' own scale, with sampled points or with little shrinkage are asked there, and what
the paper says something about is asked of the printed setting too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypedDict

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import Method, TaskBatch
from fewcal.paper.blocks import Section, Table, Value, Verdict, accuracy_cell, gain_cell
from fewcal.paper.budget import EIGEN_TASKS, LARGEST, Case
from fewcal.paper.control import SupportOnly
from fewcal.paper.measured import Measured, difference, join, measure, points, quiet
from fewcal.paper.published import dataset_title
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.settings import PRINTED, UNIT_CLOSED, Group, gdc, paper_params, unit_scale
from fewcal.params import GDCParams
from fewcal.presets import get_preset

PRESETS = ("paper", "authors", "whitened")
# Where a question is asked: closed form at unit scale or at the features' own scale, or with points drawn.
UNIT, OWN, DRAWN = "unit scale", "own scale", "sampled, L-BFGS"
# The printed setting itself, of `paper` alone: SGD on 750 points a support point at the features' own scale.
AS_PRINTED = "as printed"
# With α1 in the thousands Σ'ₛ is almost a·I and Σ' hardly counts: questions about Σ' are asked once more where it does.
LITTLE = "unit scale, α1=α2=1"
# Points drawn where the question is about sampling.
_N = 200
YEO_JOHNSON, NOT_PSD = "Tukey or Yeo-Johnson", "Σ'ₛ not positive semi-definite"
ALONE = "support alone, "
# Support points of so many tasks tell how often b is clipped.
_CLIP_TASKS = 100
# Up to so many features the eigenvalues of every support point cost next to nothing on a CPU; on a GPU those of many
# small matrices take a hundred times as long as the rest.
_SMALL = 128


# What a parameter is changed to; "own" for α2/α1 takes the preset's α2 as it is.
Change: TypeAlias = str | float | bool


@dataclass(frozen=True)
class Answer:
    """One answer to a question: the change of parameters that makes it."""

    question: str
    answer: str
    change: Mapping[str, Change]
    at: str = UNIT


_CLASSES: dict[str, Change] = {
    "whiten": False,
    "trust": 1.0,
    "query_strength": 0.0,
    "alpha1": 100.0,
    "alpha2_ratio": 10.0,
    "cov_weights": "bases-only",
}

# For `paper` and `authors`: both answers of each question; that of the preset itself is the reference.
ANSWERS: tuple[Answer, ...] = (
    Answer("distance in the weight", "squared Euclidean", {"metric": "sqeuclidean"}),
    Answer("distance in the weight", "plain Euclidean", {"metric": "euclidean"}),
    *(
        answer
        for at in (UNIT, LITTLE)
        for answer in (
            Answer("weights of the covariance", "w/(1+Σw)", {"cov_weights": "with-support"}, at),
            Answer("weights of the covariance", "w/Σw", {"cov_weights": "bases-only"}, at),
            Answer("cov(X')", "joint", {"cov": "joint"}, at),
            Answer("cov(X')", "independent", {"cov": "independent"}, at),
            Answer("cov(X')", "pooled", {"cov": "pooled"}, at),
        )
    ),
    Answer("rows of a base class in cov(X')", "100", {"common_size": 100}, LITTLE),
    Answer("σ2, mean off-diagonal", "over D(D−1) entries", {"off_diagonal": "pairs"}),
    Answer("σ2, mean off-diagonal", "over D² entries", {"off_diagonal": "all"}),
    Answer("α2", "a number of its own, not times α1", {"alpha2_ratio": "own"}),
    Answer(YEO_JOHNSON, "Yeo-Johnson", {"kind": "yeo-johnson"}),
    Answer(YEO_JOHNSON, "Yeo-Johnson", {"kind": "yeo-johnson"}, AS_PRINTED),
    Answer("β = 0 and zeros", "log(x + 1e-6)", {"beta": 0.0, "eps": 1e-6}),
    Answer("β = 0 and zeros", "log(x + 0.01)", {"beta": 0.0, "eps": 1e-2}),
    Answer("k", "at most 10, as the script searched", {"k": 10}),
    Answer("base features Gaussianized", "yes", {"transform_base": True}, OWN),
    Answer("base features Gaussianized", "no", {"transform_base": False}, OWN),
    Answer("scale (the paper does not say)", "L2", {"l2": True, "transform_base": True}, OWN),
    Answer("scale (the paper does not say)", "centre + L2", {"center": True, "l2": True, "transform_base": True}, OWN),
    Answer("n", "per support point", {"n_per": "point"}, DRAWN),
    Answer("n", "per class", {"n_per": "class"}, DRAWN),
    Answer(NOT_PSD, "clip b", {"psd": "clip"}, DRAWN),
    Answer(NOT_PSD, "clip eigenvalues", {"psd": "eigen"}, DRAWN),
    Answer(NOT_PSD, "clip eigenvalues", {"psd": "eigen"}, AS_PRINTED),
    Answer("head", "closed form instead of sampled points", {"head": "closed_form"}, DRAWN),
)
# For `whitened`, which answers some of them by not asking: no α, no samples, one covariance for all.
DEFAULT_ANSWERS: tuple[Answer, ...] = (
    Answer("distance in the weight", "plain Euclidean", {"metric": "euclidean"}),
    Answer("distance in the weight", "in units of the bank", {"distance_scale_of": "bank", "distance_scale": 0.7}),
    Answer("cov(X')", "joint, α1=100, α2=10α1", {"cov": "joint", **_CLASSES}),
    Answer("cov(X')", "independent, α1=100, α2=10α1", {"cov": "independent", **_CLASSES}),
    Answer("power transform", "β=0.5", {"beta": 0.5}),
    Answer("scale (the paper does not say)", "no centring", {"center": False}),
    Answer("scale (the paper does not say)", "no L2", {"l2": False}),
    Answer("k", "2", {"k": 2}),
    Answer("k", "all base classes", {"k": 10**6}),
    Answer("weights of the mean", "m=0: every neighbour the same", {"m": 0.0}),
    Answer(
        "weights of the mean", "as printed (strength 1, for any number of shots)", {"strength": 1.0, "shot_decay": 0.0}
    ),
    Answer("beyond the paper", "trust in the bases not judged", {"trust": 1.0}),
    Answer("beyond the paper", "queries not calibrated", {"query_strength": 0.0}),
    Answer("beyond the paper", "no calibration at all", {"strength": 0.0, "query_strength": 0.0}),
)


def starting_point(preset: str, dataset: str, shot: int, at: str = UNIT) -> GDCParams:
    """The preset where a question is asked.

    >>> starting_point("authors", "cub", 1).l2, starting_point("authors", "cub", 1, OWN).l2
    (True, False)
    """
    if preset == "whitened":
        return get_preset("whitened")
    params = paper_params(dataset, shot, preset)
    if at == AS_PRINTED:
        return params
    if at == OWN:
        return params.with_changes(psd="clip", head="closed_form")
    if at == DRAWN:
        return unit_scale(params).with_changes(head="lbfgs", n=_N)
    if at == LITTLE:
        return unit_scale(params).with_changes(alpha1=1.0, alpha2_ratio=1.0)
    return unit_scale(params)


def answered(params: GDCParams, answer: Answer) -> GDCParams:
    """The parameters with one question answered this way."""
    change = dict(answer.change)
    if change.get("alpha2_ratio") == "own":
        change["alpha2_ratio"] = params.alpha2_ratio / max(params.alpha1, 1e-9)
    if change.get("k") == 10:
        change["k"] = min(params.k, 10)
    return params.with_changes(**change)


def variants(preset: str, dataset: str, shot: int, features: FeatureSet) -> list[tuple[Answer, GDCParams]]:
    """The answers other than the preset's own that can be told apart on these features, with their parameters."""
    base = features.split("base")
    smallest, dim = int(base.rows_per_class().min()), base.dimension
    negative = bool((base.features < 0).any())
    out = []
    for answer in DEFAULT_ANSWERS if preset == "whitened" else ANSWERS:
        start = starting_point(preset, dataset, shot, answer.at)
        change = answer.change
        if (
            ("n_per" in change and shot == 1)  # one point a class: both are the same
            or (answer.at == AS_PRINTED and preset != "paper")
            or (change.get("psd") == "eigen" and dim > LARGEST)
            or smallest <= float(change.get("common_size", -1))
            or (negative and ("kind" in change or change.get("beta") == 0.0))  # Yeo-Johnson it is, and no zeros
        ):
            continue
        params = answered(start, answer)
        if params != start:
            out.append((answer, params))
    return out


class Row(TypedDict):
    """One question answered otherwise than a preset answers it; `reference` and `variant` name what was measured."""

    preset: str
    question: str
    answer: str
    at: str
    reference: str
    variant: str


class FidelityRecord(Measured):
    """All variants and their references on the same novel tasks; how often b is clipped, by reference."""

    rows: list[Row]
    clipped: dict[str, float]


def fidelity(case: Case) -> FidelityRecord:
    """Every variant on the same novel tasks; nothing is chosen on them."""
    made: dict[str, tuple[GDCParams, int]] = {}
    rows: list[Row] = []
    clipped: dict[str, float] = {}
    for preset in PRESETS:
        for answer, params in variants(preset, case.dataset, case.shot, case.features):
            reference, name = f"{preset}, {answer.at}", f"{preset}, {answer.at}: {answer.question}: {answer.answer}"
            start = starting_point(preset, case.dataset, case.shot, answer.at)
            if answer.question == NOT_PSD:
                clipped[reference] = clipped_share(start, case)
                if clipped[reference] == 0:  # both answers are the same distribution
                    continue
            tasks = _tasks(case, params, answer.at)
            made[reference] = (start, max(tasks, made[reference][1] if reference in made else 0))
            made[name] = (params, tasks)
            rows.append(_row(preset, answer.question, answer.answer, answer.at, name))
    parts = []
    for group in _groups(made):
        methods: dict[str, Method] = {name: gdc(made[name][0]) for name in group}
        parts.append(measure(methods, case, made[group[0]][1]))
    for at in (UNIT, AS_PRINTED):
        if f"paper, {at}" in made:
            start, tasks = made[f"paper, {at}"]
            parts.append(measure({ALONE + at: SupportOnly(start)}, case, tasks))
    if case.dataset == "dogs" and len(case.features.split("base").classes) > 30:
        # "30 or 70": the paper's text has both numbers of base classes for Stanford Dogs.
        few_bases = replace(case, features=_first_classes(case.features, 30))
        for preset in PRESETS:
            name = f"{preset}: base classes: 30"
            start = starting_point(preset, case.dataset, case.shot)
            parts.append(measure({name: gdc(start)}, few_bases, case.study_tasks))
            rows.append(_row(preset, "base classes of Stanford Dogs", "30 of 70", UNIT, name))
    return {**join(*parts), "rows": rows, "clipped": clipped}


def _row(preset: str, question: str, answer: str, at: str, variant: str) -> Row:
    return {
        "preset": preset,
        "question": question,
        "answer": answer,
        "at": at,
        "reference": f"{preset}, {at}",
        "variant": variant,
    }


def _tasks(case: Case, params: GDCParams, at: str) -> int:
    """Tasks of a variant: fewer where points are drawn, and where eigenvalues of large matrices are taken."""
    tasks = case.study_tasks
    if at == AS_PRINTED:
        tasks = case.sgd_tasks(study=True)
    elif at == DRAWN:
        tasks = min(tasks, case.budget.sampled)
    cheap = case.device == "cpu" and case.features.dimension <= _SMALL
    eigen = params.psd == "eigen" and params.trainer.samples and not cheap
    return min(tasks, EIGEN_TASKS if case.spares_nothing else case.budget.sgd) if eigen else tasks


def clipped_share(params: GDCParams, case: Case) -> float:
    """The share of support points of novel tasks whose Σ'ₛ is not positive semi-definite as asked: b is clipped."""
    method = gdc(params.with_changes(psd="eigen"))  # leaves a and b as asked
    method.prepare(case.evaluations.bank(case.features))
    rows = case.features.split("novel")
    tasks = min(_CLIP_TASKS, case.budget.tasks)
    spec = EpisodeSpec(5, case.shot, 1, case.budget.seed)
    index = sample_episodes(rows.require_labels(), spec, range(tasks), rows.classes).support
    x = method.transform(torch.from_numpy(np.asarray(rows.features[index.reshape(-1)], np.float32)))
    labels = torch.arange(5).repeat_interleave(case.shot).expand(tasks, -1)
    batch = TaskBatch(x.view(tasks, -1, x.shape[1]), labels, 5, TaskRandom(spec.seed, range(tasks)))
    with torch.no_grad(), quiet():
        found = method.shrunk(method.calibration(batch))
    assert found.a is not None
    diagonal = found.a + found.b
    outside = (found.b > diagonal) | (found.b < -diagonal / max(x.shape[1] - 1, 1))
    return float(outside.float().mean())


def _groups(made: Mapping[str, tuple[GDCParams, int]]) -> list[list[str]]:
    """Variants that share a space and a number of tasks are run together: one bank, and not too many at once."""
    groups: dict[Hashable, list[str]] = {}
    for name, (p, tasks) in made.items():
        groups.setdefault((tasks, *p.space.values()), []).append(name)
    return list(groups.values())


def _first_classes(features: FeatureSet, count: int) -> FeatureSet:
    base = features.split("base")
    keep = base.require_labels() < count
    cut = FeatureSplit.from_arrays(base.features[keep], base.require_labels()[keep], base.classes[:count])
    return FeatureSet(cut, features.val, features.novel)


def show_fidelity(records: Records[FidelityRecord]) -> Section:
    """For each preset, a row an answer: the difference to the preset on each feature set."""
    shown = Section()
    columns = list(records)
    titles = [f"{dataset_title(d)}, {s}-shot" for d, s in columns]
    for preset in PRESETS:
        places = [
            at
            for at in (AS_PRINTED, UNIT, LITTLE, OWN, DRAWN)
            if any(f"{preset}, {at}" in r["correct"] for r in records.values())
        ]
        start: list[list[Value]] = [
            [
                f"`{preset}`, {at}" if preset != "whitened" else "`whitened`",
                *(_level(records[c], f"{preset}, {at}") for c in columns),
            ]
            for at in places
        ]
        shown.blocks.append(Table(["starting point", *titles], start, f"`{preset}`: where it starts, accuracy in %"))
        keys = dict.fromkeys(
            (r["question"], r["answer"], r["at"]) for c in columns for r in records[c]["rows"] if r["preset"] == preset
        )
        rows: list[list[Value]] = []
        for question, answer, at in keys:
            place = f" ({at})" if at != UNIT else ""
            cells = [_change(records[c], preset, question, answer, at) for c in columns]
            rows.append([question, answer + place, *cells])
        shown.blocks.append(
            Table(
                ["question", "answered instead", *titles],
                rows,
                f"`{preset}`: what each other answer brings, points, paired, 95% half-width; ▲ and ▼ are beyond it",
            )
        )
    tasks = sorted({len(v) for r in records.values() for v in r["correct"].values()}, reverse=True)
    many = sum(len(r["rows"]) for r in records.values())
    shown.blocks.append(
        f"{many} comparisons on {', '.join(map(str, tasks))} tasks each: about {max(1, round(0.05 * many))} of them "
        "would lie beyond their interval by chance alone. – where the question does not arise: both answers are the "
        "same (one shot, signed features, a Σ'ₛ that is never clipped, the preset's own answer) or it would take too "
        "long (eigenvalues for large D)."
    )
    shown.blocks += [_clip_words(records), _largest(records)]
    for (dataset, shot), record in records.items():
        shown.verdicts += _verdicts(record, f"{dataset_title(dataset)}, {shot}-shot")
    return shown


def _verdicts(record: FidelityRecord, where: str) -> list[Verdict]:
    """Whether Tukey's ladder is above Yeo-Johnson where features are not negative."""
    groups: dict[str, tuple[Group, str]] = {
        AS_PRINTED: (PRINTED.group, PRINTED.name),
        UNIT: (UNIT_CLOSED.group, UNIT_CLOSED.name),
    }
    out = []
    for row in record["rows"]:
        if row["preset"] == "paper" and row["question"] == YEO_JOHNSON:
            group, name = groups[row["at"]]
            gain = difference(record, row["reference"], row["variant"])
            control = difference(record, row["reference"], ALONE + row["at"])
            claim = "Tukey's ladder of powers is above Yeo-Johnson"
            out.append(Verdict.of(claim, f"{where}, {name}", gain, group, control))
    return out


def _clip_words(records: Records[FidelityRecord]) -> str:
    """In words: on which features the question of a Σ'ₛ that is no covariance arises."""
    told = [
        f"{dataset_title(d)} {s}-shot, `{reference}`: {100 * share:.0f}%"
        for (d, s), record in records.items()
        for reference, share in record["clipped"].items()
        if share > 0
    ]
    where = "; ".join(told) or "no features that were asked"
    return (
        "Support points whose Σ'ₛ is not positive semi-definite with the α2 asked for: "
        f"{where}. Everywhere else b is never clipped, and both answers to that question draw from one distribution."
    )


def _level(record: FidelityRecord, name: str) -> Value:
    if name not in record["correct"]:
        return None
    return accuracy_cell(record, name, title=f"{len(record['correct'][name])} tasks")


def _change(record: FidelityRecord, preset: str, question: str, answer: str, at: str) -> Value:
    for row in record["rows"]:
        if (row["preset"], row["question"], row["answer"], row["at"]) == (preset, question, answer, at):
            return gain_cell(difference(record, row["variant"], row["reference"]))
    return None


def _largest(records: Records[FidelityRecord]) -> str:
    """In words: the questions of `paper` and `authors` that move accuracy most, up or down, over feature sets."""
    moved: dict[str, list[float]] = {}
    for record in records.values():
        for row in record["rows"]:
            if row["preset"] != "whitened":
                gain = difference(record, row["variant"], row["reference"])
                moved.setdefault(f"{row['question']}: {row['answer']} ({row['at']})", []).append(gain.difference)
    order = sorted(moved.items(), key=lambda item: -float(np.mean(np.abs(item[1]))))
    told = "; ".join(f"{name}: {points(min(v))} to {points(max(v))}" for name, v in order[:5])
    return f"What moves `paper` and `authors` most, in points, lowest and highest of the columns that have it: {told}."


EXPERIMENTS = (
    Experiment(
        "fidelity",
        "What the paper leaves open: every choice, one at a time",
        "beyond the paper",
        "Every choice that the paper leaves open is answered otherwise than a preset answers it, one at a time.",
        fidelity,
        show_fidelity,
        cost="13 min",
    ),
)
