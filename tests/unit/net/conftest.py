"""Each test of `net` that needs a loop runs on asyncio's own and on uvloop.

What is about timeouts runs in virtual time instead: on a real loop, a busy machine lets them fire.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.kits.net.rpc import run_checked

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda main: run_checked(request.param, main)


@pytest.fixture
def in_virtual_time() -> Run:
    return lambda main: run_checked("simulated", main)
