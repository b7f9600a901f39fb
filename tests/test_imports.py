"""The compute core stands on torch and NumPy alone; imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fewcal

SOURCE = Path(fewcal.__file__).parent
CORE = [
    *("bank", "calibrate", "covariance", "domain_match", "episodes", "evaluation", "factor_gaussian", "features"),
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


# The way of the data: a module may import only from modules before it.
ORDER = [
    *("_version", "errors", "_utils", "render", "gaussianize", "bank", "calibrate", "factor_gaussian", "covariance"),
    *("domain_match", "rejection", "heads", "params", "presets", "methods", "episodes", "features", "evaluation"),
    *("training", "tune", "estimators", "apply", "report", "paper", "demo", "cli", "__main__"),
]


@pytest.mark.parametrize("module", ORDER)
def test_imports_go_one_way(module: str) -> None:
    place = SOURCE / module
    files = place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:  # what is imported on use does not bind modules together
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fewcal."):
                other = node.module.split(".")[1]
                assert ORDER.index(other) <= ORDER.index(module), f"{file.name} imports {node.module}"


def test_every_module_has_its_place() -> None:
    found = {
        p.stem if p.is_file() else p.name for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert found - {"__init__"} == set(ORDER)
