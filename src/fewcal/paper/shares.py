"""Tables 8 and 9 with figure 5 (weights of the base classes), figure 2 left, and off-diagonal covariances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fewcal._utils.types import JSONObject
from fewcal.calibrate import weights_from_distances
from fewcal.covariance.calibrated import CalibratedCovariance, shares
from fewcal.episodes import EpisodeSpec
from fewcal.evaluation.stats import summarise
from fewcal.gaussianize import fit_gaussianization
from fewcal.paper.blocks import Experiment, Picture, Place, Records, Section, Table, cited_cell
from fewcal.paper.measure import Case, support_batch
from fewcal.paper.published import DATASETS, published
from fewcal.paper.settings import MATCHED, PRINTED, UNIT, gdc, paper_params
from fewcal.paper.statements import Verdict, within
from fewcal.params import GDCParams
from fewcal.render import Cell, figures

SHOTS = (1, 5)
VARIANTS = (PRINTED, MATCHED, UNIT)
# Support points of so many tasks.
TASKS = 50
# "At least an order of magnitude"; "100 times smaller", where the paper's own tables have 132 and 74; DC's 1/(k + 1).
ORDER, HUNDRED, DC_SHARE = 10, 30, 1 / 3
# Two orders of magnitude.
OFF_DIAGONAL = 0.01


# ---- weights --------------------------------------------------------------------------------------------------------


def weights(case: Case) -> JSONObject:
    """Shares w_i/(1+Σw) of the k base classes for each support point of many tasks, by variant and shots."""
    tasks = min(TASKS, case.budget.tasks)
    found_shares: dict[str, dict[str, list[float]]] = {}
    for variant in VARIANTS:
        of = case.of.matched if variant.matched else case.of
        found_shares[variant.name] = {}
        for shot in SHOTS:
            method = gdc(variant.params(paper_params(case.dataset, shot)))
            batch = support_batch(method, of, EpisodeSpec(5, shot, 1, case.budget.seed), tasks)
            with torch.no_grad():
                normalised = method.calibration(batch).normalised.flatten().tolist()
            found_shares[variant.name][str(shot)] = [float(f"{v:.4g}") for v in normalised]
    return {"shares": found_shares, "tasks": tasks, "constant": case.of.constant}


def _means(record: Mapping[str, Any], variant: str, shot: int) -> np.ndarray:
    """Mean share of each neighbour, nearest first."""
    rows = record["tasks"] * 5 * shot
    return np.asarray(record["shares"][variant][str(shot)]).reshape(rows, -1).mean(axis=0)


def show_weights(records: Records) -> Section:
    """The paper's lists beside ours, nearest base class first; then figure 5, meta-tieredImageNet on top."""
    section = Section()
    for place, record in records.items():
        rows: list[list[Any]] = []
        for shot in SHOTS:
            for method in ("GDC", "DC"):
                if values := published()["weights"][method].get(f"{place.dataset}/{shot}"):
                    rows.append([f"{method} (paper), {shot}-shot", Cell(_numbers(values), mark="cited"), None])
            for variant in VARIANTS:
                params = variant.params(paper_params(place.dataset, shot))
                values = _numbers(_means(record, variant.name, shot))
                rows.append([f"GDC, {shot}-shot, {variant.name}", values, weights_text(params)])
        caption = (
            f"{place.title}: mean share of each of the k base classes, {record['tasks']} tasks (the paper: 5); at the "
            f"paper's scale features are multiplied by {record['constant']:.4g}"
        )
        section.blocks.append(Table(["method", "w_i/(1 + Σw), nearest first", "setting"], rows, caption))
    order = sorted(records, key=lambda place: ("meta-tiered", "mini").index(place.dataset) if _named(place) else 9)
    for variant in VARIANTS:
        panels = {
            f"{place.title}, {shot}-shot": records[place]["shares"][variant.name][str(shot)]
            for place in order[:4]
            for shot in SHOTS
        }
        figure = figures.weight_histograms(panels, {f"DC: {DC_SHARE:.2f}": DC_SHARE})
        caption = f"Figure 5, {variant.name}: histograms of the weights. DC gives each base class {DC_SHARE:.2f}."
        section.blocks.append(Picture(f"weights-{variant.name.replace(' ', '-')}", figure, caption))
    section.verdicts += judge_weights(records)
    section.blocks.append(
        "The paper's own tables 8 and 9 have mean shares "
        + " and ".join(f"{_printed_ratio(shot):.0f} times ({shot}-shot)" for shot in SHOTS)
        + " larger on miniImageNet than on meta-tieredImageNet, while its caption of figure 5 has at least ten times."
    )
    return section


