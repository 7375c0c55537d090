"""LogGroups from and to columns of Arrow, all records at once. Imports pyarrow and numpy.

`log_groups_of` encodes a record batch column by column: Arrow itself puts the bytes together.

`columns_of` decodes a LogGroup's bytes. It walks the lengths of the records one by one. From there
on it reads the next field of all records in one step. It collects the places of values in the
bytes, and Arrow copies the values once. Bytes that are not laid out as producers do it go through
protobuf, record by record.
"""

import itertools
from collections.abc import Container
from functools import cache
from typing import Any, Final

import msgspec
import numpy
import pyarrow
import pyarrow.compute
from pyarrow import types

from raftwood.base.errors import InvalidInput, TooLarge
from raftwood.base.files import Buffer
from raftwood.base.log_group_codec import RECORD_TAG, encode_shared
from raftwood.base.protobuf_bytes import field_bytes, read_varint, varint
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC
from raftwood.loghub.log_groups import decode_log_group

_NS: Final = 1_000_000_000
_SIZES_MAX: Final = 1 << 14


def log_groups_of(batch: Any, *, received_s: int) -> list[bytes]:
    """Encodes one LogGroup for each run of records that share topic, source and tags."""
    if not batch.num_rows:
        return []
    batch = _with_unique_names(batch)
    shared = [
        name
        for name in batch.schema.names
        if name in (TOPIC, SOURCE) or name.startswith(TAG_PREFIX)
    ]
    contents = [name for name in batch.schema.names if name != TIME and name not in shared]
    records = _records(batch, contents, received_s)
    texts = {name: column_as_bytes(batch.column(name)) for name in shared}
    groups = []
    for first, last in _runs(list(texts.values()), batch.num_rows):
        values = {name: texts[name][first].as_py() for name in shared}
        groups.append(_joined(records.slice(first, last - first)) + _shared_bytes(values))
    return groups


def _with_unique_names(batch: Any) -> Any:
    names = batch.schema.names
    if len(set(names)) == len(names):
        return batch
    raise InvalidInput("two columns of the Arrow batch have the same name: rename one")


def _runs(columns: list[Any], count: int) -> list[tuple[int, int]]:
    """Returns the ranges of records in which none of the columns changes."""
    is_new = numpy.zeros(count, dtype=bool)
    for column in columns:
        if count > 1:
            filled = pyarrow.compute.fill_null(column, b"")
            changes = pyarrow.compute.not_equal(filled.slice(1), filled.slice(0, count - 1))
            is_new[1:] |= changes.to_numpy(zero_copy_only=False)
    starts = [0, *map(int, numpy.flatnonzero(is_new)), count]
    return list(itertools.pairwise(starts))


def _shared_bytes(values: dict[str, bytes | None]) -> bytes:
    parts = []
    for name, value in values.items():
        if name == TOPIC and value:
            parts.append(encode_shared(topic=value))
        elif name == SOURCE and value:
            parts.append(encode_shared(source=value))
        elif name.startswith(TAG_PREFIX) and value is not None:
            key = name[len(TAG_PREFIX) :].encode("utf-8", "replace")
            parts.append(encode_shared(tags=((key, value),)))
    return b"".join(parts)


def _records(batch: Any, contents: list[str], received_s: int) -> Any:
    """Encodes each record as a field of its group."""
    time, time_ns = _times(batch, received_s)
    parts = [time, *(_contents(name, batch.column(name)) for name in contents)]
    if time_ns is not None:
        parts.append(time_ns)
    body = _concatenated(*parts, nulls="skip")
    return _concatenated(RECORD_TAG, _sizes(body), body)


def _contents(name: str, column: Any) -> Any:
    """Encodes a column's values as fields of their records; null if a record has none."""
    values = column_as_bytes(column)
    head = field_bytes(1, name.encode("utf-8", "replace")) + b"\x12"
    pair = _concatenated(head, _sizes(values), values)
    return _concatenated(b"\x12", _sizes(pair), pair)


