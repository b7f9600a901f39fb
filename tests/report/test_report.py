"""The page and the report: one file, opened in a real browser; wrong input gets one line that says what to do."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from browser import Browser, BrowserPage
from fewcal.cli import application, main
from fewcal.episodes import sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods import Method, make_method
from fewcal.render import Cell, Page, figures
from fewcal.render.page import image_uri
from fewcal.report.groups import group_runs
from fewcal.report.hardest import explain_tasks
from fewcal.report.run_report import run_report
from small_features import feature_set, save_features, split

PROTOCOL = Protocol(way=3, shot=2, query=5, tasks=30, seed=1)


def weighted(*names: str) -> dict[str, Method]:
    """Methods by name, and GDC with weighted neighbours, which calibrates with few base classes too."""
    return {name: make_method(name) for name in names} | {"gdc": make_method("gdc", "whitened")}


# The smallest PNG: one pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe0def46b8"
    "0000000049454e44ae426082"
)
SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><rect width="9" height="9" style="fill:red"/>'
    + b"</svg>"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs on the same tasks, one on others, and their features."""
    folder = tmp_path_factory.mktemp("runs")
    fs = feature_set()
    evaluate(weighted("ncm"), fs, PROTOCOL, out=folder / "first")
    evaluate("simpleshot,gdc:dc", fs, PROTOCOL, out=folder / "second")
    evaluate(weighted("ncm"), fs, Protocol(way=3, shot=1, query=5, tasks=20), out=folder / "other")
    fs.save(folder / "features")
    return {p.name: p for p in folder.iterdir()}


