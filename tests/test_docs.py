"""Every Python example in README and docs runs."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from fewcal.evaluation import STATISTICS
from fewcal.tuning.spaces import SPACES

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def python_of(page: Path) -> str:
    """All Python blocks of a page, one after the other, as a reader would type them."""
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))


@pytest.mark.usefixtures("two_epochs")
@pytest.mark.parametrize("page", [p for p in PAGES if python_of(p)], ids=lambda p: p.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with patch.dict(STATISTICS), patch.dict(SPACES):  # examples add some
        exec(compile(python_of(page), str(page), "exec"), {"__name__": "__example__"})


def test_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    exec(compile(found[1], "README.md", "exec"), {"__name__": "__example__"})
    assert capsys.readouterr().out == found[2]


def test_pages_are_found() -> None:
    assert {p.name for p in PAGES} >= {"README.md", "index.md", "method.md", "presets.md", "statistics.md"}


def test_commands_name_scripts_that_exist() -> None:
    pages = [*PAGES, ROOT / "Makefile", *(ROOT / "benchmarks").rglob("*.py")]
    named = {name for page in pages for name in re.findall(r"benchmarks/\S+?\.py", page.read_text(encoding="utf-8"))}
    assert len(named) >= 11
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
