"""The service's interface for programs: OpenAPI 3.1, from `openapi.json`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fewcal._utils.arrays import LARGEST
from fewcal._version import __version__
from fewcal.apply.serve.inputs import ServiceLimits
from fewcal.apply.serve.model import ServedModel

_KINDS = {"/predict/pictures": "picture", "/predict/texts": "text"}


def openapi(model: ServedModel, limits: ServiceLimits, has_token: bool) -> dict[str, Any]:
    """The description of the service for this model."""
    text = files("fewcal.apply.serve").joinpath("openapi.json").read_text(encoding="utf-8")
    counts = {"WIDTH": model.width, "MAX_ITEMS": limits.max_items, "TEXT_LENGTH": limits.text_length}
    for name, number in {**counts, "LARGEST": LARGEST, "-LARGEST": -LARGEST}.items():
        text = text.replace(f'"{name}"', str(number))
    out: dict[str, Any] = json.loads(text)
    out["info"] = {"title": f"fewcal: {', '.join(model.classes[:6])}", "version": __version__}
    out["paths"] = {path: value for path, value in out["paths"].items() if _KINDS.get(path) in (None, model.kind)}
    if not has_token:
        del out["security"], out["components"]["securitySchemes"]
    return out
