"""Heads made of heads: queries calibrated as the support was, and a plain answer to out-of-domain tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal.calibrate import Calibrator, uses_gather
from fewcal.gaussianize import l2_normalise
from fewcal.heads.base import Head, TaskBatch
from fewcal.heads.closed_form import SHOT_CONFIDENCE
from fewcal.heads.linear import LinearHead, class_means, nearest_mean_head

# The same scale as `confidence_scale`, for the plain classifier that answers out-of-domain tasks.
_PLAIN_CONFIDENCE = 15.0


@dataclass(frozen=True, eq=False)
class QueryCalibratedHead(Head):
    """A head whose queries are calibrated as the support was, each task with its own strength `(T,)`."""

    head: Head
    calibrator: Calibrator
    strength: Tensor

    def logits(self, x: Tensor, precomputed: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `(T, Q, D)`; `precomputed (T, Q, C+1)` is what `GDC.precompute` says of them."""
        with torch.no_grad():
            if not isinstance(self.head, LinearHead) or uses_gather(self.calibrator.bank, self.calibrator.k):
                strength = self.strength[:, None].expand(x.shape[:2])
                return self.head.logits(self.calibrator.calibrate(x, strength).mean)
            every = None if precomputed is None else precomputed[..., :-1]
            scores = self.calibrator.linear_scores(x, self.head.weight, self.strength, every)
            return scores.add_(self.head.bias[:, None, :])

    def __getstate__(self) -> dict[str, object]:
        """Without the bank that the calibrator's was whitened from: base rows stay out of pickles."""
        return self.__dict__ | {"calibrator": self.calibrator.to(self.strength.device)}

    def to(self, device: torch.device | str) -> QueryCalibratedHead:
        calibrator = self.calibrator.to(device)
        if calibrator is self.calibrator:
            return self
        return QueryCalibratedHead(self.head.to(device), calibrator, self.strength.to(device))


@dataclass(frozen=True, eq=False)
class FallbackHead(Head):
    """A head in a whitened space that leaves out-of-domain tasks to the plain nearest centroid.

    Attributes
    ----------
    head : Head
    plain : LinearHead
        Nearest centroid in the space before whitening.
    out_of_domain : Tensor (T,) bool
        Tasks that it answers.
    back : Tensor (D, D)
        Undoes the whitening.
    """

    head: Head
    plain: LinearHead
    out_of_domain: Tensor
    back: Tensor

    def logits(self, x: Tensor, precomputed: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `(T, Q, D)`; `precomputed` is for the head."""
        out = self.head.logits(x, precomputed).clone()
        at = self.out_of_domain
        chosen = LinearHead(self.plain.weight[at], self.plain.bias[at])
        out[at] = chosen.logits(l2_normalise(x[at] @ self.back))
        return out

    def to(self, device: torch.device | str) -> FallbackHead:
        head = self.head.to(device)
        if head is self.head:
            return self
        return FallbackHead(head, self.plain.to(device), self.out_of_domain.to(device), self.back.to(device))


def with_fallback(head: Head, batch: TaskBatch, back: Tensor, out_of_domain: Tensor) -> FallbackHead:
    """The head with a nearest centroid for `out_of_domain (T,)` tasks, in the space that `back (D, D)` leads to."""
    means = class_means(l2_normalise(batch.support @ back), batch.labels, batch.n_classes)
    scale = _PLAIN_CONFIDENCE * batch.shots**SHOT_CONFIDENCE
    return FallbackHead(head, nearest_mean_head(means, 1 / scale), out_of_domain, back)
