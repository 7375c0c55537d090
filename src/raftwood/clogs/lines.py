"""Encodes lines as a LogGroup, a batch at a time.

If all lines have one time, the bytes before a line in its record depend only on the line's size, so
a batch costs a look-up per line and one join. The bytes are the same as those of LogHub's own
client.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from raftwood.base.errors import InvalidInput
from raftwood.base.log_group_codec import (
    RECORD_TAG,
    ContentHeads,
    ContentTable,
    encode_shared,
    time_field,
    time_fields,
)
from raftwood.base.protobuf_bytes import varint

DEFAULT_FIELD: Final = "message"
_TIME_BYTES: Final = 11
_LONG_TIME_NS: Final = (1 << 28) * 1_000_000_000
"""From 1978 on, a record's time always has the same number of bytes."""


class _RecordHeads(dict[int, bytes]):
    """The bytes before a line, by its size, for records with one time and one field."""

    def __init__(self, time: bytes, contents: ContentHeads) -> None:
        super().__init__()
        self._time, self._contents = time, contents

    def __missing__(self, size: int) -> bytes:
        content = self._contents[size]
        total = len(self._time) + len(content) + size
        self[size] = head = b"".join((RECORD_TAG, varint(total), self._time, content))
        return head


class _Lengths(dict[int, bytes]):
    """The first bytes of a record, by its line's size, for the usual time and one field."""

    def __init__(self, contents: ContentHeads) -> None:
        super().__init__()
        self._contents = contents

    def __missing__(self, size: int) -> bytes:
        total = _TIME_BYTES + len(self._contents[size]) + size
        self[size] = beginning = RECORD_TAG + varint(total)
        return beginning


class _Beginnings(dict[int, bytes]):
    """The bytes before a record, by its size."""

    def __missing__(self, size: int) -> bytes:
        self[size] = beginning = RECORD_TAG + varint(size)
        return beginning


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
    """Encodes a record for each line, with the line under `field`; `time_ns` is of all, or of each.

    `more` are further fields of each record, from `encode_fields`.
    """
    contents = _content_heads[field]
    sizes = map(len, lines)
    if not isinstance(time_ns, int):
        if len(lines) != len(time_ns):
            raise InvalidInput(
                f"{len(lines)} lines have {len(time_ns)} times: give one for each, or one for all"
            )
        if more is None and lines and min(time_ns) < _LONG_TIME_NS:
            more = [b""] * len(lines)
    if more is not None:
        parts = _with_fields(lines, time_ns, contents, more)
    elif isinstance(time_ns, int):
        parts = [b""] * (2 * len(lines))
        parts[::2] = map(_RecordHeads(time_field(time_ns), contents).__getitem__, sizes)
        parts[1::2] = lines
    else:
        parts = [b""] * (4 * len(lines))
        parts[::4] = map(_Lengths(contents).__getitem__, sizes)
        parts[1::4] = time_fields(time_ns)
        parts[2::4] = map(contents.__getitem__, map(len, lines))
        parts[3::4] = lines
    shared = encode_shared(
        topic=encoded_text(topic),
        source=encoded_text(source),
        tags=((encoded_text(key), encoded_text(value)) for key, value in tags),
    )
    parts.append(shared)
    return b"".join(parts)


def _with_fields(
    lines: Sequence[bytes],
    time_ns: int | Sequence[int],
    contents: ContentHeads,
    more: Sequence[bytes],
) -> list[bytes]:
    times = [time_field(time_ns)] * len(lines) if isinstance(time_ns, int) else time_fields(time_ns)
    beginnings = _Beginnings()
    parts: list[bytes] = []
    for line, time, fields in zip(lines, times, more, strict=True):
        head = contents[len(line)]
        total = len(time) + len(head) + len(line) + len(fields)
        parts += (beginnings[total], time, head, line, fields)
    return parts


def encode_fields(record: Mapping[str, str | bytes]) -> bytes:
    """Encodes fields and values for a record."""
    parts: list[bytes] = []
    for field, value in record.items():
        data = encoded_text(value) if isinstance(value, str) else value
        parts += (_content_heads[field][len(data)], data)
    return b"".join(parts)


def encoded_text(text: str) -> bytes:
    """Encodes a text. Bytes of another encoding, which were decoded with escapes, become the same
    bytes again. A lone surrogate is written as an escape: an inexact line is better than a lost
    one.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


_content_heads: Final = ContentTable(encoded_text)
