"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from fewcal._utils.names import checked_device, meant_path
from fewcal.apply.checks import checked_new_file, checked_reject
from fewcal.errors import InputError


def complete_method(incomplete: str) -> list[str]:
    from fewcal.methods import METHODS

    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in METHODS if name.startswith(last)]


def complete_preset(incomplete: str) -> list[str]:
    from fewcal.presets import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


Given = TypeVar("Given", Path, Path | None, list[Path], list[Path] | None)


def existing(given: Given) -> Given:
    """Refuse a path that does not exist: at once, before anything heavy is loaded."""
    for path in given if isinstance(given, list) else [given]:
        if path is not None and not path.exists():
            raise InputError(f"{path} does not exist{meant_path(path)}")
    return given


def known_preset(name: str | None) -> str | None:
    """Refuse a preset that is none: at once, before anything is read."""
    if name is not None:
        from fewcal.presets import get_preset

        get_preset(name)
    return name


def readable_model(path: Path | None) -> Path | None:
    """Refuse a file that is torn or of another kind before anything is imported that a classifier is made of."""
    existing(path)
    if path is not None:
        from fewcal._utils.safetensors_io import read_header

        read_header(path)
    return path


Json = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Write the result as JSON to this file; - prints it.", metavar="FILE", callback=checked_new_file
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table: files and exit code only.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, … or auto.", callback=checked_device)]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Preset = Annotated[
    str | None, typer.Option(help="Parameters of gdc; see `fewcal presets list`.", autocompletion=complete_preset)
]
KnownPreset = Annotated[
    str | None,
    typer.Option(
        help="Parameters of gdc; see `fewcal presets list`.", autocompletion=complete_preset, callback=known_preset
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A parameter: key=value for gdc, method.key=value for others, @FILE for a file of `fewcal tune`; see "
        "`fewcal presets params`. Repeatable.",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="CSV as it is: texts that a spreadsheet would compute get no apostrophe.")
]
Way = Annotated[int, typer.Option(help="Classes of a task.")]
Shot = Annotated[int, typer.Option(help="Support examples of a class.")]
Query = Annotated[int, typer.Option(help="Queries of a class.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Reference = Annotated[str | None, typer.Option(help="Compare every method with this one; without it with the best.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a Dask scheduler, or local:N.")]
Support = Annotated[Path, typer.Option(help="Labelled examples of your classes.", callback=existing)]
Reject = Annotated[
    float | None,
    typer.Option(
        "--reject",
        help="Answer 'none of these' where the p-value of belonging to one of your classes is lower (e.g. 0.05: about "
        "5% of their members are turned away).",
        callback=checked_reject,
    ),
]
Names = Annotated[
    bool,
    typer.Option("--names", help="Let the names of the classes help to find near base classes; needs fewcal[text]."),
]
