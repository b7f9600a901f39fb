"""Run folders: stopped at any moment and resumed, a run ends with the same bytes; what is wrong is one line.

`test_run_folder_states.py` has them in any order of events, `tests/redteam` with real kills.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalError, FileFormatError, InputError
from fewcal.evaluation import Protocol, Results, evaluate
from fewcal.evaluation import engine as engine_module
from fewcal.evaluation.engine import Engine
from fewcal.evaluation.run_folder import FILES, Run, compare_runs, load_run
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import Method, make_method, parse_methods
from small_features import Together, feature_set, split

PROTOCOL = Protocol(way=3, shot=1, query=5, tasks=50, seed=1)
METHODS = "ncm,hgdc"


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


def stop_at(tasks: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= tasks:
            raise Stop

    return progress


def interrupted(features: FeatureSet, folder: Path, after: int = 20) -> Path:
    with pytest.raises(Stop):
        evaluate(METHODS, features, PROTOCOL, out=folder, progress=stop_at(after))
    return folder


def resumed(features: FeatureSet, folder: Path) -> Results:
    return evaluate(METHODS, features, PROTOCOL, out=folder, resume=True)


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


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object], sign: bool = True) -> None:
    """Change `config.json`, with a new checksum or with the old one."""
    from fewcal.evaluation.run_folder import _checksum

    config = json.loads((folder / "config.json").read_text())
    change(config)
    if sign:
        del config["checksum"]
        config["checksum"] = _checksum(config)
    (folder / "config.json").write_text(json.dumps(config))


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_finished_run_has_its_files_and_nothing_else(whole: Path, features: FeatureSet) -> None:
    assert sorted(p.name for p in whole.iterdir()) == sorted(["config.json", *FILES])
    results = load_run(whole)
    summary = results.summary()
    assert json.loads((whole / "summary.json").read_text()) == json.loads(json.dumps(summary.to_dict()))
    assert (whole / "summary.md").read_text() == summary.to_markdown()
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["device"] == "cpu"
    assert environment["python"] == sys.version.split()[0]
    identity = json.loads((whole / "config.json").read_text())["identity"]
    assert identity["features"]["novel"] == features.split("novel").fingerprint()
    assert Protocol(**identity["protocol"]) == results.protocol == PROTOCOL


@pytest.mark.parametrize("change", [{}, {"min_way": 2, "dirichlet": 1.0, "outliers": 0.25}])
def test_results_survive_the_round_trip(features: FeatureSet, tmp_path: Path, change: dict[str, Any]) -> None:
    protocol = replace(PROTOCOL, **change)
    methods: dict[str, Method] = {"ncm": make_method("ncm"), "together": Together()}
    fresh = evaluate(methods, features, protocol, out=tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    assert (loaded.protocol, loaded.class_names) == (protocol, fresh.class_names)
    assert loaded.settings == json.loads(json.dumps(fresh.settings))
    for part in ("classes", "queries"):
        np.testing.assert_array_equal(getattr(loaded, part), getattr(fresh, part))
    assert set(loaded.detection) == (set(methods) if change else set())
    for name in methods:
        np.testing.assert_array_equal(fresh.correct[name], loaded.correct[name])
        np.testing.assert_array_equal(fresh.bins[name], loaded.bins[name])
        np.testing.assert_array_equal(fresh.detection.get(name), loaded.detection.get(name))
    table = pq.read_table(tmp_path / "run" / "tasks.parquet").to_pydict()
    assert [str(m) for m in table["method"]] == ["ncm"] * 50 + ["together"] * 50
    assert table["task"] == [*range(50), *range(50)]
    np.testing.assert_array_equal(table["accuracy"][50:], fresh.accuracy("together"))
    for t in range(50):
        own = fresh.classes[t] >= 0
        assert table["classes"][t] == [fresh.class_names[c] for c in fresh.classes[t][own]]
        np.testing.assert_array_equal(table["correct"][t], fresh.correct["ncm"][t][own])
        np.testing.assert_array_equal(table["queries"][t], fresh.queries[t][own])
    if change:
        np.testing.assert_array_equal(table["auroc"][:50], fresh.detection["ncm"][:, 0])


# ---- resume ---------------------------------------------------------------------------------------------------------


def test_run_stopped_while_writing_is_not_finished(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(features, tmp_path / "run")

    def refuse(*args: object, **kwargs: object) -> None:
        raise Stop

    for target in ("run_folder.np.savez", "summary.Summary.to_markdown", "run_folder._write_parquet"):
        with monkeypatch.context() as patch:
            patch.setattr(f"fewcal.evaluation.{target}", refuse)
            with pytest.raises(Stop):
                resumed(features, folder)
        with pytest.raises(InputError, match="not finished"):
            load_run(folder)
    resumed(features, folder)
    same_outcome(folder, whole)


def test_finished_run_is_read_not_computed(features: FeatureSet, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in whole.iterdir()}
    monkeypatch.setattr(Engine, "__init__", lambda self, job: pytest.fail("the job was prepared again"))
    seen: list[tuple[int, int]] = []
    again = evaluate(
        METHODS, features, PROTOCOL, out=whole, resume=True, progress=lambda done, of: seen.append((done, of))
    )
    assert seen == [(50, 50)]
    np.testing.assert_array_equal(again.accuracy("hgdc"), load_run(whole).accuracy("hgdc"))
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in whole.iterdir()} == before


@pytest.mark.parametrize("damage", ["flipped", "short", "many right", "other method", "bytes", "no class list"])
def test_damaged_block_is_computed_again(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = interrupted(features, tmp_path / "run", after=30)
    file = folder / "blocks" / "00000010.npz"
    with np.load(file) as f:
        arrays = dict(f)
    if damage == "flipped":  # in the numbers themselves, not in the frame around them: only the checksum can tell
        content = file.read_bytes()
        at = content.index(arrays["correct/hgdc"].tobytes())
        file.write_bytes(content[:at] + b"\x07" + content[at + 1 :])
    elif damage == "short":
        np.savez(file, **{k: v[:7] if v.ndim == 2 else v for k, v in arrays.items()})
    elif damage == "many right":
        np.savez(file, **arrays | {"correct/hgdc": arrays["queries"] + 1})
    elif damage == "other method":
        np.savez(file, **{k.replace("hgdc", "dc"): v for k, v in arrays.items()})
    else:
        np.savez(file, **{k: v for k, v in arrays.items() if k != "classes"})
        if damage == "bytes":  # what NumPy gives of a file in the archive that is no array of its own
            with zipfile.ZipFile(file, "a") as archive:
                archive.writestr("classes", b"none")
    computed = count_blocks(monkeypatch)
    resumed(features, folder)
    assert computed == [(10, 20), (30, 40), (40, 50)]
    same_outcome(folder, whole)


def test_run_keeps_the_plan_that_it_began_with(
    features: FeatureSet, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Borders of blocks, batches and threads."""
    began = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "batch_sizes", lambda self: dict.fromkeys(self.methods, 4))
        folder = interrupted(features, tmp_path / "run", after=0)  # the plan is written before the first block
    plan = json.loads((folder / "config.json").read_text())["plan"]
    assert (plan["block"], plan["threads"], plan["batches"]) == (10, began, {"ncm": 4, "hgdc": 4})
    assert plan["settings"]["hgdc"]["method"] == "hgdc"
    identity = json.loads((folder / "config.json").read_text())["identity"]
    with Run.open(folder, identity, resume=True) as run:
        assert run.results() is None
    used, true = [], Engine.run
    monkeypatch.setattr(engine_module, "BLOCK_TASKS", 20)
    monkeypatch.setattr(Engine, "batch_sizes", lambda self: pytest.fail("sizes were chosen again"))
    monkeypatch.setattr(
        Engine,
        "run",
        lambda self, a, b: (used.append((b - a, self.job.batches["hgdc"], torch.get_num_threads())), true(self, a, b))[
            1
        ],
    )
    torch.set_num_threads(began + 1)
    try:
        resumed(features, folder)
        assert torch.get_num_threads() == began + 1
    finally:
        torch.set_num_threads(began)
    assert used == [(10, 4, began)] * 5
    same_outcome(folder, whole)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "change", "difference"),
    [
        ("ncm,hgdc", {"seed": 2}, "protocol.seed is 1 in one and 2 in the other"),
        ("ncm,hgdc", {"dirichlet": 2.0}, "protocol.dirichlet is None in one and 2.0"),
        ("ncm", {}, "only one has methods.hgdc"),
    ],
)
def test_resume_with_other_settings_is_refused(
    features: FeatureSet, tmp_path: Path, methods: str, change: dict[str, Any], difference: str
) -> None:
    folder = interrupted(features, tmp_path / "run")
    before = sorted(p.name for p in folder.rglob("*"))
    with pytest.raises(InputError) as caught:
        evaluate(methods, features, replace(PROTOCOL, **change), out=folder, resume=True)
    assert difference in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in folder.rglob("*")) == before


