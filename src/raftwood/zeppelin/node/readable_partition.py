"""Reads a partition: values in memory come before those in its engine.

`Overlay` holds in memory all writes that the engine lacks so far, and recent values. The first are
needed for correctness: a client that reads what it has just written must see it, and the engine
gets it only once it is synced. A value is kept as the write that made it; one without data says
that there is no such key. Recent values are in two generations. Written and used values go into the
young one. Once it is full it becomes the old one, and the former old one is forgotten: a few values
at a time, since freeing hundreds of thousands of them would stop the loop
(`test_what_a_cache_forgets_is_freed_before_the_next_generation_is_full`).
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from raftwood.zeppelin.model import Table
from raftwood.zeppelin.node.engine import (
    DATA_END,
    DATA_START,
    ENDINGS_START,
    Origins,
    PartitionEngine,
    decode_value,
    ending_of,
    endings_until,
    engine_key,
    key_of,
    range_of_tag,
)
from raftwood.zeppelin.records import BinlogReaders, KeyWrite, Value
from raftwood.zeppelin.slots import slot_of

_OBJECT_BYTES: Final = 250
"""Estimated memory of a key and its value besides their bytes."""
_FREED_PER_OBJECT: Final = 2
"""Values freed for each that is added: all are gone before the next generation is full."""


class Overlay:
    """Values in memory. For any key the first value found counts: young, unapplied, old, then the
    engine.

    Old comes behind unapplied: a value that was read long ago must not hide a later write.
    """

    def __init__(self, cache_bytes_max: int) -> None:
        self.unapplied: dict[bytes, KeyWrite] = {}
        self.young: dict[bytes, KeyWrite] = {}
        """Always the same dictionary: code that reads many keys looks here first."""
        self.flush_sequence = 0
        """The sequence of the last flush that the engine lacks; 0: none. Until the engine has it,
        the engine's values must not be read."""
        self.cache_bytes_max = cache_bytes_max
        self._old: dict[bytes, KeyWrite] = {}
        self._forgotten: dict[bytes, KeyWrite] = {}
        """Values that reads no longer find, and that still have to be freed."""
        self._young_bytes = 0

    def find(self, key: bytes) -> KeyWrite | None:
        """Returns the write that made a key's value; None if the engine has to be asked."""
        found = self.young.get(key) or self.unapplied.get(key)
        if found is not None:
            return found
        found = self._old.get(key)
        if found is not None:
            self.keep(found)
        elif self.flush_sequence:
            return KeyWrite(key, None)
        return found

    def put(self, writes: Iterable[KeyWrite]) -> None:
        """Gives keys new values, which hide those of the engine."""
        unapplied, young = self.unapplied, self.young
        for write in writes:
            unapplied[write.key] = young[write.key] = write

    def flush(self, sequence: int) -> None:
        """Deletes the values of all keys."""
        self.forget_all()
        self.flush_sequence = sequence

    def applied(self, writes: Iterable[KeyWrite], *, sequence: int) -> None:
        """Notes that the engine has these writes, the latest of each key up to a sequence."""
        if self.flush_sequence > sequence:
            return  # A later flush has removed all of them from memory.
        self.flush_sequence = 0
        unapplied = self.unapplied
        for write in writes:
            # A later write of the key may still be on its way to the engine: without this look, a
            # read would go back to the older value of the engine.
            if unapplied.get(write.key) is write:
                del unapplied[write.key]

    def keep(self, write: KeyWrite) -> None:
        """Keeps a key's value for a while."""
        self.young[write.key] = write
        self.grow(_OBJECT_BYTES + len(write.key) + len(write.data or b""))

    def grow(self, size: int) -> None:
        """Counts bytes for the young generation; starts a new one when it is full."""
        self._young_bytes += size
        if self._forgotten:
            self._free(_FREED_PER_OBJECT * (1 + size // _OBJECT_BYTES))
        if self._young_bytes * 2 > self.cache_bytes_max:
            self._forgotten, self._old = self._old, self.young.copy()
            self.young.clear()
            self._young_bytes = 0

    def _free(self, count: int) -> None:
        popitem = self._forgotten.popitem
        for _ in range(min(count, len(self._forgotten))):
            popitem()

    def forget_all(self) -> None:
        self.unapplied.clear()
        self.young.clear()
        self._old.clear()
        self._young_bytes = 0
        self.flush_sequence = 0


# A scan over an engine's pairs and the writes that it lacks so far.


def merged(
    stored: Iterator[tuple[bytes, bytes]],
    unapplied: Mapping[bytes, KeyWrite],
    *,
    start: bytes,
    end: bytes,
    now_ms: int,
) -> Iterator[tuple[bytes, Value]]:
    """Yields pairs in the engine's order, as of now; unapplied writes replace stored values.

    Both are of the moment of the call, even if keys are written before the last pair is asked for:
    a scan that saw half of a later transaction would return what never was.
    """
    places = ((engine_key(key), write) for key, write in unapplied.items())
    newer = sorted((place for place in places if start <= place[0] < end), key=_place)
    return _merge(stored, newer, now_ms)


def _merge(
    stored: Iterator[tuple[bytes, bytes]], newer: list[tuple[bytes, KeyWrite]], now_ms: int
) -> Iterator[tuple[bytes, Value]]:
    row = 0
    for place, data in stored:
        while row < len(newer) and newer[row][0] < place:
            yield from _living_pairs(newer[row][1], now_ms)
            row += 1
        if row < len(newer) and newer[row][0] == place:
            yield from _living_pairs(newer[row][1], now_ms)
            row += 1
        else:
            value = decode_value(data)
            if not 0 < value.expires_ms <= now_ms:
                yield key_of(place), value
    for _, write in newer[row:]:
        yield from _living_pairs(write, now_ms)


def _living_pairs(write: KeyWrite, now_ms: int) -> Iterator[tuple[bytes, Value]]:
    if write.data is not None and not 0 < write.expires_ms <= now_ms:
        yield write.key, Value(write.data, write.expires_ms)


def _place(entry: tuple[bytes, KeyWrite]) -> bytes:
    return entry[0]


# Which keys of its engine belong to a partition that was split (docs/decisions/0025).
#
# The engines of both halves begin as copies of one, so each has keys of the other at first. Reads
# skip those, and each node removes them bit by bit by itself. Not by the binlog: removing half the
# keys would take as many records, and a replica's keys of other slots never reach a client.


class KeyShare(msgspec.Struct, frozen=True):
    """The keys that belong to one partition."""

    slots: range
    begins: int
    """The last record that may have keys of other slots. Nothing is removed before the engine has
    it: a key that is removed and then written by an older record would stay."""


def shares_of(table: Table) -> dict[int, KeyShare]:
    """Returns the shares by number; a partition that was never split owns all its keys."""
    begins: dict[int, int] = {}
    for number, each in enumerate(table.partitions):
        if each.parent is not None:
            for half in (number, each.parent.number):
                begins[half] = max(begins.get(half, 0), each.parent.sequence)
    return {number: KeyShare(table.slots_of(number), last) for number, last in begins.items()}


# Reads a partition: values in memory come before those in its engine.

_TRIES: Final = 8
_FEW: Final = 256
"""Number of keys to choose one from, if guessing found none."""


class ReadablePartition:
    """The reading half of `PartitionStore`; an expired key is the same as none."""

    _origins: Origins

    def __init__(self, engine: PartitionEngine, overlay: Overlay) -> None:
        self.engine = engine
        self.overlay = overlay
        self.recent = overlay.young
        self.readers = BinlogReaders()
        self._sweep_start = ENDINGS_START
        self.share: KeyShare | None = None
        """The keys here that belong to this partition; None: all of them."""

    def last_number(self, producer: bytes) -> int | None:
        return self._origins.last_number(producer)

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        found = self.overlay.find(key)
        if found is None:
            found = _as_write(key, self.engine.get(key))
            self.overlay.keep(found)
        return _living_value(found, now_ms)

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None] | None:
        """Like `multi_get`, at once; None if the engine must be asked."""
        values: list[Value | None] = []
        for found in map(self.overlay.find, keys):
            if found is None:
                return None
            values.append(_living_value(found, now_ms))
        return values

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        overlay, engine = self.overlay, self.engine
        known = {key: overlay.find(key) for key in keys}
        found = {key: write for key, write in known.items() if write is not None}
        cold = [key for key in known if key not in found]
        if cold:
            for key, (value, is_current) in zip(cold, await engine.multi_get(cold), strict=True):
                found[key] = _as_write(key, value)
                # The disk was read off the loop: the key may have been written, or the engine
                # replaced, meanwhile. The value answers this call, and must not be kept
                # (`test_what_is_written_beside_a_fetch_makes_it_void`).
                if is_current and engine is self.engine and overlay.find(key) is None:
                    overlay.keep(found[key])
        return [_living_value(found[key], now_ms) for key in keys]

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
        """The slots to filter by; None if no keys of other slots are left."""
        return None if self.share is None or self.engine.state.is_trimmed else self.share.slots

    @property
    def next_ending_ms(self) -> int:
        return self.engine.next_ending_ms

    def expired(self, *, now_ms: int, keys_max: int) -> list[bytes]:
        """Returns some expired keys that take room; the master then commits their removal.

        The master commits it, so that all replicas remove the same keys at the same record. Looks
        at a bounded number of keys, starting where the last call ended.
        """
        keys: list[bytes] = []
        if self.overlay.flush_sequence:
            return keys
        slots = self._own_slots()
        ended = self.engine.ended(self._sweep_start, endings_until(now_ms), count=keys_max)
        for each in ended:
            key = key_of(ending_of(each)[1])
            if slots is not None and slot_of(key) not in slots:
                continue  # The partition that owns the key removes it.
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


def _as_write(key: bytes, value: Value | None) -> KeyWrite:
    """Returns a value in the form in which the overlay keeps it."""
    return KeyWrite(key, None) if value is None else KeyWrite(key, value.data, value.expires_ms)


def _living_value(found: KeyWrite, now_ms: int) -> Value | None:
    data, expires_ms = found.data, found.expires_ms
    return None if data is None or 0 < expires_ms <= now_ms else Value(data, expires_ms)


# A partition that was split: its own keys, and the removal of the others.

_PAIRS: Final = 500
"""Pairs that one turn of the loop checks for other partitions' keys."""
_TURNS: Final = 40
"""Turns in each call of `trim`."""


class TrimmedPartition(ReadablePartition):
    """Adds splits to `ReadablePartition`: see `KeyShare`."""

    def __init__(self, engine: PartitionEngine, overlay: Overlay) -> None:
        super().__init__(engine, overlay)
        self._trimmed_to = DATA_START

    def own(self, share: KeyShare | None) -> None:
        """Shows only keys of these slots from now on; `trim` removes the others later."""
        if share != self.share:
            self.share, self._trimmed_to = share, DATA_START
        if share is not None:
            self.engine.own(share.slots)

    def trim_anew(self) -> None:
        """Restarts `trim`: the engine was replaced, or has got other keys."""
        self._trimmed_to = DATA_START
        self.own(self.share)

    def own_of(self, values: Sequence[KeyWrite]) -> Sequence[KeyWrite]:
        """Returns the repaired values of own slots. For other slots the master may have removed its
        values already, so its "no such key" proves nothing.
        """
        share = self.share
        return [each for each in values if share is None or slot_of(each.key) in share.slots]

    async def trim(self, may_trim: Callable[[], bool]) -> None:
        """Removes some of the keys that belong to another partition."""
        share, engine = self.share, self.engine
        for _ in range(_TURNS):
            if share is None or share != self.share or engine is not self.engine:
                return
            is_behind = engine.state.sequence < share.begins
            if engine.state.is_trimmed or is_behind or not may_trim():
                return
            end = engine.trim(share.slots, start=self._trimmed_to, pairs_max=_PAIRS)
            self._trimmed_to = end or DATA_START
            await asyncio.sleep(0)
