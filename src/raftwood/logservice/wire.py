"""The protocol between clients and log stores.

    append   shard (8), flags (1), count (4), lengths (4 each), entries as in `records`
    answer   0, then an LSN (8) for each; or 1, then for each an error bit and length (4), and the
             LSN or the error
    records  next LSN (8), count (4), LSNs (8 each), kinds (1 each), lengths (4 each), data

Big-endian. Everything else is MessagePack. A request to a store that does not lead the shard is
answered with `NotLeader`, which names the leader, or forwarded where the client asks for that.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import msgspec

from raftwood.base.errors import InternalError, ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.logservice.hakeeper.messages import Orders, ServiceHeartbeat, StoreHeartbeat
from raftwood.logservice.log_rules import LogShardInfo
from raftwood.logservice.records import Record, RecordKind
from raftwood.net import Method, Payload, TypedMethod
from raftwood.net.identity import CLIENT_ROLE, OPERATOR_ROLE, STORE_ROLE
from raftwood.net.method_numbers import MethodNumber
from raftwood.net.wire_errors import decode_error, encode_error

WRITERS: Final = (CLIENT_ROLE, OPERATOR_ROLE, STORE_ROLE)
_KEEPERS: Final = (OPERATOR_ROLE, STORE_ROLE)
FORWARD: Final = 1
"""A flag: a store that does not lead forwards the request to the leader."""
AGAIN: Final = 2
"""A flag: the records may have been sent before. Release 0.1.0 ignores it."""
RECORDS_MAX: Final = 16_384
"""The most records in one append."""

HAS_ERRORS: Final = b"\x01"
"""The first byte of an answer to an append that contains errors."""

_APPEND: Final = struct.Struct(">QBI")
_READ: Final = struct.Struct(">QI")
_ERROR_BIT: Final = 1 << 31
_LENGTH_MASK: Final = _ERROR_BIT - 1
_LSN_BYTES: Final = 8
_KINDS: Final = tuple(RecordKind)


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for records from an LSN on."""

    shard: int
    first_lsn: int
    bytes_max: int
    wait_ms: int = 0
    """How long to wait at the end of the log for a record."""
    has_internal: bool = False
    """Whether to return entries that are not a user's records, too."""
    forward: bool = False


class UpdateRequest(msgspec.Struct, frozen=True, array_like=True):
    """A change of a shard's state: an `UpdateKind` and its number."""

    shard: int
    kind: int
    number: int
    forward: bool = False


class ShardRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the figures of a shard."""

    shard: int
    forward: bool = False


class ShardInfo(msgspec.Struct, frozen=True):
    """A shard as its leader sees it."""

    shard: int
    leader: int
    term: int
    epoch: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    log: LogShardInfo
    latest_lsn: int
    """The LSN of the last entry that is not the raft group's own."""
    log_bytes: int
    snapshots: tuple[int, ...]
    record_bytes_max: int
    addresses: dict[int, str]


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Where a shard is."""

    shard: int
    leader: int
    """0 if none is known at the moment."""
    addresses: dict[int, str]
    """The addresses of its members."""


APPEND = Method(MethodNumber.LOG_APPEND, "log-append", roles=WRITERS)
READ = Method(MethodNumber.LOG_READ, "log-read")
UPDATE = TypedMethod(
    MethodNumber.LOG_UPDATE, "log-update", request=UpdateRequest, response=int, roles=WRITERS
)
INFO = TypedMethod(MethodNumber.LOG_INFO, "log-info", request=ShardRequest, response=ShardInfo)
CONNECT = TypedMethod(
    MethodNumber.LOG_CONNECT, "log-connect", request=ShardRequest, response=ShardInfo
)
LOCATE: TypedMethod[int | str, Location] = TypedMethod(
    MethodNumber.LOG_LOCATE,
    "log-locate",
    request=int | str,  # type: ignore[arg-type]
    response=Location,
)
STORE_HEARTBEAT = TypedMethod(
    MethodNumber.STORE_HEARTBEAT,
    "store-heartbeat",
    request=StoreHeartbeat,
    response=Orders,
    roles=(STORE_ROLE,),
    urgent=True,
)
SERVICE_HEARTBEAT = TypedMethod(
    MethodNumber.SERVICE_HEARTBEAT,
    "service-heartbeat",
    request=ServiceHeartbeat,
    response=Orders,
    roles=WRITERS,
    urgent=True,
)
KEEPER_COMMAND = Method(MethodNumber.KEEPER_COMMAND, "keeper-command", roles=_KEEPERS)
KEEPER_QUERY = Method(MethodNumber.KEEPER_QUERY, "keeper-query")
ALLOCATE_IDS = TypedMethod(
    MethodNumber.ALLOCATE_IDS, "allocate-ids", request=int, response=int, roles=WRITERS
)
ORDERS_WAIT = Method(MethodNumber.ORDERS_WAIT, "orders-wait", roles=(STORE_ROLE,), urgent=True)
"""HAKeeper's leader to a store: orders wait, so send the next heartbeat at once."""

decode_read_request = msgspec.msgpack.Decoder(ReadRequest).decode
encode_read_request = msgspec.msgpack.Encoder().encode


def encode_append(
    shard: int, entries: Sequence[bytes], *, forward: bool = False, again: bool = False
) -> bytes:
    flags = (FORWARD if forward else 0) | (AGAIN if again else 0)
    return b"".join((_append_head(shard, flags, list(map(len, entries))), *entries))


