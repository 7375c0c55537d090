"""`Receiver`: serves shippers on a listener of its own, and stores what they send in a `Sink`.

A body stays unchanged from the connection to the sink; the receiver never looks at records.
`DatagramListener` accepts the same frames by UDP, and sends no acks.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from raftwood.base.caches import LruCache
from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    DiskFull,
    InvalidInput,
    NotLeader,
    Overloaded,
    RaftwoodError,
    TooLarge,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings
from raftwood.clogs.configuration import FILE_NAME_BYTES_MAX, checked_file_name
from raftwood.clogs.errors import OutOfOrder
from raftwood.clogs.frames import (
    BODY_BYTES_MAX,
    FRAME_OVERHEAD_BYTES,
    NO_PRODUCER,
    PLACE_BYTES_MAX,
    ClogsMessage,
    MessageType,
    decode_message,
    encode_message,
)
from raftwood.clogs.seams import Sink
from raftwood.clogs.wire import (
    CLUSTER,
    PING,
    RECEIVER_ROLE,
    STORE,
    decode_datagram,
    encode_datagram,
)
from raftwood.net import (
    Call,
    Identity,
    Payload,
    Secret,
    Server,
    ServerCredentials,
    ServerLimits,
    ServerTls,
    Service,
)

SYSTEMS_MAX: Final = 256
"""Systems with a metric of their own; those that come later share one."""
OTHER_SYSTEMS: Final = "other"


class ReceiverFigures:
    """The metrics of one receiver. File names are no labels: there may be too many."""

    def __init__(self, metrics: Metrics) -> None:
        self.frames = 0
        self.pings = 0
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.dropped_datagrams = 0
        self.refused: dict[str, int] = {}
        """By the code of the error, whose number is bounded by the error classes."""
        self.systems: dict[str, int] = {}
        counters = {
            "clogs_frames_total": ("Frames that shippers sent.", lambda: self.frames),
            "clogs_pings_total": ("Pings that were answered.", lambda: self.pings),
            "clogs_batches_total": (
                "Batches that were acknowledged, repetitions too.",
                lambda: self.batches,
            ),
            "clogs_records_total": ("Records of those batches.", lambda: self.records),
            "clogs_bytes_total": ("Bytes of those batches, as they came.", lambda: self.bytes),
            "clogs_datagrams_dropped_total": (
                "Datagrams that were forged, damaged, too many or could not be stored.",
                lambda: self.dropped_datagrams,
            ),
        }
        for name, (text, read) in counters.items():
            metrics.pull_counter(name, text, read)
        metrics.pull_counters(
            "clogs_refused_total", "Frames that were refused.", "code", lambda: self.refused
        )
        metrics.pull_counters(
            "clogs_system_batches_total",
            "Batches that were acknowledged, by the shipper's system id.",
            "system",
            lambda: self.systems,
        )

    def stored(self, *, system: int, records: int, size: int) -> None:
        self.batches += 1
        self.records += records
        self.bytes += size
        name = str(system)
        if name not in self.systems and len(self.systems) >= SYSTEMS_MAX:
            name = OTHER_SYSTEMS
        self.systems[name] = self.systems.get(name, 0) + 1

    def refuse(self, error: RaftwoodError) -> None:
        self.refused[error.code] = self.refused.get(error.code, 0) + 1


# Whether the storage behind a receiver is usable, judged by the outcome of batches. No clock, no
# I/O.
#
# A receiver that answers pings while it can store nothing would keep its files for nothing. So if
# batch after batch fails for a while, it refuses pings, and shippers go to another receiver. Then
# no batches arrive that would show a recovery, so it accepts pings again some time after the last
# failure.

FAILURES_MIN: Final = 3
"""Failures in a row, with no batch stored between them."""
FAILING_S_MIN: Final = 2.0
"""The least time from the first of them to the last."""
SHUNNED_S: Final = 10.0
"""How long after the last failure pings are refused."""


class StorageHealth:
    """Call it for each batch that was stored, or that failed because of the storage."""

    def __init__(self) -> None:
        self._failures = 0
        self._first_s = 0.0
        self._last_s = 0.0

    def stored(self) -> None:
        self._failures = 0

    def failed(self, now_s: float) -> None:
        if self._failures and now_s - self._last_s >= SHUNNED_S:
            self._failures = 0
        if not self._failures:
            self._first_s = now_s
        self._failures += 1
        self._last_s = now_s

    def is_usable(self, now_s: float) -> bool:
        return (
            self._failures < FAILURES_MIN
            or self._last_s - self._first_s < FAILING_S_MIN
            or now_s - self._last_s >= SHUNNED_S
        )


# The order of batches that a shipper has under way together: one that follows another waits for it.
#
# A shipper sends the first batch of a file without the flag *follows*: all batches before it are
# stored. The next ones have the flag: each is stored only behind the one before it, at the same
# place, if this receiver has stored that one itself. If it has not, it answers `OutOfOrder`, and
# the shipper begins again with the first batch that it has no ack for. So whatever is lost, late or
# refused, and whichever receivers get a file's batches, no batch is ever stored before the one in
# front of it.
#
# This state may be forgotten at any time: it only saves round trips.

FOLLOWING_MAX: Final = 16
"""Batches of a file that a shipper may have under way here; sent with each ack."""
_PRODUCERS_MAX: Final = 65_536


class _Producer:
    __slots__ = ("place", "sequence", "under_way")

    def __init__(self) -> None:
        self.place = ""
        """The place of the last stored batch."""
        self.sequence = 0
        self.under_way: dict[int, asyncio.Future[None]] = {}
        """By sequence: done once the batch is stored, or has failed."""


class Ordering:
    """Keeps the order of batches at one receiver."""

    def __init__(self, *, producers_max: int = _PRODUCERS_MAX) -> None:
        self._producers: LruCache[tuple[str, bytes], _Producer] = LruCache(producers_max)

    async def store(
        self, key: str, message: ClogsMessage, store: Callable[[], Awaitable[str]]
    ) -> str:
        """Stores a batch in its turn; `OutOfOrder` if the one before it is not stored here."""
        if message.is_resumed or not message.place:
            return await store()  # it is searched in all places, and comes alone
        producer = self._producer(key, message)
        loop = asyncio.get_running_loop()
        before = producer.under_way.get(message.sequence - 1)
        if message.sequence in producer.under_way:
            mine = None  # it came twice: the log stores it once
        else:
            mine = producer.under_way[message.sequence] = loop.create_future()
        try:
            if message.follows:
                if before is not None:
                    await asyncio.wait([before])
                if not self.is_behind(key, message):
                    raise _out_of_order(message)
            place = await store()
            self.stored(key, message)
        finally:
            if mine is not None:
                del producer.under_way[message.sequence]
                mine.set_result(None)
        return place

    def is_behind(self, key: str, message: ClogsMessage) -> bool:
        """Whether the batch before is known to be stored, at the same place."""
        known = self._producers.get((key, message.producer))
        return (
            known is not None
            and known.place == message.place
            and known.sequence >= message.sequence - 1
        )

    def stored(self, key: str, message: ClogsMessage) -> None:
        """Records that the batch and all before it are stored."""
        known = self._producer(key, message)
        if message.sequence > known.sequence:
            known.place, known.sequence = message.place, message.sequence

    def _producer(self, key: str, message: ClogsMessage) -> _Producer:
        name = (key, message.producer)
        found = self._producers.get(name)
        if found is None:
            found = _Producer()
            # If a used entry is displaced, its batch is recorded in vain, and the next one is sent
            # again.
            self._producers.put(name, found)
        return found


def _out_of_order(message: ClogsMessage) -> OutOfOrder:
    return OutOfOrder(
        f"batch {message.sequence} of file {message.name[:80]!r} follows one that is not stored "
        "here: send that one first"
    )


# The receiver

DRAIN_MS: Final = 2_000
_OF_STORAGE: Final = (Unavailable, ConnectionLost, NotLeader, DiskFull, DeadlineExceeded)
"""Errors of the storage as a whole; others, such as a quota, concern one shipper or file."""
_FRAME_BYTES_MAX: Final = (
    FRAME_OVERHEAD_BYTES + FILE_NAME_BYTES_MAX + PLACE_BYTES_MAX + BODY_BYTES_MAX
)


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of batches under way; a batch above them is refused, and sent again."""

    batches_max: int = 4_096
    bytes_max: int = 256 << 20
    connections_max: int = 4_096
    connections: ConnectionSettings = ConnectionSettings()


