"""Methods by name: how the command line, `evaluate` and `make_method` find them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError
from fewcal.methods.base import Method
from fewcal.methods.settings_file import load_settings
from fewcal.params import GDCParams

METHODS: dict[str, type[Method]] = {}
Registered = TypeVar("Registered", bound=type[Method])


def register_method(cls: Registered) -> Registered:
    """Make a method known by its `name`; `fewcal/methods/__init__.py` imports its file."""
    METHODS[cls.name] = cls
    return cls


def make_method(name: str, preset: str | GDCParams | None = None, **settings: Any) -> Method:
    """A method by its name, with parameters; `preset` is for GDC: a name or a file.

    >>> make_method("dc", k=4).settings["k"]
    4
    """
    if name not in METHODS and ":" in name:
        return load_method(name).make(preset, settings)
    if name not in METHODS:
        raise InputError(f"method {name!r} is unknown{nearest_names(name, METHODS)}")
    return METHODS[name].make(preset, settings)


def load_method(name: str) -> type[Method]:
    """A class of your own by `module:Class`; the module may lie in the current folder.

    >>> load_method("fewcal.methods.ncm:NearestCentroid").name
    'ncm'
    """
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # whatever the import of a foreign module runs into
        raise InputError(
            f"method {name!r} cannot be loaded ({type(error).__name__}: {error}); name a method or module:Class"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"{name} is no subclass of fewcal.methods.Method; name a class with `fit`")
    return found


def parse_methods(text: str, preset: str | None = None, settings: Sequence[str] = ()) -> dict[str, Method]:
    """Methods from a command line, by display name.

    `text` lists names, with commas; `gdc:PRESET` is GDC with that preset, `module:Class` a class of your own, `all`
    every method. `settings` are `key=value` for GDC and `method.key=value` for any method.

    >>> list(parse_methods("ncm,gdc:paper/cub/1shot", settings=["k=3"]))
    ['ncm', 'gdc:paper/cub/1shot']
    """
    names = list(METHODS) if text.strip() == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"no method in {text!r}; use some of {', '.join(METHODS)}")
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"method {sorted(twice)[0]!r} is listed twice")
    wanted = parse_settings(settings)
    parts = {name: _split(name) for name in names}
    bases = {base for base, _ in parts.values()}
    if unused := [m for m in wanted if m not in bases]:
        raise InputError(f"--set names method {unused[0]!r}, which is not among {', '.join(names)}")
    if preset is not None and "gdc" not in bases:
        raise InputError("--preset is for gdc, which is not among the methods")
    return {
        name: make_method(base, own or (preset if base == "gdc" else None), **wanted.get(base, {}))
        for name, (base, own) in parts.items()
    }


def _split(name: str) -> tuple[str, str]:
    """`gdc:PRESET` as method and preset; any other name as it is."""
    base, _, own = name.partition(":")
    return (base, own) if base in METHODS else (name, "")


def parse_settings(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`key=value` and `method.key=value` as nested dictionaries; values are read as JSON where they can be.

    `@FILE` stands for all values of a settings file, as `fewcal tune` writes it.

    >>> parse_settings(["k=8", "dc.alpha=0.3", "head=lbfgs", "whiten=False"])
    {'gdc': {'k': 8, 'head': 'lbfgs', 'whiten': False}, 'dc': {'alpha': 0.3}}
    """
    out: dict[str, dict[str, Any]] = {}
    for item in settings:
        if item.startswith("@"):
            method, values = load_settings(item[1:])
            out.setdefault(method, {}).update(values)
            continue
        name, equals, raw = item.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {item!r} is not key=value")
        method, _, key = name.strip().rpartition(".")
        try:
            value = json.loads({"True": "true", "False": "false", "None": "null", "inf": "Infinity"}.get(raw, raw))
        except ValueError:
            value = raw
        out.setdefault(method or "gdc", {})[key] = value
    return out
