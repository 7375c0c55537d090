"""Runs a coroutine on the fastest event loop there is: uvloop where it is installed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`."""
    try:
        import uvloop  # noqa: PLC0415  not made for every platform
    except ModuleNotFoundError:
        return asyncio.run(main)
    result: Result = uvloop.run(main)
    return result
