"""From a few pictures or texts to answers, with and without a bank."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fewcal import FewShotClassifier
from fewcal.apply.classify import classify
from fewcal.apply.predict import accuracy, by_doubt, in_words, write_predictions
from fewcal.apply.reading import Reading, check_same_extractor
from fewcal.apply.saved import fit_model
from fewcal.bank import BaseBank
from fewcal.cli import main
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features.extract import embed
from fewcal.features.extractors import Extractor, as_extractor
from fewcal.features.sources.kinds import default_extractor, kind_of
from fewcal.features.sources.pictures import find_pictures

HUES = {"leaf": (40, 160, 50), "sky": (70, 120, 220), "brick": (170, 60, 40)}


def histogram(batch: np.ndarray) -> np.ndarray:
    """How much of each of 27 colours a picture has: features ≥ 0, as those of a network."""
    bins = (batch // 86).astype(int) @ np.array([9, 3, 1])
    return np.stack([np.bincount(b.ravel(), minlength=27) / b.size for b in bins])


def colours() -> Extractor:
    return as_extractor(histogram, name="colours", size=16)


def picture(colour: tuple[int, int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).normal(0, 30, (20, 24, 3))
    return Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture
def album(tmp_path: Path) -> Path:
    for c, (name, colour) in enumerate(HUES.items()):
        for kind, count in [("photos", 3), ("new", 6)]:
            folder = tmp_path / kind / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture(colour, 100 * c + i + (50 if kind == "new" else 0)).save(folder / f"{i}.png")
    return tmp_path


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    for c in range(8):
        folder = tmp_path / "world" / f"thing {c}"
        folder.mkdir(parents=True)
        colour = tuple(int(v) for v in rng.integers(20, 230, 3))
        for i in range(8):
            picture(colour, 1000 + 10 * c + i).save(folder / f"{i}.png")
    items = find_pictures(tmp_path / "world")
    rows, _ = embed(items, colours())
    made = BaseBank().fit(rows, items.labels)
    made.source = f"{colours().stamp} 0"
    return made.save(tmp_path / "bank.safetensors")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def test_none_of_these_is_counted_and_is_no_wrong_answer(album: Path, bank: Path) -> None:
    """Rejected items are told apart from wrong answers, those of other classes from both."""
    other = album / "new" / "lilac"
    other.mkdir()
    for i in range(4):
        picture((200, 160, 220), 500 + i).save(other / f"{i}.png")
    whole = classify(album / "photos", album / "new", colours(), bank=bank, each=True)
    assert whole.truth is None  # some are of no class of the support, and all get one
    assert whole.rejected is None
    assert whole.in_words() == []
    answers = classify(album / "photos", album / "new", colours(), bank=bank, each=True, reject=0.5)
    others = answers.table["outlier_pvalue"]
    limit = float(np.median(others))
    answers = classify(album / "photos", album / "new", colours(), bank=bank, each=True, reject=limit)
    given, truth = answers.table["prediction"], np.array(answers.truth, object)
    away = given == "none of these"
    assert 0 < away.sum() < len(answers) == 22
    assert answers.rejected == away.sum()
    assert answers.accuracy == pytest.approx((given == truth)[~away].mean())
    known = (truth != "lilac") & away
    assert answers.in_words()[:2] == [
        f"{away.sum()} of 22 were answered 'none of these', {known.sum()} of which are of one of the classes by their "
        "names",
        f"{((truth == 'lilac') & ~away).sum()} of 4 of other classes got an answer",
    ]
    right, answered = (given == truth)[~away].sum(), (~away).sum()
    assert answers.in_words()[2].startswith(f"{right} of {answered} answers are right ({answers.accuracy:.1%})")
    answers.write_html(album / "sheet.html")
    page = (album / "sheet.html").read_text(encoding="utf-8")
    assert f"{away.sum()} of 22 were answered" in page
    assert page.count("⚠ is ") == ((given != truth) & ~away).sum()


def test_nothing_is_warned_of_without_a_bank(album: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classify(album / "photos", album / "new", extractor=colours())
    assert found.method == "support-only, no base classes"


def test_plain_and_with_a_bank(album: Path, bank: Path) -> None:
    for place in (None, bank):
        answers = classify(album / "photos", album / "new", colours(), bank=place)
        assert len(answers) == 18
        assert answers.accuracy == 1.0
        assert answers.counts() == {"brick": 6, "leaf": 6, "sky": 6}
        p = np.stack([answers.table[f"p({c})"] for c in answers.support.classes])
        np.testing.assert_allclose(p.sum(axis=0), 1, atol=1e-5)
        for item, name, first, second, next_ in answers.rows():
            assert name == item.split("/")[0]
            assert first >= next_
            assert second != name
    assert "8 base classes" in answers.method


def test_three_right_answers_are_no_certainty(album: Path) -> None:
    answers = classify(album / "photos", album / "new", colours())
    assert answers.table["probability"].max().round(4) < 1


def test_the_sheet_and_the_table_are_whole(album: Path) -> None:
    answers = classify(album / "photos", album / "new", colours())
    answers.write_html(album / "sheet.html")
    page = (album / "sheet.html").read_text(encoding="utf-8")
    assert page.count("<img") == 18 + 9
    assert "18 of 18 answers are right (100.0%)" in page
    answers.write_csv(album / "p.csv")
    with (album / "p.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["item"] == "brick/0.png"
    assert rows[0]["prediction"] == "brick"
    answers.write_csv(album / "p.parquet")


def test_strangers_are_none_of_these(album: Path, bank: Path) -> None:
    odd = album / "odd"
    odd.mkdir()
    picture((250, 240, 20), 7).save(odd / "yellow.png")
    picture(HUES["sky"], 8).save(odd / "sky.png")
    known, stranger = classify(album / "photos", odd, colours(), bank=bank, reject=0.5).table["outlier_pvalue"]
    assert known > stranger
    answers = classify(album / "photos", odd, colours(), bank=bank, reject=(known + stranger) / 2)
    assert answers.table["prediction"].tolist() == ["sky", "none of these"]
    assert answers.truth is None
    assert answers.accuracy is None
    assert answers.counts()["none of these"] == 1
    # No class has the probability of "none of these"; the one that would have been the answer is named beside it.
    *_, (item, answer, p, best, q) = by_doubt(answers.rows())
    assert (item, answer, np.isnan(p)) == ("yellow.png", "none of these", True)
    assert q == answers.table["probability"][1] == answers.table[f"p({best})"][1]
    answers.write_html(album / "s.html")
    page = (album / "s.html").read_text(encoding="utf-8")
    assert f"nearest is {best} {100 * q:.0f}%; yellow.png" in page
    assert "nan" not in page.partition("<main")[2]
    table = classify(album / "photos", odd, colours(), reject=0.05).table
    assert table["prediction"].tolist() == ["sky", "none of these"]


def test_a_bank_of_another_extractor_is_refused(bank: Path) -> None:
    other = as_extractor(histogram, name="other", size=16)
    loaded = BaseBank.load(bank)
    with pytest.raises(InputError, match=r"the bank was made with colours@.* and the extractor is other@"):
        check_same_extractor(loaded, other)
    loaded.source = None
    narrow = as_extractor(lambda b: histogram(b)[:, :5], name="narrow", size=16)
    with pytest.raises(InputError, match="27 features and narrow gives 5"):
        check_same_extractor(loaded, narrow)
    with pytest.warns(FewcalWarning, match="does not name its extractor"):
        check_same_extractor(loaded, other)
    loaded.source = f"{other.stamp} 0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_same_extractor(loaded, other)


def test_bad_input(album: Path) -> None:
    one = album / "one"
    (one / "leaf").mkdir(parents=True)
    picture(HUES["leaf"], 0).save(one / "leaf" / "a.png")
    with pytest.raises(InputError, match="has one class only, 'leaf'"):
        classify(one, album / "new", colours())
    with pytest.raises(InputError, match="has no labels"):
        classify(
            find_pictures(album / "new", labelled=False).take([0]).__class__(["x"], None, None, "s"), one, colours()
        )
    (album / "new" / "sky" / "0.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"sky/0.png cannot be read.*"):
        classify(album / "photos", album / "new", colours())
    assert len(classify(album / "photos", album / "new", colours(), reading=Reading(skip_bad=True))) == 17
    for i in range(3):
        (album / "photos" / "sky" / f"{i}.png").write_bytes(b"x")
    with pytest.raises(InputError, match="no example of class 'sky' can be read"):
        classify(album / "photos", album / "new", colours(), reading=Reading(skip_bad=True))


def test_examples_that_are_classified_themselves_are_told(album: Path) -> None:
    with pytest.warns(FewcalWarning, match="the examples themselves are classified"):
        classify(album / "photos", album / "new" / ".." / "photos", colours())


def test_other_items_of_the_source_of_the_examples_are_no_examples(
    album: Path, recwarn: pytest.WarningsRecorder
) -> None:
    every = find_pictures(album / "photos")
    answers = classify(every.take(range(0, len(every), 2)), every.take(range(1, len(every), 2)), colours())
    assert answers.truth is not None
    assert not [w for w in recwarn if "examples themselves" in str(w.message)]


def test_a_long_sheet_is_cut(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewcal.apply.contact_sheet.MAX_PICTURES", 4)
    answers = classify(album / "photos", album / "new", colours())
    answers.write_html(album / "sheet.html")
    page = (album / "sheet.html").read_text(encoding="utf-8")
    assert page.count("<img") == 4 + 9
    assert "first 4 of 18" in page


def test_command_with_pictures(
    album: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewcal.features.extractors.get_extractor", lambda *a: colours())
    monkeypatch.setattr("fewcal.cli.printing.MAX_PRINTED", 5)
    sources = ("--support", album / "photos", "--query", album / "new")
    assert run("classify", *sources, "--out", album / "p.csv", "--html", album / "s.html", "--json", album / "j") == 0
    printed = capsys.readouterr().out
    assert "the most doubtful first; 13 more" in printed
    assert "18 of 18 answers are right (100.0%)" in printed
    assert json.loads((album / "j").read_text())["answers"] == {"brick": 6, "leaf": 6, "sky": 6}
    assert run("classify", *sources, "-q") == 0
    assert run("classify", *sources, "--out", album / "p.xls") == 2
    assert run("classify", *sources, "--set", "k=2") == 2
    assert "method 'hgdc' has no parameter 'k'" in capsys.readouterr().err
    assert run("classify", "--support", album / "photos", "--query", album / "new" / "sky" / "0.png") == 0
    assert "sky" in capsys.readouterr().out


def test_command_with_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.csv").write_text(
        "text,label\nbread with butter and jam,food\nsoup with onions and beans,food\n"
        "rain and strong wind,weather\nsunny with some clouds,weather\n"
    )
    (tmp_path / "q.txt").write_text("pasta with tomato sauce\nsnow and cold wind in the evening\n")
    arguments = ("classify", "--support", tmp_path / "s.csv", "--query", tmp_path / "q.txt", "-e", "wordllama")
    assert run(*arguments, "--html", tmp_path / "s.html", "--out", tmp_path / "p.csv") == 0
    with (tmp_path / "p.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == ["food", "weather"]
    assert rows[0]["item"] == "pasta with tomato sauce"
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert "pasta with tomato sauce" in page
    assert "soup with onions" in page
    (tmp_path / "s.csv").write_text("text,label\nbread,food\n,food\nrain,weather\n")
    capsys.readouterr()
    assert run(*arguments) == 2
    told = capsys.readouterr().err
    assert "s.csv: text 2 is empty" in told
    assert "items" not in told  # before anything is computed


def test_two_shots_that_fail_when_left_out_are_no_coin() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 60))
    codes = np.repeat(np.arange(6), 2)
    classifier = FewShotClassifier().fit(centres[codes] + 2.5 * rng.normal(size=(12, 60)), codes)
    assert 0.25 < classifier.predict_proba(centres).max(axis=1).mean() < 0.99


def test_doubtful_answers_come_first(album: Path) -> None:
    answers = classify(album / "photos", album / "new", colours())
    leads = [p - q for _, _, p, _, q in by_doubt(answers.rows())]
    assert leads == sorted(leads)
    assert len(leads) == 18


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.txt", "one\n", "text"),
        ("a.jsonl", "{}\n", "text"),
        ("a.csv", "Text,label\nx,y\n", "text"),
        ("b.csv", "path,label\nx,y\n", "picture"),
        ("c.csv", "f0,f1\n1,2\n", "features"),
        ("d.csv", "id;Text;label\n1;x, or so;y\n", "text"),
        ("e.tsv", "path\tlabel\nx\ty\n", "picture"),
        ("a.parquet", "", "features"),
        ("a.JPG", "", "picture"),
    ],
)
def test_sources_tell_their_kind(tmp_path: Path, name: str, content: str, kind: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert kind_of(tmp_path / name) == kind


def test_folders_and_packs_tell_their_kind(album: Path, tmp_path: Path) -> None:
    assert kind_of(album / "photos") == "picture"
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "cats.txt").write_text("a cat\n", encoding="utf-8")
    assert kind_of(folder) == "text"
    (folder / "cats").mkdir()
    (folder / "cats.txt").rename(folder / "cats" / "some.txt")
    assert kind_of(folder) == "text"
    np.savez(tmp_path / "rows.npz", features=np.zeros((2, 3)))
    assert kind_of(tmp_path / "rows.npz") == "features"
    with pytest.raises(InputError, match="use `fewcal predict`"):
        default_extractor(tmp_path / "rows.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK no archive")
    with pytest.raises(FileFormatError, match="cannot be read as npz"):
        kind_of(tmp_path / "broken.npz")


def test_tables_without_texts_say_what_they_lack(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("bread,food\nrain,weather\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"has the columns bread, food and none named 'text'; .*or add a header line"):
        default_extractor(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="is empty; it needs a header"):
        default_extractor(tmp_path / "a.csv")


def test_texts_are_seen_as_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = as_extractor(lambda texts: [[t.count("sun"), t.count("rain"), 1] for t in texts], name="words", kind="text")
    asked = []

    def found(name: str, *_: object) -> Extractor:
        asked.append(name)
        return words

    monkeypatch.setattr("fewcal.features.extractors.get_extractor", found)
    (tmp_path / "examples.csv").write_text("note,class\nsun,dry\nrain,wet\n", encoding="utf-8")
    (tmp_path / "new.csv").write_text("note,class\nmuch rain,wet\nsun and sun,wet\n", encoding="utf-8")
    sources = ("--support", tmp_path / "examples.csv", "--query", tmp_path / "new.csv")
    columns = ("--text-column", "note", "--label-column", "class")
    assert run("classify", *sources, *columns, "--html", tmp_path / "sheet.html", "--quiet") == 0
    assert asked == ["minilm"]
    page = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    assert page.count('class="mark wrong"') == 1
    assert '<span class="mark wrong">dry ' in page  # the error is marked, with what it is
    assert "true class" in page


def test_a_bank_of_pictures_points_to_extract(album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bank", "build", album / "photos", "--out", album / "b.safetensors") == 2
    assert "fewcal extract" in capsys.readouterr().err
    (album / "topics.csv").write_text("text,label\nsun,dry\n", encoding="utf-8")
    assert run("bank", "build", album / "topics.csv", "--out", album / "b.safetensors") == 2
    assert "holds texts, and a bank is made of features" in capsys.readouterr().err


def test_a_class_without_an_example_that_can_be_read_is_no_part_of_a_classifier(album: Path) -> None:
    for place in (album / "photos" / "sky").iterdir():
        place.write_bytes(b"no picture")
    with pytest.raises(InputError, match="no example of class 'sky' can be read"), pytest.warns(FewcalWarning):
        fit_model(album / "photos", extractor="glyphs", reading=Reading(skip_bad=True))


def test_formulas_in_answers_are_texts_for_a_spreadsheet_unless_raw(tmp_path: Path) -> None:
    table = {
        "row": np.arange(2),
        "prediction": np.array(["=1+1", "b\udce9ton"], object),
        "p(=1+1)": np.array([-0.5, 1.0]),
    }
    write_predictions(table, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "row,prediction,p(=1+1)",
        "0,'=1+1,-0.5",
        "1,b\\udce9ton,1.0",
    ]
    write_predictions(table, tmp_path / "raw.csv", raw=True)
    assert (tmp_path / "raw.csv").read_text().splitlines()[1] == "0,=1+1,-0.5"
    write_predictions(table, tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet")["prediction"].to_pylist() == ["=1+1", "b\\udce9ton"]


def test_texts_are_extracted_without_naming_an_extractor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = as_extractor(lambda texts: [[len(t)] for t in texts], name="words", kind="text")
    monkeypatch.setattr("fewcal.features.extractors.get_extractor", lambda name, *_: {"minilm": words}[name])
    (tmp_path / "topics.csv").write_text("text,label\nsun,dry\nrains,wet\n", encoding="utf-8")
    assert run("extract", tmp_path / "topics.csv", "--split", "base", "--out", tmp_path / "features", "-q") == 0
    assert np.load(tmp_path / "features" / "base.npz")["features"].ravel().tolist() == [3, 5]


def test_none_of_these_with_examples_of_its_own_is_an_answer() -> None:
    table = {"prediction": np.array(["a", "none of these", "none of these"], object)}
    truth = ["a", "none of these", "a"]
    assert accuracy(table, truth) == pytest.approx(2 / 3)
    assert in_words(table, truth, ["a", "none of these"])[0].startswith("2 of 3 answers are right")
    assert accuracy(table | {"outlier_pvalue": np.array([0, 1, 1])}, truth) == 1
