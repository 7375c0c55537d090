"""`StoredPartition`: the keys of one partition in a storage engine, behind its binlog.

A write goes into the overlay, where it can be read at once, and with all other writes of the same
turn of the loop into one record of the log. Once the record is synced, the engine gets it. Start
with `write`, then `binlog` (the way to the disk) and `store.open_partition` (how it comes back).

Zeppelin's text (section 1.2) writes to the engine first and then to the binlog, with a lock on each
key. A crash between the two leaves a value that no slave ever gets. Here the binlog is the only
log, and the engine gets a record once it is synced, so that it is never ahead (docs/decisions/0019;
planted bug "the engine is ahead of the binlog"). The loop is the lock: a command reads, writes and
commits without waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from raftwood.base.environment import Clock
from raftwood.base.errors import (
    InvariantViolated,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    TooLarge,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import Run, TruncateHead
from raftwood.zeppelin.model import Ack
from raftwood.zeppelin.node import binlog as binlog_module
from raftwood.zeppelin.node.binlog import Binlog, BinlogPurger, cut_binlog
from raftwood.zeppelin.node.engine import (
    Origins,
    PartitionEngine,
    epochs_from,
    has_passed,
    with_epoch,
)
from raftwood.zeppelin.node.engine_folders import EngineFolders
from raftwood.zeppelin.node.readable_partition import Overlay, TrimmedPartition
from raftwood.zeppelin.records import (
    KEY_BYTES_MAX,
    BinlogPosition,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    LastWrites,
    decode_record,
    encode_record,
)
from raftwood.zeppelin.settings import StoreSettings


class WriteSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of writes to one partition."""

    record_bytes_max: int
    value_bytes_max: int

    def check(self, writes: Iterable[KeyWrite], size: int) -> None:
        """Raises `TooLarge` if the writes together, or one of them, are above a bound."""
        if size > self.record_bytes_max:
            raise TooLarge(
                f"a write of {size} bytes is above the limit of {self.record_bytes_max}: split it"
            )
        for write in writes:
            if len(write.key) > KEY_BYTES_MAX:
                raise TooLarge(
                    f"a key of {len(write.key)} bytes is above the limit of {KEY_BYTES_MAX}: take "
                    "a shorter one"
                )
            if write.data is not None and len(write.data) > self.value_bytes_max:
                raise TooLarge(
                    f"a value of {len(write.data)} bytes is above the limit of "
                    f"{self.value_bytes_max}: split it"
                )


_EPOCHS_KEPT: Final = 64
"""How many epochs stay after their records are purged: they let a slave that was away be compared
(see `replication.epochs`)."""
_COUNT_PAIRS: Final = 500
"""Pairs that one turn of the loop counts while keys are still uncounted."""
_COUNT_TURNS: Final = 40
"""Turns in each call of `maintain`."""
_COUNT_S_MAX: Final = 5.0
"""How long a count waits for a slow disk before keys are counted one by one."""
_SETTLE_WRITES: Final = 1000
_SETTLE_WAIT_S: Final = 0.001
_WRITE_OVERHEAD_BYTES: Final = 300
"""Estimated memory of a write that waits for the engine, besides its bytes."""
_OPEN_BYTES_MAX: Final = 256 << 10
"""Bytes of writes that become one record."""
_log = get_logger("zeppelin")


