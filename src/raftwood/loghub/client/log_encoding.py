"""Records as a LogGroup's bytes: each is encoded when it is given, a batch only joins them."""

from collections.abc import Mapping, Sequence
from typing import Final

from raftwood.base.errors import InvalidInput
from raftwood.loghub.protobuf_bytes import VARINTS, field_bytes, varint

_CACHE_MAX: Final = 4096
_NS: Final = 1_000_000_000
_TIME_END: Final = 1 << 32
_SMALL: Final = len(VARINTS) - 1
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
    # What came as bytes of another encoding, and was read with escapes, goes back to them.
    return text.encode("utf-8", "surrogateescape")


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
    parts = [_seconds.get(seconds) or _time(seconds)]
    try:
        for key, value in contents.items():
            data = _text(value) if isinstance(value, str) else value
            head, room = _heads.get(key) or _head(key)
            size = len(data)
            room += size
            if room < _SMALL and size < 128:
                parts += (b"\x12", VARINTS[room + 1], head, VARINTS[size], data)
            else:
                encoded = varint(size)
                parts += (b"\x12", varint(room + len(encoded)), head, encoded, data)
        parts += (b"\x25", nanoseconds.to_bytes(4, "little"))
        body = b"".join(parts)
    except TypeError:
        raise _no_text(*_odd_one(contents)) from None
    return b"".join((b"\x0a", varint(len(body)), body))


def _text(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        return _encoded(value)


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
