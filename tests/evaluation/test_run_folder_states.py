"""Run folders through any order of starts, stops, damage and strangers: a result is the true one or an error."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fewcal._utils.folder_lock import folder_lock, is_leftover
from fewcal.errors import FewcalError, InputError
from fewcal.evaluation import Protocol, engine, evaluate
from fewcal.evaluation.run_folder import load_run
from small_features import feature_set

PROTOCOL = Protocol(way=3, shot=1, query=3, tasks=12, seed=1)
BLOCK = 4
FEATURES = feature_set(dim=4)
FRACTIONS = st.floats(0, 1, exclude_max=True)


class Stop(Exception):
    """Ends a run as a kill would, between two blocks."""


def run(folder: Path, *, stop: int = 99, resume: bool = True, protocol: Protocol = PROTOCOL) -> None:
    def progress(done: int, total: int) -> None:
        if done >= stop:
            raise Stop

    evaluate("ncm", FEATURES, protocol, out=folder, resume=resume, progress=progress)


class RunFolder(RuleBasedStateMachine):
    """The model is what must be on disk: whether the run began, and how many sound blocks were kept."""

    def __init__(self, whole: Path) -> None:
        super().__init__()
        self.table, self.truth = (whole / "tasks.parquet").read_bytes(), load_run(whole)
        self.parent = Path(tempfile.mkdtemp(dir=whole.parent))
        self.folder = self.parent / "run"
        self.began = self.finished = False
        self.blocks: set[int] = set()

    def teardown(self) -> None:
        self.to_the_end()
        shutil.rmtree(self.parent)

    # ---- what a user does ---------------------------------------------------------------------------------------

    @rule(blocks=st.integers(0, 2))
    def killed(self, blocks: int) -> None:
        """Started or continued, and stopped when so many blocks are done; a finished run is only read."""
        if self.finished:
            run(self.folder)
            return
        with pytest.raises(Stop):
            run(self.folder, stop=BLOCK * blocks)
        missing = [i for i in range(0, PROTOCOL.tasks, BLOCK) if i not in self.blocks]
        self.blocks.update(missing[: max(0, blocks - len(self.blocks))])
        self.began = True

    @rule()
    def to_the_end(self) -> None:
        run(self.folder)
        self.began = self.finished = True
        self.blocks = set()
        assert (self.folder / "tasks.parquet").read_bytes() == self.table
        assert sorted(p.name for p in self.folder.iterdir())[0] == "config.json"  # nothing hidden is left

    @precondition(lambda self: self.began)
    @rule(change=st.sampled_from([{"tasks": 16}, {"tasks": 8}, {"seed": 2}]), resume=st.booleans())
    def another_run(self, change: dict[str, int], resume: bool) -> None:
        before = self._content()
        with pytest.raises(InputError, match="holds another run" if resume else "already holds a run"):
            run(self.folder, resume=resume, protocol=dataclasses.replace(PROTOCOL, **change))
        assert self._content() == before

    @rule()
    def in_use(self) -> None:
        with folder_lock(self.folder), pytest.raises(InputError, match="is in use by process"):
            run(self.folder)

    # ---- what a disk does ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.blocks)
    @rule(where=FRACTIONS, at=FRACTIONS, how=st.sampled_from(["garbage", "cut", "remove"]))
    def damaged_block(self, where: float, at: float, how: str) -> None:
        start = sorted(self.blocks)[int(where * len(self.blocks))]
        self._damage(self.folder / "blocks" / f"{start:08d}.npz", at, how)
        self.blocks.discard(start)

    @precondition(lambda self: self.finished)
    @rule(name=st.sampled_from(["results.npz", "tasks.parquet", "summary.json"]))
    def lost_result(self, name: str) -> None:
        """A file is gone: the next start makes it again."""
        (self.folder / name).unlink(missing_ok=True)
        self.finished = name != "results.npz"

    @precondition(lambda self: self.finished)
    @rule(at=FRACTIONS, how=st.sampled_from(["garbage", "cut"]))
    def damaged_result(self, at: float, how: str) -> None:
        self._damage(self.folder / "results.npz", at, how)
        with pytest.raises(FewcalError, match="is damaged"):
            load_run(self.folder)
        self.finished = False

    @precondition(lambda self: not self.finished)
    @rule(name=st.sampled_from([".config.json.7.tmp", ".fewcal.lock"]))
    def killed_while_writing(self, name: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(b'{"form')

    @precondition(lambda self: self.began)
    @rule(at=FRACTIONS, how=st.sampled_from(["garbage", "cut"]))
    def damaged_configuration(self, at: float, how: str) -> None:
        """Refused, or as it was; never another run. Then it is put back from a copy."""
        file = self.folder / "config.json"
        whole = file.read_bytes()
        self._damage(file, at, how)
        with pytest.raises((FewcalError, Stop)):
            run(self.folder, stop=0)
        file.write_bytes(whole)

    def _damage(self, file: Path, at: float, how: str) -> None:
        data = file.read_bytes()
        place = int(at * len(data))
        if how == "remove":
            file.unlink()
        elif how == "cut":
            file.write_bytes(data[:place])
        else:
            file.write_bytes(b"garbage" * 20)

    def _content(self) -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file() and not is_leftover(p)}

    def _sound_blocks(self) -> set[int]:
        """Blocks that can be read to the end."""
        found = set()
        for file in (self.folder / "blocks").glob("*.npz"):
            try:
                with np.load(file) as f:
                    _ = {name: f[name] for name in f.files}
            except Exception:
                continue
            found.add(int(file.stem))
        return found

    @invariant()
    def what_can_be_read_is_true(self) -> None:
        if not self.began:
            return
        try:
            results = load_run(self.folder)
        except FewcalError:
            return
        np.testing.assert_array_equal(results.correct["ncm"], self.truth.correct["ncm"])
        np.testing.assert_array_equal(results.classes, self.truth.classes)

    @invariant()
    def no_block_is_lost(self) -> None:
        assert self._sound_blocks() >= self.blocks


def test_run_folders_in_any_order_of_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK_TASKS", BLOCK)
    run(tmp_path / "whole")
    run_state_machine_as_test(
        lambda: RunFolder(tmp_path / "whole"), settings=settings(max_examples=12, stateful_step_count=12)
    )
