"""Experiments of the paper: published figures as printed, the same numbers after a kill, one report at the end."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from browser import Browser
from fewcal.cli import application, main
from fewcal.errors import FewcalError, FileFormatError, InputError
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper.blocks import Section, Table, Verdict, cited, claims_table, to_markdown
from fewcal.paper.budget import WHOLE, Budget, Case
from fewcal.paper.draw import draw_report
from fewcal.paper.experiments import (
    EXPERIMENTS,
    ablation,
    choose,
    comparison,
    distances,
    fidelity,
    off_diagonal,
)
from fewcal.paper.measured import choose_on_val, difference, gain_text, grid, join, mean_text, measure
from fewcal.paper.published import candidate, published
from fewcal.paper.registry import Experiment
from fewcal.paper.run import dataset_of, find_features, kept_records, read_config, run_experiments
from fewcal.paper.settings import GROUPS, PRINTED, paper_params, unit_scale
from fewcal.presets import PAPER_ROWS, get_preset

pytestmark = pytest.mark.usefixtures("two_epochs", "svg_alone")

EFFORT = Budget(tasks=4, sampled=3, sgd=1, study=3, trials=2, trial_tasks=3, sgd_trials=2, sgd_trial_tasks=1)
ONE = Budget(tasks=1, sampled=1, sgd=1, study=1, trials=1, trial_tasks=1, sgd_trials=1, sgd_trial_tasks=1)


def small(seed: int = 0, relu: bool = True, base: int = 33) -> FeatureSet:
    return make_features(base=base, val=6, novel=6, rows=24, dim=8, relu=relu, seed=seed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("features")
    small(0, relu=False).save(place / "dogs-tiny")
    small(1).save(place / "mini-tiny")
    return place


@pytest.fixture(scope="module")
def finished(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything but the ablation and the searches of figures, on two feature sets."""
    out = tmp_path_factory.mktemp("paper") / "out"
    names = ["table1", "table2", "table4", "distances", "candidates", "weights", "fidelity", "mean-curve", "effect-k"]
    left = run_experiments(choose(names), find_features([folders]), out, EFFORT)
    assert left == []
    draw_report(out, ["table3 is about something else"])
    return out


# ---- what the paper printed -----------------------------------------------------------------------------------------


def test_published_figures_are_the_papers() -> None:
    p = published()
    rows = {r["method"]: r["values"] for r in p["table2"]["rows"]}
    assert rows["Baseline++"]["mini2cub/5"] == {"accuracy": 57.31, "plus_minus": 0.11}
    assert "mini2cub/1" not in rows["E3BM"]
    assert [r["gain"] for r in p["table4"]["rows"]] == [None, 0.8, 0.7, 1.5, 0.4, 0.4]
    gains = np.diff([r["accuracy"] for r in p["table4"]["rows"]])
    assert np.abs(gains - [0.8, 0.7, 1.5, 0.4, 0.4]).max() < 0.07  # the printed gains are the rounded differences
    for table in ("table1", "table2", "table3", "table4", "distances", "candidates", "weights"):
        assert p[table]["source"]
    # The first candidate is the row of the comparison, and presets have the same parameters.
    gdc = {k: v for t in ("table1", "table2", "table3") for k, v in p[t]["rows"][-1]["values"].items()}
    for at, value in gdc.items():
        dataset, shot = at.split("/")
        row = candidate(dataset, int(shot))
        assert row is not None
        assert (row["accuracy"], row["plus_minus"]) == (value["accuracy"], value["plus_minus"])
        params = get_preset(f"paper/{dataset}/{shot}shot")
        assert all(row[k] == getattr(params, k) for k in ("m", "k", "alpha1", "alpha2_ratio", "beta", "n"))
    assert len(p["candidates"]["rows"]) == len(PAPER_ROWS) == 30
    assert candidate("birds", 1) is None


