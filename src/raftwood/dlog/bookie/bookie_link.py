"""The connection to one bookie: adds of one turn of the loop travel together.

Long polls have a connection of their own, so that any number of them never holds up an add.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
    Unauthenticated,
    Unavailable,
)
from raftwood.dlog.bookie.settings import BookieClientSettings
from raftwood.dlog.bookie.wire import ADD, PackedAdd, bookie_identity, decode_refusals
from raftwood.dlog.errors import BookieReadOnly, BookieUnavailable
from raftwood.dlog.ledgers.model import BookieId
from raftwood.dlog.ledgers.seams import AddSink
from raftwood.net import (
    Backoff,
    Channel,
    ClientCredentials,
    Connection,
    Identity,
    Payload,
    connect,
)
from raftwood.net.store_names import split_address
from raftwood.net.stores import ClientNetwork

BATCH_BYTES_MAX: Final = 4 << 20
BATCH_COUNT_MAX: Final = 4_096
AddressOf = Callable[[BookieId], Awaitable[str]]
"""Where a bookie is reached now."""
_BACKOFF: Final = Backoff(first_ms=20, longest_ms=1_000)
_AWAY: Final = (Unavailable, DeadlineExceeded, Unauthenticated, Cancelled, ProtocolError)


class BookieLink:
    """Made when a bookie is first needed; reconnects until it is closed."""

    def __init__(
        self,
        environment: Environment,
        network: ClientNetwork,
        settings: BookieClientSettings,
        bookie: BookieId,
        address_of: AddressOf | None = None,
    ) -> None:
        self.bookie = bookie
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._channels: list[Channel] = []
        dial = dialling(environment, network, bookie, address_of)
        for _ in range(2):
            self._channels.append(Channel(dial, environment.random, _BACKOFF))
        self._started = [False, False]
        self._queue: list[tuple[PackedAdd, AddSink]] = []
        self._flush_is_due = False
        self._connecting: asyncio.Task[None] | None = None
        self._under_way_bytes = 0
        self.under_way = 0
        """Adds and other requests that were not answered yet."""

    # Adds.

    def add(self, request: PackedAdd, sink: AddSink) -> None:
        size = request.size
        if self._under_way_bytes + size > self._settings.unsent_bytes_max and self.under_way:
            full = Overloaded(f"{self._under_way_bytes} bytes are under way to {self.bookie}")
            self._loop.call_soon(sink.added, request.entry, self.bookie, full)
            return
        self._under_way_bytes += size
        self.under_way += 1
        self._queue.append((request, sink))
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what has come up, in batches that the bookie's frames take."""
        channel = self._channel(0)
        if not channel.is_connected and channel.last_error is None:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
            return
        self._flush_is_due = False
        queue, self._queue = self._queue, []
        start = size = 0
        for place, (request, _) in enumerate(queue):
            if size and (size + request.size > BATCH_BYTES_MAX or place - start >= BATCH_COUNT_MAX):
                self._send(channel, queue[start:place])
                start, size = place, 0
            size += request.size
        if start < len(queue):
            self._send(channel, queue[start:] if start else queue)

    async def _connect(self) -> None:
        try:
            await self._channel(0).connected(self._settings.connect_timeout_ms, retries=False)
        except RaftwoodError as error:
            queue, self._queue = self._queue, []
            self._finish(queue, None, error)
            self._flush_is_due = False
        else:
            self._flush()
        finally:
            self._connecting = None

    def _send(self, channel: Channel, batch: list[tuple[PackedAdd, AddSink]]) -> None:
        parts = [part for request, _ in batch for part in (request.head, request.packed)]
        try:
            answer = channel.call(ADD, parts, self._settings.request_timeout_ms)
        except RaftwoodError as error:
            self._loop.call_soon(self._finish, batch, None, error)
            return
        answer.add_done_callback(_Answered(self, batch).hear)

    def _finish(
        self,
        batch: list[tuple[PackedAdd, AddSink]],
        payload: Payload | None,
        error: RaftwoodError | None,
    ) -> None:
        self.under_way -= len(batch)
        self._under_way_bytes -= sum(request.size for request, _ in batch)
        bookie = self.bookie
        if error is None and not payload:
            for request, sink in batch:
                sink.added(request.entry, bookie, None)
            return
        refusals: dict[int, RaftwoodError] = {}
        if error is None:
            assert payload is not None
            try:
                refusals = decode_refusals(payload, len(batch))
            except ProtocolError as unreadable:
                error = unreadable
        whole = None if error is None else self.explained(error)
        for place, (request, sink) in enumerate(batch):
            sink.added(request.entry, bookie, whole or refusals.get(place))

    # All else.

    async def connected(self, *, is_wait: bool = False) -> Channel:
        """The channel, once it is connected; why not, once an attempt has failed: later ones are
        made in the background.
        """
        channel = self._channel(1 if is_wait else 0)
        if not channel.is_connected:
            await channel.connected(self._settings.connect_timeout_ms, retries=False)
        return channel

    def explained(self, error: RaftwoodError) -> RaftwoodError:
        """What went wrong on the way is the bookie's absence to whoever asked it."""
        if isinstance(error, BookieReadOnly | Overloaded) or not isinstance(error, _AWAY):
            return error
        return BookieUnavailable(f"bookie {self.bookie} does not answer: {error.message}")

    def _channel(self, number: int) -> Channel:
        channel = self._channels[number]
        if not self._started[number]:
            self._started[number] = True
            channel.start()
        return channel

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        for channel in self._channels:
            await channel.close()
        queue, self._queue = self._queue, []
        self._finish(queue, None, ShuttingDown("the client is closed"))


class _Answered:
    """What becomes of one request with adds."""

    __slots__ = ("_batch", "_link")

    def __init__(self, link: BookieLink, batch: list[tuple[PackedAdd, AddSink]]) -> None:
        self._link = link
        self._batch = batch

    def hear(self, answer: "asyncio.Future[Payload]") -> None:
        error: BaseException | None
        error = Cancelled("the request was given up") if answer.cancelled() else answer.exception()
        if error is not None and not isinstance(error, RaftwoodError):
            error = InternalError(str(error))
        self._link._finish(self._batch, None if error else answer.result(), error)


def dialling(
    environment: Environment,
    network: ClientNetwork,
    bookie: BookieId,
    address_of: AddressOf | None = None,
) -> Callable[[], Coroutine[Any, Any, Connection]]:
    """Makes one attempt to connect; the bookie must prove that it has this id."""
    if address_of is None:
        split_address(bookie)
    credentials = ClientCredentials(
        cluster_id=network.cluster,
        identity=Identity(role=network.role, node_id=network.name),
        secret=network.secret,
        server=bookie_identity(bookie),
    )

    async def dial() -> Connection:
        address = bookie if address_of is None else await address_of(bookie)
        try:
            host, port = split_address(address)
        except InvalidInput as error:
            raise BookieUnavailable(f"bookie {bookie} is not registered anywhere now") from error
        return await connect(
            host, port, credentials, environment.random, limits=network.limits, tls=network.tls
        )

    return dial
