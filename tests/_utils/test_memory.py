"""How much memory is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewcal._utils import memory


def test_the_least_of_machine_and_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, most, used = tmp_path / "meminfo", tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(memory, "_MEMINFO", info)
    monkeypatch.setattr(memory, "_GROUPS", ((most, used),))
    assert memory.available_memory() is None
    info.write_text("MemTotal: 9 kB\nMemAvailable:   4 kB\n")
    assert memory.available_memory() == 4096
    most.write_text("max\n")
    used.write_text("1000\n")
    assert memory.available_memory() == 4096
    most.write_text("3000\n")
    assert memory.available_memory() == 2000
    used.write_text("3500\n")  # more than its limit, for a moment
    assert memory.available_memory() == 1
