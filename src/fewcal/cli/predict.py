"""`fewcal predict` and `fewcal explain`: a classifier from a few examples."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fewcal.apply.checks import checked_table_file
from fewcal.cli.options import (
    Device,
    ModelOptions,
    Output,
    ParameterOptions,
    Raw,
    ReadingOptions,
    Reject,
    existing,
    readable_model,
)
from fewcal.cli.printing import print_answers
from fewcal.errors import InputError


def predict(
    items: ReadingOptions,
    parameters: ModelOptions,
    output: Output,
    source: Annotated[
        Path | None,
        typer.Argument(help="With --model: pictures, texts or features to classify.", callback=existing),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A saved classifier, instead of --support.", callback=readable_model)
    ] = None,
    support: Annotated[
        Path | None, typer.Option(help="Labelled examples of your classes (features).", callback=existing)
    ] = None,
    query: Annotated[Path | None, typer.Option(help="What to classify.", callback=existing)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Predictions (.parquet, or .csv).", callback=checked_table_file)
    ] = None,
    raw: Raw = False,
    reject: Reject = None,
    together: Annotated[bool, typer.Option("--together", help="Let all rows help with each other.")] = False,
) -> None:
    """Classify with a saved classifier, or from labelled rows."""
    if model is not None and source is None:
        source, query = query, None  # --query names the same
    if model is not None and (source is None or support is not None or query is not None):
        raise InputError("--model takes what to classify as an argument: fewcal predict --model FILE NEW")
    if model is None and (source is not None or support is None or query is None or out is None):
        raise InputError("give --model FILE and what to classify, or --support, --query and --out with features")
    from fewcal.apply.predict import answer_rows, by_doubt, in_words, rejected, write_predictions
    from fewcal.apply.saved import predict_files, predict_with_model

    if model is not None and source is not None:
        with output.progress("items") as report:
            answers, notes = predict_with_model(model, source, reject, items.reading(report), together)
        if not output.quiet:
            print_answers("item", by_doubt(answer_rows(answers)), kept=out is not None)
    else:
        assert support is not None and query is not None  # noqa: PT018
        start = partial(predict_files, support, query, device=items.device)
        answers = start(reject=reject, together=together, **parameters.arguments)
        notes = in_words(answers, None, [])
    if out is not None:
        write_predictions(answers, out, raw)
    counts, file = Counter(map(str, answers["prediction"])), None if out is None else str(out)
    rows = len(answers["prediction"])
    output.json({"rows": rows, "predictions": counts, "rejected": rejected(answers), "file": file})
    output.table(["class", "rows"], [[k, str(v)] for k, v in counts.most_common()], ["left", "right"])
    output.print(*notes, f"written to {out}" if out is not None else "--out FILE keeps all of it")


def explain(
    support: Annotated[Path, typer.Option(help="Labelled examples of your classes.", callback=existing)],
    bank: Annotated[Path, typer.Option(help="Bank of base classes.", callback=existing)],
    parameters: ParameterOptions,
    output: Output,
    device: Device = "cpu",
) -> None:
    """Which base classes shape yours, how much, and whether it helps."""
    from fewcal.apply.reading import Reading
    from fewcal.apply.saved import fit_model

    story = fit_model(support, bank=bank, reading=Reading(device=device), **parameters.arguments).explain()
    output.json(story.to_dict())
    output.print(str(story))
