"""Replicas that move among nodes that come and go, while clients write; with failures or without.

Without any, nothing that was called done is lost though one replica alone acks, and nobody waits
for longer than a freeze may be.
"""

import asyncio
from unittest.mock import patch

import msgspec

from raftwood.testing import Simulation, SimulationReport
from raftwood.zeppelin.model import PartitionState, TableConfig
from raftwood.zeppelin.node import server
from tests.kits.models import run_scenario
from tests.kits.zeppelin.simulation.caller import Caller
from tests.kits.zeppelin.simulation.clients import Client
from tests.kits.zeppelin.simulation.faults import inject
from tests.kits.zeppelin.simulation.node import NodeMachine
from tests.kits.zeppelin.simulation.operator import Operator
from tests.kits.zeppelin.simulation.orders import FREEZE_S_MAX, Orders
from tests.kits.zeppelin.simulation.world import TABLE, World, watched

ORDERS = 12
FAULTS = 6
CLIENTS = 2
CALLERS = 1
END_S = 40.0
WAIT_S_MAX = FREEZE_S_MAX + 1.0
"""Of one call where nobody fails: it may have to be sent again, to whoever is master then."""


class Moved(msgspec.Struct, frozen=True):
    """What a run came to."""

    done: int
    moved: int
    cancelled: int
    failovers: int
    handovers: int
    copies: int
    longest_freeze_s: float
    slowest_s: float
    faults_s: float
    """Without any, 0."""


class MovingWorld(World):
    """A world with an operator, and programs that use Raftwood's own client."""

    def __init__(
        self, simulation: Simulation, config: TableConfig | None, *, is_calm: bool
    ) -> None:
        super().__init__(simulation, config)
        self.orders = Orders(simulation, self.meta)
        self._is_calm = self.oracle.is_calm = is_calm
        self._retired: dict[str, NodeMachine] = {}
        self.callers = [Caller(self, number, TABLE) for number in range(CALLERS)]

    def join(self, name: str) -> None:
        node = self._retired.pop(name, None)
        if node is None:
            node = self.add(name)
        self.nodes[name] = node
        node.is_retired = False
        node.start()

    async def retire(self, name: str) -> None:
        """It stops for good, as far as others know."""
        node = self._retired[name] = self.nodes.pop(name)
        node.is_retired = True
        node.machine.resume()
        node.stop()
        await self.simulation.wait_until(lambda: not node.machine.running)

    async def run_moving(self) -> Moved:
        async with self.running():
            clients = [
                asyncio.create_task(Client(self, number, TABLE).run()) for number in range(CLIENTS)
            ]
            for caller in self.callers:
                caller.start()
            _, faults_s = await asyncio.gather(Operator(self).run(ORDERS), self._faults())
            self.heal()
            await self._until(self._is_settled, timeout_s=END_S)
            self.is_writing = False
            await asyncio.gather(*clients)
            await self._until(lambda: all(each.is_done for each in self.callers), timeout_s=END_S)
            await self.become_equal()
            self.orders.check()
            self._check_callers()
        return Moved(
            done=self.writes_done(),
            moved=self.orders.ended["done"],
            cancelled=self.orders.ended["cancelled"],
            failovers=self.meta.failovers,
            handovers=self.meta.handovers,
            copies=self.oracle.copies,
            longest_freeze_s=self.orders.longest_freeze_s,
            slowest_s=max(each.slowest_s for each in self.callers),
            faults_s=faults_s,
        )

    def writes_done(self) -> int:
        return super().writes_done() + sum(sum(each.counts.values()) for each in self.callers)

    async def _faults(self) -> float:
        """Returns how long they lasted."""
        began = self.simulation.now
        for _ in range(0 if self._is_calm else FAULTS):
            self.orders.failure()
            await inject(self)
        return self.simulation.now - began

    def _is_settled(self) -> bool:
        self.orders.check()
        known = [self.meta.partition(partition) for partition in self.meta.partitions()]
        return all(
            each is not None and each.migration is None and each.state is PartitionState.ACTIVE
            for each in known
        )

    def _check_callers(self) -> None:
        for caller in self.callers:
            caller.check(may_lose=self.config.min_replicas == 1 and not self._is_calm)
            if not self.orders.failures:
                caller.check_speed(WAIT_S_MAX)


def run_moving(
    seed: int, *, config: TableConfig | None = None, is_calm: bool = False, twice: bool = False
) -> SimulationReport[Moved]:
    """One seed; raises `Violation` where an invariant does not hold."""

    async def scenario(simulation: Simulation) -> Moved:
        world = MovingWorld(simulation, config, is_calm=is_calm)
        with patch.object(server, "NodeStore", watched(world.oracle)):
            return await world.run_moving()

    return run_scenario("migrations", seed, scenario, twice=twice)
