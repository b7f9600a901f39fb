"""`fewcal train`: a backbone from pictures of base classes."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewcal.cli.options import Device, Output, Seed, existing

if TYPE_CHECKING:
    from fewcal.training import TrainSettings


@dataclass(frozen=True)
class TrainOptions:
    """The backbone and its recipe, and what is changed of it."""

    backbone: Annotated[str, typer.Option(help="resnet12, wrn28-10, wrn28-10-p64 or conv4.")] = "resnet12"
    recipe: Annotated[
        str | None, typer.Option(help="default, plain (classification alone) or s2m2 (as its authors' code trains).")
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Stage 1: classification and rotation.")] = None
    mixup_epochs: Annotated[int | None, typer.Option(help="Stage 2: manifold mixup.")] = None
    minutes: Annotated[
        float | None, typer.Option(help="Time budget; the stages share it as they share the epochs.")
    ] = None
    batch: Annotated[int | None, typer.Option(help="Pictures of a step, over all devices.")] = None
    size: Annotated[int | None, typer.Option(help="Height and width of training pictures.")] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Any other setting: lr=0.05, jitter=0.2, schedule=constant, backbone.width=32, … Repeatable."
        ),
    ] = None
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the backbone (torch.compile).")] = False
    seed: Seed = 0

    def settings(self) -> "TrainSettings":
        from fewcal.training import TrainSettings
        from fewcal.training.settings import parse_settings

        changes, inner = parse_settings(self.set_ or [])
        given = {name: getattr(self, name) for name in ("epochs", "mixup_epochs", "batch", "size")}
        changes |= {name: value for name, value in given.items() if value is not None}
        changes |= {"backbone_settings": inner, "minutes": self.minutes, "compile": self.compile_, "seed": self.seed}
        return TrainSettings.for_backbone(self.backbone, self.recipe, **changes)


def train(
    data: Annotated[Path, typer.Argument(help="Folder with base, val and novel, or a CSV list.", callback=existing)],
    out: Annotated[Path, typer.Option(help="Folder for weights and record.")],
    options: TrainOptions,
    output: Output,
    features: Annotated[
        Path | None, typer.Option(help="Also write base.npz, val.npz, novel.npz of the best weights here.")
    ] = None,
    initial: Annotated[Path | None, typer.Option(help="Checkpoint of the same backbone to start from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training in --out.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write logs to OUT/tensorboard.")] = False,
    device: Device = "auto",
) -> None:
    """Train a backbone on base classes (S2M2). The weights of the best validation are kept."""
    from fewcal import training

    settings = options.settings()
    splits = training.load_pixels(data, settings.store, settings.backbone_settings.get("in_channels", 3))
    log = None if output.quiet else partial(print, file=sys.stderr, flush=True)
    start = partial(training.train, device=device, resume=resume, features=features, initial=initial)
    with output.progress("‰") as report:
        record = start(splits, settings, out, tensorboard=tensorboard, progress=report, log=log)
    if record is not None:  # of several processes the first alone has it
        output.json(record)
