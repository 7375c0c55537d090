"""Ending futures that others wait for."""

import asyncio
from typing import Any


def fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    """End a future with an error, unless it has ended.

    Whoever asked may have been cancelled, or have run out of time. The loop is told that the error
    was seen: it would print "Future exception was never retrieved" otherwise.
    """
    if not future.done():
        future.set_exception(error)
        future.exception()
