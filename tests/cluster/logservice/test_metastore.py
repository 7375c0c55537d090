"""The metastore of log stores as processes: the store that leads it is killed, and it goes on."""

from pathlib import Path

from raftwood.base.seams import SetKey
from raftwood.disk.real_environment import real_environment
from raftwood.server.cluster import METASTORE_SHARD
from raftwood.server.cluster_client import connected_metastore
from tests.kits.logservice.processes import log_stores, shard_of
from tests.kits.running import run

LEASE_MS = 8_000
"""Longer than two answers take on a busy machine."""


def test_the_metastore_goes_on_when_the_store_that_leads_it_is_killed(tmp_path: Path) -> None:
    async def body() -> None:
        async with log_stores(tmp_path) as stores:
            await stores.start()
            with real_environment() as environment:
                async with connected_metastore(environment, stores.app_settings(), None) as meta:
                    lease = await meta.grant_lease(ttl_ms=LEASE_MS)
                    await meta.compare_and_set("passing", b"", version=0, lease=lease)
                    await meta.transact((), (SetKey("key", b"before"),))
                    leader = shard_of(await stores.runs(), METASTORE_SHARD).leader
                    await stores.kill(leader)
                    await meta.transact((), (SetKey("key", b"after"),))
                    async for changes in meta.watch("passing", after_version=1):
                        if changes[-1].value is None:
                            break
                    await stores.start(leader)
                    view = await stores.runs()
                    assert leader in shard_of(view, METASTORE_SHARD).voters
                    entries = (await meta.range()).entries
                    assert {each.key: each.value for each in entries} == {"key": b"after"}

    run(body())
