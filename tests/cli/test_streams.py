"""The command line where its surroundings are hostile: encodings, closed and full streams, Ctrl-C at any moment."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fewcal._utils.tables import table
from fewcal.cli import main
from fewcal.cli.errors import format_error
from limits import PATIENCE

COMMAND = [sys.executable, "-m", "fewcal"]
ESCAPES = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features whose classes bear names that a terminal would obey or an encoding does not have."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    names = [f"gâteau {ESCAPES}", "日本語", "b\udce9ton"]
    for split, start in (("base", 0), ("novel", 3)):
        classes = np.array([f"{n}{start}" for n in names])
        labels = np.repeat(np.arange(3), 8)
        np.savez(folder / f"{split}.npz", features=rng.random((24, 4)), labels=labels, classes=classes)
    return folder


def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | dict(more.pop("env", {}))  # type: ignore[call-overload]
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, env=environment, check=False, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_can_be_printed_to(features: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding))
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(features), "--methods", "ncm,gdc", *_SMALL])
    assert not end.value.code
    assert b"95%" in printed.getvalue()


def test_an_encoding_from_outside(features: Path) -> None:
    done = run("features", "info", features, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"novel" in done.stdout


_SMALL = ["--way", "2", "--query", "2", "--tasks", "3"]


def test_closed_full_and_broken_outputs(features: Path) -> None:
    command = " ".join([*COMMAND, "features", "info", str(features)])
    for redirect, code in ((">&-", 0), (">&- 2>&-", 0), (">/dev/full", 3), ("| true", 0)):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command} {redirect}"], capture_output=True, check=False
        )
        assert done.returncode == code, (redirect, done.stderr)
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
        if code == 3:
            assert done.stderr == b"fewcal: cannot write the output: No space left on device\n"


def test_names_do_not_reach_the_terminal_as_commands(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(["name"], [[f"cat {ESCAPES}"]])
    assert "\x1b" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", str(features / f"{ESCAPES}"), "--methods", "ncm"])
    shown = capsys.readouterr().err
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("moment", [0.02, 0.1, 0.3, 0.6, 1.0, 1.5])
def test_ctrl_c_is_one_line_at_any_moment(features: Path, moment: float) -> None:
    """Also while Python or a module is still loading."""
    process = subprocess.Popen(
        [
            *COMMAND,
            "evaluate",
            str(features),
            "--methods",
            "ncm,hgdc",
            "--way",
            "2",
            "--query",
            "2",
            "--tasks",
            "300000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    if process.returncode != 130 and b"__main__.py" not in errors:
        return  # before Python had begun with `main` of fewcal
    assert process.returncode == 130, errors
    assert errors.endswith(b"fewcal: interrupted\n")
    assert b"Traceback" not in errors


def interrupted_process(code: str) -> tuple[int, bytes]:
    """Exit code and standard error of `fewcal features` in a process that runs `code` first."""
    script = f"import os, signal, sys\n{code}\nfrom fewcal.__main__ import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", script, "features"], capture_output=True, check=False, timeout=PATIENCE
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["fewcal.cli", "typer", "fewcal.cli.features"])
def test_ctrl_c_within_an_import_ends_the_process_in_one_line(module: str) -> None:
    code = f"""
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                raise ImportError("a C++ module that loses the exception")
sys.meta_path.insert(0, Interrupt())
"""
    assert interrupted_process(code) == (130, b"fewcal: interrupted\n")


def test_a_second_ctrl_c_ends_the_process_without_a_traceback() -> None:
    code = """
import fewcal.cli
def run():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:  # an orderly stop that takes long
        os.kill(os.getpid(), signal.SIGINT)
fewcal.cli.main = run
"""
    assert interrupted_process(code) == (130, b"fewcal: interrupted\n")


def test_ctrl_c_at_the_end_prints_no_traceback() -> None:
    code, errors = interrupted_process("import atexit\natexit.register(os.kill, os.getpid(), signal.SIGINT)")
    assert code == -signal.SIGINT
    assert errors == b""


def test_too_little_address_space_is_refused_before_libraries_are_loaded() -> None:
    """They would abort or hang."""
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v 700000; {' '.join(COMMAND)} version"], capture_output=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr == b"fewcal: the limit of memory (ulimit -v) is 0.72 GB; set it to 1.6 GB or more\n"


def test_missing_memory_is_said_in_a_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert "not enough memory" in format_error(caught.value)[0]
    assert format_error(MemoryError()) == (
        "not enough memory; use smaller batches, fewer features or a machine with more",
        3,
    )
    assert format_error(RuntimeError("shapes differ"))[1] == 1
    for said in ("libtorch_cpu.so: failed to map segment from shared object", "[Errno 12] Cannot allocate memory"):
        assert format_error(ImportError(said)) == format_error(MemoryError())
