"""`python -m fewcal`, and the command `fewcal`: Ctrl-C is one line even while modules are still imported."""

from __future__ import annotations

import sys

from fewcal._utils.interrupt import interrupted, listen


def main() -> None:
    """Run the command line."""
    listen()
    try:
        from fewcal.cli import main as run
    except BaseException:
        if not interrupted():
            raise
    if interrupted():  # also where a module took it for a fault of its own and went on
        print("fewcal: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
