"""`fewcal extract`, `fewcal data prepare`, `fewcal classify`: from pictures and texts to features and answers."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fewcal.apply.checks import check_reject, checked_new_file, checked_table_file
from fewcal.cli.options import (
    ExtractorOptions,
    ModelOptions,
    Names,
    Output,
    Raw,
    ReadingOptions,
    Reject,
    existing,
)
from fewcal.cli.printing import cell, print_answers
from fewcal.errors import InputError

data = typer.Typer(no_args_is_help=True, help="Lists of pictures from downloaded data sets.")
Sheet = Annotated[
    Path | None, typer.Option(help="Write a contact sheet to look at (.html).", callback=checked_new_file)
]


def extract(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder with a folder for each class (or base, val, novel of those), CSV, pack, texts.",
            callback=existing,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the feature files.", metavar="DIR")],
    extractor: ExtractorOptions,
    items: ReadingOptions,
    output: Output,
    split: Annotated[
        str | None, typer.Option(help="Name of the file where the source has no splits: base, val or novel.")
    ] = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Take everything, without classes.")] = False,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
) -> None:
    """Turn pictures or texts into features for other commands."""
    from fewcal.features.extract import checked_dtype, find_splits
    from fewcal.features.extract import extract as run
    from fewcal.features.extractors import get_extractor, require_extractor
    from fewcal.features.featureset import SPLITS
    from fewcal.features.sources.kinds import default_extractor

    if split is not None and split not in SPLITS:
        raise InputError(f"--split {split!r} is unknown; the splits are {', '.join(SPLITS)}")
    how = partial(run, batch=items.batch, workers=items.workers, skip_bad=items.skip_bad)
    start = partial(how, resume=resume, dtype=checked_dtype(dtype))
    name = extractor.name or default_extractor(source, items.text_column)
    kind = require_extractor(name).kind
    if kind != "either":  # errors of the source come before the network is loaded
        splits = find_splits(source, kind, not unlabelled, *items.columns)
    model = get_extractor(name, items.device, items.allow_download)
    if kind == "either":
        splits = find_splits(source, model.kind, not unlabelled, *items.columns)
    if "features" in splits and split is not None:
        splits = {split: splits["features"]}
    facts = []
    for place, found in splits.items():
        with output.progress(f"{place} {model.kind}s") as report:
            facts.append(start(found, model, out / f"{place}.npz", progress=report))
    output.json({"extractor": model.stamp, "files": facts})
    rows = [[f["file"], *(cell(n) for n in (f["rows"], f["classes"], f["features"], len(f["skipped"])))] for f in facts]
    output.table(["file", "rows", "classes", "features", "skipped"], rows, ["left", *["right"] * 4])


def classify(
    support: Annotated[
        Path,
        typer.Option(help="A folder for each class with a few pictures in it, or labelled texts.", callback=existing),
    ],
    query: Annotated[
        Path, typer.Option(help="What to classify: a folder, a list, a picture, or texts.", callback=existing)
    ],
    extractor: ExtractorOptions,
    items: ReadingOptions,
    model: ModelOptions,
    output: Output,
    out: Annotated[
        Path | None, typer.Option(help="Write all answers here (.csv or .parquet).", callback=checked_table_file)
    ] = None,
    html: Sheet = None,
    raw: Raw = False,
    reject: Reject = None,
    names: Names = False,
    each: Annotated[
        bool, typer.Option("--each", help="Classify one by one. By default the items help with each other.")
    ] = False,
) -> None:
    """Classify pictures or texts from a few examples of each."""
    check_reject(reject, model.preset)
    from fewcal.apply.classify import classify as run
    from fewcal.apply.predict import by_doubt
    from fewcal.features.sources.find import find_pair

    examples, queries = find_pair(support, query, extractor.name, items.columns, items.skip_bad)
    assert queries is not None
    chosen: dict[str, Any] = {"reject": reject, "each": each, "names": names} | model.arguments
    with output.progress("items") as report:
        answers = run(examples, queries, extractor.name, reading=items.reading(report), **chosen)
    if not output.quiet:
        print_answers(answers.query.kind, by_doubt(answers.rows()), kept=out is not None)
    output.print(*answers.in_words())
    if written := answers.write(out, html, raw):
        output.print(f"written to {' and '.join(written)}")
    output.json(answers.facts() | {"files": written})


@data.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="mini, cub, dogs, tiered, meta-tiered, or a pair such as mini2cub.")],
    source: Annotated[Path, typer.Option("--from", help="Where you unpacked it.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="Folder for base.csv, val.csv and novel.csv.", metavar="DIR")],
    output: Output,
    novel_from: Annotated[
        Path | None, typer.Option(help="Of a pair: where the data set for val and novel lies.", metavar="DIR")
    ] = None,
    split_file: Annotated[
        Path | None, typer.Option(help="Your own split of cub or dogs: a CSV with class and split.")
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Go on where counts differ from the published ones.")
    ] = False,
) -> None:
    """Make lists of pictures from a data set that you have downloaded. Nothing is fetched."""
    from fewcal.features.datasets import prepare

    facts = prepare(
        name, source, out, novel_source=novel_from, split_file=split_file, allow_incomplete=allow_incomplete
    )
    output.json(facts)
    header = ["split", "classes", "rows", "smallest", "largest"]
    rows = [[s, *map(str, f.values())] for s, f in facts["splits"].items()]
    output.table(header, rows, ["left", *["right"] * 4])
    output.print(*(f"note: {note}" for note in facts["notes"]))
    output.print(f"written to {out}; go on with `fewcal extract {out} --out FEATURES`")
