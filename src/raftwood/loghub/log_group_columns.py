"""A LogGroup's bytes as columns of Arrow, all records at once.

The lengths of the records are walked one by one; from there on, step by step, the next field of
every record is read in one go, and what is found are places in the bytes: values are copied only
once, by Arrow. What is not laid out as producers do it goes through protobuf, record by record.
"""

from collections.abc import Container
from typing import Any, Final

import numpy
import pyarrow

from raftwood.base.errors import TooLarge
from raftwood.base.files import Buffer
from raftwood.loghub.log_groups import decode_log_group

COLUMNS_MAX: Final = 1024
CELLS_MAX: Final = 1 << 24
"""Records times columns: each record of a hostile group could have keys of its own."""
_STEPS_MAX: Final = 2 * COLUMNS_MAX
_PAD: Final = bytes(24)
"""Behind the bytes, so that what is read ahead of a check stays inside."""
_LOG, _TOPIC, _SOURCE, _TAG = 0x0A, 0x1A, 0x22, 0x32
_TIME, _CONTENT, _TIME_NS, _KEY, _VALUE = 0x08, 0x12, 0x25, 0x0A, 0x12
_INLINE_BYTES: Final = 12
_FIRST_MASKS: Final = numpy.array(
    [(1 << 8 * min(size, 4)) - 1 for size in range(_INLINE_BYTES + 1)], dtype=numpy.uint64
)
_REST_MASKS: Final = numpy.array(
    [(1 << 8 * max(size - 4, 0)) - 1 for size in range(_INLINE_BYTES + 1)], dtype=numpy.uint64
)


class Columns:
    """A group's records: times in nanoseconds, values by key, and what all of them share."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.time_ns = numpy.zeros(count, dtype=numpy.int64)
        self.values: dict[bytes, Any] = {}
        """Arrays of binary."""
        self.topic = b""
        self.source = b""
        self.tags: list[tuple[bytes, bytes]] = []


class _Irregular(Exception):
    """Not laid out as expected: left to protobuf."""


def columns_of(data: Buffer, *, keys: Container[bytes] | None = None) -> Columns:
    """`InvalidInput` for what is no LogGroup, `TooLarge` for too many different keys.

    With `keys`, values of others may be left out.
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
            del values[index:]  # of two values under one key the last one counts
            values.extend([None] * (index - len(values)))
            values.append(content.Value)
    for key, values in lists.items():
        values.extend([None] * (columns.count - len(values)))
        columns.values[key] = pyarrow.array(values, pyarrow.binary())
    return columns


class _Parse:
    """One group under way; positions are int64 arrays, one entry for each record."""

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
            # Where records differ in their layout, those like the first one go first.
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
        """Where each record begins and ends; what the records share is read on the way."""
        places, others = self._places()
        self._columns = Columns(len(places))
        ends = numpy.array(places, dtype=numpy.int64)
        # A record's tag and length stand behind the one before, or behind what is between.
        tags = numpy.zeros(len(ends) + 1, dtype=numpy.int64)
        tags[1:] = ends
        for record, at, end in others:
            self._share(self._data[at], self._data[_varint(self._data, at + 1)[1] : end])
            tags[record] = end
        return self._varints(tags[:-1] + 1)[1], ends

    def _places(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Where each record ends; and of other fields which record they stand before, where they
        begin and where they end. One by one: to look for all records at once, by what they begin
        with, takes longer.
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
                    length, end = _varint(data, at + 1)
                    end += length
                if data[at] == _LOG:
                    ends.append(end)
                else:
                    others.append((len(ends), at, end))
                at = end
        except IndexError:
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
        elif tag not in (0x12, 0x2A):  # reserved, and the machine: nobody asks for them
            raise _Irregular

    def _varints(self, at: Any) -> tuple[Any, Any]:
        """The number at each place, and the places behind."""
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
        """Key and value of each record; the places behind."""
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
            if steps > 32:  # every record has keys of its own: this way is the slower one
                raise _Irregular
        return stop

    def _is_same(self, key: Any, key_size: Any, name: bytes) -> Any:
        same = key_size == len(name)
        for offset in range(0, len(name), 8):
            part = name[offset : offset + 8]
            mask = (1 << 8 * len(part)) - 1
            # A shorter key's window may lie behind the bytes.
            places = numpy.minimum(key + offset, len(self._windows) - 1)
            window = self._windows[places] & numpy.uint64(mask)
            same &= window == numpy.uint64(int.from_bytes(part, "little"))
        return same

    def _array(self, places: list[tuple[Any, Any, Any]]) -> Any:
        """One column, by views into the bytes, then copied together by Arrow."""
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


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 28:
            raise _Irregular


def _pair(data: bytes) -> tuple[bytes, bytes]:
    """Key and value of a tag."""
    try:
        if data[0] != _KEY:
            raise _Irregular
        size, at = _varint(data, 1)
        key, at = data[at : at + size], at + size
        if data[at] != _VALUE:
            raise _Irregular
        size, at = _varint(data, at + 1)
    except IndexError:
        raise _Irregular from None
    if at + size != len(data):
        raise _Irregular
    return key, data[at:]
