"""Texts from CSV, JSON lines, plain text and folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fewcal.errors import FileFormatError, InputError
from fewcal.features.sources.texts import find_texts


def test_csv_and_json_lines_hold_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('Text,label\n"один, два",числа\nこんにちは,挨拶\n', encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(
        '{"text": "один, два", "label": "числа", "id": 1}\n{"text": "こんにちは", "label": "挨拶"}\n', encoding="utf-8"
    )
    csv, lines = find_texts(tmp_path / "a.csv"), find_texts(tmp_path / "a.jsonl")
    assert csv.texts == lines.texts == ["один, два", "こんにちは"]
    assert csv.labels == lines.labels == ["числа", "挨拶"]
    assert csv.load(1) == "こんにちは"
    assert csv.names == ["a.csv: text 1", "a.csv: text 2"]
    assert csv.take([1]).texts == ["こんにちは"]
    assert csv.fingerprint() != csv.take([1]).fingerprint()


def test_other_columns_splits_and_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Body,Topic,split\nx,t,base\ny,u,novel\n")
    found = find_texts(tmp_path / "a.csv", text="Body", label="Topic")
    assert (found.texts, found.labels, found.splits) == (["x", "y"], ["t", "u"], ["base", "novel"])
    (tmp_path / "b.txt").write_text("one\n\nthree\n\n")
    plain = find_texts(tmp_path / "b.txt", labelled=False)
    assert plain.texts == ["one", "three"]
    assert plain.labels is None
    (tmp_path / "c.csv").write_text("text,label\nx,\n  ,y\n")
    some = find_texts(tmp_path / "c.csv", labelled=False)
    assert some.labels is None
    with pytest.raises(InputError, match=r"c.csv: text 2 is empty"):
        some.load(1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_come_from_the_first_bytes(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_text("text\tlabel\nça va\tgrün\n", encoding=encoding)
    found = find_texts(tmp_path / "a.csv")
    assert (found.texts, found.labels) == (["ça va"], ["grün"])
    (tmp_path / "b.txt").write_text("ça va\r\n", encoding=encoding)
    assert find_texts(tmp_path / "b.txt", labelled=False).texts == ["ça va"]


def test_empty_lines_are_no_texts(tmp_path: Path) -> None:
    for name, line in {"a.txt": "x", "b.csv": "text\nx", "c.jsonl": '{"text": "x"}', "d/e.txt": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"\n{line}\n\n{line}\n \n" if name != "b.csv" else f"\n{line}\n\nx\n")
        found = find_texts(tmp_path / name if "/" not in name else tmp_path / "d", labelled=False)
        assert found.texts == ["x", "x"], name


def test_a_class_is_a_file_or_a_folder_of_files(tmp_path: Path) -> None:
    for place, content in {"joy/a.txt": "hurray\nyes\n", "joy/b.txt": "at last\n", "grief/.x.txt": "no\n"}.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(content)
    (tmp_path / "grief.txt").write_text("alas\n")
    found = find_texts(tmp_path)
    assert found.labels == ["grief", "joy", "joy", "joy"]
    assert (found.names[0], found.names[-1]) == ("grief.txt: line 1", "joy/b.txt: line 1")


@pytest.mark.parametrize(("delimiter", "name"), [(";", "a.csv"), ("\t", "a.csv"), ("\t", "a.tsv"), (",", "a.csv")])
def test_columns_as_spreadsheets_separate_them(tmp_path: Path, delimiter: str, name: str) -> None:
    rows = [["text", "label"], ["one, or; more", "y"], ["two\nlines", "z"]]
    with (tmp_path / name).open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    found = find_texts(tmp_path / name)
    assert found.texts == ["one, or; more", "two\nlines"]
    assert found.labels == ["y", "z"]


@pytest.mark.parametrize("before", ["", "\n", "\ufeff\r\n"])
def test_separators_of_columns_come_from_the_header_alone(tmp_path: Path, before: str) -> None:
    """Neither by an empty line before it, nor by a name in quotes."""
    (tmp_path / "a.csv").write_text(f'{before}"a, b, or c";text;label\n1;x, or y;z\n', encoding="utf-8", newline="")
    found = find_texts(tmp_path / "a.csv")
    assert (found.texts, found.labels) == (["x, or y"], ["z"])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", "label\nx\n", "no column 'text'"),
        ("a.csv", "text\nx\n", "no column 'label' .*name the columns with --text-column and --label-column"),
        ("a.csv", "text,label\nx,\n", "text 1 has no label"),
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", "[1]", "line 1 is no object"),
        ("a.jsonl", '{"text": "x"}', "line 1 has no 'label'"),
        ("a.jsonl", '{"text": "x", "label": "y"}\n\n{"label": "y"}', "line 3 has no 'text'"),
        ("a.csv", "text,label\nx, or y,z\n", "row 2 has 3 fields and the header 2; put a text .* between quotes"),
        ("a.jsonl", "", "is empty"),
        ("a.txt", "x", "has no labels"),
        ("a.doc", "x", "no source of texts"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, match: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises((InputError, FileFormatError), match=match):
        find_texts(tmp_path / name)


def test_places_without_texts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no .txt files"):
        find_texts(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        find_texts(tmp_path / "no.csv")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        find_texts(tmp_path / "latin.txt", labelled=False)


def test_only_line_ends_end_a_text(tmp_path: Path) -> None:
    odd = "one\u2028still one\x0c\u0085and on"
    plain = tmp_path / "a.txt"
    plain.write_bytes(f"{odd}\r\ntwo\rthree\n\n".encode())
    assert find_texts(plain, labelled=False).texts == [odd, "two", "three"]
    rows = tmp_path / "a.jsonl"
    rows.write_text("".join(json.dumps({"text": odd, "label": c}, ensure_ascii=False) + "\n" for c in "ab"))
    assert find_texts(rows).texts == [odd, odd]
