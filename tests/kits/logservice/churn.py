"""Members of shards change all the time, while stores are killed and clients append and read."""

import asyncio
import random
from collections import Counter
from pathlib import Path

from raftwood.logservice.hakeeper.commands import DrainStore
from tests.kits.logservice.load import Load
from tests.kits.logservice.processes import LogProcesses, log_stores
from tests.kits.running import run

_SETTINGS = {"hakeeper.log_shards": 2, "logservice.truncation_ms": 50}
_LATER = 4
_KEPT = 30
"""Records behind a truncation."""


def run_churn(folder: Path, seed: int, rounds: int) -> Counter[str]:
    """In each round one store is drained and one is killed; raises where an answer was wrong."""

    async def body() -> None:
        async with log_stores(folder, later=1, settings=_SETTINGS) as stores:
            await stores.start()
            await stores.start(_LATER, joins=True)
            await stores.runs()
            clients = [await stores.client() for _ in range(2)]
            async with Load(clients, clients) as load:
                chance = random.Random(seed)
                for _ in range(rounds):
                    await _round(stores, chance)
                    await load.goes_on()
                    if chance.random() < 0.5:
                        latest = await clients[0].get_latest_lsn()
                        await load.truncate(clients[0], latest - _KEPT)
                await stores.runs()
                await load.goes_on()
            assert not load.unknown
            print(await load.check(clients[0]))

    run(body())
    return Counter(drain=rounds, kill=rounds)


async def _round(stores: LogProcesses, chance: random.Random) -> None:
    numbers = list(stores.nodes)
    drained, killed = chance.choice(numbers), chance.choice(numbers)
    await stores.keeper.command(DrainStore(drained, is_draining=True))
    await asyncio.sleep(chance.uniform(0, 1.5))
    await stores.kill(killed)
    await asyncio.sleep(chance.uniform(0, 1.0))
    await stores.start(killed, joins=killed == _LATER)
    await stores.keeper.command(DrainStore(drained, is_draining=False))