def append_pieces(
    shard: int, entries: Sequence[Sequence[Buffer]], *, again: bool = False
) -> list[Buffer]:
    """Like `encode_append`, for entries in pieces: large payloads are not copied."""
    sizes = [sum(map(len, pieces)) for pieces in entries]
    head = _append_head(shard, AGAIN if again else 0, sizes)
    return [head, *chain.from_iterable(entries)]


def _append_head(shard: int, flags: int, sizes: list[int]) -> bytes:
    return _APPEND.pack(shard, flags, len(sizes)) + struct.pack(f">{len(sizes)}I", *sizes)


def decode_append(payload: Payload) -> tuple[int, int, list[bytes]]:
    """Returns shard, flags and entries."""
    try:
        shard, flags, count = _APPEND.unpack_from(payload)
        start = _APPEND.size + 4 * count
        if start > len(payload):
            raise ProtocolError(f"{count} records do not fit {len(payload)} bytes")
        lengths = struct.unpack_from(f">{count}I", payload, _APPEND.size)
    except struct.error as error:
        raise ProtocolError("an append ends too early") from error
    ends = list(accumulate(lengths, initial=start))
    if ends[-1] != len(payload):
        raise ProtocolError(f"the records add up to {ends[-1]}, not to {len(payload)} bytes")
    pairs = pairwise(ends)
    return shard, flags, [bytes(payload[begin:end]) for begin, end in pairs]


def encode_lsns(results: Sequence[Any]) -> bytes:
    """Encodes an LSN, or an error, for each record."""
    try:
        return struct.pack(f">B{len(results)}Q", 0, *results)
    except struct.error:
        pass  # one of them is an error
    words: list[int] = []
    parts: list[bytes] = []
    for result in results:
        is_lsn = isinstance(result, int)
        part = result.to_bytes(8, "big") if is_lsn else encode_error(_as_error(result))
        words.append(len(part) if is_lsn else len(part) | _ERROR_BIT)
        parts.append(part)
    return b"".join([struct.pack(f">BI{len(words)}I", 1, len(words), *words), *parts])


def _as_error(result: Any) -> RaftwoodError:
    if isinstance(result, RaftwoodError):
        return result
    return InternalError(f"a log shard answered {type(result).__name__}, not an LSN")


def decode_lsns(payload: Payload, count: int) -> Sequence[int | RaftwoodError]:
    """Decodes the answer to an append of `count` records."""
    try:
        if payload[0] == 0:
            return struct.unpack(f">B{count}Q", payload)[1:]
        (found,) = struct.unpack_from(">I", payload, 1)
        words = struct.unpack_from(f">{found}I", payload, 5)
    except (struct.error, IndexError) as error:
        raise ProtocolError("the answer to an append cannot be read") from error
    ends = list(accumulate((word & _LENGTH_MASK for word in words), initial=5 + 4 * found))
    if found != count or ends[-1] != len(payload):
        raise ProtocolError("the answer to an append is of another number of records")
    if any(word != _LSN_BYTES for word in words if not word & _ERROR_BIT):
        raise ProtocolError("the answer to an append holds an LSN of another size")
    results: list[int | RaftwoodError] = []
    for word, begin, end in zip(words, ends, ends[1:], strict=False):
        part = payload[begin:end]
        results.append(decode_error(part) if word & _ERROR_BIT else int.from_bytes(part, "big"))
    return results


def encode_records(
    next_lsn: int, lsns: Sequence[int], kinds: bytes, data: Sequence[Buffer]
) -> list[Buffer]:
    """Encodes in pieces, to avoid copies: all pieces but the first are the records."""
    count = len(lsns)
    head = b"".join(
        [
            _READ.pack(next_lsn, count),
            struct.pack(f">{count}Q", *lsns),
            kinds,
            struct.pack(f">{count}I", *map(len, data)),
        ]
    )
    return [head, *data]


def decode_records(payload: Payload) -> tuple[list[Record], int]:
    """Returns records, and where to read next."""
    lsns, kinds, data, next_lsn = decode_record_views(payload)
    return [
        Record(lsn, _KINDS[kind], bytes(view))
        for lsn, kind, view in zip(lsns, kinds, data, strict=True)
    ], next_lsn


def decode_record_views(
    payload: Payload,
) -> tuple[Sequence[int], bytes, list[Payload], int]:
    """Returns LSNs, kinds, data without a copy, and where to read next."""
    try:
        next_lsn, count = _READ.unpack_from(payload)
        start = _READ.size + 13 * count
        if start > len(payload):
            raise ProtocolError(f"{count} records do not fit {len(payload)} bytes")
        lsns = struct.unpack_from(f">{count}Q", payload, _READ.size)
        kinds = bytes(payload[_READ.size + 8 * count : _READ.size + 9 * count])
        lengths = struct.unpack_from(f">{count}I", payload, _READ.size + 9 * count)
    except struct.error as error:
        raise ProtocolError("records end too early") from error
    ends = list(accumulate(lengths, initial=start))
    if ends[-1] != len(payload) or (kinds and max(kinds) >= len(_KINDS)):
        raise ProtocolError("records do not fit their table")
    return lsns, kinds, [payload[begin:end] for begin, end in pairwise(ends)], next_lsn
