"""Real memory and real files of stores, while a log is appended and truncated.

What can be read after truncations and crashes is shown by simulations.
"""

import asyncio
import time
from pathlib import Path

from raftwood.logservice.client.log_client import AsyncLogClient
from tests.kits.logservice.processes import WAIT_S_MAX, LogNode, log_stores
from tests.kits.running import run


async def shrinks_below(node: LogNode, limit_bytes: int) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while (size := node.disk_bytes()) >= limit_bytes:
        assert time.monotonic() < deadline, f"store {node.store} keeps {size} bytes"
        await asyncio.sleep(0.1)


def test_memory_and_disk_stay_bounded_while_a_log_is_appended_and_truncated(
    tmp_path: Path,
) -> None:
    """Many times what stores keep in memory and on disk goes through them."""
    settings = {"raft.entry_cache_bytes_max": 1 << 20, "logservice.snapshot_entries": 50}

    async def body() -> None:
        async with log_stores(tmp_path, settings=settings) as stores:
            await stores.start()
            client = await stores.client()
            await append_and_truncate(client, 8 << 20)
            before = {store: node.rss_bytes() for store, node in stores.nodes.items()}
            await append_and_truncate(client, 24 << 20)
            for store, node in stores.nodes.items():
                grown = node.rss_bytes() - before[store]
                print(f"store {store}: {before[store] >> 20} MiB, grown by {grown >> 10} KiB")
                assert grown < 12 << 20
                await shrinks_below(node, 12 << 20)
            assert not (await stores.keeper.describe()).alarms

    run(body())


async def append_and_truncate(client: AsyncLogClient, count_bytes: int) -> None:
    record = bytes(32 << 10)
    for _ in range(count_bytes // (len(record) * 40)):
        lsns = await client.append_many([record] * 40)
        await client.truncate(lsns[-1])
