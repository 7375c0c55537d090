"""What an operator orders by seed: replicas move, nodes join, are emptied and leave."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.meta.changes import AtEpoch, CancelMigration, Change, Migrate, SetDraining
from raftwood.zeppelin.model import NodeId, Partition, Table

if TYPE_CHECKING:
    from tests.kits.zeppelin.simulation.moving import MovingWorld

JOINING = ("n4", "n5")
NODES_MIN = 4
"""Of which one may leave."""
_LEAVING_S_MAX = 30.0
_STEP_S = 0.1


class Operator:
    """Orders one thing after the other; what is refused is refused."""

    def __init__(self, world: "MovingWorld") -> None:
        self._world = world
        self._random = world.random
        self._leaving: asyncio.Task[None] | None = None

    async def run(self, orders: int) -> None:
        await self._join()
        for _ in range(orders):
            await asyncio.sleep(self._random.uniform(0.05, 0.8))
            match self._random.randrange(8):
                case 0:
                    await self._cancel()
                case 1:
                    await self._join()
                case 2 if self._leaving is None and len(self._world.nodes) >= NODES_MIN:
                    self._leaving = asyncio.create_task(self._leave())
                case 3:
                    await self._prefer()
                case _:
                    await self._move(self._random.randint(1, 3))
        if self._leaving is not None:
            await self._leaving

    async def _join(self) -> None:
        """A new node, or one that has left, with all that its disk has kept."""
        world = self._world
        for name in JOINING:
            if name not in world.nodes:
                world.join(name)
                return

    async def _move(self, count: int) -> None:
        topology = self._world.meta.topology
        partitions = [
            (table, number, known)
            for table in topology.tables.values()
            for number, known in enumerate(table.partitions)
        ]
        chosen = self._random.sample(partitions, min(count, len(partitions)))
        changes: list[Change] = [
            Migrate(table.name, number, self._random.choice(known.replicas), target)
            for table, number, known in chosen
            if (target := self._target(known)) is not None
        ]
        if changes and self._random.random() < 0.3:
            changes.insert(0, AtEpoch(topology.epoch))
        await self._order(*changes)

    def _target(self, known: Partition, *, besides: NodeId | None = None) -> NodeId | None:
        others = [
            node.id
            for node in self._world.meta.topology.nodes.values()
            if node.id not in known.replicas
            and node.id != besides
            and node.is_up
            and not node.is_draining
        ]
        return self._random.choice(others) if others else None

    async def _cancel(self) -> None:
        for partition in self._world.orders.pending:
            table = self._world.meta.table(partition.incarnation)
            if table is not None and self._world.meta.partition(partition).migration:  # type: ignore[union-attr]
                await self._order(CancelMigration(table.name, partition.number))
                return

    async def _prefer(self) -> None:
        world = self._world
        partition = self._random.choice(world.meta.partitions())
        await world.prefer(partition, self._random.choice(world.meta.machines_of(partition)))

    async def _leave(self) -> None:
        """A node is emptied, stops, and is forgotten."""
        world = self._world
        name = self._random.choice([*world.nodes])
        node = world.meta.node_on(name)
        await self._order(SetDraining(node, True))
        end = world.simulation.now + _LEAVING_S_MAX
        while self._what_it_has(node) and world.simulation.now < end:
            for table, number, known in self._what_it_has(node):
                target = self._target(known, besides=node)
                if known.migration is None and target is not None and node in known.replicas:
                    await self._order(Migrate(table.name, number, node, target))
            await asyncio.sleep(_STEP_S)
        if self._what_it_has(node):
            await self._order(SetDraining(node, False))
            return
        await world.retire(name)
        while node in world.meta.topology.nodes:
            with suppress(RaftwoodError):  # it is not known to be down yet
                await world.meta.client.remove_node(node)
            await asyncio.sleep(_STEP_S)

    def _what_it_has(self, node: NodeId) -> list[tuple[Table, int, Partition]]:
        """And what it is to have."""
        return [
            (table, number, known)
            for table in self._world.meta.topology.tables.values()
            for number, known in enumerate(table.partitions)
            if node in known.replicas or any(each.target == node for each in known.migrations)
        ]

    async def _order(self, *changes: Change) -> None:
        if changes:
            with suppress(RaftwoodError):
                await self._world.meta.client.apply(*changes)
