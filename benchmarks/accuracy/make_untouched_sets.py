"""Five feature sets on which nothing was chosen: intents by two text extractors, and characters as pixels.

    git clone https://github.com/clinc/oos-eval
    git clone https://github.com/PolyAI-LDN/task-specific-datasets
    git clone https://github.com/brendenlake/omniglot
    python benchmarks/accuracy/make_untouched_sets.py oos-eval task-specific-datasets omniglot --out untouched

CLINC150 (90 base, 20 validation, 40 novel intents) and BANKING77 (40, 10, 27), 60 texts of each; the characters of the
two small background sets of Omniglot (145, 24, 73), 20 drawings of each, as 28 × 28 pixels.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

from fewcal.features import FeatureSplit
from fewcal.features.extractors import get_extractor

TEXTS = 60  # of an intent
EXTRACTORS = ("minilm", "wordllama")


def save(folder: Path, x: np.ndarray, names: list[str], base: int, val: int) -> None:
    """Split classes at random and write the three files."""
    classes, y = np.unique(names, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(classes))
    folder.mkdir(parents=True, exist_ok=True)
    for split, own in zip(("base", "val", "novel"), np.split(order, [base, base + val]), strict=True):
        rows = np.isin(y, own)
        labels = np.argsort(own)[np.searchsorted(np.sort(own), y[rows])]
        FeatureSplit.from_arrays(x[rows].astype(np.float32), labels, classes[own].tolist()).save(
            folder / f"{split}.npz"
        )
    print(f"{folder}: {len(x)} rows of {len(classes)} classes")


def save_texts(out: Path, name: str, texts: dict[str, list[str]], base: int, val: int) -> None:
    rng = np.random.default_rng(0)
    rows = [(texts[c][i], c) for c in sorted(texts) for i in rng.permutation(len(texts[c]))[:TEXTS]]
    for extractor in EXTRACTORS:
        embed = get_extractor(extractor)
        parts = [np.asarray(embed([text for text, _ in rows[i : i + 256]])) for i in range(0, len(rows), 256)]
        save(out / f"{name}-{extractor}", np.concatenate(parts), [c for _, c in rows], base, val)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clinc", type=Path)
    parser.add_argument("banking", type=Path)
    parser.add_argument("omniglot", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    intents: dict[str, list[str]] = defaultdict(list)
    data = json.loads((options.clinc / "data" / "data_full.json").read_text())
    for split in ("train", "val", "test"):
        for text, intent in data[split]:
            intents[intent].append(text)
    save_texts(options.out, "clinc", intents, 90, 20)

    intents = defaultdict(list)
    for split in ("train", "test"):
        with (options.banking / "banking_data" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                intents[row["category"]].append(row["text"])
    save_texts(options.out, "banking", intents, 40, 10)

    pixels, names = [], []
    for part in (1, 2):
        with zipfile.ZipFile(options.omniglot / "python" / f"images_background_small{part}.zip") as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".png")):
                image = Image.open(io.BytesIO(archive.read(name))).convert("L").resize((28, 28), Image.Resampling.BOX)
                pixels.append(255 - np.asarray(image, np.float32).ravel())
                names.append("/".join(name.split("/")[1:3]))
    save(options.out / "omniglot-pixels", np.stack(pixels), names, 145, 24)


if __name__ == "__main__":
    main()
