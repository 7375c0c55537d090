"""Reading a partition: what is in memory comes before what its engine holds."""

from collections.abc import Iterator, Sequence
from itertools import islice

from raftwood.zeppelin.node.merging import merged
from raftwood.zeppelin.node.overlay import MISSING, Found, Overlay
from raftwood.zeppelin.node.partition_engine import PartitionEngine
from raftwood.zeppelin.node.seams import Value
from raftwood.zeppelin.node.values import (
    DATA_END,
    DATA_START,
    decode_value,
    engine_key,
    key_of,
    range_of_tag,
)


class ReadablePartition:
    """The half of `PartitionStore` that reads; expired is the same as absent."""

    def __init__(self, engine: PartitionEngine, overlay: Overlay) -> None:
        self.engine = engine
        self.overlay = overlay
        self._sweep_start = DATA_START

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        value = self.overlay.find(key)
        if value is MISSING:
            value = self.engine.get(key)
            self.overlay.keep(key, value)
        if value is None or 0 < value.expires_ms <= now_ms:
            return None
        return value

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None] | None:
        """As `multi_get`, at once, or None where the engine must be asked."""
        find = self.overlay.find
        values: list[Value | None] = []
        for key in keys:
            value = find(key)
            if value is MISSING:
                return None
            values.append(_alive(value, now_ms))
        return values

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        overlay, engine = self.overlay, self.engine
        found: dict[bytes, Found] = {key: overlay.find(key) for key in keys}
        cold = [key for key, value in found.items() if value is MISSING]
        if cold:
            for key, (value, is_current) in zip(cold, await engine.multi_get(cold), strict=True):
                found[key] = value
                if is_current and engine is self.engine and overlay.find(key) is MISSING:
                    overlay.keep(key, value)
        return [_alive(found[key], now_ms) for key in keys]

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        start = DATA_START if after is None else engine_key(after) + b"\x00"
        return self._scan(start, DATA_END, now_ms)

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        return self._scan(*range_of_tag(tag), now_ms)

    def _scan(self, start: bytes, end: bytes, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        overlay = self.overlay
        stored = iter(()) if overlay.flush_sequence else self.engine.scan(start, end)
        return merged(stored, overlay.unapplied, start=start, end=end, now_ms=now_ms)

    def expired(self, *, now_ms: int, pairs_max: int) -> list[bytes]:
        """Some keys that have expired and take room, for the master to commit their removal.

        Looks at a bounded number of pairs, on from where the last call ended.
        """
        keys: list[bytes] = []
        if self.overlay.flush_sequence:
            return keys
        start, self._sweep_start = self._sweep_start, DATA_START
        for stored_key, stored in islice(self.engine.scan(start, DATA_END), pairs_max + 1):
            if pairs_max == 0:
                self._sweep_start = stored_key
                break
            pairs_max -= 1
            if 0 < decode_value(stored).expires_ms <= now_ms:
                key = key_of(stored_key)
                if self.get(key, now_ms=now_ms) is None and key not in self.overlay.unapplied:
                    keys.append(key)
        return keys


def _alive(value: Found, now_ms: int) -> Value | None:
    if value is None or value is MISSING or 0 < value.expires_ms <= now_ms:
        return None
    return value
