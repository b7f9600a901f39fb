"""Models of other libraries: no network unless it is allowed, no reports, one line for every error."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fewcal._utils.text import one_line
from fewcal.errors import InputError


@contextmanager
def loading(name: str, allow_download: bool) -> Iterator[None]:
    """Load a model in this block: quietly, offline unless allowed; every error becomes one that names the model."""
    with ExitStack() as stack:
        if not allow_download:  # Hugging Face's hub may have read the variable already; some weights have a plain URL
            hub = sys.modules.get("huggingface_hub.constants")
            for values in (os.environ, {} if hub is None else vars(hub)):
                _replace(stack, values, "HF_HUB_OFFLINE", "1")
            for module in (urllib.request, torch.hub):
                _replace(stack, vars(module), "urlopen", _refuse)
        if "transformers" in sys.modules:
            logging = sys.modules["transformers"].utils.logging
            stack.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity_error()
            if logging.is_progress_bar_enabled():
                stack.callback(logging.enable_progress_bar)
                logging.disable_progress_bar()
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # whatever the hub, the disk and the name give rise to
            local = "it is not on this machine, or allow fetching it (--allow-download)"
            remedy = "check its name" if allow_download else local
            raise InputError(f"extractor {name} cannot be loaded; {remedy} ({one_line(error)})") from error


def _refuse(*_: object, **__: object) -> None:
    raise OSError("fetching is not allowed")


def _replace(stack: ExitStack, values: MutableMapping[str, Any], key: str, value: object) -> None:
    """Set a variable until the stack ends."""
    if key in values:
        stack.callback(values.__setitem__, key, values[key])
    else:
        stack.callback(values.pop, key)
    values[key] = value
