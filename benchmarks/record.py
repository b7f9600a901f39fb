"""Tables of benchmarks: printed while they are measured, kept in benchmarks/results, and shown in the documentation.

    python benchmarks/accuracy/reject.py FEATURES --record application/reject    measure, print and keep
    python benchmarks/record.py                                                  write the pages (`make results`)

Each file of benchmarks/results is a section: a title, and tables by name with title, date, machine, commit, command,
columns, rows and notes. docs/results.md has all sections; `shown` restricts what it has of a table: columns, and rows
by the values of a column; false leaves the table to its file. Other pages and the README have single tables between
`<!-- results: SECTION/NAME -->` and `<!-- end -->`; `rows=PATTERN` has rows that begin so, `columns=0,2` some columns.
Measuring a table again replaces its date, machine, commit, command, columns, rows, and notes where the script makes
them. What people wrote stays.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "results.md"
# Pages that may have single tables.
OTHER_PAGES = ("README.md", "docs/*.md")
OPTIONS = r"(?: rows=(?P<rows>\S+))?(?: columns=(?P<columns>\S+))?"
MARKED = re.compile(rf"(?P<head><!-- results: (?P<where>\S+){OPTIONS} -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
# The sections of the page, in this order.
SECTIONS = (
    *("accuracy", "ablation", "failures", "application"),
    *("speed", "gpu", "paper", "training", "robustness"),
)
INTRODUCTION = """# Results

Made by `make results` from the files of `benchmarks/results`, which have every row. Above each table stand its date,
machine, commit and command. FEATURES, SETS, ODD and NEW are folders of feature sets. `make_sets.py`, `make_odd_sets.py`
and `make_new_sets.py` in `benchmarks/accuracy` make the last three. FEATURES comes from photographs and is not part of
the repository. ± is the half-width of a 95% interval over tasks. The [notebook](notebook/index.md) has what was tried
and dropped."""


class Table:
    """A table that is printed row by row as Markdown and can be kept."""

    def __init__(self, *columns: str) -> None:
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns of a table have names of their own; got {columns}")
        self.columns, self.rows = columns, list[tuple[str, ...]]()
        print(f"{table_row(columns)}\n{table_rule(columns)}", flush=True)

    def add(self, *cells: object) -> None:
        self.rows.append(tuple(str(cell) for cell in cells))
        print(table_row(self.rows[-1]), flush=True)

    def keep(self, where: str | None, notes: str = "") -> None:
        """Write to `SECTION/NAME` of benchmarks/results, with lines of notes; nothing for None."""
        if where is None:
            return
        section, slash, name = where.partition("/")
        if not (slash and name and section in SECTIONS):
            raise SystemExit(f"--record takes SECTION/NAME with a section of {', '.join(SECTIONS)}; got {where!r}")
        path = RESULTS / f"{section}.json"
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"title": section, "tables": {}}
        old = content["tables"].get(name, {"title": name})
        measured = {**origin(), "columns": list(self.columns), "rows": [list(row) for row in self.rows]}
        if notes:
            measured["notes"] = notes.splitlines()
        content["tables"][name] = {**old, **measured}
        path.write_text(encode(content), encoding="utf-8")


def add_record_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", metavar="SECTION/NAME", help="keep the table in benchmarks/results")


def origin() -> dict[str, str]:
    """Date, machine, commit and command of this process."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "commit": commit(),
        "command": command([sys.argv[0], *sys.argv[1:]]),
    }


def machine() -> str:
    """Processor, cores that this process may use, GPU and torch, in words.

    >>> "torch" in machine()
    True
    """
    import torch

    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.is_file() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{found[1] if found else platform.processor()}, {cores} cores{gpu}, torch {torch.__version__}"


def commit() -> str:
    """The short hash of HEAD, with a plus where files but the results are changed; nothing outside a repository."""
    short = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=HERE, capture_output=True, text=True)
    others = ["git", "diff", "--quiet", "HEAD", "--", ":/", ":(exclude,top)benchmarks/results"]
    changed = subprocess.run(others, cwd=HERE, capture_output=True)
    return short.stdout.strip() + ("+" if changed.returncode == 1 else "")


