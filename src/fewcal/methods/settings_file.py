"""Parameters of a method in a file: what `fewcal tune` writes and `--set @FILE` reads."""

from __future__ import annotations

from collections.abc import Mapping

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.types import JSONObject, StrPath
from fewcal._version import __version__
from fewcal.errors import FileFormatError

_FORMAT = "fewcal-settings"


def save_settings(path: StrPath, method: str, parameters: JSONObject, summary: str, provenance: JSONObject) -> None:
    """Write the name and the parameters of a method, with a line on where they come from.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_settings(f"{folder}/mine.json", "hgdc", {"ridge": 0.5}, "for the docs", {})
    ...     load_settings(f"{folder}/mine.json")
    ('hgdc', {'ridge': 0.5})
    """
    content = {"method": method, "parameters": parameters, "summary": summary, "provenance": provenance}
    write_json(path, {"format": _FORMAT, "fewcal": __version__, **content})


def load_settings(path: StrPath) -> tuple[str, JSONObject]:
    """The name of a method and its parameters, from a settings file."""
    content = read_json(path, "it is no settings file")
    method, parameters = content.get("method"), content.get("parameters")
    if content.get("format") != _FORMAT or not isinstance(method, str) or not isinstance(parameters, Mapping):
        raise FileFormatError(f"{path} is JSON, but not a settings file; `fewcal tune` writes one")
    return method, dict(parameters)
