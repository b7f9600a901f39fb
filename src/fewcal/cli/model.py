"""`fewcal fit`, `fewcal model info`, `fewcal export`, `fewcal serve`: classifiers in files."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fewcal._utils.types import StrPath
from fewcal.apply.checks import checked_new_file
from fewcal.cli.extract import (
    Batch,
    Download,
    LabelColumn,
    ListExtractors,
    SkipBad,
    TextColumn,
    UsualExtractor,
    Workers,
    joined_extractors,
)
from fewcal.cli.options import Device, Json, KnownPreset, Names, Quiet, Reject, Seed, Set, existing, readable_model
from fewcal.cli.printing import cell, table, write_json

model = typer.Typer(no_args_is_help=True, help="Saved classifiers.")
ModelFile = Annotated[
    Path, typer.Argument(help="A classifier that `fewcal fit` or the studio wrote.", callback=readable_model)
]


def fit(
    support: Annotated[
        Path,
        typer.Option(
            help="A folder for each class with a few pictures, labelled texts, or labelled features.", callback=existing
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the classifier goes, e.g. birds.fewcal.", callback=checked_new_file)],
    extractor: UsualExtractor = None,
    list_extractors: ListExtractors = False,
    bank: Annotated[
        Path | None, typer.Option(help="Bank of base classes from the same extractor.", callback=existing)
    ] = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    names: Names = False,
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
    """Fit a classifier on a few examples of each class and save it."""
    from fewcal._utils.terminal import ProgressBar
    from fewcal.apply.saved import Reading, fit_model
    from fewcal.estimators.saved import classifier_facts
    from fewcal.features.sources.find import find_pair
    from fewcal.features.sources.items import Items
    from fewcal.features.sources.kinds import kind_of

    columns = (text_column, label_column)
    examples: StrPath | Items = support
    name = joined_extractors(extractor)
    if name is not None or kind_of(support, text_column) != "features":
        examples, _ = find_pair(support, None, name, columns, skip_bad)
    with ProgressBar("examples", quiet) as report:
        classifier = fit_model(
            examples,
            extractor=name,
            bank=bank,
            preset=preset,
            settings=set_ or [],
            names=names,
            seed=seed,
            reading=Reading(columns, batch, workers, skip_bad, device, allow_download, report),
        )
    classifier.save(out)
    facts = classifier_facts(out)
    write_json(json_file, facts)
    if not quiet:
        table(None, [[k.replace("_", " "), cell(v)] for k, v in facts.items()])


@model.command("info")
def model_info(file: ModelFile, json_file: Json = None, quiet: Quiet = False) -> None:
    """What a saved classifier is: classes, examples, extractor, base classes, size."""
    from fewcal.estimators.saved import classifier_facts

    facts = classifier_facts(file)
    write_json(json_file, facts)
    if not quiet:
        table(None, [[k.replace("_", " "), cell(v)] for k, v in facts.items()])


def export(
    file: ModelFile,
    out: Annotated[Path, typer.Argument(help="The file to write, e.g. birds.onnx.", callback=checked_new_file)],
    quiet: Quiet = False,
) -> None:
    """Write a saved classifier as ONNX, for other languages.

    The input X are features of the classifier's extractor; the outputs are label and probabilities.
    """
    from fewcal.estimators import load_classifier

    load_classifier(file).to_onnx(out)
    if not quiet:
        print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def serve(
    file: ModelFile,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    reject: Reject = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Answer only requests with Authorization: Bearer TOKEN. FEWCAL_TOKEN in the environment does the "
            "same, and no list of processes shows it."
        ),
    ] = None,
    behind_proxy: Annotated[
        str | None,
        typer.Option(help="Scheme and name that browsers see, e.g. https://birds.example.org.", metavar="ORIGIN"),
    ] = None,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Serve a saved classifier over HTTP, with a page to try it."""
    from fewcal.apply.serve.server import serve_model

    def opened(address: str) -> None:
        if not quiet:
            print(f"fewcal serve: {address}; Ctrl-C stops", flush=True)

    serve_model(
        file,
        host=host,
        port=port,
        reject=reject,
        device=device,
        token=os.environ.get("FEWCAL_TOKEN") if token is None else token,
        behind_proxy=behind_proxy,
        opened=opened,
    )
