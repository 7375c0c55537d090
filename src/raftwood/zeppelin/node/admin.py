"""What a node tells operators, and how they ask."""

import msgspec

from raftwood.base.environment import Clock, Environment
from raftwood.net import Call, ClientCredentials, Identity, Service, connect
from raftwood.net.store_names import split_address
from raftwood.net.stores import ClientNetwork
from raftwood.zeppelin.commands.parking import Parking
from raftwood.zeppelin.model import Node, PartitionId
from raftwood.zeppelin.node.admin_wire import (
    STATUS,
    AskStatus,
    CopyStatus,
    NodeStatus,
    ParkedStatus,
    admin_identity,
)
from raftwood.zeppelin.node.data_server import DataServer
from raftwood.zeppelin.node.membership import Membership
from raftwood.zeppelin.node.node_store import NodeStore
from raftwood.zeppelin.replication.replica import Replica
from raftwood.zeppelin.replication.replicator import Replicator

_TIMEOUT_MS = 3_000


class AdminService(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a node that can be asked about."""

    clock: Clock
    store: NodeStore
    replicator: Replicator
    membership: Membership
    server: DataServer

    def register(self, service: Service) -> None:
        service.typed(STATUS, self._status)

    async def _status(self, _: Call, request: AskStatus) -> NodeStatus:
        return self.status(request.tables)

    def status(self, tables: tuple[str, ...] = ()) -> NodeStatus:
        names = self.store.held()
        lease_ns = self.replicator.lease.until_ns - self.clock.monotonic_ns()
        return NodeStatus(
            node=self.store.id,
            run=self.store.boot,
            applied_epoch=self.membership.applied_epoch,
            lease_ms=max(0, lease_ns // 1_000_000),
            problem=self.membership.problem(),
            connections=len(list(self.server.sessions)),
            commands=self.server.command_count,
            disk_bytes=self.store.statistics().disk_bytes,
            copies=tuple(
                _copy_status(names[partition], partition, replica)
                for partition, replica in self.replicator.replicas.items()
                if partition in names and (not tables or names[partition] in tables)
            ),
            parked=_parked_status(self.server.parking),
            copied_bytes=self.replicator.slave_world.copied_bytes,
            streamed_bytes=self.replicator.slave_world.streamed_bytes,
        )


def _parked_status(parking: Parking) -> ParkedStatus:
    return ParkedStatus(
        now=parking.count,
        total=parking.total,
        p50_ms=round(1_000 * parking.quantile_s(0.5), 1),
        p99_ms=round(1_000 * parking.quantile_s(0.99), 1),
        longest_ms=round(1_000 * parking.longest_s, 1),
    )


def _copy_status(table: str, partition: PartitionId, replica: Replica) -> CopyStatus:
    store, report = replica.store, replica.report()
    return CopyStatus(
        table=table,
        partition=partition.number,
        role=replica.role.name.lower(),
        master=replica.master,
        epoch=replica.partition_epoch,
        is_writing=replica.may_write,
        is_whole=report.is_whole,
        first_sequence=store.first_sequence,
        last_sequence=store.last_sequence,
        synced_sequence=store.synced_sequence,
        lag_bytes=report.lag_bytes,
        contact_ms=report.contact_ms,
        slaves_in_sync=replica.acks.replicas_with(store.last_sequence),
    )


async def ask_status(
    environment: Environment, network: ClientNetwork, node: Node, *, tables: tuple[str, ...] = ()
) -> NodeStatus:
    """What a node tells an operator of itself."""
    host, port = split_address(node.addresses.admin)
    credentials = ClientCredentials(
        cluster_id=network.cluster,
        identity=Identity(role=network.role, node_id=network.name),
        secret=network.secret,
        server=admin_identity(node.id),
    )
    connection = await connect(
        host, port, credentials, environment.random, limits=network.limits, tls=network.tls
    )
    try:
        return await connection.ask(STATUS, AskStatus(tables), _TIMEOUT_MS)
    finally:
        await connection.close()
