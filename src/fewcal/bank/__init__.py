"""The bank: what is known of the base classes."""

from fewcal.bank.core import BaseBank

__all__ = ["BaseBank"]
