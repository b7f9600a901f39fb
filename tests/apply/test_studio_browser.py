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
from fewcal import GDCClassifier
from fewcal.features.sources.pictures import decode, fitted
from limits import PATIENCE
from processes import FORKED
from studio_project import COLOURS, colour_extractor, colour_folder, serve_colours, serve_texts, write_picture


class Server:
    """A studio in a process of its own."""

    def __init__(self, folder: Path, serve: Callable[[Path, Connection], None] = serve_colours) -> None:
        receiver, sender = FORKED.Pipe(duplex=False)
        self.process = FORKED.Process(target=serve, args=(folder, sender))
        self.process.start()
        sender.close()  # so that one who ended early is noticed
        self.link: str = receiver.recv()
        assert self.link.startswith("http://127.0.0.1:")

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(PATIENCE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return colour_folder(tmp_path / "photos", each=5)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    one = Server(folder)
    yield one
    if one.process.is_alive():
        one.stop()


def opened(browser: Browser, server: Server, width: int = 1400, dark: bool = False, items: int = 15) -> BrowserPage:
    page = browser.open(server.link, width=width, dark=dark)
    page.wait_for("document.documentElement.dataset.ready === 'yes'")
    page.wait_for(
        f"document.querySelectorAll('#items .card').length === {items} && document.querySelector('#work').hidden"
    )
    return page


def key(page: BrowserPage, name: str) -> None:
    """A key on whatever has the focus."""
    common = {"key": name, "code": name, "text": name if len(name) == 1 else ""}
    page.call("Input.dispatchKeyEvent", type="keyDown", **common)
    page.call("Input.dispatchKeyEvent", type="keyUp", **common)


def choose_card(page: BrowserPage) -> None:
    """Click the first card until it is chosen: on a busy machine the list may be drawn anew under the pointer."""
    for _ in range(50):
        page.click("#items .card")
        if page.js("document.activeElement.closest('#items .card') !== null"):
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
    return int(
        page.js("[...document.querySelectorAll('#classes .share')].reduce((n, e) => n + parseInt(e.textContent), 0)")
    )


def label(page: BrowserPage, item: str, digit: str) -> None:
    """Select an item by a click and give it a class by its number."""
    before = labels(page)
    page.click(f"#items .card[title='{item}']")
    key(page, digit)
    page.wait_for(f"document.querySelector('#undo').title.startsWith({item!r})")
    assert labels(page) == before + 1


def answers(page: BrowserPage) -> dict[str, str]:
    """What each item without a label is answered with."""
    return dict(
        page.js(
            "[...document.querySelectorAll('#items .card')].filter(c => !c.querySelector('.labelled'))"
            ".map(c => [c.title, c.querySelector('.verdict .what')?.textContent ?? '?'])"
        )
    )


def label_colours(page: BrowserPage) -> None:
    for n, name in enumerate(COLOURS, 1):
        add_class(page, name)
        label(page, f"{name}-0.png", str(n))


def all_right(page: BrowserPage) -> bool:
    found = answers(page)
    return bool(found) and all(answer == name.rpartition("/")[2].partition("-")[0] for name, answer in found.items())


def test_a_link_on_another_page_leads_in(browser: Browser, server: Server, tmp_path: Path) -> None:
    """As in a notebook or a chat: browsers hold strict cookies back on such a way."""
    (tmp_path / "chat.html").write_text(f'<!doctype html><title>chat</title><a href="{server.link}">the studio</a>')
    page = browser.open(tmp_path / "chat.html")
    page.click("a")
    page.wait_for("document.documentElement?.dataset.ready === 'yes'")  # none between two pages
    add_class(page, "red")  # and what it asks for is taken as its own
    page.close()


def test_label_by_key_undo_and_redo(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    assert set(answers(page).values()) == {"?"}
    *known, last = COLOURS
    for n, name in enumerate(COLOURS, 1):
        add_class(page, name)
        if name in known:
            label(page, f"{name}-0.png", str(n))
    # An example of the last class changes what its kind is answered with, and undo takes that back.
    before, without = page.text("#items .verdict"), answers(page)
    assert len(without) == 13
    assert set(without.values()) == set(known)
    label(page, f"{last}-0.png", str(len(COLOURS)))
    assert all_right(page)
    key(page, "u")
    page.wait_for("document.querySelectorAll('#items .card').length === 13")
    assert page.text("#items .verdict") == before
    assert answers(page) == without
    key(page, "r")
    page.wait_for("document.querySelectorAll('#items .card').length === 12")
    assert all_right(page)
    assert page.errors == []
    page.close()


def test_label_next_goes_from_class_to_class(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    for name in COLOURS:
        add_class(page, name)
    seen = []
    for n in range(3):
        key(page, "n")
        item = page.wait_for("document.activeElement.closest('#next-items') && document.activeElement.title")
        seen.append(item.partition("-")[0])
        key(page, str(list(COLOURS).index(seen[-1]) + 1))
        page.wait_for(f"document.querySelectorAll('.examples li').length === {n + 1}")
    assert sorted(seen) == sorted(COLOURS)
    assert all_right(page)
    page.close()


def test_dropped_files_and_items(browser: Browser, server: Server, tmp_path: Path) -> None:
    page = opened(browser, server)
    label_colours(page)
    new = [write_picture(tmp_path / "new" / f"blue-{i}.png", COLOURS["blue"], 900 + i) for i in (7, 8)]
    page.upload("#files", new)
    page.wait_for("document.querySelectorAll('#items .card').length === 14")
    page.wait_for("[...document.querySelectorAll('#items .verdict')].every(v => v.querySelector('.what'))")
    assert answers(page)["dropped/blue-7.png"] == "blue"
    # An item dropped on a class, and a file dropped on a class.
    page.js(
        """(() => { const data = new DataTransfer();
        const card = document.querySelector("#items .card[title='red-3.png']");
        const row = [...document.querySelectorAll('#classes > li')].find(l => l.textContent.includes('red'));
        card.dispatchEvent(new DragEvent('dragstart', {bubbles: true, dataTransfer: data}));
        for (const kind of ['dragover', 'drop'])
          row.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data})); })()"""
    )
    page.wait_for("document.querySelectorAll('#items .card').length === 13")
    raw = json.dumps(list(write_picture(tmp_path / "new" / "green-9.png", COLOURS["green"], 5).read_bytes()))
    page.js(
        f"""(() => {{ const data = new DataTransfer();
        data.items.add(new File([new Uint8Array({raw})], 'green-9.png'));
        const row = [...document.querySelectorAll('#classes > li')].find(l => l.textContent.includes('green'));
        row.dispatchEvent(new DragEvent('drop', {{bubbles: true, cancelable: true, dataTransfer: data}})); }})()"""
    )
    page.wait_for("document.querySelectorAll('.examples li').length === 5")
    assert page.errors == []
    page.close()


def test_a_dropped_folder_brings_the_files_in_it(browser: Browser, server: Server, tmp_path: Path) -> None:
    for n, name in enumerate(("red-7.png", "deep/red-8.png")):
        write_picture(tmp_path / "album" / name, COLOURS["red"], 700 + n)
    (tmp_path / "album" / ".DS_Store").write_bytes(b"of a file manager")
    page = opened(browser, server)
    add_class(page, "red")
    data = {"items": [], "files": [str(tmp_path / "album")], "dragOperationsMask": 1}
    x, y = page.js(
        "(() => { const r = document.querySelector('#classes .give').getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for kind in ("dragEnter", "dragOver", "drop"):
        page.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
    page.wait_for("document.querySelectorAll('.examples li').length === 2")
    assert page.js("document.querySelector('#problem').hidden")
    assert page.errors == []
    page.close()


def test_two_tabs_stay_consistent(browser: Browser, server: Server) -> None:
    first, second = opened(browser, server), opened(browser, server)
    label_colours(first)
    second.wait_for("document.querySelectorAll('#items .card').length === 12")
    assert answers(second) == answers(first)
    key(second, "u")
    first.wait_for("document.querySelectorAll('#items .card').length === 13")
    first.close()
    second.close()


def test_new_files_appear_on_every_page(browser: Browser, server: Server, folder: Path) -> None:
    pages = [opened(browser, server), opened(browser, server, width=400)]
    page = pages[1]
    page.click("#look")
    page.wait_for("document.querySelector('#looked').textContent === 'Nothing more in the folder.'", 60)
    write_picture(folder / "red-8.png", COLOURS["red"], 8)
    page.click("#look")
    page.wait_for("document.querySelector('#looked').textContent === '1 new item.'", 60)
    write_picture(folder / "red-9.png", COLOURS["red"], 9)
    page.js("window.dispatchEvent(new Event('focus'))")  # as on coming back from another window
    for page in pages:
        page.wait_for("document.querySelectorAll('#items .card').length === 17", 60)
        assert page.overflow() == []
        page.close()


def test_what_is_being_typed_survives_changes_of_another_page(browser: Browser, server: Server) -> None:
    first, second = opened(browser, server), opened(browser, server)
    add_class(first, "red")
    second.wait_for("document.querySelectorAll('#classes > li').length === 2")
    second.js("[...document.querySelectorAll('#classes button')].find(b => b.textContent === 'Rename').click()")
    second.call("Input.insertText", text="crim")
    label(first, "red-0.png", "1")
    second.wait_for("document.querySelectorAll('#items .card').length === 14")
    second.call("Input.insertText", text="son")
    second.press("Enter")
    for page in (first, second):
        page.wait_for("document.querySelector('#classes .what')?.textContent === 'crimson'")
        assert labels(page) == 1
        assert page.errors == []
        page.close()


def test_undo_says_what_the_server_took_back(browser: Browser, server: Server) -> None:
    first, second = opened(browser, server), opened(browser, server)
    add_class(first, "red")
    # The second page has not seen the class of the first one yet: its events are held back.
    second.wait_for("document.querySelectorAll('#classes > li').length === 2")
    second.call("Network.setBlockedURLs", urls=["*/api/state"])
    add_class(first, "blue")
    key(second, "u")
    second.wait_for("document.querySelector('#live').textContent.startsWith('Undone: class blue added')")
    first.close()
    second.close()


def test_files_that_are_no_pictures_are_told_beside_those_that_are(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    page = opened(browser, server)
    add_class(page, "blue")
    raw = json.dumps(list(write_picture(tmp_path / "b.png", COLOURS["blue"], 5).read_bytes()))
    page.js(
        f"""(() => {{ const data = new DataTransfer();
        data.items.add(new File([new Uint8Array([1, 2, 3])], 'broken.png'));
        data.items.add(new File([new Uint8Array({raw})], 'b.png'));
        document.querySelector('#classes > li').dispatchEvent(
          new DragEvent('drop', {{bubbles: true, cancelable: true, dataTransfer: data}})); }})()"""
    )
    page.wait_for("document.querySelectorAll('.examples li').length === 1")
    page.wait_for("document.querySelector('#problem').textContent.includes('broken.png')")
    page.close()


def test_a_picture_that_cannot_be_read_says_why(browser: Browser, folder: Path) -> None:
    (folder / "broken.png").write_bytes(b"nothing")
    server = Server(folder)
    page = opened(browser, server)
    assert page.text("#count") == ["15 of 16, 1 unreadable"]
    page.js("document.querySelector('#show').value = 'failed'")
    page.js("document.querySelector('#show').dispatchEvent(new Event('input'))")
    page.wait_for("document.querySelectorAll('#items .card').length === 1")
    reason = "broken.png cannot be read as a picture"
    assert reason in page.text("#items .text")[0]
    choose_card(page)
    key(page, "w")
    page.wait_for(f"document.querySelector('#why-body').textContent.includes('{reason}')")
    key(page, "z")
    page.wait_for(f"document.querySelector('#zoom-body').textContent.includes('{reason}')")
    assert page.images()[1] == []
    page.close()
    server.stop()


def test_an_empty_project_begins_with_files(browser: Browser, tmp_path: Path) -> None:
    server = Server(tmp_path / "new")
    page = browser.open(server.link, width=400)
    page.wait_for("document.documentElement.dataset.ready === 'yes'")
    assert page.js("[...document.querySelectorAll('#begin, #list, #next')].map(e => e.hidden)") == [True, False, True]
    page.upload("#first-files", [write_picture(tmp_path / "a.png", COLOURS["red"], 1)])
    page.wait_for("document.querySelectorAll('#items .card').length === 1")
    assert page.js("document.querySelector('#begin').hidden")
    page.close()
    server.stop()


def test_what_is_wrong_stays_in_sight_and_panels_do_not_cover_each_other(browser: Browser, server: Server) -> None:
    page = opened(browser, server, width=400)
    choose_card(page)
    assert "Take label away" not in page.text("#actions button")
    key(page, "w")
    page.wait_for("!document.querySelector('#why').hidden")
    box = "(id => document.querySelector(id).getBoundingClientRect())"
    assert page.js(f"{box}('#why').bottom <= {box}('#actions').top")
    server.process.kill()
    server.process.join(PATIENCE)
    page.wait_for("!document.querySelector('#problem').hidden")
    page.js("scrollTo(0, document.body.scrollHeight)")
    page.wait_for(f"scrollY > 0 && {box}('#problem').top >= 0")
    assert "open the link that it prints" in page.text("#problem")[0]
    page.close()


def test_exports_that_there_is_nothing_for_say_what_is_missing(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    page.click("#export summary")
    page.click("#export a[href$='.fewcal']")
    page.wait_for("document.querySelector('#problem').textContent.startsWith('There is no classifier yet')")
    assert not page.js("document.querySelector('#export').open")
    page.click("#export summary")
    page.press("Escape")
    page.wait_for("!document.querySelector('#export').open")
    label_colours(page)
    assert page.js("document.querySelector('#problem').hidden")
    assert page.text("#estimate")[0].startswith("About ")
    page.close()


def test_a_name_that_is_typed_before_the_last_one_is_answered_stays(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
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
    page.close()


def test_a_kill_loses_nothing(browser: Browser, server: Server, folder: Path) -> None:
    page = opened(browser, server)
    label_colours(page)
    before = answers(page)
    server.process.kill()
    server.process.join(PATIENCE)
    page.close()
    again = Server(folder)
    try:
        page = browser.open(again.link, width=1400)
        page.wait_for("document.querySelectorAll('#items .card').length === 12")
        assert answers(page) == before
        key(page, "u")  # history as well
        page.wait_for("document.querySelectorAll('#items .card').length === 13")
        page.close()
    finally:
        again.stop()


def test_exports(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    label_colours(page)
    text = page.js("fetch('/api/export/answers.csv').then(r => r.text())")
    rows = {row["item"]: row for row in csv.DictReader(io.StringIO(text.lstrip("\ufeff")))}
    assert {name: rows[name]["class"] for name in answers(page)} == answers(page)
    assert {row["by"] for row in rows.values()} == {"person", "fewcal"}
    page.close()


def test_the_exported_classifier_answers_the_same(
    browser: Browser, server: Server, folder: Path, tmp_path: Path
) -> None:
    page = opened(browser, server)
    label_colours(page)
    data = page.js(
        "fetch('/api/export/classifier.fewcal').then(r => r.arrayBuffer())"
        ".then(b => btoa(String.fromCharCode(...new Uint8Array(b))))"
    )
    (tmp_path / "colours.fewcal").write_bytes(base64.b64decode(data))
    state = page.js("fetch('/api/state').then(r => r.json())")
    classifier, extractor = GDCClassifier.load(tmp_path / "colours.fewcal"), colour_extractor()
    assert classifier.extractor_ == extractor.stamp
    names = {c["id"]: c["name"] for c in state["classes"]}
    for item in state["items"]:
        row = extractor([fitted(decode(folder / item["name"], 16), 8)])
        assert str(classifier.predict(row)[0]) == names[item["answer"]]
        assert float(classifier.predict_proba(row).max()) == pytest.approx(item["top"][0][1], abs=1e-3)
    page.close()


def test_names_are_data_in_the_page(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    evil = "<img src=x onerror=alert(1)>"
    add_class(page, evil)
    assert evil in page.text("#classes .what")
    label(page, "red-0.png", "1")
    add_class(page, "other")
    label(page, "blue-0.png", "2")
    assert evil in answers(page).values()
    assert page.js("document.querySelectorAll('img[src=x]').length") == 0
    assert page.errors == []
    page.close()


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_readable(browser: Browser, server: Server, width: int, dark: bool) -> None:
    page = opened(browser, server, width, dark)
    label_colours(page)
    choose_card(page)
    key(page, "w")
    page.wait_for("document.querySelectorAll('#why .bars li').length === 3")
    assert page.overflow() == []
    assert page.contrast() == []
    key(page, "z")
    page.wait_for("document.querySelector('#zoom').open")
    assert page.images()[1] == []
    page.press("Escape")
    page.wait_for("!document.querySelector('#zoom').open")
    assert page.errors == []
    assert all(r.startswith(server.link.partition("/?")[0]) for r in page.requests)
    page.close()


@pytest.mark.skipif(AXE is None, reason="needs axe-core (pip install axe-core-python)")
@pytest.mark.parametrize("width", [400, 1400])
def test_axe_finds_no_serious_fault(browser: Browser, server: Server, width: int) -> None:
    page = opened(browser, server, width)
    label_colours(page)
    choose_card(page)
    key(page, "w")
    page.wait_for("document.querySelectorAll('#why .bars li').length === 3")
    assert page.serious_faults() == []
    page.close()


def test_sentences_have_the_width_to_be_read(browser: Browser, tmp_path: Path) -> None:
    words = "snow and cold wind in the evening "
    (tmp_path / "notes.txt").write_text("\n".join(f"{n} {words * n}" for n in range(1, 13)), encoding="utf-8")
    server = Server(tmp_path, serve_texts)
    page = opened(browser, server, items=12)
    for width in (1400, 400):
        page.resize(width)
        assert page.js("Math.min(...[...document.querySelectorAll('.card')].map(c => c.offsetWidth))") >= 150
        # Six lines and no half one.
        assert page.js("Math.max(...[...document.querySelectorAll('.card .text')].map(t => t.offsetHeight))") <= 140
        assert page.overflow() == []
    page.close()
    server.stop()


def test_folders_become_classes_by_a_click(browser: Browser, tmp_path: Path) -> None:
    for c, (name, colour) in enumerate(COLOURS.items()):
        write_picture(tmp_path / "photos" / name / "0.png", colour, c)
        write_picture(tmp_path / "photos" / f"{name}-1.png", colour, 50 + c)
    server = Server(tmp_path / "photos")
    page = opened(browser, server, items=6)
    assert page.text("#take-folders") == ["Take the 3 folders as classes"]
    page.click("#take-folders")
    page.wait_for("document.querySelectorAll('#items .verdict .what').length === 3")
    assert all_right(page)
    assert page.js("document.querySelector('#take-folders').hidden")
    server.stop()


def test_what_is_left_out_is_told_until_it_is_closed(browser: Browser, folder: Path) -> None:
    (folder / "<b>notes.txt").write_text("a note", encoding="utf-8")
    server = Server(folder)
    page = opened(browser, server)
    assert page.text("#notes li") == [
        "left out: <b>notes.txt; this project holds pictures; put texts into a folder of their own"
    ]
    for width in (1400, 400):
        page.resize(width)
        assert page.overflow() == []
        assert page.contrast() == []
    page.click("#close-notes")
    page.wait_for("document.querySelector('#notes').hidden")
    add_class(page, "red")  # drawn anew, it stays closed
    assert page.js("document.querySelector('#notes').hidden")
    page.close()
    server.stop()


def test_labels_of_a_dropped_file_become_classes_by_a_click(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    server = Server(tmp_path / "notes", serve_texts)
    page = opened(browser, server, width=400, items=0)
    file = tmp_path / "reviews.csv"
    file.write_text("text,label\nok,<b>short\nyes,\nvery long indeed,long\nquite as long as it,\n", encoding="utf-8")
    page.upload("#first-files", [file])
    page.wait_for("document.querySelector('#take-labels').checkVisibility()", 60)
    assert page.text("#take-labels") == ["Take the 2 labels as classes"]
    for width in (1400, 400):
        page.resize(width)
        assert page.overflow() == []
    page.click("#take-labels")
    page.wait_for("document.querySelectorAll('#items .verdict .what').length === 2", 60)
    assert answers(page) == {"reviews.csv: 2": "<b>short", "reviews.csv: 4": "long"}
    assert page.js("document.querySelector('#take-labels').hidden")
    page.close()
    server.stop()