def test_resume_with_other_parameters_features_or_device_is_refused(features: FeatureSet, tmp_path: Path) -> None:
    folder = interrupted(features, tmp_path / "run")
    with pytest.raises(InputError, match=r"methods.hgdc.ridge is"):
        evaluate(parse_methods("ncm,hgdc", None, ["hgdc.ridge=2"]), features, PROTOCOL, out=folder, resume=True)
    other = FeatureSet(features.base, features.val, split("n", 7, 20, seed=9))
    with pytest.raises(InputError, match=r"features.novel is"):
        resumed(other, folder)
    # CPU and CUDA draw other samples from one seed, so a run that changed over would be neither.
    edit_config(folder, lambda config: config["identity"].update(device="cuda"))
    with pytest.raises(InputError, match="device is 'cuda' in one and 'cpu' in the other"):
        resumed(features, folder)


@pytest.mark.parametrize("after", [0, 20, 40])
def test_folder_deleted_on_the_way_is_an_error(features: FeatureSet, tmp_path: Path, after: int) -> None:
    def delete(done: int, total: int) -> None:
        if done >= after:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(FewcalError, match="was deleted or replaced while this command wrote to it"):
        evaluate(METHODS, features, PROTOCOL, out=tmp_path / "run", progress=delete)
    assert not (tmp_path / "run").exists()


