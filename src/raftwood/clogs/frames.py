"""The messages between shippers and receivers: one frame per message, the same bytes on any way.

    offset  size
    0       2     magic "CL"
    2       1     version, 1
    3       1     type: data 1, ping 2, pong 3, ack 4, error 5, locate 6
    4       1     codec of the body
    5       1     format of the body, once it is decompressed: 1 is a LogGroup
    6       1     flags: 1 resumed (an earlier process may have sent it), 2 follows
    7       1     zero
    8       4     system id
    12      4     count: records in the body; of an ack, how many batches of a file may be under way
    16      4     raw bytes: of the body, once it is decompressed
    20      8     sequence; of a ping its id, of a pong the ping's id + 1
    28      16    producer id
    44      2     bytes of the file's name
    46      2     bytes of the place
    48      4     bytes of the body
    52      …     file name, place, body
    …       8     XXH3-64 of all before

Little-endian. Over TCP a frame is the payload of a call or of its answer, on an authenticated
connection; over UDP it is a datagram with an HMAC behind it.

A *place* is a receiver's name for where a file's batches go now. It is opaque to the shipper, which
names it with each batch. A batch is stored at its place or nowhere, and there once, by its producer
and sequence. If the place takes no more, the error `PlaceMoved` says that the batch is not stored;
`locate` returns the next place. A resumed batch has no place, because its shipper no longer knows
where it may have been sent.

A batch that *follows* is stored only if the receiver has stored the one before it in sequence, at
the same place; else `OutOfOrder` says that it is not stored. So a shipper may send the next batches
of a file before the first one is acked, up to the count in the last ack. Receivers of release 0.1.0
send the count zero, and do not know the flag.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec
import xxhash

from raftwood.base.compression import Codec
from raftwood.base.errors import ProtocolError, UnsupportedVersion
from raftwood.base.files import Buffer
from raftwood.clogs.configuration import FILE_NAME_BYTES_MAX

VERSION: Final = 1
_MAGIC: Final = b"CL"
_HEAD: Final = struct.Struct("<2sBBBBBBIIIQ16sHHI")
_CHECKSUM: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size
FRAME_OVERHEAD_BYTES: Final = HEAD_BYTES + _CHECKSUM.size
PLACE_BYTES_MAX: Final = 512
BODY_BYTES_MAX: Final = 16 << 20
PRODUCER_BYTES: Final = 16
NO_PRODUCER: Final = bytes(PRODUCER_BYTES)
LOG_GROUP: Final = 1
"""The format of a body: LogHub's LogGroup."""
_RESUMED: Final = 1
_FOLLOWS: Final = 2


_FLAGS: Final = _RESUMED | _FOLLOWS


class MessageType(IntEnum):
    """The type of a frame."""

    DATA = 1
    PING = 2
    PONG = 3
    ACK = 4
    """Its sequence is stored; the place is where the file's next batch goes."""
    ERROR = 5
    """Only over UDP; on a connection the call itself fails."""
    LOCATE = 6
    """Asks where a file goes; answered by an ack without a sequence."""


class ClogsMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One frame."""

    type: MessageType
    system: int = 0
    """The application or estate that sends; receivers count by it, and store it in no record."""
    name: str = ""
    producer: bytes = NO_PRODUCER
    sequence: int = 0
    count: int = 0
    raw_bytes: int = 0
    codec: Codec = Codec.NONE
    format: int = LOG_GROUP
    is_resumed: bool = False
    follows: bool = False
    """Store it only behind the batch before it, at the same place."""
    place: str = ""
    body: Buffer = b""


def encode_message(message: ClogsMessage) -> list[Buffer]:
    """Returns pieces, so that a large body is not copied."""
    name, place = message.name.encode(), message.place.encode()
    head = _HEAD.pack(
        _MAGIC,
        VERSION,
        message.type,
        message.codec,
        message.format,
        _RESUMED * message.is_resumed | _FOLLOWS * message.follows,
        0,
        message.system,
        message.count,
        message.raw_bytes,
        message.sequence,
        message.producer,
        len(name),
        len(place),
        len(message.body),
    )
    front = b"".join((head, name, place))
    checksum = xxhash.xxh3_64(front)
    if not message.body:
        return [front + _CHECKSUM.pack(checksum.intdigest())]
    checksum.update(message.body)
    return [front, message.body, _CHECKSUM.pack(checksum.intdigest())]


def joined(pieces: Sequence[Buffer]) -> bytes:
    return b"".join(pieces)


def decode_message(data: Buffer) -> ClogsMessage:
    """`ProtocolError` if the data is not a frame; the body is a view of the data."""
    view = memoryview(data)
    if len(view) < FRAME_OVERHEAD_BYTES or bytes(view[:2]) != _MAGIC:
        raise ProtocolError("this is no frame of clogs")
    (
        _,
        version,
        kind,
        codec,
        body_format,
        flags,
        zero,
        system,
        count,
        raw_bytes,
        sequence,
        producer,
        name_bytes,
        place_bytes,
        body_bytes,
    ) = _HEAD.unpack_from(view)
    if version != VERSION:
        raise UnsupportedVersion(
            f"a frame of clogs has version {version}, this program speaks {VERSION}: upgrade it"
        )
    if name_bytes > FILE_NAME_BYTES_MAX or place_bytes > PLACE_BYTES_MAX or flags & ~_FLAGS:
        raise ProtocolError("a frame of clogs has a field out of its range")
    if HEAD_BYTES + name_bytes + place_bytes + body_bytes + _CHECKSUM.size != len(view):
        raise ProtocolError("a frame of clogs has another length than it says")
    (checksum,) = _CHECKSUM.unpack_from(view, len(view) - _CHECKSUM.size)
    if zero or xxhash.xxh3_64_intdigest(view[: -_CHECKSUM.size]) != checksum:
        raise ProtocolError("a frame of clogs was damaged on its way: its checksum is wrong")
    body_at = HEAD_BYTES + name_bytes + place_bytes
    try:
        return ClogsMessage(
            type=MessageType(kind),
            system=system,
            name=str(view[HEAD_BYTES : HEAD_BYTES + name_bytes], "utf-8"),
            producer=producer,
            sequence=sequence,
            count=count,
            raw_bytes=raw_bytes,
            codec=Codec(codec),
            format=body_format,
            is_resumed=bool(flags & _RESUMED),
            follows=bool(flags & _FOLLOWS),
            place=str(view[HEAD_BYTES + name_bytes : body_at], "utf-8"),
            body=view[body_at : body_at + body_bytes],
        )
    except ValueError as error:
        raise ProtocolError(f"a frame of clogs cannot be read: {error}") from error


class LineBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Lines of one file, masked, encoded and compressed; immutable from here on."""

    name: str
    """The name of the file."""
    producer: bytes
    """16 bytes: one file in one life of a shipper."""
    sequence: int
    """From 1 on, without a gap, per producer."""
    count: int
    raw_bytes: int
    codec: Codec
    body: Buffer
    is_resumed: bool = False
    """An earlier life of the shipper made it, and may have sent it."""

    def message(self, *, system: int, place: str, follows: bool = False) -> ClogsMessage:
        return ClogsMessage(
            type=MessageType.DATA,
            system=system,
            name=self.name,
            producer=self.producer,
            sequence=self.sequence,
            count=self.count,
            raw_bytes=self.raw_bytes,
            codec=self.codec,
            format=LOG_GROUP,
            is_resumed=self.is_resumed and not place,
            follows=follows,
            place=place,
            body=self.body,
        )
