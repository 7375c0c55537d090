"""Records, and the entries that carry them: the same on the wire, in the log and read back.

    entry    version (1), flags (1), producer (16), sequence (8), then the record's data
    data     update kind (4), leaseholder id (8), payload

Big-endian. A record's LSN is its entry's index in the raft log, so LSNs have holes: elections,
changes of members, leases and truncations stand in the log as well. In a shard that was restored
from a backup the records keep the LSNs that they had: see `LsnMap`.

Entries that restore a shard from a backup are part of its log, too:

    begin    update kind 5; then the backup's id, truncated LSN, required LSN, next timestamp and
             leaseholder (8 each)
    record   as it was appended, with the flag `RESTORED` and its LSN in place of the sequence
    fill     update kind 6, and an LSN at which there is no record
    finish   update kind 7; then the backup's id, the next LSN and the number of records (8 each)

LSNs go up. A repeated record or fill, as after a lost answer, changes nothing; the restoring client
sends a batch only when the one before was answered, and `finish` counts the records.
"""

import struct
from enum import IntEnum
from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput

VERSION: Final = 1
ORDERED: Final = 1
"""A flag: the sequence must be the next one of its producer."""
RESTORED: Final = 2
"""A flag: the record comes from a backup, and has its LSN in place of a sequence."""
PRODUCER_BYTES: Final = 16
NO_PRODUCER: Final = bytes(PRODUCER_BYTES)

HEAD: Final = struct.Struct(">BB16sQIQ")
HEAD_BYTES: Final = HEAD.size
DATA_OFFSET: Final = 26
KIND_OFFSET: Final = 29
"""The offset of the last byte of the update kind, enough to tell the kinds apart."""
_NUMBER: Final = struct.Struct(">Q")
SEALED: Final = (1 << 62) - 1
"""The largest leaseholder id: no append uses it, so taking it ends the log."""
RECORD_BYTES_MAX: Final = (8 << 20) - HEAD_BYTES
"""The largest entry of the raft host at its default settings."""


class UpdateKind(IntEnum):
    """What an entry asks of a log shard's state machine."""

    LEASEHOLDER = 0
    TRUNCATE = 1
    USER = 2
    TSO = 3
    REQUIRED = 4
    RESTORE = 5
    FILL = 6
    RESTORED = 7


_USER: Final = int(UpdateKind.USER)
RECORD_HEAD_BYTES: Final = 12
"""The bytes before a reader's payload: the kind of update and the holder."""


class RecordKind(IntEnum):
    """The kinds of entries that a reader gets."""

    USER = 0
    INTERNAL = 1
    LEASE_UPDATE = 2
    LEASE_REJECTED = 3


class Record(msgspec.Struct, gc=False):
    """One record of a log."""

    lsn: int
    kind: RecordKind
    data: bytes

    @property
    def holder(self) -> int:
        """The leaseholder id under which it was written."""
        holder: int = _NUMBER.unpack_from(self.data, 4)[0]
        return holder

    @property
    def payload(self) -> memoryview:
        return memoryview(self.data)[RECORD_HEAD_BYTES:]


def encode_user_entry(
    payload: bytes | bytearray | memoryview,
    *,
    holder: int,
    producer: bytes = NO_PRODUCER,
    sequence: int = 0,
    is_ordered: bool = True,
) -> bytes:
    head = user_head(holder=holder, producer=producer, sequence=sequence, is_ordered=is_ordered)
    return head + payload


def user_head(*, holder: int, producer: bytes, sequence: int, is_ordered: bool) -> bytes:
    """Encodes the bytes before the payload of a user's entry."""
    return HEAD.pack(VERSION, ORDERED if is_ordered else 0, producer, sequence, _USER, holder)


def renumbered(entry: bytes, producer: bytes, sequence: int) -> bytes:
    """Returns a user's entry as another producer sends it."""
    return b"".join((entry[:2], producer, sequence.to_bytes(8, "big"), entry[DATA_OFFSET:]))


