r"""Names of classes: a second term of the neighbour weights.

A text encoder embeds the names. With s_nb the cosine between class n and base class b, less the mean name and in units
of its spread over pairs of base classes,

    w_nb = softmax_b(−τ ‖x̄_n − M_b‖² / u + ν s_nb).

ν is the weight for which the neighbours of base classes, from one noisy example each, predict their means best:

    ν = argmin Σ_b ‖M_b − c Σ_{b'≠b} w_bb'(M_b + ε_b) M_b'‖²,    ε_b ~ N(0, diag(within)).

Where names carry no information (numbers, codes) ν is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fewcal.hgdc.prior import Prior

# Nodes of ν, draws of the noise, and the smallest share of the error by which names must lower it.
WEIGHTS, DRAWS, MIN_GAIN = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0), 4, 0.005

Embed: TypeAlias = "Callable[[Sequence[str]], np.ndarray]"


def plain_name(name: Hashable) -> str:
    """A name as words: without numbers and codes.

    >>> plain_name("004.Groove_billed_Ani"), plain_name("n01443537")
    ('groove billed ani', '')
    """
    words = re.split(r"[\W_]+", str(name).lower())
    return " ".join(w for w in words if w and not any(letter.isdigit() for letter in w))


def name_scores(prior: Prior, names: Sequence[Hashable], embed: Embed) -> Tensor:
    """ν s `(N, C)` of classes with these names; 0 where names do not help to find neighbours of base classes."""
    base, new = ([plain_name(n) for n in group] for group in (prior.classes, names))
    zero = prior.base_means.new_zeros(len(new), len(base))
    if len(set(base)) < len(base) // 2 + 1 or not any(new):  # most base classes have no name of their own
        return zero
    parts = [np.asarray(embed([n or "?" for n in group]), np.float32) for group in (base, new)]
    vectors = torch.nn.functional.normalize(torch.from_numpy(np.concatenate(parts)), dim=1)
    centred = vectors - vectors[: len(base)].mean(dim=0)
    across = centred[: len(base)] @ centred[: len(base)].T
    pairs = ~torch.eye(len(base), dtype=torch.bool)
    spread = across[pairs].std().clamp(min=1e-6)
    weight = name_weight(prior, (across / spread).to(zero))
    scores = weight * (centred[len(base) :] @ centred[: len(base)].T / spread).to(zero)
    return torch.where(torch.tensor([bool(n) for n in new], device=zero.device)[:, None], scores, zero)


def name_weight(prior: Prior, scores: Tensor) -> float:
    """ν for scores `(C, C)` between base classes."""
    means, generator = prior.base_means, torch.Generator().manual_seed(0)
    noise = torch.randn(DRAWS, *means.shape, generator=generator).to(means)
    rows = means + noise * prior.within.sqrt()
    not_itself = torch.zeros_like(scores).fill_diagonal_(-torch.inf)

    def error(weight: float) -> float:
        near = prior.share * (prior.neighbour_weights(rows, weight * scores + not_itself) @ means)
        return float((means - near).square().sum())

    best = min(WEIGHTS, key=error)
    return best if error(best) < (1 - MIN_GAIN) * error(0.0) else 0.0
