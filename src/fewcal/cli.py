"""The `fewcal` command: reads options, calls the library, prints. No logic of its own.

Exit codes: 0 done; 1 a bug in fewcal; 2 wrong options or input; 3 the surroundings failed (disk, cluster); 130 Ctrl-C.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fewcal.errors import FewcalError, FileFormatError, InputError

# Some releases of typer stand on click and some bring their own copy of it: its errors are found through typer.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="fewcal",
    help="Few-shot classification by distribution calibration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
features_app = typer.Typer(no_args_is_help=True, help="Look at feature sets.")
bank_app = typer.Typer(no_args_is_help=True, help="Build and inspect banks of base classes.")
presets_app = typer.Typer(no_args_is_help=True, help="Named parameter sets of GDC.")
app.add_typer(features_app, name="features")
app.add_typer(bank_app, name="bank")
app.add_typer(presets_app, name="presets")


def _complete_method(incomplete: str) -> list[str]:
    from fewcal.methods import METHODS

    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in METHODS if name.startswith(last)]


def _complete_preset(incomplete: str) -> list[str]:
    from fewcal.presets import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


Json = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON to this file.", metavar="FILE")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table: files and exit code only.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, … or auto.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Preset = Annotated[
    str | None, typer.Option(help="Parameters of gdc; see `fewcal presets list`.", autocompletion=_complete_preset)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter: key=value for gdc, method.key=value for others. Repeatable."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@app.callback()
def _root(debug: Debug = False) -> None:
    # `--debug` is read in `main`, where errors end up.
    pass


@app.command()
def version(json_file: Json = None, quiet: Quiet = False) -> None:
    """Print versions of fewcal and what it stands on."""
    import numpy
    import torch

    from fewcal import __version__

    facts = {
        "fewcal": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    _write_json(json_file, facts)
    if not quiet:
        print("\n".join(f"{k} {v if v is not None else 'none'}" for k, v in facts.items()))


# ---- features, banks, presets ---------------------------------------------------------------------------------------


@features_app.command("info")
def features_info_command(
    folder: Annotated[Path, typer.Argument(help="Folder with base, val and novel files.")],
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Classes, rows, dimension, sign, sparsity, scale, duplicates and class leaks of a feature set."""
    from fewcal.features import FeatureSet
    from fewcal.features.info import features_info

    facts = features_info(FeatureSet.load(folder, allow_leaks=True))
    _write_json(json_file, facts)
    if quiet:
        return
    columns = {name: _flat(split) for name, split in facts["splits"].items()}
    keys = dict.fromkeys(k for column in columns.values() for k in column)
    _table(["", *columns], [[k, *(_cell(c.get(k)) for c in columns.values())] for k in keys])
    if across := facts["across"]:
        rows = [[k, str(v["duplicate_rows"]), _cell(v["shared_classes"])] for k, v in across.items()]
        _table(["between splits", "duplicate rows", "shared classes"], rows)
    for line in facts["warnings"]:
        print(f"warning: {line}")


