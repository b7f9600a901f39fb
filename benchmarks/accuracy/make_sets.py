"""Feature sets of other kinds than photographs through ResNet-12, for the study of defaults across feature sets.

    python benchmarks/accuracy/make_sets.py --packs PACKS --out SETS                 # all that this machine can make
    python benchmarks/accuracy/make_sets.py --out SETS text-minilm glyphs-conv4      # some

Each set is a folder with `base.npz`, `val.npz`, `novel.npz` (`features` float16, `labels` int16, `classes`), which
`FeatureSet.load` reads. No class is in two splits, and all seeds are fixed. Every extractor is one of fewcal's own.

- `text-minilm`, `text-wordllama`: the one-line description of a Debian package; its class is the rarest of its
  debtags of a topical facet (`field::astronomy`, `protocol::irc`, …). From `apt-cache dumpavail`, on any Debian
  machine after `apt-get update`.
- `pydoc-minilm`, `pydoc-wordllama`: the first paragraph of a function's or class's docstring; its class is its module
  (`scipy.signal`, `sympy.geometry`, …). From the sources of the installed packages named in `DOCUMENTED`, which are
  parsed and never imported.
- `glyphs-conv4`: a distorted drawing of a letter; its class is the letter, and scripts are split as in the demo. Drawn
  by `fewcal.features.glyphs` from matplotlib's fonts.
- `cub-efficientnet`: a photograph of a bird; its class is its species. From `PACKS/images/cub_{base,val,novel}.npz`.
- `tiered-efficientnet`: a 64×64 photograph; its class is the WordNet number that its name begins with. From
  `PACKS/images-tiered/tiered_{base,val,novel}.npz`. `tiered-efficientnet-cat`: the same rows by category, the label of
  the pack.

EfficientNet-Lite was trained on ImageNet, to which all classes of the tiered packs and some species of CUB belong:
their novel classes are new to the bank, not to the network. Read differences between methods there, not accuracies.

The texts depend on the release of Debian and on the versions of the packages, so the text sets differ a little from
machine to machine; `source.json` beside the features says what they were made from. The picture packs are for
non-commercial research and are no part of the project; where they are missing, their sets are skipped and it is said.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from fewcal.errors import InputError
from fewcal.features import FeatureSet
from fewcal.features.extract import embed
from fewcal.features.extractors import get_extractor
from fewcal.features.glyphs import glyph_features, glyph_pictures
from fewcal.features.sources.pictures import Pictures, find_pictures
from fewcal.features.sources.texts import Texts

Facts = dict[str, object]
ByClass = dict[str, list[str]]
SEED = 0
SPLITS = ("base", "val", "novel")
# Rows of a class that tasks need: 20 shots and 15 queries, and one to spare.
TASK_ROWS = 36
TEXT_ROWS = 60  # the most of one class, so that none outweighs the others in the bank
# Shares of the text classes that go to base, val and novel.
SHARES = (0.48, 0.20, 0.32)


class Missing(Exception):
    """What a set is made from is not on this machine."""


@dataclass
class Made:
    """One split of a set on its way to its file."""

    features: np.ndarray
    labels: Sequence[str]


@dataclass
class Source:
    """What a set was made from, for `source.json`."""

    splits: dict[str, Made]
    facts: Facts = field(default_factory=dict)


# ---- Debian's packages ----------------------------------------------------------------------------------------------

# Facets of debtags that say what a package is about. Others say how it is made or used (`role`, `implemented-in`,
# `interface`, `use`, `scope`) and tell little that a one-line description would.
# fmt: off
FACETS = frozenset({
    "accessibility", "admin", "biology", "culture", "devel", "field", "game", "hardware", "mail", "network",
    "office", "protocol", "science", "security", "sound", "suite", "web", "works-with", "works-with-format",
    "x11",
})
# fmt: on
# Tags of these facets that are about everything and nothing.
VAGUE = frozenset({"devel::library", "devel::doc", "devel::examples", "x11::application", "x11::library", "suite::gnu"})


@lru_cache(maxsize=1)
def debian_texts() -> tuple[ByClass, Facts]:
    """Descriptions by tag: each package under the rarest of its tags, so that a class is as narrow as it can be."""
    try:
        got = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(
            f"descriptions of Debian's packages come from apt-cache, which does not run here ({error})"
        ) from None
    packages: list[tuple[str, set[str]]] = []
    for stanza in got.stdout.decode("utf-8", "replace").split("\n\n"):
        line = re.search(r"^Description(?:-en)?: (.+)", stanza, re.MULTILINE)
        listed = re.search(r"^Tag: (.+(?:\n .+)*)", stanza, re.MULTILINE)
        if line and listed:
            packages.append((line[1].strip(), {t.strip() for t in listed[1].replace("\n", " ").split(",")}))
    if len(packages) < 10_000:
        raise Missing(f"apt-cache knows {len(packages)} packages with tags; run apt-get update on a Debian machine")

    def topical(tag: str) -> bool:
        special = tag.endswith("::TODO") or tag.startswith("devel::lang:") or tag in VAGUE
        return tag.partition("::")[0] in FACETS and not special

    often = Counter(t for _, tags in packages for t in tags if topical(t))
    repeated = Counter(said for said, _ in packages)
    found: dict[str, list[str]] = defaultdict(list)
    for said, tags in packages:
        known = sorted((t for t in tags if often[t] >= TASK_ROWS), key=lambda t: (often[t], t))
        if known and repeated[said] == 1 and len(said.split()) >= 3:
            found[known[0]].append(said)
    release = Path("/etc/debian_version")
    facts = {
        "texts": "one-line descriptions of Debian packages by debtag (apt-cache dumpavail)",
        "debian": release.read_text().strip() if release.is_file() else "unknown",
        "tagged packages": len(packages),
    }
    return dict(found), facts


# ---- docstrings -----------------------------------------------------------------------------------------------------

# Packages whose docstrings are read, all of them requirements of fewcal or of its extras, directly or not.
DOCUMENTED = ["dask", "distributed", "matplotlib", "mpmath", "networkx", "numpy", "optuna", "pandas", "scipy"]
DOCUMENTED += ["sklearn", "sqlalchemy", "sympy", "torch"]
# Packages of packages: the class is one level deeper.
DEEPER = frozenset({"networkx.algorithms", "pandas.core", "sympy.physics", "torch.nn", "torch.distributed", "torch.ao"})
# Modules of helpers, about anything.
# fmt: off
HELPERS = frozenset({
    "tests", "test", "testing", "conftest", "utils", "util", "utilities", "misc", "compat", "common",
    "external", "extern", "contrib", "benchmarks", "errors", "exc", "utils_test", "distutils",
})
# fmt: on


@lru_cache(maxsize=1)
def docstrings() -> tuple[ByClass, Facts]:
    """First paragraphs of docstrings by module; one that occurs twice anywhere is left out."""
    found: dict[str, list[str]] = defaultdict(list)
    versions: dict[str, str] = {}
    for package in DOCUMENTED:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            print(f"pydoc: {package} is not installed; its modules are left out", file=sys.stderr)
            continue
        name = {"sklearn": "scikit-learn"}.get(package, package)
        versions[name] = importlib.metadata.version(name)
        root = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(root.rglob("*.py")):
            parts = [p for p in path.relative_to(root).with_suffix("").parts if p != "__init__"]
            private = not parts or parts[0].startswith("_")
            if private or HELPERS & set(parts) or any(p.startswith("test_") for p in parts):
                continue
            deep = f"{package}.{parts[0]}" in DEEPER
            module = ".".join([package, *(p.lstrip("_") for p in parts[: 1 + deep])])
            if deep and len(parts) < 2:
                continue
            found[module] += _paragraphs(path)
    repeated = Counter(text for texts in found.values() for text in texts)
    kept = {module: [t for t in texts if repeated[t] == 1] for module, texts in found.items()}
    if sum(len(texts) >= TASK_ROWS for texts in kept.values()) < 60:
        raise Missing(f"too few documented packages are installed ({', '.join(versions)}); pip install the others")
    return kept, {"texts": "first paragraphs of docstrings by module", "packages": versions}


def _paragraphs(path: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in the sources of others
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if 5 <= len(text.split()) <= 60:
                found.append(text)
    return found


# ---- texts to features ----------------------------------------------------------------------------------------------


def share_out(by_class: ByClass, rng: np.random.Generator) -> dict[str, list[str]]:
    """Classes with at least `TASK_ROWS` texts by split, in `SHARES`."""
    classes = sorted(name for name, rows in by_class.items() if len(rows) >= TASK_ROWS)
    order = [classes[i] for i in rng.permutation(len(classes))]
    ends = np.round(np.cumsum(SHARES) * len(order)).astype(int)
    return {s: sorted(order[a:b]) for s, a, b in zip(SPLITS, [0, *ends[:-1]], ends, strict=True)}


def text_set(extractor: str, texts: Callable[[], tuple[ByClass, Facts]]) -> Source:
    """Raw embeddings, of both signs; classes with at least `TASK_ROWS` texts, at most `TEXT_ROWS` of each."""
    by_class, facts = texts()
    rng = np.random.default_rng(SEED)
    model = get_extractor(extractor)
    made = {}
    for split, names in share_out(by_class, rng).items():
        chosen, labels = [], []
        for name in names:
            rows = sorted(by_class[name])
            picked = rng.permutation(len(rows))[:TEXT_ROWS]
            chosen += [rows[i] for i in picked]
            labels += [name] * len(picked)
        # Texts of like length together: less padding, and the same embeddings.
        sort = sorted(range(len(chosen)), key=lambda i: len(chosen[i]))
        items = Texts([f"text {i}" for i in sort], None, None, extractor, [chosen[i] for i in sort])
        features = np.empty((len(chosen), model.dim), np.float32)
        features[sort] = embed(items, model, workers=1)[0]
        made[split] = Made(features, labels)
    return Source(made, {**facts, "extractor": model.stamp})


# ---- pictures -------------------------------------------------------------------------------------------------------


def glyph_set() -> Source:
    """The demo's letters, `TASK_ROWS` drawings of each."""
    pictures = {split: glyph_pictures(split, TASK_ROWS, SEED) for split in SPLITS}
    splits = glyph_features(pictures).splits()
    made = {s: Made(f.float32(), [f.classes[i] for i in f.require_labels()]) for s, f in splits.items()}
    return Source(made, {"pictures": "letters of matplotlib's fonts", "extractor": "Conv-4 of fewcal.features.glyphs"})


