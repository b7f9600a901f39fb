"""How much memory is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewcal._utils import memory
from fewcal.errors import InputError


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


def test_a_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (1 << 40, 1 << 40))
    assert memory.address_space() == 1 << 40
    monkeypatch.setattr(memory, "_MEMINFO", Path("/nowhere"))
    monkeypatch.setattr(memory, "_GROUPS", ())
    left = memory.available_memory()
    assert left is not None
    assert 0 < left < 1 << 40
    monkeypatch.setattr(memory, "_OWN", Path("/nowhere"))
    assert memory.available_memory() == 1 << 40
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (memory.resource.RLIM_INFINITY,) * 2)
    assert memory.available_memory() is None


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 3 * 10**9)
    memory.require_memory(3 * 10**9, "it", "take less")
    with pytest.raises(InputError, match=r"it takes 4 GB, and 3 GB of memory are left; take less"):
        memory.require_memory(4 * 10**9, "it", "take less")
