"""A change of a table as a record of a stream, and the stamp of a batch of them. No I/O.

A record has the fields below, as text:

    op          set, delete, flush or mark
    key         what is set or deleted; `key_base64` instead, where it is no UTF-8
    value       what it has from now on; `value_base64` instead, where it is no UTF-8
    expires_ms  when it ends, since 1970; left out where it stays
    slots       of a flush: first-last; all keys in these slots are gone
    cause       why, where no record of a binlog is: begin, snapshot or repair
    mark        begin (of a process), snapshot (it is whole), cut (of what was captured), split,
                still (nothing since; the point is told again)
    epoch, sequence, index      the record of the binlog, and the place in it
    origin      the name of the request, where it had one

and its batch has the tags `table`, `partition`, and `capture`: who captured it, and how far.
Whoever applies sets, deletes and flushes in the order of a shard has the table in the end.
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
    """How far a partition is captured: what is needed to go on there."""

    epoch: int = 0
    sequence: int = 0
    """Of the last record of which something was captured."""
    index: int = 0
    """So much of that record; 0: all of it."""
    epochs: tuple[EpochStart, ...] = ()
    """Of what was captured, the last ones."""
    repairing: BinlogPosition | None = None
    """Values were fetched that are of this position: a binlog without it is of another past."""
    is_snapshot: bool = False
    """A snapshot has begun, and is not whole."""

    @property
    def position(self) -> BinlogPosition:
        return BinlogPosition(self.epoch, self.sequence)


class Stamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose batch it is, and what holds once it is stored."""

    name: str
    """Of the capture."""
    incarnation: int
    """Of the table."""
    partition: int
    tenure: int
    """Of the process: a later one has a larger one."""
    chunk: int
    """Of the tenure; they follow one another."""
    process: str = ""
    """Drawn when it was started; with its first batch alone."""
    point: Point | None = None
    """None: as the batch before it."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Stamp)


def encode_stamp(stamp: Stamp, *, table: str) -> bytes:
    """What all records of a batch share."""
    tags = (
        (b"table", exact_text(table)),
        (b"partition", b"%d" % stamp.partition),
        (TAG.encode(), _encoder.encode(stamp)),
    )
    return encode_shared(tags=tags)


def decode_stamp(tags: Mapping[str, str | bytes]) -> Stamp | None:
    """Of a batch; None where it is not of a capture."""
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
    """What a key has from now on; `at` is what else is known of it."""
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
    """The changes of a record but for the first ones, encoded, each with its key; None: a flush."""
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
    """How many changes it has."""
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
    """Of a record with `op` set or delete."""
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
    """Of a record with `op` flush."""
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
