"""SimpleShot: nearest centroid on centred, L2-normalised features.

Wang, Chao, Weinberger, van der Maaten. SimpleShot: revisiting nearest-neighbor classification for few-shot learning.
arXiv:1911.04623, 2019 (variant CL2N).
"""

from __future__ import annotations

from fewcal.bank import BaseBank
from fewcal.methods.base import Method
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.registry import register_method


@register_method
class SimpleShot(NearestCentroid):
    """Subtract the mean of the base features, normalise to unit length, classify by the nearest class mean."""

    name = "simpleshot"
    needs_bank = True

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        self.set_space(bank.transformed(beta=1.0, center=True, l2=True, moments=True).transform, bank)
        return self
