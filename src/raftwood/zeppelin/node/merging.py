"""A scan over what an engine holds and what it has not got yet."""

from collections.abc import Iterator, Mapping

from raftwood.zeppelin.node.seams import Value, Write
from raftwood.zeppelin.node.values import decode_value, engine_key, key_of


def merged(
    stored: Iterator[tuple[bytes, bytes]],
    unapplied: Mapping[bytes, Write],
    *,
    start: bytes,
    end: bytes,
    now_ms: int,
) -> Iterator[tuple[bytes, Value]]:
    """Pairs in the engine's order, as they are now; what is unapplied comes before what is stored.

    Both are taken at once, whatever is written before the last pair is asked for.
    """
    places = ((engine_key(key), write) for key, write in unapplied.items())
    newer = sorted((place for place in places if start <= place[0] < end), key=_place)
    return _merge(stored, newer, now_ms)


def _merge(
    stored: Iterator[tuple[bytes, bytes]], newer: list[tuple[bytes, Write]], now_ms: int
) -> Iterator[tuple[bytes, Value]]:
    row = 0
    for place, data in stored:
        while row < len(newer) and newer[row][0] < place:
            yield from _alive(newer[row][1], now_ms)
            row += 1
        if row < len(newer) and newer[row][0] == place:
            yield from _alive(newer[row][1], now_ms)
            row += 1
        else:
            value = decode_value(data)
            if not 0 < value.expires_ms <= now_ms:
                yield key_of(place), value
    for _, write in newer[row:]:
        yield from _alive(write, now_ms)


def _alive(write: Write, now_ms: int) -> Iterator[tuple[bytes, Value]]:
    if write.data is not None and not 0 < write.expires_ms <= now_ms:
        yield write.key, Value(write.data, write.expires_ms)


def _place(entry: tuple[bytes, Write]) -> bytes:
    return entry[0]