class StoredPartition(TrimmedPartition):
    """Implements `PartitionStore`; opened by `NodeStore`."""

    def __init__(
        self,
        *,
        name: str,
        group: int,
        binlog: Binlog,
        engine: PartitionEngine,
        home: EngineFolders,
        clock: Clock,
        settings: StoreSettings,
    ) -> None:
        super().__init__(engine, Overlay(settings.cache_bytes))
        self.name = name
        self.needed_from: int | None = None
        """The first record that a connected slave still needs; None: there is none."""
        self.ack: Ack = "written"
        """The ack rule of its table."""
        self.last_writes: LastWrites | None = None
        self._group = group
        self._binlog = binlog
        self.home = home
        self._origins = Origins.load(engine.kv)
        self._clock = clock
        self._settings = settings
        self._unapplied_bytes_max = settings.unapplied_bytes_max
        self._sizes = WriteSizes(
            record_bytes_max=binlog.record_bytes_max, value_bytes_max=settings.value_bytes_max
        )
        self._open_bytes_max = min(_OPEN_BYTES_MAX, binlog.record_bytes_max // 2)
        self._listeners: dict[object, Callable[[], None]] = {}
        self._flushed_ns = clock.monotonic_ns()
        self._purging = BinlogPurger(binlog.log, group, settings, clock, self.readers)
        self.begin()

    def begin(self) -> None:
        """Sets the state from engine and binlog, which are of one moment."""
        state = self.engine.state
        self._epochs = state.epochs
        self._epoch = state.epoch
        self._repairing = state.repairing
        self.last_sequence = state.sequence
        self.written_sequence = state.sequence
        self.synced_sequence = state.sequence
        self.is_frozen = False
        """Commits are refused while the state that they would build on is being replaced: they
        would be in the binlog of the old past and in the engine of the new one.
        """
        self._failure: RaftwoodError | None = None
        self._holds = 0
        self._is_to_apply = False
        self._fetching: asyncio.Task[None] | None = None
        self._fetched_to = 0
        """The last record whose keys were looked up off the loop; 0: none."""
        self._unapplied: deque[tuple[BinlogRecord, int]] = deque()
        self._unapplied_bytes = self._unapplied_writes = 0
        self._open: dict[bytes, KeyWrite] = {}
        """The writes of this turn of the loop; they become the last record
        (docs/decisions/0020)."""
        self._open_bytes = 0
        self._runs: list[Run] = []
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._is_committed = False
        self.overlay.forget_all()
        if self.last_writes is not None:
            self.last_writes.begin(self.last_sequence)
        self.trim_anew()

    def note_last_writes(self, *, is_on: bool) -> None:
        if is_on and self.last_writes is None:
            self.last_writes = LastWrites(self.last_sequence)
        elif not is_on:
            self.last_writes = None

    # Positions.

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def epochs(self) -> Sequence[EpochStart]:
        return self._epochs

    @property
    def repairing(self) -> BinlogPosition | None:
        return self._repairing

    @property
    def is_well(self) -> bool:
        return self._failure is None

    @property
    def first_sequence(self) -> int:
        return min(self._binlog.log.bounds(self._group).head, self.last_sequence + 1)

    @property
    def applied_sequence(self) -> int:
        return self.engine.state.sequence

    def sequence_of(self, producer: bytes, number: int) -> int | None:
        """Returns the sequence of the record with this origin; None if it is not known."""
        return self._origins.sequence_of((producer, number))

    # Writing.

    def write(self, writes: Mapping[bytes, KeyWrite], *, size: int, epoch: int) -> int:
        assert writes, "a record is opened by what is in it"
        if size > KEY_BYTES_MAX:
            self._sizes.check(writes.values(), size)
        opened = self._open
        if not opened or epoch != self._epoch or self._open_bytes + size > self._open_bytes_max:
            opened = self._open_record(epoch)
        self._open_bytes += size
        opened.update(writes)
        self.overlay.unapplied.update(writes)
        self.recent.update(writes)
        if self.last_writes is not None:
            self.last_writes.put(writes, self.last_sequence)
        return self.last_sequence

    def _open_record(self, epoch: int) -> dict[bytes, KeyWrite]:
        self._seal_record()
        self._check_next(epoch, self.last_sequence + 1)
        if self._unapplied_bytes > self._unapplied_bytes_max:
            raise self._overloaded()
        self._go_to_epoch(epoch, self.last_sequence + 1)
        self.last_sequence += 1
        self._will_log()
        return self._open

    def _seal_record(self) -> None:
        """Ends the record that this turn writes to; later writes go to the next one."""
        if self._open:
            writes, self._open, self._open_bytes = self._open, {}, 0
            record = BinlogRecord(self._epoch, self.last_sequence, tuple(writes.values()))
            self._take(record, encode_record(record))

    def commit(self, record: BinlogRecord, encoded: Buffer | None = None) -> None:
        self._seal_record()
        self._check_next(record.epoch, record.sequence)
        if encoded is None:
            encoded = encode_record(record)
        if len(encoded) > KEY_BYTES_MAX:
            self._sizes.check(record.writes, len(encoded))
        if self._unapplied_bytes + len(encoded) > self._unapplied_bytes_max and self._unapplied:
            raise self._overloaded()
        self._go_to_epoch(record.epoch, record.sequence)
        self.last_sequence = record.sequence
        if record.flushes:
            self.overlay.flush(record.sequence)
        self.overlay.put(record.writes)
        if self.last_writes is not None:
            if record.flushes:
                self.last_writes.begin(record.sequence)
            self.last_writes.put((write.key for write in record.writes), record.sequence)
        if record.origin is not None:
            self._origins.add(record.origin, record.sequence)
        self._take(record, encoded)
        self._will_log()

    def _take(self, record: BinlogRecord, encoded: Buffer) -> None:
        """Sends the last record to the log, and from there to the engine."""
        size = len(encoded)
        taken = size + _WRITE_OVERHEAD_BYTES * (len(record.writes) or 1)
        self._unapplied.append((record, taken))
        self._unapplied_bytes += taken
        self._unapplied_writes += len(record.writes)
        self.overlay.grow(taken)
        repairing = self._repairing
        if repairing is not None and has_passed(repairing, record.epoch, record.sequence):
            self._repairing = None
        self._pending.append(encoded)
        self._pending_bytes += size
        if self._pending_bytes > self._binlog.run_bytes_max:
            self._seal_run()

    def _will_log(self) -> None:
        if not self._is_committed:
            self._is_committed = True
            self._binlog.committed(self)

    def _go_to_epoch(self, epoch: int, sequence: int) -> None:
        if epoch != self._epoch:
            self._seal_run()
            self._epoch = epoch
            self._epochs = with_epoch(self._epochs, epoch, sequence)

    def _check_next(self, epoch: int, sequence: int) -> None:
        """Raises unless a record may be the next one.

        Sequences without a hole and epochs that never fall are what two binlogs are compared by; a
        record that breaks either would make replicas differ unnoticed.
        """
        if self._failure is not None:
            raise self._failure
        if self._binlog.refusal is not None:
            raise self._binlog.refusal
        if self.is_frozen:
            raise Unavailable(f"{self.name} is being replaced: try again")
        if sequence != self.last_sequence + 1 or epoch < (self._epoch or 1):
            raise InvariantViolated(
                f"{self.name} is at record {self.last_sequence} of epoch {self._epoch}: record "
                f"{sequence} of epoch {epoch} does not follow"
            )

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{self._unapplied_bytes} bytes of {self.name} wait for the disk already: send less, "
            "or wait"
        )

    def _seal_run(self) -> None:
        if not self._pending:
            return
        records, self._pending, self._pending_bytes = self._pending, [], 0
        first = self.last_sequence - len(records) + 1
        payload = binlog_module.encode_run(
            epoch=self._epoch, first_sequence=first, records=records, hour=self._purging.hour
        )
        self._runs.append(Run(self._group, self._epoch, first, len(records), payload))

    # Called by the binlog.

    def take_runs(self) -> list[Run]:
        self._seal_record()
        self._seal_run()
        self._is_committed = False
        runs, self._runs = self._runs, []
        return runs

    def logged(self) -> None:
        self._tell()

    @property
    def syncs_at_once(self) -> bool:
        return self.ack == "synced"

    def written(self, sequence: int) -> None:
        self.written_sequence = sequence
        self._tell()

    def synced(self, sequence: int) -> None:
        self.synced_sequence = sequence
        self._apply_later()
        self._tell()

    def _apply_later(self) -> None:
        if not self._is_to_apply and self.unapplied_count:
            self._is_to_apply = True
            self._binlog.apply_later(self)

    @property
    def unapplied_count(self) -> int:
        # Without waiting records, the engine is behind because it is being rewound.
        is_waiting = self._holds or self._fetching is not None
        if is_waiting or self._failure is not None or not self._unapplied:
            return 0
        return max(0, self.synced_sequence - self.applied_sequence)

    @property
    def backlog_writes(self) -> int:
        return self._unapplied_writes

    @property
    def backlog(self) -> float:
        if self._failure is not None:
            return 0.0  # The engine takes nothing: slowing clients down would not help.
        return self._unapplied_bytes / self._unapplied_bytes_max

    def apply_some(self, writes_max: int) -> int:
        chosen: list[BinlogRecord] = []
        writes = size = 0
        if self.unapplied_count:
            # Only synced records. An engine with a record that a power cut takes out of the binlog
            # has a value that no replica has, and its next record gets the lost one's number.
            synced = min(self.synced_sequence, self._fetched_to or self.synced_sequence)
            for record, record_bytes in self._unapplied:
                if record.sequence > synced or writes >= writes_max:
                    break
                chosen.append(record)
                writes += len(record.writes) + 1
                size += record_bytes
        if chosen and not self._is_to_fetch(chosen):
            self._fetched_to = 0
            self._apply(chosen, size)
        elif chosen:
            writes = 0
        self._is_to_apply = self.unapplied_count > 0
        return writes

    def _is_to_fetch(self, records: list[BinlogRecord]) -> bool:
        """Whether old values must be read from the disk; starts to read them off the loop.

        A read of a cold key takes milliseconds, in which the loop would serve no client.
        """
        if any(record.flushes for record in records):
            return False  # The flush leaves nothing of what keys had before.
        try:
            cold = self.engine.look_up(write.key for record in records for write in record.writes)
        except RaftwoodError as error:
            self._fail(error)
            return True
        if cold:
            self._fetched_to = records[-1].sequence
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(cold))
        return bool(cold)

    async def _fetch(self, places: list[bytes]) -> None:
        try:
            await self.engine.fetch(places)
        except RaftwoodError as error:
            self._fail(error)
        finally:
            self._fetching = None
        self._apply_later()

    async def _stop_fetching(self) -> None:
        if (fetching := self._fetching) is not None:
            fetching.cancel()
            await asyncio.wait([fetching])
            self._fetching = None  # A task that is cancelled before it began runs no `finally`.

    def _fail(self, error: RaftwoodError) -> None:
        _log.error("the engine takes no records", partition=self.name, reason=error.message)
        self._failure = error

    def _apply(self, records: list[BinlogRecord], size: int) -> None:
        try:
            latest = self.engine.apply(records, now_ms=self._clock.wall_ns() // 1_000_000)
        except RaftwoodError as error:
            self._fail(error)
            return
        self.overlay.applied(latest.values(), sequence=records[-1].sequence)
        self._unapplied_bytes -= size
        self._unapplied_writes -= sum(len(record.writes) for record in records)
        popleft = self._unapplied.popleft
        for _ in records:
            popleft()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """`heard` is called at the end of a turn of the loop, never within a commit."""
        token = object()
        self._listeners[token] = heard

        def stop() -> None:
            self._listeners.pop(token, None)

        return stop

    def _tell(self) -> None:
        for heard in tuple(self._listeners.values()):
            heard()

    # The binlog.

    async def records(self, *, first: int, bytes_max: int) -> list[Buffer]:
        """Returns records up to the last one at the time of the call at most."""
        if not self.first_sequence <= first <= self.last_sequence + 1:
            raise OutOfRange(
                f"{self.name} has the records {self.first_sequence} to {self.last_sequence}, not "
                f"{first}"
            )
        log, group = self._binlog.log, self._group
        if self._is_committed:
            self._binlog.turn()
        if first >= log.next_index(group):
            return []
        stored = log.read_cached(group, first, bytes_max=bytes_max)
        if stored is None:
            stored = await log.read(group, first, bytes_max=bytes_max)
        found: list[Buffer] = []
        size = 0
        for each in stored:
            run = binlog_module.decode_run(each.payload)
            for record in run.records[max(0, first - run.first_sequence) :]:
                size += len(record)
                if found and size > bytes_max:
                    return found
                found.append(record)
        return found

    async def purge(self, *, before: int) -> None:
        """Purges old records, except those that the engine does not have on the disk.

        The engine has no log of its own: after a crash it is rolled forward from the binlog.
        """
        log = self._binlog.log
        before = min(before, self.engine.durable_sequence + 1, log.next_index(self._group))
        if before > self.first_sequence and before < log.next_index(self._group):
            # Whole runs: the binlog always begins with one, so that it can be cut anywhere.
            before = log.run_start(self._group, before)
        if before <= self.first_sequence or self.is_frozen:
            return
        log.write((TruncateHead(self._group, before - 1),))
        if len(self._epochs) > _EPOCHS_KEPT:
            self._epochs = epochs_from(self._epochs, before - 1)
            self.engine.forget_epochs(before - 1)
        if (kept := self._origins.forget_before(before)) is not None:
            self.engine.forget_origins(before, kept)

    async def maintain(self) -> None:
        """Regular work: flushes the engine, purges the binlog."""
        self._failure = None
        self._apply_later()
        settings, engine = self._settings, self.engine
        if engine.durable_sequence < self.applied_sequence:
            age_ms = (self._clock.monotonic_ns() - self._flushed_ns) // 1_000_000
            is_old = age_ms >= settings.flush_interval_ms
            if is_old or engine.unflushed_bytes >= settings.flush_bytes:
                self._flushed_ns = self._clock.monotonic_ns()
                await engine.flush()
        if not engine.is_counted:
            await self._count_on()
        if self.share is not None:
            await self.trim(lambda: not self.is_frozen and not self._holds)
        await self.purge(before=await self._purging.before(needed_from=self.needed_from))

    async def _count_on(self) -> None:
        """Counts some more keys of an engine that release 0.1.0 wrote, or of a copy of one."""
        engine = self.engine
        for _ in range(_COUNT_TURNS):
            if engine.is_counted or self.is_frozen or self._holds or engine is not self.engine:
                return
            engine.count_some(_COUNT_PAIRS)
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Waits until the engine has all that was committed before the call."""
        target = self.last_sequence
        await self._binlog.sync()
        while self._unapplied and self._unapplied[0][0].sequence <= target:
            applied = self.apply_some(_SETTLE_WRITES)
            if self._failure is not None:
                raise self._failure
            await asyncio.sleep(0 if applied else _SETTLE_WAIT_S)

    async def count(self) -> int | None:
        if self._unapplied:
            try:
                async with asyncio.timeout(_COUNT_S_MAX):
                    await self.settle()
            except TimeoutError:
                return None
        is_known = self.engine.is_counted and self._own_slots() is None
        return self.engine.state.keys if is_known else None

    async def checkpoint(self, folder: str) -> int:
        await self.engine.flush()
        await self.settle()
        if self.is_frozen:
            raise Unavailable(f"{self.name} is being replaced: try again")
        # Records that arrive meanwhile wait in memory. A copy with some of them would have a wrong
        # sequence, and a slave would skip or repeat records.
        self._holds += 1
        try:
            await self.engine.checkpoint(folder)
            return self.applied_sequence
        finally:
            self._holds -= 1
            self._apply_later()

    async def touched(self, *, after: int) -> list[bytes] | None:
        keys: dict[bytes, None] = {}
        sequence = after + 1
        while sequence <= self.last_sequence:
            for encoded in await self.records(first=sequence, bytes_max=self._binlog.run_bytes_max):
                record = decode_record(encoded)
                if record.flushes:
                    return None
                keys.update(dict.fromkeys(write.key for write in record.writes))
                sequence = record.sequence + 1
        return list(keys)

    async def rewind(
        self, *, after: int, values: Sequence[KeyWrite], until: BinlogPosition
    ) -> None:
        await self._stand_still()
        # The engine first: a crash in between leaves the binlog as it was, its records are applied
        # again, and the slave learns anew what to undo. The other way round the engine would keep
        # values whose records are gone, and their keys would be unknown. After an error the
        # partition takes no commits: what is stored and what was committed are of two pasts.
        await self.engine.rewind(after, self.own_of(values), until)
        await cut_binlog(self._binlog.log, self._group, after=after)
        self._origins.forget_after(after)
        self.begin()

    async def restore(self, folder: str, *, sequence: int, epochs: Sequence[EpochStart]) -> None:
        await self._stand_still()
        replaced = self.home.folder
        try:
            engine = PartitionEngine(await self.home.open(folder))
            try:
                await engine.take_over(sequence, epochs)
                await self.home.move(folder, sequence=sequence)
            except BaseException:
                await engine.close()
                raise
        finally:
            self.is_frozen = False
        before, self.engine = self.engine, engine
        self._origins = Origins.load(engine.kv)
        self.begin()
        await before.close()
        await self.home.remove(replaced)

    async def _stand_still(self) -> None:
        """Freezes commits, and waits until copies and the engine have finished."""
        self.is_frozen = True
        try:
            await self._wait_for_copies()
            await self.settle()
        except BaseException:
            self.is_frozen = False
            raise

    async def _wait_for_copies(self) -> None:
        while self._holds:  # noqa: ASYNC110  it is not worth an event
            await asyncio.sleep(_SETTLE_WAIT_S)

    async def discard(self) -> None:
        """Closes a partition that is about to be removed; what was committed may be lost."""
        self.is_frozen = True
        await self._wait_for_copies()
        self._holds += 1
        self._unapplied.clear()  # No one waits for these records to be applied any more.
        self._binlog.forget(self)
        await self._stop_fetching()
        await self.engine.close()

    async def close(self) -> None:
        """Closes; committed records are on the disk and in the engine when this returns."""
        try:
            await self._wait_for_copies()
            await self.settle()
        finally:
            self.is_frozen = True
            await self._stop_fetching()
            await self.engine.close()