def _times(batch: Any, received_s: int) -> tuple[Any, Any]:
    """Encodes seconds and, if any record has them, nanoseconds, as fields."""
    count = batch.num_rows
    if TIME in batch.schema.names:
        ns = _nanoseconds(batch.column(TIME), received_s)
    else:
        ns = numpy.full(count, received_s * _NS, dtype=numpy.int64)
    seconds, rest = numpy.divmod(ns, _NS)
    seconds = numpy.clip(seconds, 0, (1 << 32) - 1).astype(numpy.uint32)
    fields = numpy.empty((count, 6), dtype=numpy.uint8)
    fields[:, 0] = 0x08
    for index in range(5):
        more = 0x80 if index < 4 else 0
        fields[:, 1 + index] = (seconds >> numpy.uint32(7 * index)) & 0x7F | more
    if not rest.any():
        return _fixed(fields), None
    ends = numpy.empty((count, 5), dtype=numpy.uint8)
    ends[:, 0] = 0x25
    ends[:, 1:] = rest.astype("<u4").view(numpy.uint8).reshape(count, 4)
    return _fixed(fields), _fixed(ends)


def _nanoseconds(column: Any, received_s: int) -> Any:
    if types.is_timestamp(column.type) or types.is_date(column.type):
        try:
            column = column.cast(pyarrow.timestamp("ns"))
        except pyarrow.ArrowInvalid as error:
            raise InvalidInput(f"a {TIME} is out of range: {error}") from error
        column = column.cast(pyarrow.int64())
    elif types.is_integer(column.type) and column.type != pyarrow.uint64():
        # Whole seconds, as SLS has them.
        column = pyarrow.compute.multiply(column.cast(pyarrow.int64()), _NS)
    else:
        raise InvalidInput(f"{TIME} is {column.type}: make it a timestamp")
    return pyarrow.compute.fill_null(column, received_s * _NS).to_numpy(zero_copy_only=False)


def _fixed(fields: Any) -> Any:
    count, width = fields.shape
    kind = pyarrow.binary(width)
    buffers = [None, pyarrow.py_buffer(fields)]
    return pyarrow.Array.from_buffers(kind, count, buffers).cast(pyarrow.binary())


def _sizes(values: Any) -> Any:
    """Returns the encoded length of each value."""
    lengths = pyarrow.compute.binary_length(values)
    longest = pyarrow.compute.max(lengths).as_py() or 0
    if longest < _SIZES_MAX:
        return _most_sizes().take(lengths)
    unique = lengths.dictionary_encode()
    encoded = [None if size is None else varint(size) for size in unique.dictionary.to_pylist()]
    return pyarrow.array(encoded, pyarrow.binary()).take(unique.indices)


@cache
def _most_sizes() -> Any:
    """Built on first use: making an array, Arrow loads all of pandas if pandas is installed."""
    return pyarrow.array([varint(size) for size in range(_SIZES_MAX)], pyarrow.binary())


def _concatenated(*parts: Any, nulls: str = "emit_null") -> Any:
    given = [
        pyarrow.scalar(part, pyarrow.binary()) if isinstance(part, bytes) else part
        for part in parts
    ]
    separator = pyarrow.scalar(b"", pyarrow.binary())
    return pyarrow.compute.binary_join_element_wise(*given, separator, null_handling=nulls)


def _joined(values: Any) -> bytes:
    """Joins all values; they already lie one behind the other in memory."""
    _, offsets, data = values.buffers()
    ends = numpy.frombuffer(offsets, dtype=numpy.int32)
    first, last = ends[values.offset], ends[values.offset + len(values)]
    joined: bytes = data[int(first) : int(last)].to_pybytes()
    return joined


