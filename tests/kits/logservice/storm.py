"""A storm of faults on real log stores: kills, pauses, cut and broken connections, under load."""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from raftwood.base.errors import RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient
from tests.kits.logservice.load import Load
from tests.kits.logservice.processes import LogProcesses, log_stores
from tests.kits.raft.proxy import Proxies
from tests.kits.running import run

KINDS = 7
_QUIET_S_MAX = 0.3


def run_storm(folder: Path, seed: int, faults: int) -> Counter[str]:
    """So many faults, chosen by a seed; raises where an answer was wrong, else how many of each."""

    async def body() -> Counter[str]:
        async with log_stores(folder) as stores, Proxies(dict(stores.members)) as proxies:
            stores.members = dict(proxies.addresses)
            await stores.start()
            await stores.runs()
            storm = Faults(stores, proxies, seed)
            await _suffer(stores, storm, faults)
            return storm.counts

    return run(body())


class Faults:
    """One after the other, at random moments; each kind comes about as often as the others."""

    def __init__(self, stores: LogProcesses, proxies: Proxies, seed: int) -> None:
        self._stores = stores
        self._proxies = proxies
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def happen(self, count: int) -> None:
        kinds = [
            self._kill,
            self._kill_two,
            self._kill_all,
            self._pause,
            self._isolate,
            self._one_way,
            self._reset,
        ]
        assert len(kinds) == KINDS
        for number in range(count):
            await asyncio.sleep(self._random.uniform(0, _QUIET_S_MAX))
            kind = kinds[number % len(kinds)]
            self.counts[kind.__name__.strip("_")] += 1
            await kind(await self._victim())

    async def _victim(self) -> int:
        """The leader as often as somebody else."""
        if self._random.random() < 0.5:
            return self._random.choice(self._stores.first)
        return await self._stores.leader()

    async def _kill(self, store: int) -> None:
        await self._stores.kill(store)
        await asyncio.sleep(self._random.uniform(0, 1.0))
        await self._stores.start(store)

    async def _kill_two(self, store: int) -> None:
        other = self._random.choice(self._stores.others(store))
        await self._stores.kill(store, other)
        await self._stores.start(other, store)

    async def _kill_all(self, _: int) -> None:
        await self._stores.kill(*self._stores.first)
        await self._stores.start()

    async def _pause(self, store: int) -> None:
        self._stores.nodes[store].pause()
        await asyncio.sleep(self._random.uniform(0.2, 1.5))
        self._stores.nodes[store].resume()

    async def _isolate(self, store: int) -> None:
        self._proxies.isolate(store)
        await asyncio.sleep(self._random.uniform(0.5, 1.5))
        self._proxies.heal()

    async def _one_way(self, store: int) -> None:
        """It hears the others, and they do not hear it."""
        for other in self._stores.others(store):
            self._proxies.stall(store, other)
        await asyncio.sleep(self._random.uniform(0.5, 1.5))
        self._proxies.heal()

    async def _reset(self, store: int) -> None:
        self._proxies.reset(store)


async def _connected_soon(stores: LogProcesses) -> AsyncLogClient:
    """A client that gives up early, also when it connects."""
    while True:
        with suppress(RaftwoodError):
            return await stores.client(timeout_ms=300)


async def _suffer(stores: LogProcesses, storm: Faults, count: int) -> None:
    clients = [await stores.client() for _ in range(3)]
    impatient = await _connected_soon(stores)
    async with Load([*clients, impatient], clients[1:]) as load:
        await load.goes_on()
        began = time.monotonic()
        await storm.happen(count)
        took = await load.goes_on()
        silence_s = load.longest_silence_s(began)
        print(f"{dict(storm.counts)}: goes on after {took:.1f} s, silent for {silence_s:.1f} s")
    print(await load.check(clients[0]))
