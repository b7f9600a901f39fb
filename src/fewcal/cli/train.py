"""`fewcal train`: a backbone from pictures of base classes."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fewcal.cli.options import Device, Json, Quiet, Seed, existing
from fewcal.cli.printing import write_json


def train(
    data: Annotated[Path, typer.Argument(help="Folder with base, val and novel, or a CSV list.", callback=existing)],
    out: Annotated[Path, typer.Option(help="Folder for weights and record.")],
    backbone: Annotated[str, typer.Option(help="resnet12, wrn28-10, wrn28-10-p64 or conv4.")] = "resnet12",
    recipe: Annotated[
        str | None, typer.Option(help="default, plain (classification alone) or s2m2 (as its authors' code trains).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Stage 1: classification and rotation.")] = None,
    mixup_epochs: Annotated[int | None, typer.Option(help="Stage 2: manifold mixup.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time budget; the stages share it as they share the epochs.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures of a step, over all devices.")] = None,
    size: Annotated[int | None, typer.Option(help="Height and width of training pictures.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Any other setting: lr=0.05, jitter=0.2, schedule=constant, backbone.width=32, … Repeatable."
        ),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Also write base.npz, val.npz, novel.npz of the best weights here.")
    ] = None,
    initial: Annotated[Path | None, typer.Option(help="Checkpoint of the same backbone to start from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training in --out.")] = False,
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the backbone (torch.compile).")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write logs to OUT/tensorboard.")] = False,
    seed: Seed = 0,
    device: Device = "auto",
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Train a backbone on base classes (S2M2). The weights of the best validation are kept."""
    from fewcal import training
    from fewcal._utils.terminal import ProgressBar
    from fewcal.training.settings import parse_settings

    given = {"epochs": epochs, "mixup_epochs": mixup_epochs, "batch": batch, "size": size}
    changes, inner = parse_settings(set_ or [])
    changes |= {k: v for k, v in given.items() if v is not None}
    changes |= {"backbone_settings": inner, "minutes": minutes, "compile": compile_, "seed": seed}
    settings = training.TrainSettings.for_backbone(backbone, recipe, **changes)
    splits = training.load_pixels(data, settings.store, inner.get("in_channels", 3))
    with ProgressBar("‰", quiet) as report:
        record = training.train(
            splits,
            settings,
            out,
            device=device,
            resume=resume,
            features=features,
            initial=initial,
            tensorboard=tensorboard,
            progress=report,
            log=None if quiet else partial(print, file=sys.stderr, flush=True),
        )
    if record is not None:  # of several processes the first alone has it
        write_json(json_file, record)
