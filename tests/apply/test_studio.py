"""The studio without a browser: what it keeps, what it answers, what it exports."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from fewcal._utils.atomic import atomic_path
from fewcal.apply.studio import Studio, StudioSettings, exports, intake, moment, project, views
from fewcal.apply.studio.answers import Prediction
from fewcal.apply.studio.intake import Limits, scratch_file
from fewcal.apply.studio.rescue import rescue
from fewcal.apply.studio.start import new_folder_note
from fewcal.apply.studio.store import Edit, Found, ProjectStore
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features.extractors import as_extractor
from limits import PATIENCE, largest_file
from studio_project import (
    COLOURS,
    Open,
    assign,
    colour_folder,
    embedded,
    ids,
    label_each,
    wait_until,
    write_picture,
)

OpenStore = Callable[[], ProjectStore]


def answers_by_name(studio: Studio) -> dict[str, str | None]:
    return {row.text or row.name: row.answer for row in views.export_rows(studio.answers())[0]}


def labels_by_text(studio: Studio) -> dict[str | None, str]:
    return {studio.store.item(i).text: studio.class_names[label] for i, label in studio.store.labels().items()}


class TestStore:
    def test_edits_are_undone_and_redone_in_order(self, open_store: OpenStore) -> None:
        store = open_store()
        store.add_items([Found("a.png"), Found("b.png")])
        store.record(Edit("class added", classes={1: (None, "cat")}))
        store.record(Edit("a → cat", labels={1: (None, 1)}))
        store.record(Edit("class removed", labels={1: (1, None)}, classes={1: ("cat", None)}))
        assert (store.classes(), store.labels(), store.history()) == ({}, {}, ("class removed", None))
        store.undo()
        assert (store.classes(), store.labels()) == ({1: "cat"}, {1: 1})
        store.undo()
        assert store.labels() == {}
        store.redo()
        assert store.labels() == {1: 1}
        store.record(Edit("b → cat", labels={2: (None, 1)}))
        assert store.redo() is None  # a new change ends what could be redone
        assert store.history() == ("b → cat", None)

    def test_undo_ends_at_the_beginning_and_gives_no_class_id_twice(self, open_store: OpenStore) -> None:
        store = open_store()
        assert store.undo() is None
        store.record(Edit("class added", classes={store.next_class_id(): (None, "cat")}))
        store.undo()
        assert (store.classes(), store.undo()) == ({}, None)
        assert store.next_class_id() == 2  # or redo of an older class could meet a newer one

    def test_labels_come_in_the_order_in_which_they_were_given(self, open_store: OpenStore) -> None:
        store = open_store()
        store.add_items([Found(f"{i}.png") for i in range(4)])
        for item in (3, 1, 2):
            store.record(Edit("label", labels={item: (None, 0)}))
        store.record(Edit("again", labels={3: (0, 1)}, classes={1: (None, "cat")}))
        assert list(open_store().labels().items()) == [(1, 0), (2, 0), (3, 1)]

    def test_second_process_is_refused_and_killed_one_loses_nothing(
        self, tmp_path: Path, open_store: OpenStore
    ) -> None:
        code = f"""
