"""What a store tells of its shards' work; a shard that left the store is spoken of no more."""

from collections.abc import Callable

from raftwood.base.metrics import Metrics
from raftwood.logservice.hakeeper.reports import is_log
from raftwood.raft.host.host import Host


class _Counts:
    __slots__ = ("append_bytes", "appends", "read_bytes", "read_records", "reads")

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.reads = 0
        self.read_records = 0
        self.read_bytes = 0


class ShardMetrics:
    """Plain counts by shard, read when somebody looks; times once for each request."""

    def __init__(self, metrics: Metrics, host: Host) -> None:
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
            # What left takes its counts along: one that comes back begins anew.
            self._counts = {shard: self._counts.get(shard) or _Counts() for shard in here}
            return {str(shard): read(counts) for shard, counts in self._counts.items()}

        return read_all
