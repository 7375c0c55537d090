"""What a store tells of its disk: what its shards take, what could not be freed, and alarms."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.base.metrics import Metrics
from raftwood.logservice.hakeeper.reports import DISK_SLOW
from raftwood.logservice.server.disk_watch import DiskWatch
from raftwood.logservice.server.truncation import ShardStorage, TruncationWorker

ALARM_KINDS: Final = ("disk-short", DISK_SLOW, "log-retained", "truncation-stalled")
"""They are told also where there is none, so that an alert sees them end."""


def register_storage_metrics(
    metrics: Metrics,
    truncation: TruncationWorker,
    disk: DiskWatch,
    alarms: Callable[[], Sequence[str]],
) -> None:
    """The figures of shards are those of the truncation worker's last look."""

    def by_shard(name: str, text: str, read: Callable[[ShardStorage], float]) -> None:
        metrics.pull_gauges(
            f"logservice_{name}",
            text,
            "shard",
            lambda: {str(shard): read(each) for shard, each in truncation.shards.items()},
        )

    def age_s(moment_ms: int) -> float:
        return (truncation.now_ms() - moment_ms) / 1000

    by_shard("truncated_lsn", "Records up to here are truncated.", lambda each: each.truncated_lsn)
    by_shard(
        "truncation_age_seconds",
        "Since the truncated LSN last rose, or since this store's start.",
        lambda each: age_s(each.truncated_ms),
    )
    by_shard("retained_bytes", "What its log takes.", lambda each: each.retained_bytes)
    by_shard("snapshot_bytes", "What its snapshots take.", lambda each: each.snapshot_bytes)
    by_shard("snapshots", "Its snapshots.", lambda each: each.snapshots)
    by_shard(
        "snapshot_age_seconds",
        "Since its newest snapshot was taken, or since this store's start.",
        lambda each: age_s(each.snapshot_ms),
    )
    metrics.pull_gauges(
        "logservice_alarms",
        "Alarms of this store.",
        "kind",
        lambda: dict.fromkeys(ALARM_KINDS, 0) | Counter(each.split(":")[0] for each in alarms()),
    )
    metrics.pull_gauge(
        "logservice_disk_free_bytes", "Free on the store's disk.", lambda: disk.free_bytes
    )
    metrics.pull_counter(
        "logservice_disk_refusals_total",
        "Appends refused as the disk is too full.",
        lambda: disk.refused,
    )
