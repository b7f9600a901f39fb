"""The studio in a real browser, as a person uses it: a server of its own, dropped files, keys, two tabs, a kill."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("PIL")

from browser import AXE, Browser, BrowserPage
from fewcal import FewShotClassifier
from fewcal.features.sources.pictures import decode, decode_fitted
from limits import PATIENCE
from processes import FORKED
from studio_project import COLOURS, colour_extractor, colour_folder, serve_colours, serve_texts, write_picture

BOX = "(id => document.querySelector(id).getBoundingClientRect())"


class Server:
    """A studio in a process of its own."""

    def __init__(self, folder: Path, serve: Callable[[Path, Connection], None] = serve_colours) -> None:
        receiver, sender = FORKED.Pipe(duplex=False)
        self.process = FORKED.Process(target=serve, args=(folder, sender))
        self.process.start()
        sender.close()  # so that one who ended early is noticed
        self.link: str = receiver.recv()
        assert self.link.startswith("http://127.0.0.1:")

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE)


class Visit:
    """Opens pages of a project, whose server is started with the first one; all end with the test, without an error."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder, self.servers, self.pages = browser, folder, list[Server](), list[BrowserPage]()
        self.serve: Callable[[Path, Connection], None] = serve_colours

    @property
    def server(self) -> Server:
        if not self.servers:
            self.start()
        return self.servers[-1]

    def start(self) -> None:
        self.servers.append(Server(self.folder, self.serve))

    def __call__(self, items: int = 15, width: int = 1400, dark: bool = False, link: str = "") -> BrowserPage:
        page = self.browser.open(link or self.server.link, width=width, dark=dark)
        self.pages.append(page)
        page.wait_for("document.documentElement?.dataset.ready === 'yes'")  # none between two pages
        page.wait_for(f"{cards(items)} && document.querySelector('#work').hidden")
        return page

    def close(self) -> None:
        for server in self.servers:
            server.process.terminate()
            server.process.join(PATIENCE)
        for page in self.pages:
            page.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return colour_folder(tmp_path / "photos", each=5)


@pytest.fixture
def visit(browser: Browser, folder: Path) -> Iterator[Visit]:
    one = Visit(browser, folder)
    yield one
    errors = [error for page in one.pages for error in page.errors if "ERR_CONNECTION" not in error]
    one.close()
    assert errors == []


def cards(number: int) -> str:
    return f"document.querySelectorAll('#items .card').length === {number}"


def key(page: BrowserPage, *names: str) -> None:
    """Keys on whatever has the focus."""
    for name in names:
        common = {"key": name, "code": name, "text": {"Enter": "\r"}.get(name, name if len(name) == 1 else "")}
        page.call("Input.dispatchKeyEvent", type="keyDown", **common)
        page.call("Input.dispatchKeyEvent", type="keyUp", **common)


def choose_card(page: BrowserPage, item: str = "") -> None:
    """Click a card until it is chosen: on a busy machine the list may be drawn again under the pointer."""
    for _ in range(50):
        page.click(f"#items .card{f'[title={item!r}]' if item else ''}")
        if (found := page.js("document.activeElement.closest('#items .card')?.title")) and item in ("", found):
            return
    raise AssertionError("a click does not choose the card")


def add_class(page: BrowserPage, name: str) -> None:
    count = page.js("document.querySelectorAll('#classes > li').length")
    page.js("document.activeElement.blur()")
    key(page, "c")
    page.call("Input.insertText", text=name)
    page.press("Enter")
    page.wait_for(f"document.querySelectorAll('#classes > li').length === {count + 1}")
    page.js("document.activeElement.blur()")


def labels(page: BrowserPage) -> int:
    shares = "[...document.querySelectorAll('#classes .share')]"
    return int(page.js(f"{shares}.reduce((n, e) => n + parseInt(e.textContent), 0)"))


def label(page: BrowserPage, item: str, *keys: str) -> None:
    """Select an item by a click and give it a class by keys."""
    before = labels(page)
    choose_card(page, item)
    key(page, *keys)
    page.wait_for(f"document.querySelector('#undo').title.startsWith({item!r})")
    assert labels(page) == before + 1


