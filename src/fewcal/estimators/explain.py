"""What calibration did to each support point, in numbers and in words.

The judgement "too far to help" is the bank's own: a support point farther from every base class than 95% of base rows
are from the nearest *other* base class has no relatives in the bank. On ResNet features that separates novel classes of
the same domain (0 to 1% flagged) from another domain or noise (97 to 100%).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, nearest_class_distance
from fewcal.calibrate import distances as distances_of
from fewcal.domain_match import simulated_rows
from fewcal.heads.base import TaskBatch
from fewcal.heads.linear import class_means
from fewcal.methods.gdc import Explainable
from fewcal.rejection import OutlierTest

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

FAR_QUANTILE = 0.95
LOW_SHARE = 0.05  # base classes that together weigh less than this change nothing one could see
_ROWS_PER_CLASS = 8
_CLASSES_LOOKED_AT = 256
_LINES = 20


@dataclass(frozen=True)
class PointExplanation:
    """One support point: its base classes, nearest first, and what they did to it.

    Attributes
    ----------
    row : int
        Row of X as given to `fit`.
    label : hashable
        Its class.
    bases : list of hashable, length k
    distances, weights, shares : list of float, length k
        d_i in the method's metric and unit, w_i (eq. 8) and w_i/(1+Σw), the share of each in the calibrated mean.
    support_share : float
        1/(1+Σw), what the point itself keeps.
    moved : float
        Euclidean distance from the point to its calibrated mean, in the method's space.
    moved_relative : float
        The same in units of `Explanation.typical_distance`.
    nearest : float
        Euclidean distance to the nearest base class, in the method's space.
    far : bool
        Whether that is beyond `Explanation.far_distance`.
    """

    row: int
    label: Hashable
    bases: list[Hashable]
    distances: list[float]
    weights: list[float]
    shares: list[float]
    support_share: float
    moved: float
    moved_relative: float
    nearest: float
    far: bool


@dataclass(frozen=True)
class ClassExplanation:
    """One class: its points' shares averaged, the largest first, and how far its mean moved."""

    label: Hashable
    shots: int
    bases: list[Hashable]
    shares: list[float]
    support_share: float
    moved: float
    moved_relative: float
    far_points: int
    warning: str | None


