"""tools/house.py finds what it is for, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent / "tools" / "house.py"


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("house", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(house, folder: Path, text: str) -> list[str]:
    (folder / "module.py").write_text(text, encoding="utf-8")
    return [line.split(": ", 1)[1] for line in house.findings(folder)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1\n" * 451, "the module has 451 lines"),
        ("def f():\n" + "    x = 1\n" * 61, "f has a body of 61 lines"),
        ("from typing import Any\n" + "x: Any = 1\n" * 151, "Any is used 151 times"),
        ("from fewcal.bank import _cached\n", "imports the private name _cached of fewcal.bank"),
        ("def f(bank):\n    return bank._cached\n", "uses the private name bank._cached"),
        ("def f(bank):\n    bank.inner._cached = 1\n", "uses the private name bank.inner._cached"),
        ("import other\n_x = 1\ny = other._x\n", "uses the private name other._x"),
        ("def f(bank):\n    return getattr(bank, '_cached')\n", "reaches for a private name"),
        ("import torch\ntorch._dynamo  # private of torch:\n", "uses the private name torch._dynamo"),
        ("def f(bank):\n    return bank._x  # private of fewcal: in a hurry\n", "uses the private name bank._x"),
    ],
)
def test_a_finding_is_one_line(house, tmp_path: Path, text: str, what: str) -> None:
    [line] = found(house, tmp_path, text)
    assert line.startswith(what)
    assert ": " in line  # and names the remedy


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * 450,
        'def f():\n    """' + "One\n" * 70 + '    """\n' + "    x = 1\n" * 59,
        "class A:\n    def __init__(self):\n        self._x = 1\n    def same(self, other):\n        return other._x\n",
        "class A:\n    _x: int\n    def f(self):\n        return self._x\n",
        "def f(row):\n    return row._asdict(), row.__dict__\n",
        "import torch\ntorch._dynamo  # private of torch: it has no public name\n",
    ],
)
def test_what_is_within_the_limits_is_not_found(house, tmp_path: Path, text: str) -> None:
    assert found(house, tmp_path, text) == []
