"""A table that doubles while nodes fail and clients write."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from raftwood.simulation import Simulation, simulate
from raftwood.zeppelin.meta import splitting
from raftwood.zeppelin.meta.changes import CancelSplit, EndSplit
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import NodeId, PartitionId, TableConfig
from raftwood.zeppelin.node import node_server
from raftwood.zeppelin.node.engine_state import EngineState
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.replication.leading import Leading
from raftwood.zeppelin.replication.replica import Replica
from raftwood.zeppelin.replication.replicator import Replicator
from raftwood.zeppelin.replication.trysync import Answer, Offer
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
    """One seed; raises `Broken` where an invariant does not hold."""

    async def scenario(simulation: Simulation) -> Outcome:
        world = DoublingWorld(simulation, config)
        with patch.object(node_server, "NodeStore", watched(world.oracle)):
            return await world.run()

    return simulate(seed, scenario).result


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
        with patch.object(node_server, "NodeStore", watched(world.oracle)):
            await world.run_behind()

    simulate(seed, scenario)


# Planted bugs.


def _ends_at_once(view: View, place: Place) -> EndSplit | CancelSplit | None:
    """A split without a freeze: what the master told last is where it is thought to be."""
    before = place.partition
    assert before.master is not None
    offset = view.offset(before.master, place)
    if offset is None:
        return None
    return EndSplit(place.table.name, place.number, before.epoch, offset.epoch, offset.sequence)


_honest_may_write = Replica.may_write.fget  # type: ignore[attr-defined]


def _writes_on(replica: Replica) -> bool:
    known = replica._known
    is_splitting = known is not None and known.is_splitting
    return replica.is_leading if is_splitting else _honest_may_write(replica)


@contextmanager
def _without_freeze() -> Iterator[None]:
    with (
        patch.object(splitting, "next_step", _ends_at_once),
        patch.object(Replica, "may_write", property(_writes_on)),
    ):
        yield


_honest_try_sync = Leading.try_sync


def _replaces(
    leading: Leading, slave: NodeId, session: int, offer: Offer, *, may_replace: bool = True
) -> Answer:
    return _honest_try_sync(leading, slave, session, offer, may_replace=may_replace or True)


def _whatever_it_knows(
    replicator: Replicator, partition: PartitionId, slave: NodeId, _epoch: int
) -> Leading:
    leading = replicator._leading(partition, slave)
    assert leading is not None
    return leading


@contextmanager
def _trimmed_for_whole() -> Iterator[None]:
    """A slave that does not know of a split takes a copy without what was split off."""
    with (
        patch.object(Leading, "try_sync", _replaces),
        patch.object(Replicator, "_expected_leading", _whatever_it_knows),
        patch.object(EngineState, "has_all_of", lambda _state, _slots: True),
    ):
        yield


MUTANTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "a split without a freeze": _without_freeze,
    "a trimmed copy is taken for whole": _trimmed_for_whole,
}