@dataclass(frozen=True)
class Explanation:
    """What calibration did: `print` it, or take it as a dictionary or a data frame.

    Attributes
    ----------
    points : list of PointExplanation, one per support row
    classes : list of ClassExplanation, one per class, in the order of `classes_`
    metric : str
        What `distances` measure.
    typical_distance : float
        Median distance of a base class from the nearest other one, in the method's space.
    far_distance : float
        Beyond this distance from every base class a point counts as far.
    trust : float
        What all weights were multiplied by, 0 to 1: how far bank and support speak for calibration at all.
    warnings : list of str
        Plain words, empty when all is well.
    features : str
        What was done to the features first, as chosen from the base classes.
    """

    points: list[PointExplanation]
    classes: list[ClassExplanation]
    metric: str
    typical_distance: float
    far_distance: float
    trust: float
    warnings: list[str]
    features: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries and lists of plain values."""
        return asdict(self)

    def to_frame(self) -> pd.DataFrame:
        """One row for each pair of support point and base class (needs pandas)."""
        import pandas as pd

        columns = ["row", "label", "base", "distance", "weight", "share", "support_share", "moved", "moved_relative"]
        rows = [
            (p.row, p.label, base, d, w, c, p.support_share, p.moved, p.moved_relative)
            for p in self.points
            for base, d, w, c in zip(p.bases, p.distances, p.weights, p.shares, strict=True)
        ]
        return pd.DataFrame(rows, columns=columns)

    def __str__(self) -> str:
        lines = [f"warning: {w}" for w in self.warnings]
        if self.classes:
            lines.append(
                "class (shots): shares of its own points and of the nearest base classes in its mean; how far the mean "
                "moved (1 = the typical distance between neighbouring base classes)"
            )
        for c in self.classes[:_LINES]:
            parts = [f"itself {c.support_share:.0%}"]
            parts += [f"{b} {s:.0%}" for b, s in zip(c.bases[:3], c.shares[:3], strict=True)]
            if (rest := len(c.shares) - 3) > 0:
                parts.append(f"{rest} other{'s' * (rest > 1)} {sum(c.shares[3:]):.0%}")
            moved = f"moved {c.moved_relative:.2f}" if c.bases else "not moved"
            far = f"; {c.far_points} of {c.shots} points far from every base class" if c.far_points else ""
            lines.append(f"{c.label} ({c.shots}): {', '.join(parts)}; {moved}{far}")
        if len(self.classes) > _LINES:
            lines.append(f"… and {len(self.classes) - _LINES} more classes")
        if self.features:
            lines.append(f"features: {self.features}")
        return "\n".join(lines)


def no_bank_explanation(why: str = "no base classes were given (bank=None); give a bank to calibrate") -> Explanation:
    """For a classifier without base classes, or with a bank that is not used."""
    words = f"nothing was calibrated, answers come from your examples alone: {why}"
    return Explanation([], [], "none", float("nan"), float("nan"), 0.0, [words])


class SupportAnalysis:
    """What can be said of a fitted support set beside its predictions; computed when it is first asked for.

    Pickles hold the answers and not what they are computed from, so that base rows stay out of them.

    Parameters
    ----------
    method : Explainable
        Prepared.
    support : Tensor (1, S, D)
        In the method's space.
    labels : Tensor (1, S)
    classes : list
        Names of the classes 0..N−1.
    raw : Tensor (1, S, D)
        The support as it was given.
    """

    def __init__(
        self, method: Explainable, support: Tensor, labels: Tensor, classes: list[Hashable], raw: Tensor
    ) -> None:
        self._method, self._support, self._labels, self._classes, self._raw = method, support, labels, classes, raw

    @cached_property
    def explanation(self) -> Explanation:
        """What calibration did."""
        return explain_calibration(self._method, self._support, self._labels, self._classes, self._raw)

    @cached_property
    def outlier_test(self) -> OutlierTest:
        """The test of queries against base examples, on the CPU."""
        with torch.no_grad():
            rows = self._method.in_bank(self._support)
            centroids = class_means(rows, self._labels, len(self._classes))[0]
            return OutlierTest.from_bank(centroids, rows[0], self._labels[0], self._method.bank).to("cpu")

    @cached_property
    def offset(self) -> Tensor:
        """What brings rows of the method, `(R, ≥ D)`, into the space of the bank, `(D,)`."""
        return self._method.in_bank(torch.zeros_like(self._support[0, 0])).cpu()

    def in_bank(self, x: Tensor) -> Tensor:
        """Rows in the space of the bank."""
        return x[..., : len(self.offset)] + self.offset

    def __getstate__(self) -> dict[str, object]:
        return {"explanation": self.explanation, "outlier_test": self.outlier_test, "offset": self.offset}


def explain_calibration(
    method: Explainable, support: Tensor, labels: Tensor, classes: list[Hashable], raw: Tensor | None = None
) -> Explanation:
    """Explain a prepared method on the support `(1, S, D)` of one task, in its space, with `labels (1, S)`.

    `raw` is the support as it was given, as `TaskBatch` has it.
    """
    batch = TaskBatch(support, labels, len(classes), TaskRandom(0), raw=raw)
    with torch.no_grad():
        found = method.calibration(batch)
        trust, outside = method.trust(batch)
    support = method.in_bank(support)
    typical = _typical_distance(method.bank)
    points = _explain_points(method.bank, found, support[0], [classes[code] for code in labels[0].tolist()], typical)
    moved = class_means(found.mean - support, labels, len(classes))[0].norm(dim=1).tolist()
    by_class = [
        replace(c, moved=step, moved_relative=step / typical)
        for c, step in zip(_explain_classes(method.bank, found, points, labels, classes), moved, strict=True)
    ]
    warnings = _summary(by_class, float(trust))
    if outside is not None and bool(outside.all()):
        warnings.insert(
            0,
            "the support resembles no base class, so the base classes were not used: answers come from your examples "
            "alone; add base classes of the same domain",
        )
    elif method.partly_used is not None:
        warnings.insert(0, f"{method.partly_used}; the base classes have a say of {float(trust):.0%}")
    space = method.bank.transform
    return Explanation(
        points,
        by_class,
        method.params.metric,
        typical,
        _far_distance(method.bank),
        float(trust),
        warnings,
        "" if space is None else space.words,
    )


def _explain_points(
    bank: BaseBank, found: Calibration, support: Tensor, labels: list[Hashable], typical: float
) -> list[PointExplanation]:
    """One explanation for each row of `support (S, D)`."""
    far = _far_distance(bank)
    nearest = distances_of(support, bank, "euclidean").amin(dim=1).tolist()
    moved = (found.mean[0] - support).norm(dim=1).tolist()
    columns = (found.index, found.distances, found.weights, found.normalised)
    index, distances, weights, shares = (t[0].cpu().numpy() for t in columns)
    return [
        PointExplanation(
            row=i,
            label=label,
            bases=[bank.classes[j] for j in index[i]],
            distances=distances[i].tolist(),
            weights=weights[i].tolist(),
            shares=shares[i].tolist(),
            support_share=float(1 - shares[i].sum()),
            moved=moved[i],
            moved_relative=moved[i] / typical,
            nearest=nearest[i],
            far=nearest[i] > far,
        )
        for i, label in enumerate(labels)
    ]


def _explain_classes(
    bank: BaseBank, found: Calibration, points: list[PointExplanation], labels: Tensor, classes: list[Hashable]
) -> list[ClassExplanation]:
    """One explanation for each class, without how far it moved."""
    index, shares = (t[0].cpu().numpy() for t in (found.index, found.normalised))
    codes = labels[0].cpu().numpy()
    out = []
    members = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
    for rows, label in zip(members, classes, strict=True):
        bases, at = np.unique(index[rows], return_inverse=True)
        total = np.bincount(at.ravel(), shares[rows].ravel() / len(rows))
        order = [j for j in np.argsort(-total, kind="stable") if total[j] > 0]
        n_far = sum(points[i].far for i in rows)
        out.append(
            ClassExplanation(
                label=label,
                shots=len(rows),
                bases=[bank.classes[bases[j]] for j in order],
                shares=total[order].tolist(),
                support_share=float(1 - total.sum()),
                moved=0.0,
                moved_relative=0.0,
                far_points=n_far,
                warning=_in_words(label, n_far, len(rows), float(total.sum())),
            )
        )
    return out


def _in_words(label: Hashable, n_far: int, shots: int, share: float) -> str | None:
    if 2 * n_far >= shots:
        return f"class {label!r} may be too far from the base classes for them to help"
    if share < LOW_SHARE:
        return f"class {label!r} takes only {share:.1%} from the base classes, so calibration changes next to nothing"
    return None


def _summary(classes: list[ClassExplanation], trust: float) -> list[str]:
    """The warnings of single classes, or one for all of them where most have one."""
    out = [c.warning for c in classes if c.warning]
    if 2 * len(out) <= len(classes) or len(out) == 1:
        return out
    n_far = sum(2 * c.far_points >= c.shots for c in classes)
    if 2 * n_far > len(classes):
        return [
            f"{n_far} of {len(classes)} classes are farther from every base class than {FAR_QUANTILE:.0%} of base "
            "examples are from other base classes: these base classes are too far to help; use bases of the same "
            "domain, or compare with bank=None"
        ]
    if trust < LOW_SHARE:
        return [
            "the base classes are too few, too noisy or too unlike the support to be trusted (trust "
            f"{trust:.2f}), so next to nothing was calibrated; add base classes of the same domain, or set trust=1"
        ]
    return [
        f"{len(out)} of {len(classes)} classes take next to nothing from the base classes; a smaller m or "
        "distance_scale=1 would give distant base classes more weight"
    ]


def _typical_distance(seen: BaseBank) -> float:
    if len(seen) > 1:
        return nearest_class_distance(seen, "euclidean")
    return max(float(seen.pooled_covariance().diagonal().sum()) ** 0.5, 1e-12)


def _far_distance(seen: BaseBank) -> float:
    """Distance to the nearest base class beyond which a point has no relatives there.

    Measured on simulated base examples and the base classes that are not their own, so that it does not depend on
    whether a bank kept its rows.
    """

    def make() -> float:
        if len(seen) < 2:
            return 2 * _typical_distance(seen)
        classes = torch.linspace(0, len(seen) - 1, min(len(seen), _CLASSES_LOOKED_AT)).long()
        rows = simulated_rows(seen, classes, _ROWS_PER_CLASS, torch.Generator().manual_seed(0))
        d = distances_of(rows, seen)
        d[torch.arange(len(classes)), :, classes] = torch.inf
        return float(d.amin(dim=-1).flatten().sqrt().quantile(FAR_QUANTILE))

    return seen.memo.get("far", make)
