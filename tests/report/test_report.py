"""The report of runs, opened in a real browser; wrong input gets one line with its remedy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from browser import Browser
from fewcal.cli import main
from fewcal.episodes import sample_episodes
from fewcal.errors import InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.evaluation.summary import TRANSDUCTIVE_NOTE
from fewcal.features import FeatureSet
from fewcal.methods import GDC, Method, make_method
from fewcal.presets import get_preset
from fewcal.report.groups import group_runs
from fewcal.report.hardest import explain_tasks
from fewcal.report.run_report import run_report
from small_features import Together, feature_set, save_features, split

PROTOCOL = Protocol(way=3, shot=2, query=5, tasks=30, seed=1)
UNBALANCED = replace(PROTOCOL, shot=1, tasks=20, min_way=2, dirichlet=1.0, outliers=0.2)
CLOSED = get_preset("paper").with_changes(k=3, alpha1=0.5, alpha2_ratio=0.5, l2=True, head="closed_form")


def some(*names: str) -> dict[str, Method]:
    """Methods by name, and GDC, whose calibration can be explained with few base classes too."""
    return {name: make_method(name) for name in names} | {"gdc": GDC(CLOSED)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs on the same tasks, one on others, and their features."""
    folder, fs = tmp_path_factory.mktemp("runs"), feature_set()
    evaluate(some("ncm"), fs, PROTOCOL, out=folder / "first")
    evaluate({"simpleshot": make_method("simpleshot"), "together": Together()}, fs, PROTOCOL, out=folder / "second")
    evaluate(some("ncm") | {"together": Together()}, fs, UNBALANCED, out=folder / "other")
    fs.save(folder / "features")
    return {p.name: p for p in folder.iterdir()}


