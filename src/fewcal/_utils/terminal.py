"""A progress bar for people and plain lines for pipes, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class ProgressBar:
    """Call it with (done, total): a bar with rate and time left in a terminal, a line now and then in a pipe.

    >>> with ProgressBar("tasks", quiet=True) as report:
    ...     report(1, 2)
    """

    # Seconds between lines where there is no terminal.
    EVERY = 10.0

    def __init__(self, unit: str, quiet: bool = False) -> None:
        self.unit = unit
        self.quiet = quiet
        self.bar: Any = None
        self.task: Any = None
        self.first: tuple[float, int] | None = None
        self.last = 0.0

    def __enter__(self) -> ProgressBar:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self.bar = Progress(TextColumn(self.unit), *columns, console=Console(stderr=True), transient=True)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = (now, done)  # work of an earlier start does not count into the rate
        spent = now - self.first[0]
        seen = done - self.first[1]
        # The last few items after one large batch take no time that could be measured.
        rate = seen / spent if spent >= 1 or (spent > 0 and 2 * seen >= total) else 0.0
        text = f"{rate:{'.0f' if rate >= 100 else '.3g'}} {self.unit}/s" if rate else ""
        if self.bar is not None:
            if self.task is None:
                self.task = self.bar.add_task(self.unit, total=total, rate=text)
            self.bar.update(self.task, completed=done, total=total, rate=text)
        elif not self.quiet and (now - self.last >= self.EVERY or done == total):
            left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
            print(f"{done}/{total} {self.unit}" + (f", {text}{left}" if text else ""), file=sys.stderr, flush=True)
            self.last = now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
