"""`RemoteBookies`: our own bookies over the network, by their addresses.

A `BookieLink` is the connection to one bookie. Adds of one turn of the event loop travel together.
Long polls have a connection of their own, so that any number of them never delays an add.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftwood.base.backoff import Backoff
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
from raftwood.base.files import Buffer
from raftwood.dlog.bookie.ledger_descriptor import WAIT_MS_MAX
from raftwood.dlog.bookie.settings import BookieClientSettings
from raftwood.dlog.bookie.wire import (
    ADD,
    FENCE,
    LAST_CONFIRMED,
    PUBLISH,
    READ,
    WAIT,
    FenceRequest,
    PackedAdd,
    PublishRequest,
    WaitRequest,
    bookie_identity,
    decode_last_confirmed,
    decode_refusals,
    encode_fence,
    encode_number,
    encode_read,
    prepare,
)
from raftwood.dlog.errors import BookieReadOnly, BookieUnavailable
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import AddRequest, AddSink
from raftwood.net import (
    Channel,
    Connection,
    Method,
    Payload,
)
from raftwood.net.channel import Connector
from raftwood.net.identity import split_address
from raftwood.net.stores import ClientNetwork

BATCH_BYTES_MAX: Final = 4 << 20
BATCH_COUNT_MAX: Final = 4_096
AddressOf = Callable[[BookieId], Awaitable[str]]
"""Finds a bookie's present address."""
_BACKOFF: Final = Backoff(first_ms=20, longest_ms=1_000)
_AWAY: Final = (Unavailable, DeadlineExceeded, Unauthenticated, Cancelled, ProtocolError)


class BookieLink:
    """The connection to one bookie, made when first needed; reconnects until it is closed."""

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
        dial = dial_bookie(environment, network, bookie, address_of)
        for _ in range(2):
            self._channels.append(Channel(dial, environment.random, _BACKOFF))
        self._started = [False, False]
        self._queue: list[tuple[PackedAdd, AddSink]] = []
        self._flush_is_due = False
        self._connecting: asyncio.Task[None] | None = None
        self._under_way_bytes = 0
        self.under_way = 0
        """Requests that were not answered yet, adds included."""

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
        """Sends the adds of this turn of the loop, in batches that the bookie's frames take."""
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

    # Other requests.

    async def connected(self, *, is_wait: bool = False) -> Channel:
        """Returns the channel once it is connected; raises after one failed attempt, while later
        attempts go on in the background.
        """
        channel = self._channel(1 if is_wait else 0)
        if not channel.is_connected:
            await channel.connected(self._settings.connect_timeout_ms, retries=False)
        return channel

    def explained(self, error: RaftwoodError) -> RaftwoodError:
        """The error for a caller: any failure on the way means that the bookie did not answer.

        Silence must not look like "no such entry": a recovery counts that.
        """
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
    """Takes the answer to one request with adds."""

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


def dial_bookie(
    environment: Environment,
    network: ClientNetwork,
    bookie: BookieId,
    address_of: AddressOf | None = None,
) -> Connector:
    """Makes one attempt to connect; the bookie must prove that it has this id."""
    if address_of is None:
        split_address(bookie)

    async def dial() -> Connection:
        address = bookie if address_of is None else await address_of(bookie)
        try:
            connector = network.connector(environment, address, bookie_identity(bookie))
        except InvalidInput as error:
            raise BookieUnavailable(f"bookie {bookie} is not registered anywhere now") from error
        return await connector()

    return dial


