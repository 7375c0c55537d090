"""Faults of all kinds at random moments, several at once, while clients write."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

from tests.kits.raft.cluster import STORES
from tests.kits.raft.scene import Scene, scene
from tests.kits.running import run

_QUIET_S_MAX = 0.4


class Storm:
    """A store suffers one fault at a time, but several stores may suffer."""

    def __init__(self, at: Scene, seed: int) -> None:
        self._at = at
        self._random = random.Random(seed)
        self._suffering: dict[int, None] = {}
        self.counts: Counter[str] = Counter()

    async def blow(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < end:
                await self._at.load.for_a_while(self._random.uniform(0, _QUIET_S_MAX))
                healthy = [store for store in STORES if store not in self._suffering]
                if healthy:
                    store = self._random.choice(healthy)
                    self._suffering[store] = None
                    tasks.create_task(self._suffer(store))
        self._at.proxies.heal()

    async def _suffer(self, store: int) -> None:
        fault = self._random.choice((self._kill, self._pause, self._stall, self._reset))
        self.counts[fault.__name__.strip("_")] += 1
        await fault(store)
        del self._suffering[store]

    async def _kill(self, store: int) -> None:
        await self._at.cluster.nodes[store].kill()
        await asyncio.sleep(self._random.uniform(0, 0.5))
        await self._at.cluster.restart(store)

    async def _pause(self, store: int) -> None:
        node = self._at.cluster.nodes[store]
        node.pause()
        await asyncio.sleep(self._random.uniform(0.05, 1.5))
        node.resume()

    async def _stall(self, store: int) -> None:
        others = [other for other in STORES if other != store]
        ways = [(store, other) for other in others] + [(other, store) for other in others]
        stalled = self._random.sample(ways, self._random.randint(1, len(ways)))
        for source, target in stalled:
            self._at.proxies.stall(source, target)
        await asyncio.sleep(self._random.uniform(0.1, 2.0))
        for source, target in stalled:
            self._at.proxies.go_on(source, target)

    async def _reset(self, store: int) -> None:
        self._at.proxies.reset(store)


def run_storm(folder: Path, seed: int, seconds: float) -> Counter[str]:
    """Raises what it found; else how often what happened."""

    async def body() -> Counter[str]:
        async with scene(folder, with_proxies=True, is_impatient=True) as at:
            storm = Storm(at, seed)
            await storm.blow(seconds)
            await at.answered_again(f"after {storm.counts}", time.monotonic())
            return storm.counts

    return run(body())
