"""`fewcal evaluate` and `fewcal compare`: methods on the same tasks."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewcal.cli.options import (
    Device,
    Output,
    Preset,
    Reference,
    Resume,
    Scheduler,
    Set,
    TaskOptions,
    complete_method,
    existing,
)
from fewcal.cli.printing import print_markdown
from fewcal.errors import InputError

if TYPE_CHECKING:
    from fewcal.episodes import Episodes
    from fewcal.evaluation import Protocol
    from fewcal.features import FeatureSet

Methods = Annotated[
    str,
    typer.Option(
        help="Comma-separated: ncm, simpleshot, lr, lr-gauss, lr_l2, cosine, lda, dc, gdc, gdc:PRESET, hgdc, "
        "support-only, hgdc-transductive, soft-kmeans, bd-cspn, laplacianshot, pt-map, tim, alpha-tim, "
        "or module:Class for a method of your own. 'all' for all.",
        autocompletion=complete_method,
    ),
]

# What makes tasks unbalanced: fields of Protocol.
VARIATIONS = ("queries", "dirichlet", "present", "outliers", "min_way", "min_shot", "meta_dataset")
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="Unbalanced tasks: queries=75 (in all), dirichlet=2 (class shares), present=2 (classes with queries), "
        "outliers=0.25 (queries of no class), min_way=5, min_shot=1, meta_dataset=true. Repeatable.",
        metavar="KEY=VALUE",
    ),
]


@dataclass(frozen=True)
class EvaluationTasks(TaskOptions):
    """The tasks of an evaluation: drawn, or from a list."""

    tasks: Annotated[int | None, typer.Option(help="Number of tasks (1000, or all of --task-list).")] = None
    split: Annotated[str, typer.Option(help="Classes that tasks are drawn from: base, val or novel.")] = "novel"
    replacement: Annotated[
        bool, typer.Option("--replacement/--no-replacement", help="Whether tasks may share rows.")
    ] = True
    vary: Vary = None
    task_list: Annotated[Path | None, typer.Option(help="Use the tasks of this file (see --save-tasks).")] = None
    save_list: Annotated[Path | None, typer.Option("--save-tasks", help="Save the drawn tasks for later runs.")] = None

    def protocol(self) -> "Protocol":
        from fewcal.evaluation import Protocol

        number, variations = 1000 if self.tasks is None else self.tasks, _variations(self.vary or [])
        sizes = (self.way, self.shot, self.query, number)
        return Protocol(*sizes, self.seed, self.split, self.replacement, **variations)

    def episodes(self, features: "FeatureSet", protocol: "Protocol") -> "tuple[Protocol, Episodes | None]":
        """The tasks of the list, or None after saving those that will be drawn."""
        from fewcal.episodes import Episodes, sample_episodes

        if self.task_list is not None:
            listed = Episodes.load(self.task_list, features.split(self.split).require_labels())
            return replace(protocol, tasks=len(listed) if self.tasks is None else self.tasks), listed
        if self.save_list is not None:
            labels = features.split(self.split).require_labels()
            sample_episodes(labels, protocol.spec, range(protocol.tasks)).save(self.save_list)
        return protocol, None


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder with base, val and novel files.", callback=existing)],
    drawing: EvaluationTasks,
    output: Output,
    methods: Methods = "all",
    preset: Preset = None,
    set_: Set = None,
    reference: Reference = None,
    out: Annotated[Path | None, typer.Option(help="Folder that keeps the run.", metavar="RUN")] = None,
    resume: Resume = False,
    n_jobs: Annotated[int, typer.Option(help="Worker processes on this machine; -1 for all cores.")] = 1,
    scheduler: Scheduler = None,
    device: Device = "cpu",
) -> None:
    """Run methods on the same few-shot tasks and compare them."""
    if resume and out is None:
        raise InputError("--resume needs --out: the folder of the run to continue")
    if drawing.task_list is not None and drawing.save_list is not None:
        raise InputError("--task-list and --save-tasks exclude each other: the list is saved already")
    from fewcal.evaluation import evaluate as run
    from fewcal.features import FeatureSet
    from fewcal.methods import parse_methods

    chosen, protocol = parse_methods(methods, preset, set_ or []), drawing.protocol()
    if reference is not None and reference not in chosen:
        raise InputError(f"--reference {reference!r} is not among the methods: {', '.join(chosen)}")
    features = FeatureSet.load(folder)
    protocol, episodes = drawing.episodes(features, protocol)
    with output.progress("tasks") as report:
        results = run(
            chosen, features, protocol, device, out=out, resume=resume, episodes=episodes, n_jobs=n_jobs,
            scheduler=scheduler, progress=report,
        )  # fmt: skip
    summary = results.summary(reference)
    if not output.quiet:
        print_markdown(summary.to_markdown())  # before the file, which may fail where hours of work should not be lost
    output.json(summary.to_dict())


def _variations(pairs: list[str]) -> dict[str, Any]:
    """Fields of a protocol from `key=value`."""
    from fewcal._utils.names import nearest_names

    out: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in VARIATIONS:
            raise InputError(f"--vary {pair!r} is unknown{nearest_names(name, VARIATIONS)}")
        try:
            out[name] = True if value == "true" else int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise InputError(f"--vary {pair!r} needs a number, or true") from None
    return out


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders made by `fewcal evaluate --out`.", callback=existing)],
    output: Output,
    reference: Reference = None,
) -> None:
    """Paired statistics across finished runs on the same tasks."""
    from fewcal.evaluation.run_folder import compare_runs

    summary = compare_runs(runs, reference)
    output.json(summary.to_dict())
    if not output.quiet:
        print_markdown(summary.to_markdown())
