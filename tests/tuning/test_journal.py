"""The journal of a study: whole lines or none, whoever dies and however full the disk is."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fewcal.errors import FewcalError, InputError
from fewcal.tuning.journal import JournalFile
from limits import largest_file

FIRST, SECOND = {"op_code": 0, "worker_id": "a"}, {"op_code": 4, "worker_id": "b", "value": [0.5, None]}


def test_lines_are_read_from_any_number_on(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "j")
    file.append_logs([FIRST, SECOND])
    assert list(file.read_logs(1)) == [SECOND]
    JournalFile(tmp_path / "j").append_logs([FIRST])
    assert list(file.read_logs(0)) == [FIRST, SECOND, FIRST]
    assert list(file.read_logs(3)) == []
    assert list(pickle.loads(pickle.dumps(file)).read_logs(2)) == [FIRST]


@pytest.mark.parametrize("tail", [b"{", b'{"op_code": 4, "val', b"\0\0\0", b"x" * 200_000])
def test_a_torn_tail_is_no_line_and_is_cut_off_before_the_next(tmp_path: Path, tail: bytes) -> None:
    file = JournalFile(tmp_path / "j")
    file.append_logs([FIRST])
    with (tmp_path / "j").open("ab") as torn:
        torn.write(tail)
    assert list(file.read_logs(0)) == [FIRST]
    file.append_logs([SECOND])
    assert list(JournalFile(tmp_path / "j").read_logs(0)) == list(file.read_logs(0)) == [FIRST, SECOND]


def test_a_full_disk_loses_nothing_and_the_journal_goes_on(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "j")
    file.append_logs([FIRST])
    size = (tmp_path / "j").stat().st_size
    for room in (1, 5, 20):
        with largest_file(size + room), pytest.raises(FewcalError, match=r"cannot write .*j: File too large.*--resume"):
            file.append_logs([SECOND, SECOND])
        assert (tmp_path / "j").stat().st_size == size
    file.append_logs([SECOND])
    assert list(file.read_logs(0)) == [FIRST, SECOND]


def test_a_journal_that_was_deleted_is_told(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "j")
    (tmp_path / "j").unlink()
    with pytest.raises(FewcalError, match="j was deleted while the study went on"):
        file.append_logs([FIRST])
    with pytest.raises(FewcalError, match="j was deleted while the study went on"):
        list(file.read_logs(0))


def test_a_relative_folder_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = JournalFile(Path("j"))
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    file.append_logs([FIRST])
    assert list(file.read_logs(0)) == [FIRST]
    assert not (tmp_path / "elsewhere" / "j").exists()


def test_a_killed_owner_of_the_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    JournalFile(tmp_path / "j").append_logs([FIRST])
    (tmp_path / "j.lock").symlink_to("gone/j")  # what a killed process of earlier versions left behind
    code = f"""
import fcntl, os, signal
file = open({str(tmp_path / "j")!r}, "ab")
fcntl.flock(file, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    JournalFile(tmp_path / "j").append_logs([SECOND])
    assert list(JournalFile(tmp_path / "j").read_logs(0)) == [FIRST, SECOND]


def test_a_record_after_a_torn_one_of_earlier_versions_is_found(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"op_code":0}\n{"op_code":4,"par{"op_code":5}\n{"op_code":6}\n')
    assert [log["op_code"] for log in JournalFile(tmp_path / "j").read_logs(0)] == [0, 5, 6]


@pytest.mark.parametrize("line", [b"not a record", b"[1]", b"3", b"[" * 100_000, b'{"op_code"', b"\xff\xfe"])
def test_damaged_lines_are_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "j").write_bytes(b'{"op_code":0}\n' + line + b"\n")
    with pytest.raises(InputError, match=r"line 2 of .*j is damaged"):
        list(JournalFile(tmp_path / "j").read_logs(0))


def test_many_writers_lose_no_line(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from fewcal.tuning.journal import JournalFile
file = JournalFile(Path({str(tmp_path / "j")!r}))
for i in range(100):
    file.append_logs([{{"op_code": i, "worker_id": sys.argv[1]}}])
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(i)]) for i in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    found = list(JournalFile(tmp_path / "j").read_logs(0))
    for i in range(3):
        assert [log["op_code"] for log in found if log["worker_id"] == str(i)] == list(range(100))
