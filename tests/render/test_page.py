"""The page: one file, opened in a real browser; wrong input gets one line with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from browser import Browser
from fewcal.errors import InputError
from fewcal.render import Cell, Page, figures
from fewcal.render.page import image_uri

# The smallest PNG: one pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe0def46b8"
    "0000000049454e44ae426082"
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><rect width="9" height="9"/></svg>'


def sample_page() -> Page:
    page = Page("A <b>title</b>", "and more")
    page.heading("Numbers")
    page.table(
        ["name", "value", "words"],
        [["b", 2.5, "x"], ["a", Cell("10.0 ± 1", sort=10.0, mark="best", title="the most"), "z"], ["c", None, "y"]],
        "A table",
    )
    page.heading("Pictures")
    page.figure(PNG, "one pixel", "a caption")
    page.gallery([(SVG, "a red box", "red"), (PNG, "one pixel", "")])
    page.heading("Numbers", 3)
    with page.details("More"):
        page.facts({"a": 1, "b": {"c": [1, 2.5, True], "d": None}, "e": {}, "f": []})
        page.heading("Inside", 3)
    page.items(["one", "`two`"])
    page.note("mind this", "warning")
    page.html("<p><em>raw</em></p>")
    return page


@pytest.fixture
def file(tmp_path: Path) -> Path:
    sample_page().write(tmp_path / "page.html")
    return tmp_path / "page.html"


def test_page_is_one_file_without_addresses() -> None:
    html = sample_page().render()
    assert "A &lt;b&gt;title" in html
    assert "<em>raw</em>" in html
    # Nothing outside is named: sources are data, links lead into the page.
    assert {v.partition(":")[0] for v in re.findall(r'src="([^"]*)"', html)} == {"data"}
    assert all(v.startswith(("#", "data:")) for v in re.findall(r'href="([^"]*)"', html))
    assert re.search(r"url\(|@import", html) is None
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert sample_page().render() == html


def test_page_in_a_browser_has_parts_pictures_and_a_first_tab_stop(browser: Browser, file: Path) -> None:
    page = browser.open(file, width=1280)
    assert (page.errors, page.requests, page.images()) == ([], [], (3, []))
    assert page.js("document.documentElement.lang") == "en"
    assert page.js("[...document.images].every(i => i.alt)") is True
    assert page.js("['header', 'nav', 'main', 'footer'].every(t => document.querySelector(t))") is True
    page.press("Tab")
    assert page.js("document.activeElement.textContent") == "Skip to content"
    page.close()


def test_tables_sort_by_click_and_by_key(browser: Browser, file: Path) -> None:
    page = browser.open(file)
    sort = "[...document.querySelectorAll('thead th')].map(h => h.ariaSort)"

    def first_column() -> list[str]:
        return list(page.js("[...document.querySelector('table').tBodies[0].rows].map(r => r.cells[0].textContent)"))

    assert first_column() == ["b", "a", "c"]
    page.click("th:nth-child(2) button")  # numbers: the largest first, what is missing last
    assert (first_column(), page.js(sort)) == (["a", "b", "c"], ["none", "descending", "none"])
    page.press("Enter")  # the button has the focus
    assert (first_column(), page.js(sort)) == (["b", "a", "c"], ["none", "ascending", "none"])
    page.js("document.querySelector('th:nth-child(1) button').focus()")
    page.press(" ")
    assert first_column() == ["a", "b", "c"]
    assert page.text("[role=status]") == ["Sorted by name, ascending."]
    page.press("Enter")
    assert first_column() == ["c", "b", "a"]
    assert page.errors == []
    page.close()


def test_colours_follow_the_system_until_the_reader_chooses(browser: Browser, file: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light, dark = browser.open(file), browser.open(file, dark=True)
    day, night = light.js(back), dark.js(back)
    assert day != night
    assert light.contrast() == dark.contrast() == []
    light.click("#theme")
    assert (light.js(back), light.contrast(), light.text("#theme")) == (night, [], ["Light"])
    dark.click("#theme")
    dark.scheme(True)
    assert dark.js(back) == day
    light.close()
    dark.close()


def test_letters_of_charts_are_not_made_small_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    page = Page("x")
    page.figure(figures.accuracy_intervals({"a method": {"accuracy": 0.5}}), "a chart as wide as a phone")
    lines = {"a": ([0.0, 1.0], [0.0, 0.0])}
    page.figure(figures.accuracy_panels([0, 1], dict.fromkeys("xyz", lines), xlabel="k"), "a chart of panels")
    page.write(tmp_path / "page.html")
    scale = "[...document.querySelectorAll('img.chart')].map(i => i.getBoundingClientRect().width / i.naturalWidth)"
    phone = browser.open(tmp_path / "page.html", width=400)
    assert min(phone.js(scale)) >= 0.95
    assert phone.overflow() == []  # what is wider moves sideways in a box of its own
    assert phone.js("document.querySelectorAll('.wide').length") == 1
    phone.resize(1400)
    assert min(phone.js(scale)) > 1.2
    phone.close()


def test_charts_follow_the_dark_and_pictures_do_not(browser: Browser, tmp_path: Path) -> None:
    page = Page("x")
    page.figure(figures.mean_curve([0, 1], {"a": [0, 1]}), "a chart of one line")
    page.figure(PNG, "a picture of one pixel")
    page.write(tmp_path / "page.html")
    seen = {}
    for dark in (False, True):
        opened = browser.open(tmp_path / "page.html", dark=dark)
        x, y = opened.js("(r => [r.x, r.y])(document.querySelector('img.chart').getBoundingClientRect())")
        opened.screenshot(tmp_path / "page.png")
        with Image.open(tmp_path / "page.png") as shot:
            # A corner of the chart, within its rounded border, and the ground of the page beside it.
            seen[dark] = [shot.convert("L").getpixel((int(x) + dx, int(y) + 12)) for dx in (12, -4)]
        assert opened.js("getComputedStyle(document.querySelectorAll('img')[1]).filter") == "none"
        opened.close()
    assert seen[False] == [255, 255]
    assert max(seen[True]) < 40  # type: ignore[type-var]


def test_scripts_in_texts_do_not_run(browser: Browser, tmp_path: Path) -> None:
    page = Page("x")
    page.text("<script>document.title = 'escaped'</script>")
    page.html("<script>document.title = 'raw'</script><img src='http://a.invalid/x.png' alt='x'>")
    page.write(tmp_path / "page.html")
    opened = browser.open(tmp_path / "page.html")
    assert opened.js("document.title") == "x"
    assert any("Content Security Policy" in e for e in opened.errors)
    opened.close()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda page: page.figure(PNG, "  "), "alternative text"),
        (lambda page: page.figure(b"GIF89a", "x"), "use PNG, JPEG, WebP or SVG"),
        (lambda page: page.figure("file.png", "x"), "an image is str"),
        (lambda page: page.table(["a", "b"], [["c"]]), "has 1 cells, its header 2"),
        (lambda page: page.heading("x", 1), "must be 2, 3 or 4"),
        (lambda page: page.note("x", "hint"), "'note' or 'warning'"),
        (lambda page: Cell("x", mark="top"), "mark 'top' is unknown"),
    ],
)
def test_wrong_part_of_a_page_is_refused(act: Callable[[Page], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        act(Page("x"))


def test_pictures_are_known_by_their_content() -> None:
    for data, kind in (
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
        (PNG, "png"),
        (SVG, "svg+xml"),
    ):
        assert image_uri(data).startswith(f"data:image/{kind};base64,")


@given(
    st.lists(
        st.lists(st.none() | st.text(max_size=8) | st.integers() | st.floats(), min_size=2, max_size=2), max_size=5
    )
)
@settings(deadline=None)
def test_any_values_make_a_table(rows: list) -> None:
    page = Page("x")
    page.table(["a", "b"], rows)
    assert page.render().count("<tr>") == len(rows) + 1
