"""Binlogs of a node: runs of records as bytes, their way to the one log, and what is purged or cut.

    run       [header][u32 length of each record][record][record]…      little-endian
    header    magic, version, hour, count, epoch, first sequence, checksum (XXH3-64 of the rest)
    hour      when it was written, in hours since 1970, three bytes
    record    MessagePack, as `records.encode_record` makes it

All records of a run were written together and are of one epoch, and their sequences follow one
another. A record is encoded once: the master's bytes are what its slaves get and keep.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Final, Protocol

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base.environment import Clock
from raftwood.base.errors import (
    OutOfRange,
    ProtocolError,
    RaftwoodError,
    StoreDamaged,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.versions import unsupported
from raftwood.disk.segment_log import Record, Run, SegmentLog, TruncateTail
from raftwood.zeppelin.records import BinlogReaders, BinlogRecord, decode_record
from raftwood.zeppelin.settings import StoreSettings

MAGIC: Final = b"RWZB"
VERSION: Final = 1
_HEAD: Final = Struct("<4sIIQQ")
_HOUR_BITS: Final = 24
_CHECKSUM: Final = Struct("<Q")
RUN_HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size
LENGTH_BYTES: Final = 4


class BinlogRun(msgspec.Struct, frozen=True):
    """A decoded run; each record still as it was encoded."""

    epoch: int
    first_sequence: int
    records: list[Buffer]
    hour: int = 0


def encode_run(
    *, epoch: int, first_sequence: int, records: Sequence[Buffer], hour: int = 0
) -> bytes:
    """`hour` is of now; 0: nobody knows, and it counts as old."""
    stamp = VERSION | (hour & (1 << _HOUR_BITS) - 1) << 8
    head = _HEAD.pack(MAGIC, stamp, len(records), epoch, first_sequence)
    body = b"".join((array("I", map(len, records)).tobytes(), *records))
    return b"".join((head, _CHECKSUM.pack(checksum_of(body, checksum_of(head))), body))


def decode_run(data: Buffer) -> BinlogRun:
    """The run's records; `StoreDamaged` where the bytes are not those that were written."""
    if len(data) < RUN_HEADER_BYTES:
        raise _damaged(f"it has {len(data)} bytes, fewer than its header")
    magic, stamp, count, epoch, first_sequence = _HEAD.unpack_from(data)
    version, hour = stamp & 0xFF, stamp >> 8
    if magic != MAGIC:
        raise _damaged("it does not begin as runs do")
    if version != VERSION:
        raise unsupported("a run of a binlog", version, VERSION)
    view = memoryview(data)
    (checksum,) = _CHECKSUM.unpack_from(view, _HEAD.size)
    if checksum != checksum_of(view[RUN_HEADER_BYTES:], checksum_of(view[: _HEAD.size])):
        raise _damaged("it does not match its checksum")
    place = RUN_HEADER_BYTES + count * LENGTH_BYTES
    if place > len(data):
        raise _damaged(f"it has no room for {count} records")
    lengths = array("I")
    lengths.frombytes(view[RUN_HEADER_BYTES:place])
    if place + sum(lengths) != len(data):
        raise _damaged("its records do not fill it")
    records: list[Buffer] = []
    for length in lengths:
        records.append(view[place : place + length])
        place += length
    return BinlogRun(epoch, first_sequence, records, hour)


def hour_of(data: Buffer) -> int:
    """When a run was written; only its header is looked at."""
    if len(data) < RUN_HEADER_BYTES:
        raise _damaged(f"it has {len(data)} bytes, fewer than its header")
    return int(_HEAD.unpack_from(data)[1]) >> 8


