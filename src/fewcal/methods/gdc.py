"""GDC: generalized distribution calibration.

Kumar, Zaidi. GDC: generalized distribution calibration for few-shot learning. arXiv:2204.05230, 2022.
The paper's algorithm 1, stage by stage; every choice it leaves open is a field of `GDCParams`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, calibrate, scatter_dense, uses_gather
from fewcal.covariance import CalibratedCovariance, ShrunkCovariance, shares, shrink_covariance
from fewcal.domain_match import (
    confidence_scale,
    domain_match,
    domain_match_of,
    nearest_base_cosine,
    task_trust,
    unwhitening,
    whitening_shrinkage,
)
from fewcal.gaussianize import l2_normalise
from fewcal.heads.closed_form import closed_form_head
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead, class_means, class_sizes, nearest_mean_head
from fewcal.heads.sgd import sgd_head
from fewcal.methods.base import Head, Method, PrecomputedHead, Shared, once, require_raw, score, space_key
from fewcal.params import GDCParams

# Rows looked at together; fixed, so that what is known of a row depends on the split alone.
_KNOWN_ROWS = 2048
_SPACE_FIELDS = ("beta", "kind", "eps", "center", "l2")
# Probabilities sharpen with the number of shots by this power, because prototypes become more certain.
_SHOT_CONFIDENCE = 0.4
# The same scale as `confidence_scale`, for the plain classifier that answers strangers.
_PLAIN_CONFIDENCE = 15.0


class GDC(Method):
    """GDC with any `GDCParams`.

    With `cap_k` a k larger than the bank is brought down to its number of classes: right for a preset, which knows
    nothing of the bank, and wrong for a k that a person asked for.
    """

    name = "gdc"
    needs_bank = True

    def __init__(self, params: GDCParams, cap_k: bool = False) -> None:
        self.params = params
        self.cap_k = cap_k

    @property
    def settings(self) -> dict[str, Any]:
        return self.params.as_dict()

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        if self.cap_k:
            self.params = self.params.with_changes(k=min(self.params.k, len(bank)))
        p = self.params
        space: dict[str, Any] = {f: getattr(p, f) for f in _SPACE_FIELDS}
        # Rows in the new space are for class covariances; without transform_base only the transform is taken from it.
        space["moments"] = p.cov == "pooled" or not p.transform_base
        seen = bank.transformed(**space)
        whiten = whitening_shrinkage(seen, p.k) if p.whiten == "auto" else p.whiten
        if whiten is not False:
            seen = bank.transformed(**space, whiten=float(whiten))
        assert seen.transform is not None
        if not p.transform_base:
            require_raw(bank, "transform_base=False")
        self.bank = seen if p.transform_base else bank
        self._transform, self._space = seen.transform, (space_key(seen.transform, bank), whiten)
        return self

    @property
    def sampling_key(self) -> Hashable | None:
        if self.params.head == "closed_form":
            return None
        return ("samples", *self._stage_key(), self.params.n, self.params.n_per)

    @property
    def intraop_parallel(self) -> bool:
        return bool(self.params.head == "closed_form" and not self.bank.is_whitened)

    def trust(self, support: Tensor, shared: Shared = None) -> Tensor:
        """How much the base classes may say in each task, `(T,)`."""
        if self.params.trust == "auto":
            return task_trust(support, self.bank, self.params.k, self._kinship(support, shared))
        return support.new_full((len(support),), float(self.params.trust))

    def _kinship(self, support: Tensor, shared: Shared) -> Tensor:
        return cast(Tensor, once(shared, ("domain_match", self._space), lambda: domain_match(support, self.bank)))

    def strangers(self, support: Tensor, shared: Shared = None) -> Tensor | None:
        """Tasks left to the plain nearest centroid, `(T,)` bool; `None` where no task can be."""
        if self.params.trust != "auto" or self.params.head != "closed_form":
            return None
        return self._kinship(support, shared) <= 0

    def answers_plainly(self, support: Tensor, shared: Shared = None) -> bool:
        """Whether all tasks are left to the plain nearest centroid."""
        found = self.strangers(support, shared)
        return found is not None and bool(found.all())

    def calibrate(self, support: Tensor, labels: Tensor | None = None, shared: Shared = None) -> Calibration:
        """Neighbours, weights and calibrated means of support points `(T, S, D)` (eq. 4-8).

        `labels (T, S)` tell how many shots share a class; without them every point is taken as a single shot.
        """
        return self._pull(support, self._strength(support, labels, shared))

    def _strength(self, support: Tensor, labels: Tensor | None, shared: Shared) -> Tensor:
        """How far each support point is moved, `(T, S)`."""
        p = self.params
        strength = p.strength * self.trust(support, shared)[:, None].expand(support.shape[:2])
        if labels is not None and p.shot_decay:
            shots = class_sizes(labels).to(support.dtype)
            strength = strength / shots**p.shot_decay
        return strength

    def _pull(self, x: Tensor, strength: Tensor, move: bool = True) -> Calibration:
        p = self.params
        return calibrate(
            x,
            self.bank,
            k=p.k,
            m=p.m,
            metric=p.metric,
            delta=p.delta,
            unit=p.unit,
            unit_of=p.unit_of,
            strength=strength,
            move=move,
        )

    def known(self, z: Tensor) -> Tensor | None:
        """w of every row and base class (eq. 8), 0 for all but its k neighbours, and its cosine to them: `(R, C+1)`.

        Only for the discriminant in a whitened space, which needs no more than these.
        """
        p, bank = self.params, self.bank
        if p.head != "closed_form" or not bank.is_whitened or uses_gather(bank, p.k):
            return None
        with torch.no_grad():
            parts = [
                torch.cat([self._dense_weights(part), nearest_base_cosine(part, bank)[:, None]], dim=1)
                for part in z.split(_KNOWN_ROWS)
            ]
        return torch.cat(parts)

    def _dense_weights(self, x: Tensor) -> Tensor:
        """w of all base classes for `x (*B, D)`, `(*B, C)`."""
        found = self._pull(x, torch.ones_like(x[..., 0]), False)
        return scatter_dense(found.index, found.weights, len(self.bank))

    def shrunk(self, found: Calibration) -> ShrunkCovariance:
        """Σ'ₛ of each support point (eq. 5, 9)."""
        p = self.params
        covariance = CalibratedCovariance(self.bank, p.cov, found.index, shares(found, p.cov_weights), p.common_size)
        return shrink_covariance(covariance, p.alpha1, p.alpha2_ratio, off_diagonal=p.off_diagonal, psd=p.psd)

    def fit(
        self,
        support: Tensor,
        labels: Tensor,
        n_classes: int,
        random: TaskRandom,
        shared: Shared = None,
        known: Tensor | None = None,
    ) -> Head:
        p = self.params
        shared = {} if shared is None else shared
        with torch.no_grad():
            if known is not None:
                shared["domain_match", self._space] = domain_match_of(known[..., -1], self.bank)
                weights = known[..., :-1] * self._strength(support, labels, shared)[..., None]
                mean = (support + weights @ self.bank.means) / (1 + weights.sum(dim=-1, keepdim=True))
                head: Head = self._nearest_mean(mean, labels, n_classes)
            else:
                found, shrunk = self.calibrated(support, labels, shared)
                head = self._head(support, labels, n_classes, found, shrunk, random, shared)
            if p.query_pull:
                head = QueryCalibratedHead(head, self, p.query_pull * self.trust(support, shared))
            strangers = self.strangers(support, shared)
            if strangers is None or not bool(strangers.any()):
                return head
            back = unwhitening(self.bank)
            means = class_means(l2_normalise(support @ back), labels, n_classes)
            scale = _PLAIN_CONFIDENCE * (labels.shape[1] / n_classes) ** _SHOT_CONFIDENCE
            return FallbackHead(head, nearest_mean_head(means, 1 / scale), strangers, back)

    def _head(
        self,
        support: Tensor,
        labels: Tensor,
        n_classes: int,
        found: Calibration,
        shrunk: ShrunkCovariance,
        random: TaskRandom,
        shared: Shared,
    ) -> Head:
        p = self.params
        if p.head == "closed_form" and self.bank.is_whitened:
            return self._nearest_mean(found.mean, labels, n_classes)
        if p.head == "closed_form":
            return closed_form_head(found.mean, labels, n_classes, shrunk)
        # Heads that train on the same points get the same points: each stage has a stream of its own.
        x, y = once(
            shared,
            self.sampling_key,
            lambda: augment(support, labels, found.mean, shrunk, p.n, p.n_per, random),
        )
        if p.head == "lbfgs":
            return lbfgs_head(x, y, n_classes, C=p.C)
        if p.head == "sgd":
            return sgd_head(x, y, n_classes, TaskRandom(random.seed, random.tasks, random.device, stream=1))
        return SklearnHead(p.head, x, y, n_classes)

    def _nearest_mean(self, mean: Tensor, labels: Tensor, n_classes: int) -> LinearHead:
        """The discriminant in a whitened space, where the shared covariance is the unit matrix."""
        shots = labels.shape[1] / n_classes
        scale = confidence_scale(self.bank) * shots**_SHOT_CONFIDENCE
        return nearest_mean_head(class_means(mean, labels, n_classes), 1 / scale)

    def calibrated(self, support: Tensor, labels: Tensor, shared: Shared) -> tuple[Calibration, ShrunkCovariance]:
        """`calibrate` and `shrunk`, once for all who share."""

        def make() -> tuple[Calibration, ShrunkCovariance]:
            found = self.calibrate(support, labels, shared)
            return found, self.shrunk(found)

        return cast(tuple[Calibration, ShrunkCovariance], once(shared, ("calibration", *self._stage_key()), make))

    def _stage_key(self) -> tuple[Hashable, ...]:
        values = self.params.as_dict()
        return (self._space, *(v for f, v in values.items() if f not in ("n", "n_per", "head", "C")))

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        p = self.params
        if p.head == "closed_form":
            if self.bank.is_whitened:
                return 16 * n_support * max(dim, len(self.bank)) * 4
            size = len(self.bank) * int(self.bank.counts.max())
            return 4 * 4 * (size * min(n_support, 64) // 4 + n_support * dim)
        rows = dim if p.cov == "pooled" else int(self.bank.counts.min())
        rows *= p.k if p.cov == "independent" else 1
        return sampled_bytes(n_support, n_classes, dim, rows, p.n, p.n_per)


def sampled_bytes(n_support: int, n_classes: int, dim: int, factor_rows: int, n: int, n_per: str) -> int:
    """Memory of one task that draws samples: factors, points, and what the head needs beside them."""
    points = (n_support if n_per == "point" else n_classes) * n
    return 4 * dim * (n_support * factor_rows + 2 * points)


def points_per_support(labels: Tensor, n: int, n_per: str) -> np.ndarray:
    """How many points each support point contributes, `(T, S)`: n each, or n for each class shared among its shots.

    >>> points_per_support(torch.tensor([[0, 0, 1]]), 750, "class")
    array([[375, 375, 750]])
    """
    if n_per == "point":
        return np.full(labels.shape, n)
    return np.maximum(n // class_sizes(labels).cpu().numpy(), 1)


def augment(
    support: Tensor,
    labels: Tensor,
    mean: Tensor,
    covariance: ShrunkCovariance,
    n: int,
    n_per: str,
    random: TaskRandom,
) -> tuple[Tensor, Tensor]:
    """Support ∪ samples (eq. 10-11): points `(T, M, D)` and labels `(T, M)`.

    With unequal shots tasks are handled one by one; all tasks of a batch must then end with the same M.
    """
    t, s, d = support.shape
    counts = points_per_support(labels, n, n_per)
    gaussian = covariance.gaussian(mean)
    if (counts == counts[0, 0]).all():
        each = int(counts[0, 0])
        x = torch.empty(t, s + s * each, d, dtype=support.dtype, device=support.device)
        x[:, :s] = support
        gaussian.sample(each, random, out=x[:, s:].view(t, s, each, d))
        return x, torch.cat([labels, labels.repeat_interleave(each, dim=1)], dim=1)
    if t > 1:
        raise ValueError("unequal shots are for one task at a time")
    x = torch.empty(1, s + int(counts.sum()), d, dtype=support.dtype, device=support.device)
    x[:, :s] = support
    begin = s
    for i, each in enumerate(counts[0].tolist()):
        one = type(gaussian)(
            gaussian.mean[:, i : i + 1],
            gaussian.factor[:, i : i + 1],
            None if gaussian.a is None else gaussian.a[:, i : i + 1],
            gaussian.b[:, i : i + 1],
        )
        x[:, begin : begin + each] = one.sample(each, random)[:, 0]
        begin += each
    repeats = torch.from_numpy(counts[0]).to(labels.device)
    return x, torch.cat([labels, labels[0].repeat_interleave(repeats)[None]], dim=1)


class QueryCalibratedHead(PrecomputedHead):
    """A head whose queries are calibrated as the support was, each task with its own strength `(T,)`."""

    def __init__(self, head: Head, method: GDC, strength: Tensor) -> None:
        self.head, self.method, self.strength = head, method, strength

    def logits(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `(T, Q, D)`; `known (T, Q, C+1)` is what `GDC.known` says of them."""
        with torch.no_grad():
            method, strength = self.method, self.strength[:, None]
            if not isinstance(self.head, LinearHead) or uses_gather(method.bank, method.params.k):
                return self.head.logits(method._pull(x, strength.expand(x.shape[:2]), True).mean)
            # The scores are linear, so the base means are scored instead of moved queries: (x + Σwμ)·W = x·W + Σw(μ·W).
            weight = self.head.weight.mT
            every = method._dense_weights(x) if known is None else known[..., :-1]
            scores = torch.baddbmm(x @ weight, every, method.bank.means @ weight * strength[..., None])
            share = 1 + strength[..., None] * every.sum(dim=-1, keepdim=True)
            return scores.div_(share).add_(self.head.bias[:, None, :])


@dataclass(frozen=True, eq=False)
class FallbackHead(PrecomputedHead):
    """A head in a whitened space that leaves some tasks to the plain nearest centroid.

    Attributes
    ----------
    head : Head
    plain : LinearHead
        Nearest centroid in the space before whitening.
    strangers : Tensor (T,) bool
        Tasks that it answers.
    back : Tensor (D, D)
        Undoes the whitening.
    """

    head: Head
    plain: LinearHead
    strangers: Tensor
    back: Tensor

    def logits(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `(T, Q, D)`; `known` is for the head."""
        out = score(self.head, x, known).clone()
        at = self.strangers
        chosen = LinearHead(self.plain.weight[at], self.plain.bias[at])
        out[at] = chosen.logits(l2_normalise(x[at] @ self.back))
        return out


class SklearnHead:
    """Any scikit-learn classifier, trained task by task on support ∪ samples."""

    def __init__(self, classifier: Any, x: Tensor, y: Tensor, n_classes: int) -> None:
        from sklearn.base import clone

        self.n_classes = n_classes
        self.fitted = [
            clone(classifier).fit(points, target)
            for points, target in zip(x.cpu().numpy(), y.cpu().numpy(), strict=True)
        ]

    def logits(self, x: Tensor) -> Tensor:
        """Log-probabilities where the classifier has them, its decision values otherwise, else the predicted class."""
        scores = [self._scores(c, rows) for c, rows in zip(self.fitted, x.cpu().numpy(), strict=True)]
        return torch.from_numpy(np.stack(scores)).to(x)

    def _scores(self, classifier: Any, rows: np.ndarray) -> np.ndarray:
        if hasattr(classifier, "predict_proba"):
            return np.log(np.maximum(classifier.predict_proba(rows), 1e-12))
        if hasattr(classifier, "decision_function"):
            values = classifier.decision_function(rows)
            return np.stack([-values, values], axis=1) if values.ndim == 1 else values
        return np.where(np.arange(self.n_classes) == classifier.predict(rows)[:, None], 0.0, -10.0)
