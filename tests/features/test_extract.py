"""Extraction: batches, kills, damaged parts, bad files, splits, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewcal.bank import BaseBank
from fewcal.cli import main
from fewcal.errors import FileFormatError, InputError
from fewcal.features import FeatureSet, load_split, parts
from fewcal.features.extract import bank_source, embed, extract, extractor_of, find_splits
from fewcal.features.extractors import Extractor, as_extractor
from fewcal.features.sources.pictures import find_pictures
from limits import largest_file


def colours(batch: np.ndarray) -> np.ndarray:
    """Mean colour, and something that depends on the whole batch: places of batches must not move."""
    means = batch.reshape(len(batch), -1, 3).mean(axis=1)
    return np.concatenate([means, np.full((len(batch), 1), means.sum())], axis=1)


def extractor() -> Extractor:
    return as_extractor(colours, name="colours", size=8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for c in ("ash", "oak", "yew"):
        (folder / c).mkdir(parents=True)
        for i in range(7):
            Image.fromarray(rng.integers(0, 256, (12, 9, 3), np.uint8)).save(folder / c / f"{i}.png")
    return folder


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def begin(photos: Path, target: Path, rows: int = 4) -> Path:
    """Stop a run after some rows, in batches of 2; return its folder of parts."""

    def stop(done: int, total: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(find_pictures(photos), extractor(), target, batch=2, progress=stop)
    return target.with_name(f".{target.stem}.part")


def resume(photos: Path, target: Path, batch: int = 2) -> list[int]:
    """Go on with a run, compare its file with that of a run without a break, and return how many rows it computed."""
    sizes: list[int] = []
    counting = replace(extractor(), embed=lambda batch: (sizes.append(len(batch)), colours(batch))[1])
    extract(find_pictures(photos), counting, target, batch=3, resume=True)  # the first start decides the batches
    whole = target.with_name("whole.npz")
    extract(find_pictures(photos), extractor(), whole, batch=batch)
    assert target.read_bytes() == whole.read_bytes()
    return sizes


def test_extract_writes_a_feature_file_and_nothing_else(photos: Path, tmp_path: Path) -> None:
    items = find_pictures(photos)
    facts = extract(items, extractor(), tmp_path / "out" / "base.npz", batch=4)
    assert (facts["rows"], facts["classes"], facts["features"], facts["skipped"]) == (21, 3, 4, [])
    split = load_split(facts["file"], labelled=True)
    assert split.classes == ["ash", "oak", "yew"]
    assert np.array_equal(split.features, embed(items, extractor(), batch=4)[0])
    assert extractor_of(facts["file"]) == extractor().stamp
    assert bank_source(split) == f"{extractor().stamp} {split.fingerprint()}"
    with np.load(facts["file"]) as file:
        assert file["names"].tolist() == items.names
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["base.npz"]
    halved = extract(items, extractor(), tmp_path / "half.npz", dtype="float16")
    assert load_split(halved["file"]).features.dtype == np.float16


@pytest.mark.parametrize("rows", [2, 8, 21])
def test_extract_resumed_gives_the_same_bytes(photos: Path, tmp_path: Path, rows: int) -> None:
    items, target = find_pictures(photos), tmp_path / "x.npz"
    assert begin(photos, target, rows).is_dir()
    assert not target.exists()
    with pytest.raises(InputError, match=r"holds an unfinished run of x.npz; continue it with --resume"):
        extract(items, extractor(), target)
    assert sum(resume(photos, target)) == 21 - rows
    assert extract(items, extractor(), target, resume=True)["rows"] == 21
    assert not list(tmp_path.glob(".*"))


def test_extract_killed_and_resumed_gives_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    code = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r}); sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from dataclasses import replace
        from pathlib import Path
        import test_extract as t
        from fewcal.features import parts
        parts.SAVE_SECONDS = 0.0
        calls = []
        def slow(batch):
            calls.append(len(batch))
            if len(calls) > 4:
                time.sleep(600)
            return t.colours(batch)
        model = replace(t.extractor(), embed=slow)
        t.extract(t.find_pictures(Path({str(photos)!r})), model, {str(tmp_path / "k.npz")!r}, batch=4)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    for _ in range(600):
        if len(list((tmp_path / ".k.part").glob("*.npz"))) == 4:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert resume(photos, tmp_path / "k.npz", batch=4) == [4, 1]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "foreign"])
def test_extract_after_damage_computes_those_batches_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(parts, "SAVE_SECONDS", 0.0)
    second = sorted(begin(photos, tmp_path / "x.npz").iterdir())[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 64
    if damage == "foreign":
        np.savez(second, features=np.zeros(3))
    else:
        second.write_bytes({"flipped": bytes(data), "cut": bytes(data[:150]), "empty": b""}[damage])
    assert sum(resume(photos, tmp_path / "x.npz")) == 19, "the rows of the first part are there"


def test_extract_on_a_full_disk_is_an_error_and_resumes(photos: Path, tmp_path: Path) -> None:
    items = find_pictures(photos)
    with (
        largest_file(160),
        pytest.raises(InputError, match=r"cannot write .*\.x\.part.*: File too large; .* make room"),
    ):
        extract(items, extractor(), tmp_path / "x.npz", batch=2)
    extract(items, extractor(), tmp_path / "x.npz", batch=2, resume=True)
    extract(items, extractor(), tmp_path / "whole.npz", batch=2)
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_unreadable_items_are_listed_together_and_the_rest_is_kept(photos: Path, tmp_path: Path) -> None:
    good = (photos / "ash" / "1.png").read_bytes()
    for name in ("ash/1.png", "yew/6.png"):
        (photos / name).write_bytes(good[:60])
    items, target = find_pictures(photos), tmp_path / "x.npz"
    with pytest.raises(InputError, match=r"2 of 21 cannot be used.*ash/1.png.*yew/6.png"):
        extract(items, extractor(), target, batch=4)
    listing = (tmp_path / "x.unreadable.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in listing] == ["ash/1.png", "yew/6.png"]
    (photos / "ash" / "1.png").write_bytes(good)
    facts = extract(items, extractor(), target, batch=4, resume=True, skip_bad=True)
    assert facts["rows"] == 20
    assert [s.split(" ")[0] for s in facts["skipped"]] == ["yew/6.png"]
    assert not (tmp_path / "x.unreadable.txt").exists()
    extract(items, extractor(), tmp_path / "at once.npz", batch=4, skip_bad=True)
    assert target.read_bytes() == (tmp_path / "at once.npz").read_bytes()
    with pytest.raises(InputError, match="1 of 21 cannot be used"):
        embed(items, extractor())
    with pytest.warns(UserWarning, match="left out 1 of 21: yew/6.png"):
        rows, kept = embed(items, extractor(), skip_bad=True)
    assert len(rows) == len(kept) == 20


def test_sources_without_one_readable_item_are_refused_even_when_skipping(tmp_path: Path) -> None:
    (tmp_path / "p" / "cat").mkdir(parents=True)
    (tmp_path / "p" / "cat" / "a.png").write_bytes(b"x")
    items = find_pictures(tmp_path / "p")
    for call in (
        lambda: extract(items, extractor(), tmp_path / "x.npz", skip_bad=True),
        lambda: embed(items, extractor(), skip_bad=True),
    ):
        with pytest.raises(InputError, match="1 of 1 cannot be used"):
            call()


def test_batches_computed_side_by_side_are_the_same(photos: Path, tmp_path: Path) -> None:
    (photos / "oak" / "3.png").write_bytes(b"x")
    items, alone = find_pictures(photos), extractor()
    several = replace(alone, concurrent=True)
    seen: list[int] = []
    for name, model in (("one", alone), ("two", several)):
        extract(items, model, tmp_path / f"{name}.npz", batch=2, skip_bad=True, progress=lambda n, _: seen.append(n))
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert seen == [*range(2, 21, 2), 21] * 2
    nan = replace(several, embed=lambda batch: np.full((len(batch), 4), np.nan))
    with pytest.raises(InputError, match=r"gave NaN or infinity for ash/0.png"):
        embed(items, nan, batch=2)
    broken = replace(several, embed=lambda batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        embed(items, broken, batch=2)


def test_runs_of_other_things_are_not_resumed(photos: Path, tmp_path: Path) -> None:
    items, target = find_pictures(photos), tmp_path / "x.npz"
    other = as_extractor(colours, name="other", size=8)
    extract(items, extractor(), target)
    begin(photos, tmp_path / "y.npz")
    (tmp_path / "z.npz").write_bytes(b"x")
    for what, model, name, again, match in [
        (items, extractor(), "x", False, "is there already"),
        (items, other, "x", True, "begun with another extractor"),
        (items.take([1]), extractor(), "x", True, "begun with other pictures"),
        (items, other, "y", True, "begun with another extractor"),
        (items, extractor(), "z", True, "cannot be read as npz"),
    ]:
        with pytest.raises((InputError, FileFormatError), match=match):
            extract(what, model, tmp_path / f"{name}.npz", resume=again)


def test_wrong_settings_are_refused_and_leave_nothing(photos: Path, tmp_path: Path) -> None:
    items = find_pictures(photos)
    for settings, match in [({"batch": 0}, "batch=0"), ({"workers": 0}, "workers=0"), ({"dtype": "int8"}, "dtype")]:
        with pytest.raises(InputError, match=match):
            extract(items, extractor(), tmp_path / "x.npz", **settings)
    for target, match in [(tmp_path / "x.parquet", "npz"), (photos / "ash" / "0.png" / "x.npz", "cannot write")]:
        with pytest.raises(InputError, match=match):
            extract(items, extractor(), target)
    with pytest.raises(InputError, match=r"takes texts and .* holds pictures"):
        embed(items, as_extractor(lambda t: [[1.0]] * len(t), name="t", kind="text"))
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_a_target_has_one_owner(photos: Path, tmp_path: Path) -> None:
    items, target, refused = find_pictures(photos), tmp_path / "x.npz", []

    def second(done: int, total: int) -> None:
        with pytest.raises(InputError, match=r"x\.npz is in use by process") as caught:
            extract(items, as_extractor(colours, name="other", size=8), target, resume=True)
        refused.append(caught)

    extract(items, extractor(), target, progress=second)
    assert refused
    assert [p.name for p in tmp_path.glob("*x*")] == ["x.npz"]


# ---- splits ---------------------------------------------------------------------------------------------------------


def test_splits_come_from_folders_lists_and_packs(photos: Path, tmp_path: Path) -> None:
    assert list(find_splits(photos, "picture")) == ["features"]
    tree = tmp_path / "tree"
    for split, name in [("base", "ash"), ("val", "oak"), ("novel", "yew")]:
        (tree / split).mkdir(parents=True)
        (photos / name).rename(tree / split / name)
    found = {k: v.classes for k, v in find_splits(tree, "picture").items()}
    assert found == {"base": ["ash"], "val": ["oak"], "novel": ["yew"]}
    rows = [f"{p},{p.parent.name},{p.parent.parent.name}" for p in sorted(tree.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    counts = {k: len(v) for k, v in find_splits(tmp_path / "list.csv", "picture").items()}
    assert counts == {"base": 7, "val": 7, "novel": 7}
    (tmp_path / "lists" / "images").mkdir(parents=True)
    for split in ("base", "novel"):
        lines = "\n".join(r for r in rows if r.endswith(split))
        (tmp_path / "lists" / f"my_{split}.csv").write_text(f"path,label,split\n{lines}")
    assert list(find_splits(tmp_path / "lists", "picture")) == ["base", "novel"]
    (tmp_path / "lists" / "base.csv").write_text("")
    with pytest.raises(InputError, match=r"holds both base.csv and my_base.csv; keep one"):
        find_splits(tmp_path / "lists", "picture")
    # A class may be called like a split, beside others.
    (tree / "elm").mkdir()
    (tree / "base" / "ash" / "0.png").rename(tree / "elm" / "0.png")
    assert find_splits(tree, "picture")["features"].classes == ["base", "elm", "novel", "val"]


def test_wrong_splits_are_refused(photos: Path, tmp_path: Path) -> None:
    file, row = tmp_path / "list.csv", f"{photos / 'ash' / '0.png'},a"
    for rows, match in [
        (f"{row},train\n", "split 'train' is unknown"),
        (f"{row},base\n{row},novel\n", "class 'a' is in both base and novel"),
    ]:
        file.write_text(f"path,label,split\n{rows}")
        with pytest.raises(InputError, match=match):
            find_splits(file, "picture")


# ---- the command ----------------------------------------------------------------------------------------------------


def test_command_goes_from_pictures_to_a_bank(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewcal.features.extractors.get_extractor", lambda *a: extractor())
    out = tmp_path / "features"
    assert run("extract", photos, "--out", out, "--split", "base", "--json", tmp_path / "f.json") == 0
    assert "21" in capsys.readouterr().out
    assert json.loads((tmp_path / "f.json").read_text())["files"][0]["rows"] == 21
    assert FeatureSet.load(out).base is not None
    assert run("extract", photos, "--out", out, "--split", "base", "--resume", "--quiet") == 0
    assert run("extract", photos, "--out", out, "--split", "base") == 2
    assert run("extract", photos, "--out", out, "--split", "test") == 2
    assert run("extract", photos, "--out", tmp_path / "all", "--unlabelled", "-q") == 0
    assert load_split(tmp_path / "all" / "features.npz").rows == 21
    assert run("bank", "build", out, "--out", tmp_path / "bank.safetensors", "-q") == 0
    assert str(BaseBank.load(tmp_path / "bank.safetensors").source).startswith("colours@")


def test_command_leaves_out_an_empty_text_with_skip_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("body,topic\nbread and butter,food\n  ,food\nrain and wind,weather\n")
    columns = ("--text-column", "body", "--label-column", "topic", "-e", "wordllama", "--out", tmp_path)
    assert run("extract", tmp_path / "t.csv", *columns) == 2
    assert "t.csv: text 2 is empty" in capsys.readouterr().err
    assert run("extract", tmp_path / "t.csv", *columns, "--resume", "--skip-bad") == 0
    assert load_split(tmp_path / "features.npz").classes == ["food", "weather"]
