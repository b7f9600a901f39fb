"""`fewcal tune`: parameters from validation classes."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewcal.cli.options import Device, Json, Query, Quiet, Scheduler, Seed, Shot, Way, existing
from fewcal.cli.printing import percent, table, write_json
from fewcal.errors import InputError
from fewcal.tuning.protocols import ENQUEUE, PROTOCOLS, TuningProtocol
from fewcal.tuning.spaces import SPACES, Picks, SpaceEntry

if TYPE_CHECKING:
    from fewcal.tuning import Search, Snapshot, Tuning


def _complete_protocol(incomplete: str) -> list[str]:
    return [name for name in PROTOCOLS if name.startswith(incomplete)]


def _complete_enqueue(incomplete: str) -> list[str]:
    return [name for name in ENQUEUE if name.startswith(incomplete)]


def _complete_head(incomplete: str) -> list[str]:
    from fewcal.heads import HEADS

    return [name for name in HEADS if name.startswith(incomplete)]


def _complete_space(incomplete: str) -> list[str]:
    return [name for name in SPACES if name.startswith(incomplete)]


def _listed(entries: Iterable[TuningProtocol | SpaceEntry]) -> str:
    return "; ".join(f"{entry.name}: {entry.summary}" for entry in entries) + "."


ProtocolName = Annotated[str, typer.Option(help=_listed(PROTOCOLS.values()), autocompletion=_complete_protocol)]
SpaceName = Annotated[str | None, typer.Option(help=_listed(SPACES.values()), autocompletion=_complete_space)]
HeadNames = Annotated[
    str | None, typer.Option(help="Comma-separated heads; see `fewcal presets params`.", autocompletion=_complete_head)
]

_FIRST = "; ".join(f"{name}: {words}" for name, words in ENQUEUE.items())
_USUAL = ", ".join(f"{p.enqueue} by protocol {p.name}" for p in PROTOCOLS.values())
Enqueue = Annotated[
    str | None,
    typer.Option(help=f"First trials; {_FIRST}. Without it {_USUAL}.", autocompletion=_complete_enqueue),
]


def tune(
    folder: Annotated[
        Path, typer.Argument(help="Folder with base and val files (and novel, for --novel).", callback=existing)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the study, its plots and the preset file.", metavar="STUDY")],
    on: Annotated[
        str,
        typer.Option(
            help="val: search on validation classes. base (deprecated): write the preset default, without a search."
        ),
    ] = "val",
    protocol: ProtocolName = "default",
    space: SpaceName = None,
    head: HeadNames = None,
    trials: Annotated[int, typer.Option(help="Trials in all, those of other workers included.")] = 1000,
    tasks: Annotated[int, typer.Option(help="Tasks of a trial, the same for all.")] = 200,
    way: Way = 5,
    shot: Shot = 1,
    query: Query = 15,
    seed: Seed = 0,
    enqueue: Enqueue = None,
    storage: Annotated[
        str | None, typer.Option(help="sqlite:///FILE or postgresql://… instead of a journal file in --out.")
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in its storage.")] = "fewcal",
    resume: Annotated[bool, typer.Option("--resume", help="Continue or join the study.")] = False,
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 1,
    scheduler: Scheduler = None,
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
    if on == "base":  # for this release; `get_preset` says what it is now
        _write_default(out / "preset.json", json_file, quiet)
        return
    if on != "val":
        raise InputError(f"--on {on!r} is neither val nor base")
    from fewcal.features import FeatureSet

    features = FeatureSet.load(folder, ["base", "val", *(["novel"] if novel else [])])
    from fewcal.tuning import Search
    from fewcal.tuning import tune as run

    heads = None if head is None else tuple(part.strip() for part in head.split(",") if part.strip())
    numbers = {"trials": trials, "tasks": tasks, "way": way, "shot": shot, "query": query, "seed": seed}
    search = Search.for_features(features, protocol=protocol, space=space, heads=heads, enqueue=enqueue, **numbers)
    opened = (novel_tasks or search.rules.novel_tasks) if novel else None
    start = partial(run, out=out, storage=storage, study=study, resume=resume, workers=workers, scheduler=scheduler)
    with _live(quiet) as watch:
        result = start(features, search, novel_tasks=opened, device=device, watch=watch)
    write_json(json_file, result.to_dict(out, search.rules.fresh_tasks))
    if not quiet:
        _print_result(result, search, out)


def _write_default(file: Path, json_file: Path | None, quiet: bool) -> None:
    from fewcal.presets import get_preset, save_preset

    params = get_preset("auto")
    save_preset(file, params, "the preset default")
    write_json(json_file, {"preset": str(file), "params": params.as_dict()})
    if not quiet:
        print(f"preset: {file}")


def _print_result(result: "Tuning", search: "Search", out: Path) -> None:
    fresh = search.rules.fresh_tasks
    rows = [
        [
            f.name + (" ←" if f is result.chosen else ""),
            *(percent(value) for value in ([f.tuned, f.mean] if fresh else [f.tuned])),
            _parameters(f.values),
        ]
        for f in result.finalists
    ]
    table(["trial", "search tasks %", *(["fresh tasks %"] if fresh else []), "parameters"], rows)
    if result.novel is not None:
        print(f"novel classes, opened {result.novel.opened}:")
        figures = result.novel.figures.items()
        table(["method", "accuracy %", "±"], [[k, percent(m.accuracy), percent(m.ci95)] for k, m in figures])
    counts = result.counts
    rate = f"{result.fresh / result.searched:.2f} trials/s" if result.searched > 0 else ""
    print(f"{counts.finished} trials, {counts.pruned} pruned, {result.fresh} now in {result.searched:.0f} s ({rate})")
    print(f"preset: {out / 'preset.json'}; page: {out / 'tuning.html'}")


# ---- while it runs ---------------------------------------------------------------------------------------------------


def _parameters(values: Picks) -> str:
    return " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


@contextmanager
def _live(quiet: bool) -> Iterator[Callable[["Snapshot"], None] | None]:
    """A table of the best trials that renews itself in a terminal; a line now and then in a pipe."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        last = [0.0]

        def line(now: "Snapshot") -> None:
            done = now.counts.finished >= now.target
            if time.monotonic() - last[0] >= 10 or done:
                last[0] = time.monotonic()
                print(now, file=sys.stderr, flush=True)

        yield line
        return
    from rich import box
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    def picture(now: "Snapshot") -> Table:
        out = Table(box=box.SIMPLE_HEAD, title=str(now), title_justify="left")
        for name in ("trial", "accuracy %", "parameters"):
            out.add_column(name, overflow="fold")
        for number, value, params in now.best:
            out.add_row(str(number), percent(value), _parameters(params))
        return out

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda now: live.update(picture(now))
