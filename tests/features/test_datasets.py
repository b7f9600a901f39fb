"""Data sets: lists from files that lie as their publishers pack them (here with one or two tiny pictures a class)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fewcal.cli import main
from fewcal.errors import FileFormatError, InputError
from fewcal.features import datasets
from fewcal.features.datasets import CATEGORIES, RECIPES, prepare
from fewcal.features.io.tables import read_csv


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")


def counts(monkeypatch: pytest.MonkeyPatch, name: str, *rows: int) -> None:
    """Pretend that the published data set has this many pictures."""
    monkeypatch.setitem(RECIPES, name, replace(RECIPES[name], pictures=rows))


def make_cub(folder: Path) -> None:
    for i in range(200):
        touch(folder / "CUB_200_2011" / "images" / f"{i + 1:03d}.Bird_{i}" / "a.jpg")


def make_mini(folder: Path) -> None:
    start = 0
    for name, classes in [("train", 64), ("val", 16), ("test", 20)]:
        rows = ["filename,label"]
        for c in range(start, start + classes):
            touch(folder / "images" / f"n{c:08d}00000001.jpg")
            rows.append(f"n{c:08d}00000001.jpg,n{c:08d}")
        start += classes
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")


def make_tiered(folder: Path) -> None:
    sizes = {"base": ("train", 351), "val": ("val", 97), "novel": ("test", 160)}
    number = 0
    for split, (name, total) in sizes.items():
        categories = list(CATEGORIES[split])
        lines = []
        for i in range(total):
            number += 1
            lines.append(f"n{number:08d},{categories[i % len(categories)]}")
            touch(folder / "train" / f"n{number:08d}" / "a.JPEG")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n\n")


def labels_of(folder: Path, split: str) -> list[str]:
    table = read_csv(folder / f"{split}.csv", ["path", "label", "split"])
    assert set(table["split"]) == {split}
    assert all(Path(p).is_file() for p in table["path"])
    return table["label"]


def test_cub_alternates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cub(tmp_path)
    counts(monkeypatch, "cub", 100, 50, 50)
    facts = prepare("cub", tmp_path, tmp_path / "out")
    assert {s: f["classes"] for s, f in facts["splits"].items()} == {"base": 100, "val": 50, "novel": 50}
    assert labels_of(tmp_path / "out", "base")[:2] == ["001.Bird_0", "003.Bird_2"]
    assert labels_of(tmp_path / "out", "val")[:2] == ["002.Bird_1", "006.Bird_5"]
    assert labels_of(tmp_path / "out", "novel")[:2] == ["004.Bird_3", "008.Bird_7"]  # as in the published split


def test_incomplete_data_is_refused_with_what_to_do(tmp_path: Path) -> None:
    make_cub(tmp_path)
    with pytest.raises(InputError, match=r"base has 100 classes and 100 pictures, published are 100 and 5885.*caltech"):
        prepare("cub", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    facts = prepare("cub", tmp_path, tmp_path / "out", allow_incomplete=True)
    assert len(facts["notes"]) == 4  # three counts, and what the paper does otherwise


def test_mini_follows_its_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mini(tmp_path)
    counts(monkeypatch, "mini", 64, 16, 20)
    facts = prepare("mini", tmp_path, tmp_path / "out")
    assert [f["rows"] for f in facts["splits"].values()] == [64, 16, 20]
    assert set(labels_of(tmp_path / "out", "novel")) == {f"n{c:08d}" for c in range(80, 100)}
    (tmp_path / "images" / "n0000000000000001.jpg").unlink()
    with pytest.raises(InputError, match=r"63 classes.*1 missing, the first is images/n0000000000000001.jpg"):
        prepare("mini", tmp_path, tmp_path / "out")
    (tmp_path / "val.csv").unlink()
    with pytest.raises(InputError, match=r"no train.csv, val.csv and test.csv; put .*meta-learning-lstm"):
        prepare("mini", tmp_path, tmp_path / "out")


def test_dogs_split_and_a_split_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{w}-dog" for split in ("val", "novel") for w in datasets._DATA["dogs"][split]] + [
        f"n03{i:06d}-dog" for i in range(70)
    ]
    for name in names:
        touch(tmp_path / "Images" / name / "a.jpg")
    counts(monkeypatch, "dogs", 70, 20, 30)
    facts = prepare("dogs", tmp_path, tmp_path / "out")
    assert [f["classes"] for f in facts["splits"].values()] == [70, 20, 30]
    assert "n02085936-dog" in labels_of(tmp_path / "out", "val")
    own = tmp_path / "own.csv"
    own.write_text("class,split\n" + "\n".join(f"{n},{'base' if i else 'val'}" for i, n in enumerate(names)) + "\n")
    for incomplete, match in [(False, "novel has 0 classes"), (True, "novel is empty")]:
        with pytest.raises(InputError, match=match):
            prepare("dogs", tmp_path, tmp_path / "out", split_file=own, allow_incomplete=incomplete)
    own.write_text("class,split\nx,test\n")
    with pytest.raises(FileFormatError, match="split 'test' is unknown"):
        prepare("dogs", tmp_path, tmp_path / "out", split_file=own)


def test_tiered_and_its_broad_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiered(tmp_path)
    for name in ("tiered", "meta-tiered"):
        counts(monkeypatch, name, 351, 97, 160)
    assert [f["classes"] for f in prepare("tiered", tmp_path, tmp_path / "a")["splits"].values()] == [351, 97, 160]
    facts = prepare("meta-tiered", tmp_path, tmp_path / "b")
    assert [f["classes"] for f in facts["splits"].values()] == [20, 6, 8]
    assert set(labels_of(tmp_path / "b", "novel")) == set(CATEGORIES["novel"].values())
    (tmp_path / "train" / "n00000001" / "a.JPEG").unlink()
    (tmp_path / "train" / "n00000001").rmdir()
    with pytest.raises(InputError, match=r"base has 350 classes.*the first is train/n00000001/"):
        prepare("tiered", tmp_path, tmp_path / "a")
    (tmp_path / "val.csv").write_text("n00000001,n99999999\n")
    with pytest.raises(FileFormatError, match="is no class and category of val"):
        prepare("tiered", tmp_path, tmp_path / "a")


def test_pairs_join_base_of_one_with_the_rest_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mini(tmp_path / "mini")
    make_cub(tmp_path / "cub")
    counts(monkeypatch, "mini", 64, 16, 20)
    counts(monkeypatch, "cub", 100, 50, 50)
    facts = prepare("mini2cub", tmp_path / "mini", tmp_path / "out", novel_source=tmp_path / "cub")
    assert [f["classes"] for f in facts["splits"].values()] == [64, 50, 50]
    assert labels_of(tmp_path / "out", "base")[0].startswith("n0")
    assert "Bird" in labels_of(tmp_path / "out", "novel")[0]
    with pytest.raises(InputError, match="name the folder of the latter"):
        prepare("mini2cub", tmp_path / "mini", tmp_path / "out")
    with pytest.raises(InputError, match="is one data set"):
        prepare("mini", tmp_path / "mini", tmp_path / "out", novel_source=tmp_path / "cub")


@pytest.mark.parametrize("name", list(RECIPES))
def test_an_empty_folder_is_refused_with_what_belongs_there(name: str, tmp_path: Path) -> None:
    for folder, match in [(tmp_path, "has no .*"), (tmp_path / "nowhere", "is no folder; ")]:
        with pytest.raises(InputError, match=f"{match}(put|unpack)"):
            prepare(name, folder, tmp_path / "out")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cub(tmp_path)
    places = ["--from", str(tmp_path), "--out", str(tmp_path / "out")]
    incomplete = ["--allow-incomplete", "--json", str(tmp_path / "f.json")]
    for name, options, code in [("cub", [], 2), ("cub", incomplete, 0), ("cubs", [], 2)]:
        with pytest.raises(SystemExit) as end:
            main(["data", "prepare", name, *places, *options])
        assert end.value.code == code
    printed = capsys.readouterr()
    assert "note: base has 100 classes and 100 pictures" in printed.out
    assert "did you mean" in printed.err
    assert json.loads((tmp_path / "f.json").read_text())["splits"]["val"]["classes"] == 50
