"""`fewcal predict` and `fewcal explain`: a classifier from a few examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.options import Device, Json, Preset, Quiet, Reject, Seed, Set, Support, existing
from fewcal.cli.printing import table, write_json


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(predict)
    app.command()(explain)


def predict(
    support: Support,
    query: Annotated[Path, typer.Option(help="Rows to classify.", callback=existing)],
    out: Annotated[Path, typer.Option(help="Predictions (.parquet, or .csv).")],
    bank: Annotated[
        Path | None,
        typer.Option(help="Bank of base classes; without it a plain classifier is used.", callback=existing),
    ] = None,
    preset: Preset = None,
    set_: Set = None,
    reject: Reject = None,
    seed: Seed = 0,
    device: Device = "cpu",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Classify rows from a few labelled examples, with probabilities."""
    from fewcal.apply.predict import fit_from_files, predict_rows, write_predictions

    classifier, _ = fit_from_files(bank, support, preset, set_ or [], seed, device)
    answers = predict_rows(classifier, query, reject)
    write_predictions(answers, out)
    counts: dict[str, int] = {}
    for answer in answers["prediction"]:
        counts[str(answer)] = counts.get(str(answer), 0) + 1
    write_json(json_file, {"rows": len(answers["prediction"]), "predictions": counts, "file": str(out)})
    if not quiet:
        table(["class", "rows"], [[k, str(v)] for k, v in sorted(counts.items(), key=lambda kv: -kv[1])])
        print(f"written to {out}")


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
    """Which base classes shape each of your classes, how much, and whether they are near enough to help."""
    from fewcal.apply.predict import fit_from_files

    classifier, _ = fit_from_files(bank, support, preset, set_ or [], seed, device)
    story = classifier.explain()
    write_json(json_file, story.to_dict())
    if not quiet:
        print(story)
