"""Readers that ask for much, or wait for long, leave room for others."""

import asyncio
from typing import cast

import pytest

from raftwood.base.errors import Overloaded
from raftwood.logservice.server import shard_service
from raftwood.logservice.server.shard_service import READS_AT_ONCE, ReadTurns
from raftwood.net import Call
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


class _Caller:
    is_congested = False


def test_so_many_reads_take_memory_at_once_and_none_for_a_caller_that_takes_nothing() -> None:
    async def scenario() -> None:
        turns, under_way, most = ReadTurns(), 0, 0
        eager, stuck = _Caller(), _Caller()
        stuck.is_congested = True
        served: list[_Caller] = []

        async def read(caller: _Caller) -> None:
            nonlocal under_way, most
            async with turns.turn(cast("Call", caller)):
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0)
                under_way -= 1
                served.append(caller)

        waiting = [asyncio.create_task(read(stuck)) for _ in range(100)]
        await asyncio.gather(*(read(eager) for _ in range(100)))
        assert most == READS_AT_ONCE
        assert stuck not in served
        stuck.is_congested = False
        await asyncio.gather(*waiting)
        assert len(served) == 200

    asyncio.run(scenario())


def test_readers_beyond_the_bound_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_service, "WAITING_MAX", 2)

    async def scenario() -> None:
        turns = ReadTurns()
        with turns.patience(1000), turns.patience(1000), turns.patience(0):
            with pytest.raises(Overloaded), turns.patience(1000):
                pass
            assert turns.waiting == 2
        with turns.patience(1000):
            assert turns.waiting == 1
        assert turns.waiting == 0

    asyncio.run(scenario())


def test_a_tail_goes_on_when_others_have_made_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_service, "WAITING_MAX", 1)

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1)
        await cluster.wait_for_leader(1)
        client = await cluster.client()
        lsn = await client.append(b"first")
        reads = [asyncio.create_task(client.read(lsn + 1, wait_ms=each)) for each in (3_000, 3_000)]
        await asyncio.sleep(1)
        await client.append(b"second")
        for records, _ in await asyncio.gather(*reads):
            assert [bytes(record.payload) for record in records] == [b"second"]
        await client.close()

    run_log_cluster(scenario, first=(1,))