class RemoteBookies:
    """The `Bookies` seam on `raftwood bookie start`; connections are made when first needed."""

    def __init__(
        self,
        environment: Environment,
        network: ClientNetwork,
        settings: BookieClientSettings | None = None,
        *,
        address_of: AddressOf | None = None,
    ) -> None:
        """Without `address_of`, ids are addresses."""
        self._address_of = address_of
        self._environment = environment
        self._network = network
        self._settings = settings or BookieClientSettings()
        self._links: dict[BookieId, BookieLink] = {}
        """In order of use, the most recently used last."""
        self._closing: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def prepare_add(
        self,
        *,
        ledger: int,
        entry: int,
        packed: Sequence[Buffer],
        master_key: bytes,
        is_recovery: bool = False,
    ) -> PackedAdd:
        return prepare(packed, master_key, ledger=ledger, entry=entry, is_recovery=is_recovery)

    def add(self, bookie: BookieId, request: AddRequest, sink: AddSink) -> None:
        assert isinstance(request, PackedAdd)
        try:
            link = self._links.get(bookie) or self._link(bookie)
        except RaftwoodError as error:
            self._loop.call_soon(sink.added, request.entry, bookie, error)
        else:
            link.add(request, sink)

    async def read(
        self, bookie: BookieId, *, ledger: int, entry: int, fence_key: bytes | None = None
    ) -> Buffer:
        if fence_key is None:
            return await self._call(bookie, READ, encode_read(ledger, entry))
        request = encode_fence(FenceRequest(ledger, entry, fence_key))
        return await self._call(bookie, FENCE, request)

    async def read_last_confirmed(self, bookie: BookieId, *, ledger: int) -> tuple[int, Buffer]:
        answer = await self._call(bookie, LAST_CONFIRMED, encode_number(ledger))
        return decode_last_confirmed(answer)

    async def wait_last_confirmed(
        self, bookie: BookieId, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        wait_ms = min(timeout_ms, WAIT_MS_MAX)
        request = WAIT.encode(WaitRequest(ledger, after, wait_ms))
        answer = await self._call(bookie, WAIT, request, wait_ms=wait_ms)
        return WAIT.decode_response(answer)

    async def write_last_confirmed(
        self,
        bookie: BookieId,
        *,
        ledger: int,
        last_confirmed: int,
        master_key: bytes,
        digest: bytes,  # noqa: ARG002
    ) -> None:
        """The digest is not sent: frames and the bookie's log have checksums of their own."""
        request = PUBLISH.encode(PublishRequest(ledger, last_confirmed, master_key))
        await self._call(bookie, PUBLISH, request)

    async def _call(
        self, bookie: BookieId, method: Method, request: bytes, *, wait_ms: int | None = None
    ) -> Payload:
        link = self._link(bookie)
        link.under_way += 1
        try:
            channel = await link.connected(is_wait=wait_ms is not None)
            timeout_ms = self._settings.request_timeout_ms + (wait_ms or 0)
            return await channel.call(method, request, timeout_ms)
        except RaftwoodError as error:
            raise link.explained(error) from error
        finally:
            link.under_way -= 1

    def _link(self, bookie: BookieId) -> BookieLink:
        if self._is_closed:
            raise ShuttingDown("the client of the bookies is closed")
        link = self._links.pop(bookie, None)
        if link is None:
            if len(self._links) >= self._settings.connections_max:
                self._make_room()
            try:
                link = BookieLink(
                    self._environment, self._network, self._settings, bookie, self._address_of
                )
            except InvalidInput as error:
                raise BookieUnavailable(
                    f"bookie {bookie} is not reached over the network: its id is no address"
                ) from error
        self._links[bookie] = link
        return link

    def _make_room(self) -> None:
        """Closes the connection that was unused for longest."""
        idle = next((each for each in self._links.values() if not each.under_way), None)
        if idle is None:
            raise Overloaded(f"{len(self._links)} bookies are in use: wait, or raise the bound")
        del self._links[idle.bookie]
        task = self._loop.create_task(idle.close())
        self._closing[task] = None
        task.add_done_callback(self._closing.pop)

    async def close(self) -> None:
        """Closes all connections; requests under way fail."""
        self._is_closed = True
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
        if self._closing:
            await asyncio.wait(list(self._closing))