def decode_records(run: BinlogRun) -> list[BinlogRecord]:
    """All of a run; `StoreDamaged` where they are not what the header says."""
    try:
        records = [decode_record(each) for each in run.records]
    except ProtocolError as error:
        raise _damaged(error.message) from error
    for sequence, record in enumerate(records, run.first_sequence):
        if record.sequence != sequence or record.epoch != run.epoch:
            raise _damaged(
                f"record {record.sequence} of epoch {record.epoch} stands where {sequence} of "
                f"epoch {run.epoch} should"
            )
    return records


def _damaged(reason: str) -> StoreDamaged:
    return StoreDamaged(
        f"a run of a binlog is damaged: {reason}; restore the partition from a replica"
    )


# `Binlog`: the way of all partitions' records to the one log of a node, and on to the engines.
#
# Records that were committed in one turn of the loop are written together, whatever partitions they
# are of. They are synced at once where somebody waits for that, else after a short while. Then the
# engines get them: a bounded number in each turn of the loop, and for a bounded time, because an
# engine holds up everything while it writes.

_RETRY_S: Final = 0.05
_RUN_BYTES_MAX: Final = 1 << 20
_WRITES_PER_TURN: Final = 1024
_WRITES_AT_ONCE: Final = 512
"""Between two looks at the clock."""
_BACKLOG_SHARE: Final = 8
"""A backlog is worked off at this share of it in each turn, where that is more."""
_TURN_S: Final = 0.002
_HURRIED_S: Final = 0.02
"""So long at the most in a turn; and where writes are about to be refused else."""
_BEHIND: Final = 0.25
_HURRY: Final = 0.5
"""Backlogs from which on clients are slowed down, and the engines get more of a turn."""
_log = get_logger("zeppelin")


class Writer(Protocol):
    """A partition, as the binlog sees it."""

    def take_runs(self) -> list[Run]:
        """What was committed since the last time."""
        ...

    def logged(self) -> None:
        """What it committed can be read from the log."""
        ...

    @property
    def syncs_at_once(self) -> bool:
        """Whether somebody waits for its records to be on the disk."""
        ...

    def written(self, sequence: int) -> None:
        """The operating system has its records up to a sequence."""
        ...

    def synced(self, sequence: int) -> None:
        """Its records up to a sequence are on the disk."""
        ...

    def apply_some(self, writes_max: int) -> int:
        """Give synced records to the engine; answers how many writes they had."""
        ...

    @property
    def unapplied_count(self) -> int:
        """How many synced records wait for the engine, as far as it can take them now."""
        ...

    @property
    def backlog_writes(self) -> int:
        """How many writes its records have that wait for the engine."""
        ...

    @property
    def backlog(self) -> float:
        """Its share of the room there is, above which writes are refused."""
        ...


