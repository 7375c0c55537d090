"""A connection that speaks the third protocol: every request, by its number."""

import asyncio
import struct
from typing import Any, Final

from raftwood.base.errors import ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.dlog.bookkeeper import wire_v3
from raftwood.dlog.bookkeeper.connection import LENGTH_BYTES, BookieConnection
from raftwood.dlog.bookkeeper.statuses import error_of
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.model import NO_ENTRY
from raftwood.dlog.ledgers.seams import AddSink

_LAST_CONFIRMED: Final = struct.Struct(">qq")
"""Ledger and last confirmed entry; a digest follows."""


class ProtobufConnection(BookieConnection):
    """Those who add wait as (sink, ledger, entry), the others as futures of the whole answer."""

    def add(self, number: int, ledger: int, entry: int, frame: bytes, sink: AddSink) -> None:
        self._ask(number, (sink, ledger, entry), frame)

    async def read(
        self, number: int, *, ledger: int, entry: int, fence_key: bytes | None
    ) -> Buffer:
        response = await self._answer(
            number,
            wire_v3.read_request(number, ledger=ledger, entry=entry, fence_key=fence_key),
        )
        self._check(response, response.readResponse, ledger, entry)
        packed: bytes = response.readResponse.body
        return packed

    async def wait_last_confirmed(
        self, number: int, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        frame = wire_v3.wait_request(number, ledger=ledger, after=after, timeout_ms=timeout_ms)
        response = await self._answer(number, frame)
        self._check(response, response.readResponse, ledger, NO_ENTRY)
        return max(int(response.readResponse.maxLAC), NO_ENTRY)

    async def read_last_confirmed(self, number: int, *, ledger: int) -> tuple[int, Buffer]:
        frame = wire_v3.read_last_confirmed_request(number, ledger=ledger)
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
        frame = wire_v3.write_last_confirmed_request(
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
        status = wire_v3.status_of(response, inner)
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
        response = wire_v3.parse_response(frame)
        waiting = self._take(response.header.txnId)
        if waiting is None:
            return
        if type(waiting) is tuple:
            sink, ledger, entry = waiting
            status = wire_v3.status_of(response, response.addResponse)
            if status == 0 and not response.HasField("addResponse"):
                raise ProtocolError("an add was answered without its result")
            error = error_of(status, self.bookie, ledger, entry) if status else None
            sink.added(entry, self.bookie, error)
        elif not waiting.done():
            waiting.set_result(response)
