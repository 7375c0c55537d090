"""Log stores set a cluster up together, whatever the order of their starts."""

import asyncio
from pathlib import Path

import pytest

from raftwood.disk.real_environment import real_environment
from tests.cluster.logservice.processes import LogProcesses
from tests.running import run


@pytest.mark.parametrize("first", [3])
def test_x(tmp_path: Path, first: int) -> None:
    async def body() -> None:
        with real_environment() as environment:
            async with LogProcesses(environment, tmp_path, first=first) as stores:
                await stores.start()
                import time; t=time.monotonic()
                view = await stores.runs()
                print(time.monotonic()-t, view)
                client = await stores.client()
                print(await client.append(b"hello"))
                print(await client.info())
                await stores.stop()
    run(body())
