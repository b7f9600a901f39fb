"""Features of whole pictures, and the accuracy on new classes that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fewcal.errors import InputError
from fewcal.features.backbone_networks import Backbone
from fewcal.features.backbones import mean_features
from fewcal.features.featureset import FeatureSet, FeatureSplit
from fewcal.training.data import PixelSplit


@torch.no_grad()
def extract(
    backbone: Backbone,
    pictures: PixelSplit,
    size: int | Sequence[int],
    *,
    flip: bool = True,
    batch: int = 256,
    amp: bool = False,
) -> FeatureSplit:
    """Return features `(R, D)` of pictures resized to size × size, the mean over sizes where there are several.

    With `flip` they are also the mean of each picture and its mirror image.
    """
    device = next(backbone.parameters()).device
    was_training = backbone.training
    backbone.eval()
    rows = []
    for pixels in pictures.pixels.split(batch):
        with torch.autocast(device.type, torch.bfloat16, enabled=amp and device.type == "cuda"):
            rows.append(mean_features(backbone, pixels.to(device).float() / 255, size, flip=flip).cpu())
    backbone.train(was_training)
    features = torch.cat(rows).numpy()
    return FeatureSplit.from_arrays(features, pictures.labels.cpu().numpy(), pictures.classes)


def few_shot_accuracy(
    features: Mapping[str, FeatureSplit], split: str, tasks: int, seed: int = 0, method: str = "simpleshot"
) -> dict[str, dict[str, float]]:
    """Return 5-way accuracy by shots, `{"1": {"accuracy", "ci95"}, "5": …}`, of nearest centroid or another method.

    Where classes or rows are few, tasks have fewer ways or queries.
    """
    from fewcal.evaluation import Protocol, evaluate

    chosen = features[split]
    way, query = task_shape(chosen.rows_per_class())
    data = FeatureSet(features["base"], **{split: chosen})  # type: ignore[arg-type]
    out = {}
    for shot in (1, 5):
        protocol = Protocol(way, shot, query, tasks, seed, split)
        accuracy = evaluate(method, data, protocol).accuracy(method)
        half = 1.96 * accuracy.std(ddof=1) / np.sqrt(tasks) if tasks > 1 else 0.0
        out[str(shot)] = {"accuracy": float(accuracy.mean()), "ci95": float(half)}
    return out


def task_shape(rows: np.ndarray) -> tuple[int, int]:
    """Return ways and queries of a task that classes with so many rows allow, (5, 15) where they suffice."""
    way, query = min(5, len(rows)), min(15, int(rows.min()) - 5)
    if way < 2 or query < 1:
        raise InputError(
            f"{len(rows)} validation classes with at least {int(rows.min())} pictures are too few; "
            "give two or more classes of six or more pictures"
        )
    return way, query
