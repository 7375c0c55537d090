"""A logstore kept in DLOG, on gateways and bookies as processes: owners are killed and stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.owner_records import look_up
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import LogKind
from raftwood.server.cluster_client import connected_metastore
from tests.kits.dlog.bookie_processes import BookieProcess
from tests.kits.loghub.load import HubLoad
from tests.kits.loghub.processes import LOGSTORE, PROJECT, HubProcesses
from tests.kits.logservice.processes import WAIT_S_MAX
from tests.kits.ports import free_ports
from tests.kits.processes import StoreProcess
from tests.kits.running import run

LEASE_MS = 3_000


class DlogHub(HubProcesses):
    """Bookies beside the gateways, and one store for the metastore."""

    def __init__(self, environment: Environment, folder: Path, **options: Any) -> None:
        settings = {
            "dlog.store": "bookies",
            "dlog.lease_ms": LEASE_MS,
            "dlog.rotation_entries": 40,
            "hakeeper.log_replicas": 1,
            "hakeeper.hakeeper_replicas": 1,
            "loghub.log_replicas": 1,
        }
        super().__init__(environment, folder, first=1, settings=settings, **options)
        self.bookies = [
            BookieProcess(number, folder, port, self._file)
            for number, port in enumerate(free_ports(3), 1)
        ]

    async def __aexit__(self, *arguments: object) -> None:
        await super().__aexit__(*arguments)
        for each in self.bookies:
            each.discard()

    async def start_all(self) -> None:
        await self.start()
        for each in self.bookies:
            each.begin()
        for each in self.bookies:
            await each.ready()
        await self.start_gateways()

    async def owner(self, client: AsyncLogHubClient, *, but: StoreProcess | None) -> StoreProcess:
        """Of the first shard that can be written, once that is another one."""
        shards = await client.shards(PROJECT, LOGSTORE)
        log = next(each.log for each in shards if each.status == "readwrite")
        async with connected_metastore(self._environment, self.app_settings(), None) as store:
            async with asyncio.timeout(WAIT_S_MAX):
                while True:
                    owner = (await look_up(store, log)).owner
                    if owner is not None and (but is None or owner.address != but.address):
                        break
                    await asyncio.sleep(0.02)
        return next(each for each in self.gateways.values() if each.address == owner.address)


@asynccontextmanager
async def dlog_hub(folder: Path, **options: Any) -> AsyncIterator[DlogHub]:
    with real_environment() as environment:
        async with DlogHub(environment, folder, **options) as hub:
            yield hub


def test_what_was_acked_is_there_once_and_in_order_when_owners_are_killed_and_stopped(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with dlog_hub(tmp_path) as hub:
            await hub.start_all()
            await hub.prepare(shards=1, log=LogKind.DLOG)
            client = await hub.hub_client()
            load = HubLoad(client)
            async with load:
                await load.more(100)
                killed = await hub.owner(client, but=None)
                await killed.kill()
                await load.more(100)
                await hub.owner(client, but=killed)
                hub.launch_gateways(killed.store)
                await killed.ready()
                await client.split_shard(PROJECT, LOGSTORE, shard=0)
                await load.more(100)
                # Stopped for longer than its lease: another one has the log when it wakes up.
                stopped = await hub.owner(client, but=None)
                stopped.pause()
                try:
                    await hub.owner(client, but=stopped)
                    await load.more(100)
                finally:
                    stopped.resume()
                await load.more(100)
                await client.merge_shard(PROJECT, LOGSTORE, shard=1)
                await load.more(50)
            await load.check()
            assert (await client.logstore(PROJECT, LOGSTORE)).log is LogKind.DLOG

    run(body())
