"""Running a test's coroutine on a real loop, so that a task left behind fails the test."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, but tasks that are still there at the end are a failure."""

    async def guarded() -> Result:
        result = await main
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left behind: {left}"
        return result

    return asyncio.run(guarded())