def _named(place: Place) -> bool:
    return place.dataset in ("meta-tiered", "mini")


def weights_text(p: GDCParams) -> str:
    """What the weights depend on.

    >>> weights_text(paper_params("mini", 5))
    'm=3, k=30, β=0.5, features at their own scale'
    """
    return f"m={p.m:g}, k={p.k}, β={p.beta}, {'centred unit vectors' if p.l2 else 'features at their own scale'}"


def judge_weights(records: Records) -> list[Verdict]:
    """How many times smaller the weights of meta-tieredImageNet are than those of miniImageNet, and than DC's."""
    to_mini = f"weights on meta-tieredImageNet are at least {ORDER} times smaller than on miniImageNet"
    to_dc = f"weights on meta-tieredImageNet are of the order of a hundred times ({HUNDRED} or more) smaller than DC's"
    metas, minis = ([place for place in records if place.dataset == d] for d in ("meta-tiered", "mini"))
    if not metas or not minis:
        absent = " and ".join(DATASETS[d] for d, own in (("meta-tiered", metas), ("mini", minis)) if not own)
        found = f"no features of {absent}"
        return [Verdict(c, DATASETS["meta-tiered"], PRINTED.name, found, None) for c in (to_mini, to_dc)]
    out = []
    dc = np.array([math.log10(DC_SHARE)])
    for variant in VARIANTS:
        for shot in SHOTS:
            for meta in metas:
                small = _log_shares(records[meta], variant.name, shot)
                where = f"{meta.title}, {shot}-shot"
                for mini in minis:
                    large = _log_shares(records[mini], variant.name, shot)
                    ratio = times_smaller(small, large, ORDER)
                    out.append(Verdict(to_mini, f"{where}, {mini.title}", variant.name, *ratio))
                out.append(Verdict(to_dc, where, variant.name, *times_smaller(small, dc, HUNDRED)))
    return out


def _log_shares(record: Mapping[str, Any], variant: str, shot: int) -> np.ndarray:
    """log₁₀ of the mean share of each task, `(T,)`."""
    share = np.asarray(record["shares"][variant][str(shot)], float).reshape(record["tasks"], -1)
    return np.log10(np.maximum(share.mean(axis=1), 1e-30))


def times_smaller(small: np.ndarray, large: np.ndarray, least: float) -> tuple[str, bool | None]:
    """How many times smaller one thing is than another, and whether that is at least so many times.

    Both are decimal logarithms of many cases `(T,)`; None where the 95% interval has both sides of `least`.

    >>> times_smaller(np.array([-2.0, -2.1, -1.9]), np.array([0.0]), 10)
    ('100 times smaller (77.1 to 130; 3 cases)', True)
    """
    ratio = float(large.mean() - small.mean())
    half = 1.96 * math.sqrt(sum(v.var(ddof=1) / len(v) for v in (large, small) if len(v) > 1))
    low, high = 10 ** (ratio - half), 10 ** (ratio + half)
    holds = True if low >= least else False if high < least else None
    return f"{10**ratio:.3g} times smaller ({low:.3g} to {high:.3g}; {len(small)} cases)", holds


def _printed_ratio(shot: int) -> float:
    lists = published()["weights"]["GDC"]
    return float(np.mean(lists[f"mini/{shot}"]) / np.mean(lists[f"meta-tiered/{shot}"]))


