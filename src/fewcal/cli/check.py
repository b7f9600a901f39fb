"""`fewcal check`: cross-validation of labelled examples, labels to look at, near duplicates."""

from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.extract import Sheet
from fewcal.cli.options import ExtractorOptions, ModelOptions, Output, ReadingOptions, existing
from fewcal.cli.printing import percent

SUSPECTS, GROUPS = 20, 10  # printed; the page has all


def check(
    examples: Annotated[
        Path,
        typer.Argument(
            help="A folder for each class with its pictures, labelled texts, or labelled features.", callback=existing
        ),
    ],
    extractor: ExtractorOptions,
    items: ReadingOptions,
    model: ModelOptions,
    output: Output,
    folds: Annotated[int, typer.Option(help="Parts of the examples that are left out in turn.", min=2)] = 10,
    html: Sheet = None,
) -> None:
    """Check labelled examples: recall, labels to look at, near duplicates, classes in need of an example."""
    from fewcal.apply.check_source import check_source

    with output.progress("examples") as report:
        chosen = {"extractor": extractor.name, "folds": folds} | model.arguments
        found = check_source(examples, reading=items.reading(report), **chosen)
    if html is not None:
        found.write_html(html)
    output.json(found.to_dict() | {"files": [] if html is None else [str(html)]})
    by_name = {one.name: one for one in found.check.classes}
    rows = [
        [c.name, str(c.examples), percent(c.recall, 1), c.confused or ""]
        for c in (by_name[name] for name in found.check.needs)
    ]
    output.table(["class", "examples", "recall %", "mostly confused with"], rows, ["left", "right", "right", "left"])
    output.print(found.summary())
    likely, groups = [one for one in found.check.suspects if one.likely], found.check.duplicates
    if likely:
        shown = [[found.name(s.row), s.label, s.answer, percent(s.answer_probability, 1)] for s in likely[:SUSPECTS]]
        output.table([f"{found.kind} to look at", "label", "answer", "%"], shown, ["left", "left", "left", "right"])
    output.print(*(f"near duplicates: {', '.join(map(found.name, group))}" for group in groups[:GROUPS]))
    if html is not None:
        output.print(f"written to {html}")
    elif len(likely) > SUSPECTS or len(groups) > GROUPS:
        hidden = max(0, len(likely) - SUSPECTS), max(0, len(groups) - GROUPS)
        output.print(f"{hidden[0]} more labels and {hidden[1]} more groups: --html FILE shows all")
