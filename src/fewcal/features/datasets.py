"""The paper's data sets as lists of pictures, made from files that users have downloaded themselves.

`prepare` finds the pictures, sorts their classes into base, val and novel, checks the counts, and writes `base.csv`,
`val.csv` and `novel.csv` (path, label, split), which `fewcal extract` reads. Nothing is downloaded: an error names what
is missing, where it belongs and who offers it.
"""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from fewcal._utils.atomic import atomic_path
from fewcal._utils.names import nearest_names
from fewcal._utils.types import JSONObject, StrPath
from fewcal.errors import FileFormatError, InputError
from fewcal.features.featureset import SPLITS
from fewcal.features.io.tables import class_name, read_csv
from fewcal.features.sources.listing import class_folders
from fewcal.features.sources.pictures import picture_files

Rows = list[tuple[Path, str]]
Found = tuple[dict[str, Rows], list[str]]  # rows of each split; names of what should be there and is not


@dataclass(frozen=True)
class Recipe:
    """A data set by its table in `datasets.toml`."""

    read: Callable[[Path, Path | None], Found]  # a folder, and the user's file of splits where there is one
    title: str
    classes: Sequence[int]  # of base, val and novel
    pictures: Sequence[int]
    origin: str  # where users get it and how it must lie
    note: str = ""  # a difference to the paper


def prepare(
    name: str,
    source: StrPath,
    out: StrPath,
    *,
    novel_source: StrPath | None = None,
    split_file: StrPath | None = None,
    allow_incomplete: bool = False,
) -> JSONObject:
    """Write the lists of a data set to the folder `out`; return counts of each split, and `notes` on differences.

    `name` is one of `RECIPES`, or two joined by "2" (`mini2cub`): base of the first, val and novel of the second, which
    lies in `novel_source`. `split_file` is a CSV (class, split) for data sets whose split is by class. With
    `allow_incomplete` counts that differ from the published ones are reported, not refused.
    """
    first, second = _names(name)
    if (first != second) != (novel_source is not None):
        raise InputError(
            f"{name} takes base from {first} and val, novel from {second}: name the folder of the latter (--novel-from)"
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
        if not rows:
            raise InputError(f"{split} is empty: none of its pictures are there")
        with atomic_path(Path(out) / f"{split}.csv") as file, file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["path", "label", "split"])
            writer.writerows([str(picture.resolve()), label, split] for picture, label in rows)
    return {"name": name, "splits": {s: _counts(chosen[s]) for s in SPLITS}, "notes": notes, "folder": str(out)}


def _names(name: str) -> tuple[str, str]:
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
    found = (len({label for _, label in rows}), len(rows))
    published = (recipe.classes[SPLITS.index(split)], recipe.pictures[SPLITS.index(split)])
    if found == published:
        return ""
    return f"{split} has {found[0]} classes and {found[1]} pictures, published are {published[0]} and {published[1]}"


def _counts(rows: Rows) -> dict[str, int]:
    sizes = Counter(label for _, label in rows).values()
    return {"classes": len(sizes), "rows": len(rows), "smallest": min(sizes), "largest": max(sizes)}


# ---- the recipes ----------------------------------------------------------------------------------------------------

_DATA: JSONObject = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# Broad classes of tieredImageNet by split and WordNet number.
CATEGORIES: dict[str, dict[str, str]] = _DATA.pop("categories")


def _inside(folder: Path, name: str, *places: str) -> Path:
    """Return the first of some places that is a folder."""
    for place in places:
        if (folder / place).is_dir():
            return folder / place
    raise InputError(f"{folder} has no folder {' or '.join(places)}; {_DATA[name]['origin']}")


def _lists(folder: Path, name: str) -> dict[str, Path]:
    """Return train.csv, val.csv and test.csv in the folder, or in one below it, by the name of the split."""
    names = {"base": "train.csv", "val": "val.csv", "novel": "test.csv"}
    for place in (folder, *class_folders(folder)):
        if all((place / file).is_file() for file in names.values()):
            return {split: place / file for split, file in names.items()}
    raise InputError(f"{folder} has no train.csv, val.csv and test.csv; {_DATA[name]['origin']}")


