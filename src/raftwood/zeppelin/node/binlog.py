"""Binlogs of a node: runs of records as bytes, writing them to the one log, purging and cutting.

    run       [header][u32 length of each record][record][record]…      little-endian
    header    magic, version, hour, count, epoch, first sequence, checksum (XXH3-64 of the rest)
    hour      when it was written, in hours since 1970, three bytes
    record    MessagePack, as `records.encode_record` makes it

The records of a run were written together, have one epoch, and consecutive sequences. A record is
encoded once: slaves receive and keep the master's bytes.
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
    """A decoded run; its records are still encoded."""

    epoch: int
    first_sequence: int
    records: list[Buffer]
    hour: int = 0


def encode_run(
    *, epoch: int, first_sequence: int, records: Sequence[Buffer], hour: int = 0
) -> bytes:
    """Encodes a run; `hour` is the present one, 0: unknown, which counts as old."""
    stamp = VERSION | (hour & (1 << _HOUR_BITS) - 1) << 8
    head = _HEAD.pack(MAGIC, stamp, len(records), epoch, first_sequence)
    body = b"".join((array("I", map(len, records)).tobytes(), *records))
    return b"".join((head, _CHECKSUM.pack(checksum_of(body, checksum_of(head))), body))


def decode_run(data: Buffer) -> BinlogRun:
    """Decodes a run; raises `StoreDamaged` if the bytes are not those that were written."""
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
    """Returns the hour in which a run was written; reads only its header."""
    if len(data) < RUN_HEADER_BYTES:
        raise _damaged(f"it has {len(data)} bytes, fewer than its header")
    return int(_HEAD.unpack_from(data)[1]) >> 8


def decode_records(run: BinlogRun) -> list[BinlogRecord]:
    """Decodes a run's records; raises `StoreDamaged` if they do not match its header."""
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


# `Binlog`: writes all partitions' records to the one log of a node, then to the engines.
#
# Records that were committed in one turn of the loop are written together, across partitions. They
# are synced at once if a client waits for that, else after a short while. Then the engines get
# them: each turn of the loop applies a bounded number for a bounded time, because an engine blocks
# the loop while it writes.

_RETRY_S: Final = 0.05
_RUN_BYTES_MAX: Final = 1 << 20
_WRITES_PER_TURN: Final = 1024
_WRITES_AT_ONCE: Final = 512
"""Writes between two looks at the clock."""
_BACKLOG_SHARE: Final = 8
"""In each turn, at least this share of a backlog is applied."""
_TURN_S: Final = 0.002
_HURRIED_S: Final = 0.02
"""Bounds of a turn's time; the longer one while writes are close to being refused."""
_BEHIND: Final = 0.25
_HURRY: Final = 0.5
"""Shares of backlog above which clients slow down, and engines get more of a turn."""
_log = get_logger("zeppelin")


class Writer(Protocol):
    """A partition, as the binlog sees it."""

    def take_runs(self) -> list[Run]:
        """Returns the runs committed since the last call."""
        ...

    def logged(self) -> None:
        """Notes that the committed records can be read from the log."""
        ...

    @property
    def syncs_at_once(self) -> bool:
        """Whether a client waits for its records to be on the disk."""
        ...

    def written(self, sequence: int) -> None:
        """Notes that the operating system has its records up to a sequence."""
        ...

    def synced(self, sequence: int) -> None:
        """Notes that its records up to a sequence are on the disk."""
        ...

    def apply_some(self, writes_max: int) -> int:
        """Gives synced records to the engine; returns how many writes they had."""
        ...

    @property
    def unapplied_count(self) -> int:
        """How many synced records the engine could take now."""
        ...

    @property
    def backlog_writes(self) -> int:
        """How many writes wait for the engine."""
        ...

    @property
    def backlog(self) -> float:
        """The backlog as a share of its limit, above which writes are refused."""
        ...


class Binlog:
    """Writes the binlogs of a node, on one event loop."""

    def __init__(self, log: SegmentLog, *, sync_interval_ms: int) -> None:
        self.log = log
        self.refusal: RaftwoodError | None = None
        """Why the log refused the last write; while set, commits are refused."""
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
        """Size at which a run ends: it must fit into one write together with its last record."""

    @property
    def record_bytes_max(self) -> int:
        return self._write_bytes_max - 1024

    @property
    def is_behind(self) -> bool:
        """Whether clients should write less for a moment."""
        self._behind = {each: None for each in self._behind if each.backlog > _BEHIND}
        return bool(self._behind)

    def committed(self, writer: Writer) -> None:
        """Notes that the partition has records to write; called once until they are taken."""
        self._committed.append(writer)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        """Writes all committed records now."""
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
        """Syncs what was written since the last time."""
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
        """Notes that the partition has synced records; called once until it has none left."""
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
        """Drops the partition's committed records that the log does not have yet."""
        self._committed = [each for each in self._committed if each is not writer]
        self._unwritten = deque(each for each in self._unwritten if each[1] is not writer)
        self._to_apply = deque(each for each in self._to_apply if each is not writer)
        self._behind.pop(writer, None)

    async def sync(self) -> None:
        """Waits until all committed records are on the disk."""
        self.turn()
        if self.refusal is not None:
            raise self.refusal
        self._sync()
        await self.log.sync()

    def close(self) -> None:
        """Stops the timers: nothing is retried."""
        for timer in (self._retry, self._sync_timer):
            if timer is not None:
                timer.cancel()


# Decides how much of a partition's binlog stays.
#
# A minimum of bytes stays for slaves that were away for a while. Records beyond it go once they
# take too much room or are too old, unless a connected slave or a reader still needs them. Records
# go nevertheless if it is so far behind that a whole copy is less work.

_HOUR_NS: Final = 3_600_000_000_000
_AGE_INTERVAL_NS: Final = 60_000_000_000
"""Interval of the age checks, which read from the disk."""
_READ_BYTES: Final = 1 << 20
"""How many bytes of the oldest records one age check reads."""


class BinlogPurger:
    """Decides what to purge from one partition's binlog."""

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
        """The present hour since 1970."""
        return self._clock.wall_ns() // _HOUR_NS

    async def before(self, *, needed_from: int | None) -> int:
        """Returns the sequence below which records may go; a slave needs those from
        `needed_from`.
        """
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
        """Returns where the first run begins that is not too old, among those read."""
        head = self._log.bounds(self._group).head
        oldest = self.hour - self._settings.binlog_hours_max
        for run in await self._log.read(self._group, head, bytes_max=_READ_BYTES):
            if hour_of(run.payload) >= oldest:
                break
            head = run.first_index + run.count
        return head


# Cuts the end off a binlog, also within a run.


async def cut_binlog(log: SegmentLog, group: int, *, after: int) -> None:
    """Removes the records behind a sequence from the log; durable on return."""
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
