"""`raftwood bench`: how fast the cluster in use takes and gives records, keys and values.

A benchmark repeats one operation, some of them at a time, for some seconds. An operation moves a
batch of records, and its latency is the time until all of them are acked or read. At a given rate
the latency counts from the moment at which the operation was due, so that a cluster that stands
still is not measured by the few operations that were begun meanwhile.
"""

import asyncio
import base64
import math
import random
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.aio import AsyncCluster, AsyncReader, AsyncStream
from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    PermissionDenied,
    RaftwoodError,
    Unauthenticated,
    Unavailable,
)
from raftwood.base.text import BYTES, escaped
from raftwood.cli.cluster_target import wait_for_leader
from raftwood.cli.options import DEFAULTS, Source, quantity_of
from raftwood.cli.output import Format, StatusLine, write_rows
from raftwood.loghub.client.producer import ProducerSettings
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import AddShard, RemoveShard
from raftwood.server.clients import connected_log_stores
from raftwood.server.cluster import operator_network
from raftwood.server.event_loop import run

MEMORY_BYTES_MAX: Final = 256 << 20
"""Of all records under way."""
FILL_BYTES: Final = 32 << 20
"""What `consume` writes into a logstore of its own, unless its time is over before."""
FILL_MEMORY_BYTES: Final = 4 << 20
KEYS: Final = 10_000
"""How many keys `kv` sets again and again, so that it can delete them at its end."""
TICK_S: Final = 0.2
ERROR_PAUSE_S: Final = 0.1
"""An operation that fails at once is not repeated in a tight loop."""
LEADER_S_MAX: Final = 30.0
_HOPELESS: Final = (InvalidInput, NotFound, PermissionDenied, Unauthenticated)
"""After these no other operation will succeed either."""
_INTERRUPTED: Final = 130


class Latencies:
    """A histogram of fixed size: its percentiles are at most 1.6 % above the exact ones.

    Buckets are 1 µs wide up to 128 µs; from there on each power of two has 64 buckets.
    """

    _BITS: Final = 7
    _MICROSECONDS_MAX: Final = (1 << 36) - 1

    def __init__(self) -> None:
        self._counts = [0] * (self._place(self._MICROSECONDS_MAX) + 1)
        self._total = 0

    def add(self, seconds: float) -> None:
        microseconds = min(max(0, round(seconds * 1e6)), self._MICROSECONDS_MAX)
        self._counts[self._place(microseconds)] += 1
        self._total += 1

    def percentile_s(self, percent: float) -> float | None:
        """So many percent took so long at the most; None where there was nothing."""
        rank = max(1, math.ceil(self._total * percent / 100))
        seen = 0
        for place, found in enumerate(self._counts):
            seen += found
            if seen >= rank:
                return self._largest(place) / 1e6
        return None

    def _place(self, microseconds: int) -> int:
        shift = max(0, microseconds.bit_length() - self._BITS)
        return (shift << self._BITS - 1) + (microseconds >> shift)

    def _largest(self, place: int) -> int:
        shift = max(0, (place >> self._BITS - 1) - 1)
        return ((place - (shift << self._BITS - 1) + 1) << shift) - 1


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark does to the cluster."""

    seconds: float
    in_flight: int
    """Operations at a time."""
    batch: int
    """Records of an operation."""
    record_bytes: int
    rate: float | None = None
    """Records a second at most."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.seconds <= 3_600:
            raise InvalidInput(f"--seconds {self.seconds:g}: give 0.1 to 3600")
        if not (self.in_flight >= 1 and self.batch >= 1 and self.record_bytes >= 1):
            raise InvalidInput("--in-flight, --batch and --record-size are 1 or more")
        if self.in_flight * self.batch * (self.record_bytes + 1_000) > MEMORY_BYTES_MAX:
            raise InvalidInput(
                f"{self.in_flight} batches of {self.batch} records of {self.record_bytes} bytes "
                "do not fit into 256 MiB of memory: give a smaller --in-flight or --batch"
            )
        if self.rate is not None and self.rate <= 0:
            raise InvalidInput(f"--rate {self.rate:g}: give more than 0 records a second")

    def due_s(self, number: int) -> float | None:
        """When an operation is due, from the beginning on; None where it is as soon as it can."""
        return None if self.rate is None else number * self.batch / self.rate


