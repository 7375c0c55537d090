"""BookKeeper's third protocol: protobuf behind a length of four bytes; requests are numbered.

An add is assembled by hand around the bytes of the entry; the other requests are rare, and protobuf
encodes them.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from raftwood.base.errors import ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.base.protobuf_bytes import varint
from raftwood.dlog.bookkeeper.connection import LENGTH_BYTES, BookieConnection, error_of
from raftwood.dlog.bookkeeper.messages import Request, Response
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.metadata import NO_ENTRY
from raftwood.dlog.ledgers.seams import AddSink

VERSION: Final = 3
READ_ENTRY: Final = 1
ADD_ENTRY: Final = 2
WRITE_LAC: Final = 6
READ_LAC: Final = 7
START_TLS: Final = 9

_FENCE: Final = 1
_PIGGYBACK: Final = 2
_HIGH_PRIORITY: Final = 100
"""The priority that BookKeeper's own client gives to requests that fence."""

_RECOVERY_ADD: Final = b"\xa0\x06\x01"
"""Field 100, the flag."""


def add_request(
    number: int,
    *,
    ledger: int,
    entry: int,
    packed: Sequence[Buffer],
    master_key: bytes,
    is_recovery: bool,
) -> bytes:
    head = b"\x08\x03\x10\x02\x18" + varint(number)
    body_bytes = sum(map(len, packed))
    before = b"".join(
        (b"\x08", varint(ledger), b"\x10", varint(entry), b"\x1a\x14", master_key, b"\x22",
         varint(body_bytes))
    )  # fmt: skip
    after = _RECOVERY_ADD if is_recovery else b""
    # Field 1 is the head, field 101 the add.
    start = b"".join(
        (b"\x0a", varint(len(head)), head, b"\xaa\x06",
         varint(len(before) + body_bytes + len(after)), before)
    )  # fmt: skip
    size = len(start) + body_bytes + len(after)
    return b"".join((size.to_bytes(4), start, *packed, after))


def read_request(number: int, *, ledger: int, entry: int, fence_key: bytes | None) -> bytes:
    request = _request(number, READ_ENTRY)
    request.readRequest.ledgerId = ledger
    request.readRequest.entryId = entry
    if fence_key is not None:
        request.header.priority = _HIGH_PRIORITY
        request.readRequest.masterKey = fence_key
        request.readRequest.flag = _FENCE
    return _framed(request)


def wait_request(number: int, *, ledger: int, after: int, timeout_ms: int) -> bytes:
    """Encodes a wait for a last confirmed entry above `after`, or for the time to be over."""
    request = _request(number, READ_ENTRY)
    request.readRequest.ledgerId = ledger
    request.readRequest.entryId = -1
    request.readRequest.previousLAC = after
    request.readRequest.timeOut = timeout_ms
    request.readRequest.flag = _PIGGYBACK
    return _framed(request)


def write_last_confirmed_request(
    number: int, *, ledger: int, last_confirmed: int, master_key: bytes, body: bytes
) -> bytes:
    request = _request(number, WRITE_LAC)
    request.writeLacRequest.ledgerId = ledger
    request.writeLacRequest.lac = last_confirmed
    request.writeLacRequest.masterKey = master_key
    request.writeLacRequest.body = body
    return _framed(request)


def read_last_confirmed_request(number: int, *, ledger: int) -> bytes:
    request = _request(number, READ_LAC)
    request.readLacRequest.ledgerId = ledger
    return _framed(request)


def start_tls_request(number: int) -> bytes:
    request = _request(number, START_TLS)
    request.startTLSRequest.SetInParent()
    return _framed(request)


def parse_response(frame: bytes) -> Any:
    """Parses a frame without its length; `ProtocolError` if it is no answer."""
    try:
        response = Response.FromString(frame)
    except DecodeError as error:
        raise ProtocolError(f"an answer of {len(frame)} bytes is no protobuf: {error}") from None
    if not response.header.HasField("txnId") or not response.HasField("status"):
        raise ProtocolError(f"an answer of {len(frame)} bytes has no number or no status")
    return response


