"""What a store tells of its shards' work."""

from typing import Final

from raftwood.base.metrics import Metrics

_SHARD_METRICS: Final = (
    "logservice_appends_total",
    "logservice_append_bytes_total",
    "logservice_reads_total",
    "logservice_read_bytes_total",
)


class _Counts:
    __slots__ = ("append_bytes", "appends", "read_bytes", "reads")

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.reads = 0
        self.read_bytes = 0


class ShardMetrics:
    """Plain counts by shard, read when somebody looks; times once for each request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counts: dict[int, _Counts] = {}
        self._append_seconds = metrics.histogram(
            "logservice_append_seconds", "From an append's arrival to its answer."
        )
        self._read_seconds = metrics.histogram(
            "logservice_read_seconds", "From a read's arrival to its answer, waiting included."
        )

    def appended(self, shard: int, records: int, size: int, seconds: float) -> None:
        counts = self._counts.get(shard) or self._begin(shard)
        counts.appends += records
        counts.append_bytes += size
        self._append_seconds.observe(seconds)

    def read(self, shard: int, size: int, seconds: float) -> None:
        counts = self._counts.get(shard) or self._begin(shard)
        counts.reads += 1
        counts.read_bytes += size
        self._read_seconds.observe(seconds)

    def _begin(self, shard: int) -> _Counts:
        counts = self._counts[shard] = _Counts()
        labels = {"shard": str(shard)}
        pull = self._metrics.pull_counter
        pull("logservice_appends_total", "Records appended.", lambda: counts.appends, labels)
        pull(
            "logservice_append_bytes_total",
            "Bytes of the appends that were answered.",
            lambda: counts.append_bytes,
            labels,
        )
        pull("logservice_reads_total", "Reads answered.", lambda: counts.reads, labels)
        pull("logservice_read_bytes_total", "Bytes read.", lambda: counts.read_bytes, labels)
        return counts

    def forget(self, shard: int) -> None:
        """The shard is not on this store any more."""
        if self._counts.pop(shard, None) is not None:
            for name in _SHARD_METRICS:
                self._metrics.drop(name, {"shard": str(shard)})
