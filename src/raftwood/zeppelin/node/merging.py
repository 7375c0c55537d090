"""A scan over what an engine holds and what it has not got yet."""

from collections.abc import Iterator, Mapping

from raftwood.zeppelin.node.seams import Value
from raftwood.zeppelin.node.values import decode_value, engine_key, key_of


def merged(
    stored: Iterator[tuple[bytes, bytes]],
    unapplied: Mapping[bytes, Value | None],
    *,
    start: bytes,
    end: bytes,
    now_ms: int,
) -> Iterator[tuple[bytes, Value]]:
    """Pairs in the engine's order, as they are now; what is unapplied comes before what is stored.

    Both are taken at once, whatever is written before the last pair is asked for.
    """
    places = ((engine_key(key), key, value) for key, value in unapplied.items())
    newer = sorted((place for place in places if start <= place[0] < end), key=_place)
    return _merge(stored, newer, now_ms)


def _merge(
    stored: Iterator[tuple[bytes, bytes]],
    newer: list[tuple[bytes, bytes, Value | None]],
    now_ms: int,
) -> Iterator[tuple[bytes, Value]]:
    row = 0
    for place, data in stored:
        while row < len(newer) and newer[row][0] < place:
            yield from _alive(newer[row][1], newer[row][2], now_ms)
            row += 1
        if row < len(newer) and newer[row][0] == place:
            yield from _alive(newer[row][1], newer[row][2], now_ms)
            row += 1
        else:
            yield from _alive(key_of(place), decode_value(data), now_ms)
    for _, key, value in newer[row:]:
        yield from _alive(key, value, now_ms)


def _alive(key: bytes, value: Value | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
    if value is not None and not 0 < value.expires_ms <= now_ms:
        yield key, value


def _place(entry: tuple[bytes, bytes, Value | None]) -> bytes:
    return entry[0]
