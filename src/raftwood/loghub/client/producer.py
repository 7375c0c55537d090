"""`AsyncProducer`: puts records into a logstore, each once, in order per key.

    async with client.producer("project", "logstore") as producer:
        delivery = await producer.send({"message": "hello"}, key="user-7")
        await delivery

`send` waits only while the producer's memory is full. A record goes out at once if its shard has no
batch under way; otherwise records gather until the answer. A record under way is a `Delivery`:
await it, or ask it later. The producer carries out what `producer_rules` decides, and holds records
until they are settled, within a bound on memory.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self

import msgspec

from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    InvalidInput,
    LogSealed,
    Overloaded,
    RaftwoodError,
    Unauthenticated,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.log_group_codec import encode_record, encode_shared, exact_text
from raftwood.base.position import Position, position_from_bytes
from raftwood.delivery.deliveries import Delivery
from raftwood.delivery.lanes import DOUBTFUL
from raftwood.delivery.pump import Pump
from raftwood.loghub.batches import Batch as PutBatch
from raftwood.loghub.batches import Format
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.client.producer_rules import (
    AskForShards,
    ProducerBatch,
    ProducerLimits,
    ProducerRecord,
    ProducerRules,
    SendToShard,
    Settle,
    ShardLane,
)
from raftwood.loghub.errors import DeliveryUnknown, NotDelivered, ShardNotFound, ShardReadonly
from raftwood.loghub.shards import hash_key
from raftwood.loghub.wire import PUT, SHARDS, PutRequest, StreamRequest, encode_put
from raftwood.net import Payload

RECORD_OVERHEAD_BYTES: Final = 256
"""What a record takes in memory beside its bytes."""


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """Where a record is stored: the position of its batch."""

    shard: int
    position: Position


class RecordDelivery(ProducerRecord, Delivery[Delivered], gc=False, eq=False):
    """A record under way; its outcome is where it is stored, or whether it may be."""

    _outcome: Delivered | RaftwoodError | None = None  # type: ignore[assignment]
    _callbacks: list[Callable[[], None]] | None = None

    @property
    def is_done(self) -> bool:
        return self._outcome is not None


class BatchDelivery(RecordDelivery, gc=False, eq=False):
    """An Arrow batch under way: many records that stay together."""

    is_whole = True


def settle_all(
    records: Iterable[ProducerRecord], outcome: Delivered | RaftwoodError
) -> tuple[int, int]:
    """Sets the outcome of records that have none yet. Returns how many records were settled, and
    their bytes in memory.
    """
    count = size = 0
    for record in records:
        assert isinstance(record, RecordDelivery)
        if record._outcome is None:
            record._outcome = outcome
            count += record.count
            size += record.size + RECORD_OVERHEAD_BYTES
            if record._callbacks:
                record._tell()
    return count, size


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer batches records, and how much it holds."""

    codec: Codec = Codec.LZ4
    linger_ms: int = 0
    """How long records wait for more while nothing is under way."""
    batch_records_max: int = 16_384
    batch_bytes_max: int = 1 << 20
    memory_bytes_max: int = 64 << 20
    """Limit of the records that are not settled; `send` waits above it."""
    delivery_timeout_ms: int = 30_000
    attempt_timeout_ms: int = 5_000

    def limits(self) -> ProducerLimits:
        return ProducerLimits(
            delivery_timeout_s=self.delivery_timeout_ms / 1000,
            batch_records_max=self.batch_records_max,
            batch_bytes_max=self.batch_bytes_max,
            linger_s=self.linger_ms / 1000,
        )


_CACHE_MAX: Final = 4096
_NO_TAGS: Final[Mapping[str, str]] = {}


