"""`fewcal check`: cross-validation of labelled examples, labels to look at, near duplicates."""

from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.extract import (
    Batch,
    Download,
    LabelColumn,
    ListExtractors,
    Sheet,
    SkipBad,
    TextColumn,
    UsualExtractor,
    Workers,
    joined_extractors,
)
from fewcal.cli.options import Device, Json, KnownPreset, Quiet, Seed, Set, existing
from fewcal.cli.printing import percent, table, write_json

SUSPECTS, GROUPS = 20, 10  # printed; the page has all


def check(
    examples: Annotated[
        Path,
        typer.Argument(
            help="A folder for each class with its pictures, labelled texts, or labelled features.", callback=existing
        ),
    ],
    extractor: UsualExtractor = None,
    list_extractors: ListExtractors = False,
    bank: Annotated[
        Path | None, typer.Option(help="Bank of base classes from the same extractor.", callback=existing)
    ] = None,
    folds: Annotated[int, typer.Option(help="Parts of the examples that are left out in turn.", min=2)] = 10,
    html: Sheet = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    preset: KnownPreset = None,
    set_: Set = None,
    batch: Batch = 32,
    workers: Workers = None,
    skip_bad: SkipBad = False,
    allow_download: Download = False,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Check labelled examples: recall, labels to look at, near duplicates, classes in need of an example."""
    from fewcal._utils.terminal import ProgressBar
    from fewcal.apply.check_source import check_source
    from fewcal.apply.saved import Reading

    with ProgressBar("examples", quiet) as report:
        reading = Reading((text_column, label_column), batch, workers, skip_bad, device, allow_download, report)
        found = check_source(
            examples,
            extractor=joined_extractors(extractor),
            bank=bank,
            preset=preset,
            settings=set_ or [],
            folds=folds,
            seed=seed,
            reading=reading,
        )
    if html is not None:
        found.write_html(html)
    write_json(json_file, found.to_dict() | {"files": [] if html is None else [str(html)]})
    if quiet:
        return
    by_name = {one.name: one for one in found.check.classes}
    rows = [
        [c.name, str(c.examples), percent(c.recall, 1), c.confused or ""]
        for c in (by_name[name] for name in found.check.needs)
    ]
    table(["class", "examples", "recall %", "mostly confused with"], rows, ["left", "right", "right", "left"])
    print(found.summary())
    likely = [one for one in found.check.suspects if one.likely]
    if likely:
        shown = [[found.name(s.row), s.label, s.answer, percent(s.answer_probability, 1)] for s in likely[:SUSPECTS]]
        table([f"{found.kind} to look at", "label", "answer", "%"], shown, ["left", "left", "left", "right"])
    for group in found.check.duplicates[:GROUPS]:
        print(f"near duplicates: {', '.join(found.name(row) for row in group)}")
    hidden = max(0, len(likely) - SUSPECTS), max(0, len(found.check.duplicates) - GROUPS)
    if html is not None:
        print(f"written to {html}")
    elif any(hidden):
        print(f"{hidden[0]} more labels and {hidden[1]} more groups: --html FILE shows all")
