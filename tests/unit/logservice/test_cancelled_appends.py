"""Whoever gave up waiting for appends, or heard of the first that failed, hears no more of them."""

import asyncio

import pytest

from raftwood.base.errors import ConnectionLost
from raftwood.base.files import Buffer
from raftwood.logservice.client.log_client import AsyncLogClient, RecordBuffer
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


class WatchedClient(AsyncLogClient):
    """Keeps the futures of its appends."""

    futures: "list[asyncio.Future[int]]"

    def append_soon(self, record: RecordBuffer | Buffer) -> "asyncio.Future[int]":
        self.futures.append(super().append_soon(record))
        return self.futures[-1]


async def appending_client(cluster: LogCluster) -> WatchedClient:
    cluster.start(1, 2, 3)
    await cluster.wait_for_leader(1)
    client = await cluster.client()
    client.__class__ = WatchedClient
    assert isinstance(client, WatchedClient)
    client.futures = []
    return client


def test_appends_whose_caller_was_cancelled_are_waited_for_by_nobody() -> None:
    async def scenario(cluster: LogCluster) -> None:
        async with await appending_client(cluster) as client:
            appending = asyncio.create_task(client.append_many([b"a", b"b"]))
            await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait([appending])
            assert [future.cancelled() for future in client.futures] == [True, True]

    run_log_cluster(scenario)


def test_where_several_appends_fail_each_error_was_taken_notice_of() -> None:
    async def scenario(cluster: LogCluster) -> None:
        client = await appending_client(cluster)
        appending = asyncio.create_task(client.append_many([b"a", b"b"]))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionLost):
            await appending
        # Else the event loop prints it when the future goes.
        assert not any(future._log_traceback for future in client.futures)

    run_log_cluster(scenario)
