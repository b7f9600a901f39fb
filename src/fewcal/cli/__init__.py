"""The `fewcal` command: reads options, calls the library, prints. No logic of its own.

One module for each group of commands; each adds its own by `register`. Their annotations are not strings, which typer
would compile three times for each start.
Exit codes: 0 done; 1 a bug in fewcal; 2 wrong options or input; 3 the surroundings failed (disk, cluster); 130 Ctrl-C.
"""

import errno
import re
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from fewcal._utils.interrupt import forget_pending, interrupted, listen
from fewcal._utils.memory import LEAST_ADDRESS_SPACE, address_space
from fewcal._utils.text import printable
from fewcal._version import __version__
from fewcal.cli.options import Json, Quiet
from fewcal.cli.printing import write_json
from fewcal.cli.streams import flush_streams, open_streams
from fewcal.errors import FewcalError, FileFormatError, InputError

# Some releases of typer stand on click and some bring their own copy of it: its errors are found through typer.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

# Commands, and the module that registers them: one that is asked for is loaded without the others. The help shows them
# in this order, what most people begin with first.
COMMANDS = {
    "studio": ("studio",),
    "extract": ("classify", "extract", "data"),
    "model": ("fit", "serve", "model"),
    "predict": ("predict", "explain"),
    "features": ("features", "bank", "presets"),
    "evaluate": ("evaluate", "compare"),
    "tune": ("tune",),
    "report": ("report",),
    "paper": ("paper",),
    "train": ("train",),
}
# Commands whose --out can be continued with --resume.
RESUMABLE = {"evaluate", "tune", "extract", "train", "paper"}
# What torch says where memory is missing, on a CPU and on a GPU, and the system where it loads a library or a process.
_NO_MEMORY = re.compile(
    "can.t allocate memory|not enough memory|out of memory|nvalid buffer size|too large to alloc"
    "|annot allocate memory|failed to map segment|can't start new thread"
)
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def show_version(wanted: bool) -> None:
    """Print the version alone and leave, where it is wanted."""
    if wanted:
        print(f"fewcal {__version__}")
        raise typer.Exit()


Version = Annotated[
    bool, typer.Option("--version", "-V", help="Show the version.", callback=show_version, is_eager=True)
]


def application(command: str | None = None) -> typer.Typer:
    """The command line with this command alone, or with all of them."""
    app = typer.Typer(
        name="fewcal",
        help="Few-shot classification by distribution calibration.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # boxes around help take a fifth of its time to import
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    asked = [module for module, names in COMMANDS.items() if command in names]
    for module in asked or COMMANDS:
        import_module(f"fewcal.cli.{module}").register(app)
    app.command()(version)
    return app


def _root(debug: Debug = False, version: Version = False) -> None:
    # `--debug` is read in `main`, where errors end up.
    pass


def version(json_file: Json = None, quiet: Quiet = False) -> None:
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
    write_json(json_file, facts)
    if not quiet:
        print("\n".join(f"{k} {v if v is not None else 'none'}" for k, v in facts.items()))


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors become one line and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    open_streams()
    listen()
    if (room := address_space()) is not None and room < LEAST_ADDRESS_SPACE:
        least = LEAST_ADDRESS_SPACE / 1e9
        _fail(f"the limit of memory (ulimit -v) is {room / 1e9:.2f} GB; set it to {least:.1f} GB or more", 3)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    # joblib's advice about blocks that were given up: whatever made us give them up is told in its own line.
    warnings.filterwarnings("ignore", message=r"\d+ tasks which were still being processed")
    try:
        code = application(*arguments[:1])(args=arguments, prog_name="fewcal", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        # Typer ends with 1 where nobody reads the output any more (`fewcal … | head`), which is no fault.
        code = 0 if isinstance(end.__context__, BrokenPipeError) else end.code
    except Exception as error:
        # Typer takes the end of a file for Ctrl-C, and an import may take Ctrl-C for a fault of its own.
        if interrupted() or (isinstance(error, typer.Abort) and not isinstance(error.__context__, EOFError)):
            code = 130
        elif debug:
            raise
        else:
            _fail(*_told(error.__context__ if isinstance(error.__context__, EOFError) else error))
    if code == 130:  # typer's own answer to Ctrl-C
        forget_pending()
        kept = bool(RESUMABLE & set(arguments[:2])) and any(a == "--out" or a.startswith("--out=") for a in arguments)
        _fail("interrupted" + ("; continue with the same command and --resume" if kept else ""), 130)
    if (lost := flush_streams()) is not None:
        _fail(lost, 3)
    sys.exit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> tuple[str, int]:
    """An error as a line and an exit code."""
    if isinstance(error, _UsageError):
        message = error.format_message()
        if message.startswith("Usage: "):  # a command without any argument: the help itself
            print(message)
            return "", 2
        command = error.ctx.command_path if error.ctx is not None else "fewcal"
        end = " See" if message.endswith("?") else "; see"
        return f"{message.rstrip('.')}{end} `{command} --help`", 2
    if isinstance(error, InputError | FileFormatError):
        unwritable = isinstance(error, InputError) and isinstance(error.__cause__, OSError)
        return str(error), 3 if unwritable else 2
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):  # Dask passes on errors as plain `Exception`
        asked = re.search(r"allocate ([\d.,]+ ?\w+)", str(error))
        wanted = f" ({asked[1]} in one piece)" if asked else ""
        return f"not enough memory{wanted}; use smaller batches, fewer features or a machine with more", 3
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return f"cannot write the output: {error.strerror}", 3  # printed without a buffer, it fails while it is printed
    if isinstance(error, FewcalError | OSError):
        return str(error) or type(error).__name__, 3
    return f"unexpected {type(error).__name__}: {error} (run again with --debug and report it)", 1


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, line: int, *_: Any, **__: Any
) -> None:
    print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    if line := " ".join(message.split()):
        print(f"fewcal: {printable(line)}", file=sys.stderr)
    sys.exit(code)
