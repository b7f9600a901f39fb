"""Statements of the paper and what is found: paired differences with intervals that allow for several looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fewcal.evaluation.stats import Paired, paired

# Tasks in which two methods differ, at least, for an interval by Student's t; and tasks in all. Accuracies go in steps
# of a 75th, and a few may agree by chance.
MIN_DIFFERENT, MIN_TASKS = 20, 5


@dataclass(frozen=True)
class Claim:
    """That the mean accuracy of the rows `above` is above that of the rows `below`, by their labels.

    With `margin` the claim is that both differ by less than that.
    """

    text: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    margin: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All rows that it is about."""
        return (*self.above, *self.below)


@dataclass(frozen=True)
class Verdict:
    """A statement of the paper and what is found.

    Attributes
    ----------
    claim, where, found : str
    variant : str
        What ran, see `fewcal.paper.settings.VARIANTS`.
    holds : bool or None
        None where the interval has both signs.
    control : str
        The difference from the control: the same transform, scale and kind of head without calibration.
    above_control : bool or None
        None where that interval has both signs, or without a control.
    """

    claim: str
    where: str
    variant: str
    found: str
    holds: bool | None
    control: str = ""
    above_control: bool | None = None

    @property
    def word(self) -> str:
        """The verdict in words."""
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]

    def to_dict(self) -> dict[str, str]:
        """Plain values, for JSON."""
        own = {name: getattr(self, name) for name in ("claim", "variant", "found", "control")}
        return own | {"features": self.where, "verdict": self.word}


def judge(
    claim: Claim, accuracy: Callable[[str], np.ndarray], where: str, variant: str, control: str = "", looks: int = 1
) -> Verdict:
    """The verdict on a claim from accuracies of tasks by label, each `(T,)`; `control` is the label of the control."""
    gain = difference(accuracy, claim.above, claim.below, looks)
    holds = decided(gain)
    if claim.margin is not None:
        low, high = gain.difference - gain.ci95, gain.difference + gain.ci95
        inside, outside = -claim.margin < low and high < claim.margin, low > claim.margin or high < -claim.margin
        holds = True if inside else False if outside else None
    if not control:
        return Verdict(claim.text, where, variant, gain_text(gain), holds)
    other = difference(accuracy, claim.above, (control,), looks)
    return Verdict(claim.text, where, variant, gain_text(gain), holds, gain_text(other), decided(other))


def difference(
    accuracy: Callable[[str], np.ndarray], above: Sequence[str], below: Sequence[str], looks: int = 1
) -> Paired:
    """Mean of some rows minus mean of others on the tasks that all have, with an interval valid after several looks.

    Each of the looks has an interval at 1 − 0.05/looks (Bonferroni), so that all of them hold together at 95%.
    """
    rows = {label: accuracy(label) for label in (*above, *below)}
    n = min(map(len, rows.values()))
    a, b = (np.mean([rows[label][:n] for label in side], axis=0) for side in (above, below))
    found = paired(a, b, above[0], below[0])
    return found if looks == 1 else _widened(found, looks)


def _widened(found: Paired, looks: int) -> Paired:
    from dataclasses import replace

    from scipy.stats import t

    factor = t.ppf(1 - 0.025 / looks, found.n - 1) / t.ppf(0.975, found.n - 1)
    return replace(found, ci95=float(found.ci95 * factor))


def decided(p: Paired) -> bool | None:
    """The sign of a difference: True above 0, None where the interval has both signs or few tasks differ."""
    enough = p.n >= MIN_TASKS and round((p.won + p.lost) * p.n) >= min(MIN_DIFFERENT, p.n / 2)
    return p.difference > 0 if enough and math.isfinite(p.ci95) and abs(p.difference) > p.ci95 else None


def gain_text(p: Paired) -> str:
    """A difference ± its half-width in points; four digits for a small one that many tasks resolve."""
    if p.won + p.lost == 0:
        return f"equal on {p.n} tasks"
    digits = 4 if 0 < p.ci95 < 0.5e-4 and decided(p) is not None else 2
    half = f" ± {100 * p.ci95:.{digits}f}" if math.isfinite(p.ci95) else ""
    return f"{points(p.difference, digits)}{half} ({p.n} tasks)"


def points(share: float, digits: int = 2) -> str:
    """A difference of accuracies in points.

    >>> points(-0.0123), points(-1e-9), points(0.000024, 4)
    ('−1.23', '+0.00', '+0.0024')
    """
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}".replace("-", "−")


def within(mean: float, half: float, limit: float) -> bool | None:
    """Whether a mean is below a limit; None where its interval has the limit inside."""
    return None if abs(mean - limit) <= half else mean < limit


def count_verdicts(verdicts: Iterable[Verdict]) -> dict[str, dict[str, int]]:
    """Verdicts counted by variant.

    >>> count_verdicts([Verdict("x", "here", "as printed", "+1", True)])
    {'as printed': {'holds': 1, 'does not hold': 0, 'undecided': 0}}
    """
    out: dict[str, dict[str, int]] = {}
    for v in verdicts:
        out.setdefault(v.variant, {"holds": 0, "does not hold": 0, "undecided": 0})[v.word] += 1
    return out
