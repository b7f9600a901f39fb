"""`fewcal tune`: parameters from validation classes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fewcal.cli.options import Device, Json, Quiet, Seed
from fewcal.cli.printing import table, write_json
from fewcal.errors import InputError


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(tune)


def _complete_head(incomplete: str) -> list[str]:
    from fewcal.heads import HEADS

    return [name for name in HEADS if name.startswith(incomplete)]


def _complete_space(incomplete: str) -> list[str]:
    from fewcal.tune.spaces import space_names

    return [name for name in space_names() if name.startswith(incomplete)]


def tune(
    folder: Annotated[Path, typer.Argument(help="Folder with base and val files (and novel, for --novel).")],
    out: Annotated[Path, typer.Option(help="Folder for the study, its plots and the preset file.", metavar="STUDY")],
    on: Annotated[
        str,
        typer.Option(
            help="val: search on validation classes. base (deprecated): write the preset default, without a search."
        ),
    ] = "val",
    protocol: Annotated[
        str, typer.Option(help="default, or paper: the paper's search as it describes it.")
    ] = "default",
    space: Annotated[
        str | None,
        typer.Option(
            help="default, whitened (its fast part), ablation, or paper/ and mini, cub, dogs, meta-tiered or mini2cub.",
            autocompletion=_complete_space,
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Comma-separated heads; see `fewcal presets params`.", autocompletion=_complete_head),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials in all, those of other workers included.")] = 1000,
    tasks: Annotated[int, typer.Option(help="Tasks of a trial, the same for all.")] = 200,
    way: Annotated[int, typer.Option(help="Classes of a task.")] = 5,
    shot: Annotated[int, typer.Option(help="Support examples of a class.")] = 1,
    query: Annotated[int, typer.Option(help="Queries of a class.")] = 15,
    seed: Seed = 0,
    storage: Annotated[
        str | None, typer.Option(help="sqlite:///FILE or postgresql://… instead of a journal file in --out.")
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in its storage.")] = "fewcal",
    resume: Annotated[bool, typer.Option("--resume", help="Continue or join the study.")] = False,
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, or local:N.")] = None,
    novel: Annotated[
        bool, typer.Option("--novel", help="Open the novel classes, once, after the choice; recorded in the study.")
    ] = False,
    novel_tasks: Annotated[
        int | None, typer.Option(help="Tasks on the novel classes (1000; 5000 by the paper's protocol).")
    ] = None,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Find parameters of GDC and write them as a preset file."""
    from fewcal.features import FeatureSet

    if on == "base":  # for this release; `get_preset` says what it is now
        from fewcal.presets import get_preset, save_preset

        params, file = get_preset("auto"), out / "preset.json"
        save_preset(file, params, "the preset default")
        write_json(json_file, {"preset": str(file), "params": params.as_dict()})
        if not quiet:
            print(f"preset: {file}")
        return
    if on != "val":
        raise InputError(f"--on {on!r} is neither val nor base")
    from fewcal.tune import Search
    from fewcal.tune import tune as run

    features = FeatureSet.load(folder, ["base", "val", *(["novel"] if novel else [])])
    if space is None:
        # The paper's families: α up to 10,000 for features after a ReLU, a finer range for signed ones.
        signed = bool((features.split("base").features < 0).any())
        space = "default" if protocol == "default" else "paper/dogs" if signed else "paper/mini"
    usual = {"default": "closed_form,lbfgs", "whitened": "closed_form"}.get(space, "sgd")
    search = Search(
        protocol=protocol,
        space=space,
        heads=tuple(part.strip() for part in (head or usual).split(",") if part.strip()),
        trials=trials,
        tasks=tasks,
        way=way,
        shot=shot,
        query=query,
        seed=seed,
    )
    asked = novel_tasks or (5000 if protocol == "paper" else 1000)
    with _live(quiet) as watch:
        result = run(
            features,
            search,
            out=out,
            storage=storage,
            study=study,
            resume=resume,
            workers=workers,
            scheduler=scheduler,
            novel_tasks=asked if novel else None,
            device=device,
            watch=watch,
        )
    counts = result.counts
    facts = {
        "preset": str(out / "preset.json"),
        "trials": counts.finished,
        "pruned": counts.pruned,
        "seconds": result.seconds,
        "trial": result.chosen.number,
        "accuracy": {
            "search tasks": result.chosen.tuned,
            "fresh tasks": result.chosen.mean if protocol == "default" else None,
        },
        "params": result.params.as_dict(),
        "novel": result.novel,
    }
    write_json(json_file, facts)
    if quiet:
        return
    fresh = protocol == "default"
    table(
        ["trial", "search tasks %", *(["fresh tasks %"] if fresh else []), "parameters"],
        [
            [
                f"{'preset default' if f.number < 0 else f.number}{' ←' if f is result.chosen else ''}",
                _percent(f.tuned),
                *([_percent(f.mean)] if fresh else []),
                _parameters(f.values),
            ]
            for f in result.finalists
        ],
    )
    if result.novel is not None:
        print(f"novel classes, opened {result.novel['opened']}:")
        table(
            ["method", "accuracy %", "±"],
            [[k, _percent(m["accuracy"]), _percent(m["ci95"])] for k, m in result.novel["figures"].items()],
        )
    rate = f"{result.fresh / result.searched:.2f} trials/s" if result.searched > 0 else ""
    print(f"{counts.finished} trials, {counts.pruned} pruned, {result.fresh} now in {result.searched:.0f} s ({rate})")
    print(f"preset: {out / 'preset.json'}; page: {out / 'tuning.html'}")


# ---- while it runs ---------------------------------------------------------------------------------------------------


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _parameters(values: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


@contextmanager
def _live(quiet: bool) -> Iterator[Callable[[Any], None] | None]:
    """A table of the best trials that renews itself in a terminal; a line now and then in a pipe."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        last = [0.0]

        def line(now: Any) -> None:
            done = now.counts.finished >= now.target
            if time.monotonic() - last[0] >= 10 or done:
                last[0] = time.monotonic()
                print(_state(now), file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda now: live.update(_picture(now))


def _state(now: Any) -> str:
    counts = now.counts
    share = counts.pruned / counts.finished if counts.finished else 0.0
    left = f", {now.left:.0f} s left" if now.left is not None and counts.finished < now.target else ""
    best = f", best {100 * now.best[0][1]:.2f}%" if now.best else ""
    return f"{counts.finished}/{now.target} trials, {now.rate:.2f} trials/s{left}, {share:.0%} pruned{best}"


def _picture(now: Any) -> Any:
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE_HEAD, title=_state(now), title_justify="left")
    for name in ("trial", "accuracy %", "parameters"):
        out.add_column(name, overflow="fold")
    for number, value, params in now.best:
        out.add_row(str(number), f"{100 * value:.2f}", _parameters(params))
    return out
