r"""Did the extractor learn the base classes by heart? Then new classes lie closer together than base classes do.

A network that was trained on the base classes drives these apart, and new classes have about a third of the variance
between their means; of an extractor that never saw them, base classes tell how far apart new ones are. How sure an
answer can be hangs on which of the two it is. Three signs tell, two of them by the length ℓ of rows less the mean of
all:

1. Where classes were learnt, a row lies the further from the centre the more it shows of its class: ρ is the
   correlation of log ℓ with the cosine of a row with the mean of its class, within classes. It is taken with rows as
   they are and with rows of unit length, and the less of the two counts.
2. Base classes that are told apart far better than the guess of γ has it: γ of their tasks is g times that guess.
3. Rows of new classes excite such a network less, and are shorter: d is by how much the mean of log ℓ of the examples
   of a task falls short of that of base rows, in standard deviations of these.

With N classes the log-odds of having learnt are

    clip((ρ − 1/3)/0.05, −2, 3) + clip(2 log(g/2.5), 0, 3) + log N(d; 0.9, 0.4² + 1/N) − log N(d; 0, 0.15² + 1/N)

where what d tells is at most 2, since other things shorten rows too, such as principal components of base rows.

Constants were chosen on validation classes of 37 feature sets, and are not sharp: a quarter more or less of one of them
changes the calibration error by less than 0.001 on average.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Of the variance between the means of learnt base classes, what new classes have.
NEW_SHARE = 1 / 3
# ρ at which nothing is told, and what a unit of log-odds is; the least and the most that a bank tells.
_EVEN, _UNIT, _LEAST, _MOST = 1 / 3, 0.05, -2.0, 3.0
# γ of tasks of base classes, in units of the guess, from which on they tell.
_SHARPER = 2.5
# Mean and standard deviation of d where classes were learnt, and its deviation where they were not.
_SHORT, _SHORT_WIDTH, _WIDTH = 0.9, 0.4, 0.15
# The most that lengths of examples tell, in log-odds.
_MOST_OF_LENGTH = 2.0


def within_correlation(a: Tensor, b: Tensor) -> float:
    """The correlation of `a` and `b (..., P)` around their means over the last axis; 0 where either does not vary.

    >>> up = torch.tensor([[1.0, 2.0], [7.0, 8.0]])
    >>> within_correlation(up, up.sqrt()) > 0.9, within_correlation(up, torch.ones(2, 2))
    (True, 0.0)
    """
    a, b = (v.double() - v.double().mean(dim=-1, keepdim=True) for v in (a, b))
    return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-12))


class BankSigns(NamedTuple):
    """What a bank tells of having been learnt.

    `learnt` are log-odds, `length` and `spread` mean and standard deviation of log ℓ of its rows; a spread of 0 where
    rows have lost their length.
    """

    learnt: float
    length: float
    spread: float


def learnt_by_bank(sharper: float, rows: Tensor, means: Tensor, given: Tensor, log_length: Tensor | None) -> BankSigns:
    """The signs of a bank.

    Parameters
    ----------
    sharper : float
        γ of tasks of base classes, in units of the guess.
    rows : Tensor (..., P, D)
        P rows of each class, where its mean is `means (..., 1, D)`.
    given : Tensor (..., P, D)
        The same rows as the extractor gave them.
    log_length : Tensor (..., P, 1) or None
        Their log ℓ, where they have not lost it.
    """
    told = min(_MOST, 2 * max(0.0, math.log(sharper / _SHARPER)))
    if log_length is None:
        return BankSigns(told, 0.0, 0.0)
    resemblance = torch.cosine_similarity(rows, means, dim=-1)
    unit = torch.nn.functional.normalize(given, dim=-1)
    directions = (unit - unit.flatten(0, -2).mean(dim=0)).norm(dim=-1).clamp(min=1e-12).log()
    rho = min(within_correlation(length, resemblance) for length in (log_length.squeeze(-1), directions))
    told += min(_MOST, max(_LEAST, (rho - _EVEN) / _UNIT))
    return BankSigns(told, float(log_length.mean()), float(log_length.std()))


def learnt(by_bank: float, shortfall: Tensor | None, n_classes: int) -> Tensor | float:
    """The probability that base classes were learnt, for d `(T,)` of tasks of N classes; None where d is not known.

    >>> learnt(0.0, torch.tensor([-0.2, 0.0, 0.45, 1.0]), 20).round(decimals=2)
    tensor([0.0800, 0.0800, 0.5900, 0.8800])
    >>> round(learnt(0.0, None, 20), 2), round(learnt(3.0, None, 20), 2)
    (0.5, 0.95)
    """
    if shortfall is None:
        return 1 / (1 + math.exp(-by_bank))
    new, old = _SHORT_WIDTH**2 + 1 / n_classes, _WIDTH**2 + 1 / n_classes
    d = shortfall.clamp(min=0)  # longer rows than those of base classes tell no more than rows as long
    odds = (d.square() / old - (d - _SHORT).square() / new) / 2 + math.log(old / new) / 2
    return torch.sigmoid(odds.clamp(max=_MOST_OF_LENGTH) + by_bank)


def with_new_classes(rows: Tensor, means: Tensor, count: float, origin: Tensor | None = None) -> Tensor:
    r"""Rows `(G, N, P, D)` of base classes, and as new classes would have them if these were learnt, `(2, G, N, P, D)`.

    `means (G, N, 1, D)` are of `count` rows. With B the variance of the class means, less its noise W/n, and W that
    within a class, the second are

        s·mean + b·(row − mean),    b² = 1 + (1 − f)B/W,    s² = (fB + b²W/n) / (B + W/n),    f = 1/3

    of unit length again; rows and means are told less `origin`. Two rows of a class then have fB in common and rows are
    as long as before, on average; W/n is there because a row lies nearer to a mean that it is part of.
    """
    deviations = rows - means
    within = deviations.square().sum(dim=-1).mean().clamp(min=1e-12) * count / max(count - 1, 1)
    noise = within / count
    between = (means.square().sum(dim=-1).mean() - noise).clamp(min=0)
    wider = 1 + (1 - NEW_SHARE) * between / within
    nearer = (NEW_SHARE * between + wider * noise) / (between + noise)
    new = nearer.sqrt() * means + wider.sqrt() * deviations
    if origin is not None:
        new = new + origin
    new = torch.nn.functional.normalize(new, dim=-1)
    return torch.stack([rows, new if origin is None else new - origin])
