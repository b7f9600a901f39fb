"""Figure 3 and section 4.5: accuracy against n, against α1 and α2, and against k, with the published row as printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fewcal.evaluation.stats import summarise
from fewcal.paper.blocks import Block, Experiment, Picture, Place
from fewcal.paper.control import SupportAlone
from fewcal.paper.measure import Case, Measured, Plan, TableRecord
from fewcal.paper.settings import ALONE, MATCHED, PRINTED, UNIT, UNIT_DRAWN, Variant, gdc, paper_params
from fewcal.paper.statements import Claim
from fewcal.paper.tables import RowTable
from fewcal.params import GDCParams
from fewcal.render import figures

COUNTS = (10, 50, 100, 250, 500, 750, 1000)
# The paper's 7 × 7 grid.
ALPHAS = tuple(range(0, 700, 100))
NEIGHBOURS = (1, 4, 30)
# Accuracy is level where it changes by less than a point.
LEVEL = 0.01
VALIDATION = ", validation"
# The paper's best setting without k, in section 4.5.
WITHOUT_K = "the best without k: α1 = 600, α2 = 0"


def _plan(case: Case, variants: Sequence[Variant], rows: Callable[[GDCParams], dict[str, GDCParams]]) -> Plan:
    """The rows of each variant with changes of one or two parameters, and the control."""
    row, plan = paper_params(case.dataset, 1), Plan(case.of)
    plan.describe(row, variants)
    for variant in variants:
        for label, params in rows(variant.params(row)).items():
            plan.add(variant, label, gdc(params))
        plan.add(variant, ALONE, SupportAlone(variant.params(row)))
    return plan


# ---- n --------------------------------------------------------------------------------------------------------------


def accuracy_n(case: Case) -> Plan:
    """Each n on novel and on validation tasks."""
    variants = (PRINTED, MATCHED, UNIT_DRAWN)
    plan = _plan(case, variants, lambda p: {_n(n): p.with_changes(n=n) for n in COUNTS})
    for variant in variants:
        params = variant.params(paper_params(case.dataset, 1))
        for n in COUNTS:
            plan.add(variant, _n(n) + VALIDATION, gdc(params.with_changes(n=n)), "val")
    return plan


def _n(n: int) -> str:
    return f"n = {n}"


def _n_claims(dataset: str, shot: int) -> list[Claim]:
    return [
        Claim("accuracy with n = 750 is above that with n = 100", (_n(750),), (_n(100),)),
        Claim("beyond n = 750 accuracy changes by less than a point", (_n(1000),), (_n(750),), LEVEL),
    ]


def _draw_n(place: Place, record: TableRecord, measured: Measured) -> list[Block]:
    panels = {
        variant: {
            split: _line(measured, variant, [_n(n) + ending for n in COUNTS])
            for split, ending in (("validation", VALIDATION), ("novel", ""))
        }
        for variant in record["settings"]
    }
    figure = figures.accuracy_panels(list(COUNTS), panels, xlabel="samples n a support point", log=True)
    ends = [
        f"{variant}: {100 * panel['novel'][0][0]:.1f}% at n = {COUNTS[0]}, {100 * panel['novel'][0][-1]:.1f}% at "
        f"n = {COUNTS[-1]}"
        for variant, panel in panels.items()
    ]
    words = f"Accuracy on novel tasks against n, {place.title}. {'; '.join(ends)}."
    return [Picture(f"accuracy-n-{place.name}", figure, words)]


Line = tuple[list[float], list[float | None]]


def _line(measured: Measured, variant: str, labels: Sequence[str]) -> Line:
    """Means and half-widths of rows; there is no width of a single task."""
    found = [summarise(measured.of(variant, label)) for label in labels]
    return [s.mean for s in found], [s.ci95 if s.n > 1 else None for s in found]


# ---- α1 and α2 ------------------------------------------------------------------------------------------------------


def alphas(case: Case) -> Plan:
    """The grid of α1 and α2/α1; without α1 there is no α2."""

    def rows(params: GDCParams) -> dict[str, GDCParams]:
        return {
            _cell(a, r): params.with_changes(alpha1=float(a), alpha2_ratio=float(r)) for a in ALPHAS for r in ALPHAS
        }

    return _plan(case, (PRINTED, MATCHED, UNIT_DRAWN), rows)


def _cell(alpha1: int, ratio: int) -> str:
    return f"α1 = {alpha1}, α2/α1 = {ratio if alpha1 else 0}"


def _alpha_claims(dataset: str, shot: int) -> list[Claim]:
    column = {a: tuple(_cell(a, r) for r in ALPHAS) for a in ALPHAS}
    some, none = tuple(_cell(a, r) for a in ALPHAS[1:] for r in ALPHAS[1:]), tuple(_cell(a, 0) for a in ALPHAS[1:])
    return [
        Claim("accuracy with α1 = 200 is above that without shrinkage", column[200], column[0]),
        Claim("accuracy drops beyond α1 = 200 (to 600)", column[200], column[600]),
        Claim("accuracy with an α2 (100 to 600 times α1) is above that with α2 = 0", some, none),
    ]


def _draw_alphas(place: Place, record: TableRecord, measured: Measured) -> list[Block]:
    panels, words = {}, []
    for variant in record["settings"]:
        grid = np.array([[measured.of(variant, _cell(a, r)).mean() for a in ALPHAS] for r in ALPHAS])
        i, j = np.unravel_index(grid.argmax(), grid.shape)
        panels[variant] = grid.tolist()
        words.append(
            f"{variant}: {100 * grid[0, 0]:.1f}% without shrinkage, best {100 * grid[i, j]:.1f}% at α1 = {ALPHAS[j]}, "
            f"α2 = {ALPHAS[i]}·α1"
        )
    figure = figures.heat_maps(panels, ALPHAS, ALPHAS, xlabel="α₁", ylabel="α₂ / α₁")
    return [Picture(f"alphas-{place.name}", figure, f"Accuracy against α1 and α2, {place.title}. {'; '.join(words)}.")]


# ---- k --------------------------------------------------------------------------------------------------------------


def effect_k(case: Case) -> Plan:
    """Rising k with the row's own m and with equal weights, and the paper's best setting without k."""
    bases = len(case.of.features.split("base").classes)

    def rows(params: GDCParams) -> dict[str, GDCParams]:
        own = min(params.k, bases)
        out = {
            _k(k if k < bases else 0, m == params.m): params.with_changes(k=k, m=m)
            for m in dict.fromkeys((params.m, 0.0))
            for k in sorted({*(k for k in NEIGHBOURS if k < bases), bases})
        }
        out[_OWN_K] = params.with_changes(k=own)
        out[WITHOUT_K] = params.with_changes(k=bases, alpha1=600.0, alpha2_ratio=0.0)
        return out

    return _plan(case, (PRINTED, MATCHED, UNIT), rows)


_OWN_K = "the published k"


def _k(k: int, weighted: bool) -> str:
    return f"k = {k or 'all'}" + ("" if weighted else ", m = 0")


def _k_claims(dataset: str, shot: int) -> list[Claim]:
    return [
        Claim("m does not replace k: the published k is above all base classes", (_OWN_K,), (_k(0, True),)),
        Claim("the published row is above the paper's best without k", (_OWN_K,), (WITHOUT_K,)),
    ]


def _draw_k(place: Place, record: TableRecord, measured: Measured) -> list[Block]:
    ks = [k for k in NEIGHBOURS if _k(k, True) in measured.labels(PRINTED.name)]
    axis = [*ks, int(record["rows"][f"{PRINTED.name}: {WITHOUT_K}"]["settings"]["k"])]
    panels = {
        variant: {
            name: _line(measured, variant, [_k(k, weighted) for k in (*ks, 0)])
            for name, weighted in (("the row's m", True), ("m = 0, equal weights", False))
        }
        for variant in record["settings"]
    }
    figure = figures.accuracy_panels(axis, panels, xlabel="base classes k", log=True)
    own = [f"{v}: {100 * measured.of(v, _OWN_K).mean():.1f}%" for v in panels]
    words = f"Accuracy against k, {place.title}; the last k is all base classes. The published k has {'; '.join(own)}."
    return [Picture(f"effect-k-{place.name}", figure, words)]


def _experiment(
    name: str, title: str, source: str, claim: str, table: RowTable, needs: Sequence[str] = ("base", "novel")
) -> Experiment:
    return table.experiment(
        name,
        title,
        source,
        claim,
        datasets=("dogs",),
        shots=(0,),
        needs=tuple(needs),
        elsewhere=True,
        variants=(PRINTED, MATCHED, UNIT),
        cost="5 min",
    )


EXPERIMENTS = (
    _experiment(
        "accuracy-n",
        "Accuracy against n",
        "Figure 3, left",
        "Accuracy rises with n until 750.",
        RowTable(accuracy_n, _n_claims, ALONE, draw=_draw_n),
        ("base", "val", "novel"),
    ),
    _experiment(
        "alphas",
        "Accuracy against α1 and α2",
        "Figure 3, right",
        "Accuracy rises with α1 and α2, then drops beyond α1 = 200.",
        RowTable(alphas, _alpha_claims, ALONE, draw=_draw_alphas),
    ),
    _experiment(
        "effect-k",
        "The effect of k",
        "Section 4.5",
        "m does not make k superfluous: without k 0.9 points are lost.",
        RowTable(effect_k, _k_claims, ALONE, draw=_draw_k),
    ),
)