def test_results_of_another_run_are_not_taken_for_ones_own(features: FeatureSet, tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluate(METHODS, features, replace(PROTOCOL, seed=seed), out=tmp_path / f"{seed}")
    shutil.copy(tmp_path / "1" / "results.npz", tmp_path / "0")
    with pytest.raises(FileFormatError, match="results of another run"):
        load_run(tmp_path / "0")
    a, b = (interrupted(features, tmp_path / name) for name in "ab")
    edit_config(a, lambda config: config["identity"]["protocol"].update(seed=5), sign=False)
    with pytest.raises(FileFormatError, match="it is not what was written"):
        evaluate(METHODS, features, replace(PROTOCOL, seed=5), out=a, resume=True)
    for block in (b / "blocks").iterdir():
        with np.load(block) as f:
            np.savez(block, **{name: f[name] for name in f.files} | {"run": np.array("another")})
    assert np.array_equal(resumed(features, b).correct["ncm"], evaluate("ncm", features, PROTOCOL).correct["ncm"])


def test_folder_that_is_taken_is_refused(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already holds a run; continue it with --resume"):
        evaluate(METHODS, features, PROTOCOL, out=whole)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    for resume in (False, True):
        with pytest.raises(InputError, match="is not empty and holds no run"):
            evaluate(METHODS, features, PROTOCOL, out=foreign, resume=resume)
    for out, words in {"thesis.txt": "is a file", "thesis.txt/run": "cannot write"}.items():
        with pytest.raises(FewcalError, match=words):
            evaluate(METHODS, features, PROTOCOL, out=foreign / out)
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]
    assert (foreign / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a JSON object"),
        ('{"format": "other"}', "is not the configuration of a fewcal run"),
        ('{"format": "fewcal-run", "version": 2}', "is not the configuration of a fewcal run"),
        ('{"format": "fewcal-run", "version": 99, "fewcal": "9.0", "identity": {}}', "is of run format 99"),
        ('{"format": "fewcal-run", "version": 2, "identity": {}}', "it is not what was written"),
    ],
)
def test_foreign_configuration_is_refused(features: FeatureSet, tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    for act in (lambda: resumed(features, tmp_path), lambda: load_run(tmp_path)):
        with pytest.raises(FileFormatError, match=message):
            act()


# ---- disks ----------------------------------------------------------------------------------------------------------


def test_full_disk_keeps_the_blocks_there_are(
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
    resumed(features, folder)
    assert len(computed) == 3
    same_outcome(folder, whole)


def test_read_only_place_is_refused(features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(self, *args, **kwargs):  # simulated, since root may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(FewcalError, match=r"cannot write .*run: Permission denied"):
        evaluate(METHODS, features, PROTOCOL, out=tmp_path / "run")


# ---- compare --------------------------------------------------------------------------------------------------------


def test_compare_pairs_methods_of_several_runs(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    evaluate("simpleshot,ncm", features, PROTOCOL, out=tmp_path / "second")
    summary = compare_runs([whole, tmp_path / "second"])
    assert list(summary.methods) == ["run/ncm", "hgdc", "simpleshot", "second/ncm"]
    together = evaluate("hgdc,simpleshot", features, PROTOCOL).summary().paired[0]
    across = summary.difference("hgdc", "simpleshot")
    assert (across.difference, across.p_wilcoxon) == (together.difference, together.p_wilcoxon)
    assert summary.difference("run/ncm", "second/ncm").tied == 1.0
    assert len(compare_runs([whole, tmp_path / "second"], "hgdc").paired) == 3
    with pytest.raises(InputError, match="reference 'ncm' is not among run/ncm"):
        compare_runs([whole, tmp_path / "second"], "ncm")


def test_compare_takes_runs_on_the_same_tasks_alone(features: FeatureSet, whole: Path, tmp_path: Path) -> None:
    evaluate("hgdc", FeatureSet(split("c", 5, 20, 11), None, features.novel), PROTOCOL, out=tmp_path / "fewer")
    tasks = sample_episodes(features.split("novel").require_labels(), PROTOCOL.spec, range(50))
    evaluate("lr", features, Protocol(tasks=50), episodes=tasks, out=tmp_path / "listed")
    assert list(compare_runs([whole, tmp_path / "fewer", tmp_path / "listed"]).methods) == [
        *("ncm", "run/hgdc", "fewer/hgdc", "lr")
    ]
    evaluate("lr", features, replace(PROTOCOL, seed=2), out=tmp_path / "seed")
    with pytest.raises(InputError, match=r"different tasks: protocol.seed is 1 in one and 2 in the other; only equal"):
        compare_runs([whole, tmp_path / "seed"])
    # The same rows and names, listed in another order: fingerprints agree, yet label 0 is another class.
    novel = features.split("novel")
    turned = FeatureSplit.from_arrays(novel.features, 6 - novel.require_labels(), novel.classes[::-1])
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
