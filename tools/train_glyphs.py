"""Train the Conv-4 on glyphs that ships with the package.

    python tools/train_glyphs.py glyphs-conv4.safetensors [--epochs 12] [--rows 20] [--seed 0]

A few minutes on one core; the same bytes on the same machine and release of torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn import functional as F

from fewcal.features.backbone_networks import Backbone
from fewcal.features.backbones import make_backbone, save_checkpoint
from fewcal.features.glyphs import SIZE, glyph_classes, glyph_pictures

BATCH, RATE = 64, 3e-3
# Seeds of the pictures, far from those that users draw theirs with.
PICTURE_SEED = 1_000_000


def train_glyph_model(epochs: int, rows: int, seed: int, report: Callable[[str], None]) -> Backbone:
    """Return a Conv-4 that classifies the base classes: cross-entropy, AdamW, new pictures in every epoch."""
    classes = len(glyph_classes()["base"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_backbone("conv4", in_channels=1, channels=64, size=SIZE)
        head = torch.nn.Linear(model.dimension, classes)
        optimiser = torch.optim.AdamW([*model.parameters(), *head.parameters()], weight_decay=1e-3)
        steps = epochs * -(-classes * rows // BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.2)
        for epoch in range(epochs):
            data = glyph_pictures("base", rows, seed=PICTURE_SEED + 1000 * seed + epoch)
            x, y = torch.from_numpy(data.pictures)[:, None], torch.from_numpy(data.labels)
            model.train()
            total, right = 0.0, 0
            for part in torch.randperm(len(y)).split(BATCH):
                scores = head(model(x[part]))
                loss = F.cross_entropy(scores, y[part])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                total += loss.item() * len(part)
                right += int((scores.argmax(dim=1) == y[part]).sum())
            report(f"epoch {epoch + 1}/{epochs}: loss {total / len(y):.3f}, base accuracy {right / len(y):.1%}")
    return model.eval()


def main(argv: Sequence[str] | None = None) -> None:
    """Write the weights to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=20, help="pictures of each class in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    model = train_glyph_model(options.epochs, options.rows, options.seed, lambda line: print(line, flush=True))
    recipe = {"trained_on": "glyphs, base", "epochs": options.epochs, "rows": options.rows, "seed": options.seed}
    save_checkpoint(options.file, model, recipe)
    print(f"written to {options.file}")


if __name__ == "__main__":
    main()
