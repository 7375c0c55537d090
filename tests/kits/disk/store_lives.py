"""A store on a disk with latency: power cuts, kills, full disks and failing syncs, life after life.

Unlike the crash images, flushes are really in flight here, reads overtake writes, and a segment may
be in preparation for a while.
"""

import asyncio
import random

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, Overloaded, StoreDamaged, StoreError
from raftwood.disk.segment_log import LogSettings
from raftwood.disk.store import Store
from raftwood.testing import DiskProfile, Simulation, simulate
from tests.kits.base.log_model import Group, LogModel, contents

SETTINGS = LogSettings(
    segment_bytes=16 << 10,
    cache_bytes_max=4 << 10,
    flush_bytes_max=4 << 10,
    pending_bytes_max=64 << 10,
    full_retry_ms=20,
)
LIVES = 12
FAILING = DiskProfile(write_error_probability=0.002, sync_error_probability=0.002)


class Life:
    """What may be found at the next start: what was acked last, or anything written after it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.possible: list[dict[int, Group]] = [{}]
        self.writes = 0
        self.acks = 0

    async def run(self, environment: Environment) -> None:
        try:
            store = await Store.open(
                environment, "/data/store", cluster="c", store=1, settings=SETTINGS
            )
        except (DiskFull, StoreError) as error:
            assert not isinstance(error, StoreDamaged)
            return
        found = await contents(store.log)
        assert found in self.possible, "never there, or older than what was acked"
        self.possible = [self.possible[self.possible.index(found)]]
        model = LogModel()
        model.groups = self.possible[0]
        model = model.copy()
        while True:
            model = self._write(store, model)
            draw = self.rng.random()
            if draw < 0.1:
                assert await contents(store.log) == model.groups
            elif draw < 0.5:
                await asyncio.sleep(self.rng.choice((0.0, 0.0005, 0.003, 0.03)))

    def _write(self, store: Store, model: LogModel) -> LogModel:
        records = model.random_write(self.rng, groups=4, bytes_max=1800)
        future = model.copy()
        future.apply(records)
        state = future.copy().groups

        def acked() -> None:
            self.acks += 1
            while self.possible[0] is not state:
                del self.possible[0]

        self.possible.append(state)
        try:
            store.log.write(records, acked)
        except (DiskFull, Overloaded):
            self.possible.pop()
            return model
        self.writes += 1
        return future


async def scenario(simulation: Simulation, seed: int, profile: DiskProfile | None) -> Life:
    rng = random.Random(seed)
    machine = simulation.add_node("a", disk=profile)
    life = Life(rng)
    for _ in range(LIVES):
        machine.start(life.run)
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.2)
            machine.disk.capacity_bytes = machine.disk.file_system.used_bytes()
        await asyncio.sleep(rng.choice((0.003, 0.05, 0.4)) * rng.random())
        if machine.running:
            end = machine.power_off if rng.random() < 0.7 else machine.kill
            end()
        machine.disk.capacity_bytes = None
    return life


def run_lives(seed: int, profile: DiskProfile | None = None) -> Life:
    """All lives of one store, from the first to the last."""
    return simulate(seed, lambda simulation: scenario(simulation, seed, profile)).result
