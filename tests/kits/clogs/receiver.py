"""A receiver over a sink in memory, and a shipper's side of a connection to it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.frames import ClogsMessage, MessageType, decode_message, encode_message
from raftwood.clogs.receiver import Receiver, ReceiverLimits
from raftwood.clogs.wire import CLUSTER, KEY_ROLE, PING, STORE
from raftwood.disk.real_environment import real_environment
from raftwood.net import ClientCredentials, Connection, Identity, Secret, connect

KEY: Final = "RWKEY"
SECRET: Final = Secret(b"the key's secret, thirty two bytes")
PRODUCER: Final = bytes(range(16))


class MemorySink:
    """A `Sink`: batches by place, once each; what is asked of it can be made to wait or fail."""

    def __init__(self) -> None:
        self.place = "here"
        self.stored: list[ClogsMessage] = []
        self.known: set[tuple[bytes, int]] = set()
        self.keys: list[str] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def locate(self, key: str, name: str) -> str:
        self.keys.append(key)
        if self.error is not None:
            raise self.error
        return f"{self.place}:{name}"

    async def store(self, key: str, message: ClogsMessage) -> str:
        self.keys.append(key)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if message.place and message.place != f"{self.place}:{message.name}":
            raise PlaceMoved("the file goes elsewhere")
        if (message.producer, message.sequence) not in self.known:
            self.known.add((message.producer, message.sequence))
            self.stored.append(message)
        return f"{self.place}:{message.name}"


class Shipper:
    """What a shipper calls."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def send(self, message: ClogsMessage, *, timeout_ms: int = 5_000) -> ClogsMessage:
        method = PING if message.type is MessageType.PING else STORE
        payload = b"".join(encode_message(message))
        return decode_message(await self.connection.call(method, payload, timeout_ms=timeout_ms))


class Served:
    """A receiver that listens."""

    def __init__(
        self, environment: Environment, receiver: Receiver, sink: MemorySink, metrics: Metrics
    ) -> None:
        self.environment = environment
        self.receiver = receiver
        self.sink = sink
        self.metrics = metrics
        self.port = 0

    @asynccontextmanager
    async def shipper(
        self, *, key: str = KEY, secret: Secret = SECRET, role: str = KEY_ROLE
    ) -> AsyncIterator[Shipper]:
        credentials = ClientCredentials(
            cluster_id=CLUSTER, identity=Identity(role=role, node_id=key), secret=secret
        )
        async with await connect(
            "127.0.0.1", self.port, credentials, random.Random(1)
        ) as connection:
            yield Shipper(connection)


@asynccontextmanager
async def served(limits: ReceiverLimits | None = None) -> AsyncIterator[Served]:
    with real_environment() as environment:
        metrics = Metrics()
        sink = MemorySink()
        receiver = Receiver(
            environment,
            sink,
            secret_of=lambda peer: SECRET if peer.node_id == KEY else None,
            limits=limits or ReceiverLimits(),
            metrics=metrics,
        )
        made = Served(environment, receiver, sink, metrics)
        made.port = await receiver.listen("127.0.0.1", 0)
        try:
            yield made
        finally:
            await receiver.close(drain_ms=0)


def data(sequence: int, *, place: str = "here:a.log", **changes: object) -> ClogsMessage:
    fields: dict[str, object] = {
        "type": MessageType.DATA,
        "system": 7,
        "name": "a.log",
        "producer": PRODUCER,
        "sequence": sequence,
        "count": 2,
        "raw_bytes": 4,
        "place": place,
        "body": b"body",
    }
    return ClogsMessage(**(fields | changes))  # type: ignore[arg-type]
