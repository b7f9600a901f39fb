"""What `import fewcal` offers: complete, typed, documented."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fewcal

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
# A documented name and, where the page chooses them, its members.
DOCUMENTED = dict(re.findall(r"^::: (\S+)\n(?: +options:\n +members: \[(.*)\])?", PAGE, flags=re.MULTILINE))


def resolved(path: str) -> object:
    """`fewcal.report.run_report.run_report` → the function, through as many modules as there are."""
    thing: object = fewcal
    for depth, name in enumerate(path.split(".")[1:], start=2):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            thing = import_module(".".join(path.split(".")[:depth]))
    return thing


def test_public_names_load() -> None:
    for name in fewcal.__all__:
        assert getattr(fewcal, name) is not None
    assert fewcal.__all__ == dir(fewcal) == sorted(fewcal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fewcal.nothing


def test_no_module_hides_a_public_name() -> None:
    """Importing `fewcal.x` binds the module to that name, so that a function of the same name would come and go."""
    modules = {p.stem for p in Path(fewcal.__file__).parent.iterdir()}
    assert modules & set(fewcal.__all__) == set()


def test_what_is_loaded_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(fewcal.__file__).read_text(encoding="utf-8"))
    [block] = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert {*seen, "__version__"} == set(fewcal.__all__)
    for name, module in seen.items():
        assert getattr(import_module(module), name) is getattr(fewcal, name)


def test_every_public_name_is_documented_and_every_documented_name_exists() -> None:
    assert {f"fewcal.{name}" for name in fewcal.__all__} - {"fewcal.__version__"} <= set(DOCUMENTED)
    for path, members in DOCUMENTED.items():
        thing = resolved(path)
        assert thing.__doc__, f"{path} has no docstring"
        for member in re.findall(r"\w+", members.replace("false", "")):
            assert getattr(thing, member).__doc__, f"{path}.{member} has no docstring"


CLIENT = """
# mypy: disallow-untyped-calls, disallow-any-generics, warn-return-any, strict-equality
import numpy as np

import fewcal
from fewcal import BaseBank, FeatureSet, FewShotClassifier, GDCParams, Protocol, evaluate

x, y = np.zeros((4, 3), np.float32), np.array([0, 0, 1, 1])
bank = BaseBank().fit(x, y)
model = FewShotClassifier(bank).fit(x, y)
features = FeatureSet.load("features")
results = evaluate({"gdc": fewcal.make_method("hgdc", ridge=0.5)}, features, Protocol(way=5, shot=1))
reveal_type(bank)
reveal_type(model)
reveal_type(model.predict_proba(x))
reveal_type(features.split("novel"))
reveal_type(results)
reveal_type(results.accuracy("gdc"))
reveal_type(fewcal.load_run("run"))
reveal_type(fewcal.get_preset("paper"))
reveal_type(fewcal.get_preset("paper").with_changes(k=3))
reveal_type(fewcal.list_presets())
reveal_type(fewcal.make_method("ncm"))
reveal_type(fewcal.classify("support", "query"))
reveal_type(fewcal.Gaussianizer().fit(x).transform(x))
reveal_type(fewcal.GDCClassifier(bank, "paper/cub/1shot", k=3).fit(x, y).explain())
reveal_type(fewcal.GDCSampler())
reveal_type(fewcal.tune(features, fewcal.Search(shot=1), out="study"))
parameters: GDCParams = fewcal.get_preset("paper")
Protocol(shots=1)  # the parameter is `shot`
evaluate(3, features)  # not a method
fewcal.nothing
fewcal.GDCClassifier(bank, whiten=2)  # a parameter of another model
"""


# What fewcal says is looked at, and not what large packages behind it do: reading torch alone would take a minute.
MYPY = """
[mypy]
follow_imports = silent
ignore_missing_imports = True
[mypy-torch.*,optuna.*,sklearn.*,matplotlib.*]
follow_imports = skip
"""


def test_a_users_mypy_sees_types(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "client.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "", "PYTHONPATH": ""},
    )
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == CLIENT.count("reveal_type"), done.stdout + done.stderr
    assert [t for t in revealed if t == "Any" or t.endswith("-> Any")] == []
    assert revealed[0].endswith(".BaseBank")
    errors = re.findall(r"error: .*", done.stdout)
    assert len(errors) == 4, done.stdout
    assert 'Unexpected keyword argument "shots"' in errors[0]
    assert 'has incompatible type "int"' in errors[1]
    assert 'Module has no attribute "nothing"' in errors[2]
    assert 'Unexpected keyword argument "whiten"' in errors[3]
