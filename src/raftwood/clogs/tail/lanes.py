"""Lanes: deliver the batches of one name in order, some before the first is stored.

If one is refused, those behind it are not stored either, and fail as well: all of them are
delivered again, in their order. A *round* lasts from one such failure to the next.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, Overloaded, RaftwoodError, SequenceForgotten
from raftwood.base.logs import get_logger
from raftwood.clogs.tail.checkpoints import FileCheckpoints
from raftwood.clogs.tail.followed_file import TailCounters
from raftwood.clogs.tail.reader import FileReader, IntendedBatch, ReadyBatch
from raftwood.clogs.tail.rules import Roster
from raftwood.clogs.tail.seams import BatchDeliverer
from raftwood.clogs.tail.settings import TailSettings

_log = get_logger("tail")
_RETRY_MS_MAX: Final = 60_000
_AHEAD_MAX: Final = 7
"""Limit of batches of a name that are made or delivered behind the first unstored one."""


class _Place:
    """A batch's place behind another one."""

    def __init__(self, before: "_Place | None") -> None:
        self.before = before
        self.round = -1
        """The round in which it was last handed over."""
        self.is_stored = False


class _Lane:
    """The order of delivery of one name's batches."""

    def __init__(self) -> None:
        self._round = 0
        self._changed = asyncio.Event()

    async def turn(self, place: _Place) -> None:
        """Returns once the batch before is stored, or is handed over in this round."""
        before = place.before
        while before is not None and not (before.is_stored or before.round == self._round):
            changed = self._changed
            await changed.wait()

    def hand_over(self, place: _Place) -> None:
        place.round = self._round
        self._tell()

    def fail(self, place: _Place) -> bool:
        """A batch was refused; returns whether it was the first failure of the round."""
        if place.round != self._round:
            return False
        self._round += 1
        return True

    async def stored(self, place: _Place) -> None:
        """A batch is stored; returns once the one before it is known to be stored, too."""
        before = place.before
        while before is not None and not before.is_stored:
            changed = self._changed
            await changed.wait()
        place.is_stored, place.before = True, None
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class TailLanes:
    """All lanes of a tailer; a lane runs while its name has something to ship."""

    def __init__(
        self,
        environment: Environment,
        settings: TailSettings,
        *,
        roster: Roster,
        reader: FileReader,
        delivering: BatchDeliverer,
        checkpoints: FileCheckpoints,
        counters: TailCounters,
    ) -> None:
        self._random = environment.random
        self._backoff = Backoff(first_ms=settings.retry_ms, longest_ms=_RETRY_MS_MAX)
        self._roster = roster
        self._reader = reader
        self._delivering = delivering
        self._checkpoints = checkpoints
        self._counters = counters
        self._room = asyncio.Semaphore(settings.batches_max)
        self._ahead_left = settings.batches_max // 2
        """Names whose batches are refused leave the other half of the room to the others."""
        self._running: dict[str, None] = {}
        self._served = 0
        self.is_stopping = False

    @property
    def running(self) -> int:
        return len(self._running)

    def is_running(self, name: str) -> bool:
        return name in self._running

    def wake(self, name: str, group: asyncio.TaskGroup) -> None:
        """Starts a lane in the group, unless it runs already."""
        if name not in self._running and not self.is_stopping:
            self._running[name] = None
            group.create_task(self._run(name), name=f"lane of {name}")

    async def _run(self, name: str) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._ship(name, group)
        finally:
            del self._running[name]

    async def _ship(self, name: str, group: asyncio.TaskGroup) -> None:
        under_way: deque[asyncio.Task[None]] = deque()
        lane, last = _Lane(), None
        while True:
            while under_way and under_way[0].done():
                under_way.popleft()
            intended = None
            if len(under_way) <= _AHEAD_MAX:
                intended = await self._next(name, is_ahead=bool(under_way))
            if intended is not None:
                is_ahead = bool(under_way)
                last = _Place(last if is_ahead else None)
                delivery = self._deliver(intended, lane, last, is_ahead=is_ahead)
                under_way.append(group.create_task(delivery, name=f"delivery of {name}"))
            elif under_way:
                await under_way.popleft()
            else:
                return

    async def _next(self, name: str, *, is_ahead: bool) -> IntendedBatch | None:
        """Reads the next batch of the name, which takes room until it is delivered."""
        if self.is_stopping or (is_ahead and (self._room.locked() or not self._ahead_left)):
            return None
        # Before it is read: other lanes ask for room meanwhile.
        self._ahead_left -= is_ahead
        intended = None
        try:
            await self._room.acquire()
            intended = await self._read_next(name)
        finally:
            if intended is None:
                self._ahead_left += is_ahead
        return intended

    async def _read_next(self, name: str) -> IntendedBatch | None:
        intended = None
        try:
            for file in self._roster.turn(name):
                if not self.is_stopping and (intended := await self._reader.next_batch(file)):
                    self._served += 1
                    file.served = self._served
                    break
        finally:
            if intended is None:
                self._room.release()
        return intended

    async def _deliver(
        self, intended: IntendedBatch, lane: _Lane, place: _Place, *, is_ahead: bool
    ) -> None:
        """Makes a batch, and stores it behind the one before it."""
        try:
            ready = await self._reader.make(intended)
            await lane.turn(place)
            await self._stored(ready, lane, place)
            await lane.stored(place)
        finally:
            self._ahead_left += is_ahead
            self._room.release()
        self._settle(ready)

    def _settle(self, ready: ReadyBatch) -> None:
        file, intent, batch = ready.file, ready.intent, ready.made.batch
        file.settled(intent)
        size = intent.end - intent.begin
        for counters in (self._counters, file.counters):
            counters.lines += batch.count
            counters.bytes += size
            counters.batches += 1
        self._counters.cut_lines += ready.made.cut_lines
        if not file.intents and file.number in self._roster.files:
            # Otherwise the next intent carries it. If it cannot be written, the batch is sent again
            # after a restart, and recognized by its name.
            with suppress(DiskFull, Overloaded):
                self._checkpoints.note(file.number, file.checkpoint())

    async def _stored(self, ready: ReadyBatch, lane: _Lane, place: _Place) -> None:
        """Delivers again and again: meanwhile the file keeps the lines."""
        file, told, pauses = ready.file, "", self._backoff.delays_s(self._random)
        while True:
            try:
                lane.hand_over(place)
                await self._delivering.deliver(ready.made.batch)
            except SequenceForgotten as error:
                self._counters.unknown_batches += 1
                self._counters.unknown_bytes += ready.intent.end - ready.intent.begin
                _log.error("a batch may be stored or not", file=file.path, reason=error.message)
            except RaftwoodError as error:
                if lane.fail(place):
                    # Failures of those behind it need no log line.
                    self._counters.retries += 1
                    if error.message != told:
                        told = file.refusal = error.message
                        _log.warning("a batch is not delivered", file=file.path, reason=told)
                    await asyncio.sleep(next(pauses))
                await lane.turn(place)
                continue
            file.refusal = ""
            return