@bank_app.command("build")
def bank_build(
    source: Annotated[Path, typer.Argument(help="Feature folder (its base split is taken) or one labelled file.")],
    out: Annotated[Path, typer.Option(help="Where the bank goes (.safetensors).")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="Build it in the space of this preset. Without: raw, for any preset.", autocompletion=_complete_preset
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Keep this many directions of each class instead of its rows; 0: moments only.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float16 storage of rows.")] = None,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Build a bank from base classes and save it."""
    from fewcal.bank import BaseBank
    from fewcal.features import FeatureSet, load_split
    from fewcal.gaussianize import fit_gaussianization
    from fewcal.presets import get_preset

    split = FeatureSet.load(source, ["base"]).split("base") if source.is_dir() else load_split(source, labelled=True)
    labels = split.require_labels()
    transform = None
    if preset is not None:
        import torch

        p = get_preset(preset)
        if not p.transform_base:
            raise InputError(f"preset {preset!r} takes base rows as they are: build the bank without --preset")
        rows = torch.from_numpy(split.float32())
        transform = fit_gaussianization(rows, p.beta, p.kind, p.center, p.l2, p.eps)
    elif rank is not None:
        raise InputError("--rank drops the rows, so the space must be fixed: give --preset as well")
    bank = BaseBank(rank, dtype, transform)
    bank.fit(split.features, [split.classes[i] for i in labels])
    bank.source = split.fingerprint()
    bank.save(out)
    facts = _bank_facts(bank) | {"file": str(out), "bytes": out.stat().st_size}
    _write_json(json_file, facts)
    if not quiet:
        _table(None, [[k, _cell(v)] for k, v in facts.items()])


@bank_app.command("info")
def bank_info(
    file: Annotated[Path, typer.Argument(help="A bank.")], json_file: Json = None, quiet: Quiet = False
) -> None:
    """What a bank holds."""
    from fewcal.bank import BaseBank

    facts = _bank_facts(BaseBank.load(file)) | {"file": str(file), "bytes": file.stat().st_size}
    _write_json(json_file, facts)
    if not quiet:
        _table(None, [[k, _cell(v)] for k, v in facts.items()])


def _bank_facts(bank: Any) -> dict[str, Any]:
    counts = bank.counts
    explained = bank.explained
    kept = "rows" if bank.has_rows else f"{bank.rank} directions a class" if bank.rank else "moments only"
    return {
        "classes": [str(c) for c in bank.classes],
        "number of classes": len(bank),
        "rows": bank.n_rows,
        "rows per class": f"{int(counts.min())} to {int(counts.max())}",
        "features": bank.dim,
        "kept": kept,
        "explained share": f"{float(explained.min()):.3f} to {float(explained.max()):.3f}" if bank.rank else None,
        "transform": bank.transform.settings() if bank.transform is not None else "raw",
        "fingerprint": bank.fingerprint,
        "source": bank.source,
    }


@presets_app.command("list")
def presets_list(json_file: Json = None, quiet: Quiet = False) -> None:
    """All presets, a line each."""
    from fewcal.presets import describe_preset, list_presets

    found = {name: describe_preset(name).summary for name in list_presets()}
    _write_json(json_file, found)
    if not quiet:
        _table(["preset", "what it is"], [[k, v] for k, v in found.items()])


@presets_app.command("show")
def presets_show(
    name: Annotated[str, typer.Argument(autocompletion=_complete_preset)], json_file: Json = None, quiet: Quiet = False
) -> None:
    """Parameters of a preset and how it settles what the paper leaves open."""
    from fewcal.presets import describe_preset

    preset = describe_preset(name)
    values = preset.params.as_dict()
    _write_json(json_file, {"name": name, "summary": preset.summary, "params": values, "resolves": preset.resolves})
    if not quiet:
        print(f"{name}: {preset.summary}\n")
        _table(["parameter", "value"], [[k, _cell(v)] for k, v in values.items()])
        _table(["open question", f"{name} takes"], [[k, v] for k, v in preset.resolves.items()])


# ---- evaluation ------------------------------------------------------------------------------------------------------


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder with base, val and novel files.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: ncm, simpleshot, lr, lr-gauss, cosine, dc, gdc, gdc:PRESET. 'all' for all.",
            autocompletion=_complete_method,
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
    save_tasks: Annotated[Path | None, typer.Option(help="Save the drawn tasks for later runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder that keeps the run.", metavar="RUN")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    n_jobs: Annotated[int, typer.Option(help="Worker processes on this machine; -1 for all cores.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, or local:N.")] = None,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Run methods on the same few-shot tasks and compare them."""
    from fewcal.episodes import Episodes, sample_episodes
    from fewcal.evaluation import Protocol
    from fewcal.evaluation import evaluate as run
    from fewcal.features import FeatureSet
    from fewcal.methods import parse_methods
    from fewcal.progress import ProgressBar
    from fewcal.runs import markdown

    if resume and out is None:
        raise InputError("--resume needs --out: the folder of the run to continue")
    if task_list is not None and save_tasks is not None:
        raise InputError("--task-list and --save-tasks exclude each other: the list is saved already")
    chosen = parse_methods(methods, preset, set_ or [])
    protocol = Protocol(way, shot, query, 1000 if tasks is None else tasks, seed, split, replacement)
    if reference is not None and reference not in chosen:
        raise InputError(f"--reference {reference!r} is not among the methods: {', '.join(chosen)}")
    features = FeatureSet.load(folder)
    episodes = None
    if task_list is not None:
        episodes = Episodes.load(task_list, features.split(split).require_labels())
        protocol = replace(protocol, tasks=len(episodes) if tasks is None else tasks)
    if save_tasks is not None:
        labels = features.split(split).require_labels()
        sample_episodes(labels, protocol.spec, range(protocol.tasks)).save(save_tasks)
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
        _print_markdown(markdown(summary))  # before the file, which may fail where hours of work should not be lost
    _write_json(json_file, summary)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders made by `fewcal evaluate --out`.")],
    reference: Annotated[
        str | None, typer.Option(help="Compare every method with this one instead of all pairs.")
    ] = None,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Paired statistics across finished runs on the same tasks."""
    from fewcal.runs import compare_runs, markdown

    summary = compare_runs(runs, reference)
    _write_json(json_file, summary)
    if not quiet:
        _print_markdown(markdown(summary))


# ---- real use --------------------------------------------------------------------------------------------------------


@app.command()
def predict(
    support: Annotated[Path, typer.Option(help="Labelled examples of your classes.")],
    query: Annotated[Path, typer.Option(help="Rows to classify.")],
    out: Annotated[Path, typer.Option(help="Predictions (.parquet, or .csv).")],
    bank: Annotated[
        Path | None, typer.Option(help="Bank of base classes; without it a plain classifier is used.")
    ] = None,
    preset: Preset = None,
    set_: Set = None,
    reject: Annotated[
        float | None,
        typer.Option(
            "--reject",
            help="Answer 'none of these' where more than this share of base-class examples look as much like your "
            "classes (e.g. 0.05).",
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Classify rows from a few labelled examples, with probabilities."""
    from fewcal.serving import fit_from_files, predict_rows, write_predictions

    classifier, _ = fit_from_files(bank, support, preset, set_ or [], seed, device)
    table = predict_rows(classifier, query, reject)
    write_predictions(table, out)
    counts: dict[str, int] = {}
    for answer in table["prediction"]:
        counts[str(answer)] = counts.get(str(answer), 0) + 1
    _write_json(json_file, {"rows": len(table["prediction"]), "predictions": counts, "file": str(out)})
    if not quiet:
        _table(["class", "rows"], [[k, str(v)] for k, v in sorted(counts.items(), key=lambda kv: -kv[1])])
        print(f"written to {out}")


@app.command()
def explain(
    support: Annotated[Path, typer.Option(help="Labelled examples of your classes.")],
    bank: Annotated[Path, typer.Option(help="Bank of base classes.")],
    preset: Preset = None,
    set_: Set = None,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Which base classes shape each of your classes, how much, and whether they are near enough to help."""
    from fewcal.serving import fit_from_files

    classifier, _ = fit_from_files(bank, support, preset, set_ or [], seed, device)
    story = classifier.explain()
    _write_json(json_file, story.to_dict())
    if not quiet:
        print(story)


# ---- printing --------------------------------------------------------------------------------------------------------


def _write_json(path: Path | None, value: Any) -> None:
    from fewcal.atomic import write_json

    if path is not None:
        write_json(path, value)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and not value:
        return "none"
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:6]))
        return f"{shown}, … ({len(value)})" if len(value) > 6 else shown
    if isinstance(value, dict):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items())
    return str(value)


def _flat(facts: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested facts as one level of readable names; fingerprints are cut to what tells them apart."""
    out: dict[str, Any] = {}
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            out |= _flat(value, f"{name}: ")
        else:
            out[name] = value[:12] if key == "fingerprint" else value
    return out


def _table(header: list[str] | None, rows: list[list[str]], sides: list[Any] | None = None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=header is not None)
    names = header or [""] * len(rows[0])
    for name, side in zip(names, sides or ["left"] * len(names), strict=True):
        table.add_column(name, overflow="fold", justify=side)  # a long word goes on in the next line, nothing is cut
    for row in rows:
        table.add_row(*row)
    # A pipe has no width: every row stays on its line.
    Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False).print(table)


def _print_markdown(text: str) -> None:
    """Markdown tables as tables in a terminal, as they are in a pipe."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    block: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if block:
            _table(block[0], block[2:], ["right" if rule.endswith(":") else "left" for rule in block[1]])
            block = []
        if line:
            print(line)


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors become one line and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    # joblib's advice about blocks that were given up: whatever made us give them up is told in its own line.
    warnings.filterwarnings("ignore", message=r"\d+ tasks which were still being processed")
    try:
        code = app(args=arguments, prog_name="fewcal", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except Exception as error:
        if debug:
            raise
        _fail(*_told(error))
    if code == 130:  # typer's own answer to Ctrl-C
        kept = any(a == "--out" or a.startswith("--out=") for a in arguments)
        _fail("interrupted" + ("; continue with the same command and --resume" if kept else ""), 130)
    sys.exit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> tuple[str, int]:
    """An error as a line and an exit code."""
    if isinstance(error, _UsageError):
        message = error.format_message()
        command = error.ctx.command_path if error.ctx is not None else "fewcal"
        # A command without any argument has printed its help already and has no message.
        return (f"{message.rstrip('.')}; see `{command} --help`" if message else ""), 2
    if isinstance(error, InputError | FileFormatError):
        unwritable = isinstance(error, InputError) and isinstance(error.__cause__, OSError)
        return str(error), 3 if unwritable else 2
    if isinstance(error, FewcalError | OSError | MemoryError):
        return str(error) or type(error).__name__, 3
    return f"unexpected {type(error).__name__}: {error} (run again with --debug and report it)", 1


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, line: int, *_: Any, **__: Any
) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    if line := " ".join(message.split()):
        print(f"fewcal: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
