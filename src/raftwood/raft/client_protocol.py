"""The protocol between clients and stores: batches of commands, reads, questions about groups.

    propose   group (8), session (8), first sequence (8), acknowledged (8), count (4), lengths
              (4 each), commands; a session of 0 for none
    answer    count (4), lengths (4 each, the highest bit set for an error), results

Little-endian. Everything else is MessagePack.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from raftwood.base.errors import InternalError, ProtocolError, RaftwoodError
from raftwood.net import Method, Payload
from raftwood.net.identity import CLIENT_ROLE, OPERATOR_ROLE, STORE_ROLE
from raftwood.net.method_numbers import MethodNumber
from raftwood.net.wire_errors import decode_error, encode_error

_WRITERS: Final = (CLIENT_ROLE, OPERATOR_ROLE, STORE_ROLE)
PROPOSE = Method(MethodNumber.RAFT_PROPOSE, "raft-propose", roles=_WRITERS)
READ = Method(MethodNumber.RAFT_READ, "raft-read")
REGISTER = Method(MethodNumber.RAFT_REGISTER, "raft-register", roles=_WRITERS)
RENEW = Method(MethodNumber.RAFT_RENEW, "raft-renew", roles=_WRITERS, urgent=True)
"""`PROPOSE` for commands that may be done twice, such as the renewal of a lease."""
HEARTBEAT = Method(MethodNumber.RAFT_HEARTBEAT, "raft-heartbeat", roles=_WRITERS, urgent=True)
"""`READ` with a question that also reports to the leader that the client lives."""

_HEAD: Final = struct.Struct("<QQQQI")
_COUNT: Final = struct.Struct("<I")
_GROUP: Final = struct.Struct("<QB")
_READ: Final = struct.Struct("<QBI")
_ERROR_BIT: Final = 1 << 31
_LENGTH_MASK: Final = _ERROR_BIT - 1


class Proposal(msgspec.Struct, frozen=True):
    """Commands for one group; with a session, each command has the next sequence."""

    group: int
    commands: list[bytes]
    session: int = 0
    first_sequence: int = 0
    acknowledged: int = 0


def encode_proposal(proposal: Proposal) -> bytes:
    commands = proposal.commands
    count = len(commands)
    head = _HEAD.pack(
        proposal.group, proposal.session, proposal.first_sequence, proposal.acknowledged, count
    )
    return b"".join([head, struct.pack(f"<{count}I", *map(len, commands)), *commands])


def decode_proposal(payload: Payload) -> Proposal:
    try:
        group, session, first_sequence, acknowledged, count = _HEAD.unpack_from(payload)
        parts = _decode_parts(payload, _HEAD.size, count)
    except struct.error as error:
        raise ProtocolError("a proposal ends too early") from error
    commands = [bytes(part) for _, part in parts]
    return Proposal(group, commands, session, first_sequence, acknowledged)


def encode_results(results: Sequence[Any]) -> bytes:
    """Encodes a result for each command: bytes, or an error."""
    words = []
    parts = []
    for result in results:
        if isinstance(result, bytes):
            words.append(len(result))
            parts.append(result)
        else:
            error = encode_error(
                result
                if isinstance(result, RaftwoodError)
                else InternalError(f"a state machine answered {type(result).__name__}, not bytes")
            )
            words.append(len(error) | _ERROR_BIT)
            parts.append(error)
    count = len(words)
    return b"".join([_COUNT.pack(count), struct.pack(f"<{count}I", *words), *parts])


def decode_results(payload: Payload) -> list[bytes | RaftwoodError]:
    try:
        (count,) = _COUNT.unpack_from(payload)
        parts = _decode_parts(payload, _COUNT.size, count)
    except struct.error as error:
        raise ProtocolError("an answer ends too early") from error
    return [decode_error(part) if word & _ERROR_BIT else bytes(part) for word, part in parts]


def _decode_parts(payload: Payload, offset: int, count: int) -> list[tuple[int, Payload]]:
    start = offset + 4 * count
    if start > len(payload):
        raise ProtocolError(f"{count} parts do not fit {len(payload)} bytes")
    words = struct.unpack_from(f"<{count}I", payload, offset)
    ends = list(accumulate((word & _LENGTH_MASK for word in words), initial=start))
    if ends[-1] != len(payload):
        raise ProtocolError(f"the parts add up to {ends[-1]}, not to {len(payload)} bytes")
    return [
        (word, payload[begin:end]) for word, begin, end in zip(words, ends, ends[1:], strict=False)
    ]


def encode_register_request(group: int, nonce: bytes) -> bytes:
    return _GROUP.pack(group, 0) + nonce


def decode_register_request(payload: Payload) -> tuple[int, bytes]:
    if len(payload) < _GROUP.size:
        raise ProtocolError("a registration ends too early")
    group, _ = _GROUP.unpack_from(payload)
    return group, bytes(payload[_GROUP.size :])


def encode_read(group: int, query: bytes, *, is_stale: bool, wait_ms: int) -> bytes:
    return _READ.pack(group, is_stale, wait_ms) + query


def decode_read(payload: Payload) -> tuple[int, bool, int, bytes]:
    """Decodes group, whether a stale answer is enough, how long to wait, and the question."""
    if len(payload) < _READ.size:
        raise ProtocolError("a read ends too early")
    group, is_stale, wait_ms = _READ.unpack_from(payload)
    return group, bool(is_stale), wait_ms, bytes(payload[_READ.size :])
