"""Options that several commands share, alone and in groups.

A parameter of a command whose type is a dataclass is a group: the command line has an option for each of its fields.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fewcal._utils.names import checked_device, meant_path
from fewcal._utils.terminal import ProgressBar
from fewcal.apply.checks import checked_new_file, checked_reject
from fewcal.cli.printing import cell, table, write_json
from fewcal.errors import InputError

if TYPE_CHECKING:
    from fewcal._utils.types import Progress
    from fewcal.apply.reading import Reading


def ungrouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a parameter for each field of its groups, after its own."""
    own = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in own.items() if is_dataclass(p.annotation)}
    if not groups:
        return command
    parameters = [parameter for name, parameter in own.items() if name not in groups]
    for group in groups.values():
        parameters += inspect.signature(group).parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:
        values = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **values)

    by_name = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]  # in any order of defaults
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    return run


def complete_method(incomplete: str) -> list[str]:
    from fewcal.methods import METHODS

    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in METHODS if name.startswith(last)]


def complete_preset(incomplete: str) -> list[str]:
    from fewcal.presets import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


def complete_extractor(incomplete: str) -> list[str]:
    from fewcal.features.extractors import list_extractors, prefixes

    return [name for name in [*list_extractors(), *prefixes()] if name.startswith(incomplete)]


def joined_extractors(names: list[str] | None) -> str | None:
    """Return the name of the extractors side by side; None where none is named."""
    return "+".join(names) if names else None


def checked_extractors(names: list[str] | None) -> list[str] | None:
    """Refuse names that no extractor has: at once, before anything else is loaded."""
    if name := joined_extractors(names):
        from fewcal.features.extractors import require_extractor

        require_extractor(name)
    return names


def show_extractors(wanted: bool) -> None:
    """Print the table of extractors and leave."""
    if wanted:
        from fewcal.features.extractors import extractor_table

        table(["extractor", "of", "features", "signs", "needs"], extractor_table())
        raise typer.Exit()


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
TextColumn = Annotated[str, typer.Option(help="Column or key of the text.")]
LabelColumn = Annotated[str, typer.Option(help="Column or key of the class.")]
Bank = Annotated[
    Path | None,
    typer.Option(
        help="Bank of base classes from the same extractor; without it a plain classifier.", callback=existing
    ),
]
UsualExtractor = Annotated[
    list[str] | None,
    typer.Option(
        "--extractor",
        "-e",
        help="Its name, or a checkpoint of `fewcal train`; --list-extractors shows them all. Repeated: several side by "
        "side. By default efficientnet-lite0 for pictures and minilm for texts.",
        autocompletion=complete_extractor,
        callback=checked_extractors,
    ),
]
ListExtractors = Annotated[
    bool,
    typer.Option("--list-extractors", help="Show all extractors.", callback=show_extractors, is_eager=True),
]
Batch = Annotated[int, typer.Option(help="Items computed at once.", min=1)]
Workers = Annotated[int | None, typer.Option(help="Threads that read and decode; as many as cores, up to 8.", min=1)]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read instead of stopping.")]
Download = Annotated[
    bool, typer.Option("--allow-download", help="Let timm and Hugging Face fetch weights that are not here.")
]


@dataclass(frozen=True)
class Output:
    """Where results go: JSON into a file, tables and lines on the terminal, unless it is quiet."""

    json_file: Json = None
    quiet: Quiet = False

    def json(self, value: object) -> None:
        write_json(self.json_file, value)

    def table(self, header: list[str] | None, rows: list[list[str]], sides: Sequence[str] | None = None) -> None:
        if not self.quiet:
            table(header, rows, sides)

    def print(self, *lines: str) -> None:
        if not self.quiet and lines:
            print("\n".join(lines), flush=True)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Write facts as JSON and as a table of two columns."""
        self.json(facts)
        self.table(None, [[k.replace("_", " "), cell(v)] for k, v in facts.items()])

    def progress(self, unit: str) -> ProgressBar:
        return ProgressBar(unit, self.quiet)


@dataclass(frozen=True)
class ReadingOptions:
    """How pictures and texts become features."""

    text_column: TextColumn = "text"
    label_column: LabelColumn = "label"
    batch: Batch = 32
    workers: Workers = None
    skip_bad: SkipBad = False
    allow_download: Download = False
    device: Device = "cpu"

    @property
    def columns(self) -> tuple[str, str]:
        return self.text_column, self.label_column

    def reading(self, progress: "Progress | None" = None) -> "Reading":
        from fewcal.apply.reading import Reading

        return Reading(
            self.columns, self.batch, self.workers, self.skip_bad, self.device, self.allow_download, progress
        )


@dataclass(frozen=True)
class ExtractorOptions:
    """An extractor, or several side by side."""

    extractor: UsualExtractor = None
    list_extractors: ListExtractors = False

    @property
    def name(self) -> str | None:
        return joined_extractors(self.extractor)


@dataclass(frozen=True)
class ParameterOptions:
    """The parameters of a classifier."""

    preset: Preset = None
    set_: Set = None
    seed: Seed = 0

    @property
    def arguments(self) -> dict[str, Any]:
        return {"preset": self.preset, "settings": self.set_ or [], "seed": self.seed}


@dataclass(frozen=True)
class ModelOptions(ParameterOptions):
    """What a classifier is made of."""

    bank: Bank = None

    @property
    def arguments(self) -> dict[str, Any]:
        return super().arguments | {"bank": self.bank}


@dataclass(frozen=True)
class TaskOptions:
    """The size of a task, and how tasks are drawn."""

    way: Way = 5
    shot: Shot = 1
    query: Query = 15
    seed: Seed = 0