class Measured(msgspec.Struct):
    """What came of a benchmark."""

    records: int = 0
    bytes: int = 0
    errors: int = 0
    """Operations that failed."""
    last_error: str = ""
    seconds: float = 0.0
    latencies: Latencies = msgspec.field(default_factory=Latencies)

    def row(self, operation: str, target: str, load: Load) -> dict[str, Any]:
        seconds = max(self.seconds, 1e-3)
        return {
            "operation": operation,
            "target": target,
            "seconds": round(self.seconds, 2),
            "records": self.records,
            "records_per_s": round(self.records / seconds),
            "mb_per_s": round(self.bytes / seconds / 1e6, 2),
            "p50_ms": _milliseconds(self.latencies.percentile_s(50)),
            "p99_ms": _milliseconds(self.latencies.percentile_s(99)),
            "errors": self.errors,
            "in_flight": load.in_flight,
            "batch": load.batch,
            "record_bytes": load.record_bytes,
        }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000, 2)


_COLUMNS: Final = {
    "operation": "operation",
    "seconds": "seconds",
    "records": "records",
    "records_per_s": "records/s",
    "mb_per_s": "MB/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "errors": "errors",
}

Operation = Callable[[int], Awaitable[tuple[int, int]]]
"""Does one by its number; how many records it moved, and their bytes."""


