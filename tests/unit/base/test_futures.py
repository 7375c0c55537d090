"""A future that nobody awaits any more ends without a word on the terminal."""

import asyncio
import gc
from typing import Any

import pytest
from tests.kits.running import run

from raftwood.base.futures import fail


async def _said_after(end: Any) -> list[str]:
    loop = asyncio.get_running_loop()
    said: list[str] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    try:
        end(loop.create_future())
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(before)
    return said


def test_a_failure_that_nobody_looks_at_is_not_printed() -> None:
    async def main() -> None:
        assert await _said_after(lambda future: future.set_exception(OSError("gone"))) == [
            "Future exception was never retrieved"
        ]
        assert await _said_after(lambda future: fail(future, OSError("gone"))) == []

    run(main())


def test_whoever_waits_hears_of_it_and_the_first_end_counts() -> None:
    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        fail(future, OSError("first"))
        fail(future, OSError("second"))
        with pytest.raises(OSError, match="first"):
            await future

    run(main())
