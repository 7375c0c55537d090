"""Codec of log entries: one or more messages, their producers, and data for recovery."""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.compression import Codec, compress, decompress
from raftwood.base.errors import InvalidInput, StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer
from raftwood.base.versions import unsupported

# `DlogMessage`: the unit of a log, as bytes.
#
#     magic (1 byte, the version), attributes (1 byte, bits), number of headers (2 bytes),
#     length of the key (4), length of the payload (4), key, payload,
#     then for each header: length of its key (2), length of its value (4), its key, its value
#
# Big-endian. The order of headers is kept, and a key may come more than once. No key and an empty
# key are the same. A message with another magic is of a newer version and refused, whatever
# follows.

MESSAGE_MAGIC: Final = 1
_MESSAGE_HEAD: Final = struct.Struct(">BBHII")
_HEADER: Final = struct.Struct(">HI")
HEAD_BYTES: Final = _MESSAGE_HEAD.size
HEADERS_MAX: Final = (1 << 16) - 1


class DlogMessage(msgspec.Struct, frozen=True, gc=False):
    """One message; a message that was read holds views of its entry."""

    payload: Buffer
    key: Buffer = b""
    headers: Sequence[tuple[bytes, Buffer]] = ()
    attributes: int = 0
    """Eight bits for the layers above the log."""

    @property
    def size_bytes(self) -> int:
        headers = sum(len(key) + len(value) + _HEADER.size for key, value in self.headers)
        return HEAD_BYTES + len(self.key) + len(self.payload) + headers


def message_parts(message: DlogMessage) -> list[Buffer]:
    """Encodes a message as buffers to be joined."""
    headers = message.headers
    if len(headers) > HEADERS_MAX or not 0 <= message.attributes < 256:
        raise InvalidInput(
            f"a message with {len(headers)} headers and attributes {message.attributes}: give at "
            f"most {HEADERS_MAX} headers and eight bits of attributes"
        )
    parts: list[Buffer] = [
        _MESSAGE_HEAD.pack(
            MESSAGE_MAGIC, message.attributes, len(headers), len(message.key), len(message.payload)
        ),
        message.key,
        message.payload,
    ]
    for key, value in headers:
        if len(key) >= 1 << 16:
            raise InvalidInput(f"a header's key of {len(key)} bytes: give 65,535 at the most")
        parts += (_HEADER.pack(len(key), len(value)), key, value)
    return parts


def payload_parts(payload: Sequence[Buffer]) -> list[Buffer]:
    """Like `message_parts`, for a payload in pieces without key and headers."""
    return [_MESSAGE_HEAD.pack(MESSAGE_MAGIC, 0, 0, 0, sum(map(len, payload))), *payload]


def encode_message(message: DlogMessage) -> bytes:
    return b"".join(message_parts(message))


def decode_message(data: memoryview) -> DlogMessage:
    """Decodes a message; `UnsupportedVersion` for another magic, `StoreDamaged` for bad lengths."""
    if not data:
        raise StoreDamaged("a message without bytes: the entry is damaged")
    if data[0] != MESSAGE_MAGIC:
        raise unsupported("a message", data[0], MESSAGE_MAGIC)
    if len(data) < HEAD_BYTES:
        raise StoreDamaged(f"a message of {len(data)} bytes is too short: the entry is damaged")
    _, attributes, header_count, key_bytes, payload_bytes = _MESSAGE_HEAD.unpack_from(data)
    key_end = HEAD_BYTES + key_bytes
    end = key_end + payload_bytes
    if not header_count and end == len(data):
        return DlogMessage(data[key_end:], data[HEAD_BYTES:key_end], (), attributes)
    headers, end_of_all = _headers(data, end, header_count)
    if end_of_all != len(data):
        raise StoreDamaged(
            f"a message of {len(data)} bytes says to have {end_of_all}: the entry is damaged"
        )
    return DlogMessage(data[key_end:end], data[HEAD_BYTES:key_end], headers, attributes)


