"""`SharedLog`: a DLOG as the `Log` seam, for one of many processes that use it.

A batch is a message, its position that of the message. Appends go to the log's owner, in this
process or another; where nobody owns it, this process becomes the owner. Where a log ends is the
owner's word as well: so whatever was acked to anybody is read by everybody. What is read comes from
the ledgers themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    OutOfRange,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.position import Position, position_to_bytes
from raftwood.base.seams import Bounds, StoredBatch
from raftwood.dlog.errors import Fenced, NotOwner
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_reader import LogReader
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogMeta
from raftwood.dlog.shared.owned_log import append_here, note_failure, seal_here, tail_here
from raftwood.dlog.shared.ownership import Owner, Wanted
from raftwood.dlog.shared.seat import Seat
from raftwood.dlog.shared.seats import Seats
from raftwood.dlog.shared.wire import WAIT_MS_MAX, Appended, Tail, TailRequest

_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_TRIED_AGAIN: Final = (Unavailable, ConnectionLost, DeadlineExceeded, Fenced)
_Result = TypeVar("_Result")


class SharedLog:
    """Made by `SharedLogs`, which closes it too."""

    def __init__(
        self,
        name: str,
        token: bytes,
        dlogs: Dlogs,
        seats: Seats,
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
        """All below was acked, as far as is known here."""
        self.is_removed = False

    # Appending

    async def append(self, batch: Buffer, *, producer: str, sequence: int) -> Position:
        """Durable when it returns; where its time is over, it may be tried again as it was."""
        if not producer or sequence < 0:
            raise InvalidInput(
                f"sequence {sequence} of producer {producer!r}: give a name, and 0 or more"
            )
        # Who appends may use the buffer again, even where it does not wait for the end.
        appended = Appended(producer, sequence, batch if type(batch) is bytes else bytes(batch))

        async def here(seat: Seat, writer: LogWriter) -> Position:
            try:
                return await append_here(seat, appended)
            except RaftwoodError:
                note_failure(seat, writer)
                raise

        async def there(owner: Owner, timeout_ms: int) -> Position:
            return await self._seats.peers.append(owner, self.name, appended, timeout_ms)

        return await self._at_owner(here, there)

    async def seal(self) -> Position:
        """End the log for ever; where it ended."""
        meta = await self._meta()
        if meta.is_terminated:
            return _end_of(meta)

        async def there(owner: Owner, timeout_ms: int) -> Position:
            return await self._seats.peers.seal(owner, self.name, timeout_ms)

        return await self._at_owner(lambda seat, _: seal_here(seat), there)

    async def _at_owner(
        self,
        here: Callable[[Seat, LogWriter], Awaitable[_Result]],
        there: Callable[[Owner, int], Awaitable[_Result]],
        *,
        waits_s: float = 0.0,
    ) -> _Result:
        """Whoever that is by then: each attempt may find another one. An answer may be meant to
        come so much later.
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
        seat: Seat,
        here: Callable[[Seat, LogWriter], Awaitable[_Result]],
        there: Callable[[Owner, int], Awaitable[_Result]],
        deadline: float,
    ) -> _Result | None:
        """None where nobody owned the log: something has changed since, or the time is over."""
        writer, owner = seat.writer, seat.elsewhere
        left_ms = max(1, int((deadline - self._loop.time()) * 1000))
        if writer is not None and self._seats.is_in_office:
            return await here(seat, writer)
        if owner is not None:
            await self._seats.peers.connected(owner, left_ms)
            return await there(owner, left_ms)
        seat.tell(Wanted())
        if seat.elsewhere is None and seat.writer is None:
            await seat.changed(deadline)
        elif seat.elsewhere is None:
            # Out of office: that is heard of in a moment, unless the lease is renewed after all.
            await seat.changed(min(deadline, self._loop.time() + _PAUSE_S))
        if isinstance(seat.error, NotFound):
            raise seat.error
        return None

    async def _pause(
        self, seat: Seat, error: RaftwoodError, failures: int, deadline: float
    ) -> None:
        """Before the next attempt; ends early where the log's owner changes."""
        now = self._loop.time()
        if now >= deadline:
            raise error
        if isinstance(error, NotOwner):
            seat.look()
        longest_s = min(_PAUSE_S_MAX, _PAUSE_S * 2 ** min(failures, 10))
        await seat.changed(min(deadline, now + longest_s))

    def _nobody(self, seat: Seat) -> RaftwoodError:
        reason = f": {seat.error.message}" if seat.error is not None else ""
        return Unavailable(
            f"log {self.name!r} has no owner that answers{reason}; try again in a moment"
        )

    # Where it ends

    async def bounds(self) -> Bounds:
        tail = await self._tail(Position(0), wait_ms=0)
        meta = (await self._dlogs.metas.get(self.name)).meta
        first, end = meta.first, tail.position
        return Bounds(min(first, end), end, tail.is_sealed, tail.appended_bytes)

    async def _tail(self, after: Position, *, wait_ms: int) -> Tail:
        """Where it ends, once that is behind a position; waits no longer than so."""
        until = self._loop.time() + wait_ms / 1000

        def left_ms() -> int:
            return min(WAIT_MS_MAX, max(0, int((until - self._loop.time()) * 1000)))

        async def here(seat: Seat, _: LogWriter) -> Tail:
            return await tail_here(self._seats, seat, after=after, wait_ms=left_ms())

        async def there(owner: Owner, timeout_ms: int) -> Tail:
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
        """Of a log that nobody owns: as its last owner left it; None where that one crashed."""
        meta = await self._meta()
        if meta.ledgers and not meta.ledgers[-1].is_closed:
            return None
        return Tail(
            position_to_bytes(_end_of(meta)),
            meta.is_terminated,
            await self._reader.appended_bytes(),
        )

    async def _meta(self) -> LogMeta:
        """As it is now; another log of this name is not this one."""
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
        """Batches from `start` on, one at least if there is any, and where to read next."""
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
        """Allow everything below `before` to be freed: whole ledgers are, the rest is not shown."""
        if before > self._end:
            end = (await self._tail(Position(0), wait_ms=0)).position
            if before > end:
                raise OutOfRange(f"log {self.name!r}: {before} is behind its end, {end}")
        await self._dlogs.shrink(self.name, before, end=self._end)

    async def close(self) -> None:
        await self._reader.close()


def _end_of(meta: LogMeta) -> Position:
    return max(meta.first, meta.ledgers[-1].end) if meta.ledgers else meta.first
