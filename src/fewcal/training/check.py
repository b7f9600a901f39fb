"""What would end a training hours later is refused at its start."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch

from fewcal.errors import FewcalWarning, InputError
from fewcal.features.backbones import make_backbone
from fewcal.training.data import PixelSplit
from fewcal.training.settings import TrainSettings
from fewcal.training.validate import task_shape


def check_settings(settings: TrainSettings) -> None:
    """The backbone exists and takes pictures of all the sizes that will come; nothing is computed."""
    with torch.device("meta"):
        net = make_backbone(settings.backbone, **settings.backbone_settings).eval()
        tests = [z for s in settings.test_sizes for z in (s if isinstance(s, tuple) else (s,))]
        for size in {settings.size, settings.store, *tests}:
            net(torch.zeros(1, net.in_channels, size, size))


def check_data(data: Mapping[str, PixelSplit], settings: TrainSettings) -> None:
    """There is a base split that the backbone can take, and enough validation classes for tasks."""
    if "base" not in data:
        raise InputError("there is no base split to train on")
    base = data["base"]
    if len(base.classes) < 2:
        raise InputError("base has one class only; a classifier needs two or more")
    channels = settings.backbone_settings.get("in_channels", 3)
    for name, split in data.items():
        if split.pixels.shape[1] != channels:
            raise InputError(
                f"{name} has pictures of {split.pixels.shape[1]} channels, the backbone takes {channels} (in_channels)"
            )
    if "val" in data:
        task_shape(np.bincount(data["val"].labels.cpu().numpy(), minlength=len(data["val"].classes)))
    else:
        warnings.warn("no val split: the last weights are kept, not the best ones", FewcalWarning, stacklevel=3)