class Receiver:
    """Call `listen`, and `close` when done; the owner of the sink closes it."""

    def __init__(
        self,
        environment: Environment,
        sink: Sink,
        *,
        secret_of: Callable[[Identity], Secret | None],
        limits: ReceiverLimits,
        metrics: Metrics,
        service: Service | None = None,
    ) -> None:
        """`service` may have handlers of other methods; `secret_of` looks up access keys."""
        self._sink = sink
        self._limits = limits
        self.figures = ReceiverFigures(metrics)
        self._health = StorageHealth()
        self._ordering = Ordering()
        self._batches = 0
        self._bytes = 0
        metrics.pull_gauge(
            "clogs_batches_under_way", "Batches that are being stored.", lambda: self._batches
        )
        metrics.pull_gauge(
            "clogs_bytes_under_way", "Bytes that are being stored.", lambda: self._bytes
        )
        service = service or Service()
        service.task(STORE, self._store)
        service.fast(PING, self._ping)
        credentials = ServerCredentials(
            cluster_id=CLUSTER,
            identity=Identity(
                role=RECEIVER_ROLE, node_id=f"receiver-{environment.random.randbytes(6).hex()}"
            ),
            secret_of=secret_of,
        )
        self._server = Server(
            service,
            credentials,
            environment.random,
            ServerLimits(
                connections_max=limits.connections_max,
                connections=limits.connections,
                handler_tasks_max=2 * limits.batches_max + limits.connections_max,
                frame_bytes_max=_FRAME_BYTES_MAX,
                bytes_in_flight_max=2 * _FRAME_BYTES_MAX,
            ),
        )
        self._server.admission.count_in(metrics, "clogs")

    async def listen(self, host: str, port: int, *, tls: ServerTls | None = None) -> int:
        """Accepts shippers; returns the port, which the system chooses if it is 0."""
        return await self._server.listen(host, port, tls=tls)

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Answers calls under way, for up to `drain_ms`, then stops."""
        await self._server.close(drain_timeout_ms=drain_ms)

    # Frames

    def _ping(self, call: Call, payload: Payload) -> None:
        self.figures.frames += 1
        try:
            pong = self.pong(decode_message(payload))
        except RaftwoodError as error:
            self.figures.refuse(error)
            raise
        call.reply(encode_message(pong))

    def pong(self, ping: ClogsMessage) -> ClogsMessage:
        """Answers a ping; `Unavailable` if nothing can be stored here."""
        if ping.type is not MessageType.PING:
            raise InvalidInput(f"a frame of type {ping.type.name} is no ping")
        if not self._health.is_usable(asyncio.get_running_loop().time()):
            raise Unavailable("nothing could be stored here of late: use another receiver")
        self.figures.pings += 1
        return ClogsMessage(
            type=MessageType.PONG, system=ping.system, sequence=(ping.sequence + 1) % (1 << 64)
        )

    async def _store(self, call: Call, payload: Payload) -> list[Buffer]:
        self.figures.frames += 1
        key = call.peer.node_id
        try:
            message = decode_message(payload)
            if message.type is MessageType.LOCATE:
                place = await self._sink.locate(key, checked_file_name(message.name))
                found = ClogsMessage(type=MessageType.ACK, count=FOLLOWING_MAX, place=place)
                return encode_message(found)
            place = await self.store(key, message)
        except RaftwoodError as error:
            self.figures.refuse(error)
            raise
        return encode_message(
            ClogsMessage(
                type=MessageType.ACK,
                producer=message.producer,
                sequence=message.sequence,
                count=FOLLOWING_MAX,
                place=place,
            )
        )

    async def store(self, key: str, message: ClogsMessage) -> str:
        """Stores a batch in the sink, if there is room; returns the place of the file's next."""
        check_data(message)
        with self._under_way(len(message.body)):
            try:
                store = partial(self._sink.store, key, message)
                place = await self._ordering.store(key, message, store)
            except RaftwoodError as error:
                if type(error) in _OF_STORAGE:
                    self._health.failed(asyncio.get_running_loop().time())
                raise
        self._health.stored()
        self.figures.stored(system=message.system, records=message.count, size=len(message.body))
        return place

    @contextmanager
    def _under_way(self, size: int) -> Iterator[None]:
        limits = self._limits
        # A single batch is accepted whatever its size, or it never would be.
        is_full = self._bytes + size > limits.bytes_max and self._batches
        if self._batches >= limits.batches_max or is_full:
            raise Overloaded(
                f"{self._batches} batches of {self._bytes} bytes are being stored here: send it "
                "again in a moment, or to another receiver"
            )
        self._batches += 1
        self._bytes += size
        try:
            yield
        finally:
            self._batches -= 1
            self._bytes -= size