def _by_class(folder: Path, split_of: dict[str, str]) -> Found:
    """Return the pictures of class folders by split; classes without a split are left out."""
    found: dict[str, Rows] = {name: [] for name in SPLITS}
    folders = class_folders(folder)
    for below in folders:
        if split := split_of.get(below.name):
            found[split] += [(p, class_name(below.name)) for p in picture_files(below)]
    return found, sorted(set(split_of) - {p.name for p in folders})


def _read_split(path: Path) -> dict[str, str]:
    table = read_csv(path, ["class", "split"])
    if wrong := sorted(set(table["split"]) - set(SPLITS)):
        raise FileFormatError(f"{path}: split {wrong[0]!r} is unknown; the splits are {', '.join(SPLITS)}")
    return dict(zip(table["class"], table["split"], strict=True))


def _read_mini(folder: Path, split_file: Path | None) -> Found:
    images = _inside(folder, "mini", "images")
    there = {p.name for p in picture_files(images)}
    found: dict[str, Rows] = {}
    missing = []
    for split, path in _lists(folder, "mini").items():
        table = read_csv(path, ["filename", "label"])
        rows = list(zip(table["filename"], table["label"], strict=True))
        missing += [f"images/{name}" for name, _ in rows if name not in there]
        found[split] = [(images / name, label) for name, label in rows if name in there]
    return found, missing


def _read_cub(folder: Path, split_file: Path | None) -> Found:
    images = _inside(folder, "cub", "images", "CUB_200_2011/images")
    names = [p.name for p in class_folders(images)]
    # Chen et al. 2019: every other class is base, the rest alternates between val and novel.
    order = ("base", "val", "base", "novel")
    alternating = {name: order[i % 4] for i, name in enumerate(names)}
    return _by_class(images, alternating if split_file is None else _read_split(split_file))


def _read_dogs(folder: Path, split_file: Path | None) -> Found:
    images = _inside(folder, "dogs", "Images", "images")
    if split_file is not None:
        return _by_class(images, _read_split(split_file))
    split_of = {number: split for split in ("val", "novel") for number in _DATA["dogs"][split]}
    return _by_class(images, {p.name: split_of.get(p.name.partition("-")[0], "base") for p in class_folders(images)})


def _read_tiered(folder: Path, split_file: Path | None, broad: bool = False) -> Found:
    images = _inside(folder, "tiered", "train", "ILSVRC2012_img_train", "ILSVRC/Data/CLS-LOC/train")
    found: dict[str, Rows] = {}
    missing = []
    for split, path in _lists(folder, "tiered").items():
        found[split] = []
        with path.open(encoding="utf-8-sig", newline="") as file:
            pairs = [row for row in csv.reader(file) if row]
        for row in pairs:
            if len(row) != 2 or row[1] not in CATEGORIES[split]:
                raise FileFormatError(
                    f"{path}: {','.join(row)!r} is no class and category of {split}; {_DATA['tiered']['origin']}"
                )
            if not (images / row[0]).is_dir():
                missing.append(f"{images.name}/{row[0]}/")
                continue
            label = CATEGORIES[split][row[1]] if broad else row[0]
            found[split] += [(p, label) for p in picture_files(images / row[0])]
    return found, missing


_READERS: dict[str, Callable[[Path, Path | None], Found]] = {
    "mini": _read_mini,
    "cub": _read_cub,
    "dogs": _read_dogs,
    "tiered": _read_tiered,
    "meta-tiered": partial(_read_tiered, broad=True),
}
_FIELDS = {field.name for field in fields(Recipe)}
RECIPES = {
    name: Recipe(_READERS[name], **{key: value for key, value in data.items() if key in _FIELDS})
    for name, data in _DATA.items()
}
