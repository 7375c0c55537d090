"""What restores a shard from a backup, as entries of its log. No I/O.

    begin    update kind 5; then the backup's id, truncated LSN, required LSN, next timestamp and
             leaseholder (8 each)
    record   as it was appended, with the flag `RESTORED` and its LSN in place of the sequence
    fill     update kind 6, and an LSN at which there is no record
    finish   update kind 7; then the backup's id, the next LSN and the number of records (8 each)

LSNs go up. A record or fill that comes again, as after a lost answer, changes nothing; whoever
restores sends a batch only when the one before was answered, and `finish` counts the records.
"""

import struct
from typing import Final

import msgspec

from raftwood.logservice.records import (
    HEAD,
    HEAD_BYTES,
    NO_PRODUCER,
    RESTORED,
    SEALED,
    VERSION,
    UpdateKind,
)

NUMBER_MAX: Final = SEALED
"""Of LSNs, timestamps and holders: what is counted up from them still fits 64 bits."""
_BEGIN: Final = struct.Struct(">QQQQQ")
_FINISH: Final = struct.Struct(">QQQ")


class RestoreBegin(msgspec.Struct, frozen=True):
    """What a shard is told at first."""

    backup: int
    """Tells backups apart."""
    truncated_lsn: int
    required_lsn: int
    tso: int
    holder: int


class RestoreFinish(msgspec.Struct, frozen=True):
    """What a shard is told at last."""

    backup: int
    next_lsn: int
    records: int


class RestoreState(msgspec.Struct, array_like=True):
    """How far a shard is; kept when it is done, so that a repetition is known as one."""

    backup: int
    last_lsn: int
    records: int = 0
    is_done: bool = False


def encode_begin(begin: RestoreBegin) -> bytes:
    return _head(UpdateKind.RESTORE) + _BEGIN.pack(*msgspec.structs.astuple(begin))


def encode_restored(data: bytes | memoryview, lsn: int) -> bytes:
    """A record's entry from its data, as a reader got it: kind, holder and payload."""
    head = HEAD.pack(VERSION, RESTORED, NO_PRODUCER, lsn, UpdateKind.USER, 0)
    return b"".join((head[:-8], data[4:]))


def encode_finish(finish: RestoreFinish) -> bytes:
    return _head(UpdateKind.RESTORED) + _FINISH.pack(*msgspec.structs.astuple(finish))


def decode_begin(payload: bytes) -> RestoreBegin | None:
    """None where it cannot be read."""
    numbers = _numbers(payload, _BEGIN)
    return None if numbers is None else RestoreBegin(*numbers)


def decode_finish(payload: bytes) -> RestoreFinish | None:
    """None where it cannot be read."""
    numbers = _numbers(payload, _FINISH)
    return None if numbers is None else RestoreFinish(*numbers)


def _numbers(payload: bytes, layout: struct.Struct) -> tuple[int, ...] | None:
    if len(payload) != HEAD_BYTES + layout.size:
        return None
    numbers = layout.unpack_from(payload, HEAD_BYTES)
    return numbers if max(numbers) <= NUMBER_MAX else None


def _head(kind: UpdateKind) -> bytes:
    return HEAD.pack(VERSION, 0, NO_PRODUCER, 0, kind, 0)
