"""The summary of a run: typed, the same after JSON, and with a column for every registered statistic."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fewcal.errors import FewcalWarning
from fewcal.evaluation import STATISTICS, Protocol, Results, Statistic, Summary, evaluate, load_run
from fewcal.evaluation.summary import percent
from fewcal.report.run_report import run_report
from small_features import feature_set


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return evaluate("ncm,gdc", feature_set(), Protocol(tasks=30, query=5), out=tmp_path_factory.mktemp("a") / "run")


def test_a_summary_survives_json(results: Results) -> None:
    summary = results.summary()
    again = Summary.from_dict(json.loads(json.dumps(summary.to_dict(), allow_nan=False)))
    assert again == summary
    assert again.to_markdown() == summary.to_markdown()


def test_what_is_undefined_is_nan_here_and_null_in_json() -> None:
    summary = evaluate("ncm,gdc", feature_set(), Protocol(tasks=1, query=5)).summary()
    m = summary.methods["gdc"]
    assert math.isnan(m.ci95)
    assert m.class_interval is None
    never_asked = [name for name, share in m.per_class.items() if math.isnan(share)]
    assert len(never_asked) == len(m.per_class) - 5
    plain = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert plain["methods"]["gdc"]["ci95"] is None
    assert plain["methods"]["gdc"]["per_class"][never_asked[0]] is None
    assert plain["paired"][0]["p_t"] is None
    again = Summary.from_dict(plain)
    assert math.isnan(again.methods["gdc"].per_class[never_asked[0]])
    assert math.isnan(again.paired[0].p_t)
    assert "| – |" in again.to_markdown()


def test_a_difference_is_found_either_way_round(results: Results) -> None:
    summary = results.summary()
    one, other = summary.difference("gdc", "ncm"), summary.difference("ncm", "gdc")
    accuracy = {name: results.accuracy(name) for name in ("gdc", "ncm")}
    assert one.difference == -other.difference == pytest.approx((accuracy["gdc"] - accuracy["ncm"]).mean())
    assert (one.a, one.b, one.won, one.lost) == ("gdc", "ncm", other.lost, other.won)
    assert one.p_t_holm == other.p_t_holm
    with pytest.raises(KeyError, match="not compared"):
        summary.difference("gdc", "dc")


def test_without_class_intervals_there_are_none(results: Results) -> None:
    assert results.summary().methods["gdc"].class_interval is not None
    assert results.summary(class_intervals=False).methods["gdc"].class_interval is None


def test_keys_of_earlier_releases_work_with_a_warning(results: Results) -> None:
    summary = results.summary()
    with pytest.warns(FewcalWarning, match=r"summary\.methods"):
        assert summary["methods"] == summary.to_dict()["methods"]


def test_a_statistic_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is computed, stored, read again, and shown in the Markdown table and the report."""
    median = Statistic("median", "median %", lambda m: float(np.median(m.accuracy)), percent)
    monkeypatch.setitem(STATISTICS, "median", median)
    folder = tmp_path / "run"
    results = evaluate("ncm,gdc", feature_set(), Protocol(tasks=9, query=5), out=folder)
    expected = np.median(results.accuracy("gdc"))
    stored = json.loads((folder / "summary.json").read_text())
    assert stored["methods"]["gdc"]["median"] == expected
    assert Summary.from_dict(stored).methods["gdc"].value("median") == expected
    header, _, _, row = load_run(folder).summary().to_markdown().splitlines()[2:6]
    assert header.endswith("| median % |")
    assert row.startswith("| gdc |")
    assert row.endswith(f"| {100 * expected:.2f} |")
    html = run_report([folder]).render()
    assert "median %" in html
    assert f"{100 * expected:.2f}" in html


def test_a_summary_written_before_a_statistic_was_added_shows_a_dash(
    monkeypatch: pytest.MonkeyPatch, results: Results
) -> None:
    stored = results.summary().to_dict()
    monkeypatch.setitem(STATISTICS, "late", Statistic("late", "late", lambda m: 1.0, str))
    assert Summary.from_dict(stored).to_markdown().splitlines()[4].endswith("| – |")
