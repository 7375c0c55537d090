"""What processes that share logs say to one another.

An append carries all that one loop turn has for one log: a head, then the batches one behind the
other. The answer has a position for each, or why there is none. All else are structs.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.net import Method, Payload, TypedMethod
from raftwood.net.wire_errors import decode_error, encode_error

PEER_ROLE: Final = "dlog-peer"
_ROLES: Final = (PEER_ROLE,)
_LENGTH: Final = struct.Struct("<I")
BATCHES_MAX: Final = 4_096
"""Of one request."""
WAIT_MS_MAX: Final = 30_000
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class Appended(msgspec.Struct, frozen=True):
    """One batch on its way."""

    producer: str
    sequence: int
    data: Buffer


class _AppendHead(msgspec.Struct, frozen=True, array_like=True):
    log: str
    producers: tuple[str, ...]
    sequences: tuple[int, ...]
    sizes: tuple[int, ...]


class _AppendAnswer(msgspec.Struct, frozen=True, array_like=True):
    positions: bytes
    """16 bytes each."""
    errors: dict[int, bytes] = {}
    """By place; their position says nothing."""


class LogRequest(msgspec.Struct, frozen=True, array_like=True):
    """A log."""

    log: str


class TailRequest(msgspec.Struct, frozen=True, array_like=True):
    """Where a log ends, once that is behind a position; waits so long for it."""

    log: str
    after: bytes
    wait_ms: int = 0


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """Where a log ends."""

    next: bytes
    is_sealed: bool
    appended_bytes: int

    @property
    def position(self) -> Position:
        return position_from_bytes(self.next)


APPEND: Final = Method(130, "dlog-append", roles=_ROLES)
TAIL: Final = TypedMethod(131, "dlog-tail", request=TailRequest, response=Tail, roles=_ROLES)
SEAL: Final = TypedMethod(132, "dlog-seal", request=LogRequest, response=bytes, roles=_ROLES)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(_AppendHead).decode
_decode_answer: Final = msgspec.msgpack.Decoder(_AppendAnswer).decode


def encode_append(log: str, batches: Sequence[Appended]) -> list[Buffer]:
    head = _encode(
        _AppendHead(
            log,
            tuple([each.producer for each in batches]),
            tuple([each.sequence for each in batches]),
            tuple([len(each.data) for each in batches]),
        )
    )
    return [_LENGTH.pack(len(head)) + head, *(each.data for each in batches)]


def decode_append(payload: Payload) -> tuple[str, list[Appended]]:
    view = memoryview(payload)
    try:
        (length,) = _LENGTH.unpack_from(view)
        offset = _LENGTH.size + length
        head = _decode_head(view[_LENGTH.size : offset])
    except (*_UNREADABLE, struct.error) as error:
        raise InvalidInput(f"a forwarded append cannot be read: {error}") from error
    count = len(head.sizes)
    is_whole = len(head.producers) == len(head.sequences) == count <= BATCHES_MAX
    if not is_whole or min(head.sizes, default=0) < 0 or offset + sum(head.sizes) != len(view):
        raise InvalidInput("a forwarded append has not the batches that it says it has")
    found = []
    for producer, sequence, size in zip(head.producers, head.sequences, head.sizes, strict=True):
        found.append(Appended(producer, sequence, view[offset : offset + size]))
        offset += size
    return head.log, found


def encode_appended(results: Sequence[Position | RaftwoodError]) -> bytes:
    errors = {
        place: encode_error(each)
        for place, each in enumerate(results)
        if isinstance(each, RaftwoodError)
    }
    positions = [
        bytes(16) if isinstance(each, RaftwoodError) else position_to_bytes(each)
        for each in results
    ]
    return _encode(_AppendAnswer(b"".join(positions), errors))


def decode_appended(payload: Payload) -> list[Position | RaftwoodError]:
    try:
        answer = _decode_answer(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"the answer to a forwarded append cannot be read: {error}") from error
    if len(answer.positions) % 16:
        raise ProtocolError("the positions of a forwarded append are cut off")
    found: list[Position | RaftwoodError] = [
        position_from_bytes(answer.positions[at : at + 16])
        for at in range(0, len(answer.positions), 16)
    ]
    for place, encoded in answer.errors.items():
        if not 0 <= place < len(found):
            raise ProtocolError(f"an answer has an error for batch {place} of {len(found)}")
        found[place] = decode_error(encoded)
    return found
