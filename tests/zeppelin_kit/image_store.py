"""A `PartitionStore` in memory; what it has synced is in an image that a crash leaves."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import InvariantViolated, OutOfRange
from raftwood.base.files import Buffer, perform
from raftwood.zeppelin.node.seams import (
    BinlogPosition,
    EpochStart,
    Record,
    Value,
    Write,
    decode_record,
    encode_record,
)
from raftwood.zeppelin.slots import tag_of

Origin = tuple[bytes, int]
COPY_FILES = 3
SYNC_S = (0.0002, 0.004)
REWRITE_S = (0.001, 0.01)


class Content(msgspec.Struct):
    """The keys at one moment, and the requests that led there."""

    keys: dict[bytes, Value] = {}
    origins: dict[Origin, int] = {}

    def apply(self, record: Record) -> None:
        if record.flushes:
            self.keys.clear()
        for write in record.writes:
            self.put(write)
        if record.origin is not None:
            self.origins[record.origin] = record.sequence

    def put(self, write: Write) -> None:
        if write.data is None:
            self.keys.pop(write.key, None)
        else:
            self.keys[write.key] = Value(write.data, write.expires_ms)

    def copy(self) -> "Content":
        return Content(dict(self.keys), dict(self.origins))


class Image(msgspec.Struct):
    """What a crash leaves: the engine, and the binlog that it was made from."""

    engine: Content = msgspec.field(default_factory=Content)
    records: list[bytes] = []
    first: int = 1
    epochs: list[EpochStart] = []
    repairing: BinlogPosition | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.records) - 1


class ImageStore:
    """One run's view of an image; records are synced a while after they were committed."""

    def __init__(
        self,
        image: Image,
        environment: Environment,
        *,
        records_max: int | None = None,
    ) -> None:
        """Beyond `records_max`, records that no slave needs are purged, down to half of it."""
        self.recent: dict[bytes, Write] = {}
        self._image = image
        self._environment = environment
        self._records_max = records_max
        self._listeners: dict[int, Callable[[], None]] = {}
        self._listener_count = 0
        self._sync: asyncio.TimerHandle | None = None
        self.needed_from: int | None = None
        self._begin()

    def _begin(self) -> None:
        image = self._image
        self._content = image.engine.copy()
        self._records: list[Buffer] = [*image.records]
        self._epochs = [*image.epochs]
        self.first_sequence = image.first
        self.written_sequence = image.last
        self.synced_sequence = image.last

    @property
    def epoch(self) -> int:
        return self._epochs[-1].epoch if self._epochs else 0

    @property
    def epochs(self) -> Sequence[EpochStart]:
        return self._epochs

    @property
    def repairing(self) -> BinlogPosition | None:
        return self._image.repairing

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self._records) - 1

    def sequence_of(self, producer: bytes, number: int) -> int | None:
        return self._content.origins.get((producer, number))

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        value = self._content.keys.get(key)
        return None if value is None or 0 < value.expires_ms <= now_ms else value

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        return [self.get(key, now_ms=now_ms) for key in keys]

    def expired(self, *, now_ms: int, pairs_max: int) -> list[bytes]:
        pairs = [*self._content.keys.items()][:pairs_max]
        return [key for key, value in pairs if 0 < value.expires_ms <= now_ms]

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        found = [self.get(key, now_ms=now_ms) for key in keys]
        await asyncio.sleep(self._some(SYNC_S))
        return found

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        for key in sorted(self._content.keys):
            value = self.get(key, now_ms=now_ms)
            if value is not None and (after is None or key > after):
                yield key, value

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        return (pair for pair in self.scan(after=None, now_ms=now_ms) if tag_of(pair[0]) == tag)

    def write(self, writes: Mapping[bytes, Write], *, size: int, epoch: int) -> int:  # noqa: ARG002
        """Each in a record of its own."""
        self.commit(Record(epoch, self.last_sequence + 1, tuple(writes.values())))
        return self.last_sequence

    def commit(self, record: Record, encoded: Buffer | None = None) -> None:
        if record.sequence != self.last_sequence + 1 or record.epoch < self.epoch:
            raise InvariantViolated(f"{record} does not follow {self.epoch, self.last_sequence}")
        self._records.append(encode_record(record) if encoded is None else encoded)
        if record.epoch > self.epoch:
            self._epochs.append(EpochStart(record.epoch, record.sequence))
        self._content.apply(record)
        if self._sync is None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._tell)
            self._sync = loop.call_later(self._some(SYNC_S), self._synced, self.last_sequence)

    def _synced(self, sequence: int) -> None:
        self._sync = None
        image = self._image
        while image.last < sequence:
            record = decode_record(self._records[image.last + 1 - self.first_sequence])
            image.records.append(encode_record(record))
            image.engine.apply(record)
        image.epochs = [start for start in self._epochs if start.sequence <= sequence]
        if image.repairing is not None and image.repairing.sequence <= sequence:
            image.repairing = None
        self.written_sequence = self.synced_sequence = sequence
        self._purge_if_due()
        if self.last_sequence > sequence:
            self._sync = asyncio.get_running_loop().call_later(
                self._some(SYNC_S), self._synced, self.last_sequence
            )
        self._tell()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        self._listener_count += 1
        number = self._listener_count
        self._listeners[number] = heard

        def stop() -> None:
            self._listeners.pop(number, None)

        return stop

    def _tell(self) -> None:
        for heard in [*self._listeners.values()]:
            heard()

    async def records(self, *, first: int, bytes_max: int) -> list[Buffer]:
        if first < self.first_sequence:
            raise OutOfRange(f"records before {self.first_sequence} are purged")
        found: list[Buffer] = []
        size = 0
        for record in self._records[first - self.first_sequence :]:
            if found and size + len(record) > bytes_max:
                break
            found.append(record)
            size += len(record)
        return found

    async def touched(self, *, after: int) -> list[bytes] | None:
        keys: dict[bytes, None] = {}
        for encoded in self._records[after + 1 - self.first_sequence :]:
            record = decode_record(encoded)
            if record.flushes:
                return None
            keys.update(dict.fromkeys(write.key for write in record.writes))
        return [*keys]

    async def rewind(self, *, after: int, values: Sequence[Write], until: BinlogPosition) -> None:
        self._stop_sync()
        await asyncio.sleep(self._some(REWRITE_S))
        image = self._image
        del image.records[max(0, after + 1 - image.first) :]
        image.epochs = [start for start in image.epochs if start.sequence <= after]
        engine = image.engine
        engine.origins = {key: at for key, at in engine.origins.items() if at <= after}
        for write in values:
            engine.put(write)
        image.repairing = until if until.sequence > after else None
        self._begin()
        await asyncio.sleep(self._some(REWRITE_S))
        self._tell()

    async def purge(self, *, before: int) -> None:
        self._purge(min(before, self.synced_sequence + 1))

    def _purge(self, before: int) -> None:
        count = before - self.first_sequence
        if count > 0:
            del self._records[:count]
            del self._image.records[:count]
            self.first_sequence = self._image.first = before

    def _purge_if_due(self) -> None:
        if self._records_max is None or len(self._records) <= self._records_max:
            return
        before = self.synced_sequence + 1 - self._records_max // 2
        self._purge(before if self.needed_from is None else min(before, self.needed_from))

    async def checkpoint(self, folder: str) -> int:
        engine, sequence = self._image.engine.copy(), self.synced_sequence
        files = self._environment.files
        await perform(files, seam.MakeDirectory(folder))
        whole = msgspec.msgpack.encode((engine.keys, [*engine.origins.items()]))
        part = len(whole) // COPY_FILES + 1
        for number in range(COPY_FILES):
            path = f"{folder}/{number:03}"
            data = whole[number * part : (number + 1) * part]
            await perform(
                files, seam.Open(path, create=True), seam.Write(path, 0, [data]), seam.Close(path)
            )
        return sequence

    async def restore(self, folder: str, *, sequence: int, epochs: Sequence[EpochStart]) -> None:
        self._stop_sync()
        files = self._environment.files
        (names,) = await perform(files, seam.ListDirectory(folder))
        whole = b""
        for name in names:
            (data,) = await perform(files, seam.Read(f"{folder}/{name}", 0, 1 << 24))
            whole += data
        keys, origins = msgspec.msgpack.decode(
            whole, type=tuple[dict[bytes, Value], list[tuple[Origin, int]]]
        )
        image = self._image
        image.engine = Content(keys, dict(origins))
        image.records = []
        image.first = sequence + 1
        image.epochs = [*epochs]
        image.repairing = None
        self._begin()
        self._tell()

    def _stop_sync(self) -> None:
        if self._sync is not None:
            self._sync.cancel()
            self._sync = None

    async def close(self) -> None:
        self._stop_sync()

    def _some(self, seconds: tuple[float, float]) -> float:
        return self._environment.random.uniform(*seconds)