def answers(page: BrowserPage) -> dict[str, str]:
    """What each item without a label is answered with."""
    shown = "c.querySelector('.verdict .what')?.textContent ?? '?'"
    own = "[...document.querySelectorAll('#items .card')].filter(c => !c.querySelector('.labelled'))"
    return dict(page.js(f"{own}.map(c => [c.title, {shown}])"))


def label_colours(page: BrowserPage) -> None:
    for n, name in enumerate(COLOURS, 1):
        add_class(page, name)
        label(page, f"{name}-0.png", str(n))


def all_right(page: BrowserPage) -> bool:
    found = answers(page)
    return bool(found) and all(answer == name.rpartition("/")[2].partition("-")[0] for name, answer in found.items())


def drop_files(page: BrowserPage, name: str, files: dict[str, bytes]) -> None:
    """Drop files on a class."""
    sent = json.dumps({file: list(raw) for file, raw in files.items()})
    page.js(
        f"""(() => {{ const data = new DataTransfer();
        for (const [name, raw] of Object.entries({sent})) data.items.add(new File([new Uint8Array(raw)], name));
        const row = [...document.querySelectorAll('#classes > li')].find(l => l.textContent.includes('{name}'));
        row.dispatchEvent(new DragEvent('drop', {{bubbles: true, cancelable: true, dataTransfer: data}})); }})()"""
    )


class TestLabels:
    def test_link_on_another_page_leads_in(self, visit: Visit, tmp_path: Path) -> None:
        """As in a notebook or a chat: browsers hold strict cookies back on such a way."""
        chat = f'<!doctype html><title>chat</title><a href="{visit.server.link}">the studio</a>'
        (tmp_path / "chat.html").write_text(chat)
        page = visit.browser.open(tmp_path / "chat.html")
        visit.pages.append(page)
        page.click("a")
        page.wait_for("document.documentElement?.dataset.ready === 'yes'")
        add_class(page, "red")  # and what it sends is taken as its own

    def test_keys_label_undo_and_redo(self, visit: Visit) -> None:
        page = visit()
        assert set(answers(page).values()) == {"?"}
        *first, last = COLOURS
        for n, name in enumerate(COLOURS, 1):
            add_class(page, name)
            if name in first:
                label(page, f"{name}-0.png", str(n))
        # An example of the last class changes what its kind is answered with, and undo takes that back.
        before, without = page.text("#items .verdict"), answers(page)
        assert (len(without), set(without.values())) == (13, set(first))
        label(page, f"{last}-0.png", str(len(COLOURS)))
        assert all_right(page)
        key(page, "u")
        page.wait_for(cards(13))
        assert (page.text("#items .verdict"), answers(page)) == (before, without)
        key(page, "r")
        page.wait_for(cards(12))
        assert all_right(page)

    def test_enter_confirms_the_answer_and_goes_on(self, visit: Visit) -> None:
        page = visit()
        label_colours(page)
        choose_card(page, "red-3.png")
        key(page, "Enter")
        page.wait_for("document.querySelector('#undo').title === 'red-3.png → red'")
        item = page.wait_for("document.activeElement.closest('#items .card')?.title")
        key(page, "z")  # in the zoom as well, from item to item
        page.wait_for("document.querySelector('#zoom').open")
        key(page, "Enter")
        page.wait_for(f"document.querySelector('#undo').title.startsWith({item!r})")
        page.wait_for(f"!document.querySelector('#zoom-title').textContent.startsWith({item!r})")
        key(page, "2")
        page.wait_for("document.querySelectorAll('.examples li').length === 6")
        page.press("Escape")
        page.wait_for("!document.querySelector('#zoom').open")
        page.wait_for("document.activeElement.closest('#items .card') !== null")

    def test_any_class_is_picked_by_its_name_and_a_new_one_made(self, visit: Visit) -> None:
        page = visit()
        for n in range(12):
            add_class(page, f"class {n}")
        label(page, "red-0.png", "l", *"CLASS 11", "Enter")
        label(page, "blue-0.png", "l", *"bluish", "Enter")
        names = page.text("#classes .what")
        assert names[-2:] == ["bluish", "none of these"]
        assert page.js("new Set([...document.querySelectorAll('#classes > li')].map(l => l.style.cssText)).size") == 14
        choose_card(page, "blue-1.png")
        chips = page.wait_for("[...document.querySelectorAll('#actions .chip .what')].map(e => e.textContent)")
        assert chips[:2] == ["bluish", "class 11"]  # the most probable first
        key(page, "l")
        page.press("ArrowDown")
        assert page.text("#pick-list [aria-selected=true]") == ["class 11"]

    def test_label_next_goes_from_class_to_class(self, visit: Visit) -> None:
        page, seen = visit(), []
        for name in COLOURS:
            add_class(page, name)
        for n in range(3):
            key(page, "n")
            item = page.wait_for("document.activeElement.closest('#next-items') && document.activeElement.title")
            seen.append(item.partition("-")[0])
            key(page, str(list(COLOURS).index(seen[-1]) + 1))
            page.wait_for(f"document.querySelectorAll('.examples li').length === {n + 1}")
        assert sorted(seen) == sorted(COLOURS)
        assert all_right(page)

    def test_wrong_label_is_found_and_mended_in_the_check(self, visit: Visit) -> None:
        page = visit()
        label_colours(page)
        for name in COLOURS:
            for i in (1, 2, 3):
                label(page, f"{name}-{i}.png", "Enter")
        page.js("document.querySelector('#show').value = 'all'")
        page.js("document.querySelector('#show').dispatchEvent(new Event('input'))")
        choose_card(page, "red-0.png")
        key(page, "3")  # blue
        page.wait_for("document.querySelector('#show-check').textContent.startsWith('Check (1)')")
        key(page, "k")
        page.wait_for("document.querySelectorAll('.suspects button').length === 2")
        assert page.text(".suspects p")[0].startswith("blue is answered red")
        assert page.text("#check .num, #check thead th")[:4] == ["class", "examples", "recall", "mostly confused with"]
        page.click(".suspects li > button:last-child")
        page.wait_for("document.querySelector('#undo').title === 'red-0.png → red'")
        page.wait_for("document.querySelector('#check-body').textContent.startsWith('12 of 12 examples')")


