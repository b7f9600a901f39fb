"""The `fewcal` command as a user meets it: output, exit codes, and one line for everything that goes wrong."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from fewcal import FewShotClassifier
from fewcal._utils.terminal import ProgressBar
from fewcal.bank import BaseBank
from fewcal.cli import main
from fewcal.cli.errors import format_error
from fewcal.evaluation.engine import BLOCK_TASKS
from fewcal.features import FeatureSplit
from fewcal.methods import METHODS
from fewcal.methods.settings_file import load_settings
from fewcal.presets import get_preset, list_presets
from limits import PATIENCE
from small_features import Broken, feature_set, save_features, split


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def fewcal(capsys: pytest.CaptureFixture[str]):
    """Run the command in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        told = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Answer(stop.value.code, told.out, told.err)

    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_features(tmp_path_factory.mktemp("cli") / "features", **feature_set().splits())


SHORT = ("--way", 3, "--query", 5, "--tasks", 30)


# ---- looking at things ----------------------------------------------------------------------------------------------


def test_version(fewcal, tmp_path: Path) -> None:
    answer = fewcal("version", "--json", tmp_path / "v.json")
    facts = json.loads((tmp_path / "v.json").read_text())
    assert answer == (0, "".join(f"{k} {'none' if v is None else v}\n" for k, v in facts.items()), "")
    assert facts["python"] == sys.version.split()[0]
    assert fewcal("--version") == (0, f"fewcal {facts['fewcal']}\n", "")


def test_a_misspelt_path_is_told_with_what_may_have_been_meant(fewcal, data: Path) -> None:
    answer = fewcal("features", "info", data.with_name(data.name + "s"))
    assert answer.code == 2
    assert f"does not exist; did you mean '{data}'?" in answer.err


