"""`fewcal predict` and `fewcal explain`: a classifier from a few examples."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fewcal.apply.checks import checked_table_file
from fewcal.cli.extract import LabelColumn, SkipBad, TextColumn, print_answers
from fewcal.cli.options import Device, Json, Preset, Quiet, Raw, Reject, Seed, Set, Support, existing, readable_model
from fewcal.cli.printing import table, write_json
from fewcal.errors import InputError


def predict(
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
    bank: Annotated[
        Path | None,
        typer.Option(help="Bank of base classes; without it a plain classifier is used.", callback=existing),
    ] = None,
    preset: Preset = None,
    set_: Set = None,
    raw: Raw = False,
    reject: Reject = None,
    together: Annotated[bool, typer.Option("--together", help="Let all rows help with each other.")] = False,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Classify with a saved classifier, or from labelled rows."""
    if model is not None and source is None:
        source, query = query, None  # --query names the same
    if model is not None and (source is None or support is not None or query is not None):
        raise InputError("--model takes what to classify as an argument: fewcal predict --model FILE NEW")
    if model is None and (source is not None or support is None or query is None or out is None):
        raise InputError("give --model FILE and what to classify, or --support, --query and --out with features")
    from fewcal._utils.terminal import ProgressBar
    from fewcal.apply.predict import answer_rows, by_doubt, in_words, rejected, write_predictions
    from fewcal.apply.saved import Reading, predict_files, predict_with_model

    if model is not None and source is not None:
        with ProgressBar("items", quiet) as report:
            reading = Reading((text_column, label_column), skip_bad=skip_bad, device=device, progress=report)
            answers, notes = predict_with_model(model, source, reject, reading, together)
        if not quiet:
            print_answers("item", by_doubt(answer_rows(answers)), kept=out is not None)
    else:
        assert support is not None and query is not None  # noqa: PT018
        start = partial(predict_files, support, query, bank=bank, preset=preset, settings=set_ or [])
        answers = start(reject=reject, together=together, seed=seed, device=device)
        notes = in_words(answers, None, [])
    if out is not None:
        write_predictions(answers, out, raw)
    counts, file = Counter(map(str, answers["prediction"])), None if out is None else str(out)
    rows = len(answers["prediction"])
    write_json(json_file, {"rows": rows, "predictions": counts, "rejected": rejected(answers), "file": file})
    if not quiet:
        table(["class", "rows"], [[k, str(v)] for k, v in counts.most_common()], ["left", "right"])
        print("\n".join([*notes, f"written to {out}" if out is not None else "--out FILE keeps all of it"]))


def explain(
    support: Support,
    bank: Annotated[Path, typer.Option(help="Bank of base classes.", callback=existing)],
    preset: Preset = None,
    set_: Set = None,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Which base classes shape yours, how much, and whether it helps."""
    from fewcal.apply.saved import Reading, fit_model

    how = Reading(device=device)
    classifier = fit_model(support, bank=bank, preset=preset, settings=set_ or [], seed=seed, reading=how)
    story = classifier.explain()
    write_json(json_file, story.to_dict())
    if not quiet:
        print(story)