def column_as_bytes(column: Any) -> Any:
    """Turns any column into text, as bytes."""
    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_nested(kind):
        texts = [None if value is None else _json(value) for value in column.to_pylist()]
        return pyarrow.array(texts, pyarrow.binary())
    if types.is_null(kind):
        return pyarrow.nulls(len(column), pyarrow.binary())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column.cast(pyarrow.binary())
    try:
        return column.cast(pyarrow.string()).cast(pyarrow.binary())
    except pyarrow.ArrowNotImplementedError:  # an interval, say
        texts = [None if value is None else str(value).encode() for value in column.to_pylist()]
        return pyarrow.array(texts, pyarrow.binary())


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


COLUMNS_MAX: Final = 1024
CELLS_MAX: Final = 1 << 24
"""Limit of records times columns: each record of a hostile group could have keys of its own."""
_STEPS_MAX: Final = 2 * COLUMNS_MAX
_PAD: Final = bytes(24)
"""Appended to the bytes, so that reads ahead of a check stay inside the buffer."""
_LOG, _TOPIC, _SOURCE, _TAG = 0x0A, 0x1A, 0x22, 0x32
_TIME, _CONTENT, _TIME_NS, _KEY, _VALUE = 0x08, 0x12, 0x25, 0x0A, 0x12
_VARINT_BITS_MAX: Final = 35
_INLINE_BYTES: Final = 12
_FIRST_MASKS: Final = numpy.array(
    [(1 << 8 * min(size, 4)) - 1 for size in range(_INLINE_BYTES + 1)], dtype=numpy.uint64
)
_REST_MASKS: Final = numpy.array(
    [(1 << 8 * max(size - 4, 0)) - 1 for size in range(_INLINE_BYTES + 1)], dtype=numpy.uint64
)


