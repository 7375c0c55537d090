"""A raft host in figures: pulled when asked for, so that they cost nothing on the way."""

from collections.abc import Mapping

from raftwood.base.metrics import Metrics
from raftwood.disk.segment_log import SegmentLog
from raftwood.raft.host.proposals import Waiting
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.snapshot_transfer import SnapshotTransfer
from raftwood.raft.host.ticking import Ticking
from raftwood.raft.host.turns import Turns


def register_metrics(
    metrics: Metrics,
    replicas: Mapping[int, Replica],
    turns: Turns,
    transfer: SnapshotTransfer,
    waiting: Waiting,
    log: SegmentLog,
    ticking: Ticking,
) -> None:
    def count(name: str) -> int:
        return sum(bool(getattr(replica, name)) for replica in replicas.values())

    metrics.pull_gauge("raft_groups", "Replicas on this store.", lambda: len(replicas))
    metrics.pull_gauge("raft_groups_led", "Groups led.", lambda: count("is_leader"))
    metrics.pull_gauge(
        "raft_groups_without_leader",
        "Groups that this store knows no leader of.",
        lambda: sum(not replica.leader for replica in replicas.values()),
    )
    metrics.pull_gauge("raft_groups_asleep", "Idle groups.", lambda: count("is_asleep"))
    metrics.pull_gauge(
        "raft_waiting_bytes", "Proposals that are not applied yet.", lambda: waiting.size_bytes
    )
    metrics.pull_gauge(
        "raft_backlog_writes",
        "Writes that the log had no room for.",
        lambda: sum(len(replica.backlog) for replica in replicas.values()),
    )
    metrics.pull_counter("raft_turns_total", "Turns of work.", lambda: turns.turn_count)
    metrics.pull_counter("raft_writes_total", "Writes to the log.", lambda: turns.write_count)
    metrics.pull_counter(
        "raft_snapshots_sent_total", "Snapshots sent.", lambda: transfer.sent_count
    )
    metrics.pull_counter(
        "raft_snapshots_received_total", "Snapshots received.", lambda: transfer.received_count
    )
    metrics.pull_gauge(
        "raft_sync_seconds",
        "What a sync of the log takes.",
        lambda: (ticking.sync_ms() or 0) / 1000,
    )
    metrics.pull_counter(
        "raft_slow_hand_overs_total",
        "Groups given to others to lead because this store's disk is slow.",
        lambda: ticking.slow_hand_overs,
    )
    metrics.pull_gauge(
        "raft_log_disk_bytes", "Size of the log.", lambda: log.statistics().disk_bytes
    )
    metrics.pull_gauge(
        "raft_log_live_bytes", "What is needed of it.", lambda: log.statistics().live_bytes
    )
