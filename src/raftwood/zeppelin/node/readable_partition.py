"""Reading a partition: what is in memory comes before what its engine holds."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from raftwood.zeppelin.node.binlog_readers import BinlogReaders
from raftwood.zeppelin.node.merging import merged
from raftwood.zeppelin.node.origins import Origins
from raftwood.zeppelin.node.overlay import Overlay
from raftwood.zeppelin.node.partition_engine import PartitionEngine
from raftwood.zeppelin.node.seams import Value, Write
from raftwood.zeppelin.node.shares import Share
from raftwood.zeppelin.node.values import (
    DATA_END,
    DATA_START,
    ENDINGS_START,
    ending_of,
    endings_until,
    engine_key,
    key_of,
    range_of_tag,
)
from raftwood.zeppelin.slots import slot_of

_TRIES: Final = 8
_FEW: Final = 256
"""Of so many keys one is chosen where trying found none that is there."""


class ReadablePartition:
    """The half of `PartitionStore` that reads; expired is the same as absent."""

    _origins: Origins

    def __init__(self, engine: PartitionEngine, overlay: Overlay) -> None:
        self.engine = engine
        self.overlay = overlay
        self.recent = overlay.young
        self.readers = BinlogReaders()
        self._sweep_start = ENDINGS_START
        self.share: Share | None = None
        """What it has of the keys that are here; None: all."""

    def last_number(self, producer: bytes) -> int | None:
        return self._origins.last_number(producer)

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        found = self.overlay.find(key)
        if found is None:
            found = _as_write(key, self.engine.get(key))
            self.overlay.keep(found)
        return _alive(found, now_ms)

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None] | None:
        """As `multi_get`, at once, or None where the engine must be asked."""
        values: list[Value | None] = []
        for found in map(self.overlay.find, keys):
            if found is None:
                return None
            values.append(_alive(found, now_ms))
        return values

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        overlay, engine = self.overlay, self.engine
        known = {key: overlay.find(key) for key in keys}
        found = {key: write for key, write in known.items() if write is not None}
        cold = [key for key in known if key not in found]
        if cold:
            for key, (value, is_current) in zip(cold, await engine.multi_get(cold), strict=True):
                found[key] = _as_write(key, value)
                if is_current and engine is self.engine and overlay.find(key) is None:
                    overlay.keep(found[key])
        return [_alive(found[key], now_ms) for key in keys]

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        start = DATA_START if after is None else engine_key(after) + b"\x00"
        return self._scan(start, DATA_END, now_ms)

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        return self._scan(*range_of_tag(tag), now_ms)

    def _scan(self, start: bytes, end: bytes, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        overlay = self.overlay
        stored = iter(()) if overlay.flush_sequence else self.engine.scan(start, end)
        found = merged(stored, overlay.unapplied, start=start, end=end, now_ms=now_ms)
        slots = self._own_slots()
        return found if slots is None else (each for each in found if slot_of(each[0]) in slots)

    def _own_slots(self) -> range | None:
        """None where there are keys of no others."""
        return None if self.share is None or self.engine.state.is_trimmed else self.share.slots

    @property
    def next_ending_ms(self) -> int:
        return self.engine.next_ending_ms

    def expired(self, *, now_ms: int, keys_max: int) -> list[bytes]:
        """Some keys that have expired and take room, for the master to commit their removal.

        Looks at a bounded number of keys, on from where the last call ended.
        """
        keys: list[bytes] = []
        if self.overlay.flush_sequence:
            return keys
        slots = self._own_slots()
        ended = self.engine.ended(self._sweep_start, endings_until(now_ms), count=keys_max)
        for each in ended:
            key = key_of(ending_of(each)[1])
            if slots is not None and slot_of(key) not in slots:
                continue  # whoever has them removes them
            if self.get(key, now_ms=now_ms) is None and key not in self.overlay.unapplied:
                keys.append(key)
        if len(ended) == keys_max:
            self._sweep_start = ended[-1] + b"\x00"
        else:
            self._sweep_start = ENDINGS_START
            self.engine.note_next_ending()
        return keys

    @property
    def about_keys(self) -> int:
        return self.engine.state.keys

    def random_key(self, source: random.Random, *, now_ms: int) -> bytes | None:
        slots = self._own_slots()
        for _ in range(0 if self.overlay.flush_sequence else _TRIES):
            key = self.engine.random_key(source)
            if key is None:
                break
            is_own = slots is None or slot_of(key) in slots
            if is_own and self.get(key, now_ms=now_ms) is not None:
                return key
        found = [key for key, _ in islice(self.scan(after=None, now_ms=now_ms), _FEW)]
        return source.choice(found) if found else None


def _as_write(key: bytes, value: Value | None) -> Write:
    """As the overlay keeps it."""
    return Write(key, None) if value is None else Write(key, value.data, value.expires_ms)


def _alive(found: Write, now_ms: int) -> Value | None:
    data, expires_ms = found.data, found.expires_ms
    return None if data is None or 0 < expires_ms <= now_ms else Value(data, expires_ms)
