"""Runs of experiments: the same numbers after a kill, one report from one template, the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from browser import Browser
from fewcal.cli import application, main
from fewcal.errors import FileFormatError, InputError
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import EXPERIMENTS, ITEMS, choose
from fewcal.paper.report import coverage, draw_report, options_of, read_summary, reproduction_parts, write_reproduction
from fewcal.paper.run import read_records, run_experiments
from fewcal.paper.sets import Features

pytestmark = pytest.mark.usefixtures("two_epochs", "svg_alone")

BUDGET = Budget(tasks=4, sampled=3, sgd=1, trials=2, trial_tasks=2, sgd_trials=1, sgd_trial_tasks=1)
NAMES = ["table1", "table7", "weights", "mean-curve"]


def small(seed: int = 0) -> FeatureSet:
    return make_features(base=12, val=6, novel=6, rows=20, dim=8, seed=seed)


@pytest.fixture(scope="module")
def sets() -> list[Features]:
    """A weak and a strong set of one dataset side by side, and another."""
    return [Features(n, d, small(i)) for i, (n, d) in enumerate((("dogs-a", "dogs"), ("dogs-b", "dogs")))]


@pytest.fixture(scope="module")
def run(sets: list[Features], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper") / "out"
    assert run_experiments(choose(NAMES), sets, out, BUDGET) == []
    draw_report(out, ["table3 is about something else"])
    return out


def files(out: Path) -> dict[str, str]:
    """Records by name without the seconds that they took, and the names of runs."""
    found = {path.relative_to(out).as_posix(): "" for path in (out / "runs").glob("*/*")}
    for path in (out / "results").rglob("*.json"):
        found[path.relative_to(out).as_posix()] = re.sub(r'"seconds": [^,}]+', "", path.read_text(encoding="utf-8"))
    return found


def test_killed_run_resumed_gives_the_same_records_and_runs(sets: list[Features], tmp_path: Path) -> None:
    wanted = choose(["table7", "mean-curve"])
    run_experiments(wanted, sets, tmp_path / "whole", BUDGET)

    def kill(line: str) -> None:
        if line.startswith("[3/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiments(wanted, sets, tmp_path / "cut", BUDGET, log=kill)
    with pytest.raises(InputError, match="already holds a run; continue it with --resume"):
        run_experiments(wanted, sets, tmp_path / "cut", BUDGET)
    torn = next((tmp_path / "cut" / "results").rglob("*.json"))
    torn.write_text(torn.read_text(encoding="utf-8")[:50], encoding="utf-8")
    lines: list[str] = []
    run_experiments(wanted, sets, tmp_path / "cut", BUDGET, resume=True, log=lines.append)
    assert any("are there already" in line for line in lines)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_run_is_continued_with_its_own_settings_alone(tmp_path: Path) -> None:
    wanted, own = choose(["mean-curve"]), [Features("dogs-a", "dogs", small(0))]
    run_experiments(wanted, own, tmp_path / "a", BUDGET)
    with pytest.raises(InputError, match=r"budget\.tasks is 4 in one and 5 in the other"):
        run_experiments(wanted, own, tmp_path / "a", replace(BUDGET, tasks=5), resume=True)
    with pytest.raises(InputError, match="other features of dogs-a"):
        run_experiments(wanted, [Features("dogs-a", "dogs", small(5))], tmp_path / "a", BUDGET, resume=True)
    run_experiments(wanted, [Features("cub-a", "cub", small(3))], tmp_path / "a", BUDGET, resume=True)
    assert {place.name for records in read_records(tmp_path / "a").values() for place in records} == {"dogs-a", "cub-a"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").write_text("x")
    for call, match in (
        (lambda: run_experiments(wanted, own, tmp_path / "full", BUDGET), "not empty"),
        (lambda: run_experiments(wanted, [], tmp_path / "b", BUDGET), "no features"),
        (lambda: draw_report(tmp_path / "full"), "holds no run"),
    ):
        with pytest.raises(InputError, match=match):
            call()
    (tmp_path / "a" / "config.json").write_text('{"format": "fewcal-paper"}')
    with pytest.raises(FileFormatError, match="is not the configuration of a fewcal run"):
        run_experiments(wanted, own, tmp_path / "a", BUDGET, resume=True)


def test_experiments_without_what_they_need_are_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = small()
    monkeypatch.setitem(EXPERIMENTS, "drift", replace(EXPERIMENTS["drift"], packages=("no_such_package",)))
    bare = [Features("x", "mini", FeatureSet(features.base, None, features.novel))]
    left = run_experiments(choose(["table3", "accuracy-n", "drift"]), bare, tmp_path / "a", BUDGET)
    assert re.search("table3 is about meta-tieredImageNet", left[0])
    assert re.search("drift needs no_such_package; continue with --resume", left[1])
    assert re.search("accuracy-n needs the split val", left[2])
    with pytest.raises(InputError, match="no finished experiment"):
        draw_report(tmp_path / "a")


def test_report_has_both_sets_of_a_dataset_side_by_side(run: Path) -> None:
    text = (run / "summary.md").read_text(encoding="utf-8")
    assert "Stanford Dogs (dogs-a, stand-in), 1-shot | Stanford Dogs (dogs-a, stand-in), 5-shot |" in text
    assert "| Stanford Dogs (dogs-b, stand-in), 5-shot |" in text
    assert "dogs-a is a stand-in: 12/6/6 classes for base/val/novel; Stanford Dogs has 70/20/30" in text
    assert "Left out: table3 is about something else." in text
    assert "| GDC (paper) | 65.35 ± 0.61 † | 80.56 ± 0.45 † |" in text
    assert "nan" not in text.lower()
    assert all((run / picture).is_file() for picture in re.findall(r"\((figures/[^)]+)\)", text))
    # A figure of the paper never stands in a record of measured ones.
    for file in (run / "results").rglob("*.json"):
        assert "65.35" not in file.read_text(encoding="utf-8")
    before = {f: f.read_bytes() for f in (run / "report.html", run / "summary.md")}
    draw_report(run, ["table3 is about something else"])
    assert all(f.read_bytes() == content for f, content in before.items())


def test_every_statement_has_a_control_or_a_reason_and_one_outcome(run: Path) -> None:
    summary = read_summary(run)
    for verdict in summary["verdicts"]:
        assert bool(verdict["control"]) != EXPERIMENTS[verdict["experiment"]].control.startswith("none: ")
    parts = dict(reproduction_parts(run))
    rows = [
        row
        for heading in ("What agreed", "What did not agree", "What is undecided")
        for block in parts[heading]
        if not isinstance(block, str)
        for row in block.rows  # type: ignore[union-attr]
    ]
    assert sorted((r[0], r[1], r[2]) for r in rows) == sorted(
        (v["claim"], v["features"], v["variant"]) for v in summary["verdicts"]
    )
    assert sum(sum(counts.values()) for counts in summary["variants"].values()) == len(rows)


def test_report_in_a_browser_has_no_faults(run: Path, browser: Browser) -> None:
    page = browser.open(run / "report.html")
    count, broken = page.images()
    assert count >= 4
    assert broken == page.errors == page.contrast() == []
    assert page.js("[...document.images].every(i => i.alt.length > 20)")
    page.resize(390)
    assert page.overflow() == []
    page.close()


def command(*arguments: str) -> str:
    done = CliRunner().invoke(application("paper"), ["paper", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_list_of_a_run_shows_what_ran_for_each_table(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    assert "Figure 3, left" in command("list", "--run", str(run), "--json", str(file))
    rows = {row["item"]: row for row in json.loads(file.read_text())}
    assert list(rows) == [item.name for item in ITEMS]
    assert (rows["Table 1"]["sets"], rows["Table 1"]["not_given"]) == (["dogs-a", "dogs-b"], ["cub"])
    assert not rows["Table 2"]["ran"]
    assert not rows["Table 8"]["ran"]  # the weights of another dataset
    assert coverage({})[0]["variants"] == {}
    command("list", "--json", str(file))
    assert [r["name"] for r in json.loads(file.read_text())] == list(EXPERIMENTS)


def test_summary_that_is_missing_or_old_names_the_remedy(run: Path, tmp_path: Path) -> None:
    (tmp_path / "results" / "weights").mkdir(parents=True)
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"no summary.json yet; draw it with .*--draw-only"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(FileFormatError, match="is not the summary of a run"):
        read_summary(tmp_path)
    record = next((run / "results" / "weights").glob("*.json"))
    (tmp_path / "results" / "weights" / record.name).write_bytes(record.read_bytes())
    (tmp_path / "summary.json").write_text('{"experiments": {}, "variants": {}}')
    with pytest.raises(InputError, match=r"its summary lacks \(weights\)"):
        read_summary(tmp_path)


def test_reproduction_report_has_what_reviewers_ask_for(run: Path) -> None:
    assert "reproduction.md" in command("report", str(run))
    text = (run / "reproduction.md").read_text(encoding="utf-8")
    for heading in ("Summary", "Claims", "Setting", "What agreed", "What did not agree", "Cost", "To run it again"):
        assert f"## {heading}\n" in text
    assert "fewcal paper run table1 table7 weights mean-curve --features dogs=DIR/dogs-a" in text
    assert "The scale of the features is not printed" in text
    with pytest.raises(InputError, match="holds no run of experiments"):
        write_reproduction(run / "figures")


@pytest.mark.parametrize("options", [{"quick": True}, {}, {"tasks": 5000}, {"device": "cuda"}])
def test_command_of_the_report_has_the_same_budget(options: dict[str, Any]) -> None:
    budget = Budget.make(**options, seed=3)
    words = options_of(budget.to_dict(), options.get("device", "cpu")).split()
    value = {words[i]: int(words[i + 1]) for i in range(len(words) - 1) if words[i + 1].isdigit()}
    again = Budget.make(
        value.get("--tasks"),
        sgd=value.get("--sgd-tasks"),
        trials=value.get("--trials"),
        quick="--quick" in words,
        device="cuda" if "cuda" in words else "cpu",
        seed=value["--seed"],
    )
    assert (again.tasks, again.sgd, again.first, again.seed) == (budget.tasks, budget.sgd, budget.first, budget.seed)


def test_command_computes_then_draws(sets: list[Features], tmp_path: Path) -> None:
    for of in sets:
        of.features.save(tmp_path / "features" / of.name)
    given = ["run", "weights", "--features", str(tmp_path / "features"), "--out", str(tmp_path / "o"), "--tasks", "2"]
    command(*given, "--compute-only")
    assert not (tmp_path / "o" / "report.html").exists()
    command("run", "all", "--out", str(tmp_path / "o"), "--draw-only", "--json", str(tmp_path / "s.json"))
    assert json.loads((tmp_path / "s.json").read_text())["budget"]["sgd"] == 2
    command(*given, "--resume", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["tabel1", "--out", "o", "--features", "f"], "did you mean 'table1'"),
        (["table1", "--out", "o"], "--features is missing"),
        (["table1", "--out", "o", "--features", "nowhere"], "no folder nowhere"),
        (["table1", "--out", "o", "--draw-only", "--compute-only"], "exclude each other"),
        (["table1", "--out", "nowhere", "--draw-only"], "holds no run"),
    ],
)
def test_wrong_options_get_one_line(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["paper", "run", *arguments])
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert word in line
