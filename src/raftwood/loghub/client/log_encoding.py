"""Records as a LogGroup's bytes: each is encoded when it is given, a batch only joins them."""

from collections.abc import Mapping, Sequence
from typing import Final

from raftwood.base.errors import InvalidInput
from raftwood.loghub.protobuf_bytes import VARINTS, field_bytes, varint

_CACHE_MAX: Final = 4096
_NS: Final = 1_000_000_000
_TIME_END: Final = 1 << 32
_KNOWN: Final = len(VARINTS)
_ONE_BYTE: Final = 127
"""Below it, a length takes one byte."""
_heads: dict[str, tuple[bytes, int]] = {}
"""By key: what comes before a value's length, and how much room it takes."""
_seconds: dict[int, bytes] = {}


def _head(key: str) -> tuple[bytes, int]:
    if not isinstance(key, str):
        raise InvalidInput(f"the key {key!r:.60} is a {type(key).__name__}: give text")
    if len(_heads) >= _CACHE_MAX:
        _heads.clear()
    data = field_bytes(1, _encoded(key)) + b"\x12"
    _heads[key] = head = data, len(data)
    return head


def _encoded(text: str) -> bytes:
    """What came as bytes of another encoding, and was read with escapes, goes back to them."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{text[:60]!r} is no text: it has half of a character") from error


def _time(seconds: int) -> bytes:
    if not 0 <= seconds < _TIME_END:
        raise InvalidInput(f"the time {seconds} s is not between 1970 and 2106")
    if len(_seconds) >= _CACHE_MAX:
        _seconds.clear()
    _seconds[seconds] = field = b"\x08" + varint(seconds)
    return field


def encode_record(contents: Mapping[str, str | bytes], time_ns: int) -> bytes:
    """One record as a field of its group."""
    seconds, nanoseconds = divmod(time_ns, _NS)
    time = _seconds.get(seconds) or _time(seconds)
    parts = [b"\x0a", b"", time]
    total = len(time) + 5
    heads, varints = _heads, VARINTS
    try:
        for key, value in contents.items():
            data = value.encode() if isinstance(value, str) else value
            head, room = heads.get(key) or _head(key)
            size = len(data)
            room += size
            if room < _ONE_BYTE:
                parts += (b"\x12", varints[room + 1], head, varints[size], data)
                total += room + 3
            else:
                length = varint(size)
                room += len(length)
                around = varint(room)
                parts += (b"\x12", around, head, length, data)
                total += room + len(around) + 1
        parts[1] = varints[total] if total < _KNOWN else varint(total)
        parts += (b"\x25", nanoseconds.to_bytes(4, "little"))
        return b"".join(parts)
    except UnicodeEncodeError:
        escaped = {
            key: _encoded(value) if isinstance(value, str) else value
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


def encode_shared(*, topic: str, source: str, tags: Sequence[tuple[str, str]]) -> bytes:
    """What all records of a group share."""
    parts = []
    if topic:
        parts.append(field_bytes(3, _encoded(topic)))
    if source:
        parts.append(field_bytes(4, _encoded(source)))
    for key, value in tags:
        name = field_bytes(1, _encoded(key))
        text = field_bytes(2, _encoded(value))
        parts.append(field_bytes(6, name + text))
    return b"".join(parts)