def _numbers(values: Sequence[float] | np.ndarray) -> str:
    """Numbers with four decimals, as the paper has them, or two significant digits where that would be zero.

    >>> _numbers([0.1008, 0.00003])
    '0.1008, 3e-05'
    """
    return ", ".join(f"{v:.4f}" if v >= 5e-4 else f"{v:.2g}" for v in values)


# ---- figure 2, left -------------------------------------------------------------------------------------------------


def mean_curve(case: Case | None = None, powers: Sequence[float] = (0, 1, 4), far: float = 4.0) -> JSONObject:
    """X' in one dimension as the base class moves away, the support point at 0 (eq. 5-8, k = 1); no features in it."""
    mu = torch.linspace(0, far, 81, dtype=torch.float64)
    estimates = {"DC": (mu / 2).tolist()}
    for m in powers:
        w = weights_from_distances(mu.square(), m)
        estimates[f"GDC, m = {m:g}"] = (w * mu / (1 + w)).tolist()
    return {"base_mean": mu.tolist(), "estimates": estimates}


def show_mean_curve(records: Records) -> Section:
    """The curves, and whether X' returns to the support point with m = 4 and drifts away with DC."""
    data = next(iter(records.values()))
    mu, high, dc = data["base_mean"], data["estimates"]["GDC, m = 4"], data["estimates"]["DC"]
    top = max(range(len(high)), key=high.__getitem__)
    found = (
        f"base mean at {mu[-1]:g}: X' = {high[-1]:.4f} with m = 4, {dc[-1]:g} with DC; the largest with m = 4 is "
        f"{high[top]:.2f}, at a base mean of {mu[top]:.2f} (exact)"
    )
    claim = "as the base class moves away, X' of DC goes with it, and with m = 4 it returns to the support point"
    holds = high[-1] < 0.05 * dc[-1] and dc == sorted(dc)
    caption = (
        "X' as the base class moves away: equations 5 to 8 with k = 1, without features. With m = 0 the weight is "
        "1/(1 + d⁰) = ½, not DC's 1; up to a distance of 1 a higher m moves the estimate further, not less."
    )
    picture = Picture("mean-curve", figures.mean_curve(mu, data["estimates"]), caption)
    return Section([picture], [Verdict(claim, "one dimension, no features", PRINTED.name, found, holds)])


# ---- appendices A and E ---------------------------------------------------------------------------------------------

_SIZE = "off-diagonal covariances are two orders of magnitude smaller than variances"
_AVERAGE = "the average off-diagonal covariance is two orders of magnitude smaller than the average variance"
_CALIBRATED = "the average off-diagonal entry of Σ' is two orders of magnitude smaller than its average variance"


def off_diagonal_ratios(x: np.ndarray) -> tuple[float, float]:
    r"""Size and average of the off-diagonal covariances of rows `x (n, D)`, each over the mean variance.

    The size is the root mean square, less the noise of n rows: :math:`E s² = σ² + (σ_{ii}σ_{jj} + σ²)/(n-1)`.

    >>> x = np.random.default_rng(0).normal(size=(50, 200))
    >>> size, average = off_diagonal_ratios(x)
    >>> size < 0.05, abs(average) < 0.01
    (True, True)
    """
    n, d = x.shape
    covariance = np.cov(x, rowvar=False)
    variance = np.diagonal(covariance)
    sigma1, pairs = float(variance.mean()), d * (d - 1)
    average = (float(covariance.sum()) - float(variance.sum())) / pairs
    squares = (float(np.square(covariance).sum()) - float(np.square(variance).sum())) / pairs
    noise = (float(variance.sum()) ** 2 - float(np.square(variance).sum())) / pairs
    return math.sqrt(max(0.0, ((n - 1) * squares - noise) / n)) / sigma1, average / sigma1


