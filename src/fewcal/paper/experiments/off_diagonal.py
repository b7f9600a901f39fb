"""Appendix A and E: how small the off-diagonal covariances of base classes are beside the variances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from fewcal.evaluation.stats import summarise
from fewcal.gaussianize import fit_gaussianization
from fewcal.paper.blocks import Section, Table, Value, Verdict, cited
from fewcal.paper.budget import WHOLE, Case
from fewcal.paper.published import dataset_title
from fewcal.paper.registry import Experiment, Records
from fewcal.paper.sampled import base_of
from fewcal.paper.settings import PRINTED, UNIT, UNIT_SCALE, paper_params
from fewcal.render import Cell

# Two orders of magnitude.
BOUND = 0.01
SIZE, AVERAGE = "size", "average"
_CLAIMS = {
    SIZE: "off-diagonal covariances are two orders of magnitude smaller than variances",
    AVERAGE: "the average off-diagonal covariance is two orders of magnitude smaller than the average variance",
}


class OffDiagonalRecord(TypedDict):
    """Of every base class, by variant: off-diagonal entries over the mean variance, their size and their average."""

    ratios: dict[str, dict[str, list[float]]]
    rows: int
    beta: float


def off_diagonal_ratios(x: np.ndarray) -> tuple[float, float]:
    r"""Size and average of the off-diagonal covariances of rows `x (n, D)`, each over the mean variance.

    The size is the root mean square. A sample covariance of independent features is not 0: its square is
    :math:`σ_{ii}σ_{jj}/(n-1)` on average, which is taken out, so that few rows do not look like correlation.

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
    # E s² = σ² + (σ_ii σ_jj + σ²)/(n − 1)
    size = math.sqrt(max(0.0, ((n - 1) * squares - noise) / n))
    return size / sigma1, average / sigma1


def off_diagonal(case: Case) -> OffDiagonalRecord:
    """Every base class in the space of the published row, and the same at unit scale."""
    import torch

    base, row = base_of(case.features), paper_params(case.dataset, 1)
    labels = base.require_labels()
    x = torch.from_numpy(np.asarray(base.features, np.float32))
    ratios: dict[str, dict[str, list[float]]] = {}
    for variant, change in ((PRINTED, {}), (UNIT_SCALE, UNIT)):
        center, l2 = change.get("center", False), change.get("l2", False)
        seen = fit_gaussianization(x, float(row.beta), row.kind, center, l2, row.eps)(x, "base X").double().numpy()
        found = [off_diagonal_ratios(seen[labels == c]) for c in range(len(base.classes)) if (labels == c).sum() > 2]
        ratios[variant.name] = {SIZE: [f[0] for f in found], AVERAGE: [f[1] for f in found]}
    return {"ratios": ratios, "rows": int(np.median(base.rows_per_class())), "beta": float(row.beta)}


def show_off_diagonal(records: Records[OffDiagonalRecord]) -> Section:
    """A row for each feature set and variant, with the paper's bound beside it."""
    section = Section()
    rows: list[list[Value]] = []
    for (dataset, _), record in records.items():
        for variant in (PRINTED, UNIT_SCALE):
            found = record["ratios"][variant.name]
            where = f"{dataset_title(dataset)}, {variant.name}"
            cells = [Cell(_text(found[what]), sort=float(np.mean(found[what]))) for what in _CLAIMS]
            rows.append([where, f"β={record['beta']:g}", record["rows"], *cells, cited(BOUND)])
            for what, claim in _CLAIMS.items():
                text = f"{_text(found[what])} of the mean variance ({len(found[what])} base classes)"
                section.verdicts.append(Verdict(claim, where, text, _holds(found[what]), variant.group))
    header = ["features", "space", "rows a class", "size (root mean square)", "average", "the paper, at most"]
    caption = (
        "Off-diagonal covariances of base classes over their mean variance, mean over classes with 95% half-width; the "
        "size is corrected for the noise of few rows. As printed is the space of the published row at its own scale"
    )
    section.blocks.append(Table(header, rows, caption))
    return section


def _text(values: Sequence[float]) -> str:
    s = summarise(np.array(values))
    return f"{s.mean:.4f}" + (f" ± {s.ci95:.4f}" if math.isfinite(s.ci95) else "")


def _holds(values: Sequence[float]) -> bool | None:
    s = summarise(np.abs(np.array(values)))
    low, high = s.mean - s.ci95, s.mean + s.ci95
    return True if high <= BOUND else False if low > BOUND else None


EXPERIMENTS = (
    Experiment(
        "off-diagonal",
        "Off-diagonal covariances of the base classes",
        "Appendices A and E",
        "Off-diagonal covariances are at least two orders of magnitude smaller than variances (mini, CUB, Dogs).",
        off_diagonal,
        show_off_diagonal,
        ("mini", "cub", "dogs"),
        (WHOLE,),
        ("base",),
        elsewhere=True,
        cost="20 s",
        variants=(PRINTED, UNIT_SCALE),
        control="none: about covariances of base classes; nothing is calibrated or classified",
    ),
)
