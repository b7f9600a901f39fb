"""`fewcal features`, `fewcal bank`, `fewcal presets`."""

from pathlib import Path
from typing import Annotated

import typer

from fewcal.apply.checks import checked_new_file
from fewcal.cli.options import Device, Output, complete_preset, existing
from fewcal.cli.printing import cell, flat

features = typer.Typer(no_args_is_help=True, help="Look at feature sets.")
bank = typer.Typer(no_args_is_help=True, help="Build and inspect banks of base classes.")
presets = typer.Typer(no_args_is_help=True, help="Named parameter sets of GDC.")


@features.command("info")
def features_info_command(
    folder: Annotated[Path, typer.Argument(help="Folder with base, val and novel files.", callback=existing)],
    output: Output,
) -> None:
    """Classes, rows, dimension, sign, sparsity, scale, duplicates and class leaks of a feature set.

    And the power that HGDC takes for it.
    """
    from fewcal.apply.build_bank import gaussianization_facts
    from fewcal.features import FeatureSet
    from fewcal.features.describe import features_info

    features = FeatureSet.load(folder, allow_leaks=True)
    facts = features_info(features)
    splits = features.splits()
    gaussian = gaussianization_facts(splits["base"]) if "base" in splits else None
    output.json({**facts, "gaussianization": gaussian})
    columns = {name: flat(split) for name, split in facts["splits"].items()}
    keys = dict.fromkeys(k for column in columns.values() for k in column)
    output.table(["", *columns], [[k, *(cell(c.get(k)) for c in columns.values())] for k in keys])
    if across := facts["across"]:
        rows = [[k, str(v["duplicate_rows"]), cell(v["shared_classes"])] for k, v in across.items()]
        output.table(["between splits", "duplicate rows", "shared classes"], rows)
    if gaussian is not None:
        output.print(f"Gaussianization of HGDC: {gaussian['power']}")
        if scaled := gaussian["scaled_features"]:
            output.print(f"  {scaled} of {facts['dimension']} features vary far more than others and are scaled down")
    output.print(*(f"warning: {line}" for line in facts["warnings"]))


@bank.command("build")
def bank_build(
    source: Annotated[
        Path,
        typer.Argument(
            help="Feature folder (its base split is taken), one labelled file, or a folder of labelled parts "
            "(with --preset), read one at a time.",
            callback=existing,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the bank goes (.safetensors).", callback=checked_new_file)],
    output: Output,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Build it in the space of this preset. Without: raw, for any preset.", autocompletion=complete_preset
        ),
    ] = None,
    drop_rows: Annotated[
        bool, typer.Option("--drop-rows", help="Keep class means and the pooled covariance alone; needs --preset.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="float32 or float16 storage of rows.")] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler that builds from parts, or local:N for N processes here.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Build a bank from base classes and save it."""
    from fewcal._utils.folder_lock import file_lock
    from fewcal.apply.build_bank import bank_facts, build_bank

    with file_lock(out) as lock:
        bank = build_bank(source, preset, keep_rows=not drop_rows, dtype=dtype, device=device, scheduler=scheduler)
        lock.check()
        bank.save(out)
    output.facts(bank_facts(bank) | {"file": str(out), "bytes": out.stat().st_size})


@bank.command("info")
def bank_info(
    file: Annotated[Path, typer.Argument(help="A bank.", callback=existing)],
    output: Output,
) -> None:
    """What a bank holds."""
    from fewcal.bank import BaseBank

    bank = BaseBank.load(file)
    from fewcal.apply.build_bank import bank_facts

    output.facts(bank_facts(bank) | {"file": str(file), "bytes": file.stat().st_size})


@presets.command("list")
def presets_list(output: Output) -> None:
    """All presets, a line each."""
    from fewcal.presets import describe_preset, list_presets

    found = {name: describe_preset(name).summary for name in list_presets()}
    output.json(found)
    output.table(["preset", "what it is"], [[k, v] for k, v in found.items()])


@presets.command("params")
def presets_params(output: Output) -> None:
    """Parameters of gdc and its heads: what they are for, what they accept, and their values in the preset paper."""
    from fewcal.heads import describe_heads
    from fewcal.params import describe_params

    params, heads = describe_params(), describe_heads()
    output.json({"params": params, "heads": heads})
    output.table(
        ["parameter", "in preset paper", "what it is", "accepts"], [[a, cell(b), c, d] for a, b, c, d in params]
    )
    output.table(["head", "what it is", "its own parameters"], [list(row) for row in heads])


@presets.command("show")
def presets_show(name: Annotated[str, typer.Argument(autocompletion=complete_preset)], output: Output) -> None:
    """The parameters of a preset that have an effect, and how it answers what the paper leaves open."""
    from fewcal.presets import describe_preset

    preset = describe_preset(name)
    values = preset.params.in_effect()
    shown = {"name": name, "method": "gdc", "summary": preset.summary, "params": values, "resolves": preset.resolves}
    output.json(shown)
    output.print(f"{name}, a preset of gdc: {preset.summary}\n")
    output.table(["parameter of gdc", "value"], [[k, cell(v)] for k, v in values.items()])
    output.table(["open question", f"{name} takes"], [[k, v] for k, v in preset.resolves.items()])
