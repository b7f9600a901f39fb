"""Controls of a verdict: what the same space gives without calibration, and what another draw of points gives."""

from __future__ import annotations

from dataclasses import replace

import torch

from fewcal._utils.randomness import TaskRandom
from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.heads.sgd import sgd_head
from fewcal.methods.base import Head, Method, Shared, TaskBatch
from fewcal.methods.gdc import GDC
from fewcal.methods.ncm import NearestCentroid
from fewcal.params import GDCParams

# What verdicts about accuracy are compared with, in words.
CONTROL = "the support alone: the same transform, centring, L2 and kind of head without calibration"


class SupportOnly(NearestCentroid):
    """The support points alone, in the space of some parameters of GDC and with the same kind of head.

    The transform, centring and L2 are those of the parameters, and nothing is calibrated: SGD and L-BFGS train on the
    support points, and where GDC has the closed form the nearest centroid stands.
    """

    name = "support-only"
    needs_bank = True

    def __init__(self, params: GDCParams) -> None:
        self.params = params

    @property
    def settings(self) -> dict[str, JSON]:
        p = self.params
        head = str(p.head) if p.trainer.samples else "centroid"
        own: dict[str, JSON] = p.space
        return own | {"head": head} | ({"C": p.C} if head == "lbfgs" else {})

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        seen = bank.transformed(**self.params.space, moments=True)
        self.set_space(seen.transform, bank)
        return self

    def fit(self, batch: TaskBatch) -> LinearHead:
        head = self.settings["head"]
        if head == "centroid":
            return super().fit(batch)
        with torch.no_grad():
            if head == "sgd":
                own = batch.random
                random = TaskRandom(own.seed, own.tasks, own.device, stream=1)
                return sgd_head(batch.support, batch.labels, batch.n_classes, random)
            return lbfgs_head(batch.support, batch.labels, batch.n_classes, C=self.params.C, max_iter=1000)


class Redrawn(GDC):
    """GDC with other random numbers on the same tasks: other points, other initial weights, other shuffles."""

    def fit(self, batch: TaskBatch) -> Head:
        own = batch.random
        again = TaskRandom(own.seed + 1, own.tasks, own.device)
        return super().fit(replace(batch, random=again, shared=Shared()))
