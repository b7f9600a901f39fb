"""Studies through any order of trials, kills, torn journals, full disks and new processes: nothing finished is lost."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest

pytest.importorskip("optuna")

import optuna
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from optuna.trial import TrialState

from fewcal.errors import FewcalError
from fewcal.tuning.journal import JournalFile
from fewcal.tuning.storage import JOURNAL, count, drop_lost, open_storage, require_optuna
from fewcal.tuning.worker_process import me
from limits import largest_file

TORN = st.binary(min_size=1, max_size=60).map(lambda b: b.replace(b"\n", b"")) | st.just(b'{"op_code":6,"trial_i')
RECORDS = st.lists(st.dictionaries(st.sampled_from(["a", "worker_id"]), st.text(max_size=5) | st.none()), max_size=3)
QUICK = settings(max_examples=12, stateful_step_count=15)


class Journal(RuleBasedStateMachine):
    """The model is the list of records; every handle, old or new, must read exactly these."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = Path(mkdtemp(dir=folder)) / "j"
        self.handles = [JournalFile(self.path), JournalFile(self.path)]
        self.records: list[dict[str, object]] = []

    @rule(who=st.integers(0, 1), records=RECORDS)
    def append(self, who: int, records: list[dict[str, object]]) -> None:
        logs = [{"op_code": len(self.records)} | r for r in records]
        self.handles[who].append_logs(logs)
        self.records += logs

    @rule(tail=TORN)
    def torn_by_a_kill(self, tail: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(tail)

    @rule(who=st.integers(0, 1), room=st.integers(0, 25))
    def full_disk(self, who: int, room: int) -> None:
        whole = sum(len(line) for line in self.path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
        with largest_file(whole + room), pytest.raises(FewcalError, match="File too large"):
            self.handles[who].append_logs([{"op_code": 1, "text": "x" * 40}])

    @rule(who=st.integers(0, 1), how=st.sampled_from(["new process", "pickled"]))
    def handed_over(self, who: int, how: str) -> None:
        old = self.handles[who]
        self.handles[who] = JournalFile(self.path) if how == "new process" else pickle.loads(pickle.dumps(old))

    @rule(who=st.integers(0, 1), number=st.integers(0, 40))
    def read_from(self, who: int, number: int) -> None:
        assert list(self.handles[who].read_logs(number)) == self.records[number:]

    @invariant()
    def both_read_all(self) -> None:
        assert [list(handle.read_logs(0)) for handle in self.handles] == [self.records] * 2


class Study(RuleBasedStateMachine):
    """The model is the value of each finished trial, and the trials that somebody works on."""

    def __init__(self, folder: Path, dead: int) -> None:
        super().__init__()
        self.folder, self.dead = Path(mkdtemp(dir=folder)), dead
        optuna.create_study(storage=open_storage(self.folder), study_name="s", direction="maximize")
        self.finished: dict[int, float] = {}
        self.running: dict[int, optuna.Trial] = {}
        self.queue: list[float] = []
        self.new_process()

    @rule()
    def new_process(self) -> None:
        """Trials that this process works on go on; the study is what the file says."""
        self.study = optuna.load_study(storage=open_storage(self.folder), study_name="s")

    @rule(x=st.floats(0, 1))
    def begin(self, x: float) -> None:
        if not self.queue:
            self.study.enqueue_trial({"x": x})
            self.queue.append(x)
        trial = self.study.ask()
        assert trial.suggest_float("x", 0, 1) == self.queue.pop(0)
        self.running[trial.number] = trial

    @precondition(lambda self: self.running)
    @rule(value=st.floats(0, 1))
    def finish(self, value: float) -> None:
        number, trial = self.running.popitem()
        self.study.tell(trial.number, value)
        self.finished[number] = value

    @precondition(lambda self: self.running)
    @rule(tail=TORN)
    def killed(self, tail: bytes) -> None:
        """The worker of a trial dies while it writes; whoever comes next gives its parameters to another."""
        _, trial = self.running.popitem()
        tries = trial.user_attrs.get("tries", 1)
        trial.set_user_attr("worker", me() | {"pid": self.dead, "born": 1})
        with (self.folder / JOURNAL).open("ab") as file:
            file.write(tail)
        self.new_process()
        assert drop_lost(self.study) == 1
        if tries < 3:  # what brings down its workers is not begun for ever
            self.queue.append(trial.params["x"])

    @precondition(lambda self: self.running)
    @rule(room=st.integers(0, 30))
    def full_disk(self, room: int) -> None:
        """The result of a trial does not fit: an error, and it can be told once there is room."""
        number = next(iter(self.running))
        with largest_file((self.folder / JOURNAL).stat().st_size + room), pytest.raises(FewcalError):
            self.study.tell(number, 0.5)
        self.new_process()

    @invariant()
    def nothing_is_lost(self) -> None:
        trials = self.study.get_trials(deepcopy=False)
        assert {t.number: t.value for t in trials if t.state == TrialState.COMPLETE} == self.finished
        assert {t.number for t in trials if t.state == TrialState.RUNNING} == set(self.running)
        waiting = [t.system_attrs["fixed_params"]["x"] for t in trials if t.state == TrialState.WAITING]
        assert waiting == self.queue
        assert count(self.study).complete == len(self.finished)


def test_journals_in_any_order_of_events(tmp_path: Path) -> None:
    run_state_machine_as_test(lambda: Journal(tmp_path), settings=QUICK)


def test_studies_in_any_order_of_events(tmp_path: Path) -> None:
    require_optuna()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run_state_machine_as_test(lambda: Study(tmp_path, ended.pid), settings=QUICK)
