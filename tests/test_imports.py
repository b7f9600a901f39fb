"""The compute core stands on torch and NumPy alone; imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fewcal

SOURCE = Path(fewcal.__file__).parent
CORE = [
    *("bank", "calibrate", "covariance", "episodes", "evaluation", "factor_gaussian", "features"),
    *("features.synthetic", "gaussianize", "heads", "methods", "params", "presets"),
    *("evaluation.engine", "evaluation.executors", "evaluation.run_folder", "evaluation.stats"),
]


def test_the_core_imports_and_works_with_torch_and_numpy_alone() -> None:
    blocked = [
        "sklearn",
        "scipy",
        "safetensors",
        "typer",
        "rich",
        "pyarrow",
        "joblib",
        "pandas",
        "imblearn",
        "dask",
        "matplotlib",
        "numba",
        "triton",
    ]
    code = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import importlib
for name in {CORE!r}:
    importlib.import_module("fewcal." + name)
from fewcal.evaluation import Protocol, evaluate
from fewcal.features.synthetic import make_features
fs = make_features(base=6, val=0, novel=5, rows=12, dim=8)
r = evaluate(["ncm", "simpleshot", "lr", "lr-gauss", "cosine", "dc", "gdc"], fs, Protocol(tasks=2, query=3))
print(len(r.correct))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "7"


# Imports go down only, those inside functions too. Groups of a layer stand side by side and do not see each other.
LAYERS: list[list[set[str]]] = [
    [{"_version", "errors", "_utils", "ops", "render"}],
    [{"gaussianize", "power_choice", "bank"}, {"features"}, {"episodes"}],
    [{"calibrate", "covariance", "factor_gaussian"}],
    [{"heads", "params", "presets"}],
    [{"hgdc"}],
    [{"methods"}, {"rejection"}],
    [{"evaluation"}, {"estimators"}],
    [{"training", "tuning", "apply", "report"}],
    [{"paper", "demo"}],
    [{"cli"}],
    [{"__init__", "__main__"}],  # the door: nothing inside comes in by it
]
PLACE = {name: (height, group) for height, groups in enumerate(LAYERS) for group, g in enumerate(groups) for name in g}


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sorted(SOURCE.rglob("*.py"))}


def unit(module: str) -> str:
    """What stands in LAYERS: `fewcal.bank.core` → `bank`."""
    return module.split(".")[1] if "." in module else "__init__"


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node: ast.AST, module: str) -> Iterator[str]:
    """The modules of fewcal that run when this code runs: on import, inside functions, or named as a string."""
    for child in ast.iter_child_nodes(node):
        if is_for_types_only(child):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) == "files":
            continue  # files("fewcal.render") are data beside the modules
        if isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module} imports relatively; the package imports by full names"
            source = child.module or ""
            for alias in child.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in MODULES else source
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.Constant) and str(child.value).startswith("fewcal."):
            yield str(child.value)  # import_module("fewcal.bank")
        yield from imports(child, module)


def graph() -> dict[str, set[str]]:
    out = {}
    for module, file in MODULES.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        out[module] = {other for other in imports(tree, module) if other in MODULES and other != module}
    return out


def test_imports_go_down() -> None:
    wrong = []
    for module, others in graph().items():
        (height, group) = PLACE[unit(module)]
        for other in sorted(others):
            (below, beside) = PLACE[unit(other)]
            if below > height or (below == height and beside != group):
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_no_module_imports_itself_on_a_way_round() -> None:
    left = graph()
    while True:  # without those that import none, or that none imports, only ways round are left
        imported = set().union(*left.values())
        ends = {module for module, others in left.items() if not others or module not in imported}
        if not ends:
            break
        left = {module: others - ends for module, others in left.items() if module not in ends}
    assert left == {}


def test_every_module_has_its_place() -> None:
    assert {unit(module) for module in MODULES} == set(PLACE)
