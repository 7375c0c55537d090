"""A change of a table as a record of a stream, and the stamp of a batch of them. No I/O.

A record has the fields below, as text:

    op          set, delete, flush or mark
    key         what is set or deleted; `key_base64` instead, where it is no UTF-8
    value       what it has from now on; `value_base64` instead, where it is no UTF-8
    expires_ms  when it ends, since 1970; left out where it stays
    slots       of a flush: first-last; all keys in these slots are gone
    cause       why, where no record of a binlog is: begin, snapshot or repair
    mark        begin (of a process), snapshot (it is whole), cut (of what was captured), split,
                still (no changes since; repeats the point)
    epoch, sequence, index      the record of the binlog, and the place in it
    origin      the name of the request, where it had one

Its batch has the tags `table`, `partition` and `capture`; the last one holds the `Stamp`. A reader
that applies sets, deletes and flushes in the order of a shard ends with the table.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.base.log_group_codec import encode_record, encode_shared, exact_text
from raftwood.zeppelin.records import BinlogPosition, BinlogRecord, EpochStart, KeyWrite

TAG: Final = "capture"
Cause = Literal["begin", "snapshot", "repair"]
Mark = Literal["begin", "snapshot", "cut", "split", "still"]


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a partition is captured: all that is needed to resume there."""

    epoch: int = 0
    sequence: int = 0
    """The last record of which a change was captured."""
    index: int = 0
    """How many changes of that record are captured; 0: all."""
    epochs: tuple[EpochStart, ...] = ()
    """The latest epochs of the captured records."""
    repairing: BinlogPosition | None = None
    """Values were fetched at this position: a binlog without it has another past."""
    is_snapshot: bool = False
    """A snapshot has begun and is not complete."""

    @property
    def position(self) -> BinlogPosition:
        return BinlogPosition(self.epoch, self.sequence)


class Stamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The capture that a batch belongs to, and the point that holds once it is stored."""

    name: str
    """The capture's name."""
    incarnation: int
    """The table's incarnation."""
    partition: int
    tenure: int
    """The process's tenure: a later process has a larger one."""
    chunk: int
    """Number of the chunk in its tenure, without gaps."""
    process: str = ""
    """Random id of the process; only its first batch has it."""
    point: Point | None = None
    """None: the point is that of the batch before."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Stamp)


def encode_stamp(stamp: Stamp, *, table: str) -> bytes:
    """Encodes what all records of a batch share."""
    tags = (
        (b"table", exact_text(table)),
        (b"partition", b"%d" % stamp.partition),
        (TAG.encode(), _encoder.encode(stamp)),
    )
    return encode_shared(tags=tags)


def decode_stamp(tags: Mapping[str, str | bytes]) -> Stamp | None:
    """Decodes a batch's stamp; None if no capture wrote the batch."""
    found = tags.get(TAG)
    if found is None:
        return None
    try:
        return _decoder.decode(found)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"the stamp of a captured batch cannot be read: {error}") from error


# Changes.


def encode_write(
    write: KeyWrite,
    at: Mapping[str, str],
    time_ns: int,
) -> bytes:
    """Encodes the new value of a key; `at` holds the further fields."""
    fields: dict[str, str | bytes] = {"op": "set"}
    _add(fields, "key", write.key)
    if write.data is None:
        fields["op"] = "delete"
    else:
        _add(fields, "value", write.data)
        if write.expires_ms:
            fields["expires_ms"] = str(write.expires_ms)
    fields.update(at)
    return encode_record(fields, time_ns)


def encode_flush(slots: range, at: Mapping[str, str], time_ns: int) -> bytes:
    fields = {"op": "flush", "slots": f"{slots.start}-{slots.stop - 1}", **at}
    return encode_record(fields, time_ns)


def encode_mark(mark: Mark, at: Mapping[str, str], time_ns: int) -> bytes:
    return encode_record({"op": "mark", "mark": mark, **at}, time_ns)


def changes_of(
    record: BinlogRecord, slots: range, *, time_ns: int, skipped: int = 0
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yields a record's changes behind the first `skipped`, each with its key; None: a flush."""
    shared = {"epoch": str(record.epoch), "sequence": str(record.sequence)}
    if record.origin is not None:
        producer, number = record.origin
        shared["origin"] = f"{producer.decode(errors='backslashreplace')}/{number}"
    index = 0
    if record.flushes:
        if not skipped:
            yield encode_flush(slots, {**shared, "index": "0"}, time_ns), None
        index = 1
    for write in record.writes[max(0, skipped - index) :]:
        place = max(index, skipped)
        yield encode_write(write, {**shared, "index": str(place)}, time_ns), write.key
        skipped = place + 1


def count_of(record: BinlogRecord) -> int:
    """Number of changes in a record."""
    return len(record.writes) + record.flushes


def _add(fields: dict[str, str | bytes], name: str, data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data)
    else:
        fields[name] = data


# Back from a stream.


def write_of(contents: Mapping[str, str | bytes]) -> KeyWrite:
    """The write of a record with `op` set or delete."""
    key = _data(contents, "key")
    if key is None:
        raise ProtocolError("a captured change has no key")
    if contents["op"] == "delete":
        return KeyWrite(key, None)
    value = _data(contents, "value")
    if value is None:
        raise ProtocolError("a captured change has no value")
    return KeyWrite(key, value, int(contents.get("expires_ms", 0)))


def slots_of(contents: Mapping[str, str | bytes]) -> range:
    """The slots of a record with `op` flush."""
    first, _, last = str(contents.get("slots", "")).partition("-")
    try:
        return range(int(first), int(last) + 1)
    except ValueError:
        raise ProtocolError("a captured flush says not of which slots") from None


def _data(contents: Mapping[str, Any], name: str) -> bytes | None:
    found = contents.get(name)
    if found is not None:
        return found.encode() if isinstance(found, str) else bytes(found)
    encoded = contents.get(f"{name}_base64")
    return None if encoded is None else base64.b64decode(encoded)
