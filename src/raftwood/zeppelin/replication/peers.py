"""This node's connections to other nodes."""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.settings import ConnectionSettings
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Secret,
    ServerCredentials,
    connect,
)
from raftwood.net.channel import Connector
from raftwood.net.identity import split_address
from raftwood.zeppelin.model import NodeId, NodeInfo
from raftwood.zeppelin.replication.wire import NODE_ROLE, node_identity

_BACKOFF = Backoff(first_ms=20, longest_ms=1_000)


class ReplicationNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes authenticate to one another."""

    cluster: str
    secret: Secret
    """Shared by all nodes."""
    tls: ClientTls | None = None
    limits: ClientLimits = ClientLimits(
        connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
    )

    connections: ConnectionSettings = ConnectionSettings()

    def server_credentials(self, node: NodeId) -> ServerCredentials:
        return ServerCredentials(
            cluster_id=self.cluster,
            identity=node_identity(node),
            secret_of=lambda peer: self.secret if peer.role == NODE_ROLE else None,
        )


class ReplicationPeers:
    """A channel to each other node of the topology, kept while the node is in it."""

    def __init__(
        self,
        environment: Environment,
        network: ReplicationNetwork,
        node: NodeId,
        on_change: Callable[[NodeId, bool], None],
    ) -> None:
        self._environment = environment
        self._network = network
        self._node = node
        self._on_change = on_change
        self._channels: dict[NodeId, tuple[str, Channel]] = {}
        self._gone: list[Channel] = []

    def learn(self, nodes: Mapping[NodeId, NodeInfo]) -> list[NodeId]:
        """Takes the nodes' addresses; returns the nodes whose channel was replaced or removed."""
        changed = []
        for node in [*self._channels]:
            address, channel = self._channels[node]
            if node not in nodes or nodes[node].addresses.replication != address:
                del self._channels[node]
                self._gone.append(channel)
                changed.append(node)
        for node, known in nodes.items():
            if node != self._node and node not in self._channels:
                self._channels[node] = self._begin(node, known.addresses.replication)
        return changed

    def _begin(self, node: NodeId, address: str) -> tuple[str, Channel]:
        channel = Channel(
            self._connector(node, address),
            self._environment.random,
            _BACKOFF,
            on_change=lambda is_connected: self._on_change(node, is_connected),
        )
        channel.start()
        return address, channel

    def _connector(self, node: NodeId, address: str) -> Connector:
        network = self._network
        host, port = split_address(address)
        credentials = ClientCredentials(
            cluster_id=network.cluster,
            identity=node_identity(self._node),
            secret=network.secret,
            server=node_identity(node),
        )
        return partial(
            connect,
            host,
            port,
            credentials,
            self._environment.random,
            limits=network.limits,
            tls=network.tls,
        )

    def channel(self, node: NodeId) -> Channel | None:
        found = self._channels.get(node)
        return None if found is None else found[1]

    async def close_gone(self) -> None:
        """Closes the channels to nodes that have moved or gone."""
        gone, self._gone = self._gone, []
        for channel in gone:
            await channel.close()

    async def close(self) -> None:
        self._gone += [channel for _, channel in self._channels.values()]
        self._channels.clear()
        await self.close_gone()