def off_diagonal(case: Case) -> JSONObject:
    """Ratios of every base class, and of Σ' of novel support points, in the space of the row and at unit scale."""
    base, row = case.of.features.split("base"), paper_params(case.dataset, 1)
    labels, x = base.require_labels(), torch.from_numpy(base.float32())
    ratios: dict[str, dict[str, list[float]]] = {}
    for variant in (PRINTED, UNIT):
        params = variant.params(row)
        space = fit_gaussianization(x, params.beta, params.kind, params.center, params.l2, params.eps)
        seen = space(x, "base X").double().numpy()
        found = [off_diagonal_ratios(seen[labels == c]) for c in range(len(base.classes)) if (labels == c).sum() > 2]
        ratios[variant.name] = {_SIZE: [f[0] for f in found], _AVERAGE: [f[1] for f in found]}
        ratios[variant.name][_CALIBRATED] = calibrated_ratios(case, params)
    return {"ratios": ratios, "rows": int(np.median(base.rows_per_class()))}


def calibrated_ratios(case: Case, params: GDCParams) -> list[float]:
    """Average off-diagonal entry of Σ' (eq. 5) over its mean variance, of a support point of each of many tasks."""
    method = gdc(params)
    spec = EpisodeSpec(2, 1, 1, case.budget.seed)
    pair = support_batch(method, case.of, spec, min(TASKS, case.budget.tasks))
    with torch.no_grad():
        found = method.calibration(replace(pair, support=pair.support[:, :1], labels=pair.labels[:, :1], n_classes=1))
        weights = shares(found, params.cov_weights)
        mixed = CalibratedCovariance(method.bank, params.cov, found.index, weights, params.common_size)
        variance, off = mixed.moments()
    return [float(v) for v in (off / variance).flatten().tolist()]


def show_off_diagonal(records: Records) -> Section:
    """A row for each feature set and space, with the paper's bound beside it."""
    section = Section()
    rows: list[list[Any]] = []
    for place, record in records.items():
        for variant, found in record["ratios"].items():
            cells = [Cell(_ratio_text(v), sort=float(np.mean(v))) for v in found.values()]
            rows.append([f"{place.title}, {variant}", record["rows"], *cells, cited_cell((OFF_DIAGONAL, None))])
            for claim, values in found.items():
                if claim == _CALIBRATED and place.dataset != "dogs":
                    continue  # the paper has it for Stanford Dogs alone
                s = summarise(np.abs(np.array(values)))
                text = f"{_ratio_text(values)} of the mean variance ({len(values)} cases)"
                section.verdicts.append(
                    Verdict(claim, place.title, variant, text, within(s.mean, s.ci95, OFF_DIAGONAL))
                )
    header = ["features", "rows a class", "size (root mean square)", "average", "average of Σ'", "the paper, at most"]
    caption = "Off-diagonal covariances over the mean variance, mean over base classes (or support points) ± 95%"
    section.blocks.append(Table(header, rows, caption))
    return section


def _ratio_text(values: Sequence[float]) -> str:
    s = summarise(np.array(values))
    return f"{s.mean:.4f}" + (f" ± {s.ci95:.4f}" if math.isfinite(s.ci95) else "")


EXPERIMENTS = (
    Experiment(
        "weights",
        "Weights of the k base classes",
        "Appendix H, tables 8 and 9, figure 5",
        "Weights on meta-tieredImageNet are ten times smaller than on miniImageNet, and a hundred times than DC's.",
        weights,
        show_weights,
        ("mini", "meta-tiered"),
        (0,),
        elsewhere=True,
        variants=VARIANTS,
        control="none: about weights of base classes; no classifier is trained",
        cost="seconds",
    ),
    Experiment(
        "mean-curve",
        "X' as the base class moves away",
        "Figure 2, left",
        "As m rises, X' comes back to the support point.",
        mean_curve,
        show_mean_curve,
        ("dogs",),
        (0,),
        elsewhere=True,
        control="none: arithmetic in one dimension, no features",
        cost="seconds",
    ),
    Experiment(
        "off-diagonal",
        "Off-diagonal covariances",
        "Appendices A and E",
        "Off-diagonal covariances are at least two orders of magnitude smaller than variances (mini, CUB, Dogs).",
        off_diagonal,
        show_off_diagonal,
        ("mini", "cub", "dogs"),
        (0,),
        elsewhere=True,
        variants=(PRINTED, UNIT),
        control="none: about covariances; nothing is classified",
        cost="30 s",
    ),
)
