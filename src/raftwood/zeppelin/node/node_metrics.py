"""A node's figures, read when somebody looks."""

from raftwood.base.metrics import Metrics
from raftwood.zeppelin.node.admin import AdminService
from raftwood.zeppelin.node.expiry_sweep import ExpirySweep


def show_node(metrics: Metrics, node: AdminService, sweep: ExpirySweep) -> None:
    """Registers them; several nodes in one process differ by their label."""
    store, server, membership = node.store, node.server, node.membership
    labels = {"node": store.id}
    replicas = node.replicator.replicas
    for name, text, read in (
        ("kv_commands_total", "Requests of clients.", lambda: server.command_count),
        ("kv_connections_total", "Connections of clients.", lambda: server.connection_count),
        ("kv_expired_keys_total", "Expired keys that were removed.", lambda: sweep.removed_count),
    ):
        metrics.pull_counter(name, text, read, labels)
    for name, text, figure in (
        ("kv_clients", "Clients that are connected.", lambda: len(list(server.sessions))),
        ("kv_epoch", "The topology that is applied here.", lambda: membership.applied_epoch),
        (
            "kv_partitions_as_master",
            "Partitions that this node is the master of, by a lease that is on.",
            lambda: sum(replica.is_leading for replica in replicas.values()),
        ),
        ("kv_partitions", "Partitions that are open.", lambda: len(replicas)),
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