class AsyncProducer:
    """Made by `AsyncLogHubClient.producer`; `close` it when done, or use `async with`."""

    def __init__(
        self,
        environment: Environment,
        gateways: Gateways,
        *,
        project: str,
        logstore: str,
        settings: ProducerSettings | None = None,
    ) -> None:
        self.settings = settings or ProducerSettings()
        self.project = project
        self.logstore = logstore
        self._wall_ns = environment.clock.wall_ns
        self._stream = StreamRequest(project, logstore)
        self._gateways = gateways
        self._name = f"producer-{environment.random.randbytes(16).hex()}"
        self._loop = asyncio.get_running_loop()
        self._rules = ProducerRules(self.settings.limits(), self._name)
        self._add = self._rules.add
        self._deadline = 0.0
        """The deadline of the records that come before the next turn."""
        self._timeout_s = self.settings.delivery_timeout_ms / 1000
        self.memory_max = self.settings.memory_bytes_max
        """The memory limit; 0 once the producer is closed."""
        self.pause_at = 0
        """Above this, a sender yields to the loop, or waits for room."""
        self.held_bytes = 0
        """The memory that unsettled records take."""
        self._changed = asyncio.Event()
        """Set when records are settled; wakes those that wait for room, or for a flush."""
        self._pump = Pump(self._turn)
        self._asking: asyncio.Task[None] | None = None
        self._last_error: RaftwoodError | None = None
        self._first_failure: RaftwoodError | None = None
        self._is_closed = False
        self.on_settled: Callable[[], None] | None = None
        """Called when there is room again, for a sender that waits in another thread."""
        self.stored = 0
        """Counts records, as does the next one."""
        self.failed = 0
        self.retries = 0
        """Batches that were sent again."""
        self._routes: dict[str | bytes, str] = {}
        self._shared: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(is_waiting=kind is None)

    # Records in

    def send_soon(
        self,
        contents: Mapping[str, str | bytes],
        *,
        key: str | bytes | None = None,
        time_ns: int | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> Delivery[Delivered]:
        """Takes a record without waiting; `Overloaded` if there is no room for it."""
        data = encode_record(contents, self._wall_ns() if time_ns is None else time_ns)
        route = None if key is None else self._routes.get(key) or self._route(key)
        if topic or source or tags:
            shared = self._shared_bytes(topic, source, tags)
            return self.accept(RecordDelivery(data, len(data), route, shared))
        return self.accept(RecordDelivery(data, len(data), route))

    async def send(
        self,
        contents: Mapping[str, str | bytes],
        *,
        key: str | bytes | None = None,
        time_ns: int | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> Delivery[Delivered]:
        """Takes a record, and waits for room if need be. Await the delivery to know that it is
        stored.

        Records of one key are stored in the order of these calls; those without a key go to any
        shard.
        """
        if self.held_bytes >= self.pause_at:
            await self.room()
        data = encode_record(contents, self._wall_ns() if time_ns is None else time_ns)
        route = None if key is None else self._routes.get(key) or self._route(key)
        if topic or source or tags:
            shared = self._shared_bytes(topic, source, tags)
            return self.accept(RecordDelivery(data, len(data), route, shared))
        return self.accept(RecordDelivery(data, len(data), route))

    async def send_many(
        self,
        records: Iterable[Mapping[str, str | bytes]],
        *,
        key: str | bytes | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> list[Delivery[Delivered]]:
        """Takes many records of one key, or of none."""
        deliveries: list[Delivery[Delivered]] = []
        accept, wall_ns = self.accept, self._wall_ns
        route = None if key is None else self._route(key)
        shared = self._shared_bytes(topic, source, tags)
        for contents in records:
            if self.held_bytes >= self.pause_at:
                await self.room()
            data = encode_record(contents, wall_ns())
            deliveries.append(accept(RecordDelivery(data, len(data), route, shared)))
        return deliveries

    async def send_arrow(
        self, table: Any, *, key: str | bytes | None = None
    ) -> list[Delivery[Delivered]]:
        """Takes a record batch or a table unchanged; a large one in parts, a delivery for each."""
        from raftwood.loghub.arrow_batches import write_arrow_stream  # noqa: PLC0415 (an extra)

        deliveries: list[Delivery[Delivered]] = []
        rows = table.num_rows
        parts = max(1, -(-table.nbytes // self.settings.batch_bytes_max))
        step = max(1, -(-rows // parts))
        for first in range(0, rows, step):
            part = table.slice(first, step)
            data = write_arrow_stream(part)
            route = None if key is None else self._route(key)
            delivery = BatchDelivery(data, len(data), route, count=part.num_rows)
            if self.held_bytes >= self.pause_at:
                await self.room()
            deliveries.append(self.accept(delivery))
        return deliveries

    def encode(
        self,
        contents: Mapping[str, str | bytes],
        *,
        key: str | bytes | None = None,
        time_ns: int | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> RecordDelivery:
        """Makes a record that is not taken yet; the only method that other threads may call."""
        data = encode_record(contents, self._wall_ns() if time_ns is None else time_ns)
        route = None if key is None else self._routes.get(key) or self._route(key)
        shared = self._shared_bytes(topic, source, tags) if topic or source or tags else b""
        return RecordDelivery(data, len(data), route, shared)

    def _route(self, key: str | bytes) -> str:
        data = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        if not isinstance(data, bytes):
            raise InvalidInput(f"a key is a {type(key).__name__}: give text or bytes")
        if len(self._routes) >= _CACHE_MAX:
            self._routes.clear()
        self._routes[key] = route = hash_key(data)
        return route

    def _shared_bytes(self, topic: str, source: str, tags: Mapping[str, str]) -> bytes:
        what = (topic, source, tuple(tags.items()))
        encoded = self._shared.get(what)
        if encoded is None:
            if len(self._shared) >= _CACHE_MAX:
                self._shared.clear()
            encoded = encode_shared(
                topic=exact_text(topic),
                source=exact_text(source),
                tags=[(exact_text(name), exact_text(value)) for name, value in tags.items()],
            )
            self._shared[what] = encoded
        return encoded

    def accept(self, delivery: RecordDelivery, *, is_counted: bool = False) -> RecordDelivery:
        """Takes a record of `encode`; `is_counted` if its sender has already counted it as held."""
        if self.held_bytes >= self.memory_max and not is_counted:
            raise self._full()
        if not self._pump.is_scheduled:
            self._schedule()
        self.held_bytes += delivery.size + RECORD_OVERHEAD_BYTES
        delivery.deadline = self._deadline
        self._add(delivery)
        return delivery

    # Bounds

    def _full(self) -> Unavailable:
        if self._is_closed:
            return Unavailable("the producer is closed: make another one")
        why = "" if self._last_error is None else f" ({self._last_error.message})"
        return Overloaded(
            f"the producer holds {self.held_bytes} bytes that are not stored yet{why}: send more "
            "slowly, or raise memory_bytes_max"
        )

    async def room(self) -> None:
        """Waits for room, as long as a record may take; if there is some, yields to the loop."""
        if self.held_bytes < self.memory_max:
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self.held_bytes >= self.memory_max and not self._is_closed:
                    await self._changed.wait()
        except TimeoutError:
            raise self._full() from None

    async def flush(self) -> None:
        """Waits until all taken is settled; raises the first failure since the last flush."""
        self._rules.is_hurried = True
        self._schedule()
        pending = self._rules.outstanding()
        try:
            while self.held_bytes and pending:
                last = pending[-1]
                assert isinstance(last, RecordDelivery)
                if last.is_done:
                    pending.pop()
                else:
                    await self._changed.wait()
        finally:
            self._rules.is_hurried = False
        failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise type(failure)(failure.message)

    async def close(self, *, is_waiting: bool = True) -> None:
        """Flushes first; without `is_waiting`, what is not stored fails."""
        if self._is_closed:
            return
        try:
            if is_waiting:
                await self.flush()
        finally:
            self._is_closed = True
            self.memory_max = self.pause_at = 0
            self._pump.close()
            if self._asking is not None:
                self._asking.cancel()
                await asyncio.gather(self._asking, return_exceptions=True)
            waiting, unknown = self._rules.abandon()
            self._fail(waiting, NotDelivered("the producer was closed before the record was sent"))
            self._fail(unknown, DeliveryUnknown("the producer was closed before an answer came"))

    # What the rules say

    def _schedule(self) -> None:
        if not self._pump.is_scheduled:
            self.pause_at = min(
                self.memory_max, self.held_bytes + 2 * self.settings.batch_bytes_max
            )
            self._deadline = self._loop.time() + self._timeout_s
            self._pump.soon()

    def _turn(self, now: float) -> float:
        for action in self._rules.actions(now):
            if isinstance(action, SendToShard):
                self._send(action.lane, action.batch)
            elif isinstance(action, AskForShards):
                self._asking = self._loop.create_task(self._ask_for_shards())
            elif isinstance(action, Settle):
                self._expired(action)
        return self._rules.due

    def _send(self, lane: ShardLane, batch: ProducerBatch) -> None:
        self.retries += lane.failures > 0
        try:
            channel = self._gateways.pick(lane.shard + lane.failures)
            future = channel.call(PUT, self._request(lane, batch), self.settings.attempt_timeout_ms)
        except (Unavailable, Unauthenticated) as error:
            self._last_error = error
            self._rules.put_off(lane, now=self._loop.time())
            self._schedule()
        except RaftwoodError as error:
            self._failed(lane, error)
        else:
            batch.was_sent = True
            future.add_done_callback(partial(self._answered, lane))

    def _request(self, lane: ShardLane, batch: ProducerBatch) -> list[Buffer]:
        records, stream = batch.records, self._stream
        first = records[0]
        if first.is_whole:
            put = PutBatch.packed(
                first.data, records=first.count, codec=self.settings.codec, kind=Format.ARROW
            )
        else:
            parts = [record.data for record in records]
            if first.shared:
                parts.append(first.shared)
            put = PutBatch.packed(b"".join(parts), records=len(records), codec=self.settings.codec)
        return encode_put(
            PutRequest(stream.project, stream.logstore, lane.shard, self._name, batch.sequence, put)
        )

    def _answered(self, lane: ShardLane, future: "asyncio.Future[Payload]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if self._is_closed:
            return  # its records have already failed as "may be stored"
        if error is None:
            self._stored(lane, future.result())
        elif isinstance(error, RaftwoodError):
            self._failed(lane, error)
        else:
            raise error
        self._pump.run()

    def _stored(self, lane: ShardLane, payload: Payload) -> None:
        records = self._rules.stored(lane).records
        self._last_error = None
        self.stored += self._settle(
            records, Delivered(lane.shard, position_from_bytes(bytes(payload)))
        )

    def _failed(self, lane: ShardLane, error: RaftwoodError) -> None:
        now = self._loop.time()
        self._last_error = error
        if isinstance(error, ShardReadonly | LogSealed):
            self._rules.readonly(lane)
        elif isinstance(error, ShardNotFound):
            batch = self._rules.gone(lane)
            if batch is not None:
                self._fail(batch.records, DeliveryUnknown(error.message))
        elif isinstance(error, DOUBTFUL):
            self._rules.lost(lane, now=now)
        elif isinstance(error, Unavailable):
            self._rules.put_off(lane, now=now)
        else:
            batch = self._rules.refused(lane)
            self._fail(
                batch.records,
                DeliveryUnknown(error.message) if batch.is_doubtful else error,
            )
        self._schedule()

    async def _ask_for_shards(self) -> None:
        try:
            shards = await self._gateways.ask(
                SHARDS, self._stream, timeout_ms=self.settings.attempt_timeout_ms
            )
        except RaftwoodError as error:
            self._last_error = error
            if isinstance(error, Unavailable | DeadlineExceeded):
                self._rules.not_learned(now=self._loop.time())
            else:
                self._fail(self._rules.no_shards(now=self._loop.time()), error)
        else:
            self._rules.learned(shards, now=self._loop.time())
        self._schedule()

    # Outcomes

    def _expired(self, settle: Settle) -> None:
        timeout_ms = self.settings.delivery_timeout_ms
        why = "" if self._last_error is None else f" ({self._last_error.message})"
        if settle.is_unknown:
            error: RaftwoodError = DeliveryUnknown(
                f"no answer in {timeout_ms} ms{why}: the record may be stored, now or later"
            )
        else:
            error = NotDelivered(
                f"the record could not be stored in {timeout_ms} ms{why}: send it again, or raise "
                "delivery_timeout_ms"
            )
        self._fail(settle.records, error)

    def _fail(self, records: Iterable[ProducerRecord], error: RaftwoodError) -> None:
        count = self._settle(records, error)
        self.failed += count
        if count and self._first_failure is None:
            self._first_failure = error

    def _settle(self, records: Iterable[ProducerRecord], outcome: Delivered | RaftwoodError) -> int:
        count, size = settle_all(records, outcome)
        self.held_bytes -= size
        if self.on_settled is not None:
            self.on_settled()
        self._changed.set()
        self._changed = asyncio.Event()
        return count
