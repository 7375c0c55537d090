"""What native clients and gateways say to each other.

PUT and PULL carry batches as raw bytes behind a small head, so that a body is copied as rarely as
can be; all other calls are structs. PUT is answered with the batch's position. Positions are 16
bytes each, see `base.position`.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.codecs import Codec
from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.model import Shard
from raftwood.net import Method, Payload, TypedMethod

CLUSTER: Final = "loghub"
"""Stands in for the cluster's name in the handshake between clients and gateways."""
KEY_ROLE: Final = "key"
GATEWAY_ROLE: Final = "gateway"
_ROLES: Final = (KEY_ROLE,)

_LENGTH: Final = struct.Struct("<I")
HEAD_BYTES_MAX: Final = 1 << 20


class PutHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a batch goes, and what it is."""

    project: str
    logstore: str
    shard: int
    producer: str
    sequence: int
    format: int
    codec: int
    raw_bytes: int
    records: int


class PullRequest(msgspec.Struct, frozen=True, array_like=True):
    """Batches of a shard from a position on."""

    project: str
    logstore: str
    shard: int
    start: bytes
    """A position, as all below."""
    batches_max: int
    bytes_max: int
    wait_ms: int = 0
    heads_only: bool = False
    """Without the bodies, for who plans what others read."""


class PulledHead(msgspec.Struct, frozen=True, array_like=True):
    """What a pull found; the batches follow, one behind the other."""

    next: bytes
    first: bytes
    is_ended: bool
    positions: bytes
    """Of all batches, one behind the other."""
    sizes: tuple[int, ...]


class Pulled(msgspec.Struct, frozen=True):
    """What a pull found."""

    batches: list[StoredBatch]
    next: Position
    first: Position
    """The first position that was left to read: above the one asked for where that was freed."""
    is_ended: bool
    """The shard was split or merged, and nothing follows."""


class StreamRequest(msgspec.Struct, frozen=True, array_like=True):
    """A logstore."""

    project: str
    logstore: str


class CursorRequest(msgspec.Struct, frozen=True, array_like=True):
    """A shard's position: its `begin`, its `end`, or as of a time in seconds since 1970."""

    project: str
    logstore: str
    shard: int
    at: int | str


class ShardDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, what it holds, and who needs it."""

    shard: Shard
    first: str
    """A position as decimal text, as those below: JSON has no integers of 128 bits."""
    next: str
    appended_bytes: int
    required: str | None
    """What the slowest registered reader reads next; None where nobody is registered."""
    required_by: str = ""
    """That reader."""


PUT: Final = Method(110, "loghub-put", roles=_ROLES)
PULL: Final = Method(111, "loghub-pull", roles=_ROLES)
SHARDS: Final = TypedMethod(
    112, "loghub-shards", request=StreamRequest, response=list[Shard], roles=_ROLES
)
CURSOR: Final = TypedMethod(
    113, "loghub-cursor", request=CursorRequest, response=bytes, roles=_ROLES
)
DESCRIBE: Final = TypedMethod(
    114, "loghub-describe", request=StreamRequest, response=list[ShardDetail], roles=_ROLES
)
CONTROL: Final = Method(115, "loghub-control", roles=_ROLES)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_put: Final = msgspec.msgpack.Decoder(PutHead).decode
_decode_pull: Final = msgspec.msgpack.Decoder(PullRequest).decode
_decode_pulled: Final = msgspec.msgpack.Decoder(PulledHead).decode
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def _framed(head: bytes) -> bytes:
    return _LENGTH.pack(len(head)) + head


def _unframed(payload: Payload) -> tuple[memoryview, memoryview]:
    view = memoryview(payload)
    if len(view) < _LENGTH.size:
        raise ProtocolError("a LogHub message has no head")
    (length,) = _LENGTH.unpack_from(view)
    if length > min(HEAD_BYTES_MAX, len(view) - _LENGTH.size):
        raise ProtocolError("the head of a LogHub message is longer than the message, or its limit")
    return view[_LENGTH.size : _LENGTH.size + length], view[_LENGTH.size + length :]


class PutRequest(msgspec.Struct, frozen=True, gc=False):
    """A batch for one shard, under a sequence of its producer."""

    project: str
    logstore: str
    shard: int
    producer: str
    sequence: int
    batch: Batch


def encode_put(request: PutRequest) -> list[Buffer]:
    """In pieces, for a body need not be copied."""
    batch = request.batch
    head = PutHead(
        request.project,
        request.logstore,
        request.shard,
        request.producer,
        request.sequence,
        batch.format,
        batch.codec,
        batch.raw_bytes,
        batch.records,
    )
    return [_framed(_encode(head)), batch.body]


def decode_put(payload: Payload) -> PutRequest:
    data, body = _unframed(payload)
    try:
        head = _decode_put(data)
        batch = Batch(
            body=body,
            format=Format(head.format),
            codec=Codec(head.codec),
            raw_bytes=head.raw_bytes,
            records=head.records,
        )
    except _UNREADABLE as error:
        raise ProtocolError(f"a batch to put cannot be read: {error}") from error
    return PutRequest(head.project, head.logstore, head.shard, head.producer, head.sequence, batch)


def encode_pull(request: PullRequest) -> bytes:
    return _encode(request)


def decode_pull(payload: Payload) -> PullRequest:
    try:
        return _decode_pull(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"a pull cannot be read: {error}") from error


def encode_pulled(pulled: Pulled) -> list[Buffer]:
    """In pieces, for batches need not be copied."""
    batches: Sequence[StoredBatch] = pulled.batches
    head = PulledHead(
        position_to_bytes(pulled.next),
        position_to_bytes(pulled.first),
        pulled.is_ended,
        b"".join([position_to_bytes(each.position) for each in batches]),
        tuple(len(each.data) for each in batches),
    )
    return [_framed(_encode(head)), *[each.data for each in batches]]


def decode_pulled(payload: Payload) -> Pulled:
    data, bodies = _unframed(payload)
    try:
        head = _decode_pulled(data)
    except _UNREADABLE as error:
        raise ProtocolError(f"the answer to a pull cannot be read: {error}") from error
    if len(head.positions) != 16 * len(head.sizes) or sum(head.sizes) != len(bodies):
        raise ProtocolError("the answer to a pull has other batches than it says")
    batches, offset = [], 0
    for place, size in enumerate(head.sizes):
        position = position_from_bytes(head.positions[16 * place : 16 * place + 16])
        batches.append(StoredBatch(position, bodies[offset : offset + size]))
        offset += size
    following, first = position_from_bytes(head.next), position_from_bytes(head.first)
    return Pulled(batches, following, first, head.is_ended)