def picture_set(
    packs: Path | None, pack: str, rows: dict[str, int], kinds: dict[str, Callable[[str, str], str]]
) -> dict[str, Source]:
    """EfficientNet-Lite0 features of a sample of a pack, once for each kind of label.

    `pack` is folder and prefix of its files, `rows` the pictures of a class in each split. A kind of label is told from
    the pack's label and the picture's name; the first kind is the one that is sampled by.
    """
    if packs is None:
        raise Missing(f"give the folder that holds {pack}_base.npz with --packs")
    files = {split: packs / f"{pack}_{split}.npz" for split in SPLITS}
    for file in files.values():
        if not file.is_file():
            raise Missing(f"there is no {file}")
    model = get_extractor("efficientnet-lite0")
    found: dict[str, Source] = {}
    facts: Facts = {"pictures": f"{pack}_*.npz", "extractor": model.stamp}
    for number, split in enumerate(SPLITS):
        pictures = find_pictures(files[split])
        labels = {kind: _labels(pictures, tell) for kind, tell in kinds.items()}
        first = np.array(labels[next(iter(kinds))])
        rng = np.random.default_rng([SEED, number])
        taken = np.concatenate(
            [np.sort(rng.permutation(np.flatnonzero(first == name))[: rows[split]]) for name in np.unique(first)]
        )
        features = embed(pictures.take(taken), model, workers=1, progress=_progress(split))[0]
        for kind, told in labels.items():
            source = found.setdefault(kind, Source({}, facts))
            source.splits[split] = Made(features, [told[i] for i in taken])
    return found


