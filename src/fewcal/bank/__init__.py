"""The bank: what is known of the base classes."""

from fewcal.bank.core import BaseBank, SpaceKey

__all__ = ["BaseBank", "SpaceKey"]
