"""`fewcal extract`, `fewcal data prepare`, `fewcal classify`: from pictures and texts to features and answers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fewcal.apply.checks import check_reject, checked_new_file, checked_table_file
from fewcal.cli.options import Device, Json, KnownPreset, Names, Quiet, Raw, Reject, Seed, Set, existing
from fewcal.cli.printing import cell, percent, table, write_json
from fewcal.errors import InputError

data = typer.Typer(no_args_is_help=True, help="Lists of pictures from downloaded data sets.")
# Rows of a table that people read; the file has all.
MAX_PRINTED = 40


def complete_extractor(incomplete: str) -> list[str]:
    from fewcal.features.extractors import list_extractors, prefixes

    return [name for name in [*list_extractors(), *prefixes()] if name.startswith(incomplete)]


def checked_extractors(names: list[str] | None) -> list[str] | None:
    """Refuse names that no extractor has: at once, before anything else is loaded."""
    if name := joined_extractors(names):
        from fewcal.features.extractors import require_extractor

        require_extractor(name)
    return names


def joined_extractors(names: list[str] | None) -> str | None:
    """Return the name of the extractors side by side; None where none is named."""
    return "+".join(names) if names else None


def show_extractors(wanted: bool) -> None:
    """Print the table of extractors and leave."""
    if wanted:
        from fewcal.features.extractors import extractor_table

        table(["extractor", "of", "features", "signs", "needs"], extractor_table())
        raise typer.Exit()


UsualExtractor = Annotated[
    list[str] | None,
    typer.Option(
        "--extractor",
        "-e",
        help="Its name, or a checkpoint of `fewcal train`; --list-extractors shows them all. Repeated: several side by "
        "side. By default efficientnet-lite0 for pictures and minilm for texts.",
        autocompletion=complete_extractor,
        callback=checked_extractors,
    ),
]
TextColumn = Annotated[str, typer.Option(help="Column or key of the text.")]
LabelColumn = Annotated[str, typer.Option(help="Column or key of the class.")]
ListExtractors = Annotated[
    bool,
    typer.Option("--list-extractors", help="Show all extractors.", callback=show_extractors, is_eager=True),
]
Batch = Annotated[int, typer.Option(help="Items computed at once.", min=1)]
Workers = Annotated[int | None, typer.Option(help="Threads that read and decode; as many as cores, up to 8.", min=1)]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read instead of stopping.")]
Download = Annotated[
    bool, typer.Option("--allow-download", help="Let timm and Hugging Face fetch weights that are not here.")
]


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
    extractor: UsualExtractor = None,
    list_extractors: ListExtractors = False,
    split: Annotated[
        str | None, typer.Option(help="Name of the file where the source has no splits: base, val or novel.")
    ] = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Take everything, without classes.")] = False,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    batch: Batch = 32,
    workers: Workers = None,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    skip_bad: SkipBad = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    allow_download: Download = False,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Turn pictures or texts into features for other commands."""
    from fewcal._utils.terminal import ProgressBar
    from fewcal.features.extract import checked_dtype, find_splits
    from fewcal.features.extract import extract as run
    from fewcal.features.extractors import get_extractor, require_extractor
    from fewcal.features.featureset import SPLITS
    from fewcal.features.sources.kinds import default_extractor

    if split is not None and split not in SPLITS:
        raise InputError(f"--split {split!r} is unknown; the splits are {', '.join(SPLITS)}")
    start = partial(run, batch=batch, workers=workers, skip_bad=skip_bad, resume=resume, dtype=checked_dtype(dtype))
    name = joined_extractors(extractor) or default_extractor(source, text_column)
    kind = require_extractor(name).kind
    if kind != "either":  # errors of the source come before the network is loaded
        splits = find_splits(source, kind, not unlabelled, text_column, label_column)
    model = get_extractor(name, device, allow_download)
    if kind == "either":
        splits = find_splits(source, model.kind, not unlabelled, text_column, label_column)
    if "features" in splits and split is not None:
        splits = {split: splits["features"]}
    facts = []
    for place, items in splits.items():
        with ProgressBar(f"{place} {model.kind}s", quiet) as report:
            facts.append(start(items, model, out / f"{place}.npz", progress=report))
    write_json(json_file, {"extractor": model.stamp, "files": facts})
    if not quiet:
        keys = ["file", "rows", "classes", "features", "skipped"]
        rows = [
            [f["file"], *(cell(n) for n in (f["rows"], f["classes"], f["features"], len(f["skipped"])))] for f in facts
        ]
        table(keys, rows, ["left", *["right"] * 4])


