"""SLS's LogGroup as bytes: the pieces that all encoders join, and the encoding of one record.

A LogGroup is a run of fields: its records, then its topic, source and tags. A record is its time
and its contents, each a key with a value. All that precedes a value depends on the key and on the
value's size. Both recur, so that these bytes are looked up in tables of bounded size.
"""

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Final, Generic, TypeVar

from raftwood.base.errors import InvalidInput
from raftwood.base.protobuf_bytes import VARINTS, field_bytes, varint

RECORD_TAG: Final = b"\x0a"
_HEADS_MAX: Final = 1 << 16
"""The limit of one table, over all keys and sizes."""
_KEY_LENGTH_MAX: Final = 128
"""The head of a longer key is made each time: clients choose the keys."""
_SECONDS_MAX: Final = 1 << 16
_NS: Final = 1_000_000_000
_TIME_END: Final = 1 << 32
_KNOWN: Final = len(VARINTS)

Key = TypeVar("Key", str, bytes)


class ContentHeads(dict[int, bytes]):
    """The heads of one key, by the size of the value: the bytes before the value in a record."""

    def __init__(self, key: bytes, make_room: Callable[[], None]) -> None:
        super().__init__()
        self._key = field_bytes(1, key)
        self._make_room = make_room

    def __missing__(self, size: int) -> bytes:
        self._make_room()
        inside = b"".join((self._key, b"\x12", varint(size)))
        self[size] = head = b"".join((b"\x12", varint(len(inside) + size), inside))
        return head


class ContentTable(dict[Key, ContentHeads], Generic[Key]):
    """The `ContentHeads` of each key. A full table is emptied."""

    def __init__(self, encode: Callable[[Key], bytes]) -> None:
        super().__init__()
        self._encode: Callable[[Key], bytes] = encode
        self._count = 0

    def __missing__(self, key: Key) -> ContentHeads:
        heads = ContentHeads(self._encode(key), self._make_room)
        if len(key) <= _KEY_LENGTH_MAX:
            self._make_room()
            self[key] = heads
        return heads

    def _make_room(self) -> None:
        """Makes room for one more key or size."""
        self._count += 1
        if self._count > _HEADS_MAX:
            self._count = 1
            self.clear()


class _Seconds(dict[int, bytes]):
    """By second: its field, and the tag of the nanoseconds that follow it."""

    def __missing__(self, seconds: int) -> bytes:
        if not 0 <= seconds < _TIME_END:
            raise InvalidInput(f"the time {seconds} s is not between 1970 and 2106")
        if len(self) >= _SECONDS_MAX:
            self.clear()
        self[seconds] = field = b"".join((b"\x08", varint(seconds), b"\x25"))
        return field


_seconds: Final = _Seconds()
_nanoseconds: Final = Struct("<I").pack


def time_field(time_ns: int) -> bytes:
    """Encodes the time of a record."""
    return _seconds[time_ns // _NS] + _nanoseconds(time_ns % _NS)


def time_fields(times_ns: Iterable[int]) -> list[bytes]:
    """Encodes the times of many records."""
    seconds, nanoseconds = _seconds, _nanoseconds
    return [seconds[each // _NS] + nanoseconds(each % _NS) for each in times_ns]


def exact_text(text: str) -> bytes:
    """Encodes text; escapes of undecodable bytes become these bytes again. Refuses half of a
    character.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{text[:60]!r} is no text: it has half of a character") from error


def _key_bytes(key: str) -> bytes:
    if not isinstance(key, str):
        raise InvalidInput(f"the key {key!r:.60} is a {type(key).__name__}: give text")
    return exact_text(key)


_content_heads: Final = ContentTable(_key_bytes)


def encode_record(contents: Mapping[str, str | bytes], time_ns: int) -> bytes:
    """Encodes one record as a field of its group."""
    time = _seconds[time_ns // _NS]
    parts = [RECORD_TAG, b"", time, _nanoseconds(time_ns % _NS)]
    total = len(time) + 4
    try:
        for key, value in contents.items():
            data = value.encode() if isinstance(value, str) else value
            size = len(data)
            head = _content_heads[key][size]
            parts += (head, data)
            total += len(head) + size
        parts[1] = VARINTS[total] if total < _KNOWN else varint(total)
        return b"".join(parts)
    except UnicodeEncodeError:
        escaped = {
            key: exact_text(value) if isinstance(value, str) else value
            for key, value in contents.items()
        }
    except TypeError:
        raise _no_text(*_odd_one(contents)) from None
    return encode_record(escaped, time_ns)


def _odd_one(contents: Mapping[str, str | bytes]) -> tuple[str, object]:
    kinds = (str, bytes, bytearray, memoryview)
    return next(each for each in contents.items() if not isinstance(each[1], kinds))


def _no_text(key: str, value: object) -> InvalidInput:
    return InvalidInput(f"the value of {key!r:.60} is a {type(value).__name__}: give text or bytes")


def encode_shared(
    *, topic: bytes = b"", source: bytes = b"", tags: Iterable[tuple[bytes, bytes]] = ()
) -> bytes:
    """Encodes the fields that all records of a group share."""
    parts = []
    if topic:
        parts.append(field_bytes(3, topic))
    if source:
        parts.append(field_bytes(4, source))
    for key, value in tags:
        parts.append(field_bytes(6, field_bytes(1, key) + field_bytes(2, value)))
    return b"".join(parts)
