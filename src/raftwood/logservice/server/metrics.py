"""Metrics of a store: its shards' work, its disk, and the cluster if it leads HAKeeper.

A shard that left the store is no longer reported.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from raftwood.base.metrics import Metrics
from raftwood.logservice.hakeeper.checkers import PlanningRound
from raftwood.logservice.hakeeper.messages import DISK_SLOW, HAKEEPER_SHARD, ServiceKind, is_log
from raftwood.logservice.hakeeper.state import ClusterPhase, KeeperState
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.logservice.server.disk_watch import DiskWatch
from raftwood.logservice.server.truncation import ShardStorage, TruncationWorker
from raftwood.logservice.settings import HaKeeperSettings
from raftwood.raft.node_host import NodeHost


class _Counts:
    __slots__ = ("append_bytes", "appends", "read_bytes", "read_records", "reads")

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.reads = 0
        self.read_records = 0
        self.read_bytes = 0


class ShardMetrics:
    """Plain counts by shard, read at each scrape; durations are observed at each request."""

    def __init__(self, metrics: Metrics, host: NodeHost) -> None:
        self._host = host
        self._counts: dict[int, _Counts] = {}
        self._append_seconds = metrics.histogram(
            "logservice_append_seconds", "From an append's arrival to its answer."
        )
        self._read_seconds = metrics.histogram(
            "logservice_read_seconds", "From a read's arrival to its answer, waiting included."
        )
        for name, text, read in (
            ("appends", "Records appended.", lambda counts: counts.appends),
            (
                "append_bytes",
                "Bytes of the appends that were answered.",
                lambda counts: counts.append_bytes,
            ),
            ("reads", "Reads answered.", lambda counts: counts.reads),
            ("read_records", "Records read.", lambda counts: counts.read_records),
            ("read_bytes", "Bytes read.", lambda counts: counts.read_bytes),
        ):
            metrics.pull_counters(f"logservice_{name}_total", text, "shard", self._reader(read))
        metrics.pull_counters(
            "logservice_leader_changes_total",
            "How often another store was seen to lead than before.",
            "shard",
            lambda: {str(shard): host.leader_changes(shard) for shard in host.groups()},
        )
        metrics.pull_gauges(
            "logservice_leading",
            "Whether this store leads the shard.",
            "shard",
            lambda: {str(shard): host.is_leading(shard) for shard in host.groups()},
        )

    def appended(self, shard: int, records: int, size: int, seconds: float) -> None:
        counts = self._counts.get(shard) or self._begin(shard)
        counts.appends += records
        counts.append_bytes += size
        self._append_seconds.observe(seconds)

    def read(self, shard: int, records: int, size: int, seconds: float) -> None:
        counts = self._counts.get(shard) or self._begin(shard)
        counts.reads += 1
        counts.read_records += records
        counts.read_bytes += size
        self._read_seconds.observe(seconds)

    def _begin(self, shard: int) -> _Counts:
        counts = self._counts[shard] = _Counts()
        return counts

    def _reader(self, read: Callable[[_Counts], int]) -> Callable[[], dict[str, float]]:
        def read_all() -> dict[str, float]:
            here = [shard for shard in self._host.groups() if is_log(shard)]
            # A shard that left takes its counts along: it begins anew if it comes back.
            self._counts = {shard: self._counts.get(shard) or _Counts() for shard in here}
            return {str(shard): read(counts) for shard, counts in self._counts.items()}

        return read_all


ALARM_KINDS: Final = ("disk-short", DISK_SLOW, "log-retained", "truncation-stalled")
"""Reported even without an alarm, so that an alert sees the alarm end."""


def register_storage_metrics(
    metrics: Metrics,
    truncation: TruncationWorker,
    disk: DiskWatch,
    alarms: Callable[[], Sequence[str]],
) -> None:
    """Registers gauges; the figures of shards are those of the truncation worker's last look."""

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


def register_keeper_metrics(metrics: Metrics, host: NodeHost, settings: HaKeeperSettings) -> None:
    def where_it_leads(
        read: Callable[[KeeperState], Mapping[str, float]],
    ) -> Callable[[], Mapping[str, float]]:
        def read_here() -> Mapping[str, float]:
            if HAKEEPER_SHARD not in host.groups() or not host.is_leading(HAKEEPER_SHARD):
                return {}
            machine = host.machine(HAKEEPER_SHARD)
            assert isinstance(machine, HaKeeperStateMachine)
            return read(machine.state)

        return read_here

    for name, text, label, read in (
        ("state", "1 for how far the cluster is.", "state", _phases),
        ("stores", "Log stores.", "state", lambda state: stores_by_state(state, settings)),
        ("shards", "Shards.", "state", lambda state: shards_by_state(state, settings)),
        ("services", "Services that use the log.", "kind", _services),
    ):
        metrics.pull_gauges(f"hakeeper_{name}", text, label, where_it_leads(read))
    orders = where_it_leads(lambda state: {"all": len(state.orders)})
    metrics.pull_gauge("hakeeper_orders", "Orders under way.", lambda: sum(orders().values()))


def _phases(state: KeeperState) -> dict[str, float]:
    return {phase.value: phase is state.phase for phase in ClusterPhase}


def stores_by_state(state: KeeperState, settings: HaKeeperSettings) -> dict[str, float]:
    planning = PlanningRound(state, settings)
    counts: dict[str, float] = dict.fromkeys(("up", "down", "draining"), 0)
    for number, store in state.stores.items():
        living = "draining" if store.is_draining else "up"
        counts[living if number in planning.live else "down"] += 1
    return counts


def shards_by_state(state: KeeperState, settings: HaKeeperSettings) -> dict[str, float]:
    """Counts shards by state; a healthy one has a leader and enough serving voters."""
    planning = PlanningRound(state, settings)
    counts: dict[str, float] = dict.fromkeys(("healthy", "degraded", "leaderless"), 0)
    for number, shard in state.shards.items():
        serving = sum(planning.is_serving(number, store) for store in shard.voters)
        if not planning.leader(number):
            counts["leaderless"] += 1
        else:
            counts["healthy" if serving >= shard.replicas else "degraded"] += 1
    return counts


def _services(state: KeeperState) -> dict[str, float]:
    counts = Counter(service.kind.value for service in state.services.values())
    return {kind.value: counts[kind.value] for kind in ServiceKind}