def test_weights_of_the_paper_are_shares_with_their_k() -> None:
    for row in published()["weights"]["rows"]:
        values = row["values"]
        assert values == sorted(values, reverse=True)
        assert sum(values) < 1
        if row["method"] == "GDC":
            assert len(values) == candidate(row["dataset"], row["shot"])["k"]  # type: ignore[index]


def test_citations_are_marked_everywhere(finished: Path) -> None:
    text = (finished / "summary.md").read_text(encoding="utf-8")
    assert "| GDC (paper) | 65.35 ± 0.61 † | 80.56 ± 0.45 † |" in text
    cell = cited(84.57, 0.48, "Table 1")
    assert (cell.mark, cell.sort) == ("cited", 84.57)
    assert cited(None).text is None
    # A figure of the paper never stands in a record of measured ones.
    for file in (finished / "results").rglob("*.json"):
        assert "plus_minus" not in file.read_text(encoding="utf-8")


# ---- measuring ------------------------------------------------------------------------------------------------------


def test_fewer_tasks_are_the_first_of_the_same() -> None:
    features = small()
    methods = {"a": make_method("ncm"), "b": make_method("gdc")}
    case = Case(features, "birds", 1, EFFORT)
    many = measure(methods, case, 6)
    few = measure({"c": make_method("ncm")}, case, 3)
    assert many["correct"]["a"][:3] == few["correct"]["c"]
    both = join(many, few)
    gain = difference(both, "c", "a")
    assert (gain.n, gain.difference) == (3, 0.0)
    assert Verdict.of("x", "y", gain, "default").word == "cannot tell"
    assert gain_text(difference(both, "a", "b")).count("±") == 1
    with pytest.raises(ValueError, match="measured twice"):
        join(many, many)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "+0.00 ± 0.00"),
        (dict.fromkeys(range(30), 1), "+0.0080 ± 0.0029"),  # 30 answers of 375,000: next to nothing, and it says so
        (dict.fromkeys(range(10), 1), "+0.00 ± 0.00"),  # too few tasks to tell
        (dict.fromkeys(range(2), 1), "+0.00 ± 0.00"),  # within its interval
        (dict.fromkeys(range(5000), 3), "+4.00 ± 0.00"),
        (dict.fromkeys(range(2500), -3), "−2.00 ± 0.06"),
    ],
)
def test_differences_that_round_to_nothing(changed: dict[int, int], text: str) -> None:
    plain = [40] * 5000
    other = [n + changed.get(i, 0) for i, n in enumerate(plain)]
    assert gain_text(difference({"per_task": 75, "correct": {"a": other, "b": plain}}, "a", "b")) == text


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(), min_size=1, max_size=4, unique=True), min_size=1),
    st.integers(1, 12),
    st.integers(0, 5),
)
def test_a_grid_has_no_doubles_and_keeps_to_its_axes(axes: dict[str, list[int]], most: int, seed: int) -> None:
    found = grid(axes, most, seed)
    assert len(found) == min(most, int(np.prod([len(v) for v in axes.values()])))
    assert len({tuple(f.values()) for f in found}) == len(found)
    assert all(f[name] in values for f in found for name, values in axes.items())
    assert found == grid(axes, most, seed)


def test_a_search_takes_the_best_of_its_settings_on_validation() -> None:
    features = small()
    tried: list[float] = []

    def make(setting: dict[str, Any]) -> Any:
        if setting["C"] < 0:
            raise InputError("refused")
        tried.append(setting["C"])
        return make_method("lr", C=setting["C"])

    found = choose_on_val(Case(features, "birds", 1, EFFORT), [{"C": v} for v in (-1.0, 1e-4, 1.0)], make)
    assert tried == [1e-4, 1.0]
    assert found["chosen"] in ({"C": 1e-4}, {"C": 1.0})
    assert found["tried"] == 2
    with pytest.raises(InputError, match="none of the settings"):
        choose_on_val(Case(features, "birds", 1, EFFORT), [{"C": -1.0}], make)
    without = FeatureSet(features.base, None, features.novel)
    with pytest.raises(InputError, match="no split 'val'"):
        choose_on_val(Case(without, "birds", 1, EFFORT), [{"C": 1.0}], make)