def _labels(pictures: Pictures, tell: Callable[[str, str], str]) -> list[str]:
    assert pictures.labels is not None
    return [tell(label, name.rpartition("/")[2]) for label, name in zip(pictures.labels, pictures.names, strict=True)]


def _progress(what: str) -> Callable[[int, int], None]:
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 20:
            last = time.monotonic()
            print(f"  {what}: {done} of {total}", flush=True)

    return report


def cub_set(packs: Path | None) -> dict[str, Source]:
    rows = {"base": 25, "val": TASK_ROWS, "novel": TASK_ROWS}
    return picture_set(packs, "images/cub", rows, {"cub-efficientnet": lambda label, name: label})


def tiered_sets(packs: Path | None) -> dict[str, Source]:
    rows = {"base": 30, "val": TASK_ROWS, "novel": TASK_ROWS}
    kinds: dict[str, Callable[[str, str], str]] = {
        "tiered-efficientnet": lambda label, name: re.match(r"n\d+", name)[0],  # type: ignore[index]
        "tiered-efficientnet-cat": lambda label, name: label,
    }
    return picture_set(packs, "images-tiered/tiered", rows, kinds)


# ---- writing --------------------------------------------------------------------------------------------------------

# What makes each set; those of one group come from the same work.
GROUPS: dict[tuple[str, ...], Callable[[Path | None], dict[str, Source]]] = {
    ("text-minilm",): lambda packs: {"text-minilm": text_set("minilm", debian_texts)},
    ("text-wordllama",): lambda packs: {"text-wordllama": text_set("wordllama", debian_texts)},
    ("pydoc-minilm",): lambda packs: {"pydoc-minilm": text_set("minilm", docstrings)},
    ("pydoc-wordllama",): lambda packs: {"pydoc-wordllama": text_set("wordllama", docstrings)},
    ("glyphs-conv4",): lambda packs: {"glyphs-conv4": glyph_set()},
    ("cub-efficientnet",): cub_set,
    ("tiered-efficientnet", "tiered-efficientnet-cat"): tiered_sets,
}
NAMES = [name for group in GROUPS for name in group]


