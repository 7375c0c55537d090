"""A node's figures, read when somebody looks."""

from typing import Final

from raftwood.base.metrics import Metrics
from raftwood.zeppelin.model import Topology
from raftwood.zeppelin.node.admin import AdminService
from raftwood.zeppelin.node.expiry_sweep import ExpirySweep

_PARKED_SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def show_node(metrics: Metrics, node: AdminService, sweep: ExpirySweep) -> None:
    """Registers them; several nodes in one process differ by their label."""
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
    """Of each whether it is under way."""
    return [
        migration is partition.migration and migration.target in partition.replicas
        for table in topology.tables.values()
        for partition in table.partitions
        for migration in partition.migrations
    ]
