"""Limits of the code that ruff and mypy do not know: sizes, `Any`, private names across modules.

python tools/house.py                   findings in src/fewcal, one a line; exit status 1 if there are any
python tools/house.py tests benchmarks  the same for other folders (tests may look inside: nothing enforces it)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 450
FUNCTION_LINES = 60
ANY_USES = 150
PACKAGE = Path("src/fewcal")  # run from the root of the repository, as make does
# The methods of named tuples begin with an underscore only to leave the names of fields free.
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
# What another package keeps private has no better name: the line says whose it is and why, `# private of torch: why`.
EXCUSED = re.compile(r"# private of (?!fewcal\b)\w+: \S")

REMEDY = "make it public where it is defined"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMED_TUPLE


def length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[bool(ast.get_docstring(node)) :] or node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1
            if lines > FUNCTION_LINES:
                yield (
                    node.lineno,
                    f"{node.name} has a body of {lines} lines, at most {FUNCTION_LINES}: split it",
                )


def uses_of_any(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def own_names(tree: ast.Module) -> set[str]:
    """Private names of functions, classes, fields and attributes that this module defines."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def imported_modules(tree: ast.Module) -> set[str]:
    """Names that stand for whatever this module imports."""
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def foreign_private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Reads and writes of `_x` that belongs to another module: imported, `object._x`, `getattr(object, "_x")`."""
    own, imported = own_names(tree), imported_modules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if is_private(alias.name):
                    yield node.lineno, f"imports the private name {alias.name} of {node.module}: {REMEDY}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner in imported or (owner not in ("self", "cls") and node.attr not in own):  # self: inherited
                yield node.lineno, f"uses the private name {ast.unparse(node)} of another module: {REMEDY}"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
            and node.args[1].value not in own
        ):
            yield node.lineno, f"reaches for a private name by {ast.unparse(node)}: {REMEDY}"


def findings(folder: Path) -> Iterator[str]:
    """One line for each thing that is over a limit, `file:line: what is wrong: remedy`."""
    uses: dict[Path, int] = {}
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = len(text.splitlines())
        if lines > MODULE_LINES:
            yield f"{file}:1: the module has {lines} lines, at most {MODULE_LINES}: split it by what its parts do"
        for line, what in sorted([*long_functions(tree), *foreign_private_names(tree)]):
            if not EXCUSED.search(text.splitlines()[line - 1]):
                yield f"{file}:{line}: {what}"
        uses[file] = uses_of_any(tree)
    if (total := sum(uses.values())) > ANY_USES:
        most = ", ".join(f"{f.relative_to(folder)} {n}" for f, n in sorted(uses.items(), key=lambda i: -i[1])[:8] if n)
        yield f"{folder}: Any is used {total} times, at most {ANY_USES}: name the types (most in {most})"


def main() -> int:
    found = [line for folder in sys.argv[1:] or [str(PACKAGE)] for line in findings(Path(folder))]
    print("\n".join(found) or "sizes, Any and private names: all within the limits")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
