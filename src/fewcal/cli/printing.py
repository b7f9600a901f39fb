"""What commands print and write: tables, Markdown, JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path | None, value: Any) -> None:
    from fewcal._utils.atomic import write_json

    if path is not None:
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


def table(header: list[str] | None, rows: list[list[str]], sides: list[Any] | None = None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=header is not None)
    names = header or [""] * len(rows[0])
    for name, side in zip(names, sides or ["left"] * len(names), strict=True):
        table.add_column(name, overflow="fold", justify=side)  # a long word goes on in the next line, nothing is cut
    for row in rows:
        table.add_row(*row)
    # A pipe has no width: every row stays on its line.
    Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False).print(table)


def print_markdown(text: str) -> None:
    """Markdown tables as tables in a terminal, as they are in a pipe."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    block: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if block:
            table(block[0], block[2:], ["right" if rule.endswith(":") else "left" for rule in block[1]])
            block = []
        if line:
            print(line)
