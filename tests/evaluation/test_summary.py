"""The summary of a run: figures, tables, and what they mark."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fewcal.evaluation import STATISTICS, Protocol, Results, Statistic, evaluate, load_run
from fewcal.evaluation.stats import calibration_error
from fewcal.evaluation.summary import TRANSDUCTIVE_NOTE, percent
from fewcal.methods import make_method
from fewcal.report.run_report import run_report
from small_features import Together, feature_set

PROTOCOL = Protocol(tasks=30, query=5)
NAMES = ("ncm", "lr", "hgdc", "together")


@pytest.fixture(scope="module")
def results() -> Results:
    methods = {"ncm": make_method("ncm"), "lr": make_method("lr"), "hgdc": make_method("hgdc"), "together": Together()}
    return evaluate(methods, feature_set(), PROTOCOL)


def test_summary_in_json_has_every_figure(results: Results) -> None:
    plain = json.loads(json.dumps(results.summary().to_dict(), allow_nan=False))
    assert list(plain) == ["protocol", "methods", "paired"]
    assert Protocol(**plain["protocol"]) == PROTOCOL
    assert list(plain["methods"]) == list(NAMES)
    for name, m in plain["methods"].items():
        acc = results.accuracy(name)
        assert m["accuracy"] == pytest.approx(acc.mean())
        assert m["worst10"] == pytest.approx(np.sort(acc)[:3].mean())
        assert m["class_interval"]["low"] <= m["accuracy"] <= m["class_interval"]["high"]
        assert (m["ece"] is None) if name == "ncm" else (0 <= m["ece"] <= 1)
        assert m["tasks"] == 30
        assert m["tasks_per_second"] == pytest.approx(30 / m["seconds"])
        assert m["settings"]["method"] == name
    assert len(plain["paired"]) == 6
    for d in plain["paired"]:
        assert d["difference"] == pytest.approx((results.accuracy(d["a"]) - results.accuracy(d["b"])).mean())
        assert d["p_t_holm"] >= d["p_t"]
    against = results.summary("ncm").to_dict()["paired"]
    assert [(d["a"], d["b"]) for d in against] == [(name, "ncm") for name in NAMES if name != "ncm"]


def test_single_task_leaves_nan_here_and_null_in_json() -> None:
    summary = evaluate("ncm,hgdc", feature_set(), Protocol(tasks=1, query=5)).summary()
    m = summary.methods["hgdc"]
    assert math.isnan(m.ci95)
    assert m.class_interval is None
    assert sum(map(math.isnan, m.per_class.values())) == len(m.per_class) - 5
    plain = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert plain["methods"]["hgdc"]["ci95"] is None
    assert plain["paired"][0]["p_t"] is None
    assert [s.name for s in summary.columns()] == ["accuracy", "worst10", "ece", "tasks_per_second"]
    assert "| – | – | 1.0000 |" in summary.to_markdown()
    assert evaluate("ncm", feature_set(), Protocol(tasks=1, query=5)).summary().paired == []


def test_difference_is_found_either_way_round(results: Results) -> None:
    summary = results.summary()
    one, other = summary.difference("hgdc", "ncm"), summary.difference("ncm", "hgdc")
    assert one.difference == -other.difference
    assert (one.a, one.b, one.won, one.lost) == ("hgdc", "ncm", other.lost, other.won)
    assert one.p_t_holm == other.p_t_holm
    with pytest.raises(KeyError, match="not compared"):
        summary.difference("hgdc", "dc")


def test_tables_compare_with_one_reference(results: Results) -> None:
    summary = results.summary()
    best = max(("ncm", "lr", "hgdc"), key=lambda name: results.accuracy(name).mean())
    assert [(d.a, d.b) for d in summary.differences] == [(best, name) for name in NAMES if name != best]
    assert f"Pairs with {best}, the best; p-values are corrected over all 6 pairs." in summary.notes()
    chosen = results.summary("lr")
    assert [d.b for d in chosen.differences] == ["lr"] * 3
    assert chosen.notes() == [TRANSDUCTIVE_NOTE]


def test_transductive_methods_are_marked_and_lead_only_their_kind(results: Results) -> None:
    summary = results.summary()
    assert summary.label("together") == "together (transductive)"
    assert summary.best in ("ncm", "lr", "hgdc")
    assert summary.leaders == [summary.best, "together"]
    results.correct["together"][:] = results.queries  # even with every answer right
    assert results.summary().best == summary.best
    text = summary.to_markdown()
    assert TRANSDUCTIVE_NOTE in text
    assert text.replace(TRANSDUCTIVE_NOTE, "").count("together") == text.count("together (transductive)") == 2


def test_methods_without_probabilities_have_no_calibration_error(results: Results) -> None:
    rows = {line.split("|")[1].strip(): line for line in results.summary().to_markdown().splitlines() if "|" in line}
    column = [cell.strip() for cell in rows["method"].split("|")].index("ECE")
    shown = {name: rows[name].split("|")[column].strip() for name in ("ncm", "lr", "hgdc")}
    assert shown["ncm"] == "–"
    assert shown["lr"] == f"{calibration_error(results.bins['lr']):.3f}"
    of_ncm = evaluate("ncm", feature_set(), PROTOCOL).summary()
    assert "ECE" not in of_ncm.to_markdown(), "a column that no method has a value for"


def test_printed_results_are_a_table(results: Results) -> None:
    text = repr(results)
    assert text == repr(results.summary(class_intervals=False))
    assert text.startswith("30 tasks, 5-way 1-shot, 5 queries a class")
    assert len(text.splitlines()) < 25
    assert results.summary().methods["hgdc"].class_interval is not None
    assert "over classes" not in text, "what costs time is not computed to print"


class Balanced(HTMLParser):
    """Whether every element is closed, and the texts of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_notebook_shows_the_same_tables(results: Results) -> None:
    html, parser = results._repr_html_(), Balanced()
    parser.feed(html)
    assert parser.stack == []
    cells = [cell.strip() for line in results.summary().to_markdown().splitlines() for cell in line.split("|")]
    assert [t for t in parser.texts if t] == [c for c in cells if c and not set(c) <= {"-", ":"}]
    parts = ("correct", "bins", "seconds", "settings")
    named = replace(results, **{p: {f"<b>{name}": v for name, v in getattr(results, p).items()} for p in parts})
    assert "<b>" not in named._repr_html_()


def test_statistic_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is computed, stored, and shown in the Markdown table and the report."""
    median = Statistic("median", "median %", lambda m: float(np.median(m.accuracy)), percent)
    monkeypatch.setitem(STATISTICS, "median", median)
    folder = tmp_path / "run"
    expected = np.median(evaluate("ncm,hgdc", feature_set(), PROTOCOL, out=folder).accuracy("hgdc"))
    assert json.loads((folder / "summary.json").read_text())["methods"]["hgdc"]["median"] == expected
    header, _, _, row = load_run(folder).summary().to_markdown().splitlines()[2:6]
    assert header.endswith("| median % |")
    assert row.startswith("| hgdc |")
    assert row.endswith(f"| {100 * expected:.2f} |")
    html = run_report([folder]).render()
    assert "median %" in html
    assert f"{100 * expected:.2f}" in html
