"""Heads: from calibrated distributions, or points drawn from them, to a classifier.

To add one, write a file with a `HeadTrainer` (see `registry`) and import it here.
"""

from fewcal.heads.base import Head, Shared, TaskBatch
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.closed_form import ClosedForm, closed_form_head
from fewcal.heads.lbfgs import LBFGS, lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.heads.registry import HEADS, HeadTrainer, describe_heads, make_trainer, register_head
from fewcal.heads.sgd import SGD, sgd_head
from fewcal.heads.sklearn import SklearnHead, SklearnTrainer

__all__ = [
    "HEADS",
    "LBFGS",
    "SGD",
    "Calibrated",
    "ClosedForm",
    "Head",
    "HeadTrainer",
    "LinearHead",
    "Shared",
    "SklearnHead",
    "SklearnTrainer",
    "TaskBatch",
    "closed_form_head",
    "describe_heads",
    "lbfgs_head",
    "make_trainer",
    "register_head",
    "sgd_head",
]
