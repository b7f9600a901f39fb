"""Errors and warnings that users are meant to read: each names the value and the remedy.

>>> issubclass(InputError, ValueError)
True
"""

from __future__ import annotations


class FewcalError(Exception):
    """Base of all errors raised on purpose by fewcal."""


class InputError(FewcalError, ValueError):
    """The data or a parameter cannot be used as given; the message says what to change."""


class FileFormatError(FewcalError, ValueError):
    """A file is not what it should be: wrong kind, truncated, or from a newer version."""


class FewcalWarning(UserWarning):
    """Something worked, but not in the way one would assume."""
