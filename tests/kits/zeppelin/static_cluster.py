"""Several listeners that share their partitions: as if replication took no time.

What clients see of moves and failovers can be told from what replication does: a partition that has
another master has lost nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.model import NodeId, Partition, TableConfig, Topology
from raftwood.zeppelin.node.checkpoints import PartitionCheckpoints
from raftwood.zeppelin.node.data_server import DataServer
from raftwood.zeppelin.node.view import PartitionCopy
from tests.kits.zeppelin.acks import StaticAcks
from tests.kits.zeppelin.memory_engines import MemoryEngines
from tests.kits.zeppelin.memory_store import MemoryPartitionStore
from tests.kits.zeppelin.static_view import TABLE, node, topology_of


class ClusterView:
    """One node's; it may not have heard of the last changes."""

    def __init__(self, cluster: "StaticCluster", name: str) -> None:
        self.node_id = NodeId(name)
        self.has_lease = False
        self._cluster = cluster
        self._stale: Topology | None = None
        config = cluster.config
        self._copies = [
            PartitionCopy(store, StaticAcks(store, config), epoch=2) for store in cluster.stores
        ]

    @property
    def topology(self) -> Topology:
        return self._stale or self._cluster.topology

    def hears_no_more(self) -> None:
        self._stale = self._cluster.topology

    def hears_again(self) -> None:
        self._stale = None

    async def wait_for_news(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def copies(self, table: str) -> Sequence[PartitionCopy | None]:
        cluster = self._cluster
        if table != TABLE:
            return ()
        for number, copy in enumerate(self._copies):
            is_master = cluster.masters[number] == self.node_id
            copy.is_leading = is_master
            copy.is_serving = is_master and number not in cluster.frozen
            copy.is_reading_behind = self.node_id in cluster.replicas_of(number)
            copy.epoch = cluster.stores[number].epoch or 2
        return self._copies


class StaticCluster:
    """Who has what is said by the test."""

    def __init__(self, names: Sequence[str] = ("a", "b", "c"), *, partitions: int = 6) -> None:
        self.names = list(names)
        self.config = TableConfig(
            partitions=partitions, replicas=min(len(names), 3), ack="memory", min_replicas=1
        )
        self.stores = [MemoryPartitionStore() for _ in range(partitions)]
        self.engines = MemoryEngines()
        for store in self.stores:
            store.copies = self.engines
        self.masters: list[str | None] = [names[each % len(names)] for each in range(partitions)]
        self.frozen: set[int] = set()
        self.down: set[str] = set()
        self.ports = dict.fromkeys(names, 7000)
        self.hosts = dict.fromkeys(names, "127.0.0.1")
        self.epoch = 3
        self.views = {name: ClusterView(self, name) for name in names}
        self._topology: Topology | None = None

    def replicas_of(self, partition: int) -> list[str]:
        master = self.masters[partition]
        others = [name for name in self.names if name != master]
        return others[: self.config.replicas - 1]

    @property
    def topology(self) -> Topology:
        if self._topology is None or self._topology.epoch != self.epoch:
            nodes = []
            for name in self.names:
                made = node(name, self.ports[name], is_up=name not in self.down)
                address = f"{self.hosts[name]}:{self.ports[name]}"
                addresses = type(made.addresses)(
                    data=address, replication="127.0.0.1:1", admin="127.0.0.1:2"
                )
                nodes.append(type(made)(id=made.id, addresses=addresses, is_up=made.is_up))
            partitions = [
                Partition(
                    epoch=2,
                    master=None if master is None else NodeId(master),
                    slaves=tuple(map(NodeId, self.replicas_of(number))),
                )
                for number, master in enumerate(self.masters)
            ]
            topology = topology_of(nodes, partitions, self.config)
            self._topology = Topology(
                epoch=self.epoch,
                tables=topology.tables,
                nodes=topology.nodes,
                users=topology.users,
            )
        return self._topology

    def promote(self, partition: int, name: str | None) -> None:
        self.masters[partition] = name
        self.epoch += 1

    def fail_over(self, name: str) -> None:
        """All that a node has goes to the others."""
        others = [each for each in self.names if each != name and each not in self.down]
        self.down.add(name)
        for number, master in enumerate(self.masters):
            if master == name:
                self.masters[number] = others[number % len(others)]
        self.epoch += 1

    def values(self) -> dict[bytes, bytes]:
        return {key: value.data for store in self.stores for key, value in store.values.items()}

    @property
    def addresses(self) -> str:
        return ",".join(f"{self.hosts[name]}:{self.ports[name]}" for name in self.names)


@asynccontextmanager
async def listening(cluster: StaticCluster) -> AsyncIterator[dict[str, DataServer]]:
    """Real listeners; closing one is its node's end."""
    async with AsyncExitStack() as stack:
        environment = stack.enter_context(real_environment())
        servers = {}
        for name in cluster.names:
            view = cluster.views[name]
            checkpoints = PartitionCheckpoints(view, environment, cluster.engines)
            stack.push_async_callback(checkpoints.close)
            server = DataServer(view, environment, checkpoints=checkpoints)
            await stack.enter_async_context(server)
            cluster.ports[name] = await server.listen()
            servers[name] = server
        cluster.epoch += 1
        yield servers