def command(arguments: list[str]) -> str:
    """A command line as a reader can type it: scripts from the root of the repository, folders by their names.

    >>> command([str(HERE / "speed" / "run.py"), "--shots", "1", "--record", "speed/naive"])
    'python benchmarks/speed/run.py --shots 1'
    """
    script, *rest = arguments
    where = Path(script).resolve()
    shown = str(where.relative_to(HERE.parent)) if where.is_relative_to(HERE.parent) else where.name
    kept = [a for i, a in enumerate(rest) if a != "--record" and (i == 0 or rest[i - 1] != "--record")]
    names = [Path(a).name if Path(a).is_dir() else a for a in kept]
    return shlex.join(["python", shown, *names])


def encode(content: dict[str, Any]) -> str:
    """JSON with a line for each row.

    >>> print(encode({"rows": [["a", "1"], ["b", "2"]]}), end="")
    {
     "rows": [
      ["a", "1"],
      ["b", "2"]
     ]
    }
    """
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\n\s+", " ", m[1]) + "]", text) + "\n"


def table_row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table_rule(columns: tuple[str, ...] | list[str]) -> str:
    """The line under a header; the first column is text, the others are numbers."""
    return f"|---|{'---:|' * (len(columns) - 1)}"


def shown(table: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table that the page has."""
    columns, rows = table["columns"], table["rows"]
    chosen = table.get("shown", {})
    for name, values in chosen.get("where", {}).items():
        rows = [row for row in rows if row[columns.index(name)] in values]
    places = [columns.index(name) for name in chosen.get("columns", columns)]
    return [columns[i] for i in places], [[row[i] for i in places] for row in rows]


def show_table(table: dict[str, Any]) -> str:
    columns, rows = shown(table)
    part = f" {len(rows)} of {len(table['rows'])} rows." if len(rows) < len(table["rows"]) else ""
    source = f"{table['date']}, {table['machine']}, commit {table['commit']}: `{table['command']}`."
    lines = [
        f"**{table['title']}.**{part} {source}",
        "",
        table_row(columns),
        table_rule(columns),
        *map(table_row, rows),
    ]
    notes = table.get("notes", [])
    return "\n".join([*lines, "", *notes] if notes else lines)


def show_section(path: Path) -> list[str]:
    """Title, text and tables of a file; those with `"shown": false` by their titles alone."""
    content = json.loads(path.read_text(encoding="utf-8"))
    tables = content["tables"].values()
    more = [f"{table['title']} ({len(table['rows'])} rows)" for table in tables if table.get("shown") is False]
    named = [f"More in `results/{path.name}`: {'; '.join(more)}."] if more else []
    body = [show_table(table) for table in tables if table.get("shown") is not False]
    return [f"## {content['title']}", *content.get("text", []), *body, *named]


def fill(text: str) -> str:
    """A page with its marked tables as they are recorded."""

    def table(found: re.Match[str]) -> str:
        section, _, name = found["where"].partition("/")
        one = json.loads((RESULTS / f"{section}.json").read_text(encoding="utf-8"))["tables"][name]
        one = {key: value for key, value in one.items() if key != "shown"}
        if found["rows"]:
            one["rows"] = [row for row in one["rows"] if re.match(found["rows"], " ".join(row))]
        if found["columns"]:
            one["shown"] = {"columns": [one["columns"][int(i)] for i in found["columns"].split(",")]}
        if found["rows"] or found["columns"]:
            one["notes"] = []
        return f"{found['head']}\n{show_table(one)}\n\n{found['end']}"

    return MARKED.sub(table, text)


def other_pages() -> list[Path]:
    """Pages that may have marked tables."""
    found = [path for pattern in OTHER_PAGES for path in sorted(HERE.parent.glob(pattern))]
    return [path for path in found if path != PAGE]


def page() -> str:
    """The page of all results."""
    parts = [INTRODUCTION]
    for section in SECTIONS:
        path = RESULTS / f"{section}.json"
        if path.is_file():
            parts += show_section(path)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for path in other_pages():
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE}: {len(page().splitlines())} lines")
