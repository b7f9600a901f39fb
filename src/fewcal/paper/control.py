"""The control: what the same space and kind of head give without calibration."""

from __future__ import annotations

import torch

from fewcal._utils.randomness import TaskRandom
from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.heads import LinearHead, TaskBatch, lbfgs_head, sgd_head
from fewcal.methods.base import Method
from fewcal.methods.ncm import NearestCentroid
from fewcal.params import GDCParams

# What verdicts about accuracy are compared with.
CONTROL = "the support alone: the same transform, scale and kind of head without calibration"


class SupportAlone(NearestCentroid):
    """The support points alone, in the space of some parameters of GDC and with the same kind of head.

    SGD and L-BFGS train on the support points. Where GDC has the closed form, the nearest centroid stands.
    """

    name = "support-alone"
    needs_bank = True

    def __init__(self, params: GDCParams) -> None:
        self.params = params

    @property
    def settings(self) -> dict[str, JSON]:
        head = str(self.params.head) if self.params.trainer.samples else "centroid"
        own: dict[str, JSON] = {**self.params.space, "head": head}
        return own | ({"C": self.params.C} if head == "lbfgs" else {})

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        self.set_space(bank.transformed(**self.params.space, moments=True).transform, bank)
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
