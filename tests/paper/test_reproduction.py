"""The list of what ran for each table and figure of the paper, and the report for reviewers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewcal.cli import application
from fewcal.errors import FileFormatError, InputError
from fewcal.features.synthetic import make_features
from fewcal.paper.blocks import Table, Verdict
from fewcal.paper.budget import Budget
from fewcal.paper.coverage import HEADER, ITEMS, coverage, coverage_rows, read_summary
from fewcal.paper.draw import Ran, draw_report
from fewcal.paper.experiments import EXPERIMENTS, choose
from fewcal.paper.published import dataset_title, published
from fewcal.paper.reproduction import control_blocks, judged_part, options_of, reproduction_parts, write_reproduction
from fewcal.paper.run import run_experiments
from fewcal.paper.settings import GROUPS, PRINTED

pytestmark = pytest.mark.usefixtures("two_epochs")

BUDGET = Budget(tasks=4, sampled=3, sgd=1, study=3, trials=2, trial_tasks=3, sgd_trials=2, sgd_trial_tasks=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper") / "out"
    features = {"dogs": make_features(base=12, val=6, novel=6, rows=20, dim=8, relu=False)}
    run_experiments(choose(["distances", "weights", "mean-curve"]), features, out, BUDGET)
    draw_report(out)
    return out


def nothing() -> dict:
    return {group: {"holds": 0, "does_not_hold": 0, "cannot_tell": 0} for group in GROUPS}


# ---- stand-ins and controls -----------------------------------------------------------------------------------------


def test_features_with_other_classes_than_the_papers_are_called_a_stand_in(run: Path) -> None:
    """The features have 12 base classes, and Stanford Dogs 70."""
    note = "Stanford Dogs (stand-in): 12 base, 6 val and 6 novel classes; the paper has 70, 20 and 30"
    assert note in (run / "summary.md").read_text(encoding="utf-8")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    of_dogs = {v["features"] for v in summary["verdicts"] if "Dogs" in v["features"]}
    assert of_dogs
    assert all(where.startswith("Stanford Dogs (stand-in)") for where in of_dogs)
    write_reproduction(run)
    assert note in (run / "reproduction.md").read_text(encoding="utf-8")
    assert "(stand-in)" in command("list", "--run", str(run))
    assert dataset_title("dogs") == "Stanford Dogs"  # outside of a run


def test_every_statement_has_a_control_or_a_reason(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    for verdict in summary["verdicts"]:
        assert bool(verdict["control"]) != EXPERIMENTS[verdict["experiment"]].control.startswith("none: ")
    records = [json.loads(file.read_text()) for file in (run / "results").rglob("*.json")]
    assert {r["experiment"]: r["control"] for r in records} == {
        name: EXPERIMENTS[name].control for name in ("distances", "weights", "mean-curve")
    }


# ---- the list -------------------------------------------------------------------------------------------------------


def test_every_table_and_figure_of_the_paper_is_listed_once() -> None:
    names = [item.name for item in ITEMS]
    assert [n for n in names if n.startswith("Table")] == [f"Table {i}" for i in range(1, 10)]
    assert [n for n in names if n.startswith("Figure")] == [
        *("Figure 1", "Figure 2, left", "Figure 2, right", "Figure 3, left", "Figure 3, right", "Figure 4", "Figure 5"),
    ]
    named = {item.experiment for item in ITEMS} - {""}
    assert named == set(EXPERIMENTS) - {"comparison", "fidelity"}  # which are not in the paper
    assert all(item.experiment or item.note for item in ITEMS)


def test_what_ran_as_printed_and_where() -> None:
    counts = nothing() | {"as printed": {"holds": 2, "does_not_hold": 1, "cannot_tell": 0}}
    ran: dict[str, Ran] = {
        "table1": {"as_printed": True, "variants": [PRINTED.name], "features": ["dogs"], "groups": counts},
        "table4": {"as_printed": False, "variants": ["closed form"], "features": ["birds"], "groups": nothing()},
        "weights": {"as_printed": False, "variants": [], "features": ["mini"], "groups": nothing()},
    }
    covered = {c["item"]: c for c in coverage(ran)}
    assert covered["Table 1"]["as_printed"] is True
    assert covered["Table 1"]["not_given"] == ["cub"]
    assert (covered["Table 4"]["as_printed"], covered["Table 4"]["not_given"]) == (False, ["dogs"])
    assert (covered["Table 9"]["ran"], covered["Table 9"]["as_printed"]) == (True, None)
    assert not covered["Table 8"]["ran"]  # of another dataset
    assert not covered["Table 2"]["ran"]
    rows = {row[0]: row for row in coverage_rows(list(covered.values()))}
    assert all(len(row) == len(HEADER) for row in rows.values())
    assert rows["Table 1"] == ["Table 1", "table1", "yes", "Stanford Dogs (not CUB)", "2 hold, 1 not, 0 open", "–", "–"]
    assert rows["Table 4"][2:4] == ["no", "birds (not Stanford Dogs)"]
    assert rows["Table 8"][2:4] == ["not run", ""]
    assert rows["Table 6"][1] == "–"


def command(*arguments: str) -> str:
    done = CliRunner().invoke(application(), ["paper", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_list_of_a_run(run: Path, tmp_path: Path) -> None:
    shown = command("list", "--run", str(run), "--json", str(tmp_path / "list.json"))
    assert "Table 5" in shown
    assert "Figure 3, left" in shown
    rows = {row["item"]: row for row in json.loads((tmp_path / "list.json").read_text())}
    assert rows["Table 5"]["features"] == ["dogs"]
    assert sum(sum(counts.values()) for counts in rows["Table 5"]["groups"].values()) >= 3
    assert "as printed" in command("list")


def test_a_run_that_is_not_drawn_says_what_to_do(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run of experiments"):
        read_summary(tmp_path)
    copy = tmp_path / "copy"
    (copy / "results" / "weights").mkdir(parents=True)
    (copy / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"no summary.json yet; draw it with .*--draw-only"):
        read_summary(copy)
    (copy / "summary.json").write_text("{}")
    with pytest.raises(FileFormatError, match="is not the summary of a run"):
        read_summary(copy)
    (copy / "results" / "weights" / "mini.json").write_text("{}")
    (copy / "summary.json").write_text('{"experiments": {}, "groups": {}}')
    with pytest.raises(InputError, match=r"does not tell of \(weights\)"):
        read_summary(copy)


# ---- the report -----------------------------------------------------------------------------------------------------


def test_the_report_has_what_reviewers_ask_for(run: Path) -> None:
    assert "reproduction.md" in command("report", str(run))
    text, page = ((run / name).read_text(encoding="utf-8") for name in ("reproduction.md", "reproduction.html"))
    for heading in ("Summary", "Claims", "Setting", "What agreed", "What did not agree", "Cost", "To run it again"):
        assert f"## {heading}\n" in text
        assert heading in page
    assert published()["paper"] in text
    for experiment in ("distances", "weights"):
        assert EXPERIMENTS[experiment].says in text
    assert "m=1.5, k=10, α1=400, α2=100·α1, β=1" in text  # the published row of the dataset
    assert json.loads((run / "config.json").read_text())["features"]["dogs"]["novel"][:12] in text
    assert "not: Table 1; Table 2" in text
    assert "No comparison was run." in text
    assert "fewcal paper run distances weights mean-curve --features dogs=DIR" in text
    assert "<script src" not in page  # loads nothing


def test_every_statement_stands_in_one_part_of_the_report(run: Path) -> None:
    parts = {part.heading: part.blocks for part in reproduction_parts(run)}
    summary = json.loads((run / "summary.json").read_text())
    tables = [b for h in ("What agreed", "What did not agree", "What cannot be told") for b in parts[h]]
    rows = [row for table in tables if isinstance(table, Table) for row in table.rows]
    assert sorted(tuple(row[:3]) for row in rows) == sorted(
        (v["claim"], v["features"], v["found"]) for v in summary["verdicts"]
    )


def test_verdicts_are_sorted_by_what_became_of_them_and_by_group() -> None:
    verdicts = [
        Verdict("a is above b", "here", "+1", True, "as printed", "+2", True),
        Verdict("a is above b", "there", "+1", True, "default", "−2", False),
        Verdict("a is above b", "elsewhere", "−1", False, "default"),
    ]
    part = judged_part("What agreed", "These hold.", verdicts, True)
    tables = [b for b in part.blocks if isinstance(b, Table)]
    assert [table.rows[0][1] for table in tables] == ["here", "there"]
    assert tables[0].caption.startswith("as printed")
    assert judged_part("Nothing", "These.", verdicts, None).blocks == ["None."]
    [control] = [b for b in control_blocks(verdicts) if isinstance(b, Table)]
    assert [list(row) for row in control.rows] == [["as printed", 1, 1, 0, 0], ["default", 1, 0, 1, 0]]
    assert control_blocks(verdicts[2:]) == ["No statement that holds has a control."]


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run of experiments"):
        write_reproduction(tmp_path)
    features = {"birds": make_features(base=4, val=4, novel=4, rows=6, dim=4)}
    run_experiments([], features, tmp_path / "out", BUDGET)
    with pytest.raises(InputError, match="has no finished experiment to report"):
        write_reproduction(tmp_path / "out")


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_command_of_the_report_asks_for_the_same_budget(quick: bool, device: str) -> None:
    budget = Budget.of(300, quick=quick, device=device, seed=3)
    options = options_of(budget.to_dict(), device)
    assert ("--quick" in options) == quick
    assert ("--device cuda" in options) == (device == "cuda")
    words = options.split()
    value = {words[i]: int(words[i + 1]) for i in range(0, 10, 2)}
    again = Budget.of(
        value["--tasks"],
        quick=quick,
        device=device,
        seed=value["--seed"],
        sampled=value["--sampled-tasks"],
        sgd=value["--sgd-tasks"],
        trials=value["--trials"],
    )
    assert again == budget
