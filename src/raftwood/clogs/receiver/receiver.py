"""`Receiver`: serves shippers on a listener of its own, and stores what they send in a `Sink`.

A body stays the bytes that came, from the connection to the sink; nothing here looks at records.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from raftwood.base.codecs import Codec
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
from raftwood.base.metrics import Metrics
from raftwood.base.sections import ConnectionSettings
from raftwood.clogs.frames import (
    BODY_BYTES_MAX,
    FRAME_OVERHEAD_BYTES,
    NO_PRODUCER,
    PLACE_BYTES_MAX,
    Message,
    MessageType,
    decode_message,
    encode_message,
)
from raftwood.clogs.model import FILE_NAME_BYTES_MAX, checked_file_name
from raftwood.clogs.receiver.figures import ReceiverFigures
from raftwood.clogs.receiver.ordering import FOLLOWING_MAX, Ordering
from raftwood.clogs.receiver.storage_health import StorageHealth
from raftwood.clogs.seams import Sink
from raftwood.clogs.wire import CLUSTER, PING, RECEIVER_ROLE, STORE
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

DRAIN_MS: Final = 2_000
_OF_STORAGE: Final = (Unavailable, ConnectionLost, NotLeader, DiskFull, DeadlineExceeded)
"""Errors of the storage as a whole; others, such as a quota, are of one shipper or file."""
_FRAME_BYTES_MAX: Final = (
    FRAME_OVERHEAD_BYTES + FILE_NAME_BYTES_MAX + PLACE_BYTES_MAX + BODY_BYTES_MAX
)


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver has under way at once; beyond it a batch is refused, and comes again."""

    batches_max: int = 4_096
    bytes_max: int = 256 << 20
    connections_max: int = 4_096
    connections: ConnectionSettings = ConnectionSettings()


class Receiver:
    """Use `listen`, and `close` when done; the sink is its owner's."""

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
        """`service` may have handlers of other methods; `secret_of` knows the access keys."""
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
        """Accept shippers; answers the port, which the system chooses where it was 0."""
        return await self._server.listen(host, port, tls=tls)

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Answer what is under way, within its time, then stop."""
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

    def pong(self, ping: Message) -> Message:
        """The answer to a ping; `Unavailable` where nothing can be stored here."""
        if ping.type is not MessageType.PING:
            raise InvalidInput(f"a frame of type {ping.type.name} is no ping")
        if not self._health.is_usable(asyncio.get_running_loop().time()):
            raise Unavailable("nothing could be stored here of late: use another receiver")
        self.figures.pings += 1
        return Message(
            type=MessageType.PONG, system=ping.system, sequence=(ping.sequence + 1) % (1 << 64)
        )

    async def _store(self, call: Call, payload: Payload) -> list[Buffer]:
        self.figures.frames += 1
        key = call.peer.node_id
        try:
            message = decode_message(payload)
            if message.type is MessageType.LOCATE:
                place = await self._sink.locate(key, checked_file_name(message.name))
                found = Message(type=MessageType.ACK, count=FOLLOWING_MAX, place=place)
                return encode_message(found)
            place = await self.store(key, message)
        except RaftwoodError as error:
            self.figures.refuse(error)
            raise
        return encode_message(
            Message(
                type=MessageType.ACK,
                producer=message.producer,
                sequence=message.sequence,
                count=FOLLOWING_MAX,
                place=place,
            )
        )

    async def store(self, key: str, message: Message) -> str:
        """A batch to the sink, if there is room; the place for the file's next one."""
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
        # One alone is taken whatever its size, or it would never be.
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


def check_data(message: Message) -> None:
    """`InvalidInput` for what no shipper may send as a batch, however it came here."""
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
