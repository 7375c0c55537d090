"""A worker's metrics: lag, moves, hand-overs, idle times, overruns."""

from collections.abc import Callable, Mapping

from raftwood.base.environment import Clock
from raftwood.base.metrics import Metrics

RATE_WINDOW_S = 10.0
"""The window of the mean of a shard's bytes per second."""
_NS = 1_000_000_000
HAND_OVER_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)


class Totals:
    """Totals of one worker, including shards that it gave up."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes = 0
        self.overruns = 0
        self.overrun_s = 0.0
        self.failures = 0
        self.read_failures = 0


class ShardMeter:
    """The measurements of one consumer."""

    def __init__(self, clock: Clock, totals: Totals) -> None:
        self._clock = clock
        self.totals = totals
        self._oldest_ms = 0
        self._may_overrun = False
        """A call is under way that is not counted as an overrun yet."""
        self._reached_s = 0.0
        self._rate = 0.0
        self._rate_ns = clock.monotonic_ns()

    @property
    def bytes_per_s(self) -> float:
        return self._rate

    @property
    def lag_s(self) -> float:
        """Returns the age of the oldest batch in work; between two calls, the age when the last one
        ended; 0 at the shard's end.
        """
        return self._age_s(self._oldest_ms) if self._oldest_ms else self._reached_s

    def _age_s(self, received_ms: int) -> float:
        return max(0.0, self._clock.wall_ns() / _NS - received_ms / 1000) if received_ms else 0.0

    def begins(self, received_ms: int) -> None:
        self._oldest_ms = received_ms
        self._may_overrun = True

    def overruns(self) -> None:
        """Counts once that the lease's time is over during a call, which may never end."""
        if self._may_overrun:
            self._may_overrun = False
            self.totals.overruns += 1

    def ends(self, batches: int, size: int, *, received_ms: int, late_ms: int) -> None:
        """`received_ms` is of the last batch; `late_ms` is above 0 if the lease's time was over."""
        if late_ms > 0:
            self.overruns()
            self.totals.overrun_s += late_ms / 1000
        self._may_overrun = False
        self._oldest_ms, self._reached_s = 0, self._age_s(received_ms)
        self.totals.batches += batches
        self.totals.bytes += size
        self._add_to_rate(size)

    def at_end(self) -> None:
        self._reached_s = 0.0
        self._add_to_rate(0)

    def _add_to_rate(self, size: int) -> None:
        """Updates a decaying mean: what lies a window back counts a third of what is new."""
        now_ns = self._clock.monotonic_ns()
        elapsed_s = max((now_ns - self._rate_ns) / _NS, 1e-3)
        self._rate_ns = now_ns
        weight = min(1.0, elapsed_s / RATE_WINDOW_S)
        self._rate += (size / elapsed_s - self._rate) * weight


class WorkerMetrics:
    """Metrics of one worker; lags by shard are computed when the metrics are read."""

    def __init__(
        self, metrics: Metrics, totals: Totals, lags: Callable[[], Mapping[str, float]]
    ) -> None:
        self._metrics = metrics
        counters: dict[str, tuple[str, Callable[[], float]]] = {
            "consumer_batches_total": ("Batches that were processed.", lambda: totals.batches),
            "consumer_bytes_total": ("Bytes that were processed.", lambda: totals.bytes),
            "consumer_overruns_total": (
                "Calls of process() during which the lease's time was over.",
                lambda: totals.overruns,
            ),
            "consumer_overrun_seconds_total": (
                "How long such calls went on behind their deadlines.",
                lambda: totals.overrun_s,
            ),
            "consumer_failures_total": (
                "Times that a processor raised an error.",
                lambda: totals.failures,
            ),
            "consumer_read_failures_total": (
                "Reads of the source that failed and were tried again.",
                lambda: totals.read_failures,
            ),
        }
        for name, (text, read) in counters.items():
            metrics.pull_counter(name, text, read)
        metrics.pull_gauge(
            "consumer_shards", "Shards that are being consumed.", lambda: len(lags())
        )
        metrics.pull_gauges(
            "consumer_lag_seconds",
            "Age of what a shard's consumer is at; 0 at its end.",
            "shard",
            lags,
        )
        self.hand_over = metrics.histogram(
            "consumer_hand_over_seconds",
            "From the notice that a lease was stolen to the store's word that it was handed over.",
            buckets=HAND_OVER_SECONDS,
        )
        self.idle = metrics.histogram(
            "consumer_idle_seconds",
            "From the theft of a lease to the start of its consumer here.",
            buckets=HAND_OVER_SECONDS,
        )

    def render(self) -> str:
        """Returns the metrics in Prometheus's format."""
        return self._metrics.render().decode()

    def moved(self, kind: str) -> None:
        self._metrics.counter(
            "consumer_moves_total", "Leases that came or went, by how.", labels={"kind": kind}
        ).inc()

    def store_failed(self, call: str) -> None:
        self._metrics.counter(
            "consumer_store_failures_total",
            "Calls of the lease store that failed and are tried again.",
            labels={"call": call},
        ).inc()
