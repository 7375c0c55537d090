"""`AsyncProducer`: puts records into a logstore, each once, in order per key.

    async with client.producer("project", "logstore") as producer:
        delivery = await producer.send({"message": "hello"}, key="user-7")
        await delivery

`send` waits only where the producer holds as much as it may. Records go out at once where nothing
is under way to their shard; while something is, the next ones gather.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.loghub.client.deliveries import AnyDelivery, BatchDelivery, Delivery
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.client.log_encoding import encode_record, encode_shared
from raftwood.loghub.client.sending import ProducerSettings, Sending
from raftwood.loghub.key_ranges import hash_key
from raftwood.loghub.wire import StreamRequest

__all__ = ["AsyncProducer", "ProducerSettings"]

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
        stream = StreamRequest(project, logstore)
        self.sending = Sending(environment, gateways, stream, self.settings)
        """What was taken, and how it fares."""
        self._accept = self.sending.accept
        self._routes: dict[str | bytes, str] = {}
        self._shared: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    @property
    def stored(self) -> int:
        """Records; `failed` as well."""
        return self.sending.stored

    @property
    def failed(self) -> int:
        return self.sending.failed

    @property
    def retries(self) -> int:
        """Batches that were sent again."""
        return self.sending.retries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(is_waiting=kind is None)

    async def flush(self) -> None:
        """Wait until what was sent before is settled; raises the first failure since the last
        flush."""
        await self.sending.flush()

    async def close(self, *, is_waiting: bool = True) -> None:
        """Flush, unless nobody waits for it: then what is not stored fails."""
        await self.sending.close(is_waiting=is_waiting)

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
    ) -> Delivery:
        """Take a record without waiting; `Overloaded` where there is no room for it."""
        data = encode_record(contents, self._wall_ns() if time_ns is None else time_ns)
        route = None if key is None else self._routes.get(key) or self._route(key)
        if topic or source or tags:
            shared = self._shared_bytes(topic, source, tags)
            return self._accept(Delivery(data, len(data), route, shared))
        return self._accept(Delivery(data, len(data), route))

    async def send(
        self,
        contents: Mapping[str, str | bytes],
        *,
        key: str | bytes | None = None,
        time_ns: int | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> Delivery:
        """Take a record, waiting for room if need be; await the delivery to know that it is stored.

        Records of one key are stored in the order they are sent in; those without one go anywhere.
        """
        sending = self.sending
        if sending.held_bytes >= sending.pause_at:
            await sending.room()
        data = encode_record(contents, self._wall_ns() if time_ns is None else time_ns)
        route = None if key is None else self._routes.get(key) or self._route(key)
        if topic or source or tags:
            shared = self._shared_bytes(topic, source, tags)
            return self._accept(Delivery(data, len(data), route, shared))
        return self._accept(Delivery(data, len(data), route))

    async def send_many(
        self,
        records: Iterable[Mapping[str, str | bytes]],
        *,
        key: str | bytes | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> list[Delivery]:
        """Take many records of one key, or of none."""
        deliveries = []
        sending, accept, wall_ns = self.sending, self._accept, self._wall_ns
        route = None if key is None else self._route(key)
        shared = self._shared_bytes(topic, source, tags)
        for contents in records:
            if sending.held_bytes >= sending.pause_at:
                await sending.room()
            data = encode_record(contents, wall_ns())
            deliveries.append(accept(Delivery(data, len(data), route, shared)))
        return deliveries

    async def send_arrow(self, table: Any, *, key: str | bytes | None = None) -> list[Delivery]:
        """Take a record batch or a table as it is; a large one is cut by rows, a delivery each."""
        from raftwood.loghub.arrow_batches import write_arrow_stream  # noqa: PLC0415 (an extra)

        deliveries: list[Delivery] = []
        sending = self.sending
        rows = table.num_rows
        parts = max(1, -(-table.nbytes // self.settings.batch_bytes_max))
        step = max(1, -(-rows // parts))
        for first in range(0, rows, step):
            part = table.slice(first, step)
            data = write_arrow_stream(part)
            route = None if key is None else self._route(key)
            delivery = BatchDelivery(data, len(data), route, count=part.num_rows)
            if sending.held_bytes >= sending.pause_at:
                await sending.room()
            deliveries.append(self._accept(delivery))
        return deliveries

    def encode(
        self,
        kind: type[AnyDelivery],
        contents: Mapping[str, str | bytes],
        *,
        key: str | bytes | None = None,
        time_ns: int | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> AnyDelivery:
        """A record that is not taken yet; the only method that other threads may call."""
        data = encode_record(contents, self._wall_ns() if time_ns is None else time_ns)
        route = None if key is None else self._routes.get(key) or self._route(key)
        shared = self._shared_bytes(topic, source, tags) if topic or source or tags else b""
        return kind(data, len(data), route, shared)

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
            encoded = encode_shared(topic=topic, source=source, tags=what[2])
            self._shared[what] = encoded
        return encoded
