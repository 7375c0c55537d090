"""A connection that speaks the second protocol: adds and plain reads, by (ledger, entry)."""

import asyncio
from typing import Any, Final

from raftwood.base.errors import ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.dlog.bookkeeper import wire_v2
from raftwood.dlog.bookkeeper.connection import LENGTH_BYTES, BookieConnection
from raftwood.dlog.bookkeeper.statuses import error_of
from raftwood.dlog.bookkeeper.wire_v2 import RESPONSE, RESPONSE_BYTES
from raftwood.dlog.ledgers.seams import AddSink

_ADD_BYTES: Final = LENGTH_BYTES + RESPONSE_BYTES


class BinaryConnection(BookieConnection):
    """Those who add wait under (ledger, entry), those who read under (ledger, entry, True)."""

    frame_bytes_min = RESPONSE_BYTES

    def add(self, ledger: int, entry: int, frame: bytes, sink: AddSink) -> None:
        self._ask((ledger, entry), sink, frame)

    def read(self, ledger: int, entry: int) -> asyncio.Future[Buffer]:
        answer: asyncio.Future[Buffer] = self._loop.create_future()
        self._ask((ledger, entry, True), answer, wire_v2.read_request(ledger, entry))
        return answer

    def _tell(self, key: Any, waiting: Any, error: RaftwoodError) -> None:
        if len(key) == 2:
            waiting.added(key[1], self.bookie, error)
        else:
            fail(waiting, error)

    def _frames(self, data: bytes) -> int:
        at = 0
        last = len(data) - _ADD_BYTES
        unpack = RESPONSE.unpack_from
        while at <= last:
            size, head, status, ledger, entry = unpack(data, at)
            if head == wire_v2.ADDED and size == RESPONSE_BYTES:
                at += _ADD_BYTES
                sink = self._take((ledger, entry))
                if sink is None:
                    continue
                if status == 0:
                    sink.added(entry, self.bookie, None)
                else:
                    sink.added(entry, self.bookie, error_of(status, self.bookie, ledger, entry))
                continue
            if head != wire_v2.READ or size < RESPONSE_BYTES:
                raise ProtocolError(f"an answer of {size} bytes begins with {head:#010x}")
            end = at + LENGTH_BYTES + size
            if end > len(data):
                break
            self._was_read(status, ledger, entry, data[at + _ADD_BYTES : end])
            at = end
        return at

    def _was_read(self, status: int, ledger: int, entry: int, packed: bytes) -> None:
        answer = self._take((ledger, entry, True))
        if answer is None or answer.done():
            return
        if status == 0:
            answer.set_result(packed)
        else:
            fail(answer, error_of(status, self.bookie, ledger, entry))