def _headers(
    data: memoryview, offset: int, count: int
) -> tuple[tuple[tuple[bytes, Buffer], ...], int]:
    headers = []
    for _ in range(count):
        if offset + _HEADER.size > len(data):
            raise StoreDamaged("a message's headers are cut off: the entry is damaged")
        key_bytes, value_bytes = _HEADER.unpack_from(data, offset)
        value_at = offset + _HEADER.size + key_bytes
        headers.append(
            (bytes(data[offset + _HEADER.size : value_at]), data[value_at : value_at + value_bytes])
        )
        offset = value_at + value_bytes
    return tuple(headers), offset


# An entry of a ledger: one or more messages, who sent them, and what else a writer must know.
#
#     magic (1), compression (1), messages (2), runs (2), pieces of a snapshot behind this one (2),
#     append time in ms (8), bytes of all messages that were ever appended, these too (8),
#     entry of this ledger where the last snapshot began (8),
#     bytes of the snapshot (4), bytes of the body unpacked (4);
#     per run: length of the producer's name (1), messages (2), first sequence (8), name;
#     snapshot; body: the end of each message (4 each), then the messages
#
# Big-endian; the body alone is compressed. A run is a number of messages of one producer with
# consecutive sequences; a run without a name has no producer, and its messages are not
# deduplicated.
#
# A **snapshot** is the table of producers as it was before the entry. Each ledger begins with one,
# and others come from time to time. A take-over reads the last entry, goes to the snapshot that it
# names, and reads on from there: never far, no matter what was shrunk. A large snapshot is spread
# over several consecutive entries.

ENTRY_MAGIC: Final = 1
_ENTRY_HEAD: Final = struct.Struct(">BBHHHQQQII")
_RUN: Final = struct.Struct(">BHQ")
ENTRY_HEAD_BYTES: Final = _ENTRY_HEAD.size
MESSAGES_MAX: Final = (1 << 16) - 1
BODY_BYTES_MAX: Final = 64 << 20
"""The limit of an unpacked body, and so of a reader's allocation for an entry."""
PRODUCER_BYTES_MAX: Final = 255


class ProducerRun(msgspec.Struct, frozen=True, gc=False):
    """A number of messages of one producer, with consecutive sequences."""

    producer: bytes
    first: int
    count: int


class EntryHead(msgspec.Struct, frozen=True, gc=False):
    """An entry without its messages."""

    time_ms: int
    count: int
    runs: tuple[ProducerRun, ...] = ()
    snapshot_entry: int = 0
    """The entry where this ledger's last snapshot begins; the entry itself if it has a piece."""
    snapshot: Buffer = b""
    """A piece of the snapshot."""
    snapshot_pieces_left: int = 0
    compression: Codec = Codec.NONE
    appended_bytes: int = 0
    """The sizes of all messages of the log up to here, without heads, freed ones too."""


class DecodedEntry:
    """An entry that decodes each message on demand."""

    __slots__ = ("_body", "_ends", "head")

    def __init__(self, head: EntryHead, body: memoryview, ends: tuple[int, ...]) -> None:
        self.head = head
        self._body = body
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self, index: int) -> memoryview:
        """Returns a message's bytes."""
        start = self._ends[index - 1] if index else 0
        return self._body[start : self._ends[index]]

    def message(self, index: int) -> DlogMessage:
        return decode_message(self.raw(index))

    def payload(self, index: int) -> memoryview:
        """Returns a message's payload, skipping its key and headers."""
        return memoryview(self.message(index).payload)

    @property
    def body(self) -> memoryview:
        """All messages, one after the other."""
        return self._body

    @property
    def ends(self) -> tuple[int, ...]:
        return self._ends


