"""`BookKeeperBookies`: the seam `Bookies` over Apache BookKeeper's bookies; `connect_bookkeeper`.

Adds and plain reads go by the second protocol, over a connection of their own: it is cheap to
encode and to parse. The rest goes by the third one: it can wait, it knows the last confirmed entry,
and its answers are numbered, so that a read that fences can't be taken for one that does not.

A bookie's port speaks both: a connection begins in the clear, and a request of the third protocol
turns it over to TLS. What follows may be either protocol.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import ProtocolError, TooLarge
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.dlog.bookkeeper import binary_protocol, protobuf_protocol
from raftwood.dlog.bookkeeper.binary_protocol import BinaryConnection
from raftwood.dlog.bookkeeper.connection import LENGTH_BYTES, BookieConnection, BookKeeperSettings
from raftwood.dlog.bookkeeper.metadata_store import BookKeeperMetadataStore
from raftwood.dlog.bookkeeper.protobuf_protocol import ProtobufConnection
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import AddRequest, AddSink
from raftwood.net.tls import ClientTls

_ANSWER_BYTES_MAX: Final = 1024


async def dial(
    protocol: asyncio.Protocol, bookie: BookieId, host: str, port: int, *, tls: ClientTls | None
) -> asyncio.Transport:
    """Connects, without a timeout. Raises `OSError`, `BookieUnavailable` or `ssl.SSLError`."""
    loop = asyncio.get_running_loop()
    if tls is None:
        transport, _ = await loop.create_connection(lambda: protocol, host, port)
        return transport
    plain, asking = await loop.create_connection(lambda: _StartTls(bookie), host, port)
    try:
        await asking.agreed
        secured = await loop.start_tls(plain, protocol, tls.context, server_hostname=host)
    except BaseException:
        plain.abort()
        raise
    assert secured is not None
    return secured


class _StartTls(asyncio.Protocol):
    """Asks the bookie for TLS, and waits for the answer."""

    def __init__(self, bookie: BookieId) -> None:
        self._bookie = bookie
        self._received = b""
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(protobuf_protocol.start_tls_request(0))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < LENGTH_BYTES or self.agreed.done():
            return
        size = int.from_bytes(self._received[:LENGTH_BYTES])
        if size <= _ANSWER_BYTES_MAX and len(self._received) < LENGTH_BYTES + size:
            return
        try:
            if size > _ANSWER_BYTES_MAX:
                raise ProtocolError(f"an answer of {size} bytes to a request for TLS")
            response = protobuf_protocol.parse_response(self._received[LENGTH_BYTES:])
        except ProtocolError as error:
            self._refuse(f"breaks the protocol: {error}")
        else:
            if response.status:
                self._refuse("does not do TLS: give it a key, or turn TLS off here")
            else:
                self.agreed.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.agreed.done():
            self._refuse("ended the connection when asked for TLS")

    def _refuse(self, reason: str) -> None:
        fail(self.agreed, BookieUnavailable(f"bookie {self._bookie} {reason}"))


Resolve = Callable[[BookieId], Awaitable[tuple[str, int]]]
"""Returns where a bookie listens; `BookieUnavailable` if its address is unknown."""
_Kind = TypeVar("_Kind", bound=BookieConnection)


class _Add(msgspec.Struct, frozen=True, gc=False):
    """An add, encoded for every bookie."""

    ledger: int
    entry: int
    number: int
    frame: bytes


class BookKeeperBookies:
    """The seam `Bookies`. Use it on one loop, and `close` it when done."""

    def __init__(
        self,
        resolve: Resolve,
        settings: BookKeeperSettings | None = None,
        *,
        tls: ClientTls | None = None,
    ) -> None:
        self._resolve = resolve
        self._settings = settings or BookKeeperSettings()
        self._tls = tls
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._binary: dict[BookieId, BinaryConnection] = {}
        self._protobuf: dict[BookieId, ProtobufConnection] = {}
        self._is_closed = False

    def prepare_add(
        self,
        *,
        ledger: int,
        entry: int,
        packed: Sequence[Buffer],
        master_key: bytes,
        is_recovery: bool = False,
    ) -> AddRequest:
        number = 0
        if self._settings.use_v3_alone:
            number = next(self._numbers)
            frame = protobuf_protocol.add_request(
                number,
                ledger=ledger,
                entry=entry,
                packed=packed,
                master_key=master_key,
                is_recovery=is_recovery,
            )
        else:
            frame = binary_protocol.add_request(master_key, packed, is_recovery=is_recovery)
        if len(frame) > self._settings.frame_bytes_max:
            raise TooLarge(
                f"an add of {len(frame)} bytes is above the bookies' limit of "
                f"{self._settings.frame_bytes_max}: make entries smaller"
            )
        return _Add(ledger, entry, number, frame)

    def add(self, bookie: BookieId, request: AddRequest, sink: AddSink) -> None:
        assert type(request) is _Add
        if request.number:
            connection = self._by_protobuf(bookie)
            connection.add(request.number, request.ledger, request.entry, request.frame, sink)
            return
        binary = self._binary.get(bookie)
        if binary is None or binary.error is not None:
            binary = self._by_binary(bookie)
        binary.add(request.ledger, request.entry, request.frame, sink)

    async def read(
        self, bookie: BookieId, *, ledger: int, entry: int, fence_key: bytes | None = None
    ) -> Buffer:
        if fence_key is None and not self._settings.use_v3_alone:
            return await self._by_binary(bookie).read(ledger, entry)
        return await self._by_protobuf(bookie).read(
            next(self._numbers), ledger=ledger, entry=entry, fence_key=fence_key
        )

    async def read_last_confirmed(self, bookie: BookieId, *, ledger: int) -> tuple[int, Buffer]:
        connection = self._by_protobuf(bookie)
        return await connection.read_last_confirmed(next(self._numbers), ledger=ledger)

    async def wait_last_confirmed(
        self, bookie: BookieId, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        deadline = self._loop.time() + timeout_ms / 1000
        # A request may be given up after half of its timeout; this one waits for less, and repeats.
        once_ms = self._settings.request_timeout_ms // 4
        while True:
            left_ms = int((deadline - self._loop.time()) * 1000)
            last_confirmed = await self._by_protobuf(bookie).wait_last_confirmed(
                next(self._numbers),
                ledger=ledger,
                after=after,
                timeout_ms=max(1, min(left_ms, once_ms)),
            )
            if last_confirmed > after or self._loop.time() >= deadline:
                return last_confirmed

    async def write_last_confirmed(
        self,
        bookie: BookieId,
        *,
        ledger: int,
        last_confirmed: int,
        master_key: bytes,
        digest: bytes,
    ) -> None:
        await self._by_protobuf(bookie).write_last_confirmed(
            next(self._numbers),
            ledger=ledger,
            last_confirmed=last_confirmed,
            master_key=master_key,
            digest=digest,
        )

    async def close(self) -> None:
        self._is_closed = True
        for connection in (*self._binary.values(), *self._protobuf.values()):
            await connection.close()

    def _by_binary(self, bookie: BookieId) -> BinaryConnection:
        return self._connection(bookie, self._binary, BinaryConnection)

    def _by_protobuf(self, bookie: BookieId) -> ProtobufConnection:
        return self._connection(bookie, self._protobuf, ProtobufConnection)

    def _connection(
        self, bookie: BookieId, kept: dict[BookieId, _Kind], kind: type[_Kind]
    ) -> _Kind:
        connection = kept.get(bookie)
        if connection is None or (connection.error is not None and self._may_retry(connection)):
            connection = kind(bookie, self._settings, lambda protocol: self._dial(bookie, protocol))
            kept[bookie] = connection
        return connection

    def _may_retry(self, connection: BookieConnection) -> bool:
        pause_s = self._settings.reconnect_pause_ms / 1000
        return not self._is_closed and self._loop.time() >= connection.ended_at + pause_s

    async def _dial(self, bookie: BookieId, protocol: asyncio.Protocol) -> asyncio.Transport:
        if self._is_closed:
            raise BookieUnavailable(f"the client is closed: bookie {bookie} was not asked")
        host, port = await self._resolve(bookie)
        return await dial(protocol, bookie, host, port, tls=self._tls)


async def connect_bookkeeper(
    address: str,
    environment: Environment,
    *,
    ledgers: LedgerSettings | None = None,
    bookies: BookKeeperSettings | None = None,
    racks: Mapping[str, str] | None = None,
    tls: ClientTls | None = None,
) -> LedgerClient:
    """Connects to BookKeeper by ZooKeeper's address, `HOST:PORT[,HOST:PORT][/chroot]`; close the
    client when done.

    With `racks`, by bookie, copies of an entry go to several racks.
    """
    metadata = await BookKeeperMetadataStore.open(address, racks=racks)
    return LedgerClient(
        BookKeeperBookies(metadata.address_of, bookies, tls=tls), metadata, environment, ledgers
    )
