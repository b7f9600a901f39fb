"""The tables of docs/fidelity.md from the records of a run: `python tools/fidelity_page.py RUN [PAGE]`.

Everything under "All figures" is written anew, with the tasks, the device and the day of the records. What the page
says in words above is checked by a reader: the counts that it cites are printed.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

from fewcal.errors import InputError
from fewcal.paper.blocks import Table, to_markdown
from fewcal.paper.experiments import fidelity
from fewcal.paper.measured import beyond, difference
from fewcal.paper.published import stand_in_words
from fewcal.paper.run import kept_records, read_config

PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
HEADING = "## All figures\n"
SHORT = {"dogs": "Dogs", "cub": "CUB", "mini": "mini", "mini2cub": "mini→CUB", "meta-tiered": "meta-tiered"}
WORDS = (
    "Where it starts, accuracy in %:",
    "What each other answer brings, in points (▲ and ▼ beyond the 95% interval):",
)


def all_figures(run: Path, day: date) -> str:
    """What stands under the heading: the setting in words, then two tables for each preset."""
    kept = kept_records(run).get("fidelity")
    if kept is None:
        raise InputError(
            f"{run} has no record of the fidelity study; compute it: fewcal paper run fidelity --out {run}"
        )
    config = read_config(run)
    records = {(r["dataset"], r["shot"]): r["data"] for r in kept}
    section = fidelity.show_fidelity(records)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    stand_ins = {d for d, own in config.get("classes", {}).items() if stand_in_words(d, own)}
    columns = [f"{SHORT.get(d, d)}{'*' if d in stand_ins else ''} {shot}" for d, shot in records]
    counts = sorted({len(v) for r in records.values() for v in r["correct"].values()}, reverse=True)
    device = ", ".join(dict.fromkeys(r["device"] for r in kept))
    words = (
        f"Columns are features and shots{', * a stand-in' if stand_ins else ''}. {', '.join(map(str, counts))} novel "
        f"tasks, the fewer the slower the method, seed {config['effort']['seed']}, computed by {device}, {day}. – "
        "where the question does not arise: both answers are the same (one shot, signed features, a Σ'ₛ that is never "
        "clipped, the preset's own answer), or it would take too long (eigenvalues for large D). Four digits mark a "
        "difference that a few tasks out of many make."
    )
    parts = [words]
    for i, preset in enumerate(fidelity.PRESETS):
        parts.append(f"### `{preset}`")
        for told, table in zip(WORDS, tables[2 * i : 2 * i + 2], strict=True):
            own = len(table.header) - len(columns)
            parts += [told, to_markdown([Table([*table.header[:own], *columns], table.rows)]).rstrip()]
    return "\n\n".join(parts) + "\n"


def counted(run: Path) -> str:
    """How many comparisons there are, and how many lie beyond their interval."""
    records = [r["data"] for r in kept_records(run)["fidelity"]]
    found = [beyond(difference(r, row["variant"], row["reference"])) for r in records for row in r["rows"]]
    return f"{len(found)} comparisons, {sum(found)} beyond their interval; by chance about {round(0.05 * len(found))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a folder of `fewcal paper run`")
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    given = parser.parse_args()
    files = (given.run / "results" / "fidelity").glob("*.json")
    day = date.fromtimestamp(max((file.stat().st_mtime for file in files), default=0))
    figures = all_figures(given.run, day)
    before, heading, _ = given.page.read_text(encoding="utf-8").partition(HEADING)
    if not heading:
        raise InputError(f"{given.page} has no heading {HEADING.strip()!r}")
    given.page.write_text(f"{before}{heading}\n{figures}", encoding="utf-8")
    print(counted(given.run))


if __name__ == "__main__":
    main()