def test_effort_is_bounded_by_the_tasks_asked_for() -> None:
    ten = Budget.of(10).to_dict()
    assert {ten[name] for name in ("tasks", "sampled", "sgd", "sgd_study", "study")} == {10}
    assert Budget.of(10, quick=True).sgd_study < 10
    assert Budget.of(quick=True).sgd < Budget.of().sgd < Budget.of(device="cuda:0").sgd == 1000
    assert Budget.of(500, sgd=70, sampled=80, trials=3).to_dict()["trials"] == 3
    with pytest.raises(InputError, match="trials is 0"):
        Budget.of(trials=0)


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_paper_settings_fall_back_to_miniimagenet() -> None:
    assert paper_params("cub", 5, "authors") == get_preset("authors/cub/5shot")
    assert paper_params("birds", 1) == get_preset("paper/mini/1shot")
    assert paper_params("birds", 3) == get_preset("paper")
    unit = unit_scale(get_preset("authors"))
    assert (unit.center, unit.l2, unit.head, unit.psd) == (True, True, "closed_form", "clip")


def test_comparison_without_validation_classes_tunes_nothing() -> None:
    features = small()
    record = comparison.comparison(Case(FeatureSet(features.base, None, features.novel), "birds", 1, EFFORT))
    assert record["tuned"] == {}
    assert not {comparison.TUNED, comparison.DC_TUNED} & set(record["correct"])
    assert len(record["correct"][comparison.DC_ROW]) == EFFORT.sampled
    assert len(record["correct"][comparison.ROWS[PRINTED]]) == 3  # a task of eight features costs a third of one of 640
    shown = comparison.show_comparison({("birds", 1): record})
    text = to_markdown(shown.blocks)
    assert "birds, 1-shot" in text
    assert "(paper)" not in text


def test_dc_has_the_papers_setting_on_meta_tiered() -> None:
    assert comparison.dc_setting("meta-tiered", 5) == {"k": 2, "alpha": 900.0, "beta": 1.0, "n": 750}
    assert comparison.dc_setting("cub", 5) == {}


def test_verdicts_of_a_comparison_by_group(finished: Path) -> None:
    (record,) = [r for r in kept_records(finished)["table1"] if r["shot"] == 1]
    section = comparison.show_comparison({("dogs", 1): record["data"]}, "table1")
    assert [v.group for v in section.verdicts] == [*GROUPS[:2], *GROUPS[1:]]
    assert all(v.control for v in section.verdicts)
    # DC is tuned with as many trials as GDC, and begins with its published setting.
    tuned = record["data"]["tuned"]
    assert {c["tried"] for c in tuned.values()} == {EFFORT.trials}
    used = record["data"]["settings"][comparison.ROWS[PRINTED]]
    assert used == {"method": "gdc", **get_preset("paper/dogs/1shot").as_dict()}
    text = to_markdown(section.blocks)
    assert "As printed — Stanford Dogs, 1-shot: m=1.5, k=10, α1=400, α2=100·α1, β=1; n=750 a support point;" in text


def test_ablation_as_printed_has_the_values_of_table_4(finished: Path) -> None:
    (record,) = kept_records(finished)["table4"]
    settings = record["data"]["settings"]
    for row in published()["table4"]["rows"][1:]:
        used = settings[f"as printed: {row['step']}"]
        assert (used["n"], used["n_per"], used["head"], used["l2"]) == (750, "point", "sgd", False)
        assert {name: used[name] for name in row["setting"]} == row["setting"]
    without = settings[f"as printed: {ablation.WITHOUT_K}"]
    assert (without["k"], without["m"], without["alpha1"], without["alpha2_ratio"]) == (33, 1.5, 600.0, 0.0)
    groups = [v.group for v in ablation.show_ablation({("dogs", 1): record["data"]}).verdicts]
    assert {g: groups.count(g) for g in GROUPS} == {"as printed": 7, "tuned or rescaled": 28, "default": 1}


