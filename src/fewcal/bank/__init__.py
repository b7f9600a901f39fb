"""The bank: statistics of the base classes."""

from fewcal.bank.core import BaseBank
from fewcal.bank.moments import Moments
from fewcal.bank.spaces import SpaceKey

__all__ = ["BaseBank", "Moments", "SpaceKey"]
