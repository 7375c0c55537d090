"""`Binlog`: the way of all partitions' records to the one log of a node, and on to the engines.

Records that were committed in one turn of the loop are written together, whatever partitions they
are of. They are synced at once where somebody waits for that, else after a short while. Then the
engines get them: a bounded number in each turn of the loop, and for a bounded time, because an
engine holds up everything while it writes.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import Run, SegmentLog

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
