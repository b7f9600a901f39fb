"""Run folders: killed at any moment and resumed, a run ends with the same bytes; what is wrong is told in one line."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalError, FileFormatError, InputError
from fewcal.evaluation import Protocol, Results, Summary, evaluate
from fewcal.evaluation import engine as engine_module
from fewcal.evaluation.engine import Engine
from fewcal.evaluation.run_folder import Run, compare_runs, load_run
from fewcal.features import FeatureSet, FeatureSplit
from limits import PATIENCE
from small_features import feature_set, save_features, split

PROTOCOL = Protocol(way=3, shot=1, query=5, tasks=50, seed=1)
METHODS = "ncm,gdc"


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return feature_set()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", 10)


@pytest.fixture(scope="module")
def whole(features: FeatureSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "BLOCK_TASKS", 10)
        evaluate(METHODS, features, PROTOCOL, out=folder)
    return folder


class Stop(Exception):
    """Ends a run as a kill would, between two blocks."""


def stop_at(tasks: int):
    def progress(done: int, total: int) -> None:
        if done >= tasks:
            raise Stop

    return progress


def interrupted(features: FeatureSet, folder: Path, after: int = 20) -> Path:
    with pytest.raises(Stop):
        evaluate(METHODS, features, PROTOCOL, out=folder, progress=stop_at(after))
    return folder


def same_outcome(a: Path, b: Path) -> None:
    """Per-task results are equal byte for byte; only times may differ."""
    assert (a / "tasks.parquet").read_bytes() == (b / "tasks.parquet").read_bytes()
    with np.load(a / "results.npz") as x, np.load(b / "results.npz") as y:
        assert x.files == y.files
        for name in x.files:
            if not name.startswith("seconds/"):
                assert x[name].tobytes() == y[name].tobytes(), name


def count_blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Borders of the blocks that are computed from here on."""
    computed = []
    true = Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, a, b: (computed.append((a, b)), true(self, a, b))[1])
    return computed


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_a_finished_run_has_its_files_and_nothing_else(whole: Path, features: FeatureSet) -> None:
    assert sorted(p.name for p in whole.iterdir()) == [
        "config.json",
        "environment.json",
        "results.npz",
        "summary.json",
        "summary.md",
        "tasks.parquet",
    ]
    results = load_run(whole)
    assert results.protocol == PROTOCOL
    summary = json.loads((whole / "summary.json").read_text())
    assert summary == json.loads(json.dumps(results.summary().to_dict()))
    assert (whole / "summary.md").read_text() == Summary.from_dict(summary).to_markdown()
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["device"] == "cpu"
    assert environment["python"] == sys.version.split()[0]
    config = json.loads((whole / "config.json").read_text())
    assert config["identity"]["features"]["novel"] == features.split("novel").fingerprint()


def test_the_table_of_tasks_has_a_row_for_each_method_and_task(whole: Path) -> None:
    results = load_run(whole)
    table = pq.read_table(whole / "tasks.parquet").to_pydict()
    assert [str(m) for m in table["method"]] == ["ncm"] * 50 + ["gdc"] * 50
    assert table["task"] == [*range(50), *range(50)]
    np.testing.assert_array_equal(table["accuracy"][50:], results.accuracy("gdc"))
    np.testing.assert_array_equal(table["correct"][:50], results.correct["ncm"])
    assert table["classes"][0] == [results.class_names[c] for c in results.classes[0]]


def test_markdown_says_what_was_done(whole: Path) -> None:
    lines = (whole / "summary.md").read_text().splitlines()
    assert lines[0] == "50 tasks, 3-way 1-shot, 5 queries a class, split novel, seed 1"
    accuracy = load_run(whole).accuracy("gdc").mean()
    [row] = [line for line in lines if line.startswith("| gdc |")]
    assert row.split("|")[2].strip() == f"{100 * accuracy:.2f}"
    assert any(line.startswith("| ncm − gdc |") for line in lines)


def test_one_task_has_no_half_width(features: FeatureSet) -> None:
    text = evaluate("ncm,gdc", features, Protocol(tasks=1, query=5)).summary().to_markdown()
    assert [line.split("|")[3].strip() for line in text.splitlines() if line.startswith("| ncm")] == ["–", "–"]


# ---- resume ---------------------------------------------------------------------------------------------------------


