"""The `fewcal` command: reads options, calls the library, prints. No logic of its own.

The module of a command is imported when the command runs; `--help` needs none. Annotations are not strings, which typer
would compile three times at each start.
Exit codes: 0 done; 1 a bug in fewcal; 2 wrong options or input; 3 disk, memory or cluster; 130 Ctrl-C.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from fewcal._utils.memory import LEAST_ADDRESS_SPACE, address_space
from fewcal._utils.text import printable
from fewcal._version import __version__
from fewcal.cli.errors import format_error
from fewcal.cli.options import Output, ungrouped
from fewcal.cli.streams import flush_streams, open_streams

# Module and summary of each command, in the order of the help.
COMMANDS = {
    "studio": ("studio", "Label pictures or texts in the browser."),
    "classify": ("extract", "Classify pictures or texts from a few examples of each."),
    "check": (
        "check",
        "Check labelled examples: recall, labels to look at, near duplicates, classes in need of an example.",
    ),
    "extract": ("extract", "Turn pictures or texts into features for other commands."),
    "data": ("extract", "Lists of pictures from downloaded data sets."),
    "fit": ("model", "Fit a classifier on a few examples of each class and save it."),
    "model": ("model", "Saved classifiers."),
    "export": ("model", "Write a saved classifier as ONNX, for other languages."),
    "serve": ("model", "Serve a saved classifier over HTTP, with a page to try it."),
    "hub": ("hub", "Banks and classifiers on the Hugging Face Hub."),
    "predict": ("predict", "Classify with a saved classifier, or from labelled rows."),
    "explain": ("predict", "Which base classes shape yours, how much, and whether it helps."),
    "features": ("features", "Look at feature sets."),
    "bank": ("features", "Build and inspect banks of base classes."),
    "presets": ("features", "Named parameter sets of GDC."),
    "evaluate": ("evaluate", "Run methods on the same few-shot tasks and compare them."),
    "compare": ("evaluate", "Paired statistics across finished runs on the same tasks."),
    "report": ("report", "Show finished runs as one HTML file."),
    "tune": ("tune", "Search parameters of HGDC or GDC on validation classes, and compare the best with the default."),
    "paper": ("paper", "Tables and figures of the paper, with its figures beside yours."),
    "train": ("train", "Train a backbone on base classes (S2M2)."),
}
# Commands whose --out can be continued with --resume.
RESUMABLE = {"evaluate", "tune", "extract", "train", "paper"}
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        print(f"fewcal {__version__}")
        raise typer.Exit()


Version = Annotated[
    bool, typer.Option("--version", "-V", help="Show the version.", callback=show_version, is_eager=True)
]


def application(command: str | None = None) -> typer.Typer:
    """The command line: one command with its options, or the summaries of all."""
    app = typer.Typer(
        name="fewcal",
        help="Few-shot classification by distribution calibration.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # boxes around help take a fifth of its time to import
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    if command in COMMANDS:
        module = import_module(f"fewcal.cli.{COMMANDS[command][0]}")
        entry = getattr(module, command)
        if isinstance(entry, typer.Typer):
            for one in entry.registered_commands:
                one.callback = one.callback and ungrouped(one.callback)
            app.add_typer(entry, name=command)
        else:
            app.command(command)(ungrouped(entry))
    else:
        for name, (_, summary) in COMMANDS.items():
            app.command(name, help=summary)(_placeholder)
    app.command()(ungrouped(version))
    return app


def _root(debug: Debug = False, version: Version = False) -> None:
    # `main` reads --debug, where errors end up.
    pass


def _placeholder() -> None:
    pass


def version(output: Output) -> None:
    """Print versions of fewcal and what it stands on."""
    import numpy
    import torch

    facts = {
        "fewcal": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    output.json(facts)
    output.print(*(f"{k} {v if v is not None else 'none'}" for k, v in facts.items()))


def main(argv: list[str] | None = None) -> None:
    """Run a command line; errors become one line and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    open_streams()
    if (limit := address_space()) is not None and limit < LEAST_ADDRESS_SPACE:
        least = LEAST_ADDRESS_SPACE / 1e9
        _fail(f"the limit of memory (ulimit -v) is {limit / 1e9:.2f} GB; set it to {least:.1f} GB or more", 3)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    # Advice of joblib about blocks that were given up: their own error has a line.
    warnings.filterwarnings("ignore", message=r"\d+ tasks which were still being processed")
    try:
        app = application(_command_name(arguments))
        code = app(args=arguments, prog_name="fewcal", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        # Typer ends with 1 where the reader of the output has gone (`fewcal … | head`), which is no fault.
        code = 0 if isinstance(end.__context__, BrokenPipeError) else end.code
    except Exception as error:
        if isinstance(error, typer.Abort) and not isinstance(error.__context__, EOFError):
            code = 130
        elif debug:
            raise
        else:
            _fail(*format_error(error))
    if code == 130:  # typer's own answer to Ctrl-C, too
        is_resumable = not RESUMABLE.isdisjoint(arguments[:2]) and any(a.split("=")[0] == "--out" for a in arguments)
        _fail("interrupted" + ("; continue with the same command and --resume" if is_resumable else ""), 130)
    if (problem := flush_streams()) is not None:
        _fail(problem, 3)
    sys.exit(code if isinstance(code, int) else 0)


def _command_name(arguments: Sequence[str]) -> str | None:
    """The command in a command line, or in one that a shell completes."""
    if "_FEWCAL_COMPLETE" in os.environ:
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        arguments = line.split()[1:]
    return next((a for a in arguments if not a.startswith("-")), None)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, line: int, *_: Any, **__: Any
) -> None:
    print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    if line := " ".join(message.split()):
        print(f"fewcal: {printable(line)}", file=sys.stderr)
    sys.exit(code)
