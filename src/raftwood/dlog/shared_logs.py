"""`SharedLogs` and `SharedLog`: DLOG as the seams `Logs` and `Log`, in one of many processes.

`RetentionTask` regularly frees what logs no longer retain, and ledgers that belong to no log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from weakref import WeakSet

from raftwood.base.backoff import Backoff
from raftwood.base.caches import LruCache
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    AlreadyExists,
    ConnectionLost,
    DeadlineExceeded,
    InvalidInput,
    InvalidName,
    NotFound,
    OutOfRange,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.position import Position, position_to_bytes
from raftwood.base.seams import Bounds, Log, MetaStore, StoredBatch
from raftwood.dlog.errors import Fenced, NotOwner
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_reader import LogReader
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogMeta
from raftwood.dlog.owned_logs import OwnedLog, OwnedLogs
from raftwood.dlog.owner_records import remove_owner
from raftwood.dlog.ownership import LogOwner, OwnerWanted
from raftwood.dlog.peer_service import PeerService, append_here, note_failure, seal_here, tail_here
from raftwood.dlog.peers import WAIT_MS_MAX, AppendRequest, PeerNetwork, Tail, TailRequest
from raftwood.dlog.settings import SharedDlogSettings
from raftwood.net import Service

_PAUSE_S: Final = 0.05
_PAUSE: Final = Backoff(first_ms=100, longest_ms=600)
_TRIED_AGAIN: Final = (Unavailable, ConnectionLost, DeadlineExceeded, Fenced)
_Result = TypeVar("_Result")


class SharedLog:
    """A log as the seam `Log`. `SharedLogs` makes it and closes it."""

    def __init__(
        self,
        name: str,
        token: bytes,
        dlogs: Dlogs,
        seats: OwnedLogs,
        reader: LogReader,
        timeout_ms: int,
    ) -> None:
        self.name = name
        self._token = token
        self._dlogs = dlogs
        self._seats = seats
        self._reader = reader
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._end = Position(0)
        """All below is acked, as far as this process knows."""
        self.is_removed = False

    # Appending

    async def append(self, batch: Sequence[Buffer], *, producer: bytes, sequence: int) -> Position:
        """Appends a batch durably; after a timeout the caller may repeat the same call."""
        if not producer or sequence < 0:
            raise InvalidInput(
                f"sequence {sequence} of producer {producer!r}: give a name, and 0 or more"
            )
        appended = AppendRequest(producer, sequence, batch)

        async def here(seat: OwnedLog, writer: LogWriter) -> Position:
            try:
                return await append_here(seat, appended)
            except RaftwoodError:
                note_failure(seat, writer)
                raise

        async def there(owner: LogOwner, timeout_ms: int) -> Position:
            return await self._seats.peers.append(owner, self.name, appended, timeout_ms)

        return await self._at_owner(here, there)

    async def seal(self) -> Position:
        """Ends the log for ever; returns its end."""
        meta = await self._meta()
        if meta.is_terminated:
            return _end_of(meta)

        async def there(owner: LogOwner, timeout_ms: int) -> Position:
            return await self._seats.peers.seal(owner, self.name, timeout_ms)

        return await self._at_owner(lambda seat, _: seal_here(seat), there)

    async def _at_owner(
        self,
        here: Callable[[OwnedLog, LogWriter], Awaitable[_Result]],
        there: Callable[[LogOwner, int], Awaitable[_Result]],
        *,
        waits_s: float = 0.0,
    ) -> _Result:
        """Asks the log's owner until it answers; each attempt may find another owner. `waits_s` is
        the extra time that the owner itself may wait.
        """
        deadline = self._loop.time() + self._timeout_s + waits_s
        failures = 0
        while True:
            self._check_there()
            seat = self._seats.seat(self.name)
            try:
                found = await self._try(seat, here, there, deadline)
            except NotFound:
                self.is_removed = True
                raise
            except _TRIED_AGAIN as error:
                failures += 1
                await self._pause(seat, error, failures, deadline)
            else:
                if found is not None:
                    return found
                if self._loop.time() >= deadline:
                    raise self._nobody(seat)

    async def _try(
        self,
        seat: OwnedLog,
        here: Callable[[OwnedLog, LogWriter], Awaitable[_Result]],
        there: Callable[[LogOwner, int], Awaitable[_Result]],
        deadline: float,
    ) -> _Result | None:
        """Makes one attempt; None if no owner was found: the state changed, or time is over."""
        writer, owner = seat.writer, seat.elsewhere
        left_ms = max(1, int((deadline - self._loop.time()) * 1000))
        if writer is not None and self._seats.is_in_office:
            return await here(seat, writer)
        if owner is not None:
            await self._seats.peers.connected(owner, left_ms)
            return await there(owner, left_ms)
        seat.tell(OwnerWanted())
        if seat.elsewhere is None and seat.writer is None:
            await seat.changed(deadline)
        elif seat.elsewhere is None:
            # The lease has run out by the clock: `LeaseEnded` follows soon, unless it is renewed.
            await seat.changed(min(deadline, self._loop.time() + _PAUSE_S))
        if isinstance(seat.error, NotFound):
            raise seat.error
        return None

    async def _pause(
        self, seat: OwnedLog, error: RaftwoodError, failures: int, deadline: float
    ) -> None:
        """Waits before the next attempt; ends early if the log's owner changes."""
        now = self._loop.time()
        if now >= deadline:
            raise error
        if isinstance(error, NotOwner):
            seat.look()
        pause_s = _PAUSE.delay_s(failures - 1, self._seats.environment.random)
        await seat.changed(min(deadline, now + pause_s))

    def _nobody(self, seat: OwnedLog) -> RaftwoodError:
        reason = f": {seat.error.message}" if seat.error is not None else ""
        return Unavailable(
            f"log {self.name!r} has no owner that answers{reason}; try again in a moment"
        )

    # The end of the log

    async def bounds(self) -> Bounds:
        tail = await self._tail(Position(0), wait_ms=0)
        meta = (await self._dlogs.metas.get(self.name)).meta
        first, end = meta.first, tail.position
        return Bounds(min(first, end), end, tail.is_sealed, tail.appended_bytes)

    async def _tail(self, after: Position, *, wait_ms: int) -> Tail:
        """Returns the log's end; waits up to `wait_ms` until it is above `after`."""
        until = self._loop.time() + wait_ms / 1000

        def left_ms() -> int:
            return min(WAIT_MS_MAX, max(0, int((until - self._loop.time()) * 1000)))

        async def here(seat: OwnedLog, _: LogWriter) -> Tail:
            return await tail_here(self._seats, seat, after=after, wait_ms=left_ms())

        async def there(owner: LogOwner, timeout_ms: int) -> Tail:
            request = TailRequest(self.name, position_to_bytes(after), left_ms())
            return await self._seats.peers.tail(owner, request, timeout_ms)

        while True:
            self._check_there()
            seat = self._seats.seat(self.name)
            if seat.writer is None and seat.elsewhere is None:
                found = await self._tail_of_nobody()
                if found is None:
                    found = await self._at_owner(here, there, waits_s=left_ms() / 1000)
                elif found.position <= after and not found.is_sealed and left_ms():
                    await seat.changed(until)
                    continue
            else:
                found = await self._at_owner(here, there, waits_s=left_ms() / 1000)
            self._end = max(self._end, found.position)
            return found

    async def _tail_of_nobody(self) -> Tail | None:
        """The end of a log without an owner, from its record; None if the last owner crashed."""
        meta = await self._meta()
        if meta.ledgers and not meta.ledgers[-1].is_closed:
            return None
        return Tail(
            position_to_bytes(_end_of(meta)),
            meta.is_terminated,
            await self._reader.appended_bytes(),
        )

    async def _meta(self) -> LogMeta:
        """Reads the log's record; a new log under the same name counts as removal of this one."""
        self._check_there()
        try:
            meta = (await self._dlogs.metas.read(self.name)).meta
        except NotFound:
            self.is_removed = True
            raise
        if meta.token != self._token:
            self.is_removed = True
        self._check_there()
        return meta

    def _check_there(self) -> None:
        if self.is_removed:
            raise NotFound(f"log {self.name!r} was removed")

    # Reading

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        """Returns batches from `start` on, at least one if there is any, and where to read next."""
        self._check_there()
        if start >= self._end:
            tail = await self._tail(start, wait_ms=wait_ms)
            if start > tail.position:
                raise OutOfRange(
                    f"log {self.name!r}: position {start} is behind its end, {tail.position}"
                )
            if start == tail.position:
                return [], start
        self._reader.confirm(self._end)
        entries, following = await self._reader.read_entries(
            start, bytes_max=bytes_max, wait_ms=int(self._timeout_s * 1000), end=self._end
        )
        found: list[StoredBatch] = []
        size = 0
        for each in entries:
            for index in range(each.skipped, len(each.entry)):
                data = each.entry.payload(index)
                size += len(data)
                position = Position(each.position + index)
                if found and size > bytes_max:
                    return found, position
                found.append(StoredBatch(position, data))
        return found, following

    async def truncate(self, before: Position) -> None:
        """Allows all below `before` to be freed: whole ledgers are deleted, the rest is hidden."""
        if before > self._end:
            end = (await self._tail(Position(0), wait_ms=0)).position
            if before > end:
                raise OutOfRange(f"log {self.name!r}: {before} is behind its end, {end}")
        await self._dlogs.shrink(self.name, before, end=self._end)

    async def close(self) -> None:
        await self._reader.close()


