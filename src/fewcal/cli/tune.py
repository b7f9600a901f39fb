"""`fewcal tune`: parameters from validation classes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewcal.cli.options import Device, Output, TaskOptions, existing
from fewcal.cli.printing import percent
from fewcal.heads import HEADS
from fewcal.tuning.search import PROTOCOLS
from fewcal.tuning.spaces import SPACES

if TYPE_CHECKING:
    from fewcal.tuning import Search, Tuning
    from fewcal.tuning.selection import Score


def _names(entries: Collection[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in entries if name.startswith(incomplete)]


def _summaries(entries: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {entry.summary}" for name, entry in entries.items()) + "."


SpaceHelp = _summaries(SPACES) + " Without it hgdc, or the paper's for features of that sign."
Space = Annotated[str | None, typer.Option(help=SpaceHelp, autocompletion=_names(SPACES))]
Protocol = Annotated[str, typer.Option(help=_summaries(PROTOCOLS), autocompletion=_names(PROTOCOLS))]
Head = Annotated[
    str | None, typer.Option(help="The one head of GDC; see `fewcal presets params`.", autocompletion=_names(HEADS))
]


@dataclass(frozen=True)
class SearchOptions(TaskOptions):
    """What is searched, and how thoroughly."""

    protocol: Protocol = "default"
    space: Space = None
    head: Head = None
    trials: Annotated[
        int | None, typer.Option(help="Trials in all, those of other workers too (100; paper: 1000).")
    ] = None
    tasks: Annotated[int, typer.Option(help="Tasks of a trial, the same for all.")] = 200
    final_tasks: Annotated[int, typer.Option(help="Fresh validation tasks for the best trials and the default.")] = 1000
    published: Annotated[
        bool, typer.Option("--published", help="Begin with the paper's setting of a space of the paper.")
    ] = False

    def search(self) -> "Search":
        from fewcal.tuning import Search

        return Search(**vars(self))


def tune(
    folder: Annotated[
        Path, typer.Argument(help="Folder with base and val files (and novel for --novel).", callback=existing)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the study, its page and the parameters.", metavar="STUDY")],
    options: SearchOptions,
    output: Output,
    storage: Annotated[
        str | None, typer.Option(help="sqlite:///FILE or postgresql://… instead of a database in --out.")
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in its database.")] = "fewcal",
    resume: Annotated[bool, typer.Option("--resume", help="Continue or join the study.")] = False,
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 1,
    novel: Annotated[
        bool, typer.Option("--novel", help="Open the novel classes, once, after the choice; the study keeps it.")
    ] = False,
    novel_tasks: Annotated[int, typer.Option(help="Tasks on the novel classes.")] = 1000,
    device: Device = "cpu",
) -> None:
    """Search parameters of HGDC or GDC on validation classes, and compare the best with the default."""
    from fewcal.features import FeatureSet
    from fewcal.tuning import tune as run

    search = options.search()
    features = FeatureSet.load(folder, ["base", "val", *(["novel"] if novel else [])])
    start = partial(run, out=out, storage=storage, study=study, resume=resume, workers=workers, device=device)
    with output.progress("trials") as progress:
        result = start(features, search, novel_tasks=novel_tasks if novel else None, progress=progress)
    output.json(result.to_dict())
    _print_result(result, output)


def _print_result(result: "Tuning", output: Output) -> None:
    rows = [
        [f.name + (" ←" if f is result.chosen else ""), percent(f.searched), *_cells(f.fresh), _parameters(f.values)]
        for f in result.finalists
    ]
    output.table(["model", "search tasks %", "fresh tasks %", "minus default", "parameters"], rows)
    if result.novel is not None:
        output.print(f"novel classes, opened {result.novel.opened}:")
        scores = result.novel.scores.items()
        output.table(["model", "accuracy %", "minus default"], [[name, *_cells(score)] for name, score in scores])
    output.print(result.verdict)
    output.print(f"{result.trials} trials, {result.pruned} pruned")
    output.print(f"parameters: {result.file}; page: {result.file.with_name('tuning.html')}")


def _cells(score: "Score") -> list[str]:
    """Accuracy, and the difference to the default with its standard error."""
    error = "" if score.error is None else f" ± {100 * score.error:.2f}"
    return [percent(score.accuracy), "–" if score.gain == score.error == 0 else f"{100 * score.gain:+.2f}{error}"]


def _parameters(values: Mapping[str, object]) -> str:
    return " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
