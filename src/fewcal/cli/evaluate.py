"""`fewcal evaluate` and `fewcal compare`: methods on the same tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.options import Device, Json, Preset, Quiet, Seed, Set, complete_method
from fewcal.cli.printing import print_markdown, write_json
from fewcal.errors import InputError


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(evaluate)
    app.command()(compare)


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder with base, val and novel files.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: ncm, simpleshot, lr, lr-gauss, cosine, dc, gdc, gdc:PRESET. 'all' for all.",
            autocompletion=complete_method,
        ),
    ] = "all",
    way: Annotated[int, typer.Option(help="Classes of a task.")] = 5,
    shot: Annotated[int, typer.Option(help="Support examples of a class.")] = 1,
    query: Annotated[int, typer.Option(help="Queries of a class.")] = 15,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks (1000, or all of --task-list).")] = None,
    seed: Seed = 0,
    split: Annotated[str, typer.Option(help="Classes that tasks are drawn from: base, val or novel.")] = "novel",
    preset: Preset = None,
    set_: Set = None,
    replacement: Annotated[
        bool, typer.Option("--replacement/--no-replacement", help="Whether tasks may share rows.")
    ] = True,
    reference: Annotated[
        str | None, typer.Option(help="Compare every method with this one instead of all pairs.")
    ] = None,
    task_list: Annotated[Path | None, typer.Option(help="Use the tasks of this file (see --save-tasks).")] = None,
    save_list: Annotated[Path | None, typer.Option("--save-tasks", help="Save the drawn tasks for later runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder that keeps the run.", metavar="RUN")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    n_jobs: Annotated[int, typer.Option(help="Worker processes on this machine; -1 for all cores.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, or local:N.")] = None,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Run methods on the same few-shot tasks and compare them."""
    if resume and out is None:
        raise InputError("--resume needs --out: the folder of the run to continue")
    if task_list is not None and save_list is not None:
        raise InputError("--task-list and --save-tasks exclude each other: the list is saved already")
    from fewcal._utils.terminal import ProgressBar
    from fewcal.evaluation import Protocol
    from fewcal.evaluation import evaluate as run
    from fewcal.evaluation.task_list import load_tasks, save_tasks
    from fewcal.features import FeatureSet
    from fewcal.methods import parse_methods

    chosen = parse_methods(methods, preset, set_ or [])
    protocol = Protocol(way, shot, query, 1000 if tasks is None else tasks, seed, split, replacement)
    if reference is not None and reference not in chosen:
        raise InputError(f"--reference {reference!r} is not among the methods: {', '.join(chosen)}")
    features = FeatureSet.load(folder)
    episodes = None
    if task_list is not None:
        episodes, protocol = load_tasks(task_list, features, protocol, tasks)
    if save_list is not None:
        save_tasks(save_list, features, protocol)
    with ProgressBar("tasks", quiet) as report:
        results = run(
            chosen,
            features,
            protocol,
            device,
            out=out,
            resume=resume,
            episodes=episodes,
            n_jobs=n_jobs,
            scheduler=scheduler,
            progress=report,
        )
    summary = results.summary(reference)
    if not quiet:
        print_markdown(summary.to_markdown())  # before the file, which may fail where hours of work should not be lost
    write_json(json_file, summary.to_dict())


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders made by `fewcal evaluate --out`.")],
    reference: Annotated[
        str | None, typer.Option(help="Compare every method with this one instead of all pairs.")
    ] = None,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Paired statistics across finished runs on the same tasks."""
    from fewcal.evaluation.run_folder import compare_runs

    summary = compare_runs(runs, reference)
    write_json(json_file, summary.to_dict())
    if not quiet:
        print_markdown(summary.to_markdown())
