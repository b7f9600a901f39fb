"""Names and packages that are loaded on first use: what is heavy is not imported by those who use other parts."""

TYPE_CHECKING = False  # as type checkers know it; `import typing` would delay every start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


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


def lazy_module(name: str) -> "ModuleType":
    """A module that imports `name` when it is asked for something, which it keeps: then it is as fast as `name`.

    >>> lazy_module("json").dumps([1])
    '[1]'
    """
    from importlib import import_module
    from types import ModuleType

    module = ModuleType(name)

    def load(attribute: str) -> object:
        value = getattr(import_module(name), attribute)
        setattr(module, attribute, value)
        return value

    module.__getattr__ = load  # type: ignore[method-assign]
    return module
