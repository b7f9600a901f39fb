"""`python -m fewcal`, and the command `fewcal`: Ctrl-C is one line, from the first import of `main` to the end.

Nothing is imported before Ctrl-C is looked after, not even what `from __future__` would bring. Earlier are the start of
Python, the `import re` of the command that an installer writes, and the names of `fewcal`: some 20 ms in which Python
itself answers Ctrl-C, with a traceback. No package can change that without handling signals for all who import it.
"""

import gc
import sys

# Importing torch makes 300,000 objects, none of which is garbage. With Python's 700 the collector looks through them
# 400 times, which takes 0.3 s.
_OBJECTS_BETWEEN_COLLECTIONS = 5_000


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
    try:
        from fewcal._utils.interrupt import interrupted, leave_to_system, listen

        listen()
        try:
            try:
                from fewcal.cli import main as run
            except BaseException:
                if not interrupted():
                    raise
            if interrupted():  # also where a module took it for a fault of its own and went on
                raise KeyboardInterrupt
            run()
        finally:
            leave_to_system()
            gc.freeze()  # the process ends and frees all: looking for garbage first takes another 0.3 s
    except KeyboardInterrupt:
        print("fewcal: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