@pytest.fixture(scope="module")
def report_file(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    order = [runs["first"], runs["second"], runs["other"]]
    run_report(order, features=[runs["features"]], title="Made-up <features>").write(path)
    return path


def test_runs_on_the_same_tasks_are_together(runs: dict[str, Path]) -> None:
    first, other = group_runs([runs["first"], runs["second"], runs["other"]], features=[runs["features"]])
    assert list(first.summary.methods) == ["ncm", "gdc", "simpleshot", "together"]
    assert list(other.summary.methods) == ["ncm", "gdc", "together"]
    assert len(first.summary.paired) == 6
    assert first.features is not None
    assert other.features is not None


def test_features_explain_only_runs_that_all_used_them(runs: dict[str, Path], tmp_path: Path) -> None:
    evaluate(some(), FeatureSet(split("c", 9, 20, 7), None, feature_set().novel), PROTOCOL, out=tmp_path / "bases")
    (group,) = group_runs([runs["first"], tmp_path / "bases"], features=[runs["features"]])
    assert list(group.summary.methods) == ["ncm", "first/gdc", "bases/gdc"]
    assert group.features is None


@pytest.mark.parametrize("name", ["first", "other"])
def test_explained_tasks_are_those_of_the_run(runs: dict[str, Path], name: str) -> None:
    (group,) = group_runs([runs[name]], features=[runs["features"]])
    results = group.results
    for story in explain_tasks(group, "gdc", [0, 7, 19]):
        task, explanation, confusion = story.task, story.explanation, story.confusion
        way = len(confusion)
        assert np.diag(confusion).tolist() == results.correct["gdc"][task][:way].tolist()
        assert confusion.sum(axis=1).tolist() == results.queries[task][:way].tolist()
        assert sum(story.view["right"]) == np.trace(confusion)
        assert [c.label for c in explanation.classes] == [f"n{c}" for c in results.classes[task][:way]]
        # The plane is centred on the calibrated means, and arrows are no longer than the way they show.
        assert np.allclose(np.mean(story.view["after"], axis=0), 0, atol=1e-5)
        arrows = np.linalg.norm(np.subtract(story.view["after"], story.view["before"]), axis=1)
        assert (arrows <= [c.moved + 1e-4 for c in explanation.classes]).all()
        for c in explanation.classes:
            assert set(c.bases) <= {f"b{i}" for i in range(8)}
            assert c.own_share + sum(c.shares) == pytest.approx(1)


def test_report_in_a_browser_has_every_part(browser: Browser, report_file: Path) -> None:
    page = browser.open(report_file)
    assert (page.errors, page.requests) == ([], [])
    assert page.images() == ((4 + 3) * 2, [])  # intervals, differences, tasks, confidence; a map of each hard task
    headings = page.text("h2")
    assert headings[0] == "Overview"
    assert headings[1].startswith("first + second (3-way 2-shot, 30 tasks")
    assert headings[2].startswith(
        "other (2- to 3-way 1-shot, 5 queries a class, class shares Dirichlet(1), 20% outliers"
    )
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


def test_report_marks_transductive_methods_and_lets_each_kind_lead(browser: Browser, report_file: Path) -> None:
    page = browser.open(report_file)
    names = page.text("tbody th")
    assert "together" not in names
    assert names.count("together (transductive)") == 3  # the overview and two tables of accuracy
    stars = page.js("[...document.querySelectorAll('.mark.best')].map(m => m.closest('tr').cells[0].textContent)")
    assert stars.count("together (transductive)") == 4
    assert len(stars) == 8  # of each kind, in two columns of the overview and two tables
    assert page.text("main p").count(TRANSDUCTIVE_NOTE) == 2
    assert "Scores of ncm, simpleshot are distances, not probabilities." in page.text("main p")
    header = page.js("[...document.querySelectorAll('table')].map(t => t.tHead.textContent)")
    assert sum("outlier AUROC" in h for h in header) == 1, "of the run that has outliers"
    page.close()


def test_report_fits_a_phone(browser: Browser, report_file: Path) -> None:
    page = browser.open(report_file, width=400, height=800)
    assert page.overflow() == []
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.overflow() == []
    # Tables that are too wide are lists of their rows: nothing is cut, and the column stands beside each value.
    page.wait_for("document.querySelector('.stacked') !== null")
    cut = "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1).length === 0"
    page.wait_for(cut)
    label = "document.querySelector('.stacked tbody td').dataset.label"
    assert page.js(label) == page.js("document.querySelector('.stacked thead th:nth-child(2)').textContent.trim()")
    page.click(".stacked th:nth-child(2) button")
    values = "[...document.querySelector('.stacked tbody').rows].map(r => parseFloat(r.cells[1].dataset.sort))"
    assert page.js(values) == sorted(page.js(values), reverse=True)
    assert page.contrast() == []
    page.resize(1400, 900)
    page.wait_for("document.querySelector('.stacked') === null")
    page.close()


def test_report_of_one_run_without_features_has_no_overview(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["report", str(runs["other"]), "--out", str(tmp_path / "r.html")])
    assert capsys.readouterr().out.startswith("wrote ")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Make the report with <code>--features DIR</code>" in html
    assert "Overview" not in html
    assert run_report([runs["other"]]).render() == html
    with pytest.raises(SystemExit):
        main(
            ["report", str(runs["other"]), "-q", "--out", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json")]
        )
    assert capsys.readouterr().out == ""
    summary = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["other"]
    assert summary == json.loads((runs["other"] / "summary.json").read_text(encoding="utf-8"))


def test_report_says_what_cannot_be_explained(runs: dict[str, Path], tmp_path: Path) -> None:
    evaluate("ncm", feature_set(), replace(PROTOCOL, tasks=4), out=tmp_path / "plain")
    html = run_report([tmp_path / "plain"]).render()
    assert "nothing to explain" in html
    assert "Confidence</h2>" not in html
    own, protocol = FeatureSet.load(runs["features"]), replace(PROTOCOL, tasks=4)
    tasks = sample_episodes(own.split("novel").require_labels(), protocol.spec, range(40, 44))  # others than the first
    evaluate(some(), own, protocol, out=tmp_path / "list", episodes=tasks)
    (tmp_path / "list" / "environment.json").write_text("[]")
    html = run_report([tmp_path / "list"], features=[runs["features"]]).render()
    assert "cannot be redrawn" in html
    assert "not recorded" in html


def test_wrong_folders_get_one_line(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs["other"], tmp_path / "half")
    (tmp_path / "half" / "results.npz").unlink()
    save_features(tmp_path / "foreign", base=split("b", 8, 20, 5), novel=split("n", 7, 20, 6))
    out = ("--out", tmp_path / "r.html")
    for arguments, words in (
        ((tmp_path, *out), "holds no run"),
        ((tmp_path / "half", *out), "is not finished; continue it with"),
        ((runs["first"], runs["first"], *out), "named twice"),
        ((runs["other"], "--reference", "lr", *out), "reference 'lr' is not among ncm, gdc, together"),
        ((runs["other"], "--features", tmp_path / "foreign", *out), "no run was made with the features in"),
        ((runs["other"], "--out", tmp_path), "is a folder; name a file in it"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["report", *map(str, arguments)])
        assert stopped.value.code == 2
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1
        assert words in printed
    assert not (tmp_path / "r.html").exists()
    with pytest.raises(InputError, match="no runs were given"):
        run_report([])


def test_features_with_classes_in_another_order_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    fs = feature_set()
    novel = fs.split("novel")
    turned = type(novel).from_arrays(novel.features, 6 - novel.require_labels(), novel.classes[::-1])
    FeatureSet(fs.base, None, turned).save(tmp_path / "turned")
    with pytest.raises(InputError, match="in another order"):
        run_report([runs["first"]], features=[tmp_path / "turned"])
