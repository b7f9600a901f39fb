"""Files that are whole or not there, and what writers leave that are killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fewcal._utils.atomic import atomic_path, sweep, write_json, write_text
from fewcal.errors import InputError

posix = pytest.mark.skipif(os.name != "posix", reason="permissions and processes of POSIX")


def test_a_block_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "old")
    block = atomic_path(tmp_path / "a")
    block.__enter__().write_text("new")
    block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old"}


@posix
@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o600, 0o600)])
def test_permissions_are_those_given_or_those_of_the_umask(tmp_path: Path, mode: int | None, expected: int) -> None:
    before = os.umask(0o027)
    try:
        with atomic_path(tmp_path / "key", mode) as temporary:
            if mode is not None:
                assert stat.S_IMODE(temporary.stat().st_mode) == mode
            temporary.write_text("secret")
        write_json(tmp_path / "key.json", {}, mode)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {expected}


@posix
def test_sweep_removes_what_a_killed_writer_left_and_nothing_else(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from fewcal._utils.atomic import atomic_path
with atomic_path(sys.argv[1] + "/a.json") as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode < 0
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".tmp"
    foreign, other = tmp_path / ".a.json.00000000-1.00000000.tmp", tmp_path / ".mine.tmp"
    for path in (foreign, other):
        path.touch()
    with atomic_path(tmp_path / "b.json") as temporary:
        temporary.write_text("whole")
        sweep(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([foreign, other, temporary])
    sweep(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*a: .*; choose another place or make room"):
        write_text(tmp_path / "file" / "a", "x")
