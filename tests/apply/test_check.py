"""The check of examples: against scikit-learn's cross-validation, with wrong labels and copies, as command and page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from browser import AXE, Browser
from fewcal.apply.check import check_examples, near_duplicates, stratified_folds
from fewcal.apply.labelling import centre
from fewcal.cli import main
from fewcal.errors import InputError
from fewcal.features import FeatureSplit
from studio_project import write_picture

SCENES = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 200), "grey": (120, 120, 120)}


def clouds(shots: int, classes: int = 4, spread: float = 0.8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, 6))
    codes = np.repeat(np.arange(classes), shots)
    return means[codes] + spread * rng.normal(size=(len(codes), 6)), np.array(list("abcdefgh"))[codes]


class TestCheckExamples:
    @pytest.mark.parametrize("folds", [3, 10])
    def test_answers_are_those_of_cross_validation(self, folds: int) -> None:
        x, y = clouds(8)
        found = check_examples(x, y, LogisticRegression, folds=folds)
        split = PredefinedSplit(stratified_folds(np.unique(y, return_inverse=True)[1], [], folds))
        answers = cross_val_predict(LogisticRegression(), x, y, cv=split)
        assert found.confusion.tolist() == confusion_matrix(y, answers).tolist()
        assert [one.row for one in sorted(found.suspects, key=lambda s: s.row)] == np.flatnonzero(answers != y).tolist()
        assert found.accuracy == np.mean(answers == y)
        for one, row in zip(found.classes, found.confusion, strict=True):
            assert one.recall == row[ord(one.name) - ord("a")] / 8

    def test_wrong_labels_lead_the_suspects(self) -> None:
        x, y = clouds(10, spread=0.3)
        wrong = [3, 17, 31]
        y[wrong] = ["b", "c", "a"]
        found = check_examples(x, y, lambda: LogisticRegression(C=10))
        assert sorted(one.row for one in found.suspects[:3]) == wrong
        assert all(one.likely for one in found.suspects[:3])
        assert {one.row: one.answer for one in found.suspects[:3]} == {3: "a", 17: "b", 31: "d"}

    def test_classes_of_one_example_are_never_tested_and_need_one_most(self) -> None:
        x, y = clouds(6, spread=0.1)
        x, y = np.vstack([x, [[9.0] * 6]]), np.append(y, "lone")
        found = check_examples(x, y, LogisticRegression)
        assert found.tested == 24
        assert [(c.name, c.recall) for c in found.classes if not c.tested] == [("lone", None)]
        assert found.needs[0] == "lone"
        pairs = check_examples(x[[0, 6]], y[[0, 6]], LogisticRegression)
        assert (pairs.accuracy, pairs.tested) == (None, 0)

    def test_copies_share_a_fold_and_do_not_answer_for_each_other(self) -> None:
        rng = np.random.default_rng(5)
        x, y = rng.normal(size=(12, 40)), np.array(list("ab") * 6)  # labels without a meaning
        x, y = np.repeat(x, 2, axis=0) + 1e-3 * rng.normal(size=(24, 40)), np.repeat(y, 2)
        found = check_examples(x, y, LogisticRegression)
        assert found.duplicates == tuple((2 * i, 2 * i + 1) for i in range(12))
        assert (found.accuracy or 0) < 0.8  # 1 where copies stay

    def test_class_of_copies_alone_is_not_tested(self) -> None:
        x, y = clouds(6, spread=0.3)
        x[:6] = x[0]
        assert check_examples(x, y, LogisticRegression).classes[0].tested == 0

    @pytest.mark.parametrize(
        ("labels", "folds", "message"),
        [("aaaa", 10, "have 1 class; a check takes two"), ("abab", 1, "must be 2 or more")],
    )
    def test_what_cannot_be_checked_is_refused(self, labels: str, folds: int, message: str) -> None:
        with pytest.raises(InputError, match=message):
            check_examples(np.eye(4), list(labels), LogisticRegression, folds=folds)

    def test_progress_counts_fits_and_may_end_the_check(self) -> None:
        x, y = clouds(4)
        seen: list[tuple[int, int]] = []
        check_examples(x, y, LogisticRegression, folds=4, progress=lambda done, total: seen.append((done, total)))
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]

        def give_up(done: int, total: int) -> None:
            raise InputError("changed")

        with pytest.raises(InputError, match="changed"):
            check_examples(x, y, LogisticRegression, progress=give_up)

    def test_record_is_plain_values(self) -> None:
        facts = check_examples(*clouds(5), LogisticRegression).to_dict()
        assert json.loads(json.dumps(facts)) == facts


class TestNearDuplicates:
    def test_copies_are_found_and_nothing_else(self) -> None:
        rng = np.random.default_rng(0)
        x = np.abs(rng.normal(size=(3000, 30)))  # of several blocks
        assert near_duplicates(centre(x)) == []
        x[[5, 2500]] = 3 * x[[1, 2]] + 1e-3
        x[2900] = 2 * x[1]
        assert [group.tolist() for group in near_duplicates(centre(x))] == [[1, 5, 2900], [2, 2500]]

    def test_rows_that_are_all_the_same_are_one_group(self) -> None:
        x = np.vstack([np.ones((5, 4)), np.eye(4)[:1]])
        assert [group.tolist() for group in near_duplicates(centre(x))] == [[0, 1, 2, 3, 4]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pictures of each colour; one of them lies in the folder of another, and one is there twice."""
    folder = tmp_path_factory.mktemp("check") / "photos"
    for c, (name, colour) in enumerate(SCENES.items()):
        for i in range(6):
            write_picture(folder / name / f"{i}.png", colour, 100 * c + i)
    (folder / "red" / "0.png").rename(folder / "blue" / "misplaced.png")
    (folder / "grey" / "copy.png").write_bytes((folder / "grey" / "1.png").read_bytes())
    return folder


