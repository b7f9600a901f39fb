"""`python -m fewcal`, and the command `fewcal`: Ctrl-C ends it with one line."""

import gc
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130  # what shells expect after Ctrl-C
_interrupts = 0


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from fewcal.cli import main as run

        run()
    except KeyboardInterrupt:
        print("fewcal: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()  # a search for garbage among the objects of torch takes 0.7 s


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt` at the first Ctrl-C; end the process at the second one, and within an import.

    An exception that passes through the import of a C++ module may be lost there or abort the process.
    """
    global _interrupts
    _interrupts += 1
    if _interrupts == 1 and not _is_import(frame):
        raise KeyboardInterrupt
    show_cursor = "\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else ""
    os.write(2, f"{show_cursor}fewcal: interrupted\n".encode())
    os._exit(INTERRUPTED)  # private of os: it runs no code of the libraries


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main()