class TestFiles:
    def test_dropped_files_and_items_become_examples(self, visit: Visit, tmp_path: Path) -> None:
        page = visit()
        label_colours(page)
        new = [write_picture(tmp_path / "new" / f"blue-{i}.png", COLOURS["blue"], 900 + i) for i in (7, 8)]
        page.upload("#files", new)
        page.wait_for(cards(14))
        page.wait_for("[...document.querySelectorAll('#items .verdict')].every(v => v.querySelector('.what'))")
        assert answers(page)["dropped/blue-7.png"] == "blue"
        page.js(
            """(() => { const data = new DataTransfer();
            const card = document.querySelector("#items .card[title='red-3.png']");
            const row = [...document.querySelectorAll('#classes > li')].find(l => l.textContent.includes('red'));
            card.dispatchEvent(new DragEvent('dragstart', {bubbles: true, dataTransfer: data}));
            for (const kind of ['dragover', 'drop'])
              row.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data})); })()"""
        )
        page.wait_for(cards(13))
        # What is no picture is named beside those that are.
        green = write_picture(tmp_path / "new" / "green-9.png", COLOURS["green"], 5).read_bytes()
        drop_files(page, "green", {"broken.png": b"\1\2\3", "green-9.png": green})
        page.wait_for("document.querySelectorAll('.examples li').length === 5")
        page.wait_for("document.querySelector('#problem').textContent.includes('broken.png')")
        page.errors.clear()  # the refused one

    def test_dropped_folder_brings_the_files_in_it(self, visit: Visit, tmp_path: Path) -> None:
        for n, name in enumerate(("red-7.png", "deep/red-8.png")):
            write_picture(tmp_path / "album" / name, COLOURS["red"], 700 + n)
        (tmp_path / "album" / ".DS_Store").write_bytes(b"of a file manager")
        page = visit()
        add_class(page, "red")
        data = {"items": [], "files": [str(tmp_path / "album")], "dragOperationsMask": 1}
        x, y = page.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({BOX}('#classes .give'))")
        for kind in ("dragEnter", "dragOver", "drop"):
            page.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
        page.wait_for("document.querySelectorAll('.examples li').length === 2")
        assert page.js("document.querySelector('#problem').hidden")

    def test_unreadable_picture_shows_its_reason(self, visit: Visit) -> None:
        (visit.folder / "broken.png").write_bytes(b"nothing")
        page = visit()
        assert page.text("#count") == ["15 of 16, 1 unreadable"]
        page.js("document.querySelector('#show').value = 'failed'")
        page.js("document.querySelector('#show').dispatchEvent(new Event('input'))")
        page.wait_for(cards(1))
        reason = "broken.png cannot be read as a picture"
        assert reason in page.text("#items .text")[0]
        choose_card(page)
        for name, place in {"w": "#why-body", "z": "#zoom-body"}.items():
            key(page, name)
            page.wait_for(f"document.querySelector('{place}').textContent.includes('{reason}')")
        assert page.images()[1] == []
        page.errors.clear()  # the item has no features to explain

    def test_empty_project_begins_with_files(self, visit: Visit, tmp_path: Path) -> None:
        visit.folder = tmp_path / "new"
        page = visit(0, width=400)
        hidden = "[...document.querySelectorAll('#begin, #list, #next')].map(e => e.hidden)"
        assert page.js(hidden) == [True, False, True]  # next, begin, list
        page.upload("#first-files", [write_picture(tmp_path / "a.png", COLOURS["red"], 1)])
        page.wait_for(cards(1))
        assert page.js("document.querySelector('#begin').hidden")

    def test_new_files_appear_on_every_page(self, visit: Visit) -> None:
        pages = [visit(), visit(width=400)]
        page = pages[1]
        page.click("#look")
        page.wait_for("document.querySelector('#looked').textContent === 'Nothing more in the folder.'", 60)
        write_picture(visit.folder / "red-8.png", COLOURS["red"], 8)
        page.click("#look")
        page.wait_for("document.querySelector('#looked').textContent === '1 new item.'", 60)
        write_picture(visit.folder / "red-9.png", COLOURS["red"], 9)
        page.js("window.dispatchEvent(new Event('focus'))")  # as on coming back from another window
        for page in pages:
            page.wait_for(cards(17), 60)
            assert page.overflow() == []

    def test_folders_become_classes_by_a_click(self, visit: Visit, tmp_path: Path) -> None:
        visit.folder = tmp_path / "folders"
        for c, (name, colour) in enumerate(COLOURS.items()):
            write_picture(visit.folder / name / "0.png", colour, c)
            write_picture(visit.folder / f"{name}-1.png", colour, 50 + c)
        page = visit(6)
        assert page.text("#take-folders") == ["Take the 3 folders as classes"]
        page.click("#take-folders")
        page.wait_for("document.querySelectorAll('#items .verdict .what').length === 3")
        assert all_right(page)
        assert page.js("document.querySelector('#take-folders').hidden")
        assert page.text("#estimate")[0].startswith("Too early for an accuracy. Up to 100% of the items")

    def test_labels_of_a_dropped_file_become_classes_by_a_click(self, visit: Visit, tmp_path: Path) -> None:
        visit.folder, visit.serve = tmp_path / "notes", serve_texts
        page, file = visit(0, width=400), tmp_path / "reviews.csv"
        rows = "text,label\nok,<b>short\nyes,\nvery long indeed,long\nquite as long as it,\n"
        file.write_text(rows, encoding="utf-8")
        page.upload("#first-files", [file])
        page.wait_for("document.querySelector('#take-labels').checkVisibility()", 60)
        assert page.text("#take-labels") == ["Take the 2 labels as classes"]
        page.click("#take-labels")
        page.wait_for("document.querySelectorAll('#items .verdict .what').length === 2", 60)
        assert answers(page) == {"reviews.csv: 2": "<b>short", "reviews.csv: 4": "long"}
        assert page.js("document.querySelector('#take-labels').hidden")

    def test_files_left_out_are_named_until_that_is_closed(self, visit: Visit) -> None:
        (visit.folder / "<b>notes.txt").write_text("a note", encoding="utf-8")
        page = visit()
        note = "left out: <b>notes.txt; this project holds pictures; put texts into a folder of their own"
        assert page.text("#notes li") == [note]
        for width in (1400, 400):
            page.resize(width)
            assert page.overflow() == page.contrast() == []
        page.click("#close-notes")
        page.wait_for("document.querySelector('#notes').hidden")
        add_class(page, "red")  # drawn again, it stays closed
        assert page.js("document.querySelector('#notes').hidden")

    def test_exports_give_the_table_and_the_classifier_of_the_page(self, visit: Visit, tmp_path: Path) -> None:
        page = visit()
        page.click("#export summary")
        page.click("#export a[href$='.fewcal']")
        page.wait_for("document.querySelector('#problem').textContent.startsWith('There is no classifier yet')")
        assert not page.js("document.querySelector('#export').open")
        page.click("#export summary")
        page.press("Escape")
        page.wait_for("!document.querySelector('#export').open")
        label_colours(page)
        assert page.js("document.querySelector('#problem').hidden")
        text = page.js("fetch('api/export/answers.csv').then(r => r.text())")
        rows = {row["item"]: row for row in csv.DictReader(io.StringIO(text.lstrip("\ufeff")))}
        assert {name: rows[name]["class"] for name in answers(page)} == answers(page)
        assert {row["by"] for row in rows.values()} == {"person", "fewcal"}
        file = "fetch('api/export/classifier.fewcal').then(r => r.arrayBuffer())"
        data = page.js(f"{file}.then(b => btoa(String.fromCharCode(...new Uint8Array(b))))")
        (tmp_path / "colours.fewcal").write_bytes(base64.b64decode(data))
        classifier, extractor = FewShotClassifier.load(tmp_path / "colours.fewcal"), colour_extractor()
        assert classifier.extractor_ == extractor.stamp
        state = page.js("fetch('api/state').then(r => r.json())")
        names = {c["id"]: c["name"] for c in state["classes"]}
        for item in state["items"]:
            row = extractor([decode_fitted(decode(visit.folder / item["name"], 16), 8)])
            assert str(classifier.predict(row)[0]) == names[item["answer"]]
            assert float(classifier.predict_proba(row).max()) == pytest.approx(item["top"][0][1], abs=1e-3)


