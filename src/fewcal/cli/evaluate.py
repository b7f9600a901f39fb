"""`fewcal evaluate` and `fewcal compare`: methods on the same tasks."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.options import (
    Device,
    Json,
    Preset,
    Query,
    Quiet,
    Reference,
    Resume,
    Scheduler,
    Seed,
    Set,
    Shot,
    Way,
    complete_method,
    existing,
)
from fewcal.cli.printing import print_markdown, write_json
from fewcal.errors import InputError

Methods = Annotated[
    str,
    typer.Option(
        help="Comma-separated: ncm, simpleshot, lr, lr-gauss, lr_l2, cosine, lda, dc, bankless, gdc, gdc:PRESET. "
        "'all' for all.",
        autocompletion=complete_method,
    ),
]


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder with base, val and novel files.", callback=existing)],
    methods: Methods = "all",
    way: Way = 5,
    shot: Shot = 1,
    query: Query = 15,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks (1000, or all of --task-list).")] = None,
    seed: Seed = 0,
    split: Annotated[str, typer.Option(help="Classes that tasks are drawn from: base, val or novel.")] = "novel",
    preset: Preset = None,
    set_: Set = None,
    replacement: Annotated[
        bool, typer.Option("--replacement/--no-replacement", help="Whether tasks may share rows.")
    ] = True,
    reference: Reference = None,
    task_list: Annotated[Path | None, typer.Option(help="Use the tasks of this file (see --save-tasks).")] = None,
    save_list: Annotated[Path | None, typer.Option("--save-tasks", help="Save the drawn tasks for later runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder that keeps the run.", metavar="RUN")] = None,
    resume: Resume = False,
    n_jobs: Annotated[int, typer.Option(help="Worker processes on this machine; -1 for all cores.")] = 1,
    scheduler: Scheduler = None,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Run methods on the same few-shot tasks and compare them."""
    if resume and out is None:
        raise InputError("--resume needs --out: the folder of the run to continue")
    if task_list is not None and save_list is not None:
        raise InputError("--task-list and --save-tasks exclude each other: the list is saved already")
    from fewcal.features import FeatureSet

    features = FeatureSet.load(folder)
    from fewcal._utils.terminal import ProgressBar
    from fewcal.evaluation import Protocol
    from fewcal.evaluation import evaluate as run
    from fewcal.evaluation.task_list import load_tasks, save_tasks
    from fewcal.methods import parse_methods

    chosen = parse_methods(methods, preset, set_ or [])
    protocol = Protocol(way, shot, query, 1000 if tasks is None else tasks, seed, split, replacement)
    if reference is not None and reference not in chosen:
        raise InputError(f"--reference {reference!r} is not among the methods: {', '.join(chosen)}")
    episodes = None
    if task_list is not None:
        episodes, protocol = load_tasks(task_list, features, protocol, tasks)
    if save_list is not None:
        save_tasks(save_list, features, protocol)
    start = partial(run, out=out, resume=resume, n_jobs=n_jobs, scheduler=scheduler)
    with ProgressBar("tasks", quiet) as report:
        results = start(chosen, features, protocol, device, episodes=episodes, progress=report)
    summary = results.summary(reference)
    if not quiet:
        print_markdown(summary.to_markdown())  # before the file, which may fail where hours of work should not be lost
    write_json(json_file, summary.to_dict())


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders made by `fewcal evaluate --out`.", callback=existing)],
    reference: Reference = None,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Paired statistics across finished runs on the same tasks."""
    from fewcal.evaluation.run_folder import compare_runs

    summary = compare_runs(runs, reference)
    write_json(json_file, summary.to_dict())
    if not quiet:
        print_markdown(summary.to_markdown())
