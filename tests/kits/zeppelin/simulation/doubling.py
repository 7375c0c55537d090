"""A table that doubles while nodes fail and clients write."""

import asyncio
from unittest.mock import patch

from raftwood.testing import Simulation
from raftwood.zeppelin.model import PartitionId, TableConfig
from raftwood.zeppelin.node import server
from raftwood.zeppelin.node.stored_partition import StoredPartition
from tests.kits.models import run_scenario
from tests.kits.zeppelin.simulation import world as worlds
from tests.kits.zeppelin.simulation.clients import Client
from tests.kits.zeppelin.simulation.world import TABLE, Outcome, World, _once_possible, watched

DOUBLINGS = 2
AWAY_S = 1.5


class DoublingWorld(World):
    """Its table is doubled twice, from 2 partitions to 8."""

    def __init__(self, simulation: Simulation, config: TableConfig | None) -> None:
        super().__init__(simulation, config)
        self.doublings = 0

    async def _begin(self) -> None:
        await super()._begin()
        self._doubling = asyncio.create_task(self._double())

    async def _double(self) -> None:
        for _ in range(DOUBLINGS):
            await asyncio.sleep(self.random.uniform(0.2, 1.5))
            await _once_possible(lambda: self.meta.client.double_partitions(TABLE))
            self.doublings += 1

    def _is_equal(self) -> bool:
        is_doubled = (
            self.doublings == DOUBLINGS and not self.meta.topology.tables[TABLE].is_doubling
        )
        return (
            is_doubled
            and super()._is_equal()
            and all(map(self._is_trimmed, self.meta.partitions()))
        )

    def _is_trimmed(self, partition: PartitionId) -> bool:
        """Whether each replica of a partition that was split has what is its own, and no more."""
        for node in self.nodes.values():
            replica = node.replica(partition)
            assert replica is not None
            store = replica.store
            assert isinstance(store, StoredPartition)
            if store.share is not None and not store.engine.state.is_trimmed:
                return False
        return True


def run_doubling(seed: int, *, config: TableConfig | None = None) -> Outcome:
    """One seed; raises `Violation` where an invariant does not hold."""

    async def scenario(simulation: Simulation) -> Outcome:
        world = DoublingWorld(simulation, config)
        with patch.object(server, "NodeStore", watched(world.oracle)):
            return await world.run()

    return run_scenario("doubling", seed, scenario).result


class BehindWorld(World):
    """A slave is away while its table doubles, and hears of that later than from its master."""

    async def run_behind(self) -> None:
        async with self.running(has_noise=False):
            clients = [
                asyncio.create_task(Client(self, number, TABLE).run()) for number in range(8)
            ]
            await asyncio.sleep(2)
            partition = PartitionId(self.meta.topology.tables[TABLE].incarnation, 0)
            slave = next(name for name in self.nodes if name != self.meta.machine_of(partition))
            others = [name for name in self.nodes if name != slave]
            self.meta.cut_off[slave] = None
            self.simulation.network.partition([slave], others)
            await self.meta.client.double_partitions(TABLE)
            await self.simulation.wait_until(
                lambda: not self.meta.topology.tables[TABLE].is_doubling, timeout_s=20
            )
            # Its records are purged, what was split off is trimmed, and has its own records still.
            await asyncio.sleep(AWAY_S)
            self.simulation.network.heal()
            await asyncio.sleep(0.5)
            self.meta.cut_off.clear()
            await asyncio.sleep(1)
            self.is_writing = False
            await asyncio.gather(*clients)
            await self.become_equal()


def run_behind(seed: int) -> None:
    """See `BehindWorld`."""

    async def scenario(simulation: Simulation) -> None:
        with patch.object(worlds, "SETTINGS", worlds.SETTINGS[:1]):
            world = BehindWorld(simulation, worlds.SAFE)
        with patch.object(server, "NodeStore", watched(world.oracle)):
            await world.run_behind()

    run_scenario("doubling", seed, scenario)
