"""How a partition's keys and values stand in its storage engine.

    \\x00 state                      how far the engine has got (`engine_state`)
    \\x01 sequence                   the origin of a record (`origins`)
    \\x02 time place                 a key that ends then stands at a place below (big-endian ms)
    \\x03 hash place                 some of all keys, by chance: a way to any key (`random_key`)
    \\x10 key                        a key without a tag
    \\x11 tag \\x00\\x01 key           a key with a tag, so that keys of one tag are neighbours

A tag's own zero bytes are followed by \\xff, which keeps the two bytes behind it unique. A value is
\\x00 and the data, or \\x01, when it expires (milliseconds since 1970) and the data.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from raftwood.base.errors import StoreDamaged
from raftwood.zeppelin.node.seams import Value
from raftwood.zeppelin.slots import tag_of

STATE_KEY: Final = b"\x00state"
ORIGINS_START: Final = b"\x01"
ORIGINS_END: Final = b"\x02"
ENDINGS_START: Final = b"\x02"
ENDINGS_END: Final = b"\x03"
LANDMARKS_START: Final = b"\x03"
LANDMARKS_END: Final = b"\x04"
DATA_START: Final = b"\x10"
"""All keys of clients are from here on, up to `DATA_END`."""
DATA_END: Final = b"\x12"

_PLAIN: Final = b"\x10"
_TAGGED: Final = b"\x11"
_TAG_END: Final = b"\x00\x01"
LASTS: Final = b"\x00"
"""Before a value without an end."""
_EXPIRES: Final = Struct("<BQ")
_TIME_BYTES: Final = 8
_LANDMARKS: Final = 32
"""One key of so many is a landmark."""


def engine_key(key: bytes) -> bytes:
    """Where a client's key stands in the engine."""
    if b"{" in key and (tag := tag_of(key)) is not None:
        return _tag_start(tag) + key
    return _PLAIN + key


def engine_keys(keys: Iterable[bytes]) -> list[bytes]:
    """As `engine_key`, of many: most have no tag, or that of the one before."""
    places = []
    tagged = start = b""
    for key in keys:
        if b"{" not in key:
            places.append(_PLAIN + key)
        elif tagged and key.startswith(tagged):
            places.append(start + key)
        else:
            place = engine_key(key)
            places.append(place)
            tagged, start = key[: key.find(b"}", key.find(b"{")) + 1], place[: -len(key)]
    return places


def key_of(stored: bytes) -> bytes:
    """The client's key that stands at a key of the engine."""
    if stored[:1] == _PLAIN:
        return stored[1:]
    end = stored.find(_TAG_END, 1)
    if stored[:1] != _TAGGED or end < 0:
        raise StoreDamaged(f"{stored[:64]!r} is no key of a partition: restore it from a replica")
    return stored[end + len(_TAG_END) :]


def ending(expires_ms: int, place: bytes) -> bytes:
    """Where it stands in the engine that the key at a place ends."""
    return ENDINGS_START + expires_ms.to_bytes(_TIME_BYTES, "big") + place


def endings_until(now_ms: int) -> bytes:
    """Behind all keys that have ended."""
    return ending(now_ms + 1, b"")


def ending_of(stored: bytes) -> tuple[int, bytes]:
    """When a key ends, and its place."""
    head = len(ENDINGS_START) + _TIME_BYTES
    return int.from_bytes(stored[len(ENDINGS_START) : head], "big"), stored[head:]


def landmark(place: bytes) -> bytes | None:
    """Where a place stands among the landmarks; None: it is none."""
    digest = xxh3_64_intdigest(place)
    return None if digest % _LANDMARKS else LANDMARKS_START + digest.to_bytes(8, "big") + place


def place_of_landmark(stored: bytes) -> bytes:
    return stored[len(LANDMARKS_START) + 8 :]


def expires_of(stored: bytes) -> int:
    """When a value ends; 0: never."""
    return 0 if stored[:1] == LASTS else decode_value(stored).expires_ms


def range_of_tag(tag: bytes) -> tuple[bytes, bytes]:
    """Where the keys of a tag begin in the engine, and where they end."""
    start = _tag_start(tag)
    return start, start[:-1] + b"\x02"


def _tag_start(tag: bytes) -> bytes:
    return _TAGGED + tag.replace(b"\x00", b"\x00\xff") + _TAG_END


def encode_value(data: bytes, expires_ms: int) -> bytes:
    return _EXPIRES.pack(1, expires_ms) + data if expires_ms else LASTS + data


def decode_value(stored: bytes) -> Value:
    if stored[:1] == LASTS:
        return Value(stored[1:])
    if len(stored) < _EXPIRES.size or stored[0] != 1:
        raise StoreDamaged(
            f"a value of {len(stored)} bytes does not begin as values do: restore the partition "
            "from a replica"
        )
    return Value(stored[_EXPIRES.size :], _EXPIRES.unpack_from(stored)[1])