async def measure(
    operation: Operation, load: Load, stop: asyncio.Event, show: Callable[[str], None]
) -> Measured:
    """Repeat an operation until the time is over or `stop` is set."""
    numbers = count()
    measured = Measured()
    # The time of uvloop's loop goes on by whole milliseconds: too coarse for latencies.
    began = time.monotonic()
    end = began + load.seconds

    async def repeat() -> None:
        while (now := time.monotonic()) < end:
            number = next(numbers)
            due_s = load.due_s(number)
            start = now if due_s is None else began + due_s
            if start > now:
                await asyncio.sleep(min(start, end) - now)
            if start >= end:
                return
            try:
                records, size = await operation(number)
            except _HOPELESS:
                raise
            except RaftwoodError as error:
                measured.errors += 1
                measured.last_error = error.message
                await asyncio.sleep(ERROR_PAUSE_S)
                continue
            measured.latencies.add(time.monotonic() - start)
            measured.records += records
            measured.bytes += size
            # One that is answered from memory at once would hold the loop until the end.
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(repeat()) for _ in range(load.in_flight)]
    try:
        pending = set(tasks)
        while pending and not stop.is_set():
            done, pending = await asyncio.wait(
                pending, timeout=TICK_S, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            passed_s = time.monotonic() - began
            show(
                f"{passed_s:.1f} s, {measured.records / passed_s:,.0f} records/s, "
                f"{measured.bytes / passed_s / 1e6:,.1f} MB/s, {measured.errors} errors"
            )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    measured.seconds = time.monotonic() - began
    return measured


class Benchmark:
    """One call of the command: its load, and the rows that it prints."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.rows: list[dict[str, Any]] = []
        self.last_error = ""
        self.stop = asyncio.Event()
        self.progress = StatusLine("connecting")

    async def measure(self, name: str, target: str, operation: Operation) -> None:
        if self.stop.is_set():
            return
        measured = await measure(
            operation, self.load, self.stop, lambda text: self.progress.say(f"{name}: {text}")
        )
        self.rows.append(measured.row(name, target, self.load))
        self.last_error = measured.last_error or self.last_error


def _run(
    load: Load,
    source: Source,
    output: Format,
    work: Callable[[AsyncCluster, Benchmark], Awaitable[None]],
) -> int:
    """Measure, print what was measured, and answer the exit status."""
    settings = source.load().settings

    async def main() -> int:
        benchmark = Benchmark(load)
        _stop_on_signals(benchmark.stop)
        try:
            with benchmark.progress:
                async with AsyncCluster(settings) as cluster:
                    await work(cluster, benchmark)
        finally:
            # Figures are shown even if the cleaning up behind them fails.
            if benchmark.rows:
                write_rows(benchmark.rows, _COLUMNS, output)
        if benchmark.last_error:
            text = escaped(benchmark.last_error)
            sys.stderr.write(f"error: some operations failed, the last one: {text}\n")
        if benchmark.stop.is_set():
            return _INTERRUPTED
        return 1 if benchmark.last_error else 0

    return run(main())


def _stop_on_signals(stop: asyncio.Event) -> None:
    """The first signal ends the measuring; a second one ends the process as it always does."""
    loop = asyncio.get_running_loop()

    def stopping(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping, number)


def _own_name() -> str:
    """The name of what a benchmark makes for itself."""
    return f"bench-{secrets.token_hex(4)}"


def _payloads(load: Load) -> list[str]:
    """A batch of texts that LZ4 does not shorten: a benchmark measures the cluster, no codec."""
    source, size = random.Random(1), load.record_bytes
    return [base64.b64encode(source.randbytes(size)).decode()[:size] for _ in range(load.batch)]


# Streams


@asynccontextmanager
async def _stream(cluster: AsyncCluster, target: str | None) -> AsyncIterator[AsyncStream]:
    """The logstore that is named, or one of its own that is gone in the end."""
    if target is not None:
        yield cluster.stream(target)
        return
    project, logstore = _own_name(), "records"
    async with cluster.loghub() as hub:
        await hub.create_project(project, description="made by raftwood bench")
        try:
            await hub.create_logstore(project, logstore)
            yield cluster.stream(f"{project}/{logstore}")
        finally:
            with suppress(NotFound):
                await hub.delete_logstore(project, logstore)
            await hub.delete_project(project)


def _records(load: Load) -> list[dict[str, str | bytes]]:
    return [{"message": each} for each in _payloads(load)]


async def _fill(stream: AsyncStream, benchmark: Benchmark) -> None:
    """Write records to read, until there are enough of them or the time is over."""
    load, loop = benchmark.load, asyncio.get_running_loop()
    end = loop.time() + load.seconds
    records = _records(load)
    settings = ProducerSettings(batch_records_max=load.batch, memory_bytes_max=FILL_MEMORY_BYTES)
    async with stream.producer(settings) as producer:
        for number in range(max(1, FILL_BYTES // (load.batch * load.record_bytes))):
            if number and (loop.time() >= end or benchmark.stop.is_set()):
                break
            benchmark.progress.say(f"writing records to read: {number * load.batch:,}")
            await producer.send_many(records)
        await producer.flush()


class StreamReading:
    """Reads a logstore's batches, from its beginning again whenever it comes to the end."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._reader: AsyncReader | None = None

    async def read(self, _: int) -> tuple[int, int]:
        is_new = self._reader is None
        if self._reader is None:
            self._reader = await self._stream.read()
        batch = await self._reader.next_batch()
        if batch is None:
            await self.close()
            if is_new:
                raise NotFound(
                    f"{self._stream.project}/{self._stream.logstore} has no records to read"
                )
            return await self.read(0)
        return len(batch.records()), batch.head.raw_bytes

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


# Logs of the log service


@asynccontextmanager
async def _log_name(cluster: AsyncCluster, target: str | None) -> AsyncIterator[str]:
    """The log that is named, or one of its own that is gone in the end."""
    if target is not None:
        yield target
        return
    settings, name = cluster.settings, _own_name()
    network = operator_network(settings)
    async with connected_log_stores(cluster.environment, settings, None, network) as stores:
        keeper = KeeperClient(stores)
        try:
            wanted = settings.hakeeper.log_replicas
            shard = await keeper.number(AddShard(name, wanted, 0, secrets.token_hex(8)))
            try:
                view = await wait_for_leader(keeper, shard, LEADER_S_MAX)
                if not view.leader:
                    raise Unavailable(
                        f"log {name} has no leader yet: it needs {wanted} stores, as "
                        "hakeeper.log_replicas says"
                    )
                yield name
            finally:
                await keeper.command(RemoveShard(shard))
        finally:
            await keeper.close()


# Commands

app = App(name="bench", help_format="plaintext")

_Seconds = Annotated[float, Parameter(help="How long to measure.")]
_InFlight = Annotated[int, Parameter(help="Operations at a time.")]
_Batch = Annotated[int, Parameter(help="Records of one operation.")]
_Size = Annotated[str, Parameter(name="--record-size", help='A record\'s bytes, as "1kB".')]
_Rate = Annotated[
    float | None,
    Parameter(name="--rate", help="Records a second at most; else as many as the cluster takes."),
]
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]


def _load(seconds: float, in_flight: int, batch: int, size: str, rate: float | None = None) -> Load:
    return Load(
        seconds=seconds,
        in_flight=in_flight,
        batch=batch,
        record_bytes=quantity_of("--record-size", size, BYTES),
        rate=rate,
    )


