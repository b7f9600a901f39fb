"""What base classes contributed to a fitted classifier, in numbers and in words."""

from __future__ import annotations

import html
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fewcal._utils.tables import html_table

if TYPE_CHECKING:
    import pandas as pd

    from fewcal.methods.base import Contributions

# Lines of the text that are printed, and base classes of each.
MAX_LINES, MAX_BASES = 20, 3
# Weight of the base classes below which a fit warns, and share of an offset above which it does.
LOW_WEIGHT, HIGH_OFFSET = 0.5, 0.2


@dataclass(frozen=True)
class ClassExplanation:
    """One class: what its calibrated mean consists of.

    Attributes
    ----------
    label : hashable
    shots : int
        Examples of it.
    own_share : float
        Share of its examples in the mean.
    bases : list of hashable
        Base classes, that of the largest share first.
    shares : list of float
        Their shares in the mean.
    moved : float
        How far calibration moved the mean of the examples; 1 is the typical distance between neighbouring base classes.
    """

    label: Hashable
    shots: int
    own_share: float
    bases: list[Hashable]
    shares: list[float]
    moved: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """What base classes contributed: `print` it, or take it as a dictionary or a data frame.

    Attributes
    ----------
    classes : list of ClassExplanation, in the order of `classes_`
    weight : float
        Weight of the base classes in the answers, 0 to 1.
    offset : float
        Share of the mean of all classes that lies outside of the domain of the base classes, 0 to 1.
    features : str
        The transform of the features.
    notes : list of str
        What to know when using the answers.
    """

    classes: list[ClassExplanation]
    weight: float
    offset: float
    features: str
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries and lists of plain values."""
        return asdict(self)

    def to_frame(self) -> pd.DataFrame:
        """One row for each pair of class and base class (needs pandas)."""
        import pandas as pd

        columns = ["label", "shots", "own_share", "base", "share", "moved"]
        rows = [
            (c.label, c.shots, c.own_share, base, share, c.moved)
            for c in self.classes
            for base, share in zip(c.bases, c.shares, strict=True)
        ]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        if self.classes:
            lines.append("class (examples): shares of its own examples and of base classes in its mean")
        for c in self.classes[:MAX_LINES]:
            lines.append(f"{c.label} ({c.shots}): {', '.join(_shares(c))}; moved {c.moved:.2f}")
        if len(self.classes) > MAX_LINES:
            lines.append(f"… and {len(self.classes) - MAX_LINES} more classes")
        if self.features:
            lines.append(f"features: {self.features}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        head = ["class", "examples", "its mean consists of", "moved"]
        rows = [[str(c.label), str(c.shots), ", ".join(_shares(c)), f"{c.moved:.2f}"] for c in self.classes[:MAX_LINES]]
        if (more := len(self.classes) - MAX_LINES) > 0:
            rows.append([f"… and {more} more classes", "", "", ""])
        return notes + html_table(head, rows) if rows else notes


def _shares(c: ClassExplanation) -> list[str]:
    parts = [f"itself {c.own_share:.0%}"]
    # A number for a name would read like another share.
    names = [b if isinstance(b, str) else f"base class {b}" for b in c.bases]
    parts += [f"{b} {s:.0%}" for b, s in zip(names[:MAX_BASES], c.shares[:MAX_BASES], strict=True)]
    if rest := c.shares[MAX_BASES:]:
        parts.append(f"{len(rest)} other{'s' * (len(rest) > 1)} {sum(rest):.0%}")
    return parts


def explain_contributions(found: Contributions, labels: list[Hashable], shots: list[int], features: str) -> Explanation:
    """Explain what base classes contributed to the first task of a batch, whose classes have `labels` and `shots`."""
    shares = found.shares[0].double().cpu().numpy()
    own, moved = 1 - shares.sum(axis=1), found.moved[0].tolist()
    classes = []
    for i, label in enumerate(labels):
        order = [int(j) for j in np.argsort(-shares[i], kind="stable") if shares[i, j] > 0]
        bases = [found.bases[j] for j in order]
        classes.append(ClassExplanation(label, shots[i], float(own[i]), bases, shares[i, order].tolist(), moved[i]))
    return Explanation(classes, found.weight, float(found.offset[0]), features, notes(found, shots))


def notes(found: Contributions, shots: list[int]) -> list[str]:
    """What to know when using the answers of the first task, from the gravest on."""
    out = []
    if found.weight == 0:
        return ["The base classes do not differ beyond chance and are not used; check their labels."]
    if (offset := float(found.offset[0])) > HIGH_OFFSET:
        out.append(
            f"{offset:.0%} of what your classes have in common lies outside of the domain of the base classes; "
            "base classes of the same domain would help more."
        )
    if found.weight < LOW_WEIGHT:
        out.append(f"Base classes get weight {found.weight:.2f}: they are few. More of them would help.")
    if max(shots) < 3:
        out.append(
            "With fewer than three examples a class nothing shows how sure to be: probabilities rest on tasks of base "
            "classes. calibrate(X_val, y_val) takes validation classes."
        )
    return out


def no_bank_explanation() -> Explanation:
    """For a classifier without base classes."""
    return Explanation([], 0.0, 0.0, "unit length", ["No base classes were given: answers come from your examples."])
