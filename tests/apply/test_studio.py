"""The studio without a browser: what it keeps, what it answers, what it exports."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from fewcal._utils.atomic import atomic_path
from fewcal.apply.studio import Studio, StudioSettings, exports, intake, moment, project, views
from fewcal.apply.studio.answers import (
    LeftOut,
    Recipe,
    doubt,
    expected_accuracy,
    label_next,
    leave_one_out,
    similarities,
)
from fewcal.apply.studio.intake import Limits
from fewcal.apply.studio.start import new_folder_note
from fewcal.apply.studio.store import Edit, Found, ProjectStore
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.features.extractors import as_extractor
from limits import PATIENCE, largest_file
from studio_project import COLOURS, colour_folder, colour_studio, embedded, ids, wait_until, write_picture


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    one = colour_studio(colour_folder(tmp_path / "photos"))
    yield one
    one.close()


def label_one_each(studio: Studio, shots: int = 1) -> dict[str, int]:
    made = {}
    for name in COLOURS:
        made[name] = studio.add_class(name)
        studio.assign(ids(studio, name)[:shots], made[name])
    return made


# ---- the store ------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_new_is_told_as_such_and_what_may_have_been_meant(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photo.txt").touch()
    assert new_folder_note(tmp_path / "photos") is None
    note = new_folder_note(tmp_path / "fotos")
    assert note is not None
    assert f"{tmp_path / 'fotos'} was not there" in note
    assert f"did you mean {str(tmp_path / 'photos')!r}?" in note
    other = new_folder_note(tmp_path / "letters")
    assert other is not None
    assert "did you mean" not in other


def test_a_folder_that_cannot_be_written_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("here", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot write into .*file/photos.*; choose another folder"):
        Studio(tmp_path / "file" / "photos")
    (tmp_path / "a" / ".fewcal" / "studio.sqlite").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot open .*studio\.sqlite .*; choose another folder"):
        Studio(tmp_path / "a")
    ProjectStore(tmp_path / "b").close()
    connect = sqlite3.connect

    def read_only(path: Path, **how: object) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(InputError, match=r"cannot write .*sqlite .*; choose a folder that you may write into"):
        Studio(tmp_path / "b")


def test_edits_are_undone_and_redone_in_order(tmp_path: Path) -> None:
    store = ProjectStore(tmp_path)
    store.add_items([Found("a.png"), Found("b.png")])
    store.record(Edit("class added", classes={1: (None, "cat")}))
    store.record(Edit("a → cat", labels={1: (None, 1)}))
    store.record(Edit("class removed", labels={1: (1, None)}, classes={1: ("cat", None)}))
    assert (store.classes(), store.labels()) == ({}, {})
    assert store.history() == ("class removed", None)
    store.undo()
    assert (store.classes(), store.labels()) == ({1: "cat"}, {1: 1})
    store.undo()
    assert store.labels() == {}
    store.redo()
    assert store.labels() == {1: 1}
    store.record(Edit("b → cat", labels={2: (None, 1)}))
    assert store.redo() is None  # a new change ends what could be redone
    assert store.history() == ("b → cat", None)
    store.close()


def test_undo_to_the_beginning_and_no_further(tmp_path: Path) -> None:
    store = ProjectStore(tmp_path)
    assert store.undo() is None
    store.record(Edit("class added", classes={store.next_class_id(): (None, "cat")}))
    store.undo()
    assert store.classes() == {}
    assert store.undo() is None
    # An id is never given twice, or redo of an older class could meet a newer one.
    assert store.next_class_id() == 2
    store.close()


def test_a_second_process_is_refused_and_a_killed_one_loses_nothing(tmp_path: Path) -> None:
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
        ProjectStore(tmp_path)
    process.kill()
    process.wait()
    store = ProjectStore(tmp_path)
    assert (store.classes(), store.labels(), store.history()[0]) == ({1: "cat"}, {1: 1}, "label")
    store.close()


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / ".fewcal").mkdir(parents=True)
    (tmp_path / "a" / ".fewcal" / "studio.sqlite").write_bytes(b"no database at all" * 200)
    with pytest.raises(FileFormatError, match="no studio project"):
        ProjectStore(tmp_path / "a")
    store = ProjectStore(tmp_path / "b")
    store.set_meta("schema", "99")
    store.close()
    with pytest.raises(FileFormatError, match="upgrade fewcal"):
        ProjectStore(tmp_path / "b")


# ---- answers --------------------------------------------------------------------------------------------------------


def test_doubt_and_interval() -> None:
    assert doubt(np.array([[0.7, 0.2, 0.1]])) == pytest.approx([0.5])


def test_the_accuracy_to_expect_is_what_the_probabilities_of_the_others_say() -> None:
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.5, 0.5], [0.0, 1.0]])
    labelled = np.array([False, False, True, True])
    found = expected_accuracy(p, labelled)
    assert found is not None
    assert found.accuracy == pytest.approx(0.8)  # examples are not asked
    assert 0 < found.low < 0.8 < found.high < 1
    # More examples, a narrower interval around the same value.
    many = expected_accuracy(np.repeat(p, 10, axis=0), np.repeat(labelled, 10))
    assert many is not None
    assert many.accuracy == pytest.approx(0.8)
    assert found.low < many.low < 0.8 < many.high < found.high
    assert expected_accuracy(p, np.ones(4, bool)) is None


def test_label_next_begins_with_the_largest_group_and_leaves_outliers() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(4)[:3] * 4 + 1
    x = np.concatenate([centres[c] + rng.normal(0, 0.05, (n, 4)) for c, n in enumerate((20, 8, 8))])
    x = np.concatenate([x, [[1, 1, 1, 30.0]]])  # one of its own
    similar, none = similarities(x), np.zeros(len(x), bool)
    order = label_next(similar, none, np.ones(len(x)), 3)
    assert order[0] < 20
    assert sorted(np.digitize(order, [20, 28, 36]).tolist()) == [0, 1, 2]  # one of each group, not the lone one
    one = none.copy()
    one[order[0]] = True
    assert 20 <= label_next(similar, one, np.ones(len(x)))[0] < 36


def test_label_next_prefers_doubtful_regions() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([c + rng.normal(0, 0.1, (10, 3)) for c in np.eye(3)])
    doubts = np.repeat([0.0, 0.9, 0.1], 10)
    assert 10 <= label_next(similarities(x), np.zeros(30, bool), doubts)[0] < 20


def test_leave_one_out_asks_only_where_a_class_has_others() -> None:
    x = np.array([[0.0, 1], [0.1, 1], [1, 0], [1, 0.1], [5, 5]])
    labels = np.array(["a", "a", "b", "b", "c"])
    assert leave_one_out(Recipe(), x, labels) == LeftOut(right=4, asked=4)
    assert leave_one_out(Recipe(), x[[0, 2]], np.array(["a", "b"])) is None


def test_labels_become_answers(studio: Studio) -> None:
    assert studio.answers().probabilities is None
    label_one_each(studio)
    answers = {row.name: row.answer for row in views.export_rows(studio.answers())[0]}
    assert all(answer == name.partition("-")[0] for name, answer in answers.items())
    state = views.state(studio)
    assert len(state["items"]) == 18
    assert sum("label" in item for item in state["items"]) == 3
    assert state["next"]
    assert not set(state["next"]) & set(studio.store.labels())


def test_none_of_these_is_a_bucket_of_its_own(studio: Studio) -> None:
    made = label_one_each(studio)
    studio.remove_class(made["blue"])
    studio.assign(ids(studio, "blue")[:2], 0)
    rows = {row.name: row.answer for row in views.export_rows(studio.answers())[0]}
    assert {rows[f"blue-{i}.png"] for i in range(6)} == {"none of these"}
    assert rows["red-3.png"] == "red"


def test_labels_are_left_out_in_the_background(studio: Studio) -> None:
    label_one_each(studio, shots=3)
    wait_until(lambda: studio.left_out == LeftOut(right=9, asked=9))
    state = views.state(studio)
    assert state["left_out"] == {"right": 9, "asked": 9}
    others = [item["top"][0][1] for item in state["items"] if "label" not in item]
    assert state["expected"]["accuracy"] == pytest.approx(np.mean(others), abs=1e-3)


def test_undo_changes_answers_back(studio: Studio) -> None:
    label_one_each(studio)
    before = views.state(studio)["items"]
    studio.assign(ids(studio, "red")[:1], studio.add_class("crimson"))
    assert views.state(studio)["items"] != before
    studio.undo()
    studio.undo()
    assert views.state(studio)["items"] == before


def test_labels_and_answers_that_a_page_sees_are_of_one_moment(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    made = label_one_each(studio)
    studio.undo()
    studio.answers()
    seen: list[dict[str, views.Json]] = []
    other = threading.Thread(target=lambda: seen.append(views.state(studio)))
    redo = studio.store.redo

    def slow_redo() -> Edit | None:
        edit = redo()
        other.start()  # another page asks while the label is written and its answers are not known yet
        other.join(timeout=0.3)
        return edit

    monkeypatch.setattr(studio.store, "redo", slow_redo)
    studio.redo()
    other.join()
    [state] = seen
    items = state["items"]
    assert isinstance(items, list)
    last = list(made.values())[-1]
    assert last in [item.get("label") for item in items if isinstance(item, dict)]
    assert last in [item["answer"] for item in items if isinstance(item, dict) and "label" not in item]


def test_a_fit_keeps_nobody_waiting_and_what_it_gives_is_of_its_moment(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = label_one_each(studio)
    begun, go = threading.Event(), threading.Event()
    fit = moment.fitted

    def slow_fit(recipe: Recipe, x: np.ndarray, labels: np.ndarray) -> FewShotClassifier | None:
        begun.set()
        assert go.wait(PATIENCE)
        return fit(recipe, x, labels)

    monkeypatch.setattr(moment, "fitted", slow_fit)
    studio.assign(ids(studio, "red")[1:2], made["red"])
    seen: list[dict[str, views.Json]] = []
    page = threading.Thread(target=lambda: seen.append(views.state(studio)))
    page.start()
    assert begun.wait(PATIENCE)
    other = threading.Thread(target=lambda: studio.assign(ids(studio, "blue")[1:2], made["blue"]))
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive()
    assert studio.progress().stage == "idle"
    go.set()
    page.join(PATIENCE)
    [state] = seen
    assert isinstance(state["items"], list)
    assert sum("label" in item for item in state["items"] if isinstance(item, dict)) == 4
    assert sum("label" in item for item in views.state(studio)["items"]) == 5  # type: ignore[union-attr, operator]
    assert state["undo"] == "red-1.png → red"


def test_what_a_page_asks_again_is_not_fitted_again(studio: Studio) -> None:
    made = label_one_each(studio)
    first = studio.answers()
    assert studio.answers().classifier is first.classifier
    studio.rename_class(made["red"], "crimson")
    renamed = studio.answers()
    assert renamed.classifier is not first.classifier
    assert renamed.similarity is first.similarity


def test_a_later_server_is_newer_to_a_page_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10**15, 10**15 + 5 * 10**6))
    monkeypatch.setattr("fewcal.apply.studio.project.time.time_ns", lambda: next(clock))
    revisions = []
    for _ in range(2):
        studio = Studio(tmp_path)
        revisions.append(studio.revision)
        studio.close()
    assert revisions[1] == revisions[0] + 5


def test_why_names_the_nearest_examples(studio: Studio) -> None:
    label_one_each(studio, shots=2)
    story = views.why(studio, ids(studio, "green")[4])
    assert story["answer"] == "green"
    assert [near["class"] for near in story["nearest"][:2]] == ["green", "green"]
    assert story["bases"] == []  # there is no bank
    assert sum(p for _, p in story["probabilities"]) == pytest.approx(1, abs=1e-3)


def test_class_names_are_checked(studio: Studio) -> None:
    studio.add_class("  robin ")
    for name, wrong in {"robin": "already", "": "needs a name", "a\nb": "control", "none of these": "already"}.items():
        with pytest.raises(InputError, match=wrong):
            studio.add_class(name)
    with pytest.raises(InputError, match="at most"):
        studio.add_class("x" * 500)
    with pytest.raises(InputError, match="no class 77"):
        studio.assign(ids(studio, "red")[:1], 77)


def test_folders_are_taken_as_classes_in_one_step(tmp_path: Path) -> None:
    for c, name in enumerate((*COLOURS, "none of these")):
        for i in range(2):
            write_picture(tmp_path / name / f"{i}.png", COLOURS.get(name, (120, 120, 120)), 10 * c + i)
    write_picture(tmp_path / "loose.png", COLOURS["red"], 99)
    studio = colour_studio(tmp_path)
    assert set(views.state(studio)["folders"]) == {*COLOURS, "none of these"}
    studio.take_folders()
    state = views.state(studio)
    assert {c["name"]: c["count"] for c in state["classes"]} == dict.fromkeys((*COLOURS, "none of these"), 2)
    assert state["folders"] == []
    names = {c["id"]: c["name"] for c in state["classes"]}
    (answer,) = [names[i["answer"]] for i in state["items"] if i["name"] == "loose.png"]
    assert answer == "red"
    studio.take_folders()  # a second click changes nothing, and is no step to be taken back
    studio.undo()
    assert not studio.store.labels()
    assert not studio.store.classes()
    # Labels and classes that a person gave stay.
    red = studio.add_class("red")
    (first,) = [i.id for i in studio.store.items() if i.name == "blue/0.png"]
    studio.assign([first], red)
    studio.take_folders()
    assert studio.store.labels()[first] == red
    assert sorted(studio.store.classes().values()) == sorted(COLOURS)
    studio.close()


def test_loose_pictures_are_no_classes(studio: Studio) -> None:
    assert views.state(studio)["folders"] == []
    with pytest.raises(InputError, match="name the classes instead"):
        studio.take_folders()


def test_a_restart_finds_everything(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos")
    first = colour_studio(folder)
    label_one_each(first)
    before = views.state(first)["items"]
    first.close()
    asked = []

    def never(batch: np.ndarray) -> np.ndarray:
        asked.append(len(batch))
        return batch.reshape(len(batch), -1, 3).mean(axis=1)

    again = Studio(folder, StudioSettings(extractor=as_extractor(never, name="mean colour", size=8)))
    asked.clear()
    again.start()
    embedded(again)
    assert views.state(again)["items"] == before
    assert asked == []  # features were kept
    again.close()


def test_new_and_vanished_files_and_bad_ones(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos", each=2)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    studio = colour_studio(folder)
    failed = [item for item in studio.store.items() if item.state == "failed"]
    assert [item.name for item in failed] == ["broken.jpg"]
    assert "cannot be read" in (failed[0].error or "")
    (folder / "red-0.png").unlink()
    write_picture(folder / "more" / "red-9.png", COLOURS["red"], 7)
    assert studio.rescan() == 1
    embedded(studio)
    names = [item.name for item in studio.store.items()]
    assert "red-0.png" not in names
    assert "more/red-9.png" in names
    studio.close()


def test_what_could_not_be_read_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos", each=2)
    for name in ("broken.png", "other.png"):
        (folder / name).write_bytes(b"\xff\xd8 no picture")
    colour_studio(folder).close()
    write_picture(folder / "broken.png", COLOURS["red"], 7)
    studio = colour_studio(folder)
    assert {item.name for item in studio.store.items() if item.state == "failed"} == {"other.png"}
    assert studio.store.count("ready") == 7
    studio.close()


def test_a_picture_found_before_all_of_it_was_copied_is_read_again(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos", each=1)
    whole = write_picture(tmp_path / "whole.png", COLOURS["red"], 7).read_bytes()
    studio = colour_studio(folder)
    (folder / "new.png").write_bytes(whole[: len(whole) // 2])
    assert studio.rescan() == 1
    embedded(studio)
    assert studio.store.count("failed") == 1
    assert studio.rescan() == 0
    assert studio.store.count("failed") == 1  # no work for a file that is as it was
    (folder / "new.png").write_bytes(whole)
    studio.rescan()
    embedded(studio)
    assert (studio.store.count("failed"), studio.store.count("ready")) == (0, 4)
    studio.close()


def test_a_folder_that_is_away_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    studio = colour_studio(colour_folder(tmp_path / "photos", each=1))
    (tmp_path / "photos").rename(tmp_path / "away")
    with pytest.raises(InputError, match="photos is not there any more; bring it back"):
        studio.rescan()
    assert len(studio.store.items()) == 3
    (tmp_path / "away").rename(tmp_path / "photos")
    assert studio.rescan() == 0
    studio.close()


def test_what_is_gone_is_neither_answered_nor_proposed(studio: Studio) -> None:
    made = label_one_each(studio)
    studio.assign(ids(studio, "red")[1:2], made["red"])
    studio.answers()
    for name in ("red-1.png", "blue-3.png"):
        (studio.folder / name).unlink()
    before = studio.revision
    assert studio.rescan() == 0
    assert studio.revision > before
    now = studio.answers()
    assert len(now.moment.ids) == 16
    assert len(now.moment.labels) == 3
    assert set(now.suggested) <= set(now.moment.ids)


def test_features_that_come_too_late_bring_nothing_back(tmp_path: Path) -> None:
    store = ProjectStore(tmp_path)
    store.add_items([Found("a.png"), Found("b.png")])
    store.mark_gone([1])
    store.set_features({1: np.ones(3), 2: np.ones(3)}, {})
    assert [item.name for item in store.items()] == ["b.png"]
    assert store.features()[0] == [2]
    store.close()


def test_features_of_two_extractors_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = colour_folder(tmp_path / "photos", each=2)
    first = colour_studio(folder)
    label_one_each(first)
    assert first.answers().classifier is not None
    first.close()
    go = threading.Event()
    go.set()

    def slow(batch: np.ndarray) -> np.ndarray:
        assert go.wait(PATIENCE)
        return batch.reshape(len(batch), -1)[:, :5]

    # Of the same name, so that only the loaded network tells that it is another one.
    other = as_extractor(slow, name="mean colour", size=8, fingerprint="another")
    monkeypatch.setattr("fewcal.apply.studio.project.as_extractor", lambda *_, **__: replace(other, beta=0.5))
    go.clear()
    studio = Studio(folder, StudioSettings(extractor="mean colour"))
    write_picture(folder / "new.png", COLOURS["red"], 5)
    studio.start()
    wait_until(lambda: studio.progress().stage == "working")
    between = studio.answers()
    assert between.classifier is None
    assert between.moment.ids == []
    assert between.moment.recipe.beta == 0.5
    go.set()
    embedded(studio)
    assert studio.answers().moment.x.shape == (7, 5)
    studio.close()


def test_another_extractor_makes_features_anew(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos", each=1)
    colour_studio(folder).close()
    other = as_extractor(lambda x: x.reshape(len(x), -1)[:, :5], name="first pixels", size=8)
    studio = Studio(folder, StudioSettings(extractor=other))
    studio.start()
    embedded(studio)
    assert studio.moment().x.shape == (3, 5)
    studio.close()


def test_an_extractor_of_other_things_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos", each=1)
    colour_studio(folder).close()
    studio = Studio(folder, StudioSettings(extractor="minilm"))
    with pytest.raises(InputError, match=r"minilm takes texts and .* holds pictures; leave out --extractor"):
        studio.start()
    assert studio.store.count("ready") == 3
    studio.close()


def test_a_bank_of_other_features_is_refused_before_a_page_asks(tmp_path: Path) -> None:
    """All features are there, so that no extractor is made that could be compared with the bank."""
    folder = colour_folder(tmp_path / "photos", each=2)
    one = colour_studio(folder)
    label_one_each(one)
    one.close()
    rows = np.random.default_rng(0).random((20, 5))
    bank = BaseBank().fit(rows, np.repeat(np.arange(5), 4))
    for source, told in {
        "other@1 rows": "made with other@1 and the extractor is mean colour",
        "": "has 5 features",
    }.items():
        bank.source = source
        studio = Studio(folder, StudioSettings(bank=bank))
        with pytest.raises(InputError, match=told):
            studio.start()
        studio.close()


def test_links_out_of_the_folder_are_passed_over(tmp_path: Path) -> None:
    write_picture(tmp_path / "private" / "secret.png", COLOURS["red"], 0)
    folder = colour_folder(tmp_path / "photos", each=1)
    (folder / "link").symlink_to(tmp_path / "private")
    studio = colour_studio(folder)
    assert all("secret" not in item.name for item in studio.store.items())
    studio.close()


def test_names_that_no_page_can_show_are_left_out_and_told(tmp_path: Path) -> None:
    folder = colour_folder(tmp_path / "photos", each=1)
    try:
        (folder / b"gr\xfcn.png".decode("utf-8", "surrogateescape")).touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    with pytest.warns(FewcalWarning, match="not UTF-8; rename"):
        studio = colour_studio(folder)
    assert [item.name for item in studio.store.items()] == sorted(f"{name}-0.png" for name in COLOURS)
    json.dumps(views.state(studio), ensure_ascii=False).encode()
    studio.close()


def test_texts_among_pictures_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = colour_folder(tmp_path / "photos", each=1)
    (folder / "notes.txt").write_text("a note\n", encoding="utf-8")
    (folder / "more").mkdir()
    (folder / "more" / "b.csv").write_text("text\nanother\n", encoding="utf-8")
    told = "left out: more/b.csv and 1 more; this project holds pictures; put texts into a folder of their own"
    warned: list[tuple[str, type]] = []
    monkeypatch.setattr(project, "warn", lambda note, kind, **_: warned.append((note, kind)))
    studio = colour_studio(folder)
    studio.rescan()
    assert warned == [(told, FewcalWarning)]
    assert views.state(studio)["notes"] == [told]
    (folder / "notes.txt").unlink()
    (folder / "more" / "b.csv").unlink()
    studio.rescan()
    assert views.state(studio)["notes"] == []
    studio.close()


def test_pictures_among_texts_do_not_hide_new_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("sun\n", encoding="utf-8")
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    studio.start()
    write_picture(tmp_path / "a.png", COLOURS["red"], 0)
    (tmp_path / "a.txt").write_text("sun\nrain\n", encoding="utf-8")
    studio.rescan()
    assert studio.notes == ["left out: a.png; this project holds texts; put pictures into a folder of their own"]
    assert [item.text for item in studio.store.items()] == ["sun", "rain"]
    studio.close()


def test_texts_from_files_and_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "notes.txt").write_text("sun is bright\nrain is wet\n\nsun and sun\n", encoding="utf-8")
    words = as_extractor(lambda texts: [[t.count("sun"), t.count("rain"), 1] for t in texts], name="words", kind="text")
    studio = Studio(folder, StudioSettings(extractor=words, limits=Limits(text_length=50)))
    studio.start()
    assert studio.add_texts(["rain again", "  ", "rain again"]) == 1
    assert len(studio.add_file("more.csv", b"text\nsun today\n")) == 1
    embedded(studio)
    assert [item.text for item in studio.store.items()] == [
        *("sun is bright", "rain is wet", "sun and sun", "rain again", "sun today"),
    ]
    for name, start in {"dry": "notes.txt: 1", "wet": "notes.txt: 2"}.items():
        studio.assign(ids(studio, start), studio.add_class(name))
    answers = {row.text: row.answer for row in views.export_rows(studio.answers())[0]}
    assert (answers["sun today"], answers["rain again"]) == ("dry", "wet")
    with pytest.raises(InputError, match="at most 50"):
        studio.add_texts(["x" * 51])
    with pytest.raises(InputError, match="holds texts"):
        studio.add_file("a.png", b"")
    studio.close()


def test_texts_of_a_file_whose_name_no_page_can_show_have_one_that_it_can(tmp_path: Path) -> None:
    try:
        (tmp_path / b"gr\xfcn.txt".decode("utf-8", "surrogateescape")).write_text("grass\n", encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    studio.start()
    assert [(item.name, item.text) for item in studio.store.items()] == [("gr\\udcfcn.txt: 1", "grass")]
    studio.close()


def test_what_is_written_into_a_file_of_texts_is_found_at_the_next_start(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")

    def texts_after(lines: list[str]) -> list[str | None]:
        notes.write_text("\n".join(lines), encoding="utf-8")
        studio = Studio(tmp_path, StudioSettings(extractor=words))
        studio.start()
        if not studio.store.labels():
            studio.assign(ids(studio, "notes.txt: 1"), studio.add_class("dry"))
        [labelled] = studio.store.labels()
        assert studio.store.item(labelled).text == "sun"
        found = [item.text for item in studio.store.items()]
        studio.close()
        return found

    assert texts_after(["sun", "rain", "rain"]) == ["sun", "rain", "rain"]
    assert texts_after(["snow", "sun", "rain", "rain", "fog"]) == ["sun", "rain", "rain", "snow", "fog"]
    assert texts_after(["snow", "sun", "rain", "rain", "fog"]) == ["sun", "rain", "rain", "snow", "fog"]


def test_folders_of_text_files_are_classes_too(tmp_path: Path) -> None:
    for name, text in {"food/a.txt": "bread\nsoup", "weather/b.txt": "rain", "weather/deep/c.txt": "-"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    studio.start()
    assert [item.name for item in studio.store.items()] == ["food/a.txt: 1", "food/a.txt: 2", "weather/b.txt: 1"]
    studio.take_folders()
    names = studio.store.classes()
    assert [names[label] for label in studio.store.labels().values()] == ["food", "food", "weather"]
    studio.close()


def words_studio(folder: Path) -> Studio:
    words = as_extractor(lambda texts: [[t.count("sun"), t.count("rain"), 1] for t in texts], name="words", kind="text")
    studio = Studio(folder, StudioSettings(extractor=words))
    studio.start()
    return embedded(studio)


def labelled(studio: Studio) -> dict[str | None, str]:
    names = studio.class_names
    return {studio.store.item(i).text: names[label] for i, label in studio.store.labels().items()}


def test_the_labels_of_files_become_classes_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "Text;Label\nsun sun;dry\nrain;\nrain rain;<b>wet\nsun rain;none of these\n", encoding="utf-8"
    )
    studio = words_studio(tmp_path)
    assert views.state(studio)["named"] == ["dry", "<b>wet", "none of these"]
    assert not studio.store.labels()  # no label until a person says so
    studio.take_labels()
    expected = {"sun sun": "dry", "rain rain": "<b>wet", "sun rain": "none of these"}
    assert labelled(studio) == expected
    assert views.state(studio)["named"] == []
    answers = {row.text: row.answer for row in views.export_rows(studio.answers())[0]}
    assert answers["rain"] == "<b>wet"
    # A file that comes later names more of the same classes and a new one; labels that a person gave stay.
    [item] = ids(studio, "a.csv: 1")
    studio.assign([item], None)
    studio.assign([item], 2)
    studio.add_file("b.jsonl", b'{"text": "sun", "label": "dry"}\n{"text": "hail", "label": "ice"}\n')
    assert views.state(studio)["named"] == ["dry", "ice"]
    studio.take_labels()
    assert labelled(studio) == expected | {"sun sun": "<b>wet", "sun": "dry", "hail": "ice"}
    assert studio.undo() == "4 labels → classes"
    assert labelled(studio) == expected | {"sun sun": "<b>wet"}
    studio.close()


def test_labels_that_are_written_into_a_known_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nsun\nrain\n", encoding="utf-8")
    studio = words_studio(tmp_path)
    with pytest.raises(InputError, match="no text names its class; give"):
        studio.take_labels()
    (tmp_path / "a.csv").write_text("text,label\nsun,dry\nrain,wet\n", encoding="utf-8")
    assert studio.rescan() == 0
    studio.take_labels()
    assert labelled(studio) == {"sun": "dry", "rain": "wet"}
    studio.close()


def test_tables_of_something_else_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe no text")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "half \\ud83d"}\n', encoding="utf-8")
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    with pytest.warns(FewcalWarning, match="left out") as told:
        studio.start()
    assert [Path(str(w.message).split()[2]).name[:5] for w in told] == ["a.csv", "b.csv"]
    assert [item.text for item in studio.store.items()] == ["half \ufffd"]
    studio.close()


def twice_at_once(studio: Studio, monkeypatch: pytest.MonkeyPatch, one: Callable[[], object], two: object) -> None:
    """Begin `two` in another thread while `one` is about to write what it has read."""
    other = threading.Thread(target=two)
    add = studio.store.add_items

    def slow_add(items: list[tuple[str, str | None]]) -> int:
        monkeypatch.setattr(studio.store, "add_items", add)
        other.start()
        other.join(timeout=0.3)
        return add(items)

    monkeypatch.setattr(studio.store, "add_items", slow_add)
    one()
    other.join()


def test_texts_pasted_on_two_pages_at_once_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    twice_at_once(studio, monkeypatch, lambda: studio.add_texts(["one"]), lambda: studio.add_texts(["two"]))
    assert [(item.name, item.text) for item in studio.store.items()] == [("typed 1", "one"), ("typed 2", "two")]
    studio.close()


def test_pictures_and_texts_dropped_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studio, wrong = Studio(tmp_path / "project"), []
    picture = write_picture(tmp_path / "a.png", COLOURS["red"], 0).read_bytes()

    def late() -> None:
        try:
            studio.add_texts(["a text"])
        except InputError as error:
            wrong.append(str(error))

    twice_at_once(studio, monkeypatch, lambda: studio.add_file("a.png", picture), late)
    assert [item.name for item in studio.store.items()] == ["dropped/a.png"]
    assert wrong == ["this project holds pictures; make another folder for texts"]
    studio.close()


def test_two_pictures_of_one_name_dropped_at_once_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    kept = [(studio.folder / item.name).read_bytes() for item in studio.store.items()]
    assert kept == data
    studio.close()


def test_files_of_texts_with_one_name_are_all_kept(tmp_path: Path) -> None:
    words = as_extractor(lambda texts: [[len(t), 1] for t in texts], name="words", kind="text")
    studio = Studio(tmp_path, StudioSettings(extractor=words))
    for text in ("sun\nrain\n", "wind\n", "sun\nrain\n"):
        studio.add_file("notes.txt", text.encode())
    assert {item.name: item.text for item in studio.store.items()} == {
        **{"notes.txt: 1": "sun", "notes.txt: 2": "rain"},
        "notes (2).txt: 1": "wind",
    }
    studio.close()


def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path) -> None:
    store = ProjectStore(tmp_path)
    store.add_items([Found("a.png")])
    full = store.path.with_name("studio.sqlite-wal").stat().st_size + 100
    with largest_file(full), pytest.raises(InputError, match="make room"):
        store.record(Edit("class added", classes={1: (None, "cat")}))
    assert (store.classes(), store.history()) == ({}, (None, None))
    store.record(Edit("class added", classes={1: (None, "cat")}))
    assert store.classes() == {1: "cat"}
    store.close()


# ---- exports --------------------------------------------------------------------------------------------------------


def test_names_are_data_in_every_export(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    write_picture(folder / "=cmd.png", COLOURS["red"], 0)
    write_picture(folder / "b.png", COLOURS["blue"], 1)
    studio = colour_studio(folder)
    evil = "../../=HYPERLINK(\"x\")<script>'''"
    studio.assign(ids(studio, "="), studio.add_class(evil))
    studio.assign(ids(studio, "b"), studio.add_class("+blue"))
    rows, classes = views.export_rows(studio.answers())
    table = list(csv.reader(io.StringIO(exports.csv_table(rows, classes))))
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in table for cell in row)
    assert table[1][:3] == ["'=cmd.png", evil, "person"]
    exports.write_folders(tmp_path / "out.zip", folder, rows)
    names = zipfile.ZipFile(tmp_path / "out.zip").namelist()
    assert len(names) == 2
    assert all(name.count("/") == 1 and not name.startswith((".", "/")) for name in names)
    code = exports.python_snippet(rows, "mean colour", 1.0, None, "default")
    [examples] = [n.value for n in ast.parse(code).body if isinstance(n, ast.Assign) and "examples" in ast.dump(n)][:1]
    assert ast.literal_eval(examples) == [("=cmd.png", evil), ("b.png", "+blue")]
    studio.close()


def test_what_cannot_be_read_is_no_example(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for n, name in enumerate(("red", "blue")):
        write_picture(folder / f"{name}.png", COLOURS[name], n)
    (folder / "broken.png").write_bytes(b"nothing")
    (folder / "broken-2.png").write_bytes(b"nothing")
    studio = colour_studio(folder)
    red, blue = studio.add_class("red"), studio.add_class("blue")
    with pytest.raises(InputError, match=r"broken\.png cannot be read"):
        studio.assign(ids(studio, "broken.png"), red)
    studio.assign(ids(studio, "broken") + ids(studio, "red"), red)  # those of several that can be read
    studio.assign(ids(studio, "blue"), blue)
    assert studio.store.labels() == {ids(studio, "red")[0]: red, ids(studio, "blue")[0]: blue}
    # One that was labelled before it turned out to be unreadable is no part of the script.
    studio.store.record(Edit("dropped on a class", {ids(studio, "broken.png")[0]: (None, red)}))
    rows, _ = views.export_rows(studio.answers())
    assert "broken" not in exports.python_snippet(rows, "mean colour", 1.0, None, "default")
    studio.close()


def test_folders_hold_every_answered_item(studio: Studio, tmp_path: Path) -> None:
    label_one_each(studio)
    os.utime(studio.folder / "red-5.png", (0, 0))  # 1970, before the first date that ZIP has
    exports.write_folders(tmp_path / "out.zip", studio.folder, views.export_rows(studio.answers())[0])
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert len(archive.namelist()) == 18
        assert archive.read("red/red-5.png") == (studio.folder / "red-5.png").read_bytes()
