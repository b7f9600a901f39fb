"""Names of a package that are loaded on first use: what is heavy is not imported by those who use other parts."""

TYPE_CHECKING = False  # as type checkers know it; `import typing` would delay every start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: "Mapping[str, str]") -> "Callable[[str], object]":
    """The `__getattr__` of a package whose names stand in these modules.

    >>> lazy_names("fewcal", {"dumps": "json"})("dumps")([1])
    '[1]'
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(homes[name]), name)

    return load
