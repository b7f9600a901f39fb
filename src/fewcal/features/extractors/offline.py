"""Models of others without surprises: no network unless it is allowed, no progress bars, one line where it fails."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from fewcal._utils.text import one_line
from fewcal.errors import InputError

_VARIABLE = "HF_HUB_OFFLINE"


def unavailable(name: str, error: Exception, allow_download: bool) -> InputError:
    """The error for a model that cannot be loaded."""
    reason = one_line(error)
    remedy = (
        "check its name" if allow_download else "it is not on this machine, or allow fetching it (--allow-download)"
    )
    return InputError(f"extractor {name} cannot be loaded; {remedy} ({reason})")


@contextmanager
def offline(wanted: bool) -> Iterator[None]:
    """Keep Hugging Face's hub, which others call without asking us, from the network."""
    if not wanted:
        yield
        return
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        constants: ModuleType | None = importlib.import_module("huggingface_hub.constants")  # has read it already
    except ImportError:
        constants = None
    state = getattr(constants, _VARIABLE, None)
    if constants is not None:
        setattr(constants, _VARIABLE, True)
    try:
        yield
    finally:
        if constants is not None:
            setattr(constants, _VARIABLE, state)
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


@contextmanager
def no_progress_bars(transformers: ModuleType) -> Iterator[None]:
    """Progress bars of transformers off: fewcal shows its own."""
    logging = transformers.utils.logging
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
