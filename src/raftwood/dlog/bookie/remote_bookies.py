"""`RemoteBookies`: bookies of our own over the network, by their addresses."""

import asyncio
from collections.abc import Sequence

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, Overloaded, RaftwoodError, ShuttingDown
from raftwood.base.files import Buffer
from raftwood.dlog.bookie.bookie_link import AddressOf, BookieLink
from raftwood.dlog.bookie.settings import BookieClientSettings
from raftwood.dlog.bookie.waiting import WAIT_MS_MAX
from raftwood.dlog.bookie.wire import (
    FENCE,
    LAST_CONFIRMED,
    PUBLISH,
    READ,
    WAIT,
    FenceRequest,
    PackedAdd,
    PublishRequest,
    WaitRequest,
    decode_last_confirmed,
    encode_fence,
    encode_number,
    encode_read,
    prepare,
)
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.model import BookieId
from raftwood.dlog.ledgers.seams import AddRequest, AddSink
from raftwood.net import Method, Payload
from raftwood.net.stores import ClientNetwork


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
        """The one that was used last is the last."""
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
        """Let go of the connection that was not used for longest."""
        idle = next((each for each in self._links.values() if not each.under_way), None)
        if idle is None:
            raise Overloaded(f"{len(self._links)} bookies are in use: wait, or raise the bound")
        del self._links[idle.bookie]
        task = self._loop.create_task(idle.close())
        self._closing[task] = None
        task.add_done_callback(self._closing.pop)

    async def close(self) -> None:
        """What is under way fails."""
        self._is_closed = True
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
        if self._closing:
            await asyncio.wait(list(self._closing))
