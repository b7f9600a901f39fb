"""Heads: from calibrated distributions, or points drawn from them, to a classifier.

Every head ends in a `LinearHead` over a batch of tasks, except `sklearn`, which takes any scikit-learn classifier.
"""

from fewcal.heads.closed_form import closed_form_head
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.heads.sgd import sgd_head

HEADS = ("closed_form", "lbfgs", "sgd", "sklearn")

__all__ = ["HEADS", "LinearHead", "closed_form_head", "lbfgs_head", "sgd_head"]
