"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_method(incomplete: str) -> list[str]:
    from fewcal.methods import METHODS

    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in METHODS if name.startswith(last)]


def complete_preset(incomplete: str) -> list[str]:
    from fewcal.presets import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


Json = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON to this file.", metavar="FILE")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table: files and exit code only.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, … or auto.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Preset = Annotated[
    str | None, typer.Option(help="Parameters of gdc; see `fewcal presets list`.", autocompletion=complete_preset)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A parameter: key=value for gdc, method.key=value for others; see `fewcal presets params`. Repeatable.",
    ),
]
