"""BookKeeper's second protocol: fixed binary fields, requests without a number.

    request   length u32 | head u32 | add:  master key 20 | packed entry
                                      read: ledger i64 | entry i64
    response  length u32 | head u32 | status u32 | ledger i64 | entry i64 | packed entry if read

The head is version (2) << 24 | operation << 16 | flags. An answer names the operation, the ledger
and the entry, and nothing else: a client that asks the same of one bookie twice can't tell the
answers apart. Reads that fence are therefore not made by this protocol.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, Final

from raftwood.base.errors import ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.dlog.bookkeeper.connection import LENGTH_BYTES, BookieConnection, error_of
from raftwood.dlog.ledgers.seams import AddSink

ADDED: Final = 0x0201_0000
READ: Final = 0x0202_0000
MASTER_KEY_BYTES: Final = 20
RESPONSE_BYTES: Final = 24
"""The size of an answer without an entry, beside its length field."""

_RECOVERY_ADD: Final = 0x0002
_ADD: Final = struct.Struct(">II")
_READ: Final = struct.Struct(">IIqq")

RESPONSE: Final = struct.Struct(">IIIqq")
"""Length, head, status, ledger, entry."""


def add_request(master_key: bytes, packed: Sequence[Buffer], *, is_recovery: bool) -> bytes:
    size = 4 + MASTER_KEY_BYTES + sum(map(len, packed))
    head = ADDED | _RECOVERY_ADD if is_recovery else ADDED
    return b"".join((_ADD.pack(size, head), master_key, *packed))


def read_request(ledger: int, entry: int) -> bytes:
    return _READ.pack(20, READ, ledger, entry)


_ADD_BYTES: Final = LENGTH_BYTES + RESPONSE_BYTES


class BinaryConnection(BookieConnection):
    """Adds wait under (ledger, entry), reads under (ledger, entry, True)."""

    frame_bytes_min = RESPONSE_BYTES

    def add(self, ledger: int, entry: int, frame: bytes, sink: AddSink) -> None:
        self._ask((ledger, entry), sink, frame)

    def read(self, ledger: int, entry: int) -> asyncio.Future[Buffer]:
        answer: asyncio.Future[Buffer] = self._loop.create_future()
        self._ask((ledger, entry, True), answer, read_request(ledger, entry))
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
            if head == ADDED and size == RESPONSE_BYTES:
                at += _ADD_BYTES
                sink = self._take((ledger, entry))
                if sink is None:
                    continue
                if status == 0:
                    sink.added(entry, self.bookie, None)
                else:
                    sink.added(entry, self.bookie, error_of(status, self.bookie, ledger, entry))
                continue
            if head != READ or size < RESPONSE_BYTES:
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
