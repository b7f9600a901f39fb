"""The demo from end to end, small: tables, features and a report that a browser opens without complaint."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from browser import Browser
from fewcal import demo
from fewcal.features import FeatureSet, glyphs
from fewcal.features.glyphs import glyph_classes
from limits import PATIENCE

FEW_SCRIPTS = {"base": ("CYRILLIC",), "val": ("HEBREW",), "novel": ("TIFINAGH", "NKO")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of one run with few letters from an empty working folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        # Letters of few scripts: to draw all of them would take most of the time.
        patch.setattr(glyphs, "SCRIPTS", FEW_SCRIPTS)
        few = {split: found[::2] for split, found in glyph_classes.__wrapped__().items()}
        patch.setattr(glyphs, "glyph_classes", lambda: few)
        demo.main(["--tasks", "6", "--rows", "20", "--features", "features"])
    return folder, printed.getvalue()


@pytest.mark.slow
def test_the_whole_demo_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fewcal.demo", "--tasks", "30"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path.resolve() / 'demo-report' / 'index.html'}"
    assert "30 tasks, 5-way 5-shot" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["demo-report"]


def test_it_prints_both_tables_with_paired_differences_and_ends_with_the_report(made: tuple[Path, str]) -> None:
    folder, printed = made
    for shot in (1, 5):
        assert f"6 tasks, 5-way {shot}-shot" in printed
    for method in demo.METHODS:
        assert printed.count(f"| {method} |") == 2
    assert printed.count("| hgdc − simpleshot |") == 2
    assert printed.splitlines()[-1] == f"report: {(folder / 'demo-report' / 'index.html').resolve()}"
    assert sorted(p.name for p in folder.iterdir()) == ["demo-report", "features"]
    assert [p.name for p in (folder / "demo-report").iterdir()] == ["index.html"]


def test_poor_banks_change_nothing_or_little(made: tuple[Path, str]) -> None:
    _, printed = made
    lines = [line for line in printed.splitlines() if line.startswith("- ")]
    assert [line.split(":")[0] for line in lines] == ["- 10 of the base letters", "- all, with shuffled labels"]
    few, shuffled = (dict(part.split() for part in line.split(": ")[1].split("; ")[0].split(", ")) for line in lines)
    assert float(few["hgdc"]) > float(few["support-only"]) - 0.3
    assert shuffled["hgdc"] == shuffled["support-only"]
    assert "do not differ beyond chance and are not used" in lines[1]


def test_the_median_task_is_the_first_of_the_lower_median() -> None:
    assert demo.median_task(np.array([0.2, 0.8, 0.5, 0.5, 0.9])) == 2
    assert demo.median_task(np.array([0.9, 0.1])) == 1


def test_its_features_are_a_feature_set_with_three_splits(made: tuple[Path, str]) -> None:
    features = FeatureSet.load(made[0] / "features")
    assert list(features.splits()) == ["base", "val", "novel"]
    assert all((split.rows_per_class() == 20).all() for split in features.splits().values())


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_the_report_opens_in_a_browser(made: tuple[Path, str], browser: Browser, width: int, dark: bool) -> None:
    page = browser.open(made[0] / "demo-report" / "index.html", width=width, dark=dark)
    count, broken = page.images()
    # Six pictures a class twice over, and the plane.
    assert count == 5 * (1 + demo.SHOWN_QUERIES) + 5 * (1 + demo.SHOWN_BASES) + 1
    assert broken == []
    assert page.errors == []
    assert page.requests == []
    assert page.overflow() == []
    assert page.contrast() == []
    captions = page.text("figcaption")
    shown = [c for c in captions if c.startswith(("✓ right", "✗ wrong: "))]
    assert len(shown) == 5 * demo.SHOWN_QUERIES
    page.close()


def test_the_shown_task_is_the_one_that_was_evaluated(made: tuple[Path, str]) -> None:
    from fewcal.evaluation import Protocol, evaluate

    features = FeatureSet.load(made[0] / "features")
    protocol = Protocol(shot=1, tasks=6, seed=0)
    results = evaluate("hgdc", features, protocol)
    number = demo.median_task(results.accuracy("hgdc"))
    task = demo.solve_task(features, protocol, number)
    right = (task.answers == np.arange(5)[:, None]).sum(axis=1)
    assert right.tolist() == results.correct["hgdc"][number].tolist()
    shown = (made[0] / "demo-report" / "index.html").read_text(encoding="utf-8")
    assert f"number {number + 1} of 6, the first whose accuracy with hgdc is the median" in shown
    assert f"hgdc answered {right.sum()} of 75 queries rightly" in shown
    assert [str(c.label) for c in task.explanation.classes] == sorted(task.names)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        demo.main(["--out", str(tmp_path / "file" / "report")])
    assert caught.value.code == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("fewcal: cannot write ")


@pytest.mark.parametrize("missing", ["matplotlib", "PIL"])
def test_a_missing_package_is_named_with_its_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as caught:
        demo.main(["--out", str(tmp_path / "report")])
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"fewcal: the demo needs {missing}; pip install 'fewcal[plots]'\n"
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--rows", "10"], "--rows 10 is too few"), (["--tasks", "0"], "tasks is 0"), (["--seed", "-1"], "seed is -1")],
)
def test_bad_options_are_refused_at_once(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.main(["--out", str(tmp_path / "report"), *options])
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert not (tmp_path / "report").exists()


def test_control_c_ends_it_with_one_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fewcal.demo"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "drawing" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    left = process.stderr.read()
    assert process.wait(PATIENCE) == 130
    assert left.splitlines()[-1] == "fewcal: interrupted"
    assert "Traceback" not in left