@app.command
def produce(
    *,
    target: Annotated[
        str | None,
        Parameter(help="PROJECT/LOGSTORE to write into; else one of its own, deleted afterwards."),
    ] = None,
    seconds: _Seconds = 5.0,
    in_flight: _InFlight = 16,
    batch: _Batch = 100,
    size: _Size = "1kB",
    rate: _Rate = None,
    output: _Output = "text",
    source: Source = DEFAULTS,
) -> int:
    """Put records into a logstore; the latency is until all of a batch are stored."""
    load = _load(seconds, in_flight, batch, size, rate)
    records = _records(load)

    async def work(cluster: AsyncCluster, benchmark: Benchmark) -> None:
        async with _stream(cluster, target) as stream, stream.producer() as producer:

            async def put(_: int) -> tuple[int, int]:
                for delivery in await producer.send_many(records):
                    await delivery
                return load.batch, load.batch * load.record_bytes

            await benchmark.measure("produce", f"{stream.project}/{stream.logstore}", put)

    return _run(load, source, output, work)


@app.command
def consume(
    *,
    target: Annotated[
        str | None,
        Parameter(
            help="PROJECT/LOGSTORE to read; else one of its own, which is filled first and "
            "deleted afterwards."
        ),
    ] = None,
    seconds: _Seconds = 5.0,
    batch: Annotated[int, Parameter(help="Records of a stored batch, without --target.")] = 100,
    size: _Size = "1kB",
    output: _Output = "text",
    source: Source = DEFAULTS,
) -> int:
    """Read a logstore from its beginning, again and again; the latency is until a batch is there.

    Nothing is written into a logstore that is named, and no group's place is moved.
    """
    load = _load(seconds, 1, batch, size)

    async def work(cluster: AsyncCluster, benchmark: Benchmark) -> None:
        async with _stream(cluster, target) as stream:
            if target is None:
                await _fill(stream, benchmark)
            reading = StreamReading(stream)
            try:
                name = f"{stream.project}/{stream.logstore}"
                await benchmark.measure("consume", name, reading.read)
            finally:
                await reading.close()

    return _run(load, source, output, work)


@app.command
def kv(
    *,
    target: Annotated[
        str | None,
        Parameter(
            help="Overwrite and leave the keys that begin with this; else keys of its own, "
            "deleted afterwards."
        ),
    ] = None,
    seconds: _Seconds = 5.0,
    in_flight: _InFlight = 64,
    batch: _Batch = 1,
    size: _Size = "100",
    rate: _Rate = None,
    output: _Output = "text",
    source: Source = DEFAULTS,
) -> int:
    """Set keys of the table in use, then get them, each for --seconds."""
    load = _load(seconds, in_flight, batch, size, rate)
    prefix = f"{_own_name()}:" if target is None else target
    values = _payloads(load)
    keys = [f"{prefix}{number}" for number in range(max(KEYS, batch))]

    def keys_of(number: int) -> list[str]:
        first = number * batch % (len(keys) - batch + 1)
        return keys[first : first + batch]

    async def work(cluster: AsyncCluster, benchmark: Benchmark) -> None:
        async with cluster.kv() as table:

            async def put(number: int) -> tuple[int, int]:
                if batch == 1:
                    await table.set(keys_of(number)[0], values[0])
                else:
                    await table.set_many(zip(keys_of(number), values, strict=True))
                return batch, batch * load.record_bytes

            async def get(number: int) -> tuple[int, int]:
                if batch == 1:
                    found = [await table.get(keys_of(number)[0])]
                else:
                    found = await table.get_many(keys_of(number))
                return batch, sum(len(each) for each in found if each is not None)

            try:
                for name, operation in (("set", put), ("get", get)):
                    await benchmark.measure(name, prefix, operation)
            finally:
                if target is None:
                    await table.delete_many(keys)

    return _run(load, source, output, work)


@app.command
def log(
    *,
    target: Annotated[
        str | None,
        Parameter(help="The log to append to; else one of its own, removed afterwards."),
    ] = None,
    seconds: _Seconds = 5.0,
    in_flight: _InFlight = 64,
    batch: _Batch = 1,
    size: _Size = "1kB",
    rate: _Rate = None,
    output: _Output = "text",
    source: Source = DEFAULTS,
) -> int:
    """Append to a log of the log service; the latency is until all of a batch are durable."""
    load = _load(seconds, in_flight, batch, size, rate)
    records = [each.encode() for each in _payloads(load)]

    async def work(cluster: AsyncCluster, benchmark: Benchmark) -> None:
        async with _log_name(cluster, target) as name, cluster.log(name) as opened:

            async def append(_: int) -> tuple[int, int]:
                await opened.append_many(records)
                return batch, batch * load.record_bytes

            await benchmark.measure("append", name, append)

    return _run(load, source, output, work)
