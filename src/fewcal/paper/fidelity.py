"""What the paper leaves open: every choice answered otherwise than a preset answers it, one at a time.

`paper` and `authors` are the starting points, with the row of table 7 for the dataset. They are studied in closed form
at unit scale, where they work on any features. Questions that only have a meaning at the features' own scale, with
drawn points or with little shrinkage are studied there; what the paper makes a statement about, as printed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from fewcal.episodes import EpisodeSpec
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.paper.control import SupportAlone
from fewcal.paper.measure import Case, Plan, quiet, support_batch
from fewcal.paper.sets import Features
from fewcal.paper.settings import ALONE, PRINTED, UNIT, gdc, paper_params
from fewcal.paper.statements import Claim
from fewcal.paper.tables import RowTable
from fewcal.params import GDCParams

PRESETS = ("paper", "authors")
# Where a question is studied. With α1 in the thousands Σ'ₛ is almost a·I, so questions about Σ' are asked with little
# shrinkage too.
OWN, DRAWN, LITTLE = "own scale, closed form", "unit scale, L-BFGS on points", "unit scale, α1 = α2 = 1"
START = "the preset itself"
YEO_JOHNSON, NOT_PSD = "Yeo-Johnson in place of Tukey", "Σ'ₛ not positive semi-definite"
BASES_OF_DOGS = "30 of 70 base classes of Stanford Dogs"
# Points drawn where the question is about sampling; tasks whose support points show how often b is clipped; features up
# to which eigenvalues for every support point are taken.
DRAWN_N, CLIP_TASKS, MAX_EIGEN = 200, 100, 128
FEW_BASES = 30

Change: TypeAlias = str | float | bool


@dataclass(frozen=True)
class Answer:
    """An answer to a question: the change of parameters that makes it, and where it is studied."""

    question: str
    change: Mapping[str, Change]
    at: str = UNIT.name


def _both(question: str, change: Mapping[str, Change]) -> tuple[Answer, Answer]:
    return Answer(question, change), Answer(question, change, LITTLE)


# Both answers of each question; the preset's own is left out.
ANSWERS: tuple[Answer, ...] = (
    Answer("distance in the weight: squared Euclidean", {"metric": "sqeuclidean"}),
    Answer("distance in the weight: plain Euclidean", {"metric": "euclidean"}),
    *_both("weights of the covariance: w/(1+Σw)", {"cov_weights": "with-support"}),
    *_both("weights of the covariance: w/Σw", {"cov_weights": "bases-only"}),
    *_both("cov(X'): joint", {"cov": "joint"}),
    *_both("cov(X'): independent", {"cov": "independent"}),
    *_both("cov(X'): pooled", {"cov": "pooled"}),
    Answer("100 rows of a base class in cov(X')", {"common_size": 100}, LITTLE),
    Answer("σ2 over D(D−1) entries", {"off_diagonal": "pairs"}),
    Answer("σ2 over D² entries", {"off_diagonal": "all"}),
    Answer("α2 as a number of its own, not times α1", {"alpha2_ratio": "own"}),
    Answer(YEO_JOHNSON, {"kind": "yeo-johnson"}),
    Answer(YEO_JOHNSON, {"kind": "yeo-johnson"}, PRINTED.name),
    Answer("β = 0: log(x + 1e-6)", {"beta": 0.0, "eps": 1e-6}),
    Answer("β = 0: log(x + 0.01)", {"beta": 0.0, "eps": 1e-2}),
    Answer("k up to 10, as the script searched", {"k": 10}),
    Answer("base features Gaussianized", {"transform_base": True}, OWN),
    Answer("base features not Gaussianized", {"transform_base": False}, OWN),
    Answer("L2 after the power transform", {"l2": True, "transform_base": True}, OWN),
    Answer("centre and L2 after the power transform", {"center": True, "l2": True, "transform_base": True}, OWN),
    Answer("n points a support point", {"n_per": "point"}, DRAWN),
    Answer("n points a class", {"n_per": "class"}, DRAWN),
    Answer(f"{NOT_PSD}: clip b", {"psd": "clip"}, DRAWN),
    Answer(f"{NOT_PSD}: clip eigenvalues", {"psd": "eigen"}, DRAWN),
    Answer(f"{NOT_PSD}: clip eigenvalues", {"psd": "eigen"}, PRINTED.name),
    Answer("closed form in place of drawn points", {"head": "closed_form"}, DRAWN),
)


def starting_point(preset: str, dataset: str, shot: int, at: str = UNIT.name) -> GDCParams:
    """The preset where a question is studied.

    >>> starting_point("authors", "cub", 1).l2, starting_point("authors", "cub", 1, OWN).l2
    (True, False)
    """
    params = paper_params(dataset, shot, preset)
    if at == PRINTED.name:
        return params
    if at == OWN:
        return params.with_changes(psd="clip", head="closed_form")
    unit = UNIT.params(params)
    if at == DRAWN:
        return unit.with_changes(head="lbfgs", n=DRAWN_N)
    return unit.with_changes(alpha1=1.0, alpha2_ratio=1.0) if at == LITTLE else unit


def answered(params: GDCParams, change: Mapping[str, Change]) -> GDCParams:
    """The parameters with one question answered this way."""
    change = dict(change)
    if change.get("alpha2_ratio") == "own":
        change["alpha2_ratio"] = params.alpha2_ratio / max(params.alpha1, 1e-9)
    if change.get("k") == 10:
        change["k"] = min(params.k, 10)
    return params.with_changes(**change)


def answers(preset: str, dataset: str, shot: int, features: FeatureSet) -> list[tuple[Answer, GDCParams]]:
    """The answers other than the preset's own that differ from it on these features, with their parameters."""
    base = features.split("base")
    smallest, negative = int(base.rows_per_class().min()), bool((base.features < 0).any())
    out = []
    for answer in ANSWERS:
        change = answer.change
        if (
            ("n_per" in change and shot == 1)  # one point a class: both are the same
            or (answer.at == PRINTED.name and preset != "paper")
            or (change.get("psd") == "eigen" and base.dimension > MAX_EIGEN)
            or smallest <= float(change.get("common_size", -1))
            or (negative and ("kind" in change or change.get("beta") == 0.0))  # Yeo-Johnson it is, and no zeros
        ):
            continue
        start = starting_point(preset, dataset, shot, answer.at)
        params = answered(start, change)
        if params != start:
            out.append((answer, params))
    return out


