"""Records as a LogGroup's bytes: each is encoded when it is given, a batch only joins them."""

from collections.abc import Mapping, Sequence
from typing import Final

from raftwood.base.errors import InvalidInput
from raftwood.base.protobuf_bytes import VARINTS, field_bytes, varint

_CACHE_MAX: Final = 1 << 16
_NS: Final = 1_000_000_000
_TIME_END: Final = 1 << 32
_KNOWN: Final = len(VARINTS)


class _Prefixes(dict[str, dict[int, bytes]]):
    """By key and the value's size: what stands before a value. All are forgotten at times."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __missing__(self, key: str) -> dict[int, bytes]:
        if not isinstance(key, str):
            raise InvalidInput(f"the key {key!r:.60} is a {type(key).__name__}: give text")
        _encoded(key)
        prefixes: dict[int, bytes] = {}
        self[key] = prefixes
        return prefixes

    def add(self, key: str, size: int) -> bytes:
        if self._count >= _CACHE_MAX:
            self._count = 0
            self.clear()
        self._count += 1
        inside = b"".join((field_bytes(1, _encoded(key)), b"\x12", varint(size)))
        prefix = b"".join((b"\x12", varint(len(inside) + size), inside))
        self[key][size] = prefix
        return prefix


_prefixes: Final = _Prefixes()
_times: Final[dict[int, bytes]] = {}
"""By seconds: the field of the time, and the tag of the one for nanoseconds."""


def _encoded(text: str) -> bytes:
    """What came as bytes of another encoding, and was read with escapes, goes back to them."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{text[:60]!r} is no text: it has half of a character") from error


def _time(seconds: int) -> bytes:
    if not 0 <= seconds < _TIME_END:
        raise InvalidInput(f"the time {seconds} s is not between 1970 and 2106")
    if len(_times) >= _CACHE_MAX:
        _times.clear()
    _times[seconds] = field = b"".join((b"\x08", varint(seconds), b"\x25"))
    return field


def encode_record(contents: Mapping[str, str | bytes], time_ns: int) -> bytes:
    """One record as a field of its group."""
    seconds, nanoseconds = divmod(time_ns, _NS)
    time = _times.get(seconds) or _time(seconds)
    parts = [b"\x0a", b"", time, nanoseconds.to_bytes(4, "little")]
    total = len(time) + 4
    try:
        for key, value in contents.items():
            data = value.encode() if isinstance(value, str) else value
            size = len(data)
            prefix = _prefixes[key].get(size) or _prefixes.add(key, size)
            parts += (prefix, data)
            total += len(prefix) + size
        parts[1] = VARINTS[total] if total < _KNOWN else varint(total)
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