def test_ablation_steps_add_one_component_at_a_time(finished: Path) -> None:
    (record,) = kept_records(finished)["table4"]
    chosen = record["data"]["chosen"]
    for panel in ablation.TUNED:
        of = {step: chosen[f"{panel.name}: {step}"]["chosen"] for step in ablation.STEPS}
        assert set(of["gaussianization"]) == {"beta"}
        assert {s["beta"] for s in of.values()} == {of["gaussianization"]["beta"]}
        assert (of["top-k"]["m"], of["top-k"]["alpha1"], of["weights"]["m"]) == (0.0, 0.0, 1.0)
        assert of["alpha1"]["alpha2_ratio"] == 0.0
        # Ranges are nested from here on, so validation accuracy cannot fall.
        val = [chosen[f"{panel.name}: {s}"]["val"] for s in ("weights", "alpha1", "alpha1+alpha2", "all")]
        assert val == sorted(val)
        assert chosen[f"{panel.name}: {ablation.WITHOUT_K}"]["chosen"]["k"] == 33
    one = {k: v for k, v in record["data"]["settings"].items() if k.endswith("gaussianization")}
    assert [(v["l2"], v["head"]) for v in one.values()] == [
        (False, "sgd"),
        (True, "sgd"),
        (False, "sgd"),
        (False, "lbfgs"),
        (True, "lbfgs"),
    ]


def test_distances_start_from_the_same_winner(finished: Path) -> None:
    (record,) = kept_records(finished)["distances"]
    chosen = {k: v["chosen"] for k, v in record["data"]["chosen"].items()}
    for name, axis in (("delta", "delta"), ("scaled", "m")):
        own = chosen[f"{distances.TUNED}: {name}"]
        assert {k: v for k, v in own.items() if k != axis} == chosen[f"{distances.TUNED}: sqeuclidean"]


def test_distances_as_printed(finished: Path) -> None:
    """Equation 13 has no ridge and no shift, and where a covariance has no inverse it is left out with the reason."""
    (record,) = kept_records(finished)["distances"]
    data = record["data"]
    used = data["settings"]["as printed: mahalanobis"]
    assert (used["mahalanobis_ridge"], used["mahalanobis_shift"], used["m"], used["head"]) == (0.0, False, 1.0, "sgd")
    assert (data["settings"]["as printed: scaled"]["m"], data["left_out"]) == (1.5, "")
    verdicts = distances.show_distances({("dogs", 1): data}).verdicts
    assert [v.group for v in verdicts].count("as printed") == 2  # δ is not printed, and the ridge is a repair
    few_rows = make_features(base=12, val=6, novel=6, rows=17, dim=20, seed=0)
    data = distances.distances(Case(few_rows, "dogs", 1, ONE))
    assert "needs invertible class covariances" in data["left_out"]
    assert "as printed: mahalanobis, repaired" in data["correct"]


def test_off_diagonal_covariances_are_told_from_noise() -> None:
    x = np.random.default_rng(0).normal(size=(300, 30)) @ np.linalg.cholesky(0.5 * np.eye(30) + 0.5).T
    size, average = off_diagonal.off_diagonal_ratios(x)
    assert size == pytest.approx(0.5, abs=0.06)
    assert average == pytest.approx(0.5, abs=0.06)
    record = off_diagonal.off_diagonal(Case(small(), "mini", WHOLE, EFFORT))
    assert {len(v) for one in record["ratios"].values() for v in one.values()} == {33}
    verdicts = off_diagonal.show_off_diagonal({("mini", WHOLE): record}).verdicts
    assert [v.group for v in verdicts] == ["as printed"] * 2 + ["tuned or rescaled"] * 2


# ---- the fidelity study ---------------------------------------------------------------------------------------------


