"""Feature sets behind a narrow layer: what is left of features when a layer of 64 is trained on the base classes.

    python benchmarks/accuracy/narrow_sets.py FEATURES [MORE_FEATURES…] --out SETS [--categories 17] [--width 64]

Backbones that end in a narrow layer, as those of dogs-resnet12p64 and of the stand-in for meta-tieredImageNet, have
features that vary in few directions, about as many as there were classes to tell apart. Each set of FEATURES is made
into one of that kind: rows go through a linear layer that was trained together with a softmax layer on its base
classes (`NAME-narrow`), or on categories that base classes were merged into by Ward's method, with the classes of the
other splits merged to a third of their number (`NAME-narrow-cat`). Seeds are fixed; nothing is drawn from val or novel.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from common import feature_folders
from torch import Tensor, nn

from fewcal.features import FeatureSet, FeatureSplit
from fewcal.gaussianize import l2_normalise

SPLITS = ("base", "val", "novel")
# Classes that a task needs, and one more to choose from.
LEAST_CLASSES = 6
BATCH, STEPS, RATE, DECAY = 128, 2400, 0.05, 5e-4


def merged(split: FeatureSplit, count: int) -> FeatureSplit:
    """The same rows with classes that are near each other as one, `count` in all."""
    from scipy.cluster.hierarchy import fcluster, linkage

    x, y = torch.from_numpy(split.float32()), torch.from_numpy(split.require_labels().astype(np.int64))
    unit = l2_normalise(x - x.mean(dim=0))
    means = torch.stack([unit[y == c].mean(dim=0) for c in range(len(split.classes))])
    groups = fcluster(linkage(means.numpy(), "ward"), count, "maxclust") - 1
    names = [f"{split.classes[int(np.argmax(groups == i))]} and alike" for i in range(int(groups.max()) + 1)]
    return FeatureSplit.from_arrays(split.float32(), groups[y.numpy()], names)


def narrow_layer(base: FeatureSplit, width: int) -> nn.Module:
    """A linear layer, trained with a softmax layer behind it to tell the base classes apart."""
    torch.manual_seed(0)
    x, y = torch.from_numpy(base.float32()), torch.from_numpy(base.require_labels().astype(np.int64))
    mean = x.mean(dim=0)
    scale = 3 * (x - mean).square().mean().sqrt()
    rows = (x - mean) / scale
    layer, softmax = nn.Linear(x.shape[1], width), nn.Linear(width, len(base.classes))
    optimizer = torch.optim.SGD([*layer.parameters(), *softmax.parameters()], lr=RATE, momentum=0.9, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        some = torch.randint(len(rows), (BATCH,))
        loss = nn.functional.cross_entropy(softmax(layer(rows[some])), y[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return _Scaled(layer, mean, scale)


class _Scaled(nn.Module):
    def __init__(self, layer: nn.Module, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.layer, self.mean, self.scale = layer, mean, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x - self.mean) / self.scale)


def narrow_set(features: FeatureSet, width: int, categories: int | None) -> dict[str, FeatureSplit]:
    """The splits of a set behind a narrow layer, with merged classes where `categories` is given."""
    splits = {name: features.split(name) for name in SPLITS}
    if categories is not None:
        for name, split in splits.items():
            count = categories if name == "base" else max(LEAST_CLASSES, len(split.classes) // 3)
            splits[name] = merged(split, count)
    layer = narrow_layer(splits["base"], width)
    made = {}
    for name, split in splits.items():
        with torch.no_grad():
            rows = layer(torch.from_numpy(split.float32())).numpy()
        made[name] = FeatureSplit.from_arrays(rows, split.require_labels(), list(split.classes))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--categories", type=int, default=17)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    for folder in feature_folders(*options.features):
        features = FeatureSet.load(folder)
        for ending, categories in (("narrow", None), ("narrow-cat", options.categories)):
            out = options.out / f"{folder.name}-{ending}"
            FeatureSet(**narrow_set(features, options.width, categories)).save(out)
            print(out, flush=True)


if __name__ == "__main__":
    main()