class Binlog:
    """One per node. Everything runs on one event loop."""

    def __init__(self, log: SegmentLog, *, sync_interval_ms: int) -> None:
        self.log = log
        self.refusal: RaftwoodError | None = None
        """Why the log took nothing the last time; from then on commits are refused."""
        self._loop = asyncio.get_running_loop()
        self._committed: list[Writer] = []
        self._turn_scheduled = False
        self._retry: asyncio.TimerHandle | None = None
        self._unwritten: deque[tuple[Run, Writer]] = deque()
        self._unsynced: dict[Writer, int] = {}
        self._sync_timer: asyncio.TimerHandle | None = None
        self._sync_interval_s = sync_interval_ms / 1000
        self._to_apply: deque[Writer] = deque()
        self._apply_scheduled = False
        self._behind: dict[Writer, None] = {}
        self._write_bytes_max = log.write_bytes_max // 2
        self.run_bytes_max = min(_RUN_BYTES_MAX, self._write_bytes_max // 2)
        """A run with more ends: with its last record it has to fit into one write."""

    @property
    def record_bytes_max(self) -> int:
        return self._write_bytes_max - 1024

    @property
    def is_behind(self) -> bool:
        """Less should be written for a moment."""
        self._behind = {each: None for each in self._behind if each.backlog > _BEHIND}
        return bool(self._behind)

    def committed(self, writer: Writer) -> None:
        """The partition has records to write; to be called once until they are taken."""
        self._committed.append(writer)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        """Write what was committed so far, now."""
        self._turn_scheduled = False
        writers, self._committed = self._committed, []
        for writer in writers:
            self._unwritten.extend((run, writer) for run in writer.take_runs())
            if writer.backlog > _BEHIND:
                self._behind[writer] = None
        with self.log.flushing():
            self._write()
        for writer in writers:
            writer.logged()

    def _write(self) -> None:
        while self._unwritten:
            chosen: list[tuple[Run, Writer]] = []
            size = 0
            for run, writer in self._unwritten:
                size += len(run.payload)
                if chosen and size > self._write_bytes_max:
                    break
                chosen.append((run, writer))
            ends: dict[Writer, int] = {
                writer: run.first_index + run.count - 1 for run, writer in chosen
            }
            try:
                self._write_runs([run for run, _ in chosen], ends)
            except RaftwoodError as error:
                self._try_later(error)
                return
            self.refusal = None
            for _ in chosen:
                self._unwritten.popleft()

    def _write_runs(self, runs: list[Run], ends: dict[Writer, int]) -> None:
        written = partial(self._written, ends)
        unsynced = self._unsynced | ends
        if any(writer.syncs_at_once for writer in ends):
            self.log.write(runs, partial(self._synced, unsynced), written=written)
            unsynced = {}
        else:
            self.log.write(runs, written=written)
        self._unsynced = unsynced
        if unsynced and self._sync_timer is None:
            self._sync_timer = self._loop.call_later(self._sync_interval_s, self._sync)

    def _sync(self) -> None:
        """Have synced what was written since the last time."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        if self._unsynced:
            try:
                self.log.when_durable(partial(self._synced, self._unsynced))
            except RaftwoodError as error:  # not even an empty flush has room
                _log.warning("the log was not synced", reason=error.message)
                self._sync_timer = self._loop.call_later(_RETRY_S, self._sync)
            else:
                self._unsynced = {}

    def _try_later(self, error: RaftwoodError) -> None:
        if self.refusal is None:
            _log.warning("records wait for the log", reason=error.message)
        self.refusal = error
        if self._retry is None:
            self._retry = self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        with self.log.flushing():
            self._write()

    def _written(self, ends: Mapping[Writer, int]) -> None:
        for writer, sequence in ends.items():
            writer.written(sequence)

    def _synced(self, ends: Mapping[Writer, int]) -> None:
        for writer, sequence in ends.items():
            writer.synced(sequence)

    def apply_later(self, writer: Writer) -> None:
        """The partition has synced records; to be called once until it has none any more."""
        self._to_apply.append(writer)
        if not self._apply_scheduled:
            self._apply_scheduled = True
            self._loop.call_soon(self._apply)

    def _apply(self) -> None:
        self._apply_scheduled = False
        waiting = self._to_apply
        backlog = sum(writer.backlog_writes for writer in waiting)
        is_hurried = any(writer.backlog > _HURRY for writer in waiting)
        budget = max(_WRITES_PER_TURN, backlog // _BACKLOG_SHARE)
        end = self._loop.time() + (_HURRIED_S if is_hurried else _TURN_S)
        while waiting and budget > 0:
            writer = waiting.popleft()
            budget -= writer.apply_some(min(budget, _WRITES_AT_ONCE)) or 1
            if writer.unapplied_count:
                waiting.append(writer)
            if self._loop.time() >= end:
                break
        if waiting and not self._apply_scheduled:
            self._apply_scheduled = True
            self._loop.call_soon(self._apply)

    def forget(self, writer: Writer) -> None:
        """Whatever the partition has committed and the log has not got is given up."""
        self._committed = [each for each in self._committed if each is not writer]
        self._unwritten = deque(each for each in self._unwritten if each[1] is not writer)
        self._to_apply = deque(each for each in self._to_apply if each is not writer)
        self._behind.pop(writer, None)

    async def sync(self) -> None:
        """Wait until all that was committed is on the disk."""
        self.turn()
        if self.refusal is not None:
            raise self.refusal
        self._sync()
        await self.log.sync()

    def close(self) -> None:
        """Nothing is tried again."""
        for timer in (self._retry, self._sync_timer):
            if timer is not None:
                timer.cancel()


# How much of a partition's binlog stays.
#
# Some bytes always do, for slaves that were away for a while. What is beyond that goes once there
# is too much of it, or once it is too old, but not what a connected slave or a reader still needs:
# unless that is so far behind that a whole copy is less.

_HOUR_NS: Final = 3_600_000_000_000
_AGE_INTERVAL_NS: Final = 60_000_000_000
"""Between two looks at how old a binlog is, which read from the disk."""
_READ_BYTES: Final = 1 << 20
"""So much of the oldest records is looked at for their age at a time."""


class BinlogPurger:
    """Of one partition's binlog."""

    def __init__(
        self,
        log: SegmentLog,
        group: int,
        settings: StoreSettings,
        clock: Clock,
        readers: BinlogReaders,
    ) -> None:
        self._log = log
        self._group = group
        self._settings = settings
        self._clock = clock
        self._readers = readers
        self._aged_ns = clock.monotonic_ns()

    @property
    def hour(self) -> int:
        """It is now, since 1970."""
        return self._clock.wall_ns() // _HOUR_NS

    async def before(self, *, needed_from: int | None) -> int:
        """Records below this sequence may go; a connected slave needs those from another on."""
        log, group, settings = self._log, self._group, self._settings
        before = log.bounds(group).head
        size = log.size_of(group)
        if size > settings.binlog_bytes_max:
            before = log.index_within(group, settings.binlog_bytes_min)
        elif size > settings.binlog_bytes_min and self._is_age_due():
            before = min(await self._aged(), log.index_within(group, settings.binlog_bytes_min))
        read_from = self._readers.needed_from(self._clock.monotonic_ns())
        needed = [each for each in (needed_from, read_from) if each is not None]
        if needed and min(needed) < before:
            held = log.index_within(group, settings.binlog_held_bytes_max)
            before = min(before, max(min(needed), held))
        return before

    def _is_age_due(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        is_due = now_ns - self._aged_ns >= _AGE_INTERVAL_NS
        if is_due:
            self._aged_ns = now_ns
        return is_due

    async def _aged(self) -> int:
        """Where the first run begins that is not too old, of those that are looked at."""
        head = self._log.bounds(self._group).head
        oldest = self.hour - self._settings.binlog_hours_max
        for run in await self._log.read(self._group, head, bytes_max=_READ_BYTES):
            if hour_of(run.payload) >= oldest:
                break
            head = run.first_index + run.count
        return head


# Cutting a binlog's end off, wherever that falls in a run.


async def cut_binlog(log: SegmentLog, group: int, *, after: int) -> None:
    """Take the records behind a sequence out of the log; durable when it returns."""
    bounds = log.bounds(group)
    if not bounds.head - 1 <= after < bounds.next_index:
        raise OutOfRange(
            f"a binlog with the records {bounds.head} to {bounds.next_index - 1} cannot be cut "
            f"behind {after}"
        )
    if after + 1 == bounds.next_index:
        return
    stored = (await log.read(group, after + 1, bytes_max=1))[0]
    records: list[Record] = [TruncateTail(group, stored.first_index)]
    if stored.first_index <= after:
        # The log cuts between runs, so what stays of this one is written again.
        run = decode_run(stored.payload)
        kept = run.records[: after + 1 - stored.first_index]
        payload = encode_run(
            epoch=run.epoch, first_sequence=stored.first_index, records=kept, hour=run.hour
        )
        records.append(Run(group, stored.term, stored.first_index, len(kept), payload))
    await log.commit(*records)
