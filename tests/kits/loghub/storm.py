"""Gateways and stores are killed and stopped, one after the other, while shards come and go."""

import asyncio
import random
from collections import Counter
from pathlib import Path

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import ShardStatus
from tests.kits.loghub.load import HubLoad
from tests.kits.loghub.processes import LOGSTORE, PROJECT, HubProcesses, hub_processes
from tests.kits.processes import RealProcess

BETWEEN = 100
"""Records that are stored between two faults, so that none meets idle clients."""
_STOPPED_S = 1.5
_RESHARD_EVERY_S = 0.3
_WRITABLE_MAX = 4
FAULTS = ("kill gateway", "stop gateway", "kill store", "stop store")


class Storm:
    """One run; `counts` say what happened."""

    def __init__(self, hub: HubProcesses, seed: int) -> None:
        self._hub = hub
        self._random = random.Random(f"hub storm {seed}")
        self.counts: Counter[str] = Counter()

    async def rage(self, load: HubLoad, faults: int) -> None:
        resharding = asyncio.get_running_loop().create_task(
            self._reshard(await self._hub.hub_client())
        )
        kinds = [FAULTS[number % len(FAULTS)] for number in range(faults)]
        self._random.shuffle(kinds)
        try:
            for kind in kinds:
                await load.more(BETWEEN)
                await self._strike(kind)
                self.counts[kind] += 1
                assert not resharding.done(), resharding
            await load.more(BETWEEN)
            while not self.counts["split"]:
                await load.more(BETWEEN)
        finally:
            resharding.cancel()
            await asyncio.gather(resharding, return_exceptions=True)

    async def _strike(self, kind: str) -> None:
        hub = self._hub
        if kind == "kill gateway":
            number = self._random.choice(list(hub.gateways))
            await hub.gateways[number].kill()
            await hub.start_gateways(number)
        elif kind == "stop gateway":
            await self._stop(self._random.choice(list(hub.gateways.values())))
        else:
            store = await self._busy_store()
            if kind == "kill store":
                await hub.kill(store)
                await hub.start(store)
            else:
                await self._stop(hub.nodes[store])

    async def _stop(self, process: RealProcess) -> None:
        process.pause()
        try:
            await asyncio.sleep(_STOPPED_S)
        finally:
            process.resume()

    async def _busy_store(self) -> int:
        """One that leads a shard, as HAKeeper sees it."""
        view = await self._hub.seen("a leader", lambda view: any(s.leader for s in view.shards))
        return self._random.choice([each.leader for each in view.shards if each.leader])

    async def _reshard(self, client: AsyncLogHubClient) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 2 * _RESHARD_EVERY_S))
            try:
                await self._change(client)
            except RaftwoodError:
                self.counts["not answered"] += 1  # somebody will finish it

    async def _change(self, client: AsyncLogHubClient) -> None:
        shards = await client.shards(PROJECT, LOGSTORE)
        writable = [each.id for each in shards if each.status is ShardStatus.READWRITE]
        if not writable:
            return
        shard = self._random.choice(writable)
        is_split = len(writable) < self._random.randint(1, _WRITABLE_MAX)
        if is_split or not self.counts["split"]:
            await client.split_shard(PROJECT, LOGSTORE, shard=shard)
            self.counts["split"] += 1
        else:
            await client.merge_shard(PROJECT, LOGSTORE, shard=shard)
            self.counts["merged"] += 1


async def storm(folder: Path, seed: int, faults: int) -> Counter[str]:
    async with hub_processes(folder) as hub:
        await hub.start()
        await hub.start_gateways()
        await hub.prepare(shards=2)
        raging = Storm(hub, seed)
        load = HubLoad(await hub.hub_client())
        async with load:
            await raging.rage(load, faults)
        await load.check()
        raging.counts["acked"] = load.acked
        return raging.counts


def run_hub_storm(folder: Path, seed: int, faults: int) -> Counter[str]:
    """Raises what it found; else how often what happened."""
    return asyncio.run(storm(folder, seed, faults))
