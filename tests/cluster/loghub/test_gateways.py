"""Gateways as processes: killed and stopped with their stores, and started too early."""

import asyncio
import signal
from pathlib import Path

from tests.kits.loghub.load import HubLoad
from tests.kits.loghub.processes import LOGSTORE, PROJECT, hub_processes
from tests.kits.loghub.storm import FAULTS, run_hub_storm
from tests.kits.running import run

ALONE = {
    "hakeeper.log_replicas": 1,
    "hakeeper.hakeeper_replicas": 1,
    "loghub.log_replicas": 1,
}
"""One store is enough for what a gateway waits for."""


def test_what_was_acked_is_there_once_and_in_order_after_kills_splits_and_merges(
    tmp_path: Path,
) -> None:
    counts = run_hub_storm(tmp_path, 1, len(FAULTS))
    assert all(counts[kind] == 1 for kind in FAULTS)
    assert counts["split"] >= 1
    assert counts["acked"] >= 500


def test_gateways_may_be_started_before_the_stores_and_stopped_while_they_wait(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with hub_processes(tmp_path, first=1, settings=ALONE) as hub:
            hub.launch_gateways(1, 2)
            early, late = hub.gateways[1], hub.gateways[2]
            for each in (early, late):
                while b"waiting for the log stores" not in each.log.read_bytes():
                    assert each.is_running, each.tail()
                    await asyncio.sleep(0.05)
            late.signal(signal.SIGTERM)
            assert await late.ended() == 0
            assert not early.is_ready
            await hub.start()
            await early.ready()
            await hub.prepare(shards=1)
            load = HubLoad(await hub.hub_client(), producers=1)
            async with load:
                await load.more(20)
            await load.check()
            client = await hub.hub_client()
            assert len(await client.shards(PROJECT, LOGSTORE)) == 1

    run(body())