def test_the_tables_of_the_page_are_written_from_a_run(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Words\n\n## All figures\n\nold tables\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["fidelity_page.py", str(finished), str(page)])
    tool = Path(__file__).parents[2] / "tools" / "fidelity_page.py"
    runpy.run_path(str(tool), run_name="__main__")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Words\n\n## All figures\n\nColumns are features and shots, * a stand-in.")
    assert "old tables" not in text
    assert "| starting point | Dogs* 1 | Dogs* 5 | mini* 1 | mini* 5 |" in text
    record = json.loads((finished / "results" / "fidelity" / "mini-1shot.json").read_text(encoding="utf-8"))["data"]
    [line] = [line for line in text.splitlines() if line.startswith("| `paper`, own scale |")]
    assert line.split(" | ")[3] == mean_text(record, "paper, own scale")
    assert " comparisons, " in capsys.readouterr().out


@pytest.mark.parametrize("preset", fidelity.PRESETS)
@pytest.mark.parametrize("shot", [1, 5])
def test_each_variant_answers_one_question_otherwise(preset: str, shot: int) -> None:
    features = small()
    found = fidelity.variants(preset, "cub", shot, features)
    assert len({(a.question, a.answer, a.at) for a, _ in found}) == len(found)
    for answer, params in found:
        start = fidelity.starting_point(preset, "cub", shot, answer.at).as_dict()
        changed = {k for k, v in params.as_dict().items() if v != start[k]}
        assert changed
        assert changed <= set(answer.change)


def test_questions_that_do_not_arise_are_left_out() -> None:
    def asked(preset: str, shot: int, relu: bool) -> set[str]:
        return {a.question for a, _ in fidelity.variants(preset, "cub", shot, small(relu=relu))}

    assert "n" not in asked("paper", 1, True)
    assert "n" in asked("paper", 5, True)
    assert "Σ'ₛ not positive semi-definite" in asked("paper", 1, True)
    assert "Σ'ₛ not positive semi-definite" in asked("paper", 5, True)
    assert "β = 0 and zeros" not in asked("paper", 1, False)
    assert "rows of a base class in cov(X')" not in asked("paper", 1, True)  # 24 rows
    assert fidelity.answered(get_preset("paper"), fidelity.Answer("α2", "", {"alpha2_ratio": "own"})).alpha2_ratio == (
        pytest.approx(10 / 3000)
    )


def test_a_clip_that_never_acts_is_no_question(finished: Path) -> None:
    case = Case(small(relu=False), "dogs", 5, EFFORT)
    much = paper_params("dogs", 5)
    assert 0 < fidelity.clipped_share(much, case) <= 1
    assert fidelity.clipped_share(much.with_changes(alpha2_ratio=0.0), case) == 0
    for record in kept_records(finished)["fidelity"]:
        asked = {r["reference"] for r in record["data"]["rows"] if r["question"] == fidelity.NOT_PSD}
        assert asked == {name for name, share in record["data"]["clipped"].items() if share > 0}


def test_tukey_against_yeo_johnson_is_a_statement(finished: Path) -> None:
    records = {(r["dataset"], r["shot"]): r["data"] for r in kept_records(finished)["fidelity"]}
    verdicts = fidelity.show_fidelity(records).verdicts
    assert {v.where for v in verdicts} == {
        f"miniImageNet, {shot}-shot, {at}" for shot in (1, 5) for at in ("as printed", "unit scale, closed form")
    }  # the features of Dogs are signed
    assert all(v.control for v in verdicts)


def test_presets_meet_where_their_answers_do(finished: Path) -> None:
    """`paper` with the authors' answer and `authors` with the paper's: both see the same tasks as their reference."""
    for record in kept_records(finished)["fidelity"]:
        data = record["data"]
        for row in data["rows"]:
            assert row["variant"] in data["correct"]
            assert row["reference"] in data["correct"]
        many = [r for r in data["rows"] if r["question"] == "base classes of Stanford Dogs"]
        assert len(many) == (3 if record["dataset"] == "dogs" else 0)


# ---- features -------------------------------------------------------------------------------------------------------


def test_features_are_found_by_name_or_as_told(folders: Path, tmp_path: Path) -> None:
    assert list(find_features([folders])) == ["dogs", "mini"]
    assert find_features([f"birds={folders / 'mini-tiny'}"]) == {"birds": folders / "mini-tiny"}
    assert dataset_of("Stanford-Dogs-64") == "dogs"
    for wrong, match in (
        ([folders / "nothing"], "no folder"),
        ([f"x={folders}"], "holds 2 feature sets"),
        ([folders, folders / "mini-tiny"], "both taken for mini"),
        ([tmp_path], "holds no features"),
        ([f"a/b={folders / 'mini-tiny'}"], "cannot be the name"),
    ):
        with pytest.raises(InputError, match=match):
            find_features(wrong)


def test_experiments_know_their_datasets() -> None:
    given = ["cub", "birds"]
    assert EXPERIMENTS["table1"].on(given) == ["cub"]
    assert EXPERIMENTS["table2"].on(given) == []
    assert EXPERIMENTS["table4"].on(given) == ["cub"]  # the first given, where none is the paper's
    assert EXPERIMENTS["comparison"].on(given) == ["birds"]
    assert EXPERIMENTS["fidelity"].on(given) == given
    assert len(choose(["all"])) == len(EXPERIMENTS)
    with pytest.raises(InputError, match="did you mean 'table1'"):
        choose(["tabel1"])


# ---- runs -----------------------------------------------------------------------------------------------------------


def numbers(out: Path) -> dict[str, Any]:
    """All records without what depends on the clock."""
    found = {}
    for file in sorted((out / "results").rglob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        record.pop("seconds")
        record["data"].pop("seconds", None)
        found[file.relative_to(out).as_posix()] = record
    return found


def test_a_run_killed_and_resumed_gives_the_same_numbers(folders: Path, tmp_path: Path) -> None:
    features = find_features([folders])
    wanted = choose(["candidates", "distances"])
    run_experiments(wanted, features, tmp_path / "whole", EFFORT)
    lines: list[str] = []

    def killed(line: str) -> None:
        lines.append(line)
        if line.startswith("[3/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiments(wanted, features, tmp_path / "cut", EFFORT, say=killed)
    assert len(numbers(tmp_path / "cut")) == 2
    with pytest.raises(InputError, match="continue with --resume"):
        run_experiments(wanted, features, tmp_path / "cut", EFFORT)
    # A file that is torn counts as none.
    torn = next((tmp_path / "cut" / "results").rglob("*.json"))
    torn.write_text(torn.read_text(encoding="utf-8")[:50], encoding="utf-8")
    again: list[str] = []
    run_experiments(wanted, features, tmp_path / "cut", EFFORT, resume=True, say=again.append)
    assert "1 of 5 are there already" in again
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")


def test_a_run_is_continued_with_its_own_settings_only(folders: Path, tmp_path: Path) -> None:
    wanted = choose(["mean-curve"])
    features = {"mini": small(1)}
    run_experiments(wanted, features, tmp_path / "a", EFFORT)
    other = replace(EFFORT, tasks=5)
    with pytest.raises(InputError, match="begun with tasks=4, not 5"):
        run_experiments(wanted, features, tmp_path / "a", other, resume=True)
    with pytest.raises(InputError, match="other features of mini"):
        run_experiments(wanted, {"mini": small(2)}, tmp_path / "a", EFFORT, resume=True)
    run_experiments(wanted, {"dogs": small(3)}, tmp_path / "a", EFFORT, resume=True)  # more features are welcome
    assert set(read_config(tmp_path / "a")["features"]) == {"mini", "dogs"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        run_experiments(wanted, features, tmp_path / "full", EFFORT)
    with pytest.raises(InputError, match="no features"):
        run_experiments(wanted, {}, tmp_path / "b", EFFORT)
    with pytest.raises(InputError, match="holds no run"):
        draw_report(tmp_path / "full")
    old = read_config(tmp_path / "a") | {"version": 1}
    (tmp_path / "full" / "config.json").write_text(json.dumps(old))
    with pytest.raises(FileFormatError, match="a run of format 1"):
        run_experiments(wanted, features, tmp_path / "full", EFFORT, resume=True)
    (tmp_path / "full" / "config.json").write_text("{}")
    with pytest.raises(FileFormatError, match="not that of a run"):
        draw_report(tmp_path / "full")
    (tmp_path / "full" / "config.json").write_text("{")
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_config(tmp_path / "full")


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = small()
    without = FeatureSet(features.base, None, features.novel)
    monkeypatch.setattr("fewcal.paper.run.find_spec", lambda name: None)
    left = run_experiments(choose(["table3", "distances", "tsne"]), {"mini": without}, tmp_path / "a", EFFORT)
    assert re.search("table3 is about meta-tieredImageNet", left[0])
    assert re.search("distances needs the split val", left[1])
    assert re.search("tsne needs sklearn, scipy; continue with --resume", left[2])
    with pytest.raises(InputError, match="no finished experiment"):
        draw_report(tmp_path / "a")


def test_computing_needs_torch_and_numpy_alone(folders: Path, tmp_path: Path) -> None:
    blocked = ["sklearn", "scipy", "matplotlib", "optuna", "pandas", "pyarrow", "PIL", "rich", "typer"]
    code = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {blocked!r} else real(name, *a)
from dataclasses import dataclass
from fewcal._utils.parameters import parameter
from fewcal.heads import HEADS
from fewcal.heads.sgd import SGD
@dataclass(frozen=True)
class TwoEpochs(SGD):
    epochs: int = parameter(2, "passes over the points", low=1, integer=True)
HEADS["sgd"] = TwoEpochs
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import FIGURES, choose
from fewcal.paper.run import find_features, run_experiments
left = run_experiments(
    choose(["candidates", "weights", "mean-curve", "off-diagonal", "tsne"]),
    find_features([{str(folders / "mini-tiny")!r}]), {str(tmp_path / "out")!r}, Budget.of(2, sgd=1, trials=1))
print(len(left))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
    draw_report(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").is_file()


# ---- showing --------------------------------------------------------------------------------------------------------


def test_a_report_says_where_statements_hold(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text(encoding="utf-8"))
    claims = {v["claim"] for v in summary["verdicts"]}
    assert any(c.startswith("GDC is above DC") for c in claims)
    assert sum(c.startswith("ablation: ") for c in claims) == 6
    assert {v["verdict"] for v in summary["verdicts"]} <= {"holds", "does not hold", "cannot tell"}
    text = (finished / "summary.md").read_text(encoding="utf-8")
    assert "Left out: table3 is about something else." in text
    assert "nan" not in text.lower().replace("nano", "")
    for picture in re.findall(r"\((figures/[^)]+)\)", text):
        assert (finished / picture).is_file()
    # Drawing twice gives the same files.
    before = {f: f.read_bytes() for f in (finished / "report.html", finished / "summary.md")}
    draw_report(finished, ["table3 is about something else"])
    assert all(f.read_bytes() == content for f, content in before.items())


def test_verdicts_need_an_interval_with_one_sign() -> None:
    acc = {"per_task": 10, "correct": {"a": [6, 7, 8, 7, 7], "b": [3, 4, 5, 5, 4], "c": [9, 2, 9, 9, 7]}}
    assert Verdict.of("", "", difference(acc, "a", "b"), "default").holds is True
    assert Verdict.of("", "", difference(acc, "b", "a"), "default").holds is False
    assert Verdict.of("", "", difference(acc, "c", "a"), "default").holds is None
    two = {"per_task": 10, "correct": {"a": [6, 7], "b": [5, 6]}}  # the same difference twice, by chance
    assert difference(two, "a", "b").ci95 == 0
    assert Verdict.of("", "", difference(two, "a", "b"), "default").holds is None
    few = np.zeros(1000, int)
    few[:9] = 1  # all of them wins, and a t-test would be sure
    acc = {"per_task": 10, "correct": {"a": (5 + few).tolist(), "b": [5] * 1000}}
    assert difference(acc, "a", "b").difference > difference(acc, "a", "b").ci95
    assert Verdict.of("", "", difference(acc, "a", "b"), "default").holds is None
    few[:30] = 1
    acc["correct"] = {"a": (5 + few).tolist(), "b": [5] * 1000}
    assert Verdict.of("", "", difference(acc, "a", "b"), "default").holds is True
    verdicts = [Verdict("x", "here", "+1", True, "default"), Verdict("y", "there", "−1", False, "as printed")]
    table = claims_table(verdicts, "c")
    assert [len(r) for r in table.rows] == [3, 3]
    assert table.rows[0][2] is None
    assert to_markdown([Table(["a"], [[1.23456], ["x|y"]])]).splitlines()[2:] == ["| 1.235 |", "| x\\|y |"]


def test_the_report_in_a_browser(finished: Path, browser: Browser) -> None:
    page = browser.open(finished / "report.html")
    count, broken = page.images()
    assert count >= 4
    assert broken == []
    assert page.errors == []
    assert page.js("[...document.images].every(i => i.alt.length > 20)")
    assert page.js("document.querySelectorAll('.mark.cited').length") > 20
    assert page.contrast() == []
    page.resize(390)
    assert page.overflow() == []
    page.close()


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_computes_then_draws(folders: Path, tmp_path: Path) -> None:
    runner, out = CliRunner(), str(tmp_path / "o")
    listed = runner.invoke(application(), ["paper", "list", "--json", str(tmp_path / "list.json")])
    assert listed.exit_code == 0
    assert [r["name"] for r in json.loads((tmp_path / "list.json").read_text())] == list(EXPERIMENTS)
    assert "table4" in listed.output
    given = ["paper", "run", "candidates", "--features", str(folders), "--out", out, "--tasks", "2", "--quick"]
    done = runner.invoke(application(), [*given, "--compute-only"])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "o" / "report.html").exists()
    drawing = ["paper", "run", "all", "--out", out, "--draw-only", "--json", str(tmp_path / "s.json")]
    done = runner.invoke(application(), drawing)
    assert done.exit_code == 0, done.output
    assert "as printed: " in done.output
    assert json.loads((tmp_path / "s.json").read_text())["effort"]["tasks"] == 2
    assert runner.invoke(application(), [*given, "--resume", "--quiet"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nothing", "--out", "o", "--features", "f"], "experiment 'nothing' is unknown"),
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
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert word in told[0]


def test_every_experiment_is_described() -> None:
    for e in EXPERIMENTS.values():
        assert isinstance(e, Experiment)
        assert all((e.title, e.source, e.says, e.cost))
    assert issubclass(InputError, FewcalError)


def test_an_experiment_is_added_by_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(case: Case) -> dict[str, int]:
        return {"classes": len(case.features.split("base").classes)}

    def show(records: Any) -> Section:
        rows = [[where, record["classes"], cited(64.0)] for (where, _), record in records.items()]
        return Section([Table(["features", "base classes", "paper"], rows)])

    toy = Experiment("classes", "Base classes", "section 4", "There are 64.", compute, show, shots=(WHOLE,))
    monkeypatch.setitem(EXPERIMENTS, "classes", toy)
    run_experiments(choose(["classes"]), {"mini": small()}, tmp_path / "run", EFFORT)
    draw_report(tmp_path / "run")
    assert "| mini | 33 | 64.00 † |" in (tmp_path / "run" / "summary.md").read_text(encoding="utf-8")