def fidelity(case: Case) -> Plan:
    """Every answer beside the preset itself, on the same novel tasks."""
    plan = Plan(case.of)
    clipped: dict[str, float] = {}
    for preset in PRESETS:
        for answer, params in answers(preset, case.dataset, case.shot, case.of.features):
            where = answer.at if preset == "paper" else f"{preset}, {answer.at}"
            start = starting_point(preset, case.dataset, case.shot, answer.at)
            if answer.question.startswith(NOT_PSD):
                clipped[where] = clipped_share(start, case)
                if clipped[where] == 0:  # both answers are the same distribution
                    continue
            variant = replace(PRINTED, name=where)
            if not any(row.key == f"{where}: {START}" for row in plan.rows):
                plan.add(variant, START, gdc(start))
                plan.add(variant, ALONE, SupportAlone(start))
            plan.add(variant, answer.question, gdc(params))
        if case.dataset == "dogs" and len(case.of.features.split("base").classes) > FEW_BASES:
            where = UNIT.name if preset == "paper" else f"{preset}, {UNIT.name}"
            start = starting_point(preset, case.dataset, case.shot)
            plan.add(replace(PRINTED, name=where), BASES_OF_DOGS, gdc(start), of=first_bases(case.of))
    plan.notes = [
        f"with {where}, Σ'ₛ is not positive semi-definite for {100 * share:.0f}% of support points"
        for where, share in clipped.items()
    ]
    return plan


def clipped_share(params: GDCParams, case: Case) -> float:
    """The share of support points of novel tasks whose Σ'ₛ is not positive semi-definite with the α2 of the params."""
    method = gdc(params.with_changes(psd="eigen"))  # leaves a and b as they are
    spec = EpisodeSpec(5, case.shot, 1, case.budget.seed)
    batch = support_batch(method, case.of, spec, min(CLIP_TASKS, case.budget.tasks))
    with torch.no_grad(), quiet():
        found = method.shrunk(method.calibration(batch))
    assert found.a is not None
    diagonal = found.a + found.b
    outside = (found.b > diagonal) | (found.b < -diagonal / max(batch.support.shape[-1] - 1, 1))
    return float(outside.float().mean())


def first_bases(of: Features, count: int = FEW_BASES) -> Features:
    """The features with the first base classes alone: the paper's text has 30 and 70 for Stanford Dogs."""
    base = of.features.split("base")
    keep = base.require_labels() < count
    cut = FeatureSplit.from_arrays(base.features[keep], base.require_labels()[keep], base.classes[:count])
    return replace(of, features=FeatureSet(cut, of.features.val, of.features.novel))


def _claims(dataset: str, shot: int) -> list[Claim]:
    return [Claim("Tukey's ladder of powers is above Yeo-Johnson", (START,), (YEO_JOHNSON,))]


EXPERIMENTS = (
    RowTable(
        fidelity,
        _claims,
        ALONE,
        START,
        levels=False,
        words="– where both answers are the same (one shot, signed features, a Σ'ₛ that is never clipped, the preset's "
        "own answer) or eigenvalues would take too long. Of so many comparisons one in twenty lies beyond its interval "
        "by chance.",
    ).experiment(
        "fidelity",
        "What the paper leaves open, one choice at a time",
        "Beyond the paper",
        "Nothing: every choice that the paper leaves open is answered otherwise, one at a time.",
        variants=(PRINTED, UNIT),
        cost="15 min",
    ),
)