def status_of(response: Any, inner: Any) -> int:
    """The status of an answer, or the more exact one within it."""
    return int(inner.status or response.status)


def _request(number: int, operation: int) -> Any:
    request = Request()
    request.header.version = VERSION
    request.header.operation = operation
    request.header.txnId = number
    return request


def _framed(request: Any) -> bytes:
    encoded: bytes = request.SerializeToString()
    return len(encoded).to_bytes(4) + encoded


_LAST_CONFIRMED: Final = struct.Struct(">qq")
"""Ledger and last confirmed entry; a digest follows."""


class ProtobufConnection(BookieConnection):
    """Adds wait as (sink, ledger, entry), other requests as futures of the whole answer."""

    def add(self, number: int, ledger: int, entry: int, frame: bytes, sink: AddSink) -> None:
        self._ask(number, (sink, ledger, entry), frame)

    async def read(
        self, number: int, *, ledger: int, entry: int, fence_key: bytes | None
    ) -> Buffer:
        response = await self._answer(
            number,
            read_request(number, ledger=ledger, entry=entry, fence_key=fence_key),
        )
        self._check(response, response.readResponse, ledger, entry)
        packed: bytes = response.readResponse.body
        return packed

    async def wait_last_confirmed(
        self, number: int, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        frame = wait_request(number, ledger=ledger, after=after, timeout_ms=timeout_ms)
        response = await self._answer(number, frame)
        self._check(response, response.readResponse, ledger, NO_ENTRY)
        return max(int(response.readResponse.maxLAC), NO_ENTRY)

    async def read_last_confirmed(self, number: int, *, ledger: int) -> tuple[int, Buffer]:
        frame = read_last_confirmed_request(number, ledger=ledger)
        response = await self._answer(number, frame)
        inner = response.readLacResponse
        self._check(response, inner, ledger, NO_ENTRY)
        published: int = NO_ENTRY
        if inner.lacBody:
            if len(inner.lacBody) < _LAST_CONFIRMED.size:
                raise BookieUnavailable(f"bookie {self.bookie} cut a last confirmed entry short")
            published = _LAST_CONFIRMED.unpack_from(inner.lacBody)[1]
        return published, inner.lastEntryBody

    async def write_last_confirmed(
        self, number: int, *, ledger: int, last_confirmed: int, master_key: bytes, digest: bytes
    ) -> None:
        frame = write_last_confirmed_request(
            number,
            ledger=ledger,
            last_confirmed=last_confirmed,
            master_key=master_key,
            body=_LAST_CONFIRMED.pack(ledger, last_confirmed) + digest,
        )
        response = await self._answer(number, frame)
        self._check(response, response.writeLacResponse, ledger, last_confirmed)

    def _answer(self, number: int, frame: bytes) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._ask(number, answer, frame)
        return answer

    def _check(self, response: Any, inner: Any, ledger: int, entry: int) -> None:
        status = status_of(response, inner)
        if status != 0:
            raise error_of(status, self.bookie, ledger, entry)

    def _tell(self, _key: Any, waiting: Any, error: RaftwoodError) -> None:
        if type(waiting) is tuple:
            sink, _, entry = waiting
            sink.added(entry, self.bookie, error)
        else:
            fail(waiting, error)

    def _frames(self, data: bytes) -> int:
        at = 0
        while len(data) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES])
            if end > len(data):
                break
            self._frame(data[at + LENGTH_BYTES : end])
            at = end
        return at

    def _frame(self, frame: bytes) -> None:
        response = parse_response(frame)
        waiting = self._take(response.header.txnId)
        if waiting is None:
            return
        if type(waiting) is tuple:
            sink, ledger, entry = waiting
            status = status_of(response, response.addResponse)
            if status == 0 and not response.HasField("addResponse"):
                raise ProtocolError("an add was answered without its result")
            error = error_of(status, self.bookie, ledger, entry) if status else None
            sink.added(entry, self.bookie, error)
        elif not waiting.done():
            waiting.set_result(response)
