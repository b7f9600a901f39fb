"""What commands print and write: tables, Markdown, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewcal._utils.tables import print_markdown, table

__all__ = ["cell", "flat", "percent", "print_answers", "print_markdown", "table", "write_json"]
# Rows of a table that people read; the file has all.
MAX_PRINTED = 40


def write_json(path: Path | None, value: object) -> None:
    """Write a result to a file, or where that is called - to the output, as pipes have it."""
    from fewcal._utils.atomic import write_json

    if path == Path("-"):
        print(json.dumps(value, indent=2, default=str))  # in ASCII: names may hold what no terminal should obey
    elif path is not None:
        write_json(path, value)


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and not value:
        return "none"
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:6]))
        return f"{shown}, … ({len(value)})" if len(value) > 6 else shown
    if isinstance(value, dict):
        return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
    return str(value)


def percent(value: float | None, places: int = 2) -> str:
    """A share in per cent; a dash where there is none."""
    return "–" if value is None or value != value else f"{100 * value:.{places}f}"


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested facts as one level of readable names; fingerprints are cut to what tells them apart."""
    out: dict[str, Any] = {}
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            out |= flat(value, f"{name}: ")
        else:
            out[name] = value[:12] if key == "fingerprint" else value
    return out


def print_answers(kind: str, rows: Sequence[tuple[str, str, float, str, float]], kept: bool) -> None:
    """Print a table of answers, the doubtful ones first; `kept`: a file has all."""
    shown = [[i, a, percent(p, 1), b, percent(q, 1)] for i, a, p, b, q in rows[:MAX_PRINTED]]
    table([kind, "answer", "%", "next", "%"], shown, ["left", "left", "right", "left", "right"])
    if len(rows) > MAX_PRINTED:
        print(f"the most doubtful first; {len(rows) - MAX_PRINTED} more" + ("" if kept else ": --out FILE keeps all"))