def _end_of(meta: LogMeta) -> Position:
    return max(meta.first, meta.ledgers[-1].end) if meta.ledgers else meta.first


_log = get_logger("dlog")


class RetentionTask:
    """Applies retention to all logs. Use `start`, and `close` when done."""

    def __init__(self, environment: Environment, dlogs: Dlogs, *, interval_ms: int) -> None:
        self._environment = environment
        self._dlogs = dlogs
        self._interval_s = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="upkeep of DLOG")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * (0.5 + self._environment.random.random()))
            try:
                await self.look()
            except RaftwoodError as error:
                _log.warning("logs are not looked after", reason=error.message)

    async def look(self) -> list[int]:
        """Goes through all logs once; returns the orphaned ledgers that it deleted."""
        for name in await self._dlogs.names():
            try:
                await self._dlogs.retain(name)
                if self._dlogs.can_offload:
                    await self._offload(name)
            except NotFound:
                continue  # it was removed meanwhile
        lost = await self._dlogs.remove_orphans()
        if lost:
            _log.info("lost ledgers deleted", count=len(lost))
        return lost

    async def _offload(self, name: str) -> None:
        try:
            done = await self._dlogs.offload(name)
        except NotFound:
            raise
        except RaftwoodError as error:
            # One log whose ledgers cannot be offloaded does not stop the freeing of others'.
            _log.warning("ledgers are not offloaded", log=name, reason=error.message)
            return
        if done:
            _log.info("ledgers offloaded", log=name, count=len(done))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


