"""The paper's data sets as lists of pictures, made from files that users have downloaded themselves.

`prepare` finds the pictures, sorts their classes into base, val and novel, checks the counts, and writes `base.csv`,
`val.csv` and `novel.csv` (path, label, split), which `fewcal extract` reads. Nothing is downloaded; where something is
missing the message says what, where it belongs and who offers it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from fewcal._utils.atomic import atomic_path
from fewcal._utils.names import nearest_names
from fewcal._utils.types import StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.featureset import SPLITS
from fewcal.features.io.tables import class_name, read_csv
from fewcal.features.sources.pictures import class_folders, picture_files

Rows = list[tuple[Path, str]]
Found = tuple[dict[str, Rows], list[str]]  # rows of each split; names of what should be there and is not


@dataclass(frozen=True)
class Recipe:
    """How a data set is put together.

    Attributes
    ----------
    title : its name in words
    classes, rows : what base, val and novel must hold
    origin : where users get it and how it must lie
    read : from a folder (and a file of splits, where the user has one) to what is found and what is missing
    note : what the paper does otherwise
    """

    title: str
    classes: tuple[int, int, int]
    rows: tuple[int, int, int]
    origin: str
    read: Callable[[Path, Path | None], Found]
    note: str = ""


class SplitCounts(TypedDict):
    """Classes and rows of a split, and rows of its smallest and its largest class."""

    classes: int
    rows: int
    smallest: int
    largest: int


class Prepared(TypedDict):
    """What `prepare` wrote; `notes` say what differs from the published data set."""

    name: str
    splits: dict[str, SplitCounts]
    notes: list[str]
    folder: str


def prepare(
    name: str,
    source: StrPath,
    out: StrPath,
    *,
    novel_source: StrPath | None = None,
    split_file: StrPath | None = None,
    allow_incomplete: bool = False,
) -> Prepared:
    """Write the lists of a data set to the folder `out`; returns classes and rows of each split.

    `name` is one of `RECIPES`, or two of them joined by "2" (`mini2cub`): base of the first, val and novel of the
    second, which lies in `novel_source`. `split_file` is a CSV (class, split) for data sets whose split is by class.
    With `allow_incomplete` counts that differ from the published ones are reported, not refused.
    """
    first, second = _named(name)
    if (first != second) != (novel_source is not None):
        raise InputError(
            f"{name} takes base from {first} and val, novel from {second}: say where the latter lies (--novel-from)"
            if novel_source is None
            else f"{name} is one data set; --novel-from is for pairs such as mini2cub"
        )
    parts: list[tuple[str, Path, tuple[str, ...]]] = [(first, Path(source), SPLITS if first == second else ("base",))]
    if novel_source is not None:
        parts.append((second, Path(novel_source), ("val", "novel")))
    chosen: dict[str, Rows] = {}
    notes: list[str] = []
    for part, folder, wanted in parts:
        recipe = RECIPES[part]
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder; {recipe.origin}")
        found, missing = recipe.read(folder, None if split_file is None else Path(split_file))
        problems = [p for split in wanted if (p := _problem(recipe, split, found[split]))]
        if problems and missing:
            problems.append(f"{len(missing)} missing, the first is {missing[0]}")
        if problems and not allow_incomplete:
            raise InputError(
                f"{recipe.title} in {folder} is not complete: {'; '.join(problems)}; {recipe.origin}; "
                "or go on with what is there (--allow-incomplete)"
            )
        notes += problems + ([recipe.note] if recipe.note else [])
        chosen |= {split: found[split] for split in wanted}
    for split, rows in chosen.items():
        _write(Path(out) / f"{split}.csv", split, rows)
    return {"name": name, "splits": {s: _facts(chosen[s]) for s in SPLITS}, "notes": notes, "folder": str(out)}


def _named(name: str) -> tuple[str, str]:
    first, two, second = name.partition("2")
    pair = (first, second if two else first)
    for part in pair:
        if part not in RECIPES:
            raise InputError(
                f"data set {part!r} is unknown{nearest_names(part, RECIPES)}; known are {', '.join(RECIPES)}, "
                "and pairs such as mini2cub"
            )
    return pair


def _problem(recipe: Recipe, split: str, rows: Rows) -> str:
    place = SPLITS.index(split)
    classes, pictures = len({label for _, label in rows}), len(rows)
    if (classes, pictures) == (recipe.classes[place], recipe.rows[place]):
        return ""
    return (
        f"{split} has {classes} classes and {pictures} pictures, "
        f"published are {recipe.classes[place]} and {recipe.rows[place]}"
    )


def _facts(rows: Rows) -> SplitCounts:
    counts: dict[str, int] = {}
    for _, label in rows:
        counts[label] = counts.get(label, 0) + 1
    sizes = counts.values()
    return {"classes": len(counts), "rows": len(rows), "smallest": min(sizes), "largest": max(sizes)}


def _write(path: Path, split: str, rows: Rows) -> None:
    if not rows:
        raise InputError(f"{split} is empty: none of its pictures are there")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        writer.writerows([str(picture.resolve()), label, split] for picture, label in rows)


# ---- what the recipes share -----------------------------------------------------------------------------------------


def _inside(folder: Path, names: tuple[str, ...], origin: str) -> Path:
    """The first of some places that is a folder."""
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    raise InputError(f"{folder} has no folder {' or '.join(names)}; {origin}")


def _by_class(folder: Path, split_of: dict[str, str]) -> Found:
    """Pictures of class folders whose names `split_of` sorts into splits; what it does not name is left out."""
    found: dict[str, Rows] = {name: [] for name in SPLITS}
    for below in class_folders(folder):
        if split := split_of.get(below.name):
            found[split] += [(p, class_name(below.name)) for p in picture_files(below)]
    return found, sorted(set(split_of) - {p.name for p in class_folders(folder)})


def _user_split(path: Path) -> dict[str, str]:
    table = read_csv(path, ["class", "split"])
    if wrong := sorted(set(table["split"]) - set(SPLITS)):
        raise FileFormatError(f"{path}: split {wrong[0]!r} is unknown; the splits are {', '.join(SPLITS)}")
    return dict(zip(table["class"], table["split"], strict=True))


def _lists(folder: Path, origin: str) -> dict[str, Path]:
    """train.csv, val.csv and test.csv in the folder, or in one below it, by the name of the split."""
    names = {"base": "train.csv", "val": "val.csv", "novel": "test.csv"}
    for place in (folder, *class_folders(folder)):
        if all((place / name).is_file() for name in names.values()):
            return {split: place / name for split, name in names.items()}
    raise InputError(f"{folder} has no train.csv, val.csv and test.csv; {origin}")


# ---- the recipes ----------------------------------------------------------------------------------------------------

_MINI = (
    "put train.csv, val.csv and test.csv of Ravi & Larochelle (github.com/twitter-research/meta-learning-lstm, "
    "data/miniImagenet) into the folder and its 60000 pictures into images/ (cut from ILSVRC-2012 with "
    "github.com/yaoyao-liu/mini-imagenet-tools)"
)
_CUB = "unpack CUB_200_2011.tgz (data.caltech.edu/records/65de6-vp158), so that the folder holds images/001.Black_…/"
_DOGS = "unpack images.tar (vision.stanford.edu/aditya86/ImageNetDogs), so that the folder holds Images/n02085620-…/"
_TIERED = (
    "put train.csv, val.csv and test.csv (github.com/renmengye/few-shot-ssl-public, "
    "fewshot/data/tiered_imagenet_split) into the folder and the training pictures of ILSVRC-2012 (image-net.org), "
    "unpacked, into train/n01440764/ and so on"
)


def _read_mini(folder: Path, split_file: Path | None) -> Found:
    images = _inside(folder, ("images",), _MINI)
    there = {p.name for p in picture_files(images)}
    found: dict[str, Rows] = {}
    missing = []
    for split, path in _lists(folder, _MINI).items():
        table = read_csv(path, ["filename", "label"])
        rows = list(zip(table["filename"], table["label"], strict=True))
        missing += [name for name, _ in rows if name not in there]
        found[split] = [(images / name, label) for name, label in rows if name in there]
    return found, [f"images/{name}" for name in missing]


def _read_cub(folder: Path, split_file: Path | None) -> Found:
    images = _inside(folder, ("images", "CUB_200_2011/images"), _CUB)
    names = [p.name for p in class_folders(images)]
    # Chen et al. 2019: every other class is base, the rest alternates between val and novel.
    order = ("base", "val", "base", "novel")
    split_of = {name: order[i % 4] for i, name in enumerate(names)} if split_file is None else _user_split(split_file)
    return _by_class(images, split_of)


# Li et al. 2019 (DN4); all other classes are base.
# fmt: off
_DOGS_VAL = (
    "n02085936", "n02086079", "n02087046", "n02087394", "n02088094", "n02090622", "n02091467", "n02094258",
    "n02098286", "n02101006", "n02105641", "n02106550", "n02107574", "n02108551", "n02109047", "n02112137",
    "n02113023", "n02113712", "n02113978", "n02115641",
)
_DOGS_NOVEL = (
    "n02089867", "n02091032", "n02091134", "n02091635", "n02092002", "n02093991", "n02094114", "n02094433",
    "n02095570", "n02096294", "n02096585", "n02097130", "n02098413", "n02099601", "n02102040", "n02102480",
    "n02102973", "n02105412", "n02105505", "n02106030", "n02107908", "n02108089", "n02110185", "n02110627",
    "n02110958", "n02111500", "n02111889", "n02112706", "n02113186", "n02113799",
)
# fmt: on


def _read_dogs(folder: Path, split_file: Path | None) -> Found:
    images = _inside(folder, ("Images", "images"), _DOGS)
    if split_file is not None:
        return _by_class(images, _user_split(split_file))
    known = dict.fromkeys(_DOGS_VAL, "val") | dict.fromkeys(_DOGS_NOVEL, "novel")
    return _by_class(images, {p.name: known.get(p.name.partition("-")[0], "base") for p in class_folders(images)})


# The paper's Table 6, by the WordNet numbers that the lists of Ren et al. 2018 use.
CATEGORIES = {
    "base": {
        "n04014297": "protective covering",
        "n03419014": "garment",
        "n02913152": "building",
        "n03297735": "establishment",
        "n03278248": "electronic equipment",
        "n03414162": "game equipment",
        "n04451818": "tool",
        "n03125870": "craft",
        "n02370806": "ungulate",
        "n03800933": "musical instrument",
        "n02469914": "primate",
        "n02120997": "feline",
        "n02087551": "hound",
        "n02092468": "terrier",
        "n01726692": "snake",
        "n01674216": "saurian",
        "n01524359": "passerine",
        "n01844917": "aquatic bird",
        "n04081844": "restraint",
        "n03574816": "instrument",
    },
    "val": {
        "n03257877": "durables",
        "n03791235": "motor vehicle",
        "n03699975": "machine",
        "n03405265": "furnishing",
        "n03738472": "mechanism",
        "n02098550": "sporting dog",
    },
    "novel": {
        "n03839993": "obstruction",
        "n09287968": "geological formation",
        "n15046900": "solid",
        "n00020090": "substance",
        "n04531098": "vessel",
        "n01473806": "aquatic vertebrate",
        "n02103406": "working dog",
        "n02159955": "insect",
    },
}


def _read_tiered(folder: Path, split_file: Path | None, broad: bool = False) -> Found:
    lists = _lists(folder, _TIERED)
    images = _inside(folder, ("train", "ILSVRC2012_img_train", "ILSVRC/Data/CLS-LOC/train"), _TIERED)
    found: dict[str, Rows] = {}
    missing = []
    for split, path in lists.items():
        found[split] = []
        with path.open(encoding="utf-8-sig", newline="") as file:
            pairs = [row for row in csv.reader(file) if row]
        for row in pairs:
            if len(row) != 2 or row[1] not in CATEGORIES[split]:
                raise FileFormatError(f"{path}: {','.join(row)!r} is no class and category of {split}; {_TIERED}")
            place = images / row[0]
            if not place.is_dir():
                missing.append(row[0])
                continue
            label = CATEGORIES[split][row[1]] if broad else row[0]
            found[split] += [(p, label) for p in picture_files(place)]
    return found, [f"{images.name}/{name}/" for name in missing]


RECIPES: dict[str, Recipe] = {
    "mini": Recipe("miniImageNet", (64, 16, 20), (38400, 9600, 12000), _MINI, _read_mini),
    "cub": Recipe(
        "CUB-200-2011",
        (100, 50, 50),
        (5885, 2950, 2953),
        _CUB,
        _read_cub,
        "the paper takes 44 pictures of each class (its smallest has 41); the lists hold all",
    ),
    "dogs": Recipe(
        "Stanford Dogs",
        (70, 20, 30),
        (11962, 3478, 5140),
        _DOGS,
        _read_dogs,
        "the paper takes 100 pictures of each class in one place and 148 in another; the lists hold all",
    ),
    "tiered": Recipe("tieredImageNet", (351, 97, 160), (448695, 124261, 206209), _TIERED, _read_tiered),
    "meta-tiered": Recipe(
        "meta-tieredImageNet",
        (20, 6, 8),
        (448695, 124261, 206209),
        _TIERED,
        lambda folder, split_file: _read_tiered(folder, split_file, broad=True),
        "the paper takes 12950 pictures of each base class; the lists hold all",
    ),
}
