"""Lines and records as a LogGroup's bytes, a batch at a time.

What stands before a line in its record depends on the line's size alone where all have one time, so
that a batch is a look-up per line, and one join of all. The bytes are the very ones that LogHub's
own client makes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from raftwood.base.errors import InvalidInput
from raftwood.base.protobuf_bytes import field_bytes, varint

DEFAULT_FIELD: Final = "message"
_NS: Final = 1_000_000_000
_TIME_END: Final = 1 << 32
_TIME_BYTES: Final = 11
_LONG_TIME_NS: Final = (1 << 28) * _NS
"""From 1978 on, a record's time always takes so many bytes."""
_SIZES_MAX: Final = 1 << 14
_FIELDS_MAX: Final = 256
_nanoseconds: Final = Struct("<I").pack

Text = str | bytes


class _ContentHeads(dict[int, bytes]):
    """Of one field, by the value's size: what stands before a value. All are forgotten at times."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self._key = field_bytes(1, encoded_text(field))

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _SIZES_MAX:
            self.clear()
        inside = b"".join((self._key, b"\x12", varint(size)))
        self[size] = head = b"".join((b"\x12", varint(len(inside) + size), inside))
        return head


_content_heads: Final = lru_cache(maxsize=_FIELDS_MAX)(_ContentHeads)


class _Fields(dict[str, _ContentHeads]):
    """Those of a batch, at hand."""

    def __missing__(self, field: str) -> _ContentHeads:
        self[field] = heads = _content_heads(field)
        return heads


class _RecordHeads(dict[int, bytes]):
    """Of records with one time and one field, by the line's size: what stands before a line."""

    def __init__(self, time: bytes, contents: _ContentHeads) -> None:
        super().__init__()
        self._time, self._contents = time, contents

    def __missing__(self, size: int) -> bytes:
        content = self._contents[size]
        total = len(self._time) + len(content) + size
        self[size] = head = b"".join((b"\x0a", varint(total), self._time, content))
        return head


class _Lengths(dict[int, bytes]):
    """Of records with a time of the usual size and one field, by the line's size: the beginning."""

    def __init__(self, contents: _ContentHeads) -> None:
        super().__init__()
        self._contents = contents

    def __missing__(self, size: int) -> bytes:
        total = _TIME_BYTES + len(self._contents[size]) + size
        self[size] = beginning = b"\x0a" + varint(total)
        return beginning


class _Beginnings(dict[int, bytes]):
    """By the size of a record: what stands before it."""

    def __missing__(self, size: int) -> bytes:
        self[size] = beginning = b"\x0a" + varint(size)
        return beginning


class _Seconds(dict[int, bytes]):
    """The field of a time's seconds, and the tag of the one for nanoseconds."""

    def __missing__(self, seconds: int) -> bytes:
        if not 0 <= seconds < _TIME_END:
            raise InvalidInput(f"the time {seconds} s is not between 1970 and 2106")
        self[seconds] = field = b"".join((b"\x08", varint(seconds), b"\x25"))
        return field


def _time(time_ns: int) -> bytes:
    return _Seconds()[time_ns // _NS] + _nanoseconds(time_ns % _NS)


def _times(times_ns: Sequence[int]) -> list[bytes]:
    seconds, nanoseconds = _Seconds(), _nanoseconds
    return [seconds[each // _NS] + nanoseconds(each % _NS) for each in times_ns]


def encode_lines(
    lines: Sequence[bytes],
    *,
    time_ns: int | Sequence[int],
    topic: str = "",
    source: str = "",
    tags: Sequence[tuple[str, str]] = (),
    field: str = DEFAULT_FIELD,
    more: Sequence[bytes] | None = None,
) -> bytes:
    """A record for each line, with the line under `field`; `time_ns` is of all, or of each.

    `more` is what follows the line in its record, as `encode_fields` makes it.
    """
    contents = _content_heads(field)
    sizes = map(len, lines)
    if more is not None:
        parts = _with_fields(lines, time_ns, contents, more)
    elif isinstance(time_ns, int):
        parts = [b""] * (2 * len(lines))
        parts[::2] = map(_RecordHeads(_time(time_ns), contents).__getitem__, sizes)
        parts[1::2] = lines
    else:
        _check_count(lines, time_ns)
        if lines and min(time_ns) < _LONG_TIME_NS:
            return encode_records(
                [{field: line} for line in lines],
                time_ns=time_ns,
                topic=topic,
                source=source,
                tags=tags,
            )
        parts = [b""] * (4 * len(lines))
        parts[::4] = map(_Lengths(contents).__getitem__, sizes)
        parts[1::4] = _times(time_ns)
        parts[2::4] = map(contents.__getitem__, map(len, lines))
        parts[3::4] = lines
    parts.append(encode_shared(topic=topic, source=source, tags=tags))
    return b"".join(parts)


def _with_fields(
    lines: Sequence[bytes],
    time_ns: int | Sequence[int],
    contents: _ContentHeads,
    more: Sequence[bytes],
) -> list[bytes]:
    if isinstance(time_ns, int):
        times = [_time(time_ns)] * len(lines)
    else:
        _check_count(lines, time_ns)
        times = _times(time_ns)
    beginnings = _Beginnings()
    parts: list[bytes] = []
    for line, time, fields in zip(lines, times, more, strict=True):
        head = contents[len(line)]
        total = len(time) + len(head) + len(line) + len(fields)
        parts += (beginnings[total], time, head, line, fields)
    return parts


def encode_fields(record: Mapping[str, Text]) -> bytes:
    """Fields and values as they stand in a record."""
    parts: list[bytes] = []
    for field, value in record.items():
        data = encoded_text(value) if isinstance(value, str) else value
        parts += (_content_heads(field)[len(data)], data)
    return b"".join(parts)


def encode_records(
    records: Sequence[Mapping[str, Text]],
    *,
    time_ns: int | Sequence[int],
    topic: str = "",
    source: str = "",
    tags: Sequence[tuple[str, str]] = (),
) -> bytes:
    """A record for each mapping of fields to values; `time_ns` is of all, or of each."""
    if isinstance(time_ns, int):
        times = [_time(time_ns)] * len(records)
    else:
        _check_count(records, time_ns)
        times = _times(time_ns)
    parts: list[bytes] = []
    heads = _Fields()
    for record, time in zip(records, times, strict=True):
        contents: list[bytes] = []
        for field, value in record.items():
            data = encoded_text(value) if isinstance(value, str) else value
            contents += (heads[field][len(data)], data)
        content = b"".join(contents)
        parts += (b"\x0a", varint(len(time) + len(content)), time, content)
    parts.append(encode_shared(topic=topic, source=source, tags=tags))
    return b"".join(parts)


def encode_shared(*, topic: str, source: str, tags: Sequence[tuple[str, str]]) -> bytes:
    """What all records of a group share."""
    parts = []
    if topic:
        parts.append(field_bytes(3, encoded_text(topic)))
    if source:
        parts.append(field_bytes(4, encoded_text(source)))
    for key, value in tags:
        pair = field_bytes(1, encoded_text(key)) + field_bytes(2, encoded_text(value))
        parts.append(field_bytes(6, pair))
    return b"".join(parts)


def encoded_text(text: str) -> bytes:
    """What came as bytes of another encoding, and was read with escapes, goes back to them. Half of
    a character is written out: that a line cannot be told exactly is no reason to lose it.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def _check_count(records: Sequence[object], times_ns: Sequence[int]) -> None:
    if len(records) != len(times_ns):
        raise InvalidInput(
            f"{len(records)} lines have {len(times_ns)} times: give one for each, or one for all"
        )