class TestPages:
    def test_two_tabs_stay_consistent(self, visit: Visit) -> None:
        first, second = visit(), visit()
        label_colours(first)
        second.wait_for(cards(12))
        assert answers(second) == answers(first)
        key(second, "u")
        first.wait_for(cards(13))

    def test_typing_survives_changes_of_another_page(self, visit: Visit) -> None:
        first, second = visit(), visit()
        add_class(first, "red")
        second.wait_for("document.querySelectorAll('#classes > li').length === 2")
        second.js("[...document.querySelectorAll('#classes button')].find(b => b.textContent === 'Rename').click()")
        second.call("Input.insertText", text="crim")
        label(first, "red-0.png", "1")
        second.wait_for(cards(14))
        second.call("Input.insertText", text="son")
        second.press("Enter")
        for page in (first, second):
            page.wait_for("document.querySelector('#classes .what')?.textContent === 'crimson'")
            assert labels(page) == 1

    def test_undo_names_what_the_server_took_back(self, visit: Visit) -> None:
        first, second = visit(), visit()
        add_class(first, "red")
        # The second page has not seen the class of the first one yet: its events are held back.
        second.wait_for("document.querySelectorAll('#classes > li').length === 2")
        second.call("Network.setBlockedURLs", urls=["*/api/state"])
        add_class(first, "blue")
        key(second, "u")
        second.wait_for("document.querySelector('#live').textContent.startsWith('Undone: class blue added')")
        second.errors.clear()

    def test_name_typed_before_the_last_one_is_answered_stays(self, visit: Visit) -> None:
        page = visit()
        slow = {"latency": 400, "downloadThroughput": -1, "uploadThroughput": -1}
        page.call("Network.emulateNetworkConditions", offline=False, **slow)
        key(page, "c")
        for name in ("red", "blue"):  # the second one while the first is under way
            page.call("Input.insertText", text=name)
            page.press("Enter")
        page.wait_for("document.querySelectorAll('#classes > li').length === 3")
        page.call("Input.insertText", text="red")
        page.press("Enter")  # refused, so it comes back
        page.wait_for("document.querySelector('#problem').textContent.includes('already')")
        assert page.js("document.querySelector('#class-name').value") == "red"
        page.errors.clear()

    def test_kill_loses_nothing_and_is_shown(self, visit: Visit) -> None:
        page = visit()
        label_colours(page)
        before = answers(page)
        page.resize(400)
        choose_card(page)
        assert "Take label away" not in page.text("#actions button")
        key(page, "w")
        page.wait_for("!document.querySelector('#why').hidden")
        assert page.js(f"{BOX}('#why').bottom <= {BOX}('#actions').top")
        visit.server.kill()
        page.wait_for("!document.querySelector('#problem').hidden")
        page.js("scrollTo(0, document.body.scrollHeight)")
        page.wait_for(f"scrollY > 0 && {BOX}('#problem').top >= 0")
        assert "open the link that it prints" in page.text("#problem")[0]
        page.errors.clear()
        visit.start()
        again = visit(12)
        assert answers(again) == before
        key(again, "u")  # history as well
        again.wait_for(cards(13))

    def test_names_are_data_in_the_page(self, visit: Visit) -> None:
        page = visit()
        evil = "<img src=x onerror=alert(1)>"
        for n, (name, item) in enumerate({evil: "red-0.png", "other": "blue-0.png"}.items(), 1):
            add_class(page, name)
            label(page, item, str(n))
        assert evil in page.text("#classes .what")
        assert evil in answers(page).values()
        assert page.js("document.querySelectorAll('img[src=x]').length") == 0

    @pytest.mark.parametrize("width", [400, 1400])
    @pytest.mark.parametrize("dark", [False, True])
    def test_page_is_readable_and_accessible(self, visit: Visit, width: int, dark: bool) -> None:
        page = visit(width=width, dark=dark)
        label_colours(page)
        if width == 400:
            assert page.js(f"{BOX}('#next').top < {BOX}('#side').top && {BOX}('#side').top < {BOX}('#main').top")
        choose_card(page)
        key(page, "w")
        page.wait_for("document.querySelectorAll('#why .bars li').length === 3")
        opened = {"": "true", "z": "document.querySelector('#zoom').open", "k": "!!document.querySelector('#check p')"}
        for name, shown in opened.items():
            if name:
                key(page, name)
            page.wait_for(shown)
            assert page.overflow() == page.contrast() == page.images()[1] == []
            assert AXE is None or page.faults() == []
            page.js("for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close()")
        assert all(r.startswith(visit.server.link.partition("/?")[0]) for r in page.requests)

    def test_sentences_have_the_width_to_be_read(self, visit: Visit, tmp_path: Path) -> None:
        visit.folder, visit.serve = tmp_path / "notes", serve_texts
        visit.folder.mkdir()
        words = "snow and cold wind in the evening "
        lines = "\n".join(f"{n} {words * n}" for n in range(1, 13))
        (visit.folder / "notes.txt").write_text(lines, encoding="utf-8")
        page = visit(12)
        for width in (1400, 400):
            page.resize(width)
            assert page.js("Math.min(...[...document.querySelectorAll('.card')].map(c => c.offsetWidth))") >= 150
            # Six lines and no half one.
            assert page.js("Math.max(...[...document.querySelectorAll('.card .text')].map(t => t.offsetHeight))") <= 140
            assert page.overflow() == []