def test_a_misspelt_path_in_a_folder_that_may_not_be_listed_isformat_error(
    fewcal, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    answer = fewcal("features", "info", data.with_name("nothing"))
    assert answer.code == 2
    assert "does not exist; check the path" in answer.err


@pytest.mark.parametrize("arguments", [(), ("features",), ("bank",), ("presets",)])
def test_nothing_to_do_shows_help(fewcal, arguments) -> None:
    answer = fewcal(*arguments)
    assert answer.code == 2
    assert "Usage: fewcal" in answer.out
    assert answer.err == ""


def test_help_names_every_command(fewcal) -> None:
    answer = fewcal("--help")
    assert answer.code == 0
    for command in ("version", "evaluate", "compare", "predict", "explain", "features", "bank", "presets"):
        assert re.search(rf"\b{command}\b", answer.out)


def test_features_info(fewcal, data: Path, tmp_path: Path) -> None:
    answer = fewcal("features", "info", data, "--json", tmp_path / "i.json")
    assert (answer.code, answer.err) == (0, "")
    facts = json.loads((tmp_path / "i.json").read_text())
    assert facts["splits"]["novel"]["classes"] == 7
    rows = {line[:36].strip(): line[36:].split() for line in answer.out.splitlines()}
    assert rows["classes"] == ["8", "6", "7"]
    assert rows["rows per class: min"] == ["20", "20", "20"]
    assert "…" not in answer.out
    assert "{" not in answer.out
    assert re.search(r"base/novel +0 +none", answer.out)
    assert fewcal("features", "info", data, "--quiet") == (0, "", "")


def test_features_info_shows_the_gaussianization_of_hgdc(fewcal, tmp_path: Path) -> None:
    """In a bank of many classes the power is chosen from some that are spread over all of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6, 40))
    x[260:] **= 3
    x[..., 3] *= 1e4
    labels = np.repeat(np.arange(600), 6)
    base = FeatureSplit.from_arrays(x.reshape(-1, 40).astype(np.float32), labels, [f"b{i}" for i in range(600)])
    answer = fewcal("features", "info", save_features(tmp_path / "f", base=base), "--json", tmp_path / "i.json")
    choice = BaseBank().fit(base.features, labels).power_choice()
    assert choice.beta < 1
    facts = json.loads((tmp_path / "i.json").read_text())["gaussianization"]
    assert facts == {"power": choice.words, "scaled_features": 1}
    assert f"Gaussianization of HGDC: {choice.words}\n" in answer.out
    assert "1 of 40 features vary far more than others" in answer.out


def test_features_info_warns_of_leaks(fewcal, tmp_path: Path) -> None:
    leak = save_features(tmp_path, base=split("n", 6, 20, 0), novel=split("n", 7, 20, 0))
    answer = fewcal("features", "info", leak)
    assert answer.code == 0
    assert "warning: base and novel: class leak, 6 in both (n0, n1, n2)" in answer.out


def test_presets(fewcal, tmp_path: Path) -> None:
    answer = fewcal("presets", "list", "--json", tmp_path / "l.json")
    assert answer.code == 0
    assert list(json.loads((tmp_path / "l.json").read_text())) == list_presets()
    for name in list_presets():
        assert re.search(rf"^ +{re.escape(name)} ", answer.out, re.MULTILINE), name
    answer = fewcal("presets", "show", "paper/cub/5shot", "--json", tmp_path / "s.json")
    shown = json.loads((tmp_path / "s.json").read_text())
    assert shown["params"].items() <= get_preset("paper/cub/5shot").as_dict().items()
    assert {"k", "m", "alpha1"} <= set(shown["params"])
    assert re.search(r"^ +alpha1 +5000 *$", answer.out, re.MULTILINE)
    for question in shown["resolves"]:
        assert question in answer.out


@pytest.mark.parametrize("options", [(), ("--preset", "paper", "--drop-rows")])
def test_bank_build_and_info(fewcal, data: Path, tmp_path: Path, options) -> None:
    file = tmp_path / "b.safetensors"
    built = fewcal("bank", "build", data, "--out", file, *options, "--json", tmp_path / "built.json")
    assert (built.code, built.err) == (0, "")
    seen = fewcal("bank", "info", file, "--json", tmp_path / "seen.json")
    assert (seen.code, seen.err) == (0, "")
    facts = json.loads((tmp_path / "seen.json").read_text())
    assert facts == json.loads((tmp_path / "built.json").read_text())
    assert built.out == seen.out
    assert facts["classes"] == [f"b{i}" for i in range(8)]
    assert facts["bytes"] == file.stat().st_size
    assert facts["source"] == feature_set().split("base").fingerprint()
    assert facts["kept"] == ("moments only" if options else "rows")
    assert facts["fingerprint"] in seen.out, "not cut short"
    assert "…" not in seen.out.replace("b5, … (8)", "")
    bank = BaseBank.load(file)
    assert (bank.transform is None) == (not options)


def test_bank_from_one_file(fewcal, data: Path, tmp_path: Path) -> None:
    assert fewcal("bank", "build", data / "val.npz", "--out", tmp_path / "b.safetensors", "-q") == (0, "", "")
    assert BaseBank.load(tmp_path / "b.safetensors").classes == [f"v{i}" for i in range(6)]


# ---- evaluate and compare -------------------------------------------------------------------------------------------


def test_evaluate_prints_a_table_and_writes_json(fewcal, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    answer = fewcal("evaluate", data, "--methods", "ncm,simpleshot,gdc", *SHORT, "--json", file, "--seed", 7)
    assert answer.code == 0
    summary = json.loads(file.read_text())
    assert list(summary) == ["protocol", "methods", "paired"]
    assert summary["protocol"]["seed"] == 7
    assert list(summary["methods"]) == ["ncm", "simpleshot", "gdc"]
    assert {"accuracy", "ci95", "tasks_per_second", "ece", "worst10", "per_class"} <= set(summary["methods"]["gdc"])
    assert len(summary["paired"]) == 3
    lines = answer.out.splitlines()
    assert lines[0] == "30 tasks, 3-way 1-shot, 5 queries a class, split novel, seed 7"
    for name, m in summary["methods"].items():
        assert any(line.startswith(f"| {name} | {100 * m['accuracy']:.2f} |") for line in lines)


def test_progress_goes_to_stderr_as_plain_lines(fewcal, data: Path) -> None:
    answer = fewcal("evaluate", data, "--methods", "ncm", *SHORT)
    assert answer.err.splitlines()[0] == "0/30 tasks"
    assert re.fullmatch(r"30/30 tasks, \S+ tasks/s", answer.err.splitlines()[-1])
    assert "\x1b" not in answer.out + answer.err
    assert "/30 tasks" not in answer.out


def test_quiet_says_nothing(fewcal, data: Path, tmp_path: Path) -> None:
    assert fewcal("evaluate", data, "--methods", "ncm", *SHORT, "-q", "--json", tmp_path / "o.json") == (0, "", "")
    assert json.loads((tmp_path / "o.json").read_text())["methods"]["ncm"]["tasks"] == 30


def test_all_methods_is_the_default(fewcal, data: Path, tmp_path: Path) -> None:
    arguments = ("--way", 3, "--query", 5, "--tasks", 4, "--set", "dc.n=6", "-q", "--json", tmp_path / "o.json")
    assert fewcal("evaluate", data, *arguments).code == 0
    assert list(json.loads((tmp_path / "o.json").read_text())["methods"]) == list(METHODS)


def test_preset_set_and_reference(fewcal, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.json"
    chosen = ("--methods", "gdc,gdc:dc,ncm", "--preset", "paper/cub/5shot", "--set", "n=3", "--set", "head=lbfgs")
    assert fewcal("evaluate", data, *chosen, *SHORT, "--reference", "ncm", "-q", "--json", file).code == 0
    methods = json.loads(file.read_text())["methods"]
    assert methods["gdc"]["settings"]["alpha1"] == 5000
    assert methods["gdc:dc"]["settings"]["cov"] == "independent"
    assert [methods[m]["settings"]["n"] for m in ("gdc", "gdc:dc")] == [3, 3]
    assert [(d["a"], d["b"]) for d in json.loads(file.read_text())["paired"]] == [("gdc", "ncm"), ("gdc:dc", "ncm")]


def test_unbalanced_tasks_and_a_method_of_ones_own(fewcal, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.json"
    vary = ("--vary", "dirichlet=2", "--vary", "outliers=.2", "--vary", "min_way=2", "--vary", "queries=10")
    answer = fewcal("evaluate", data, "--methods", "ncm,small_features:Together", *SHORT, *vary, "--json", file)
    assert answer.code == 0
    summary = json.loads(file.read_text())
    expected = {"dirichlet": 2, "outliers": 0.2, "min_way": 2, "queries": 10, "min_shot": None, "present": None}
    assert expected.items() <= summary["protocol"].items()
    assert {"auroc", "outlier_recall"} <= set(summary["methods"]["ncm"])
    assert "| small_features:Together (transductive) |" in answer.out
    assert answer.out.startswith("30 tasks, 2- to 3-way 1-shot, 10 queries, class shares Dirichlet(2), 20% outliers")


def test_tasks_saved_used_again_and_compared(fewcal, data: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.npz"
    first = ("--methods", "ncm", "--save-tasks", tasks, "--out", tmp_path / "one", "--no-replacement", "--split", "val")
    assert fewcal("evaluate", data, *first, *SHORT, "-q").code == 0
    # Without --tasks, all of the list; its shape comes with it.
    second = ("--methods", "simpleshot,ncm", "--task-list", tasks, "--out", tmp_path / "two", "--split", "val")
    assert fewcal("evaluate", data, *second, "-q") == (0, "", "")
    answer = fewcal("compare", tmp_path / "one", tmp_path / "two", "--json", tmp_path / "c.json")
    assert (answer.code, answer.err) == (0, "")
    summary = json.loads((tmp_path / "c.json").read_text())
    assert summary["protocol"]["replacement"] is False
    assert summary["methods"]["one/ncm"]["accuracy"] == summary["methods"]["two/ncm"]["accuracy"]
    assert "| simpleshot |" in answer.out
    assert fewcal("compare", tmp_path / "one", tmp_path / "two", "-q") == (0, "", "")


def test_resume_of_a_finished_run_prints_it_again(fewcal, data: Path, tmp_path: Path) -> None:
    arguments = ("evaluate", data, "--methods", "ncm,gdc", *SHORT, "--out", tmp_path / "run")
    first = fewcal(*arguments)
    again = fewcal(*arguments, "--resume")
    assert again.code == 0
    assert again.out == first.out
    assert again.err == "30/30 tasks\n"
    assert first.out == (tmp_path / "run" / "summary.md").read_text()


# ---- real use -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank, two examples each of three classes, and eight queries each."""
    folder = tmp_path_factory.mktemp("real")
    features = feature_set()
    base, novel = features.split("base"), features.split("novel")
    BaseBank().fit(base.features, [base.classes[i] for i in base.require_labels()]).save(folder / "bank.safetensors")
    rows = np.stack([np.flatnonzero(novel.require_labels() == c)[:10] for c in (0, 3, 5)])
    names = ["ant", "bee", "cat"]
    FeatureSplit.from_arrays(novel.features[rows[:, :2].ravel()], np.repeat(names, 2)).save(folder / "S.npz")
    FeatureSplit.from_arrays(novel.features[rows[:, 2:].ravel()]).save(folder / "Q.npz")
    return folder


def predict(files: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("predict", "--support", files / "S.npz", "--query", files / "Q.npz", "--out", out, *more)


@pytest.mark.parametrize("bank", [True, False])
def test_predict_writes_probabilities(fewcal, files: Path, tmp_path: Path, bank: bool) -> None:
    given = ("--bank", files / "bank.safetensors") if bank else ()
    out = tmp_path / "p.parquet"
    answer = fewcal(*predict(files, out, *given, "--json", tmp_path / "p.json"))
    assert answer.code == 0
    table = pq.read_table(out).to_pydict()
    assert list(table) == ["row", "prediction", "probability", "p(ant)", "p(bee)", "p(cat)"]
    assert table["row"] == list(range(24))
    each = np.array([table[f"p({c})"] for c in ("ant", "bee", "cat")])
    np.testing.assert_allclose(each.sum(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose(table["probability"], each.max(axis=0))
    assert table["prediction"] == [("ant", "bee", "cat")[i] for i in each.argmax(axis=0)]
    assert (
        np.mean([p == t for p, t in zip(table["prediction"], np.repeat(["ant", "bee", "cat"], 8), strict=True)]) > 0.5
    )
    with np.load(files / "S.npz") as s, np.load(files / "Q.npz") as q:
        loaded = BaseBank.load(files / "bank.safetensors") if bank else None
        direct = FewShotClassifier(loaded).fit(s["features"], s["classes"][s["labels"]])
        np.testing.assert_allclose(direct.predict_proba(q["features"]), each.T, atol=1e-5)
    counts = json.loads((tmp_path / "p.json").read_text())["predictions"]
    assert sum(counts.values()) == 24
    for name, count in counts.items():
        assert re.search(rf"{name} +{count}\b", answer.out)


def test_predict_as_csv_with_preset_and_settings(fewcal, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    options = ("--preset", "paper", "--set", "n=20", "--set", "head=lbfgs", "--set", "k=3", "--set", "alpha2_ratio=0.1")
    answer = fewcal(*predict(files, out, "--bank", files / "bank.safetensors", *options, "--quiet"))
    assert answer == (0, "", "")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert float(rows[0]["probability"]) == max(float(rows[0][f"p({c})"]) for c in ("ant", "bee", "cat"))
    first = out.read_bytes()
    more = ("--bank", files / "bank.safetensors", *options, "--quiet")
    assert fewcal(*predict(files, out, *more)).code == 0
    assert out.read_bytes() == first, "the same seed gives the same samples"
    assert fewcal(*predict(files, out, *more, "--seed", 1)).code == 0
    assert out.read_bytes() != first


def test_predict_may_answer_none_of_these(fewcal, files: Path, tmp_path: Path) -> None:
    bank = ("--bank", files / "bank.safetensors")
    told = {}
    for share in (0.01, 0.2):
        out = tmp_path / f"{share}.parquet"
        assert fewcal(*predict(files, out, *bank, "--reject", share, "-q")).code == 0
        table = pq.read_table(out).to_pydict()
        other = np.array(table["outlier_pvalue"])
        assert ((other >= 0) & (other <= 1)).all()
        rejected = np.array(table["prediction"]) == "none of these"
        np.testing.assert_array_equal(rejected, other < share)
        told[share] = rejected.sum()
        printed = fewcal(*predict(files, out, *bank, "--reject", share)).out
        assert f"{rejected.sum()} of {len(other)} were answered 'none of these'" in printed
    assert told[0.01] <= told[0.2] < 24


def test_explain(fewcal, files: Path, tmp_path: Path) -> None:
    given = ("--support", files / "S.npz", "--bank", files / "bank.safetensors")
    answer = fewcal("explain", *given, "--json", tmp_path / "e.json")
    assert answer.code == 0
    story = json.loads((tmp_path / "e.json").read_text())
    assert [(c["label"], c["shots"]) for c in story["classes"]] == [("ant", 2), ("bee", 2), ("cat", 2)]
    assert {f"b{i}" for i in range(8)} <= set(story["classes"][0]["bases"])
    for name in ("ant", "bee", "cat"):
        assert f"{name} (2)" in answer.out
    assert fewcal("explain", *given, "-q").out == ""


# ---- errors: exactly one line ---------------------------------------------------------------------------------------


def refused(answer: Answer, *parts: str, code: int = 2) -> None:
    assert answer.code == code, answer
    [line] = [line for line in answer.err.splitlines() if not re.match(r"\d+/\d+ tasks", line)]
    assert line.startswith("fewcal: ")
    assert "Traceback" not in answer.err
    for part in parts:
        assert part in line


def test_cuda_without_a_gpu(fewcal, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refused(fewcal("evaluate", data, "--device", "cuda"), "no usable CUDA device")


def test_splits_that_do_not_fit(fewcal, tmp_path: Path) -> None:
    base = split("b", 6, 20, 0)
    wide = save_features(tmp_path / "wide", base=base, novel=split("n", 6, 20, 1, dim=9))
    refused(fewcal("evaluate", wide), "base has 12 dimensions", "novel 9")
    refused(fewcal("features", "info", wide), "base has 12 dimensions")
    leak = save_features(tmp_path / "leak", base=base, novel=split("b", 6, 20, 1))
    refused(fewcal("evaluate", leak), "b0", "base", "novel")
    bare = save_features(tmp_path / "bare", novel=split("n", 6, 20, 1))
    refused(fewcal("evaluate", bare, "--methods", "gdc"), "method 'gdc' needs base classes", "add base.npz")


def test_folders_and_files_that_cannot_be_read(fewcal, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(fewcal("evaluate", tmp_path / "empty"), "has none of base, val and novel (it holds: nothing)")
    for content in (b"", b"not an archive"):
        folder = save_features(tmp_path / "torn", base=split("b", 6, 20, 0))
        (folder / "novel.npz").write_bytes(content)
        refused(fewcal("evaluate", folder), "novel.npz")
        refused(fewcal("features", "info", folder), "novel.npz")
    refused(fewcal("bank", "build", folder / "novel.npz", "--out", tmp_path / "b"), "novel.npz")
    (tmp_path / "torn.safetensors").write_bytes(b"\0" * 40)
    refused(fewcal("bank", "info", tmp_path / "torn.safetensors"), "torn.safetensors")


def test_a_full_disk_is_the_surroundings_fault(
    fewcal, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fewcal.evaluation.run_folder.np.savez", full)
    answer = fewcal("evaluate", data, "--methods", "ncm", *SHORT, "--out", tmp_path / "run")
    refused(answer, "cannot write", "No space left on device", code=3)


def test_json_that_cannot_be_written_does_not_cost_the_table(fewcal, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = fewcal("evaluate", data, "--methods", "ncm", *SHORT, "--json", tmp_path / "file" / "o.json")
    refused(answer, "cannot write", code=3)
    assert "| ncm |" in answer.out


def test_json_goes_to_the_output_where_its_file_is_a_dash(
    fewcal, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = fewcal("features", "info", data, "--json", "-", "--quiet")
    assert (answer.code, list(tmp_path.iterdir())) == (0, [])
    assert json.loads(answer.out)


def test_a_bug_is_one_line_and_a_traceback_on_request(
    fewcal, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(METHODS, "broken", Broken)
    arguments = ("evaluate", data, "--methods", "broken", *SHORT)
    refused(fewcal(*arguments), "unexpected ZeroDivisionError: a bug in a method", "--debug", code=1)
    for where in (0, len(arguments)):
        with pytest.raises(ZeroDivisionError):
            main([*map(str, arguments[:where]), "--debug", *map(str, arguments[where:])])


def test_errors_of_many_lines_become_one() -> None:
    assert format_error(MemoryError())[1] == 3
    message, code = format_error(RuntimeError("one\ntwo"))
    assert code == 1
    assert "one\ntwo" in message


def test_warnings_are_one_line_on_stderr(fewcal, data: Path) -> None:
    # As large as the paper's, the off-diagonal share must be clipped, and that is told.
    chosen = ("--methods", "gdc", "--preset", "paper", "--set", "head=closed_form", "--set", "k=3")
    answer = fewcal("evaluate", data, *chosen, *SHORT)
    assert answer.code == 0
    told = [line for line in answer.err.splitlines() if "tasks" not in line.split(",")[0]]
    assert len(told) == 1
    assert told[0].startswith("warning: alpha2_ratio=10 gives off-diagonal terms")


# ---- the progress bar -----------------------------------------------------------------------------------------------


def test_lines_in_a_pipe_come_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("fewcal._utils.terminal.time.monotonic", lambda: now[0])
    with ProgressBar("tasks") as report:
        for done in range(200, 1001, 100):
            report(done, 1000)
            now[0] += 4
    # 200 tasks of an earlier start count as done and not into the rate.
    assert capsys.readouterr().err.splitlines() == [
        "200/1000 tasks",
        "500/1000 tasks, 25 tasks/s, 20 s left",
        "800/1000 tasks, 25 tasks/s, 8 s left",
        "1000/1000 tasks, 25 tasks/s",
    ]


def test_a_few_items_after_a_large_batch_make_no_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("fewcal._utils.terminal.time.monotonic", lambda: now[0])
    with ProgressBar("pictures") as report:
        report(32, 36)
        now[0] += 0.001
        report(36, 36)
    assert capsys.readouterr().err.splitlines() == ["32/36 pictures", "36/36 pictures"]


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("tasks") as report:
        report(0, 10)
        report(4, 10)
    assert "4/10" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K"), "the line is erased at the end"


# ---- as a process ---------------------------------------------------------------------------------------------------

_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def test_interrupted_and_resumed(fewcal, data: Path, tmp_path: Path) -> None:
    options = ["--methods", "ncm,dc", "--set", "dc.n=6", "--way", "3", "--query", "5", "--tasks", "1000"]
    command = ["evaluate", str(data), *options, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "fewcal", *command],
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("run/blocks/*.npz")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "fewcal: interrupted; continue with the same command and --resume"
    assert "Traceback" not in err
    kept = len(list(tmp_path.glob("run/blocks/*.npz")))
    assert 1 <= kept < 1000 / BLOCK_TASKS
    again = fewcal(*command, "--resume")
    assert again.code == 0
    assert again.err.splitlines()[0] == f"{BLOCK_TASKS * kept}/1000 tasks"
    assert again.out.startswith("1000 tasks, 3-way 1-shot")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fewcal ev", ["evaluate"]),
        ("fewcal evaluate data --methods sim", ["simpleshot"]),
        ("fewcal evaluate data --methods ncm,co", ["ncm,cosine"]),
        ("fewcal presets show paper/cub/5", ["paper/cub/5shot", "paper/cub/5shot.2", "paper/cub/5shot.3"]),
        ("fewcal evaluate data --preset d", ["dc"]),
    ],
)
def test_completion(line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    # What the shell does: it asks the command itself, through the environment.
    monkeypatch.setenv("_FEWCAL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split() == expected


def test_the_installed_command_completes_in_bash() -> None:
    fewcal = Path(sys.executable).with_name("fewcal")
    if not fewcal.exists():
        pytest.skip("fewcal is not installed as a command")
    script = subprocess.run(
        [str(fewcal), "--show-completion", "bash"],
        env=_ENVIRONMENT | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    # The shell calls the function with the command, as `complete -F` would.
    asked = (
        script
        + f'\nCOMP_WORDS=(fewcal presets sh); COMP_CWORD=2; _fewcal_completion "{fewcal}"; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", asked], env=_ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == ["show"]


# ---- tuning ---------------------------------------------------------------------------------------------------------

BRIEF = ("--trials", 5, "--tasks", 10, "--query", 5, "--final-tasks", 20)


def test_tune_writes_settings_that_other_commands_read(fewcal, data: Path, tmp_path: Path) -> None:
    out, settings = tmp_path / "study", tmp_path / "study" / "settings.json"
    answer = fewcal("tune", data, "--out", out, *BRIEF, "--novel", "--novel-tasks", 6, "--json", tmp_path / "t.json")
    assert answer.code == 0, answer.err
    assert "5/5 trials" in answer.err
    facts = json.loads((tmp_path / "t.json").read_text())
    assert facts["trials"] == 5
    assert facts["verdict"] in answer.out
    rows = [line.split() for line in answer.out.splitlines() if re.match(r" +(default|trial)", line)]
    assert rows[0][0] == "default"
    assert sum("←" in row for row in rows) == 1
    assert "novel classes, opened" in answer.out
    assert load_settings(settings) == (facts["method"], facts["parameters"])
    common = ("--tasks", 3, "--query", 3, "--json", tmp_path / "e.json")
    run = fewcal("evaluate", data, "--methods", "hgdc", "--set", f"@{settings}", *common)
    assert run.code == 0, run.err
    assert json.loads((tmp_path / "e.json").read_text())["methods"]["hgdc"]["settings"] == facts["parameters"] | {
        "method": "hgdc"
    }
    again = fewcal("tune", data, "--out", out, *BRIEF)
    assert (again.code, again.out) == (2, "")
    assert "--resume" in again.err
    assert fewcal("tune", data, "--out", out, *BRIEF, "--resume", "--quiet") == (0, "", "")


def test_tune_by_the_protocol_of_the_paper_writes_a_preset(fewcal, data: Path, tmp_path: Path) -> None:
    out, brief = tmp_path / "s", ("--trials", 3, "--tasks", 4, "--query", 3, "--final-tasks", 4)
    answer = fewcal("tune", data, "--out", out, "--protocol", "paper", "--head", "closed_form", *brief)
    assert answer.code == 0, answer.err
    # Features without negative values have the space of miniImageNet.
    assert json.loads((out / "tuning.json").read_text())["identity"]["search"]["space"] == "paper/mini"
    shown = fewcal("presets", "show", out / "preset.json")
    assert shown.code == 0
    assert "tuned for 5-way 1-shot on val" in shown.out
    run = fewcal("evaluate", data, "--methods", "gdc", "--preset", out / "preset.json", "--tasks", 3, "--query", 3)
    assert run.code == 0, run.err


def test_tune_needs_validation_classes(fewcal, tmp_path: Path) -> None:
    folder = save_features(tmp_path / "f", base=feature_set().split("base"))
    answer = fewcal("tune", folder, "--out", tmp_path / "s", *BRIEF)
    assert answer.code == 2
    assert "val" in answer.err


def in_one_line(text: str) -> str:
    """Help without its line ends, those after a hyphen in a name among them."""
    return " ".join(re.sub(r"-\n\s+", "-", text).split())


def test_the_help_of_tune_lists_the_registered_spaces_and_protocols(fewcal) -> None:
    from fewcal.tuning import PROTOCOLS, SPACES

    shown = in_one_line(fewcal("tune", "--help").out)
    for entry in [*PROTOCOLS.values(), *SPACES.values()]:
        assert f"{entry.name}: {entry.summary}" in shown


def test_the_help_of_evaluate_lists_the_registered_methods(fewcal) -> None:
    shown = in_one_line(fewcal("evaluate", "--help").out)
    assert [name for name in METHODS if f" {name}," not in shown] == []
