"""Functions and classes of users, by the names that a file has for them."""

import importlib
import inspect
from typing import Any

from pyspark import cloudpickle

from raftwood.base.errors import InvalidConfiguration


def named(text: str) -> Any:
    """What `module:name` stands for; modules beside the file are found as well."""
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise InvalidConfiguration(f"{text!r} names nothing: write module:name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidConfiguration(
            f"{text!r}: module {module_name!r} cannot be loaded ({error}); put it beside the file, "
            "or install it"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise InvalidConfiguration(f"{text!r}: module {module_name!r} has no {name!r}")
    if not module_name.startswith("raftwood."):
        # Spark's workers may not find the module, so they are given its code.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return found


def function_named(text: str | None) -> Any:
    found = named(text or "")
    if not callable(found) or inspect.isclass(found):
        raise InvalidConfiguration(f"{text!r} is no function")
    return found