def write(source: Source, folder: Path) -> None:
    """The folder appears when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for split, made in source.splits.items():
            classes, labels = np.unique(np.array(made.labels), return_inverse=True)
            with (temporary / f"{split}.npz").open("wb") as file:
                np.savez(
                    file, features=made.features.astype(np.float16), labels=labels.astype(np.int16), classes=classes
                )
        versions = {p: importlib.metadata.version(p) for p in ("fewcal", "numpy", "torch")}
        facts = {**source.facts, "seed": SEED, "python": platform.python_version(), "versions": versions}
        (temporary / "source.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        FeatureSet.load(temporary)  # refuses what is not as it should be
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"which to make, of {', '.join(NAMES)} (all)")
    parser.add_argument("--packs", type=Path, help="folder that holds images/ and images-tiered/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the sets; those that are there are kept")
    options = parser.parse_args(argv)
    if wrong := [name for name in options.sets if name not in NAMES]:
        parser.error(f"unknown set {wrong[0]!r}; there are {', '.join(NAMES)}")
    wanted = options.sets or NAMES
    lacking = 0
    for group, make in GROUPS.items():
        names = [name for name in group if name in wanted and not (options.out / name).exists()]
        if not names:
            continue
        began = time.monotonic()
        try:
            made = make(options.packs)
        except (Missing, InputError) as error:
            lacking += 1
            print(f"{', '.join(names)}: not made; {error}", flush=True)
            continue
        for name in names:
            write(made[name], options.out / name)
            sizes = ", ".join(f"{s} {len(set(m.labels))}×{len(m.labels)}" for s, m in made[name].splits.items())
            print(f"{name}: {sizes}; {time.monotonic() - began:.0f} s", flush=True)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