@pytest.fixture(scope="module")
def report_file(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    order = [runs["first"], runs["second"], runs["other"]]
    run_report(order, features=[runs["features"]], title="Made-up <features>").write(path)
    return path


# ---- the page -------------------------------------------------------------------------------------------------------


def sample_page() -> Page:
    page = Page("A <b>title</b>", "and more")
    page.heading("Numbers")
    page.table(
        ["name", "value", "words"],
        [
            ["b", 2.5, "x"],
            ["a", Cell("10.0 ± 1", sort=10.0, mark="best", title="the most"), "z"],
            ["c", None, Cell("y", href="#numbers")],
        ],
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


def test_a_page_is_one_file_without_addresses() -> None:
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


def test_a_page_works_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    sample_page().write(tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html", width=1280)
    assert page.errors == []
    assert page.requests == []
    assert page.images() == (3, [])
    assert page.js("document.documentElement.lang") == "en"
    assert page.js("[...document.images].every(i => i.alt)") is True
    assert page.js("['header', 'nav', 'main', 'footer'].every(t => document.querySelector(t))") is True
    page.press("Tab")
    assert page.js("document.activeElement.textContent") == "Skip to content"
    page.close()


def first_column(page: BrowserPage, table: int = 0) -> list[str]:
    return list(
        page.js(f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows].map(r => r.cells[0].textContent)")
    )


def test_tables_sort_by_click_and_by_key(browser: Browser, tmp_path: Path) -> None:
    sample_page().write(tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html")
    sort = "[...document.querySelectorAll('thead th')].map(h => h.ariaSort)"
    assert first_column(page) == ["b", "a", "c"]
    page.click("th:nth-child(2) button")  # numbers: the largest first, what is missing last
    assert first_column(page) == ["a", "b", "c"]
    assert page.js(sort) == ["none", "descending", "none"]
    page.press("Enter")  # the button has the focus
    assert first_column(page) == ["b", "a", "c"]
    assert page.js(sort) == ["none", "ascending", "none"]
    page.js("document.querySelector('th:nth-child(1) button').focus()")
    page.press(" ")
    assert first_column(page) == ["a", "b", "c"]
    assert page.text("[role=status]") == ["Sorted by name, ascending."]
    page.press("Enter")
    assert first_column(page) == ["c", "b", "a"]
    assert page.errors == []
    page.close()


def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    sample_page().write(tmp_path / "page.html")
    back = "getComputedStyle(document.body).backgroundColor"
    light = browser.open(tmp_path / "page.html")
    dark = browser.open(tmp_path / "page.html", dark=True)
    day, night = light.js(back), dark.js(back)
    assert day != night
    assert light.contrast() == dark.contrast() == []
    light.click("#theme")
    assert light.js(back) == night
    assert light.contrast() == []
    assert light.text("#theme") == ["Light"]
    dark.click("#theme")
    assert dark.js(back) == day
    dark.scheme(True)  # what the reader chose outlives what the system says
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
            pixels = [shot.convert("L").getpixel((int(x) + dx, int(y) + 12)) for dx in (12, -4)]
        seen[dark] = pixels
        assert opened.js("getComputedStyle(document.querySelectorAll('img')[1]).filter") == "none"
        opened.close()
    assert seen[False] == [255, 255]
    assert max(seen[True]) < 40


def test_scripts_in_texts_do_not_run(browser: Browser, tmp_path: Path) -> None:
    page = Page("x")
    page.text("<script>document.title = 'escaped'</script>")
    page.html("<script>document.title = 'raw'</script><img src='http://a.invalid/x.png' alt='x'>")
    page.write(tmp_path / "page.html")
    opened = browser.open(tmp_path / "page.html")
    assert opened.js("document.title") == "x"
    assert any("Content Security Policy" in e for e in opened.errors)
    opened.close()


def test_wrong_parts_of_a_page() -> None:
    page = Page("x")
    with pytest.raises(InputError, match="alternative text"):
        page.figure(PNG, "  ")
    with pytest.raises(InputError, match="use PNG, JPEG, WebP or SVG"):
        page.figure(b"GIF89a", "x")
    with pytest.raises(InputError, match="an image is str"):
        page.figure("file.png", "x")
    with pytest.raises(InputError, match="has 1 cells, its header 2"):
        page.table(["a", "b"], [["c"]])
    with pytest.raises(InputError, match="must be 2, 3 or 4"):
        page.heading("x", 1)
    with pytest.raises(InputError, match="'note' or 'warning'"):
        page.note("x", "hint")
    with pytest.raises(InputError, match="mark 'top' is unknown"):
        Cell("x", mark="top")
    assert image_uri(b"\xff\xd8\xff\xe0").startswith("data:image/jpeg")
    assert image_uri(b"RIFF\0\0\0\0WEBPVP8 ").startswith("data:image/webp")


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


# ---- the report -----------------------------------------------------------------------------------------------------


def test_runs_on_the_same_tasks_are_together(runs: dict[str, Path]) -> None:
    groups = group_runs([runs["first"], runs["second"], runs["other"]], features=[runs["features"]])
    assert [list(g.summary.methods) for g in groups] == [["ncm", "gdc", "simpleshot", "gdc:dc"], ["ncm", "gdc"]]
    assert len(groups[0].summary.paired) == 6
    assert all(g.features is not None for g in groups)


def test_features_explain_only_runs_that_all_used_them(runs: dict[str, Path], tmp_path: Path) -> None:
    fs = feature_set()
    other = FeatureSet(split("c", 9, 20, 7), None, fs.novel)
    evaluate(weighted(), other, PROTOCOL, out=tmp_path / "bases")
    (group,) = group_runs([runs["first"], tmp_path / "bases"], features=[runs["features"]])
    assert list(group.summary.methods) == ["ncm", "first/gdc", "bases/gdc"]
    assert group.features is None


def test_explained_tasks_are_those_of_the_run(runs: dict[str, Path]) -> None:
    (group,) = group_runs([runs["first"]], features=[runs["features"]])
    for story in explain_tasks(group, "gdc", [0, 7, 29]):
        task, explanation, confusion = story.task, story.explanation, story.confusion
        assert sum(story.view["right"]) == np.trace(confusion)
        # The plane is centred on the calibrated means, and arrows are no longer than the way they show.
        assert np.allclose(np.mean(story.view["after"], axis=0), 0, atol=1e-5)
        arrows = np.linalg.norm(np.subtract(story.view["after"], story.view["before"]), axis=1)
        assert (arrows <= [c.moved + 1e-4 for c in explanation.classes]).all()
        assert np.diag(confusion).tolist() == group.results.correct["gdc"][task].tolist()
        assert (confusion.sum(axis=1) == PROTOCOL.query).all()
        assert [c.label for c in explanation.classes] == [f"n{c}" for c in group.results.classes[task]]
        for c in explanation.classes:
            assert set(c.bases) <= {f"b{i}" for i in range(8)}
            assert c.support_share + sum(c.shares) == pytest.approx(1)


def test_the_report_in_a_browser(browser: Browser, report_file: Path) -> None:
    page = browser.open(report_file)
    assert page.errors == []
    assert page.requests == []
    count, broken = page.images()
    assert count == (4 + 3) * 2  # intervals, differences, tasks, confidence; a map of each hard task
    assert broken == []
    headings = page.text("h2")
    assert headings[0] == "Overview"
    assert headings[1].startswith("first + second (3-way 2-shot, 30 tasks")
    assert sum(h.startswith("Task ") for h in page.text("h4")) == 6  # three of each group
    levels = page.js("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.contrast() == []
    overview = [c.split(" ")[0] for c in page.text("table tbody tr:first-child td")][:2]
    assert overview[0] == f"{100 * evaluate('ncm', feature_set(), PROTOCOL).accuracy('ncm').mean():.2f}"
    page.click("th:nth-child(2) button")
    shown = [float(v.split(" ")[0]) for v in page.text("table:first-of-type tbody td:nth-child(2)")[:4]]
    assert shown == sorted(shown, reverse=True)
    page.scheme(True)
    assert page.contrast() == []
    page.close()


def test_the_report_fits_a_phone(browser: Browser, report_file: Path, tmp_path: Path) -> None:
    page = browser.open(report_file, width=400, height=800)
    assert page.overflow() == []
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.overflow() == []
    # Tables that are too wide are lists of their rows: nothing is cut, and the column stands beside each value.
    page.wait_for("document.querySelector('.stacked') !== null")
    cut = "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1).length"
    assert page.js(cut) == 0
    assert page.js("document.querySelector('.stacked tbody td').dataset.label") == "first + second, 2-shot"
    page.click(".stacked th:nth-child(2) button")
    shown = [float(v.split(" ")[0]) for v in page.text(".stacked tbody td:nth-child(2)")[:4]]
    assert shown == sorted(shown, reverse=True)
    assert page.contrast() == []
    page.resize(1400, 900)
    page.wait_for("document.querySelector('.stacked') === null")
    page.resize(400, 800)
    assert page.screenshot(tmp_path / "phone.png").stat().st_size > 10_000
    page.close()


def test_a_report_of_one_run_without_features(runs: dict[str, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(application(), ["report", str(runs["other"]), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("wrote ")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Make the report with <code>--features DIR</code>" in html
    assert "Overview" not in html
    assert run_report([runs["other"]]).render() == html
    options = ["-q", "--out", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json")]
    quiet = CliRunner().invoke(application(), ["report", str(runs["other"]), *options])
    assert (quiet.exit_code, quiet.output) == (0, "")
    summary = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["other"]
    assert summary == json.loads((runs["other"] / "summary.json").read_text(encoding="utf-8"))


def test_a_report_says_what_cannot_be_explained(runs: dict[str, Path], tmp_path: Path) -> None:
    fs = feature_set()
    evaluate("ncm", fs, Protocol(way=3, query=5, tasks=4), out=tmp_path / "plain")
    assert "nothing to explain" in run_report([tmp_path / "plain"]).render()
    own = FeatureSet.load(runs["features"])
    protocol = Protocol(way=3, query=5, tasks=4)
    novel = own.split("novel")
    tasks = sample_episodes(
        novel.require_labels(), protocol.spec, range(40, 44), novel.classes
    )  # others than the first
    evaluate(weighted(), own, protocol, out=tmp_path / "list", episodes=tasks)
    (tmp_path / "list" / "environment.json").write_text("[]")
    html = run_report([tmp_path / "list"], features=[runs["features"]]).render()
    assert "cannot be redrawn" in html
    assert "not recorded" in html


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_wrong_folders_get_one_line(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    assert "holds no run" in fails(capsys, "report", tmp_path, "--out", out)
    shutil.copytree(runs["other"], tmp_path / "half")
    (tmp_path / "half" / "results.npz").unlink()
    assert "is not finished; continue it with" in fails(capsys, "report", tmp_path / "half", "--out", out)
    assert "named twice" in fails(capsys, "report", runs["first"], runs["first"], "--out", out)
    assert "reference 'lr' is not among ncm, gdc" in fails(
        capsys, "report", runs["other"], "--reference", "lr", "--out", out
    )
    save_features(tmp_path / "foreign", base=split("b", 8, 20, 5), novel=split("n", 7, 20, 6))
    assert "no run was made with the features in" in fails(
        capsys, "report", runs["other"], "--features", tmp_path / "foreign", "--out", out
    )
    assert "is a folder; name a file in it" in fails(capsys, "report", runs["other"], "--out", tmp_path)
    assert not out.exists()
    with pytest.raises(InputError, match="no runs were given"):
        run_report([])


def test_features_with_classes_in_another_order(runs: dict[str, Path], tmp_path: Path) -> None:
    fs = feature_set()
    novel = fs.split("novel")
    turned = type(novel).from_arrays(
        novel.features, len(novel.classes) - 1 - novel.require_labels(), novel.classes[::-1]
    )
    FeatureSet(fs.base, None, turned).save(tmp_path / "turned")
    with pytest.raises(InputError, match="in another order"):
        run_report([runs["first"]], features=[tmp_path / "turned"])
