"""The leader's disk becomes slow: another store leads, and nothing is written twice."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Self

import pytest

from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.raft.admin import RaftAdmin
from tests.kits.logservice.processes import LogProcesses, log_stores, shard_of
from tests.kits.processes import injected
from tests.kits.running import run

_SLOW_S = 1.5
_SYNCS_BEFORE = 250
"""At the usual speed: the cluster begins with them, and the store comes to lead."""
_SETTINGS = {"hakeeper.moves_every_ticks": 1_000_000}
"""Nobody else moves the leaders."""
_WRITERS = 8
_AFTER_S = 10.0


class Writers:
    """Each appends one record after the other; use it as a context manager."""

    def __init__(self, client: AsyncLogClient) -> None:
        self._client = client
        self._ends = False
        self._tasks: list[asyncio.Task[None]] = []
        self.took: list[tuple[float, float]] = []
        """When an append began, and how long it took."""

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._write()) for _ in range(_WRITERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    async def _write(self) -> None:
        while not self._ends:
            began = time.monotonic()
            await self._client.append(b"a record")
            self.took.append((began, time.monotonic() - began))
            await asyncio.sleep(0.01)

    def since(self, began: float) -> list[float]:
        return sorted(took for at, took in self.took if at >= began)


async def becomes_slow(stores: LogProcesses) -> None:
    await stores.start()
    await stores.runs()
    client = await stores.client()
    await RaftAdmin(stores.stores).transfer(1, 1)
    async with Writers(client) as writers:
        await stores.nodes[1].says("a slow disk gives up leading", group=1)
        handed_over = time.monotonic()
        await stores.seen("another leader", lambda view: shard_of(view, 1).leader not in (0, 1))
        await asyncio.sleep(_AFTER_S)
        took = writers.since(handed_over)
    first_slow = min(at for at, each in writers.took if each > _SLOW_S / 2)
    print(
        f"handed over {handed_over - first_slow:.1f} s after the first slow append; from then on "
        f"p50 {statistics.median(took):.3f} s, p99 {took[len(took) * 99 // 100]:.3f} s, "
        f"{len(took)} appends"
    )
    assert statistics.median(took) < _SLOW_S
    info = await client.info()
    assert info.leader != 1
    assert info.log.holes == 0, "a record stands in the log again"


@pytest.mark.needs("strace")
def test_a_leader_whose_disk_becomes_slow_hands_over(tmp_path: Path) -> None:
    fault = f"fdatasync:delay_enter={int(_SLOW_S * 1e6)}:when={_SYNCS_BEFORE}+"

    async def body() -> None:
        wrappers = {1: injected(fault)}
        async with log_stores(tmp_path, wrappers=wrappers, settings=_SETTINGS) as stores:
            await becomes_slow(stores)

    run(body())