def test_stopped_between_any_two_blocks_and_resumed(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    computed = count_blocks(monkeypatch)
    for done in (10, 20, 30, 40):
        with pytest.raises(Stop):
            evaluate(METHODS, features, PROTOCOL, out=folder, resume=True, progress=stop_at(done))
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    assert computed == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50)], "no block is computed twice"
    same_outcome(folder, whole)


def test_stopped_within_a_block_and_while_writing(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(features, tmp_path / "run")

    def refuse(*args, **kwargs):
        raise Stop

    for target in (
        "fewcal.evaluation.run_folder.np.savez",
        "fewcal.evaluation.summary.Summary.to_markdown",
        "fewcal.evaluation.run_folder._write_parquet",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, refuse)
            with pytest.raises(Stop):
                evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
        with pytest.raises(InputError, match="not finished"):
            load_run(folder)
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    same_outcome(folder, whole)


def test_a_finished_run_is_read_not_computed(
    features: FeatureSet, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in whole.iterdir()}
    monkeypatch.setattr(Engine, "__init__", lambda self, job: pytest.fail("the job was prepared again"))
    seen: list[tuple[int, int]] = []
    again = evaluate(
        METHODS, features, PROTOCOL, out=whole, resume=True, progress=lambda done, of: seen.append((done, of))
    )
    assert seen == [(50, 50)]
    np.testing.assert_array_equal(again.accuracy("gdc"), load_run(whole).accuracy("gdc"))
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in whole.iterdir()} == before