import os, signal
from pathlib import Path
from fewcal.apply.studio.store import Edit, Found, ProjectStore
store = ProjectStore(Path({str(tmp_path)!r}))
store.add_items([Found("a.png")])
store.record(Edit("class added", classes={{1: (None, "cat")}}))
store.record(Edit("label", labels={{1: (None, 1)}}))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(InputError, match="open in another studio"):
            open_store()
        process.kill()
        process.wait()
        store = open_store()
        assert (store.classes(), store.labels(), store.history()[0]) == ({1: "cat"}, {1: 1}, "label")

    def test_full_disk_is_an_error_and_changes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        store.add_items([Found("a.png")])
        full = store.path.with_name("studio.sqlite-wal").stat().st_size + 100
        with largest_file(full), pytest.raises(InputError, match="nothing has changed: make room"):
            store.record(Edit("class added", classes={1: (None, "cat")}))
        assert (store.classes(), store.history()) == ({}, (None, None))
        store.record(Edit("class added", classes={1: (None, "cat")}))
        assert store.classes() == {1: "cat"}

    def test_folder_that_vanishes_takes_no_change_until_it_is_back(self, tmp_path: Path) -> None:
        store = ProjectStore(tmp_path / "a")
        (tmp_path / "a").rename(tmp_path / "away")
        for made in (False, True):  # another folder of that name is not the project, either
            if made:
                (tmp_path / "a" / ".fewcal").mkdir(parents=True)
                (tmp_path / "a" / ".fewcal" / "studio.sqlite").touch()
            with pytest.raises(InputError, match="not there any more; nothing has changed"):
                store.record(Edit("class added", classes={1: (None, "cat")}))
        (tmp_path / "a").rename(tmp_path / "other")
        (tmp_path / "away").rename(tmp_path / "a")
        store.record(Edit("class added", classes={1: (None, "cat")}))
        assert (store.classes(), store.history()) == ({1: "cat"}, ("class added", None))
        store.close()
        with pytest.raises(InputError, match="is closed"):
            store.classes()

    def test_folder_that_cannot_be_written_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("here", encoding="utf-8")
        with pytest.raises(InputError, match=r"cannot write .*file/photos.*; choose a folder that you may write into"):
            ProjectStore(tmp_path / "file" / "photos")
        (tmp_path / "a" / ".fewcal" / "studio.sqlite").mkdir(parents=True)
        with pytest.raises(InputError, match=r"cannot write .*studio\.sqlite: Is a directory"):
            ProjectStore(tmp_path / "a")
        ProjectStore(tmp_path / "b").close()
        connect = sqlite3.connect

        def read_only(path: Path, **how: object) -> sqlite3.Connection:
            return connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)

        monkeypatch.setattr(sqlite3, "connect", read_only)
        with pytest.raises(InputError, match=r"cannot write .*sqlite .*allow to write"):
            ProjectStore(tmp_path / "b")

    def test_files_are_private_and_litter_is_swept(self, tmp_path: Path, open_studio: Open) -> None:
        home = tmp_path / ".fewcal"
        for place in (home / "x.tmp" / "folders.zip", home / ".bank.1.2.tmp", tmp_path / "dropped" / ".a.png.1.2.tmp"):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        (home / "studio.sqlite").touch(mode=0o644)
        (tmp_path / "mine.tmp").touch()  # of somebody else
        open_studio(tmp_path)
        assert [stat.S_IMODE(p.stat().st_mode) for p in home.glob("studio.sqlite*")] == [0o600, 0o600]
        assert sorted(p.name for p in tmp_path.rglob("*.tmp")) == ["mine.tmp"]

    def test_features_that_are_not_finite_are_computed_again(self, open_store: OpenStore) -> None:
        store = open_store()
        store.add_items([Found("a.png"), Found("b.png")])
        store.set_features({1: np.ones(3), 2: np.full(3, np.nan)}, {})
        assert store.features()[0] == [1]
        assert [item.name for item in store.waiting(5)] == ["b.png"]

    def test_features_that_come_too_late_bring_nothing_back(self, open_store: OpenStore) -> None:
        store = open_store()
        store.add_items([Found("a.png"), Found("b.png")])
        store.mark_gone([1])
        store.set_features({1: np.ones(3), 2: np.ones(3)}, {})
        assert [item.name for item in store.items()] == ["b.png"]
        assert store.features()[0] == [2]


