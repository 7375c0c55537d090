"""Whole nodes in virtual time, with the meta server's real rules: for tests of single scenes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from raftwood.testing import Simulation, simulate
from raftwood.zeppelin.model import PartitionId, PartitionState, TableConfig, User
from raftwood.zeppelin.settings import StoreSettings
from tests.kits.zeppelin.simulation.clients import HASH, PASSWORD, Connection
from tests.kits.zeppelin.simulation.meta import MetaGroup
from tests.kits.zeppelin.simulation.node import DATA_PORT, NodeMachine

NAMES = ("a", "b")
TABLE = "orders"


class Cluster:
    """Two nodes or more, and a table of one partition on some of them."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        config: TableConfig,
        names: Sequence[str] = NAMES,
        settings: StoreSettings | None = None,
        node_type: type[NodeMachine] = NodeMachine,
    ) -> None:
        self.simulation = simulation
        self._config = config
        self.meta = MetaGroup(simulation)
        self.nodes = {
            name: node_type(simulation.add_node(name), self.meta, settings or StoreSettings())
            for name in names
        }
        self.connections: list[Connection] = []

    async def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        await self.simulation.wait_until(lambda: len(self.meta.topology.nodes) == len(self.nodes))
        await self.meta.client.create_table(TABLE, self._config)
        epoch = await self.meta.client.add_user(User(name=TABLE, table=TABLE, password_hash=HASH))
        await self.meta.client.wait_applied(epoch)
        await self.simulation.wait_until(lambda: self.master_serves)

    @property
    def partition(self) -> PartitionId:
        return self.meta.partitions()[0]

    @property
    def state(self) -> PartitionState:
        return self.meta.topology.tables[TABLE].partitions[0].state

    @property
    def master_serves(self) -> bool:
        replicas = [node.replica(self.partition) for node in self.nodes.values()]
        return any(replica is not None and replica.may_write for replica in replicas)

    @property
    def master(self) -> NodeMachine:
        return self.nodes[self.meta.machine_of(self.partition) or ""]

    async def connect(self, name: str) -> tuple[Connection, Any]:
        """With the answer to its login."""
        connection = Connection(*await asyncio.open_connection(name, DATA_PORT))
        self.connections.append(connection)
        (answer,) = await connection.ask(("AUTH", TABLE, PASSWORD))
        return connection, answer

    async def ask(self, name: str, *command: str) -> Any:
        connection, login = await self.connect(name)
        assert login == "OK"
        (answer,) = await connection.ask(command)
        return answer


def scene(
    body: Callable[[Cluster], Awaitable[None]],
    *,
    replicas: int = 2,
    min_replicas: int = 1,
    names: Sequence[str] = NAMES,
) -> None:
    async def scenario(simulation: Simulation) -> None:
        config = TableConfig(partitions=1, replicas=replicas, min_replicas=min_replicas)
        cluster = Cluster(simulation, config=config, names=names)
        planning = asyncio.create_task(cluster.meta.run())
        await cluster.start()
        await body(cluster)
        for connection in cluster.connections:
            connection.close()
        for node in cluster.nodes.values():
            node.break_down(loses_power=False)
        planning.cancel()
        await asyncio.gather(planning, return_exceptions=True)

    simulate(1, scenario)
