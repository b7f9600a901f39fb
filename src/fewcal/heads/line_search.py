"""How far to go along a step of L-BFGS: convex functions of one variable, one for each task."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Slopes below this are lost in the rounding of the loss: the step is taken as it is, a search would follow noise.
ROUNDING = 1e-7
MOST_ROUNDS = 30
# A shorter step is none: rounding hides what is left to gain. Where none has been found for as many iterations as are
# remembered, none will be.
NO_STEP = 1e-12


class Slopes(NamedTuple):
    """At the start of a step, each `(T,)`: the slope, of which the penalty has so much, and the penalty's curvature."""

    slope: np.ndarray
    penalty: np.ndarray
    penalty_curvature: np.ndarray


def line_search(
    look: Callable[[np.ndarray], np.ndarray], start: np.ndarray, slopes: Slopes, curvature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Length of the step of each task, `(T,)`, the last that was looked at, and the loss there, `(T,)`.

    Newton on a convex function of one variable, inside a bracket. On large features the first steps can be far too long
    and the softmax saturated all the way, where Newton is blind: a point uphill of the start is never taken, and the
    bracket closes by tenths until one lies downhill. A task that has found its length keeps it, whatever the others do.

    Parameters
    ----------
    look : callable
        Mean loss, slope and curvature without the penalty, `(3, T)`, at a length `(T,)`.
    start : array (T,)
        The loss at length 0, without the penalty.
    slopes : Slopes
    curvature : float
        A step is taken when the slope at its end is so small beside that at its start (the strong Wolfe condition).
    """
    slope, linear, quadratic = slopes
    low, high, t = np.zeros_like(slope), np.full_like(slope, np.inf), np.ones_like(slope)
    found = slope >= 0  # tasks that do not move
    for round_ in range(MOST_ROUNDS):
        loss, change, bend = look(t)
        rise = loss - start + t * linear + 0.5 * t**2 * quadratic
        downhill = rise <= 1e-5 * start + 1e-7  # more would not be rounding
        here = change + linear + t * quadratic
        flat = (np.abs(here) <= curvature * np.abs(slope)) | (np.abs(slope) <= ROUNDING * (1 + start))
        found = found | (downhill & flat)
        if found.all() or round_ == MOST_ROUNDS - 1:
            return t, loss
        low = np.where((here < 0) & downhill, t, low)
        high = np.where((here >= 0) | ~downhill, t, high)
        newton = t - here / np.maximum(bend + quadratic, 1e-20)
        inside = downhill & (newton > low) & (newton < high)
        middle = np.where(np.isinf(high), 2 * t, np.where(low > 0, 0.5 * (low + high), 0.1 * high))
        t = np.where(found, t, np.where(inside, np.minimum(newton, 1e4), middle))
    raise AssertionError("unreachable")