class TestDamage:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        store = ProjectStore(tmp_path)
        store.add_items([Found(f"{i}.png") for i in range(40)])
        store.use_extractor("mean colour@1")
        store.set_features({i: np.full(100, i) for i in range(1, 41)}, {})
        store.record(Edit("classes", classes={1: (None, "robin"), 2: (None, "wren")}))
        store.record(Edit("labels", labels={i: (None, i % 3) for i in range(1, 31)}))
        store.close()
        return store.path

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE items SET state = 'unheard of'",
            "UPDATE items SET features = x'00000000' WHERE id = 3",
            "UPDATE items SET features = NULL WHERE id = 3",
            "UPDATE labels SET class = 77 WHERE turn = 1",
            "UPDATE labels SET item = 7777 WHERE turn = 1",
            "UPDATE history SET edit = '[1'",
            "INSERT INTO meta VALUES ('reject', 'x')",
            "DROP TABLE labels",
            "CREATE TRIGGER t AFTER INSERT ON labels BEGIN DELETE FROM labels; END",
        ],
    )
    def test_contents_that_cannot_be_are_refused_and_rescued(self, file: Path, statement: str) -> None:
        db = sqlite3.connect(file)
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(statement)
        db.commit()
        db.close()
        folder = file.parent.parent
        with pytest.raises(FileFormatError, match=r"is damaged .*`fewcal studio --rescue .*` saves what can be read"):
            ProjectStore(folder)
        assert rescue(folder).startswith("saved 40 items, 2 classes and ")
        store = ProjectStore(folder)
        assert 29 <= len(store.labels()) <= 30
        assert len(store.features()[0]) >= 39
        store.close()
        assert file.with_name("studio.damaged-1.sqlite").exists()

    def test_damaged_pages_cost_what_stood_on_them(self, file: Path) -> None:
        whole, folder, saved = file.read_bytes(), file.parent.parent, []
        for page in range(len(whole) // 4096):
            file.write_bytes(whole[: 4096 * page] + random.Random(page).randbytes(4096) + whole[4096 * (page + 1) :])
            with pytest.raises(FileFormatError, match="is damaged"):
                ProjectStore(folder)
            words = rescue(folder).split()
            saved.append([int(words[i]) for i in (1, 3, 6)])
            ProjectStore(folder).close()
        # Names stand on few pages; labels and classes twice, in their tables and in the history.
        items, classes, labels = np.array(saved).T
        assert (items >= 30).mean() > 0.9
        assert (classes == 2).all()
        assert (labels[items >= 30] >= 20).all()

    def test_foreign_and_newer_files_are_refused(self, tmp_path: Path, file: Path) -> None:
        db = sqlite3.connect(file)
        db.execute("PRAGMA user_version = 99")
        db.close()
        with pytest.raises(FileFormatError, match="upgrade fewcal"):
            ProjectStore(tmp_path)
        file.write_bytes(b"no database at all" * 200)
        with pytest.raises(FileFormatError, match="is damaged"):
            ProjectStore(tmp_path)
        assert rescue(tmp_path).startswith("saved 0 items")
        assert "whole; nothing to rescue" in rescue(tmp_path)
        with pytest.raises(InputError, match="is not there; nothing to rescue"):
            rescue(tmp_path / "elsewhere")

    def test_project_that_is_open_is_not_rescued(self, tmp_path: Path, file: Path) -> None:
        store = ProjectStore(tmp_path)
        with pytest.raises(InputError, match="open in another studio"):
            rescue(tmp_path)
        store.close()


class TestAnswers:
    def test_labels_become_answers(self, studio: Studio) -> None:
        assert studio.answers().probabilities is None
        label_each(studio)
        assert all(answer == name.partition("-")[0] for name, answer in answers_by_name(studio).items())
        state = views.state(studio)
        assert (len(state["items"]), sum("label" in item for item in state["items"])) == (18, 3)
        assert state["next"]
        assert not set(state["next"]) & set(studio.store.labels())

    def test_none_of_these_is_a_class_that_is_always_there(self, studio: Studio) -> None:
        made = label_each(studio)
        studio.remove_class(made["blue"])
        assign(studio, ids(studio, "blue")[:2], 0)
        answers = answers_by_name(studio)
        assert {answers[f"blue-{i}.png"] for i in range(6)} == {"none of these"}
        assert answers["red-3.png"] == "red"

    def test_accuracy_is_given_once_classes_are_found_and_only_then(self, studio: Studio) -> None:
        made, seen = {name: studio.add_class(name) for name in COLOURS}, []
        for i in range(4):
            for name in COLOURS:
                assign(studio, ids(studio, f"{name}-{i}"), made[name])
                seen.append(studio.answers().expected())
        assert seen[0] is None  # one class only
        assert all(one is not None and one.accuracy is None for one in seen[1:8])
        assert seen[-1] is not None
        assert seen[-1].accuracy == pytest.approx(1, abs=0.05)
        studio.add_class("purple")  # which has no example
        last = studio.answers().expected()
        assert last is not None
        assert last.accuracy is None

    def test_examples_are_checked_in_the_background(self, studio: Studio) -> None:
        made = label_each(studio, shots=4)
        assign(studio, ids(studio, "red-0"), made["blue"])
        wait_until(lambda: views.state(studio)["check"] is not None and studio.checked.labels == studio.store.labels())
        summary = views.state(studio)["check"]
        assert (summary["tested"], list(summary["otherwise"])) == (12, [str(ids(studio, "red-0")[0])])
        assert summary["otherwise"][str(ids(studio, "red-0")[0])][0] == made["red"]
        found = views.check(studio)
        assert found["right"] == summary["right"]
        assert [s["item"] for s in found["suspects"]] == ids(studio, "red-0")
        assert found["classes"][0]["name"] == "blue"
        assign(studio, ids(studio, "red-0"), made["red"])
        assert views.check(studio)["suspects"] == []  # of the labels as they are now

    def test_check_without_examples_finds_nothing(self, studio: Studio) -> None:
        assert views.check(studio) == {}

    def test_undo_brings_the_answers_back(self, studio: Studio) -> None:
        label_each(studio)
        before = views.state(studio)["items"]
        assign(studio, ids(studio, "red")[:1], studio.add_class("crimson"))
        assert views.state(studio)["items"] != before
        studio.undo()
        studio.undo()
        assert views.state(studio)["items"] == before

    def test_several_items_get_several_classes_in_one_step(self, studio: Studio) -> None:
        made = label_each(studio)
        wanted = {ids(studio, f"{name}-2")[0]: made[name] for name in COLOURS}
        studio.assign(wanted)
        assert views.state(studio)["undo"] == "3 items → red and green and blue"
        studio.undo()
        assert not set(wanted) & set(studio.store.labels())

    def test_labels_and_answers_of_a_page_are_of_one_moment(
        self, studio: Studio, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = label_each(studio)
        studio.undo()
        studio.answers()
        seen: list[dict[str, views.Json]] = []
        other = threading.Thread(target=lambda: seen.append(views.state(studio)))
        redo = studio.store.redo

        def slow_redo() -> Edit | None:
            edit = redo()
            other.start()  # another page looks while the label is written and its answers are not there yet
            other.join(timeout=0.3)
            return edit

        monkeypatch.setattr(studio.store, "redo", slow_redo)
        studio.redo()
        other.join()
        [state] = seen
        last = list(made.values())[-1]
        assert last in [item.get("label") for item in state["items"]]  # type: ignore[union-attr, call-overload]
        assert last in [item["answer"] for item in state["items"] if "label" not in item]  # type: ignore[union-attr, operator, call-overload, index]

    def test_fit_keeps_nothing_else_waiting_and_is_of_its_moment(
        self, studio: Studio, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = label_each(studio)
        begun, go = threading.Event(), threading.Event()
        predict = moment.predict_items

        def slow_predict(*arguments: object) -> Prediction | None:
            begun.set()
            assert go.wait(PATIENCE)
            return predict(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(moment, "predict_items", slow_predict)
        assign(studio, ids(studio, "red")[1:2], made["red"])
        seen: list[dict[str, views.Json]] = []
        page = threading.Thread(target=lambda: seen.append(views.state(studio)))
        page.start()
        assert begun.wait(PATIENCE)
        other = threading.Thread(target=lambda: assign(studio, ids(studio, "blue")[1:2], made["blue"]))
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive()
        assert studio.progress().stage == "idle"
        go.set()
        page.join(PATIENCE)
        counts = [sum("label" in item for item in state["items"]) for state in (*seen, views.state(studio))]  # type: ignore[union-attr, operator]
        assert counts == [4, 5]
        assert seen[0]["undo"] == "red-1.png → red"

    def test_answers_are_computed_once_for_the_same_labels(self, studio: Studio) -> None:
        made = label_each(studio)
        first = studio.answers()
        assert studio.answers().prediction is first.prediction
        studio.rename_class(made["red"], "crimson")
        renamed = studio.answers()
        assert renamed.prediction is not first.prediction
        assert renamed.similarity is first.similarity

    def test_each_start_is_another_session_whatever_the_clock(self, tmp_path: Path, open_studio: Open) -> None:
        sessions = set()
        for _ in range(3):
            studio = open_studio(tmp_path)
            sessions.add(views.state(studio)["session"])
        assert len(sessions) == 3

    def test_why_names_the_nearest_examples(self, studio: Studio) -> None:
        label_each(studio, shots=2)
        story = views.why(studio, ids(studio, "green")[4])
        assert story["answer"] == "green"
        assert [near["class"] for near in story["nearest"][:2]] == ["green", "green"]
        assert story["bases"] == []  # there is no bank
        assert sum(p for _, p in story["probabilities"]) == pytest.approx(1, abs=1e-3)

    def test_what_is_gone_is_neither_answered_nor_proposed(self, studio: Studio) -> None:
        made = label_each(studio)
        assign(studio, ids(studio, "red")[1:2], made["red"])
        studio.answers()
        for name in ("red-1.png", "blue-3.png"):
            (studio.folder / name).unlink()
        before = studio.revision
        assert studio.rescan() == 0
        assert studio.revision > before
        now = studio.answers()
        assert (len(now.moment.ids), len(now.moment.labels)) == (16, 3)
        assert set(now.suggested) <= set(now.moment.ids)


class TestClasses:
    def test_class_names_are_checked(self, studio: Studio) -> None:
        studio.add_class("  robin ")
        wrong = {
            "robin": "already",
            "": "needs a name",
            "a\nb": "control",
            "none of these": "already",
            "x" * 500: "120",
        }
        for name, message in wrong.items():
            with pytest.raises(InputError, match=message):
                studio.add_class(name)
        with pytest.raises(InputError, match="no class 77"):
            assign(studio, ids(studio, "red")[:1], 77)

    def test_folders_become_classes_in_one_step(self, tmp_path: Path, open_studio: Open) -> None:
        for c, name in enumerate((*COLOURS, "none of these")):
            for i in range(2):
                write_picture(tmp_path / name / f"{i}.png", COLOURS.get(name, (120, 120, 120)), 10 * c + i)
        write_picture(tmp_path / "loose.png", COLOURS["red"], 99)
        studio = open_studio(tmp_path)
        assert set(views.state(studio)["folders"]) == {*COLOURS, "none of these"}
        studio.take_folders()
        state = views.state(studio)
        assert {c["name"]: c["count"] for c in state["classes"]} == dict.fromkeys((*COLOURS, "none of these"), 2)
        assert (state["folders"], answers_by_name(studio)["loose.png"]) == ([], "red")
        studio.take_folders()  # a second click changes nothing, and is no step to be taken back
        studio.undo()
        assert (studio.store.labels(), studio.store.classes()) == ({}, {})
        # Labels and classes that a person gave stay.
        red = studio.add_class("red")
        assign(studio, ids(studio, "blue/0"), red)
        studio.take_folders()
        assert studio.store.labels()[ids(studio, "blue/0")[0]] == red
        assert sorted(studio.store.classes().values()) == sorted(COLOURS)

    def test_loose_pictures_are_no_classes(self, studio: Studio) -> None:
        assert views.state(studio)["folders"] == []
        with pytest.raises(InputError, match="name the classes instead"):
            studio.take_folders()

    def test_folders_of_text_files_are_classes(self, tmp_path: Path, open_texts: Open) -> None:
        for name, text in {"food/a.txt": "bread\nsoup", "weather/b.txt": "rain", "weather/deep/c.txt": "-"}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        studio = open_texts()
        assert [item.name for item in studio.store.items()] == ["food/a.txt: 1", "food/a.txt: 2", "weather/b.txt: 1"]
        studio.take_folders()
        assert list(labels_by_text(studio).values()) == ["food", "food", "weather"]

    def test_labels_of_files_become_classes_in_one_step(self, tmp_path: Path, open_texts: Open) -> None:
        rows = "Text;Label\nsun sun;dry\nrain;\nrain rain;<b>wet\nsun rain;none of these\n"
        (tmp_path / "a.csv").write_text(rows, encoding="utf-8")
        studio = open_texts()
        assert views.state(studio)["named"] == ["dry", "<b>wet", "none of these"]
        assert not studio.store.labels()  # no label until a person takes it
        studio.take_labels()
        expected = {"sun sun": "dry", "rain rain": "<b>wet", "sun rain": "none of these"}
        assert labels_by_text(studio) == expected
        assert views.state(studio)["named"] == []
        assert answers_by_name(studio)["rain"] == "<b>wet"
        # A file that comes later names more of the same classes and a new one; labels that a person gave stay.
        assign(studio, ids(studio, "a.csv: 1"), None)
        assign(studio, ids(studio, "a.csv: 1"), 2)
        studio.add_file("b.jsonl", b'{"text": "sun", "label": "dry"}\n{"text": "hail", "label": "ice"}\n')
        assert views.state(studio)["named"] == ["dry", "ice"]
        studio.take_labels()
        assert labels_by_text(studio) == expected | {"sun sun": "<b>wet", "sun": "dry", "hail": "ice"}
        assert studio.undo() == "4 labels → classes"
        assert labels_by_text(studio) == expected | {"sun sun": "<b>wet"}

    def test_labels_written_into_a_file_that_was_read_are_found(self, tmp_path: Path, open_texts: Open) -> None:
        (tmp_path / "a.csv").write_text("text\nsun\nrain\n", encoding="utf-8")
        studio = open_texts()
        with pytest.raises(InputError, match="no text names its class; give"):
            studio.take_labels()
        (tmp_path / "a.csv").write_text("text,label\nsun,dry\nrain,wet\n", encoding="utf-8")
        assert studio.rescan() == 0
        studio.take_labels()
        assert labels_by_text(studio) == {"sun": "dry", "rain": "wet"}


class TestPictures:
    def test_restart_finds_everything(self, tmp_path: Path, open_studio: Open) -> None:
        folder = colour_folder(tmp_path / "photos")
        first = open_studio(folder)
        label_each(first)
        before = views.state(first)["items"]
        first.close()
        batches = []

        def count(batch: np.ndarray) -> np.ndarray:
            batches.append(len(batch))
            return batch.reshape(len(batch), -1, 3).mean(axis=1)

        extractor = as_extractor(count, name="mean colour", size=8)
        batches.clear()
        assert views.state(open_studio(folder, extractor))["items"] == before
        assert batches == []  # features were kept

    def test_new_vanished_and_unreadable_files_are_noticed(self, tmp_path: Path, open_studio: Open) -> None:
        folder = colour_folder(tmp_path / "photos", each=2)
        (folder / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
        studio = open_studio(folder)
        [failed] = [item for item in studio.store.items() if item.state == "failed"]
        assert failed.name == "broken.jpg"
        assert "cannot be read" in (failed.error or "")
        (folder / "red-0.png").unlink()
        write_picture(folder / "more" / "red-9.png", COLOURS["red"], 7)
        assert studio.rescan() == 1
        names = [item.name for item in embedded(studio).store.items()]
        assert ("red-0.png" in names, "more/red-9.png" in names) == (False, True)
        studio.close()
        write_picture(folder / "broken.jpg", COLOURS["red"], 7)  # mended before the next start
        assert open_studio(folder).store.count("failed") == 0

    def test_picture_found_before_all_of_it_was_copied_is_read_again(self, tmp_path: Path, open_studio: Open) -> None:
        folder = colour_folder(tmp_path / "photos", each=1)
        whole = write_picture(tmp_path / "whole.png", COLOURS["red"], 7).read_bytes()
        studio = open_studio(folder)
        (folder / "new.png").write_bytes(whole[: len(whole) // 2])
        assert studio.rescan() == 1
        assert embedded(studio).store.count("failed") == 1
        assert studio.rescan() == 0
        assert studio.store.count("failed") == 1  # no work for a file that is as it was
        (folder / "new.png").write_bytes(whole)
        studio.rescan()
        assert (embedded(studio).store.count("failed"), studio.store.count("ready")) == (0, 4)

    def test_folder_that_is_away_loses_nothing(self, tmp_path: Path, open_studio: Open) -> None:
        studio = open_studio(colour_folder(tmp_path / "photos", each=1))
        (tmp_path / "photos").rename(tmp_path / "away")
        with pytest.raises(InputError, match="photos is not there any more; bring it back"):
            studio.rescan()
        assert len(studio.store.items()) == 3
        (tmp_path / "away").rename(tmp_path / "photos")
        assert studio.rescan() == 0

    def test_features_wait_for_room_on_the_disk(
        self, tmp_path: Path, open_studio: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        studio = open_studio(colour_folder(tmp_path / "photos", each=1))
        keep = studio.store.set_features

        def full(*_: object) -> None:
            raise InputError("cannot write: make room")

        monkeypatch.setattr(studio.store, "set_features", full)
        write_picture(studio.folder / "new.png", COLOURS["red"], 5)
        studio.rescan()
        wait_until(lambda: studio.progress().error == "cannot write: make room")
        monkeypatch.setattr(studio.store, "set_features", keep)
        write_picture(studio.folder / "newer.png", COLOURS["red"], 6)
        studio.rescan()
        assert embedded(studio).store.count("ready") == 5

    def test_features_of_two_extractors_never_meet(
        self, tmp_path: Path, open_studio: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = colour_folder(tmp_path / "photos", each=2)
        first = open_studio(folder)
        label_each(first)
        assert first.answers().prediction is not None
        first.close()
        go = threading.Event()

        def slow(batch: np.ndarray) -> np.ndarray:
            assert go.wait(PATIENCE)
            return batch.reshape(len(batch), -1)[:, :5]

        go.set()
        # Of the same name, so that only the loaded network shows that it is another one.
        other = as_extractor(slow, name="mean colour", size=8, fingerprint="another")
        monkeypatch.setattr(project, "as_extractor", lambda *_, **__: other)
        go.clear()
        write_picture(folder / "new.png", COLOURS["red"], 5)
        studio = open_studio(folder, start=False)
        studio.settings = StudioSettings(extractor="mean colour")
        studio.start()
        wait_until(lambda: studio.progress().stage == "working")
        between = studio.answers()
        assert (between.prediction, between.moment.ids) == (None, [])
        go.set()
        assert embedded(studio).answers().moment.x.shape == (7, 5)

    def test_another_extractor_makes_its_own_features(self, tmp_path: Path, open_studio: Open) -> None:
        folder = colour_folder(tmp_path / "photos", each=1)
        open_studio(folder).close()
        other = as_extractor(lambda x: x.reshape(len(x), -1)[:, :5], name="first pixels", size=8)
        assert open_studio(folder, other).moment().x.shape == (3, 5)

    def test_extractor_or_bank_of_other_things_is_refused_and_costs_nothing(
        self, tmp_path: Path, open_studio: Open
    ) -> None:
        folder = colour_folder(tmp_path / "photos", each=2)
        open_studio(folder).close()
        bank = BaseBank().fit(np.random.default_rng(0).random((20, 5)), np.repeat(np.arange(5), 4))
        cases = {
            r"minilm takes texts and .* holds pictures; leave out --extractor": StudioSettings(extractor="minilm"),
            "has 5 features": StudioSettings(bank=bank),
        }
        for message, settings in cases.items():
            studio = Studio(folder, settings)
            with pytest.raises(InputError, match=message):
                studio.start()
            assert studio.store.count("ready") == 6
            studio.close()
        bank.source = "other@1 rows"
        studio = Studio(folder, StudioSettings(bank=bank))
        with pytest.raises(InputError, match="made with other@1 and the extractor is mean colour"):
            studio.start()
        studio.close()

    def test_links_out_of_the_folder_are_passed_over(self, tmp_path: Path, open_studio: Open) -> None:
        write_picture(tmp_path / "private" / "secret.png", COLOURS["red"], 0)
        folder = colour_folder(tmp_path / "photos", each=1)
        (folder / "link").symlink_to(tmp_path / "private")
        assert all("secret" not in item.name for item in open_studio(folder).store.items())

    def test_names_that_are_not_utf8_are_left_out_or_escaped(
        self, tmp_path: Path, open_studio: Open, open_texts: Open
    ) -> None:
        folder, notes = colour_folder(tmp_path / "photos", each=1), tmp_path / "notes"
        notes.mkdir()
        try:
            (folder / b"gr\xfcn.png".decode("utf-8", "surrogateescape")).touch()
            (notes / b"gr\xfcn.txt".decode("utf-8", "surrogateescape")).write_text("grass\n", encoding="utf-8")
        except OSError:
            pytest.skip("this file system takes UTF-8 alone")
        with pytest.warns(FewcalWarning, match="not UTF-8; rename"):
            studio = open_studio(folder)
        assert [item.name for item in studio.store.items()] == sorted(f"{name}-0.png" for name in COLOURS)
        json.dumps(views.state(studio), ensure_ascii=False).encode()
        assert [(i.name, i.text) for i in open_texts(notes).store.items()] == [("gr\\udcfcn.txt: 1", "grass")]

    def test_texts_among_pictures_are_named_once(
        self, tmp_path: Path, open_studio: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = colour_folder(tmp_path / "photos", each=1)
        others = [folder / "notes.txt", folder / "more" / "b.csv"]
        others[1].parent.mkdir()
        for file in others:
            file.write_text("text\nanother\n", encoding="utf-8")
        note = "left out: more/b.csv and 1 more; this project holds pictures; put texts into a folder of their own"
        warned: list[tuple[str, type]] = []
        monkeypatch.setattr(project, "warn", lambda text, kind, **_: warned.append((text, kind)))
        studio = open_studio(folder)
        studio.rescan()
        assert warned == [(note, FewcalWarning)]
        assert views.state(studio)["notes"] == [note]
        for file in others:
            file.unlink()
        studio.rescan()
        assert views.state(studio)["notes"] == []

    def test_new_folder_is_noted_with_what_may_have_been_meant(self, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        (tmp_path / "photo.txt").touch()
        assert new_folder_note(tmp_path / "photos") is None
        note, other = new_folder_note(tmp_path / "fotos"), new_folder_note(tmp_path / "letters")
        assert note is not None
        assert f"{tmp_path / 'fotos'} was not there" in note
        assert f"did you mean {str(tmp_path / 'photos')!r}?" in note
        assert other is not None
        assert "did you mean" not in other


class TestTexts:
    def test_texts_come_from_files_and_by_hand(self, tmp_path: Path, open_texts: Open) -> None:
        folder = tmp_path / "notes"
        folder.mkdir()
        (folder / "notes.txt").write_text("sun is bright\nrain is wet\n\nsun and sun\n", encoding="utf-8")
        studio = open_texts(folder, limits=Limits(text_length=50))
        assert studio.add_texts(["rain again", "  ", "rain again"]) == 1
        assert len(studio.add_file("more.csv", b"text\nsun today\n")) == 1
        embedded(studio)
        shown = ["sun is bright", "rain is wet", "sun and sun", "rain again", "sun today"]
        assert [item.text for item in studio.store.items()] == shown
        for name, start in {"dry": "notes.txt: 1", "wet": "notes.txt: 2"}.items():
            assign(studio, ids(studio, start), studio.add_class(name))
        answers = answers_by_name(studio)
        assert (answers["sun today"], answers["rain again"]) == ("dry", "wet")
        with pytest.raises(InputError, match="the limit is 50"):
            studio.add_texts(["x" * 51])
        with pytest.raises(InputError, match="holds texts"):
            studio.add_file("a.png", b"")

    def test_texts_written_into_a_file_are_found_at_the_next_start(self, tmp_path: Path, open_texts: Open) -> None:
        def texts_after(lines: list[str]) -> list[str | None]:
            (tmp_path / "notes.txt").write_text("\n".join(lines), encoding="utf-8")
            studio = open_texts()
            if not studio.store.labels():
                assign(studio, ids(studio, "notes.txt: 1"), studio.add_class("dry"))
            assert labels_by_text(studio) == {"sun": "dry"}
            return [item.text for item in studio.store.items()]

        assert texts_after(["sun", "rain", "rain"]) == ["sun", "rain", "rain"]
        for _ in range(2):
            assert texts_after(["snow", "sun", "rain", "rain", "fog"]) == ["sun", "rain", "rain", "snow", "fog"]

    def test_dropped_files_of_one_name_are_one_file(self, open_texts: Open) -> None:
        studio = open_texts()
        found = [studio.add_file("notes.txt", text.encode()) for text in ("sun\nrain\n", "wind\nsun\n", "sun\nrain\n")]
        names = {item.name: item.text for item in studio.store.items()}
        assert names == {"notes.txt: 1": "sun", "notes.txt: 2": "rain", "notes.txt: 3": "wind"}
        assert found == [[1, 2], [1, 3], [1, 2]]

    def test_pictures_among_texts_do_not_hide_new_texts(self, tmp_path: Path, open_texts: Open) -> None:
        (tmp_path / "a.txt").write_text("sun\n", encoding="utf-8")
        studio = open_texts()
        write_picture(tmp_path / "a.png", COLOURS["red"], 0)
        (tmp_path / "a.txt").write_text("sun\nrain\n", encoding="utf-8")
        studio.rescan()
        assert studio.notes == ["left out: a.png; this project holds texts; put pictures into a folder of their own"]
        assert [item.text for item in studio.store.items()] == ["sun", "rain"]

    def test_tables_of_something_else_are_left_out(self, tmp_path: Path, open_texts: Open) -> None:
        (tmp_path / "a.csv").write_bytes(b"\xff\xfe no text")
        (tmp_path / "b.csv").write_text("x,y\n1,2\n", encoding="utf-8")
        (tmp_path / "c.jsonl").write_text('{"text": "half \\ud83d"}\n', encoding="utf-8")
        with pytest.warns(FewcalWarning, match="left out") as warned:
            studio = open_texts()
        assert [Path(str(w.message).split()[2]).name[:5] for w in warned] == ["a.csv", "b.csv"]
        assert [item.text for item in studio.store.items()] == ["half \ufffd"]


class TestTwoPagesAtOnce:
    @staticmethod
    def interleave(
        studio: Studio, monkeypatch: pytest.MonkeyPatch, one: Callable[[], object], two: Callable[[], object]
    ) -> None:
        """Begin `two` in another thread while `one` is about to write what it has read."""
        other = threading.Thread(target=two)
        add = studio.store.add_items

        def slow_add(items: list[Found]) -> int:
            monkeypatch.setattr(studio.store, "add_items", add)
            other.start()
            other.join(timeout=0.3)
            return add(items)

        monkeypatch.setattr(studio.store, "add_items", slow_add)
        one()
        other.join()

    def test_pasted_texts_are_all_kept(self, open_texts: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        studio = open_texts()
        self.interleave(studio, monkeypatch, lambda: studio.add_texts(["one"]), lambda: studio.add_texts(["two"]))
        assert [(item.name, item.text) for item in studio.store.items()] == [("typed 1", "one"), ("typed 2", "two")]

    def test_pictures_and_texts_do_not_mix(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        studio, wrong = Studio(tmp_path / "project"), []
        picture = write_picture(tmp_path / "a.png", COLOURS["red"], 0).read_bytes()

        def late() -> None:
            try:
                studio.add_texts(["a text"])
            except InputError as error:
                wrong.append(str(error))

        self.interleave(studio, monkeypatch, lambda: studio.add_file("a.png", picture), late)
        assert [item.name for item in studio.store.items()] == ["dropped/a.png"]
        assert wrong == ["this project holds pictures; make another folder for texts"]
        studio.close()

    def test_two_pictures_of_one_name_are_both_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        studio = Studio(tmp_path / "project")
        data = [write_picture(tmp_path / f"{i}.png", COLOURS["red"], i).read_bytes() for i in range(2)]
        other = threading.Thread(target=lambda: studio.add_file("a.png", data[1]))

        @contextmanager
        def slow_path(path: Path) -> Iterator[Path]:
            monkeypatch.setattr(intake, "atomic_path", atomic_path)
            other.start()  # the name is found free, and nothing is written yet
            other.join(timeout=0.3)
            with atomic_path(path) as temporary:
                yield temporary

        monkeypatch.setattr(intake, "atomic_path", slow_path)
        studio.add_file("a.png", data[0])
        other.join()
        assert [(studio.folder / item.name).read_bytes() for item in studio.store.items()] == data
        studio.close()


class TestNoneOfThese:
    def test_items_unlike_all_classes_are_set_aside_without_base_classes(
        self, tmp_path: Path, open_studio: Open
    ) -> None:
        folder = colour_folder(tmp_path / "photos")
        write_picture(folder / "yellow.png", (250, 240, 20), 7)
        studio = open_studio(folder)
        label_each(studio)
        studio.set_reject(0.05)
        assert "none of these" not in answers_by_name(studio).values()  # single examples cannot tell
        for name, number in {name: n for n, name in studio.store.classes().items()}.items():
            assign(studio, ids(studio, name)[:3], number)
        assert answers_by_name(studio)["yellow.png"] == "none of these"
        studio.set_reject(None)
        assert answers_by_name(studio)["yellow.png"] != "none of these"
        for level in (0.0, 1.0):
            with pytest.raises(InputError, match="must lie between 0 and 1"):
                studio.set_reject(level)


class TestExports:
    def test_names_are_data_in_every_export(self, tmp_path: Path, open_studio: Open) -> None:
        folder = tmp_path / "photos"
        write_picture(folder / "=cmd.png", COLOURS["red"], 0)
        write_picture(folder / "b.png", COLOURS["blue"], 1)
        studio = open_studio(folder)
        evil = "../../=HYPERLINK(\"x\")<script>'''"
        assign(studio, ids(studio, "="), studio.add_class(evil))
        assign(studio, ids(studio, "b"), studio.add_class("+blue"))
        rows, classes = views.export_rows(studio.answers())
        table = list(csv.reader(io.StringIO(exports.csv_table(rows, classes))))
        assert all(not cell.startswith(("=", "+", "-", "@")) for row in table for cell in row)
        assert table[1][:3] == ["'=cmd.png", evil, "person"]
        exports.write_folders(tmp_path / "out.zip", folder, rows)
        names = zipfile.ZipFile(tmp_path / "out.zip").namelist()
        assert len(names) == 2
        assert all(name.count("/") == 1 and not name.startswith((".", "/")) for name in names)
        code = exports.python_snippet(rows, "mean colour", None, None)
        [shown] = [n.value for n in ast.parse(code).body if isinstance(n, ast.Assign) and "examples" in ast.dump(n)][:1]
        assert ast.literal_eval(shown) == [("=cmd.png", evil), ("b.png", "+blue")]

    def test_unreadable_item_is_no_example(self, tmp_path: Path, open_studio: Open) -> None:
        folder = tmp_path / "photos"
        for n, name in enumerate(("red", "blue")):
            write_picture(folder / f"{name}.png", COLOURS[name], n)
        for name in ("broken.png", "broken-2.png"):
            (folder / name).write_bytes(b"nothing")
        studio = open_studio(folder)
        red, blue = studio.add_class("red"), studio.add_class("blue")
        with pytest.raises(InputError, match=r"broken\.png cannot be read"):
            assign(studio, ids(studio, "broken.png"), red)
        assign(studio, ids(studio, "broken") + ids(studio, "red"), red)  # those of several that can be read
        assign(studio, ids(studio, "blue"), blue)
        assert studio.store.labels() == {ids(studio, "red")[0]: red, ids(studio, "blue")[0]: blue}
        # One that was labelled before it turned out to be unreadable is no part of the script.
        studio.store.record(Edit("dropped on a class", {ids(studio, "broken.png")[0]: (None, red)}))
        rows, _ = views.export_rows(studio.answers())
        assert "broken" not in exports.python_snippet(rows, "mean colour", None, None)

    def test_folders_hold_every_answered_item(self, studio: Studio, tmp_path: Path) -> None:
        label_each(studio)
        os.utime(studio.folder / "red-5.png", (0, 0))  # 1970, before the first date that ZIP has
        exports.write_folders(tmp_path / "out.zip", studio.folder, views.export_rows(studio.answers())[0])
        with zipfile.ZipFile(tmp_path / "out.zip") as archive:
            assert len(archive.namelist()) == 18
            assert archive.read("red/red-5.png") == (studio.folder / "red-5.png").read_bytes()

    def test_export_on_a_full_disk_is_an_error_that_leaves_nothing(self, studio: Studio) -> None:
        label_each(studio)
        rows = views.export_rows(studio.answers())[0]
        with (
            largest_file(2000),
            pytest.raises(InputError, match=r"cannot write folders\.zip into .*; make room"),
            scratch_file(studio.folder, "folders.zip") as target,
        ):
            exports.write_folders(target, studio.folder, rows)
        assert list((studio.folder / ".fewcal").glob("*.tmp")) == []