@pytest.mark.parametrize(
    "damage", ["half", "empty", "garbage", "flipped", "short", "other method", "bytes", "no class list"]
)
def test_a_damaged_block_is_computed_again(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = interrupted(features, tmp_path / "run", after=30)
    file = folder / "blocks" / "00000010.npz"
    content = file.read_bytes()
    with np.load(file) as f:
        arrays = dict(f)
    if damage == "half":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "garbage":
        file.write_bytes(b"not an archive" * 50)
    elif damage == "flipped":
        # In the numbers themselves, not in the frame around them: only the checksum can tell.
        at = content.index(arrays["correct/gdc"].tobytes())
        file.write_bytes(content[:at] + b"\x07" + content[at + 1 :])
    elif damage == "short":
        np.savez(file, **{k: v[:7] if v.ndim == 2 else v for k, v in arrays.items()})
    elif damage == "other method":
        np.savez(file, **{k.replace("gdc", "dc"): v for k, v in arrays.items()})
    elif damage == "bytes":  # what NumPy gives of a file in the archive that is no array of its own
        np.savez(file, **{k: v for k, v in arrays.items() if k != "classes"})
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("classes", b"none")
    else:
        np.savez(file, **{k: v for k, v in arrays.items() if k != "classes"})
    computed = count_blocks(monkeypatch)
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    assert computed == [(10, 20), (30, 40), (40, 50)]
    same_outcome(folder, whole)


def test_damaged_results_are_computed_again(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    evaluate(METHODS, features, PROTOCOL, out=folder)
    file = folder / "results.npz"
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(FileFormatError, match=r"is damaged .* --resume"):
        load_run(folder)
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    same_outcome(folder, whole)


def test_a_run_keeps_its_borders_when_the_block_size_changes(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(features, tmp_path / "run", after=20)
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", 20)
    computed = count_blocks(monkeypatch)
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    assert computed == [(20, 30), (30, 40), (40, 50)]
    same_outcome(folder, whole)


def test_a_run_keeps_its_batches(features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "batch_sizes", lambda self: dict.fromkeys(self.methods, 4))
    folder = interrupted(features, tmp_path / "run")
    monkeypatch.setattr(Engine, "batch_sizes", lambda self: pytest.fail("sizes were chosen anew"))
    used = []
    true = Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, a, b: (used.append(self.job.batches), true(self, a, b))[1])
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    assert used == [{"ncm": 4, "gdc": 4}] * 3


def test_killed_while_writing_the_first_file(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.json.123.abcd.tmp").write_text('{"format": ')
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    same_outcome(folder, whole)
    assert not list(folder.glob(".*")), "what killed writers leave is cleared away"


def test_resume_of_a_run_that_never_began(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    evaluate(METHODS, features, PROTOCOL, out=tmp_path / "new", resume=True)
    same_outcome(tmp_path / "new", whole)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "protocol", "difference"),
    [
        ("ncm,gdc", Protocol(way=3, shot=1, query=5, tasks=50, seed=2), "protocol.seed is 1 in one and 2 in the other"),
        ("ncm,gdc", Protocol(way=3, shot=1, query=5, tasks=60, seed=1), "protocol.tasks is 50 in one and 60"),
        ("ncm", PROTOCOL, "only one has methods.gdc"),
        ("ncm,gdc,lr", PROTOCOL, "only one has methods.lr"),
    ],
)
def test_resume_with_other_settings_is_refused(
    features: FeatureSet, tmp_path: Path, methods: str, protocol: Protocol, difference: str
) -> None:
    folder = interrupted(features, tmp_path / "run")
    before = sorted(p.name for p in folder.rglob("*"))
    with pytest.raises(InputError) as caught:
        evaluate(methods, features, protocol, out=folder, resume=True)
    assert difference in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in folder.rglob("*")) == before


def test_resume_with_other_parameters_or_features_is_refused(features: FeatureSet, tmp_path: Path) -> None:
    from fewcal.methods import parse_methods

    folder = interrupted(features, tmp_path / "run")
    with pytest.raises(InputError, match=r"methods.gdc.strength is"):
        evaluate(parse_methods("ncm,gdc", None, ["strength=2"]), features, PROTOCOL, out=folder, resume=True)
    other = FeatureSet(features.base, features.val, split("n", 7, 20, seed=9))
    with pytest.raises(InputError, match=r"features.novel is"):
        evaluate(METHODS, other, PROTOCOL, out=folder, resume=True)


def test_resume_of_a_run_from_before_a_parameter_was_added(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    folder = interrupted(features, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    for name in ("mahalanobis_ridge", "mahalanobis_shift", "constant"):
        del config["identity"]["methods"]["gdc"][name]
    del config["checksum"]
    (folder / "config.json").write_text(json.dumps(config))
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    assert np.array_equal(load_run(folder).correct["gdc"], load_run(whole).correct["gdc"])


def test_resume_of_a_run_from_before_features_were_capped(features: FeatureSet, tmp_path: Path) -> None:
    from fewcal.methods import parse_methods

    methods = parse_methods("gdc", "whitened", [])
    first = evaluate(methods, features, PROTOCOL, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["identity"]["methods"]["gdc"]["max_spread"]
    del config["checksum"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    again = evaluate(methods, features, PROTOCOL, out=tmp_path / "run", resume=True)
    assert np.array_equal(again.correct["gdc"], first.correct["gdc"])


def test_resume_on_another_kind_of_device_is_refused(features: FeatureSet, tmp_path: Path) -> None:
    # CPU and CUDA draw other samples from one seed, so a run that changed over would be neither.
    folder = interrupted(features, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    assert config["identity"]["device"] == "cpu"
    config["identity"]["device"] = "cuda"
    del config["checksum"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="device is 'cuda' in one and 'cpu' in the other"):
        evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)


def test_a_folder_has_one_run_at_a_time(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    refused = []

    def second(done: int, total: int) -> None:
        if not refused:
            other = dataclasses.replace(PROTOCOL, seed=5)
            for resume in (False, True):
                with pytest.raises(InputError, match="is in use by process") as caught:
                    evaluate(METHODS, features, other, out=tmp_path / "run", resume=resume)
                refused.append(caught)

    evaluate(METHODS, features, PROTOCOL, out=tmp_path / "run", progress=second)
    assert len(refused) == 2
    same_outcome(tmp_path / "run", whole)
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("after", [0, 20, 40])
def test_a_folder_deleted_on_the_way_is_an_error(features: FeatureSet, tmp_path: Path, after: int) -> None:
    def delete(done: int, total: int) -> None:
        if done >= after:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(FewcalError, match="was deleted or replaced while this command wrote to it"):
        evaluate(METHODS, features, PROTOCOL, out=tmp_path / "run", progress=delete)
    assert not (tmp_path / "run").exists()


def test_results_of_another_run_are_not_taken_for_ones_own(features: FeatureSet, tmp_path: Path) -> None:
    """What two commands in one folder used to leave behind: the configuration of one and the results of the other."""
    for seed in (0, 1):
        evaluate(METHODS, features, dataclasses.replace(PROTOCOL, seed=seed), out=tmp_path / f"{seed}")
    shutil.copy(tmp_path / "1" / "results.npz", tmp_path / "0")
    with pytest.raises(FileFormatError, match="results of another run"):
        load_run(tmp_path / "0")
    a, b = (interrupted(features, tmp_path / name) for name in "ab")
    config = json.loads((a / "config.json").read_text())
    config["identity"]["protocol"]["seed"] = 5
    (a / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileFormatError, match="it is not what was written"):
        evaluate(METHODS, features, dataclasses.replace(PROTOCOL, seed=5), out=a, resume=True)
    for block in (b / "blocks").iterdir():
        with np.load(block) as f:
            np.savez(block, **{name: f[name] for name in f.files} | {"run": np.array("another")})
    fresh = evaluate(METHODS, features, PROTOCOL, out=b, resume=True)
    assert np.array_equal(fresh.correct["ncm"], evaluate(METHODS, features, PROTOCOL).correct["ncm"])


def test_a_run_goes_on_with_the_threads_it_began_with(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(features, tmp_path / "run")
    began = json.loads((folder / "config.json").read_text())["plan"]["threads"]
    assert began == torch.get_num_threads()
    used, true = [], Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, a, b: (used.append(torch.get_num_threads()), true(self, a, b))[1])
    torch.set_num_threads(began + 1)
    try:
        evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
        assert torch.get_num_threads() == began + 1
    finally:
        torch.set_num_threads(began)
    assert set(used) == {began}


def test_folders_that_are_taken(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already holds a run; continue it with --resume"):
        evaluate(METHODS, features, PROTOCOL, out=whole)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    for resume in (False, True):
        with pytest.raises(InputError, match="is not empty and holds no run"):
            evaluate(METHODS, features, PROTOCOL, out=foreign, resume=resume)
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]
    with pytest.raises(InputError, match="is a file"):
        evaluate(METHODS, features, PROTOCOL, out=foreign / "thesis.txt")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a JSON object"),
        ('{"format": "other"}', "is not the configuration of a fewcal run"),
        ('{"format": "fewcal-run", "version": 1}', "is not the configuration of a fewcal run"),
        ('{"format": "fewcal-run", "version": 99, "fewcal": "9.0", "identity": {}}', "is of run format 99"),
    ],
)
def test_a_foreign_configuration(features: FeatureSet, tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    for act in (
        lambda: evaluate(METHODS, features, PROTOCOL, out=tmp_path, resume=True),
        lambda: load_run(tmp_path),
    ):
        with pytest.raises(FileFormatError, match=message):
            act()


# ---- disks ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_blocks_there_are(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    true, written = np.savez, []

    def savez(file, **arrays):
        written.append(file)
        if len(written) > 2:
            file.write(b"half a bl")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        true(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr("fewcal.evaluation.run_folder.np.savez", savez)
        with pytest.raises(FewcalError, match="No space left on device") as caught:
            evaluate(METHODS, features, PROTOCOL, out=folder)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in (folder / "blocks").iterdir()) == ["00000000.npz", "00000010.npz"]
    computed = count_blocks(monkeypatch)
    evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)
    assert len(computed) == 3
    same_outcome(folder, whole)


def test_a_read_only_place(features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Simulated, since root may write anywhere.
    def mkdir(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(FewcalError, match=r"cannot write .*run: Permission denied"):
        evaluate(METHODS, features, PROTOCOL, out=tmp_path / "run")


def test_a_place_that_cannot_hold_a_folder(features: FeatureSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FewcalError, match="cannot write"):
        evaluate(METHODS, features, PROTOCOL, out=tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "in the way"


# ---- compare --------------------------------------------------------------------------------------------------------


def test_compare_pairs_methods_of_several_runs(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    evaluate("simpleshot,ncm", features, PROTOCOL, out=tmp_path / "second")
    summary = compare_runs([whole, tmp_path / "second"])
    assert list(summary.methods) == ["run/ncm", "gdc", "simpleshot", "second/ncm"]
    together = evaluate("gdc,simpleshot", features, PROTOCOL).summary().paired[0]
    [across] = [d for d in summary.paired if {d.a, d.b} == {"gdc", "simpleshot"}]
    assert across.difference == together.difference
    assert across.p_wilcoxon == together.p_wilcoxon
    [itself] = [d for d in summary.paired if {d.a, d.b} == {"run/ncm", "second/ncm"}]
    assert itself.tied == 1.0
    assert len(compare_runs([whole, tmp_path / "second"], "gdc").paired) == 3
    with pytest.raises(InputError, match="reference 'ncm' is not among run/ncm"):
        compare_runs([whole, tmp_path / "second"], "ncm")


def test_compare_takes_runs_with_other_base_classes(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    other = FeatureSet(split("c", 5, 20, 11), None, features.novel)
    evaluate("gdc", other, PROTOCOL, out=tmp_path / "fewer")
    assert list(compare_runs([whole, tmp_path / "fewer"]).methods) == ["ncm", "run/gdc", "fewer/gdc"]


def test_compare_takes_a_saved_list_for_the_drawn_tasks(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    tasks = sample_episodes(features.split("novel").require_labels(), PROTOCOL.spec, range(50))
    evaluate("lr", features, Protocol(tasks=50), episodes=tasks, out=tmp_path / "listed")
    assert list(compare_runs([whole, tmp_path / "listed"]).methods) == ["ncm", "gdc", "lr"]


def test_compare_refuses_other_tasks(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    seed = Protocol(way=3, shot=1, query=5, tasks=50, seed=2)
    evaluate("lr", features, seed, out=tmp_path / "seed")
    with pytest.raises(InputError, match=r"different tasks: protocol.seed is 1 in one and 2 in the other; only equal"):
        compare_runs([whole, tmp_path / "seed"])
    novel = features.split("novel")
    assert novel.labels is not None
    # The same rows and names, listed in another order: fingerprints agree, yet label 0 is another class.
    turned = FeatureSplit.from_arrays(novel.features, 6 - novel.labels, novel.classes[::-1])
    assert turned.fingerprint() == novel.fingerprint()
    evaluate("lr", FeatureSet(features.base, None, turned), PROTOCOL, out=tmp_path / "turned")
    with pytest.raises(InputError, match="different tasks: class_names"):
        compare_runs([whole, tmp_path / "turned"])


def test_compare_refuses_what_is_no_finished_run(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    folder = interrupted(features, tmp_path / "run")
    with pytest.raises(InputError, match=r"is not finished; continue it with `fewcal evaluate … --out .*run --resume`"):
        compare_runs([whole, folder])
    with pytest.raises(InputError, match="holds no run"):
        compare_runs([tmp_path])
    with pytest.raises(InputError, match="no runs were given"):
        compare_runs([])


def test_the_plan_is_written_before_the_first_block(features: FeatureSet, tmp_path: Path) -> None:
    folder = interrupted(features, tmp_path / "run", after=0)
    config = json.loads((folder / "config.json").read_text())
    assert config["plan"]["block"] == 10
    assert config["plan"]["settings"]["gdc"]["method"] == "gdc"
    with Run.open(folder, config["identity"], resume=True) as run:
        assert run.results() is None


# ---- real kills -----------------------------------------------------------------------------------------------------

# About a second of work in blocks of a few hundredths, so that a kill falls anywhere between and within them.
_KILLED = ["--methods", "ncm,dc,gdc", "--set", "dc.n=6", "--way", "3", "--query", "5", "--tasks", "2000", "--quiet"]
# Two threads for tiny tensors only wait for each other.
_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(data: Path, out: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fewcal", "evaluate", str(data), *_KILLED, "--out", str(out), *more]
    return subprocess.Popen(command, env=_ENVIRONMENT)


def uninterrupted(tmp_path: Path) -> tuple[Path, Path]:
    data = save_features(tmp_path / "features", **feature_set().splits())
    assert start(data, tmp_path / "whole").wait(PATIENCE) == 0
    return data, tmp_path / "whole"


@pytest.mark.slow
def test_killed_ten_times_at_random_moments(tmp_path: Path) -> None:
    data, reference = uninterrupted(tmp_path)
    began = time.monotonic()
    assert start(data, tmp_path / "timed").wait(PATIENCE) == 0
    usual = time.monotonic() - began
    run = tmp_path / "run"
    chance = random.Random(1)
    kills = 0
    while kills < 10:
        # From before the first import to the writing of the results; what is done stays, so later runs are shorter.
        process = start(data, run, "--resume")
        time.sleep(chance.uniform(0.1, usual * (0.4 + 0.04 * kills)))
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            same_outcome(run, reference)
            run = tmp_path / f"run{kills}"  # it was done before the kill: begin another
            continue
        kills += 1
    assert start(data, run, "--resume").wait(PATIENCE) == 0
    same_outcome(run, reference)


def test_results_survive_the_round_trip(whole: Path, features: FeatureSet) -> None:
    fresh: Results = evaluate(METHODS, features, PROTOCOL)
    loaded = load_run(whole)
    for name in fresh.correct:
        np.testing.assert_array_equal(fresh.correct[name], loaded.correct[name])
        assert fresh.bins[name].to_dict() == loaded.bins[name].to_dict()
    assert loaded.settings == json.loads(json.dumps(fresh.settings))
    assert loaded.class_names == fresh.class_names