def encode_entry(head: EntryHead, parts: Sequence[Buffer], lengths: Sequence[int]) -> bytes:
    """Encodes an entry; `parts` are the messages' bytes, `lengths` each message's size."""
    ends, end = [], 0
    for length in lengths:
        end += length
        ends.append(end)
    table = struct.pack(f">{len(ends)}I", *ends)
    packed: list[Buffer] = [
        _ENTRY_HEAD.pack(
            ENTRY_MAGIC,
            head.compression,
            len(ends),
            len(head.runs),
            head.snapshot_pieces_left,
            head.time_ms,
            head.appended_bytes,
            head.snapshot_entry,
            len(head.snapshot),
            len(table) + end,
        )
    ]
    for run in head.runs:
        packed += (_RUN.pack(len(run.producer), run.count, run.first), run.producer)
    packed.append(head.snapshot)
    if head.compression is Codec.NONE:
        packed.append(table)
        packed += parts
    else:
        packed.append(compress(b"".join((table, *parts)), head.compression))
    return b"".join(packed)


def decode_head(data: Buffer) -> tuple[EntryHead, int, int]:
    """Returns the head, the offset of the body, and the body's size when unpacked."""
    if not data or data[0] != ENTRY_MAGIC:
        version = data[0] if data else "none"
        raise UnsupportedVersion(
            f"an entry of version {version}: "
            f"this program reads version {ENTRY_MAGIC}, use a newer one"
        )
    if len(data) < ENTRY_HEAD_BYTES:
        raise StoreDamaged(f"an entry of {len(data)} bytes is too short: it is damaged")
    _, kind, count, run_count, pieces, time_ms, appended_bytes, *sizes = _ENTRY_HEAD.unpack_from(
        data
    )
    snapshot_entry, snapshot_bytes, raw_bytes = sizes
    if kind > Codec.ZSTD:
        raise UnsupportedVersion(
            f"an entry with compression {kind}, which is not known here: use a newer program"
        )
    if raw_bytes > BODY_BYTES_MAX or raw_bytes < count * (4 + HEAD_BYTES):
        raise StoreDamaged(f"{count} messages in {raw_bytes} bytes: the entry is damaged")
    runs, offset = _runs(data, run_count, count)
    snapshot_end = offset + snapshot_bytes
    if snapshot_end > len(data):
        raise StoreDamaged("a snapshot of producers is cut off: the entry is damaged")
    head = EntryHead(
        time_ms,
        count,
        runs,
        snapshot_entry,
        data[offset:snapshot_end],
        pieces,
        Codec(kind),
        appended_bytes,
    )
    return head, snapshot_end, raw_bytes


def _runs(data: Buffer, count: int, messages: int) -> tuple[tuple[ProducerRun, ...], int]:
    offset = ENTRY_HEAD_BYTES
    runs, seen = [], 0
    for _ in range(count):
        if offset + _RUN.size > len(data):
            raise StoreDamaged("an entry's producers are cut off: it is damaged")
        name_bytes, number, first = _RUN.unpack_from(data, offset)
        offset += _RUN.size
        runs.append(ProducerRun(bytes(data[offset : offset + name_bytes]), first, number))
        offset += name_bytes
        seen += number
    if seen != messages or offset > len(data):
        raise StoreDamaged(f"an entry of {messages} messages has {seen} of producers: damaged")
    return tuple(runs), offset


def decode_entry(data: Buffer) -> DecodedEntry:
    """Decodes an entry; `UnsupportedVersion` for another magic, `StoreDamaged` for bad lengths."""
    head, body_at, raw_bytes = decode_head(data)
    view = memoryview(data)
    try:
        body = memoryview(decompress(view[body_at:], head.compression, raw_bytes=raw_bytes))
    except InvalidInput as error:
        raise StoreDamaged(f"an entry cannot be unpacked: {error.message}") from error
    table_bytes = 4 * head.count
    ends: tuple[int, ...] = struct.unpack_from(f">{head.count}I", body)
    previous = 0
    for end in ends:
        if end < previous:
            raise StoreDamaged("the messages of an entry overlap: it is damaged")
        previous = end
    if previous != raw_bytes - table_bytes:
        raise StoreDamaged(f"an entry's messages end at {previous}, not at its end: it is damaged")
    return DecodedEntry(head, body[table_bytes:], ends)
