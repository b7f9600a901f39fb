"""The start of the package and of the command: heavy libraries are imported where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from fewcal.cli import COMMANDS, application

HEAVY = {"numpy", "torch", "optuna", "matplotlib", "sklearn", "pyarrow", "PIL"}


@pytest.mark.parametrize(
    "code",
    [
        "import fewcal",
        "import fewcal.cli; fewcal.cli.application()",
        "from fewcal.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from fewcal.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass",
    ],
)
def test_package_and_help_import_nothing_heavy(code: str) -> None:
    script = f"import sys\n{code}\nprint({HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_of_a_command_is_that_of_its_own_help(name: str) -> None:
    group = typer.main.get_command(application(name))
    assert set(group.commands) == {name, "version"}
    assert group.commands[name].get_short_help_str(limit=120) == COMMANDS[name][1]


@pytest.mark.parametrize("wrong", [None, "evalute"])
def test_help_names_all_commands(wrong: str | None) -> None:
    assert list(typer.main.get_command(application(wrong)).commands) == [*COMMANDS, "version"]