class Columns:
    """A group's records by column: times in nanoseconds, values by key, and the shared fields."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.time_ns = numpy.zeros(count, dtype=numpy.int64)
        self.values: dict[bytes, Any] = {}
        """Binary arrays by key."""
        self.topic = b""
        self.source = b""
        self.tags: list[tuple[bytes, bytes]] = []


class _Irregular(Exception):
    """The bytes are not laid out as expected; protobuf decodes them instead."""


def columns_of(data: Buffer, *, keys: Container[bytes] | None = None) -> Columns:
    """Decodes a LogGroup; `InvalidInput` if it is not one, `TooLarge` for too many different keys.

    With `keys`, values of other keys may be left out.
    """
    try:
        return _Parse(data).columns(keys)
    except _Irregular:
        return _by_protobuf(data)


def _check_size(*, columns: int, records: int) -> None:
    if columns > COLUMNS_MAX or columns * records > CELLS_MAX:
        raise TooLarge(
            f"{records} records with {columns} different keys make too large a table: read them as "
            "records"
        )


def _by_protobuf(data: Buffer) -> Columns:
    group = decode_log_group(data)
    columns = Columns(len(group.Logs))
    columns.topic, columns.source = group.Topic, group.Source
    columns.tags = [(tag.Key, tag.Value) for tag in group.LogTags]
    lists: dict[bytes, list[bytes | None]] = {}
    for index, log in enumerate(group.Logs):
        columns.time_ns[index] = log.Time * 1_000_000_000 + log.Time_ns
        for content in log.Contents:
            values = lists.get(content.Key)
            if values is None:
                values = lists[content.Key] = []
                _check_size(columns=len(lists), records=columns.count)
            del values[index:]  # if a record repeats a key, the last value counts
            values.extend([None] * (index - len(values)))
            values.append(content.Value)
    for key, values in lists.items():
        values.extend([None] * (columns.count - len(values)))
        columns.values[key] = pyarrow.array(values, pyarrow.binary())
    return columns


class _Parse:
    """The state of decoding one group; positions are int64 arrays, one entry per record."""

    def __init__(self, data: Buffer) -> None:
        self._data = padded = b"".join((data, _PAD))
        self._size = len(data)
        self._bytes = numpy.frombuffer(padded, dtype=numpy.uint8)
        self._source = pyarrow.py_buffer(padded)
        # The eight bytes from each place on, as one number.
        self._windows = numpy.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))

    def columns(self, keys: Container[bytes] | None) -> Columns:
        starts, ends = self._walk()
        columns = self._columns
        records = numpy.arange(columns.count)
        nanoseconds = numpy.zeros(columns.count, dtype=numpy.int64)
        has_time = numpy.zeros(columns.count, dtype=bool)
        found: dict[bytes, list[tuple[Any, Any, Any]]] = {}
        if (starts == ends).any():
            raise _Irregular
        for _ in range(_STEPS_MAX):
            if not len(starts):
                break
            tags = self._bytes[starts]
            tag = int(tags[0])
            # If records differ in their layout, those laid out like the first one go first.
            mine = tags == tag
            if mine.all():
                at, stop, who = starts, ends, records
            else:
                at, stop, who = starts[mine], ends[mine], records[mine]
            if tag == _CONTENT:
                at = self._contents(at + 1, stop, who, found)
            elif tag == _TIME:
                value, at = self._varints(at + 1)
                columns.time_ns[who] = value & 0xFFFFFFFF
                has_time[who] = True
            elif tag == _TIME_NS:
                nanoseconds[who] = self._windows[at + 1] & 0xFFFFFFFF
                at = at + 5
            else:
                raise _Irregular
            if (at > stop).any():
                raise _Irregular
            if who is not records:
                starts = starts.copy()
                starts[mine] = at
            else:
                starts = at
            is_left = starts < ends
            if not is_left.all():
                starts, ends, records = starts[is_left], ends[is_left], records[is_left]
        else:
            raise _Irregular
        if not has_time.all():
            raise _Irregular
        columns.time_ns = columns.time_ns * 1_000_000_000 + nanoseconds
        columns.values = {
            key: self._array(places) for key, places in found.items() if keys is None or key in keys
        }
        return columns

    def _walk(self) -> tuple[Any, Any]:
        """Finds where each record begins and ends; reads the shared fields on the way."""
        places, others = self._places()
        self._columns = Columns(len(places))
        ends = numpy.array(places, dtype=numpy.int64)
        # A record's tag and length follow the previous record, or the other fields between the two.
        tags = numpy.zeros(len(ends) + 1, dtype=numpy.int64)
        tags[1:] = ends
        for record, at, end in others:
            self._share(self._data[at], self._data[read_varint(self._data, at + 1)[1] : end])
            tags[record] = end
        return self._varints(tags[:-1] + 1)[1], ends

    def _places(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Returns where each record ends. For each other field it returns the record that the field
        precedes, its begin and its end. Goes record by record: a search for all records at once, by
        their first byte, takes longer.
        """
        data, size = self._data, self._size
        ends: list[int] = []
        others: list[tuple[int, int, int]] = []
        at = 0
        try:
            while at < size:
                length = data[at + 1]
                if length < 128:
                    end = at + 2 + length
                elif data[at + 2] < 128:
                    end = at + 3 + (length & 127) + (data[at + 2] << 7)
                else:
                    length, end = read_varint(data, at + 1, bits_max=_VARINT_BITS_MAX)
                    end += length
                if data[at] == _LOG:
                    ends.append(end)
                else:
                    others.append((len(ends), at, end))
                at = end
        except (IndexError, ValueError):
            raise _Irregular from None
        if at != size:
            raise _Irregular
        return ends, others

    def _share(self, tag: int, value: bytes) -> None:
        if tag == _TOPIC:
            self._columns.topic = value
        elif tag == _SOURCE:
            self._columns.source = value
        elif tag == _TAG:
            self._columns.tags.append(_pair(value))
        elif tag not in (0x12, 0x2A):  # the reserved field and the machine: no reader asks for them
            raise _Irregular

    def _varints(self, at: Any) -> tuple[Any, Any]:
        """Decodes the number at each place; returns also the places behind the numbers."""
        byte = self._bytes[at]
        value = (byte & 127).astype(numpy.int64)
        at = at + 1
        more = byte > 127
        shift = 7
        while more.any():
            if shift > 28:
                raise _Irregular
            byte = self._bytes[at]
            value |= numpy.where(more, (byte & 127).astype(numpy.int64) << shift, 0)
            at += more
            more &= byte > 127
            shift += 7
        return value, at

    def _contents(
        self, at: Any, ends: Any, who: Any, found: dict[bytes, list[tuple[Any, Any, Any]]]
    ) -> Any:
        """Collects key and value of each record; returns the places behind them."""
        size, at = self._varints(at)
        stop = at + size
        if (stop > ends).any() or (self._bytes[at] != _KEY).any():
            raise _Irregular
        key_size, key = self._varints(at + 1)
        at = key + key_size
        if (at >= stop).any() or (self._bytes[at] != _VALUE).any():
            raise _Irregular
        value_size, value = self._varints(at + 1)
        if (value + value_size != stop).any():
            raise _Irregular
        steps = 0
        while len(key):
            name = self._data[int(key[0]) : int(key[0] + key_size[0])]
            if name not in found:
                found[name] = []
                _check_size(columns=len(found), records=self._columns.count)
            same = self._is_same(key, key_size, name)
            if same.all():
                found[name].append((who, value, value_size))
                break
            found[name].append((who[same], value[same], value_size[same]))
            other = ~same
            key, key_size, value = key[other], key_size[other], value[other]
            value_size, who = value_size[other], who[other]
            steps += 1
            if steps > 32:  # every record has keys of its own: the columnar way is the slower one
                raise _Irregular
        return stop

    def _is_same(self, key: Any, key_size: Any, name: bytes) -> Any:
        same = key_size == len(name)
        for offset in range(0, len(name), 8):
            part = name[offset : offset + 8]
            mask = (1 << 8 * len(part)) - 1
            # The window of a shorter key may lie behind the bytes.
            places = numpy.minimum(key + offset, len(self._windows) - 1)
            window = self._windows[places] & numpy.uint64(mask)
            same &= window == numpy.uint64(int.from_bytes(part, "little"))
        return same

    def _array(self, places: list[tuple[Any, Any, Any]]) -> Any:
        """Builds one column from views into the bytes; Arrow then copies them together."""
        count = self._columns.count
        who, value, size = places[0]
        validity = None
        if len(places) > 1 or len(who) != count:
            start, length = numpy.zeros((2, count), dtype=numpy.int64)
            is_there = numpy.zeros(count, dtype=bool)
            for who, value, size in places:
                start[who], length[who], is_there[who] = value, size, True
            validity = pyarrow.py_buffer(numpy.packbits(is_there, bitorder="little").tobytes())
        else:
            start, length = value, size
        short = numpy.minimum(length, _INLINE_BYTES)
        views = numpy.empty((count, 2), dtype="<u8")
        first = self._windows[start] & _FIRST_MASKS[short]
        views[:, 0] = length.astype(numpy.uint64) | first << numpy.uint64(32)
        views[:, 1] = numpy.where(
            length > _INLINE_BYTES,
            start.astype(numpy.uint64) << numpy.uint64(32),
            self._windows[start + 4] & _REST_MASKS[short],
        )
        array = pyarrow.Array.from_buffers(
            pyarrow.binary_view(), count, [validity, pyarrow.py_buffer(views), self._source]
        )
        return array.cast(pyarrow.binary())


def _pair(data: bytes) -> tuple[bytes, bytes]:
    """Splits a tag into key and value."""
    try:
        if data[0] != _KEY:
            raise _Irregular
        size, at = read_varint(data, 1, bits_max=_VARINT_BITS_MAX)
        key, at = data[at : at + size], at + size
        if data[at] != _VALUE:
            raise _Irregular
        size, at = read_varint(data, at + 1, bits_max=_VARINT_BITS_MAX)
    except (IndexError, ValueError):
        raise _Irregular from None
    if at + size != len(data):
        raise _Irregular
    return key, data[at:]