def check_data(message: ClogsMessage) -> None:
    """`InvalidInput` if no shipper may send this as a batch, by any way."""
    if message.type is not MessageType.DATA:
        raise InvalidInput(f"a frame of type {message.type.name} cannot be stored: send data")
    checked_file_name(message.name)
    if message.producer == NO_PRODUCER or not 1 <= message.sequence < 1 << 63:
        raise InvalidInput(
            "a batch without a producer or a sequence could be stored twice: number them from 1 on"
        )
    size = len(message.body)
    if not size or not message.count:
        raise InvalidInput("a batch without records: send some, or nothing")
    if size > BODY_BYTES_MAX:
        raise TooLarge(f"a batch of {size} bytes: up to {BODY_BYTES_MAX} are taken, send less")
    if message.codec is Codec.NONE and message.raw_bytes != size:
        raise InvalidInput(
            f"a batch that is not compressed has {size} bytes, not {message.raw_bytes} as was said"
        )


# Datagrams at a receiver: pings are answered; batches are stored, without an answer.
#
# A batch may get lost on its way, or be dropped if there are too many; drops are counted. A batch
# that arrives twice is stored once, even if its file has moved: it is searched like a resumed
# batch.

WAITING_MAX: Final = 10_000
"""Limit of batches that wait to be stored; more are dropped."""
WAITING_BYTES_MAX: Final = 64 << 20
FILES_AT_ONCE_MAX: Final = 64
CLOSE_S_MAX: Final = 2.0
_log = get_logger("clogs")


