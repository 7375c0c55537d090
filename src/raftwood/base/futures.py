"""Ends futures that others wait for."""

import asyncio
from typing import Any


def fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    """Ends a future with an error, unless it has ended.

    The caller may be cancelled or out of time. The exception counts as retrieved: otherwise the
    loop would print "Future exception was never retrieved".
    """
    if not future.done():
        future.set_exception(error)
        future.exception()
