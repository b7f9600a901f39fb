"""Few-shot methods, one short file each, behind one interface over batched tasks.

To add one, write a file with a class under `@register_method` and import it here; the order is that of `--methods all`.
"""

from fewcal.methods.base import Head, Method, TaskBatch
from fewcal.methods.registry import METHODS, make_method, parse_methods, parse_settings, register_method

# isort: off
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.simpleshot import SimpleShot
from fewcal.methods.logistic import GaussianizedLogisticRegression, LogisticRegression, UnitLogisticRegression
from fewcal.methods.cosine import CosineClassifier
from fewcal.methods.lda import PooledLDA
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.methods.hgdc import HGDC
from fewcal.methods.support_only import SupportOnly
from fewcal.methods.soft_kmeans import SoftKMeans
from fewcal.methods.bd_cspn import BDCSPN
from fewcal.methods.laplacianshot import LaplacianShot
from fewcal.methods.pt_map import PTMAP
from fewcal.methods.tim import TIM, AlphaTIM
# isort: on

__all__ = [
    "BDCSPN",
    "DC",
    "GDC",
    "HGDC",
    "METHODS",
    "PTMAP",
    "TIM",
    "AlphaTIM",
    "CosineClassifier",
    "GaussianizedLogisticRegression",
    "Head",
    "LaplacianShot",
    "LogisticRegression",
    "Method",
    "NearestCentroid",
    "PooledLDA",
    "SimpleShot",
    "SoftKMeans",
    "SupportOnly",
    "TaskBatch",
    "UnitLogisticRegression",
    "make_method",
    "parse_methods",
    "parse_settings",
    "register_method",
]
