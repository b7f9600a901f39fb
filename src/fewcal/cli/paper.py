"""`fewcal paper`: every table and figure of the paper on your features."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.options import Device, Output, Resume, Seed
from fewcal.errors import InputError

paper = typer.Typer(help="Tables and figures of the paper, with its figures beside yours.", no_args_is_help=True)


def _complete(incomplete: str) -> list[str]:
    from fewcal.paper.experiments import EXPERIMENTS

    return [name for name in ("all", *EXPERIMENTS) if name.startswith(incomplete)]


@paper.command("list")
def list_(
    output: Output,
    run: Annotated[
        Path | None,
        typer.Option(help="A finished run: each table and figure of the paper and what ran for it.", metavar="DIR"),
    ] = None,
) -> None:
    """Show every experiment and what the paper says; with --run, what ran as printed, where, and with what verdicts."""
    if run is not None:
        from fewcal.paper.report import HEADER, coverage, coverage_rows, read_summary

        covered = coverage(read_summary(run)["experiments"])
        output.json(covered)
        output.table(HEADER, coverage_rows(covered))
        return
    from fewcal.paper.experiments import describe

    rows = describe()
    output.json(rows)
    keys = ("name", "source", "datasets", "variants", "claim", "cost")
    header = ["name", "paper", "datasets", "variants", "what the paper says", "two CPU cores"]
    output.table(header, [[v if isinstance(v := r[k], str) else ", ".join(v) for k in keys] for r in rows])


@paper.command()
def report(
    out: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="OUT")],
    output: Output,
) -> None:
    """Write a reproduction report for reviewers from a run: claims, setting, what agreed, what did not, cost."""
    from fewcal.paper.report import write_reproduction

    written = write_reproduction(out)
    output.json({"files": [str(file) for file in written]})
    output.print("reproduction report: " + ", ".join(map(str, written)))


@paper.command()
def run(
    names: Annotated[
        list[str], typer.Argument(help="Experiments, or all.", metavar="NAME...", autocompletion=_complete)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results and the report.", metavar="DIR")],
    output: Output,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder of features, or of such folders; DATASET=DIR names the dataset. Repeatable.",
            metavar="DIR",
        ),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Novel tasks of every method, the paper's SGD head too.", min=1)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tasks and trials: minutes instead of hours.")] = False,
    sgd_tasks: Annotated[int | None, typer.Option(help="Other number of tasks for the SGD head.", min=1)] = None,
    trials: Annotated[int | None, typer.Option(help="Trials of a search, each on 200 tasks.", min=1)] = None,
    resume: Resume = False,
    compute_only: Annotated[bool, typer.Option("--compute-only", help="Compute and do not draw.")] = False,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Draw what is computed in --out.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Compute experiments on your features and write one report with the paper's figures beside them."""
    if compute_only and draw_only:
        raise InputError("--compute-only and --draw-only exclude each other")
    if not draw_only and not features:
        raise InputError("--features is missing: the folder with your features, or --draw-only for what is there")
    from fewcal._utils.arrays import pick_device
    from fewcal.paper.budget import Budget
    from fewcal.paper.experiments import choose
    from fewcal.paper.report import counts_text, draw_report
    from fewcal.paper.run import run_experiments
    from fewcal.paper.sets import find_folders

    def log(line: str) -> None:
        if not output.quiet:
            print(line, file=sys.stderr, flush=True)

    experiments = choose(names)
    left_out: list[str] = []
    if features and not draw_only:
        found, where = find_folders(features), str(pick_device(device))
        budget = Budget.make(tasks, sgd=sgd_tasks, trials=trials, quick=quick, device=where, seed=seed)
        left_out = run_experiments(experiments, found, out, budget, resume=resume, device=where, log=log)
    if compute_only:
        log(f"computed; draw with: fewcal paper run {' '.join(names)} --out {out} --draw-only")
        return
    summary = draw_report(out, left_out, log)
    output.json(summary)
    for variant, counts in summary["variants"].items():
        output.print(f"{variant}: {counts_text(counts)}")
    output.print(f"report: {out / 'report.html'}, summary: {out / 'summary.md'}")