OPENED_MAX: Final = 4_096
"""Logs that are kept open, the most recently used."""


class SharedLogs:
    """DLOG as the seam `Logs`. Register it with the service at which others reach this process,
    then `start`; `close` when done. `name` is this process's name among all that share logs, and
    its identity on the network.
    """

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        dlogs: Dlogs,
        network: PeerNetwork,
        *,
        name: str,
        settings: SharedDlogSettings | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._dlogs = dlogs
        self._settings = settings or SharedDlogSettings()
        self.seats = OwnedLogs(
            environment, store, dlogs.open_writer, network, self._settings, name=name
        )
        self._upkeep = RetentionTask(environment, dlogs, interval_ms=self._settings.upkeep_ms)
        self._opened: LruCache[str, SharedLog] = LruCache(OPENED_MAX)
        self._used: WeakSet[SharedLog] = WeakSet()

    def register(self, service: Service) -> None:
        PeerService(self.seats).register(service)

    async def start(self, address: str) -> None:
        """Begins to own logs; the service is reachable at `address`."""
        await self.seats.start(address)
        self._upkeep.start()

    async def create(self, name: str) -> None:
        """Creates an empty log; does nothing if it exists."""
        try:
            await self._dlogs.create(name, self._settings.log_config())
        except AlreadyExists:
            return

    async def open(self, name: str) -> Log:
        """Opens a log; `NotFound` if there is none."""
        log = self._opened.get(name)
        if log is None or log.is_removed:
            meta = (await self._dlogs.metas.read(name)).meta
            reader = await self._dlogs.open_reader(name)
            log = self._opened.get(name)  # Another task may have been faster.
            if log is None or log.is_removed:
                log = SharedLog(
                    name,
                    meta.token,
                    self._dlogs,
                    self.seats,
                    reader,
                    timeout_ms=self._settings.timeout_ms,
                )
                self._used.add(log)
                self._opened.put(name, log)
        return log

    async def remove(self, name: str) -> None:
        """Removes a log and all its batches; does nothing if it is gone."""
        try:
            await self._dlogs.remove(name)
        except InvalidName:
            return  # there never was one
        await remove_owner(self._store, name)
        log = self._opened.pop(name)
        if log is not None:
            log.is_removed = True

    async def names(self, prefix: str) -> list[str]:
        """Returns the names of logs that begin with `prefix`, in order."""
        return await self._dlogs.names(prefix)

    async def close(self) -> None:
        """Gives back all owned logs, so that others need not wait for the lease to end."""
        await self._upkeep.close()
        await self.seats.close()
        for log in list(self._used):
            await log.close()