class TestCommand:
    @staticmethod
    def run(*arguments: object) -> None:
        with pytest.raises(SystemExit) as end:
            main(["check", *map(str, arguments)])
        assert end.value.code == 0

    def test_pictures_are_checked_and_shown(
        self, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], browser: Browser
    ) -> None:
        page, facts = tmp_path / "check.html", tmp_path / "check.json"
        self.run(photos, "-e", "glyphs", "--html", page, "--json", facts)
        printed = capsys.readouterr().out
        assert "examples are answered correctly when they are left out" in printed
        assert "near duplicates: grey/1.png, grey/copy.png" in printed
        found = json.loads(facts.read_text(encoding="utf-8"))
        assert found["duplicates"] == [["grey/1.png", "grey/copy.png"]]
        assert [one["name"] for one in found["classes"]] == sorted(SCENES)
        for width in (400, 1280):
            shown = browser.open(page, width=width)
            assert shown.text("h2")[:3] == ["Recall by class", "Labels to look at", "Near duplicates"]
            assert shown.images()[1] == shown.overflow() == shown.contrast() == shown.errors == []
            assert AXE is None or shown.faults() == []
            shown.close()

    def test_texts_are_checked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        greet, leave = (
            ["good morning", "hello there", "good day to you"],
            ["good bye", "see you later", "until next time"],
        )
        rows = [*((t, "greeting") for t in greet), *((t, "leaving") for t in leave), ("farewell, see you", "greeting")]
        (tmp_path / "a.csv").write_text("text,label\n" + "".join(f'"{t}",{c}\n' for t, c in rows), encoding="utf-8")
        self.run(tmp_path / "a.csv", "--html", tmp_path / "check.html")
        assert "7 examples" in capsys.readouterr().out
        assert "farewell, see you" in (tmp_path / "check.html").read_text(encoding="utf-8")

    def test_features_are_checked_by_their_rows(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        x, y = clouds(10, spread=0.2)
        y[4] = "d"
        names, codes = np.unique(y, return_inverse=True)
        FeatureSplit(x.astype(np.float32), codes, names.tolist()).save(tmp_path / "rows.npz")
        self.run(tmp_path / "rows.npz", "--folds", 5, "--html", tmp_path / "check.html")
        assert "39 of 40 examples are answered correctly" in capsys.readouterr().out
        assert "4: d, rather a" in (tmp_path / "check.html").read_text(encoding="utf-8")
