"""Tables on a terminal; control characters in names are shown, not obeyed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape

from fewcal._utils.text import printable


def table(header: list[str] | None, rows: list[list[str]], sides: Sequence[str] | None = None) -> None:
    """Print a table: as wide as the terminal, each row on its line in a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=header is not None)
    names = header or [""] * len(rows[0])
    for name, side in zip(names, sides or ["left"] * len(names), strict=True):
        # A long word goes on in the next line, nothing is cut.
        table.add_column(printable(name), overflow="fold", justify="right" if side == "right" else "left")
    for row in rows:
        table.add_row(*(printable(cell).replace("\n", "\\n") for cell in row))
    # A pipe has no width: every row stays on its line.
    Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False).print(table)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a notebook; numbers are aligned to the right.

    >>> html_table(["name"], [["<b>"]])
    '<table><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = []
    for first, *others in rows:
        cells = "".join(f'<td style="text-align: {_side(cell)}">{escape(cell)}</td>' for cell in others)
        lines.append(f"<tr><td>{escape(first)}</td>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _side(cell: str) -> str:
    return "right" if cell[:1].isdigit() or cell[:1] in "+-−–<" else "left"


def print_markdown(text: str) -> None:
    """Markdown tables as tables in a terminal, as they are in a pipe."""
    text = printable(text)
    if not sys.stdout.isatty():
        print(text, end="")
        return
    block: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if block:
            table(block[0], block[2:], ["right" if rule.endswith(":") else "left" for rule in block[1]])
            block = []
        if line:
            print(line)
