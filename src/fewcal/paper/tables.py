"""The paper's tables: the comparison (1, 2, 3), the ablation (4), distances (5), candidates (7), weights (8, 9).

Each has a function that computes a record from features (JSON can hold it; torch and NumPy suffice) and one that shows
the records of several feature sets beside the paper's figures.

The paper's settings assume features at the paper's scale, about 1.4 from the nearest base class; w = 1/(1 + d^m) and
200 epochs of SGD both depend on it. So its settings are measured twice: on features as they come, and "at unit scale",
centred and L2-normalised after the power transform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewcal.bank import BaseBank
from fewcal.evaluation.stats import Paired
from fewcal.features import FeatureSet
from fewcal.methods import Method, make_method
from fewcal.methods.base import space_key
from fewcal.methods.gdc import GDC
from fewcal.methods.logistic import GaussianizedLogisticRegression
from fewcal.paper.blocks import Section, Table, Value, Verdict, cited
from fewcal.paper.measured import (
    EIGEN_TASKS,
    LARGEST,
    Budget,
    accuracy,
    beyond,
    choose_on_val,
    difference,
    gain_text,
    grid,
    join,
    mean_text,
    measure,
    val_runner,
)
from fewcal.paper.published import candidate, dataset_title, published
from fewcal.params import GDCParams
from fewcal.presets import get_preset, list_presets
from fewcal.render import Cell
from fewcal.tune.trials import TrialRunner

Record = Mapping[str, Any]
# Records of an experiment by dataset and shots.
Records = Mapping[tuple[str, int], Record]

UNIT = {"center": True, "l2": True}
# α1 and α2/α1 multiply the mean variance of Σ', so they mean the same at any scale.
SEARCH: dict[str, Sequence[Any]] = {
    "beta": (0.5, 0.75, 1.0),
    "k": (2, 4, 8, 16, 32),
    "m": (0.5, 1.0, 2.0, 3.0),
    "alpha1": (1.0, 10.0, 100.0, 1000.0),
    "alpha2_ratio": (0.0, 1.0, 10.0, 100.0),
}


def paper_params(dataset: str, shot: int, family: str = "paper", number: int = 1) -> GDCParams:
    """The paper's setting for a dataset; for others, that of miniImageNet.

    >>> paper_params("cub", 5).m, paper_params("birds", 1).alpha1
    (2.0, 3000.0)
    """
    name = f"{family}/{dataset}/{shot}shot" + (f".{number}" if number > 1 else "")
    if name not in list_presets():
        name = f"{family}/mini/{shot}shot"
    return get_preset(name if name in list_presets() else family)


def unit_scale(params: GDCParams) -> GDCParams:
    """The same on centred unit vectors, base classes included, in closed form (which clips b, not eigenvalues)."""
    return params.with_changes(**UNIT, transform_base=True, psd="clip", head="closed_form")


# ---- tables 1, 2, 3: the comparison ---------------------------------------------------------------------------------

DEFAULT, SELF, DC_ROW = "GDC, `default`", "GDC, self-tuned on base classes", "DC, its published setting"
PRINTED, AUTHORS = "GDC, `paper`, as printed (SGD)", "GDC, `authors`, as their script (SGD)"
PRINTED_CLOSED = "GDC, `paper`, closed form"
PRINTED_UNIT, AUTHORS_UNIT = "GDC, `paper`, unit scale, closed form", "GDC, `authors`, unit scale, closed form"
TUNED = "GDC, the paper's form, tuned on validation"
LR = "Logistic regression"


def comparison(features: FeatureSet, dataset: str, shot: int, effort: Budget, device: str = "cpu") -> dict[str, Any]:
    """All methods on the same novel tasks; what is tuned is tuned on validation classes first."""
    has_val = features.val is not None
    printed, authors = (paper_params(dataset, shot, family) for family in ("paper", "authors"))
    form = unit_scale(printed).with_changes(cov_weights="bases-only")
    tuned = None
    plain: dict[str, Method] = {
        "Nearest centroid": make_method("ncm"),
        "SimpleShot": make_method("simpleshot"),
        LR: make_method("lr"),
        "Logistic regression, Gaussianized": make_method("lr-gauss", beta=printed.beta),
        "Cosine classifier": make_method("cosine"),
        DEFAULT: make_method("gdc"),
        SELF: make_method("gdc", "auto"),
        PRINTED_CLOSED: _gdc(printed.with_changes(head="closed_form")),
        PRINTED_UNIT: _gdc(unit_scale(printed)),
        AUTHORS_UNIT: _gdc(unit_scale(authors)),
    }
    if has_val:
        settings = grid(SEARCH, effort.trials, effort.seed)
        tuned = choose_on_val(features, shot, settings, lambda s: _gdc(form.with_changes(**s)), effort, device)
        plain[TUNED] = _gdc(form.with_changes(**tuned["chosen"]))
    sampled: dict[str, Method] = {DC_ROW: make_method("dc", **_dc_setting(dataset, shot))}
    if features.dimension > LARGEST:  # eigenvalues of a D×D matrix for every support point: minutes a task
        authors = authors.with_changes(psd="clip")
    script = effort.sgd if authors.psd == "clip" else min(effort.sgd, EIGEN_TASKS)
    amounts: tuple[tuple[dict[str, Method], int], ...] = (
        (plain, effort.tasks),
        (sampled, effort.sampled),
        ({PRINTED: _gdc(printed)}, effort.sgd),
        ({AUTHORS: _gdc(authors)}, script),
    )
    return join(*(measure(some, features, shot, tasks, effort.seed, device) for some, tasks in amounts)) | {
        "tuned": tuned
    }


def _gdc(params: GDCParams) -> GDC:
    return GDC(params, cap_k=True)


def _dc_setting(dataset: str, shot: int) -> dict[str, Any]:
    """DC as published; for meta-tieredImageNet with the values that the GDC paper tuned for it."""
    for row in published()["table3"]["dc"]:
        if (row["dataset"], row["shot"]) == (dataset, shot):
            return {"k": row["k"], "alpha": float(row["alpha"]), "beta": float(row["beta"]), "n": row["n"]}
    return {}


def show_comparison(records: Records, table: str | None = None) -> Section:
    """Rows of the paper as citations, then ours, for each dataset and number of shots."""
    columns = sorted(records, key=lambda at: (list(dict.fromkeys(d for d, _ in records)).index(at[0]), at[1]))
    titles = [f"{dataset_title(d)}, {s}-shot" for d, s in columns]
    rows: list[list[Value]] = []
    if table is not None:
        source = published()[table]["source"]
        for row in published()[table]["rows"]:
            cells = [row["values"].get(f"{d}/{s}") for d, s in columns]
            if any(cells):
                values = [cited(c["accuracy"], c["plus_minus"], source) if c else Cell(None) for c in cells]
                rows.append([f"{row['method']} (paper)", *values])
    names = list(dict.fromkeys(name for record in records.values() for name in record["correct"]))
    best = {at: _best(record) for at, record in records.items()}
    for name in names:
        line: list[Value] = [name]
        for at in columns:
            record = records[at]
            if name not in record["correct"]:
                line.append(None)
                continue
            title = f"{len(record['correct'][name])} tasks"
            mark = "best" if name == best[at] else ""
            line.append(Cell(mean_text(record, name), sort=_mean(record, name), title=title, mark=mark))
        rows.append(line)
    shown = Section()
    counts = sorted({len(v) for r in records.values() for v in r["correct"].values()}, reverse=True)
    shown.blocks.append(
        Table(["method", *titles], rows, "Accuracy in %; † are the paper's figures, on the paper's own features")
    )
    shown.blocks.append(
        f"All rows of a column share their first tasks; they have {_listed(counts)} of them: slow methods have "
        "fewer (point at a number to see how many). The paper's ± is twice the 95% half-width, "
        f"ours is the half-width. With more than {LARGEST} features the authors' row has b clipped instead of "
        "eigenvalues. Our features come from other backbones, so compare orders, not levels."
    )
    gains = []
    for d, s in columns:
        record = records[d, s]
        where = f"{dataset_title(d)}, {s}-shot"
        for name, claim in (
            (DEFAULT, "GDC is above DC (`default`, nothing tuned)"),
            (TUNED, "GDC is above DC (the paper's form, tuned on validation)"),
            (PRINTED, "GDC is above DC (as printed, SGD)"),
        ):
            if name in record["correct"]:
                shown.verdicts.append(Verdict.of(claim, where, difference(record, name, DC_ROW)))
        for name in record["correct"]:
            if name != DC_ROW:
                gains.append((name, (d, s), difference(record, name, DC_ROW)))
    table_rows: list[list[Value]] = [
        [name, *(gain_cell(next((g for n, at, g in gains if n == name and at == c), None)) for c in columns)]
        for name in names
        if name != DC_ROW
    ]
    shown.blocks.append(Table(["minus DC", *titles], table_rows, "Paired difference to DC, points, 95% half-width"))
    found = [
        f"{dataset_title(d)} {s}-shot: {_setting(records[d, s]['tuned']['chosen'])}"
        for d, s in columns
        if records[d, s].get("tuned")
    ]
    if found:
        shown.blocks.append(f"Tuned on validation tasks — {'; '.join(found)}.")
    return shown


def _best(record: Record) -> str:
    """The best of the methods that have seen all tasks; others may have been lucky with theirs."""
    most = max(len(v) for v in record["correct"].values())
    return max((n for n, v in record["correct"].items() if len(v) == most), key=lambda n: _mean(record, n))


def _mean(record: Record, name: str) -> float:
    return float(accuracy(record, name).mean())


def gain_cell(gain: Paired | None) -> Cell:
    """A difference, marked where it lies beyond its interval."""
    if gain is None:
        return Cell(None)
    mark = ("good" if gain.difference > 0 else "bad") if beyond(gain) else ""
    return Cell(gain_text(gain), sort=gain.difference, mark=mark, title=f"{gain.n} tasks")


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values))


def _setting(setting: Mapping[str, Any]) -> str:
    names = {"beta": "β", "alpha1": "α1", "alpha2_ratio": "α2/α1", "delta": "δ"}
    return ", ".join(f"{names.get(k, k)}={v:g}" for k, v in setting.items())


# ---- table 4: one component after another ---------------------------------------------------------------------------

STEPS = {
    "gaussianization": "Gaussianization",
    "top-k": "Top-k selection",
    "weights": "Distance-weighted random variable",
    "alpha1": "Shrinkage with α1",
    "alpha1+alpha2": "Shrinkage with α1 and α2",
    "all": "All parameters tuned together",
}
WITHOUT_K = "without-k"
SCALES = {"features as they come": {}, "unit scale": UNIT}
_BETAS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_MANY = tuple(float(v) for v in range(0, 700, 100))
# On features as they come the paper's ranges for α1 and α2/α1; at unit scale wider ones, which small values belong to.
_SHRINKAGE = {"features as they come": (_MANY, _MANY), "unit scale": ((0.0, 0.1, 1.0, 10.0, 100.0, 400.0),) * 2}


class SupportOnly(GaussianizedLogisticRegression):
    """Logistic regression on Gaussianized support points alone, at unit scale or not."""

    name = "lr-gauss"

    def __init__(self, beta: float, center: bool = False, l2: bool = False) -> None:
        super().__init__(beta=beta)
        self.center, self.l2 = center, l2

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"center": self.center, "l2": self.l2}

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        transform = bank.transformed(beta=self.beta, center=self.center, l2=self.l2).transform
        assert transform is not None
        self._transform, self._space = transform, space_key(transform, bank)
        return self


def ablation(features: FeatureSet, dataset: str, shot: int, effort: Budget, device: str = "cpu") -> dict[str, Any]:
    """Each step adds one component and tunes what it has on validation tasks, with n = 750 as in the paper.

    The head is L2-regularised logistic regression (L-BFGS) at every step. A step may keep the winner of the step
    before where its ranges hold it.
    """
    runner = val_runner(features, shot, effort, device)
    most = min(20, len(runner.bank))
    parts, chosen = [], {}
    for scale, change in SCALES.items():
        base = get_preset("paper").with_changes(**change, n=750, n_per="class", head="lbfgs", alpha1=0.0, m=0.0)
        made: dict[str, Method] = {}
        steps = _steps(features, shot, base, change, _SHRINKAGE[scale], most, effort, device, runner)
        for step, setting in steps.items():
            key = f"{scale}: {step}"
            chosen[key] = setting
            made[key] = (
                SupportOnly(**setting["chosen"], **change)
                if step == "gaussianization"
                else _gdc(base.with_changes(**setting["chosen"]))
            )
        parts.append(measure(made, features, shot, effort.tasks, effort.seed, device))
    return join(*parts) | {"chosen": chosen}


def _steps(
    features: FeatureSet,
    shot: int,
    base: GDCParams,
    change: Mapping[str, Any],
    alphas: tuple[Sequence[float], Sequence[float]],
    most: int,
    effort: Budget,
    device: str,
    runner: TrialRunner,
) -> dict[str, dict[str, Any]]:
    """What each step chose, on the same validation tasks with the same number of trials."""

    def find(axes: Mapping[str, Sequence[Any]], keep: dict[str, Any] | None = None) -> dict[str, Any]:
        settings = ([keep] if keep else []) + grid(axes, effort.trials, effort.seed)
        settings = [one for i, one in enumerate(settings) if one not in settings[:i]]
        make: Any = lambda s: _gdc(base.with_changes(**s))  # noqa: E731
        return choose_on_val(features, shot, settings, make, effort, device, runner)

    ks = range(1, most + 1)
    betas = [{"beta": b} for b in _BETAS]
    first = choose_on_val(features, shot, betas, lambda s: SupportOnly(**s, **change), effort, device, runner)
    beta = {"beta": (first["chosen"]["beta"],)}
    plain = {"alpha1": (0.0,), "alpha2_ratio": (0.0,)}
    out = {"gaussianization": first}
    out["top-k"] = find(beta | {"k": ks, "m": (0.0,)} | plain)
    out["weights"] = find(beta | {"k": ks, "m": (1.0,)} | plain)
    shrink: dict[str, Sequence[Any]] = beta | {"k": ks, "m": (1.0,), "alpha1": alphas[0]}
    out["alpha1"] = find(shrink | {"alpha2_ratio": (0.0,)}, out["weights"]["chosen"])
    out["alpha1+alpha2"] = find(shrink | {"alpha2_ratio": alphas[1]}, out["alpha1"]["chosen"])
    powers = tuple(i / 4 for i in range(13))
    every = beta | {"k": ks, "m": powers, "alpha1": alphas[0], "alpha2_ratio": alphas[1]}
    out["all"] = find(every, out["alpha1+alpha2"]["chosen"])
    out[WITHOUT_K] = find(every | {"k": (len(runner.bank),)})
    return out


def show_ablation(records: Records) -> Section:
    """Accuracy and gain of each step, at both scales."""
    shown = Section()
    cites = {row["step"]: row for row in published()["table4"]["rows"]}
    for (dataset, shot), record in records.items():
        where = f"{dataset_title(dataset)}, {shot}-shot"
        for scale in SCALES:
            rows: list[list[Value]] = []
            before: str | None = None
            for step, title in STEPS.items():
                key, cite = f"{scale}: {step}", cites[step]
                gain = None if before is None else difference(record, key, before)
                told = _setting(record["chosen"][key]["chosen"])
                rows.append(
                    [
                        title,
                        told,
                        Cell(mean_text(record, key), sort=_mean(record, key)),
                        gain_cell(gain),
                        cited(cite["accuracy"], cite["plus_minus"], "Table 4"),
                        Cell(None) if cite["gain"] is None else Cell(f"+{cite['gain']:.1f}", mark="cited"),
                        Cell(cite["tuned"], mark="cited"),
                    ]
                )
                if gain is not None:
                    shown.verdicts.append(Verdict.of(f"ablation: {title} adds accuracy", f"{where}, {scale}", gain))
                before = key
            key = f"{scale}: {WITHOUT_K}"
            lost = difference(record, key, f"{scale}: all")
            source = published()["table4"]["without_k"]
            rows.append(
                [
                    "All tuned, but k = all base classes",
                    _setting(record["chosen"][key]["chosen"]),
                    Cell(mean_text(record, key), sort=_mean(record, key)),
                    Cell(f"{gain_text(lost)} to all tuned", sort=lost.difference),
                    cited(source["accuracy"], None, source["source"]),
                    Cell(None),
                    Cell(None),
                ]
            )
            whole = difference(record, f"{scale}: all", f"{scale}: gaussianization")
            shown.verdicts.append(
                Verdict.of("ablation: all components together add accuracy", f"{where}, {scale}", whole)
            )
            header = ["step", "chosen on validation", "accuracy %", "gain", "paper %", "paper's gain", "paper's choice"]
            tried = record["chosen"][f"{scale}: all"]
            shown.blocks.append(
                Table(
                    header,
                    rows,
                    f"{where}, {scale}: {len(record['correct'][key])} novel tasks; at most {tried['tried']} settings "
                    f"a step on {tried['tasks']} validation tasks (the paper: 100 on 200)",
                )
            )
    return shown


# ---- table 5: distances ---------------------------------------------------------------------------------------------

DISTANCES = {
    "mahalanobis": "Squared Mahalanobis with log",
    "sqeuclidean": "Squared Euclidean",
    "delta": "Squared δ distance",
    "scaled": "Scaled Euclidean, m tuned",
}


def distances(features: FeatureSet, dataset: str, shot: int, effort: Budget, device: str = "cpu") -> dict[str, Any]:
    """GDC at unit scale, closed form, with each distance; k, α1 and α2, then δ or m, tuned on validation tasks."""
    base = unit_scale(get_preset("paper")).with_changes(beta=1.0, m=1.0)
    axes: dict[str, Sequence[Any]] = {
        "k": (1, 2, 4, 8, 12, 16),
        "alpha1": (0.1, 1.0, 10.0, 100.0, 400.0),
        "alpha2_ratio": (0.0, 1.0, 10.0, 100.0),
    }
    more: dict[str, dict[str, Sequence[Any]]] = {
        "delta": {"delta": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)},
        "scaled": {"m": (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)},
    }
    runner = val_runner(features, shot, effort, device)
    made: dict[str, Method] = {}
    chosen: dict[str, dict[str, Any]] = {}
    plain = grid(axes, effort.trials, effort.seed)
    for name in ("sqeuclidean", "mahalanobis", "delta", "scaled"):
        own = base.with_changes(metric="sqeuclidean" if name == "scaled" else name)
        # δ = 1 and m = 1 are the squared Euclidean distance: these two start from its winner.
        settings = [chosen["sqeuclidean"]["chosen"] | one for one in grid(more[name], 99, 0)] if name in more else plain
        make: Any = lambda s, own=own: _gdc(own.with_changes(**s))  # noqa: E731
        chosen[name] = choose_on_val(features, shot, settings, make, effort, device, runner)
        made[name] = _gdc(own.with_changes(**chosen[name]["chosen"]))
    return measure(made, features, shot, effort.tasks, effort.seed, device) | {"chosen": chosen}


def show_distances(records: Records) -> Section:
    """Accuracy with each distance, and the difference to the plain squared Euclidean one."""
    shown = Section()
    cites = {row["distance"]: row["accuracy"] for row in published()["distances"]["rows"]}
    for (dataset, shot), record in records.items():
        where = f"{dataset_title(dataset)}, {shot}-shot"
        rows: list[list[Value]] = []
        for name, title in DISTANCES.items():
            gain = None if name == "sqeuclidean" else difference(record, name, "sqeuclidean")
            rows.append(
                [
                    title,
                    _setting(record["chosen"][name]["chosen"]),
                    Cell(mean_text(record, name), sort=_mean(record, name)),
                    gain_cell(gain),
                    cited(cites[name], None, "Appendix A"),
                ]
            )
        header = ["distance", "chosen on validation", "accuracy %", "minus squared Euclidean", "paper %"]
        tasks = len(record["correct"]["scaled"])
        shown.blocks.append(Table(header, rows, f"{where}, unit scale, closed form, {tasks} novel tasks"))
        for name in ("mahalanobis", "delta"):
            claim = f"the scaled Euclidean distance is above: {DISTANCES[name]}"
            shown.verdicts.append(Verdict.of(claim, where, difference(record, "scaled", name)))
        claim = "a tuned m is above m = 1"
        shown.verdicts.append(Verdict.of(claim, where, difference(record, "scaled", "sqeuclidean")))
    return shown


# ---- table 7: the three candidates ----------------------------------------------------------------------------------

CANDIDATES = (1, 2, 3)


def candidates(features: FeatureSet, dataset: str, shot: int, effort: Budget, device: str = "cpu") -> dict[str, Any]:
    """The paper's three candidates with their exact parameters, closed form: as they come and at unit scale.

    On validation tasks as well, to see what picking the best of three on novel classes adds.
    """
    made: dict[str, Method] = {}
    for number in CANDIDATES:
        params = paper_params(dataset, shot, "paper", number)
        made[f"{number}, as it comes"] = _gdc(params.with_changes(head="closed_form"))
        made[f"{number}, unit scale"] = _gdc(unit_scale(params))
    val = None
    if features.val is not None:
        runner = val_runner(features, shot, effort, device)
        val = [float(runner.accuracy(_gdc(made[f"{n}, unit scale"].params)).mean()) for n in CANDIDATES]  # type: ignore[attr-defined]
    tasks = effort.study_tasks(features, device)
    return measure(made, features, shot, tasks, effort.seed, device) | {"val": val}


def show_candidates(records: Records) -> Section:
    """Each candidate beside what the paper reports for it."""
    shown = Section()
    rows: list[list[Value]] = []
    optimism = []
    for (dataset, shot), record in records.items():
        for number in CANDIDATES:
            cite = candidate(dataset, shot, number)
            if cite is None:
                continue
            keys = [f"{number}, as it comes", f"{number}, unit scale"]
            told = _setting({k: cite[k] for k in ("m", "k", "alpha1", "alpha2_ratio", "beta")}) + f", n={cite['n']}"
            rows.append(
                [
                    f"{dataset_title(dataset)}, {shot}-shot, {number}",
                    Cell(told, mark="cited"),
                    *(Cell(mean_text(record, key), sort=_mean(record, key)) for key in keys),
                    cited(cite["accuracy"], cite["plus_minus"], "Appendix F"),
                ]
            )
        gain = difference(record, "1, unit scale", "3, unit scale")
        where = f"{dataset_title(dataset)}, {shot}-shot"
        shown.verdicts.append(Verdict.of("the first candidate is above the third (unit scale)", where, gain))
        if record["val"] is not None:
            novel = [_mean(record, f"{n}, unit scale") for n in CANDIDATES]
            optimism.append(max(novel) - novel[int(np.argmax(record["val"]))])
    header = ["candidate", "its parameters", "closed form, as it comes %", "closed form, unit scale %", "paper %"]
    shown.blocks.append(Table(header, rows, "Candidates of appendix F with their exact parameters"))
    if optimism:
        shown.blocks.append(
            "The paper reports the best of three on the novel classes. At unit scale that is above the candidate that "
            f"validation tasks would have chosen by {100 * float(np.mean(optimism)):.2f} points on average "
            f"(at most {100 * max(optimism):.2f}): what looking at the novel classes adds by itself."
        )
    return shown


# ---- tables 8 and 9: weights ----------------------------------------------------------------------------------------


def weights(features: FeatureSet, dataset: str, shot: int, effort: Budget, device: str = "cpu") -> dict[str, Any]:
    """Shares w_i/(1+Σw) of the base classes with the paper's parameters, 1-shot and 5-shot, at both scales."""
    from fewcal.paper.figures import weights_data

    by_shot = {s: paper_params(dataset, s) for s in (1, 5)}
    tasks = min(50, effort.tasks)
    out = {}
    for scale, change in SCALES.items():
        params = {s: p.with_changes(**change) for s, p in by_shot.items()}
        out[scale] = weights_data(features, seed=effort.seed, tasks=tasks, params=params)
    return {"scales": out}


def show_weights(records: Records) -> Section:
    """The paper's lists beside ours, nearest base class first."""
    shown = Section()
    lists = published()["weights"]["rows"]
    for (dataset, _), record in records.items():
        rows: list[list[Value]] = []
        for shot in (1, 5):
            cites = [r for r in lists if (r["dataset"], r["shot"]) == (dataset, shot)]
            for row in cites:
                rows.append([f"{row['method']} (paper), {shot}-shot", Cell(_numbers(row["values"]), mark="cited")])
            for scale, data in record["scales"].items():
                rows.append([f"GDC, {shot}-shot, {scale}", _numbers(data["means"][f"{shot}-shot"])])
        tasks = next(iter(record["scales"].values()))["tasks"]
        caption = f"{dataset_title(dataset)}: mean share of each of the k base classes, {tasks} tasks (the paper: 5)"
        shown.blocks.append(Table(["method", "w_i/(1 + Σw), nearest first"], rows, caption))
    return shown


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4f}" for v in values)
