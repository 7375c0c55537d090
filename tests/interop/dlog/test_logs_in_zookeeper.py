"""Logs whose metadata is in a server of ZooKeeper."""

import re
from contextlib import AsyncExitStack

import pytest

from tests.kits.dlog.metastores import check
from tests.kits.running import run
from tests.kits.servers.zookeeper import ZooKeeperServer
from tests.kits.servers.zookeeper_clients import opened


@pytest.mark.needs("zookeeper")
def test_logs_are_the_same_for_two_processes(
    zookeeper: ZooKeeperServer, request: pytest.FixtureRequest
) -> None:
    address = f"{zookeeper.address}/{re.sub('[^a-zA-Z_]', '', request.node.name)}"

    async def main() -> None:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(opened(address, snapshot_entries=20))
            two = await stack.enter_async_context(opened(address))
            await check(one, two)

    run(main())
