"""An entry of a ledger: one or more messages, who sent them, and what else a writer must know.

    magic (1), compression (1), messages (2), runs (2), pieces of a snapshot behind this one (2),
    append time in ms (8), bytes of all messages that were ever appended, these too (8),
    entry of this ledger where the last snapshot began (8),
    bytes of the snapshot (4), bytes of the body unpacked (4);
    per run: length of the producer's name (1), messages (2), first sequence (8), name;
    snapshot; body: the end of each message (4 each), then the messages

Big-endian; the body alone is compressed. A run is a number of messages of one producer with
consecutive sequences; one without a name was sent by nobody in particular, and is not known again.

A **snapshot** is the table of producers as it was before the entry. Each ledger begins with one,
and others come from time to time, so whoever takes over reads the last entry, goes to the snapshot
that it names, and reads on from there: never far, and whatever was shrunk. A large one is spread
over several entries, which come one behind the other.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer
from raftwood.dlog.log.compression import Compression, compress, decompress
from raftwood.dlog.log.messages import HEAD_BYTES, Message, decode_message

MAGIC: Final = 1
_HEAD: Final = struct.Struct(">BBHHHQQQII")
_RUN: Final = struct.Struct(">BHQ")
ENTRY_HEAD_BYTES: Final = _HEAD.size
MESSAGES_MAX: Final = (1 << 16) - 1
BODY_BYTES_MAX: Final = 64 << 20
"""Of an entry, unpacked: what a reader ever allocates for one."""
PRODUCER_BYTES_MAX: Final = 255


class ProducerRun(msgspec.Struct, frozen=True, gc=False):
    """So many messages of one producer, with consecutive sequences."""

    producer: bytes
    first: int
    count: int


class EntryHead(msgspec.Struct, frozen=True, gc=False):
    """All of an entry but its messages."""

    time_ms: int
    count: int
    runs: tuple[ProducerRun, ...] = ()
    snapshot_entry: int = 0
    """Where in this ledger the last snapshot begins; the entry itself where it has a piece."""
    snapshot: Buffer = b""
    """A piece of it."""
    snapshot_pieces_left: int = 0
    compression: Compression = Compression.NONE
    appended_bytes: int = 0
    """Of all messages of the log up to here, those that are gone too, without their heads."""


class DecodedEntry:
    """An entry whose messages are taken out when they are asked for."""

    __slots__ = ("_body", "_ends", "head")

    def __init__(self, head: EntryHead, body: memoryview, ends: tuple[int, ...]) -> None:
        self.head = head
        self._body = body
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self, index: int) -> memoryview:
        """A message's bytes."""
        start = self._ends[index - 1] if index else 0
        return self._body[start : self._ends[index]]

    def message(self, index: int) -> Message:
        return decode_message(self.raw(index))

    def payload(self, index: int) -> memoryview:
        """Of a message that may have a key and headers, without looking at these."""
        return memoryview(self.message(index).payload)

    @property
    def body(self) -> memoryview:
        """All messages, one behind the other."""
        return self._body

    @property
    def ends(self) -> tuple[int, ...]:
        return self._ends


def encode_entry(head: EntryHead, parts: Sequence[Buffer], lengths: Sequence[int]) -> bytes:
    """Messages as parts to be joined, and how long each of them is."""
    ends, end = [], 0
    for length in lengths:
        end += length
        ends.append(end)
    table = struct.pack(f">{len(ends)}I", *ends)
    packed: list[Buffer] = [
        _HEAD.pack(
            MAGIC,
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
    if head.compression is Compression.NONE:
        packed.append(table)
        packed += parts
    else:
        packed.append(compress(b"".join((table, *parts)), head.compression))
    return b"".join(packed)


def decode_head(data: Buffer) -> tuple[EntryHead, int, int]:
    """The head, where the body begins, and how large it is when unpacked."""
    if not data or data[0] != MAGIC:
        version = data[0] if data else "none"
        raise UnsupportedVersion(
            f"an entry of version {version}: this program reads version {MAGIC}, use a newer one"
        )
    if len(data) < ENTRY_HEAD_BYTES:
        raise StoreDamaged(f"an entry of {len(data)} bytes is too short: it is damaged")
    _, kind, count, run_count, pieces, time_ms, appended_bytes, *sizes = _HEAD.unpack_from(data)
    snapshot_entry, snapshot_bytes, raw_bytes = sizes
    if kind > Compression.ZSTD:
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
        Compression(kind),
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
    """`UnsupportedVersion` for another magic, `StoreDamaged` where the lengths don't fit."""
    head, body_at, raw_bytes = decode_head(data)
    view = memoryview(data)
    body = memoryview(decompress(view[body_at:], head.compression, raw_bytes=raw_bytes))
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
