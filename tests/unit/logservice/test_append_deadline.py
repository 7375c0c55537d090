"""An append ends when its time is over, whatever the stores do."""

import asyncio

import pytest

from raftwood.base.errors import DeadlineExceeded
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


def test_an_append_to_stores_that_hang_ends_in_its_time() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        client = await cluster.client(timeout_ms=2_500)
        await client.append(b"before")
        for machine in cluster.machines.values():
            machine.pause()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await client.append(b"meanwhile")
        assert loop.time() - began < 2.8
        for machine in cluster.machines.values():
            machine.resume()
        await cluster.wait_for_leader(1)
        await client.append(b"after")
        await client.close()

    run_log_cluster(scenario)