class DatagramListener(asyncio.DatagramProtocol):
    """Call `listen`, and `close` when done; the owner of the receiver closes it."""

    def __init__(self, receiver: Receiver, *, secret: bytes, key: str) -> None:
        """The receiver stores batches with the rights of the access key `key`."""
        self._receiver = receiver
        self._secret = secret
        self._key = key
        self._transport: asyncio.DatagramTransport | None = None
        self._is_lost = asyncio.Event()
        self._waiting: dict[str, deque[ClogsMessage]] = {}
        """By file: one batch of each is under way at a time, in the order of arrival."""
        self._count = 0
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listens for datagrams; returns the port, which the system chooses if it is 0."""
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=(host, port)
        )
        return int(transport.get_extra_info("sockname")[1])

    async def close(self) -> None:
        """Stores what has arrived, within a moment."""
        if self._transport is not None:
            self._transport.abort()
            await self._is_lost.wait()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()
                await asyncio.wait(late)

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_lost.set()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        figures = self._receiver.figures
        figures.frames += 1
        try:
            message = decode_datagram(data, self._secret)
            if message.type is MessageType.PING:
                pong = encode_datagram(self._receiver.pong(message), self._secret)
                assert self._transport is not None
                self._transport.sendto(pong, addr)
                return
        except RaftwoodError as error:
            self._drop(error)
            return
        size = len(message.body)
        if self._count >= WAITING_MAX or self._bytes + size > WAITING_BYTES_MAX:
            figures.dropped_datagrams += 1
            return
        self._count += 1
        self._bytes += size
        self._waiting.setdefault(message.name, deque()).append(message)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._store_all(), name="datagrams of clogs")
            self._task.add_done_callback(self._ended)

    def error_received(self, exc: Exception) -> None:
        """Ignores the error: it only says that no socket took a pong."""

    # Storing

    async def _store_all(self) -> None:
        while self._waiting:
            names = list(self._waiting)[:FILES_AT_ONCE_MAX]
            await asyncio.gather(*(self._store(self._take(name)) for name in names))

    def _take(self, name: str) -> ClogsMessage:
        queue = self._waiting.pop(name)
        message = queue.popleft()
        if queue:
            self._waiting[name] = queue  # behind all others
        return message

    async def _store(self, message: ClogsMessage) -> None:
        try:
            await self._receiver.store(self._key, replace(message, place="", is_resumed=True))
        except RaftwoodError as error:
            self._drop(error)
        finally:
            self._count -= 1
            self._bytes -= len(message.body)

    def _drop(self, error: RaftwoodError) -> None:
        self._receiver.figures.dropped_datagrams += 1
        self._receiver.figures.refuse(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("datagrams could not be stored", exc_info=error)
