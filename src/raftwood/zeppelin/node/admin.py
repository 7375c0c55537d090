"""What a node shows operators: its status, on its admin listener, and its metrics."""

from typing import Final

import msgspec

from raftwood.base.environment import Clock, Environment
from raftwood.base.metrics import Metrics
from raftwood.net import Call, Service
from raftwood.net.stores import ClientNetwork
from raftwood.zeppelin.commands.session import ParkedRequests
from raftwood.zeppelin.model import NodeInfo, PartitionId, Topology
from raftwood.zeppelin.node.admin_protocol import (
    STATUS,
    AskStatus,
    CopyStatus,
    NodeStatus,
    ParkedStatus,
    admin_identity,
)
from raftwood.zeppelin.node.data_server import DataServer
from raftwood.zeppelin.node.expiry_sweep import ExpirySweep
from raftwood.zeppelin.node.membership import NodeMembership
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.replication.replica import PartitionReplica
from raftwood.zeppelin.replication.replicator import Replicator

_TIMEOUT_MS = 3_000


class AdminService(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a node that the status and the metrics read."""

    clock: Clock
    store: NodeStore
    replicator: Replicator
    membership: NodeMembership
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


def _parked_status(parking: ParkedRequests) -> ParkedStatus:
    return ParkedStatus(
        now=parking.count,
        total=parking.total,
        p50_ms=round(1_000 * parking.quantile_s(0.5), 1),
        p99_ms=round(1_000 * parking.quantile_s(0.99), 1),
        longest_ms=round(1_000 * parking.longest_s, 1),
    )


def _copy_status(table: str, partition: PartitionId, replica: PartitionReplica) -> CopyStatus:
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
    environment: Environment,
    network: ClientNetwork,
    node: NodeInfo,
    *,
    tables: tuple[str, ...] = (),
) -> NodeStatus:
    """Asks a node for its status."""
    connector = network.connector(environment, node.addresses.admin, admin_identity(node.id))
    async with await connector() as connection:
        return await connection.ask(STATUS, AskStatus(tables), _TIMEOUT_MS)


_PARKED_SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def show_node(metrics: Metrics, node: AdminService, sweep: ExpirySweep) -> None:
    """Registers the metrics; a label tells apart several nodes in one process."""
    store, server, membership = node.store, node.server, node.membership
    labels = {"node": store.id}
    replicas, slave_world = node.replicator.replicas, node.replicator.slave_world
    server.parking.observe = metrics.histogram(
        "kv_parked_seconds",
        "How long requests waited for the end of a hand-over.",
        labels,
        buckets=_PARKED_SECONDS,
    ).observe
    for name, text, read in (
        ("kv_commands_total", "Requests of clients.", lambda: server.command_count),
        ("kv_connections_total", "Connections of clients.", lambda: server.connection_count),
        (
            "kv_copied_bytes_total",
            "Bytes of whole copies that have come.",
            lambda: slave_world.copied_bytes,
        ),
        (
            "kv_streamed_bytes_total",
            "Bytes of records that have come from masters.",
            lambda: slave_world.streamed_bytes,
        ),
        ("kv_expired_keys_total", "Expired keys that were removed.", lambda: sweep.removed_count),
    ):
        metrics.pull_counter(name, text, read, labels)
    for name, text, figure in (
        (
            "kv_copy_bytes_per_second",
            "What whole copies may use now, for the sake of clients.",
            lambda: node.replicator.throttle.pace.bytes_per_s,
        ),
        ("kv_parked_requests", "Requests that wait now.", lambda: server.parking.count),
        ("kv_clients", "Clients that are connected.", lambda: len(list(server.sessions))),
        (
            "kv_clients_waiting",
            "Clients that have sent more than a turn of the loop has room for.",
            lambda: server.turns.queue_length,
        ),
        ("kv_epoch", "The topology that is applied here.", lambda: membership.applied_epoch),
        (
            "kv_partitions_as_master",
            "Partitions that this node is the master of, by a lease that is on.",
            lambda: sum(replica.is_leading for replica in replicas.values()),
        ),
        ("kv_partitions", "Partitions that are open.", lambda: len(replicas)),
        (
            "kv_checkpoints",
            "Partitions as they were, kept for backups and scans.",
            lambda: 0 if server.checkpoints is None else server.checkpoints.count,
        ),
        (
            "kv_migrations",
            "Replicas in the cluster that move to other nodes, or wait for it.",
            lambda: len(_migrations(membership.topology)),
        ),
        (
            "kv_migrations_under_way",
            "Those of them that do not only wait.",
            lambda: sum(_migrations(membership.topology)),
        ),
        (
            "kv_slave_lag_bytes",
            "How far the slave that is furthest behind its master was.",
            lambda: max((each.report().lag_bytes for each in replicas.values()), default=0),
        ),
        (
            "kv_binlog_disk_bytes",
            "Bytes of the log of all partitions.",
            lambda: store.statistics().disk_bytes,
        ),
        (
            "kv_binlog_queue_bytes",
            "Bytes written and not synced yet.",
            lambda: store.statistics().pending_bytes,
        ),
    ):
        metrics.pull_gauge(name, text, figure, labels)


def _migrations(topology: Topology) -> list[bool]:
    """For each migration, whether it is under way."""
    return [
        migration is partition.migration and migration.target in partition.replicas
        for table in topology.tables.values()
        for partition in table.partitions
        for migration in partition.migrations
    ]