def record_name(entry: bytes) -> bytes | None:
    """The producer and sequence of a user's record, the same at each repetition; else None."""
    if len(entry) < HEAD_BYTES or entry[0] != VERSION or entry[1] & RESTORED:
        return None
    name = entry[2:DATA_OFFSET]
    is_user = entry[DATA_OFFSET:KIND_OFFSET] == bytes(3) and entry[KIND_OFFSET] == UpdateKind.USER
    return name if is_user and not name.startswith(NO_PRODUCER) else None


def name_before(entry: bytes) -> bytes | None:
    """The name of the record that must come before an ordered one; else None."""
    name = record_name(entry) if entry[1:2] == bytes([ORDERED]) else None
    if name is None:
        return None
    sequence = int.from_bytes(name[PRODUCER_BYTES:], "big")
    return name[:PRODUCER_BYTES] + (sequence - 1).to_bytes(8, "big") if sequence > 1 else None


def encode_update(kind: UpdateKind, number: int) -> bytes:
    """Encodes an entry that only changes the shard's state; a new holder is the number itself."""
    if not 0 <= number < 1 << 63:
        raise InvalidInput(f"{number} is no number from 0 to {(1 << 63) - 1}")
    holder = number if kind is UpdateKind.LEASEHOLDER else 0
    return HEAD.pack(VERSION, 0, NO_PRODUCER, 0, kind, holder) + _NUMBER.pack(number)


def number_of(payload: bytes) -> int:
    """Decodes the number of an entry that `encode_update` made."""
    number: int = _NUMBER.unpack_from(payload, HEAD_BYTES)[0]
    return number


NUMBER_MAX: Final = SEALED
"""The limit of LSNs, timestamps and holders: what is counted up from them fits 64 bits."""
_BEGIN: Final = struct.Struct(">QQQQQ")
_FINISH: Final = struct.Struct(">QQQ")


class RestoreBegin(msgspec.Struct, frozen=True):
    """The first entry of a restore."""

    backup: int
    """The id of the backup."""
    truncated_lsn: int
    required_lsn: int
    tso: int
    holder: int


class RestoreFinish(msgspec.Struct, frozen=True):
    """The last entry of a restore."""

    backup: int
    next_lsn: int
    records: int


class RestoreState(msgspec.Struct, array_like=True):
    """The progress of a restore; kept when it is done, to recognize a repetition."""

    backup: int
    last_lsn: int
    records: int = 0
    is_done: bool = False


def encode_begin(begin: RestoreBegin) -> bytes:
    return _head(UpdateKind.RESTORE) + _BEGIN.pack(*msgspec.structs.astuple(begin))


def encode_restored(data: bytes | memoryview, lsn: int) -> bytes:
    """Encodes a record's entry from the data that a reader got: kind, holder and payload."""
    head = HEAD.pack(VERSION, RESTORED, NO_PRODUCER, lsn, UpdateKind.USER, 0)
    return b"".join((head[:-8], data[4:]))


def encode_finish(finish: RestoreFinish) -> bytes:
    return _head(UpdateKind.RESTORED) + _FINISH.pack(*msgspec.structs.astuple(finish))


def decode_begin(payload: bytes) -> RestoreBegin | None:
    """Decodes the entry; None if it cannot be read."""
    numbers = _numbers(payload, _BEGIN)
    return None if numbers is None else RestoreBegin(*numbers)


def decode_finish(payload: bytes) -> RestoreFinish | None:
    """Decodes the entry; None if it cannot be read."""
    numbers = _numbers(payload, _FINISH)
    return None if numbers is None else RestoreFinish(*numbers)


def _numbers(payload: bytes, layout: struct.Struct) -> tuple[int, ...] | None:
    if len(payload) != HEAD_BYTES + layout.size:
        return None
    numbers = layout.unpack_from(payload, HEAD_BYTES)
    return numbers if max(numbers) <= NUMBER_MAX else None


def _head(kind: UpdateKind) -> bytes:
    return HEAD.pack(VERSION, 0, NO_PRODUCER, 0, kind, 0)
