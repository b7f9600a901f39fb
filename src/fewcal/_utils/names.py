"""Names that users spell: what they may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from fewcal.errors import InputError

# Kinds of devices that torch knows and people have.
DEVICES = ("cpu", "cuda", "mps", "xpu")


def nearest_names(name: str, known: Iterable[object]) -> str:
    """'; did you mean …?' for a misspelt name, or the list of names when nothing is near.

    >>> nearest_names("alpha", ["alpha1", "beta"])
    "; did you mean 'alpha1'?"
    """
    names = [str(k) for k in (sorted(map(str, known)) if isinstance(known, set) else known)]
    if close := get_close_matches(str(name), names, n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(repr(c) for c in close)}?"
    return f"; known: {', '.join(names[:12])}" + (f", … ({len(names)} in all)" if len(names) > 12 else "")


def meant_path(path: Path) -> str:
    """'; did you mean …?' for a path that does not exist, if something beside it has a similar name.

    >>> meant_path(Path("nowhere/at all"))
    '; check the path'
    """
    try:
        names = [p.name for p in path.absolute().parent.iterdir()]
    except OSError:  # no folder, or one that may not be listed
        names = []
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {str(path.with_name(close[0]))!r}?" if close else "; check the path"


def checked_device(name: str) -> str:
    """The name of a device, or "auto"; whether this machine has it, torch knows.

    >>> checked_device("cuda:1")
    'cuda:1'
    """
    kind, colon, number = name.partition(":")
    if name != "auto" and (kind not in DEVICES or (colon and not number.isdecimal())):
        raise InputError(f"device={name!r} is not a device; use 'cpu', 'cuda', 'cuda:0', … or 'auto'")
    return name
