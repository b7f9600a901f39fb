"""`fewcal fit`, `fewcal model info`, `fewcal export`, `fewcal serve`: classifiers in files."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fewcal._utils.types import StrPath
from fewcal.apply.checks import checked_new_file
from fewcal.cli.options import (
    Device,
    ExtractorOptions,
    ModelOptions,
    Names,
    Output,
    Quiet,
    ReadingOptions,
    Reject,
    existing,
    readable_model,
)

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
    extractor: ExtractorOptions,
    items: ReadingOptions,
    parameters: ModelOptions,
    output: Output,
    names: Names = False,
) -> None:
    """Fit a classifier on a few examples of each class and save it."""
    from fewcal.apply.saved import fit_model
    from fewcal.estimators.saved import classifier_facts
    from fewcal.features.sources.find import find_pair
    from fewcal.features.sources.items import Items
    from fewcal.features.sources.kinds import kind_of

    examples: StrPath | Items = support
    name = extractor.name
    if name is not None or kind_of(support, items.text_column) != "features":
        examples, _ = find_pair(support, None, name, items.columns, items.skip_bad)
    with output.progress("examples") as report:
        reading = items.reading(report)
        classifier = fit_model(examples, extractor=name, names=names, reading=reading, **parameters.arguments)
    classifier.save(out)
    output.facts(classifier_facts(out))


@model.command("info")
def model_info(file: ModelFile, output: Output) -> None:
    """What a saved classifier is: classes, examples, extractor, base classes, size."""
    from fewcal.estimators.saved import classifier_facts

    output.facts(classifier_facts(file))


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