def classify(
    support: Annotated[
        Path,
        typer.Option(help="A folder for each class with a few pictures in it, or labelled texts.", callback=existing),
    ],
    query: Annotated[
        Path, typer.Option(help="What to classify: a folder, a list, a picture, or texts.", callback=existing)
    ],
    extractor: UsualExtractor = None,
    list_extractors: ListExtractors = False,
    bank: Annotated[
        Path | None,
        typer.Option(
            help="Bank of base classes from the same extractor; without it a plain classifier.", callback=existing
        ),
    ] = None,
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
    """Classify pictures or texts from a few examples of each."""
    check_reject(reject, preset)
    from fewcal._utils.terminal import ProgressBar
    from fewcal.apply.classify import classify as run
    from fewcal.apply.predict import by_doubt
    from fewcal.features.sources.find import find_pair

    columns = (text_column, label_column)
    name = joined_extractors(extractor)
    examples, queries = find_pair(support, query, name, columns, skip_bad)
    reading = partial(run, batch=batch, workers=workers, skip_bad=skip_bad, columns=columns)
    start = partial(reading, preset=preset, settings=set_ or [], reject=reject, each=each, names=names, seed=seed)
    with ProgressBar("items", quiet) as report:
        answers = start(
            examples, queries, name, bank=bank, device=device, allow_download=allow_download, progress=report
        )
    if not quiet:
        print_answers(answers.query.kind, by_doubt(answers.rows()), kept=out is not None)
        for line in answers.in_words():
            print(line)
    written = answers.write(out, html, raw)
    if written and not quiet:
        print(f"written to {' and '.join(written)}")
    write_json(json_file, answers.facts() | {"files": written})


def print_answers(kind: str, rows: Sequence[tuple[str, str, float, str, float]], kept: bool) -> None:
    """Print a table of answers, the doubtful ones first; `kept`: a file has all."""
    shown = [[i, a, percent(p, 1), b, percent(q, 1)] for i, a, p, b, q in rows[:MAX_PRINTED]]
    table([kind, "answer", "%", "next", "%"], shown, ["left", "left", "right", "left", "right"])
    if len(rows) > MAX_PRINTED:
        print(f"the most doubtful first; {len(rows) - MAX_PRINTED} more" + ("" if kept else ": --out FILE keeps all"))


@data.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="mini, cub, dogs, tiered, meta-tiered, or a pair such as mini2cub.")],
    source: Annotated[Path, typer.Option("--from", help="Where you unpacked it.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="Folder for base.csv, val.csv and novel.csv.", metavar="DIR")],
    novel_from: Annotated[
        Path | None, typer.Option(help="Of a pair: where the data set for val and novel lies.", metavar="DIR")
    ] = None,
    split_file: Annotated[
        Path | None, typer.Option(help="Your own split of cub or dogs: a CSV with class and split.")
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Go on where counts differ from the published ones.")
    ] = False,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make lists of pictures from a data set that you have downloaded. Nothing is fetched."""
    from fewcal.features.datasets import prepare

    facts = prepare(
        name, source, out, novel_source=novel_from, split_file=split_file, allow_incomplete=allow_incomplete
    )
    write_json(json_file, facts)
    if not quiet:
        header = ["split", "classes", "rows", "smallest", "largest"]
        rows = [[s, *map(str, f.values())] for s, f in facts["splits"].items()]
        table(header, rows, ["left", *["right"] * 4])
        for note in facts["notes"]:
            print(f"note: {note}")
        print(f"written to {out}; go on with `fewcal extract {out} --out FEATURES`")
