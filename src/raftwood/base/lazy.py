"""`lazy_exports`: a package's public names, each loaded when it is first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package: `modules` says which module defines which names.

    A program that imports a client loads only the parts that it uses.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        module = places.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return load
