"""`fewcal report`: finished runs as one page."""

from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.options import Output, Reference, existing
from fewcal.errors import InputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders made by `fewcal evaluate --out`.", metavar="RUN...", callback=existing),
    ],
    output: Output,
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="FILE")] = Path("report.html"),
    features: Annotated[
        list[Path] | None,
        typer.Option(
            help="Features of the runs, to explain the hardest tasks. Repeatable.", metavar="DIR", callback=existing
        ),
    ] = None,
    reference: Reference = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Few-shot evaluation",
    hardest: Annotated[int, typer.Option(help="Hardest tasks to explain for each run.", min=0)] = 3,
) -> None:
    """Show finished runs as one HTML file. It needs nothing else: tables, figures, classes, tasks, and why."""
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it, such as {out / 'report.html'}")
    from fewcal.report.groups import group_runs
    from fewcal.report.run_report import page_of

    groups = group_runs(runs, reference, features or [])
    page_of(groups, title, hardest).write(out)
    output.json({group.title: group.summary.to_dict() for group in groups})
    output.print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
