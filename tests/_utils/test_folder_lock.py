"""One owner for an output folder: between processes, after a kill, and when the folder goes away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fewcal._utils.folder_lock import LOCK_NAME, file_lock, folder_lock
from fewcal.errors import FewcalError, InputError
from limits import PATIENCE

OWNER = """
import sys
from fewcal._utils.folder_lock import folder_lock
with folder_lock(sys.argv[1]):
    print("mine", flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "mine\n"
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as other:
        with pytest.raises(InputError, match=rf"run is in use by process {other.pid} on .* since 20.*; wait"):
            folder_lock(tmp_path / "run").__enter__()
        with folder_lock(tmp_path / "another"):
            pass
    with folder_lock(tmp_path / "run") as lock:
        lock.check()


def test_the_successor_of_a_killed_owner_takes_over(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as other:
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE)
        assert (tmp_path / "run" / LOCK_NAME).is_file()
        with folder_lock(tmp_path / "run"):
            pass
    assert not (tmp_path / "run" / LOCK_NAME).exists()


def test_waiting_for_the_owner(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as other:
        assert other.stdin is not None
        other.stdin.close()
        with folder_lock(tmp_path / "run", wait=30):
            pass


def test_a_folder_that_goes_away_is_noticed(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "run") as lock:
        lock.check()
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(FewcalError, match="deleted or replaced"):
            lock.check()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LOCK_NAME).touch()  # as if another command had begun there
        with pytest.raises(FewcalError, match="deleted or replaced"):
            lock.check()
    assert (tmp_path / "run" / LOCK_NAME).exists()  # not ours to remove


def test_files_of_one_folder_have_owners_of_their_own(tmp_path: Path) -> None:
    again = file_lock(tmp_path / "val.npz")
    with file_lock(tmp_path / "val.npz"), file_lock(tmp_path / "novel.npz"), pytest.raises(InputError, match="in use"):
        again.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_owned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        folder_lock(tmp_path / "file").__enter__()
    with pytest.raises(InputError, match="is a file"):
        file_lock(tmp_path / "file" / "x.npz").__enter__()
    # A lock that is a link to something valuable is not written through.
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_NAME).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="cannot write"):
        folder_lock(tmp_path / "run").__enter__()
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_hundred_takers_have_one_owner_at_a_time(tmp_path: Path) -> None:
    """Between owners the file is removed; nobody may hold the removed one."""
    code = """
import os, sys
from fewcal._utils.folder_lock import folder_lock
for _ in range(50):
    with folder_lock(sys.argv[1], wait=60):
        os.close(os.open(sys.argv[1] + "/busy", os.O_CREAT | os.O_EXCL))
        os.unlink(sys.argv[1] + "/busy")
"""
    takers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE) for _ in range(3)]
    errors = [taker.communicate()[1].decode() for taker in takers]
    assert [taker.returncode for taker in takers] == [0, 0, 0], errors


@pytest.fixture
def not_root() -> Iterator[None]:
    """Root may write everywhere: it becomes somebody else for a while."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_folder_without_permission(not_root: None) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # pytest's own folder is its owner's alone
        folder = Path(place, "run")
        folder.mkdir(mode=0o500)
        with pytest.raises(InputError, match=r"cannot write .*run.*: Permission denied"):
            folder_lock(folder).__enter__()


KILLED = """
import os, sys
from fewcal._utils.atomic import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.touch()
    os.kill(os.getpid(), 9)
"""


def test_locks_sweep_what_killed_processes_left(tmp_path: Path) -> None:
    own = [tmp_path / ".mine.tmp", tmp_path / "a.json"]
    for file in own:
        file.touch()
    for lock in (folder_lock(tmp_path), file_lock(tmp_path / "b.json")):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "c.json")], check=False)
        assert len(list(tmp_path.glob(".c.json.*.tmp"))) == 1
        with lock:
            assert not list(tmp_path.glob(".c.json.*.tmp"))
    assert all(file.exists() for file in own)
