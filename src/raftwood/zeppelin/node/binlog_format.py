"""Bytes of a binlog: runs of records that were written together. No I/O.

    run       [header][u32 length of each record][record][record]…      little-endian
    header    magic, version, hour, count, epoch, first sequence, checksum (XXH3-64 of the rest)
    hour      when it was written, in hours since 1970, three bytes
    record    MessagePack, as `seams.encode_record` makes it

All records of a run are of one epoch, and their sequences follow one another. A record is encoded
once: the master's bytes are what its slaves get and keep.
"""

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base.errors import ProtocolError, StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer
from raftwood.zeppelin.node.seams import Record, decode_record

MAGIC: Final = b"RWZB"
VERSION: Final = 1
_HEAD: Final = Struct("<4sIIQQ")
_HOUR_BITS: Final = 24
_CHECKSUM: Final = Struct("<Q")
RUN_HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size
LENGTH_BYTES: Final = 4


class Run(msgspec.Struct, frozen=True):
    """A decoded run; each record still as it was encoded."""

    epoch: int
    first_sequence: int
    records: list[Buffer]
    hour: int = 0


def encode_run(
    *, epoch: int, first_sequence: int, records: Sequence[Buffer], hour: int = 0
) -> bytes:
    """`hour` is of now; 0: nobody knows, and it counts as old."""
    stamp = VERSION | (hour & (1 << _HOUR_BITS) - 1) << 8
    head = _HEAD.pack(MAGIC, stamp, len(records), epoch, first_sequence)
    body = b"".join((array("I", map(len, records)).tobytes(), *records))
    return b"".join((head, _CHECKSUM.pack(checksum_of(body, checksum_of(head))), body))


def decode_run(data: Buffer) -> Run:
    """The run's records; `StoreDamaged` where the bytes are not those that were written."""
    if len(data) < RUN_HEADER_BYTES:
        raise _damaged(f"it has {len(data)} bytes, fewer than its header")
    magic, stamp, count, epoch, first_sequence = _HEAD.unpack_from(data)
    version, hour = stamp & 0xFF, stamp >> 8
    if magic != MAGIC:
        raise _damaged("it does not begin as runs do")
    if version != VERSION:
        raise UnsupportedVersion(
            f"a run of a binlog has format {version}, this program reads {VERSION}: use the newer "
            "version that wrote it"
        )
    view = memoryview(data)
    (checksum,) = _CHECKSUM.unpack_from(view, _HEAD.size)
    if checksum != checksum_of(view[RUN_HEADER_BYTES:], checksum_of(view[: _HEAD.size])):
        raise _damaged("it does not match its checksum")
    place = RUN_HEADER_BYTES + count * LENGTH_BYTES
    if place > len(data):
        raise _damaged(f"it has no room for {count} records")
    lengths = array("I")
    lengths.frombytes(view[RUN_HEADER_BYTES:place])
    if place + sum(lengths) != len(data):
        raise _damaged("its records do not fill it")
    records: list[Buffer] = []
    for length in lengths:
        records.append(view[place : place + length])
        place += length
    return Run(epoch, first_sequence, records, hour)


def hour_of(data: Buffer) -> int:
    """When a run was written; only its header is looked at."""
    if len(data) < RUN_HEADER_BYTES:
        raise _damaged(f"it has {len(data)} bytes, fewer than its header")
    return int(_HEAD.unpack_from(data)[1]) >> 8


def decode_records(run: Run) -> list[Record]:
    """All of a run; `StoreDamaged` where they are not what the header says."""
    try:
        records = [decode_record(each) for each in run.records]
    except ProtocolError as error:
        raise _damaged(error.message) from error
    for sequence, record in enumerate(records, run.first_sequence):
        if record.sequence != sequence or record.epoch != run.epoch:
            raise _damaged(
                f"record {record.sequence} of epoch {record.epoch} stands where {sequence} of "
                f"epoch {run.epoch} should"
            )
    return records


def _damaged(reason: str) -> StoreDamaged:
    return StoreDamaged(
        f"a run of a binlog is damaged: {reason}; restore the partition from a replica"
    )
