"""Metrics: one registry per store, handed around; hot paths only bump plain integers.

    metrics = Metrics(store="3")
    writes = metrics.counter("disk_writes_total", "Writes to disk.")   # bump: writes.inc()
    sync = metrics.histogram("disk_sync_seconds", "Time of one sync.", buckets=SECONDS)
    sync.observe(0.002)
    metrics.pull_counter("net_frames_total", "Frames sent.", lambda: connection.frames_sent)
    metrics.pull_gauge("net_connections", "Open connections.", lambda: len(connections))
    metrics.pull_gauges("shard_bytes", "Kept.", "shard", lambda: {"1": 10, "2": 7})
    text = metrics.render()

There is no default registry, so several simulated nodes in one process don't collide. A name ends
with its unit (`_bytes`, `_seconds`), a counter's with `_total`; `raftwood_` is put before it. A
counter or histogram that has labels is bound once, `metrics.counter(..., labels={"peer": "2"})`,
and used bound: no lookup by label on a hot path.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raftwood.base.errors import InvalidInput

PREFIX: Final = "raftwood_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
BYTES: Final = tuple(float(1 << power) for power in range(6, 27, 2))
SERIES_MAX: Final = 10_000
"""The series of one metric: labels from outside must not fill the memory."""

# These double the series, and bring the wall clock into simulations.
disable_created_metrics()  # type: ignore[no-untyped-call]

F = TypeVar("F", Counter, Gauge, Histogram)
Family = CounterMetricFamily | GaugeMetricFamily

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class Metrics:
    """The metrics of one store; `constant` labels stand on every series."""

    def __init__(self, **constant: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._constant = constant
        self._families: dict[str, Counter | Gauge | Histogram] = {}
        self._pulled: dict[str, _Pulled] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self._shapes: dict[str, tuple[type, tuple[str, ...]]] = {}

    def counter(
        self, name: str, help_text: str, labels: Mapping[str, str] | None = None
    ) -> Counter:
        """Makes a counter: a value that only grows."""
        _check_counter(name)
        return self._bound(Counter, name, help_text, labels or {})

    def gauge(self, name: str, help_text: str, labels: Mapping[str, str] | None = None) -> Gauge:
        """Makes a gauge: a value that goes up and down."""
        return self._bound(Gauge, name, help_text, labels or {})

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Mapping[str, str] | None = None,
        *,
        buckets: Sequence[float] = SECONDS,
    ) -> Histogram:
        """Makes a histogram; an observation costs 1 µs, so make one per batch, never per record."""
        return self._bound(Histogram, name, help_text, labels or {}, buckets=buckets)

    def pull_counter(
        self,
        name: str,
        help_text: str,
        read: Callable[[], float],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Registers a counter whose value is read at each scrape."""
        _check_counter(name)
        self._pull(CounterMetricFamily, name, help_text, read, labels or {})

    def pull_gauge(
        self,
        name: str,
        help_text: str,
        read: Callable[[], float],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Registers a gauge whose value is read at each scrape."""
        self._pull(GaugeMetricFamily, name, help_text, read, labels or {})

    def pull_counters(
        self, name: str, help_text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Like `pull_gauges`, for counters."""
        _check_counter(name)
        self._pull_many(CounterMetricFamily, name, help_text, label, read)

    def pull_gauges(
        self, name: str, help_text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Registers a gauge for each value of a label, read at each scrape: labels that are gone by
        then have none. Values above `SERIES_MAX` are left out."""
        self._pull_many(GaugeMetricFamily, name, help_text, label, read)

    def drop(self, name: str, labels: Mapping[str, str]) -> None:
        """Drops one series, for example when a peer or shard is gone."""
        values = self._values(labels)
        if name in self._pulled:
            self._pulled[name].readers.pop(values, None)
        elif name in self._families:
            self._families[name].remove(*values)
        self._series.get(name, set()).discard(values)

    def render(self) -> bytes:
        """Returns all metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def _values(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        return (*self._constant.values(), *labels.values())

    def _admit(self, kind: type, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Checks the name and the number of series; returns the values of all labels."""
        if not _NAME.fullmatch(name) or name.startswith(PREFIX):
            raise InvalidInput(f"metric name {name!r} is not lower_case_words without {PREFIX}")
        shape = self._shapes.setdefault(name, (kind, tuple(labels)))
        if shape != (kind, tuple(labels)):
            raise InvalidInput(
                f"metric {name} exists already as a {shape[0].__name__} with labels {shape[1]}"
            )
        values = self._values(labels)
        series = self._series.setdefault(name, set())
        if len(series) >= SERIES_MAX and values not in series:
            raise InvalidInput(
                f"metric {name} has {SERIES_MAX} series: use labels with fewer values"
            )
        series.add(values)
        return values

    def _bound(
        self, kind: type[F], name: str, help_text: str, labels: Mapping[str, str], **extra: Any
    ) -> F:
        values = self._admit(kind, name, labels)
        family = self._families.get(name)
        if family is None:
            names = (*self._constant, *labels)
            family = kind(PREFIX + name, help_text, names, registry=self._registry, **extra)
            self._families[name] = family
        assert isinstance(family, kind)
        return family.labels(*values) if values else family

    def _pull(
        self,
        kind: type[Family],
        name: str,
        help_text: str,
        read: Callable[[], float],
        labels: Mapping[str, str],
    ) -> None:
        values = self._admit(kind, name, labels)
        pulled = self._pulled.get(name)
        if pulled is None:
            pulled = _Pulled(kind, PREFIX + name, help_text, (*self._constant, *labels))
            self._registry.register(pulled)
            self._pulled[name] = pulled
        pulled.readers[values] = read

    def _pull_many(
        self,
        kind: type[Family],
        name: str,
        help_text: str,
        label: str,
        read: Callable[[], Mapping[str, float]],
    ) -> None:
        if name in self._shapes:
            raise InvalidInput(f"metric {name} exists already")
        self._admit(kind, name, {label: ""})
        family = partial(kind, PREFIX + name, help_text, labels=(*self._constant, label))
        self._registry.register(_PulledMany(family, tuple(self._constant.values()), read))


class _PulledMany(Collector):
    """One family whose series are read at each rendering."""

    def __init__(
        self,
        family: Callable[[], Family],
        constant: tuple[str, ...],
        read: Callable[[], Mapping[str, float]],
    ) -> None:
        self._family = family
        self._constant = constant
        self._read = read

    def describe(self) -> Iterable[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for value, figure in islice(self._read().items(), SERIES_MAX):
            family.add_metric((*self._constant, value), figure)
        yield family


class _Pulled(Collector):
    """One family whose values are read at each rendering."""

    def __init__(
        self,
        kind: type[Family],
        name: str,
        help_text: str,
        labels: tuple[str, ...],
    ) -> None:
        self._kind = kind
        self._name = name
        self._help = help_text
        self._labels = labels
        self.readers: dict[tuple[str, ...], Callable[[], float]] = {}

    def describe(self) -> Iterable[Metric]:
        # Without it the registry would call the readers to learn the name.
        yield self._kind(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = self._kind(self._name, self._help, labels=self._labels)
        for values, read in list(self.readers.items()):
            family.add_metric(values, read())
        yield family


def _check_counter(name: str) -> None:
    if not name.endswith("_total"):
        raise InvalidInput(f"a counter's name ends with _total, {name!r} does not")
