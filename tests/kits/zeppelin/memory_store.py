"""A partition in memory, for whoever uses one; its keys stand in the order of tag, then key."""

import asyncio
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from raftwood.base.errors import InvariantViolated, OutOfRange, Overloaded
from raftwood.base.files import Buffer
from raftwood.zeppelin.records import (
    BinlogPosition,
    BinlogReaders,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    LastWrites,
    Value,
    encode_record,
)
from raftwood.zeppelin.slots import tag_of
from tests.kits.zeppelin.memory_engines import MemoryEngines


def _place(key: bytes) -> tuple[bytes, bytes]:
    """Keys with one tag are neighbours; a key without one is its own."""
    return tag_of(key) or key, key


class MemoryPartitionStore:
    """Everything that the seam asks for, but for what is about files."""

    def __init__(self, *, is_written_at_once: bool = True) -> None:
        self.is_written_at_once = is_written_at_once
        """If not, the test says what is written and synced, by `tell_written` and `sync`."""
        self.is_cold = False
        """As if values had to be fetched."""
        self.is_overloaded = False
        self.copies = MemoryEngines()
        """Where checkpoints go."""
        self.needed_from: int | None = None
        self.readers = BinlogReaders()
        self.last_writes: LastWrites | None = None
        self.repairing: BinlogPosition | None = None
        self.is_well = True
        self.epoch = 0
        self.epochs: list[EpochStart] = []
        self.first_sequence = 1
        self.last_sequence = 0
        self.written_sequence = 0
        self.synced_sequence = 0
        self.binlog: list[BinlogRecord] = []
        self.recent: dict[bytes, KeyWrite] = {}
        self.values: dict[bytes, Value] = {}
        self._places: list[tuple[bytes, bytes]] = []
        self._origins: dict[tuple[bytes, int], int] = {}
        self._heard: dict[Callable[[], None], None] = {}

    def note_last_writes(self, *, is_on: bool) -> None:
        self.last_writes = LastWrites(self.last_sequence) if is_on else None

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        value = self.values.get(key)
        if value is None or (value.expires_ms and value.expires_ms <= now_ms):
            return None
        return value

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None] | None:
        if self.is_cold:
            return None
        return [self.get(key, now_ms=now_ms) for key in keys]

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        return [self.get(key, now_ms=now_ms) for key in keys]

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        begin = 0 if after is None else bisect_right(self._places, _place(after))
        for _, key in self._places[begin:]:
            value = self.get(key, now_ms=now_ms)
            if value is not None:
                yield key, value

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        for begin, key in self._places[bisect_left(self._places, (tag, b"")) :]:
            if begin != tag:
                return
            value = self.get(key, now_ms=now_ms)
            if tag_of(key) == tag and value is not None:
                yield key, value

    def sequence_of(self, producer: bytes, number: int) -> int | None:
        return self._origins.get((producer, number))

    def last_number(self, producer: bytes) -> int | None:
        return max((number for name, number in self._origins if name == producer), default=None)

    next_ending_ms = 0

    def expired(self, *, now_ms: int, keys_max: int) -> list[bytes]:
        ended = [key for key, value in self.values.items() if 0 < value.expires_ms <= now_ms]
        return ended[:keys_max]

    async def count(self) -> int | None:
        return None if self.is_cold else len(self.values)

    @property
    def about_keys(self) -> int:
        return len(self.values)

    def random_key(self, source: random.Random, *, now_ms: int) -> bytes | None:
        found = [key for key, _ in self.scan(after=None, now_ms=now_ms)]
        return source.choice(found) if found else None

    def write(self, writes: Mapping[bytes, KeyWrite], *, size: int, epoch: int) -> int:  # noqa: ARG002
        """Each in a record of its own."""
        self.commit(BinlogRecord(epoch, self.last_sequence + 1, tuple(writes.values())))
        return self.last_sequence

    def commit(self, record: BinlogRecord, encoded: Buffer | None = None) -> None:  # noqa: ARG002
        if self.is_overloaded:
            raise Overloaded("the disk is behind")
        if record.sequence != self.last_sequence + 1 or record.epoch < self.epoch:
            raise InvariantViolated(f"record {record.sequence} behind {self.last_sequence}")
        if record.flushes:
            self.values.clear()
            self._places.clear()
            self.recent.clear()
            if self.last_writes is not None:
                self.last_writes.begin(record.sequence)
        if self.last_writes is not None:
            self.last_writes.put((write.key for write in record.writes), record.sequence)
        for write in record.writes:
            if not self.is_cold:
                self.recent[write.key] = write
            if write.data is None:
                if self.values.pop(write.key, None) is not None:
                    del self._places[bisect_left(self._places, _place(write.key))]
            else:
                if write.key not in self.values:
                    insort(self._places, _place(write.key))
                self.values[write.key] = Value(write.data, write.expires_ms)
        if record.epoch > self.epoch:
            self.epochs.append(EpochStart(record.epoch, record.sequence))
        self.binlog.append(record)
        if record.origin is not None:
            self._origins[record.origin] = record.sequence
        self.epoch, self.last_sequence = record.epoch, record.sequence
        if self.is_written_at_once:
            self.written_sequence = self.synced_sequence = record.sequence
        self._tell()

    def tell_written(self, sequence: int) -> None:
        self.written_sequence = sequence
        self._tell()

    def sync(self, sequence: int) -> None:
        self.written_sequence = max(sequence, self.written_sequence)
        self.synced_sequence = sequence
        self._tell()

    def _tell(self) -> None:
        for heard in list(self._heard):
            heard()

    async def records(self, *, first: int, bytes_max: int) -> list[Buffer]:
        if first < self.first_sequence:
            raise OutOfRange(f"records begin at {self.first_sequence}")
        found: list[Buffer] = []
        for record in self.binlog[first - self.first_sequence :]:
            encoded = encode_record(record)
            bytes_max -= len(encoded)
            if found and bytes_max < 0:
                break
            found.append(encoded)
        return found

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        self._heard[heard] = None
        return lambda: self._heard.pop(heard, None)

    async def touched(self, *, after: int) -> list[bytes] | None:
        raise NotImplementedError

    async def rewind(
        self, *, after: int, values: Sequence[KeyWrite], until: BinlogPosition
    ) -> None:
        raise NotImplementedError

    async def purge(self, *, before: int) -> None:
        raise NotImplementedError

    async def checkpoint(self, folder: str) -> int:
        await asyncio.sleep(0)
        self.copies.put(folder, self.values)
        return self.last_sequence

    async def restore(self, folder: str, *, sequence: int, epochs: Sequence[EpochStart]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass
