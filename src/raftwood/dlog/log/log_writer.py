"""`LogWriter`: the one writer of a log, from the moment that it has fenced the one before.

Appends of one turn of the event loop share entries; entries are pipelined, and acked in order. A
writer that another has taken over from answers `Fenced` to everything, for ever. Where a ledger
fails though no other took over, the writer recovers it, and goes on in the next one with what was
not stored: callers notice nothing but the time
(`test_a_ledger_that_fails_is_recovered_and_nobody_notices`).

Three things must be true before an append is acked here, beyond that an ack quorum has it: all
before it is acked; the ledger before it is closed, so that readers look behind it; and the record
was seen not long ago with this writer in it (`_settle`).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from raftwood.base.errors import (
    InvalidInput,
    LogSealed,
    NotFound,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    TooLarge,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.base.logs import get_logger
from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.errors import CannotRecover, Fenced
from raftwood.dlog.ledgers.seams import LedgerWriter
from raftwood.dlog.log import writer_rules as on
from raftwood.dlog.log.entries import (
    HEAD_BYTES,
    PRODUCER_BYTES_MAX,
    DlogMessage,
    message_parts,
    payload_parts,
)
from raftwood.dlog.log.entry_builder import EntryBuilder, PendingMessage, WrittenLedger
from raftwood.dlog.log.meta import LEDGERS_MAX, LedgerInfo, LogMeta
from raftwood.dlog.log.producers import DlogProducers
from raftwood.dlog.log.writer_driver import LogContext, TakeOverTimes, WriterDriver

SEQUENCE_MAX = (1 << 63) - 1
_log = get_logger(__name__)


class LogWriter:
    """The writer of a log. Made by `Dlogs.open_writer`; close it when done."""

    def __init__(self, name: str, around: LogContext) -> None:
        self.name = name
        self._around = around
        self._settings = around.settings
        self._loop = asyncio.get_running_loop()
        self._driver = WriterDriver(name, around, self)
        self._producers = DlogProducers()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._end: asyncio.Future[None] | None = None
        self._error: RaftwoodError | None = None
        self.problem = ""
        """Why the last ledger failed, though no other writer took over."""
        self._is_ending = False
        self._queue: deque[PendingMessage] = deque()
        self._pending: dict[tuple[bytes, int], PendingMessage] = {}
        self._messages = 0
        self._bytes = 0
        self._ledger: WrittenLedger | None = None
        self._next: LedgerWriter | None = None
        """The next ledger, used once all entries of the one before are acked."""
        self._is_flushing = False
        self._age_timer: asyncio.TimerHandle | None = None
        self._validity_timer: asyncio.TimerHandle | None = None
        self._held: list[tuple[int, int, list[PendingMessage]]] = []
        """Entries that the bookies acked, and this writer not yet."""
        self._closing: int | None = None
        """The ledger before the one that is written, until it is closed.

        Readers do not look behind an open ledger, for there may be more in it. An ack of the next
        ledger that comes before the close is an ack of a message that no reader can see; DLOG's
        text promises that what was written is readable
        (`test_what_is_acked_behind_a_rotation_is_read_though_closing_the_ledger_takes_long`)."""
        self._rotated: list[asyncio.Future[None]] = []
        self._last_ms = 0
        self._times: dict[int, tuple[int, int]] = {}
        self._acked_end: Position | None = None
        self.appended_bytes = 0
        """Bytes of all messages that were ever acked, without their heads."""

    # Opening and ending.

    async def open(self) -> None:
        """Takes the log over; called once."""
        self._driver.tell(on.WriterStarted())
        try:
            async with asyncio.timeout(self._settings.open_timeout_ms / 1000):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.abandon()
            raise CannotRecover(
                f"log {self.name!r} was not taken over within {self._settings.open_timeout_ms} ms "
                f"({self._driver.rules.phase.name.lower()}): try again when more bookies answer"
            ) from None
        except BaseException:
            await self.abandon()
            raise

    @property
    def is_fenced(self) -> bool:
        """Another writer has taken over, or the log is gone: nothing will ever be acked again."""
        return isinstance(self._error, Fenced | NotFound)

    @property
    def has_given_up(self) -> bool:
        """Fenced, closed or broken: nothing will ever be acked here again."""
        return self._error is not None

    @property
    def is_terminated(self) -> bool:
        meta = self._driver.rules.meta
        return meta is not None and meta.is_terminated

    @property
    def meta(self) -> LogMeta:
        """The record as this writer last saw it."""
        assert self._driver.rules.meta is not None
        return self._driver.rules.meta

    @property
    def take_over(self) -> TakeOverTimes:
        """How long each phase of the take-over took; appends stand still meanwhile."""
        return self._driver.take_over

    @property
    def next_position(self) -> Position:
        """The position behind all messages acked here, and below all later ones."""
        if self._acked_end is not None:
            return self._acked_end
        return self.meta.ledgers[-1].end if self.meta.ledgers else self.meta.first

    async def rotate(self) -> None:
        """Goes on in a new ledger; returns once the record names it."""
        self._check_open()
        if len(self.meta.ledgers) >= LEDGERS_MAX:
            raise TooLarge(f"log {self.name!r} has {LEDGERS_MAX} ledgers: shrink it first")
        done = self._loop.create_future()
        self._rotated.append(done)
        self._driver.tell(on.RotationAsked())
        try:
            async with asyncio.timeout(self._settings.open_timeout_ms / 1000):
                await done
        except TimeoutError:
            raise Unavailable(
                f"log {self.name!r} has no new ledger after {self._settings.open_timeout_ms} ms: "
                "it is rotated as soon as enough bookies answer"
            ) from None

    async def terminate(self) -> Position:
        """Ends the log for ever, behind all that was appended; returns its end."""
        if not self.is_terminated:
            try:
                async with asyncio.timeout(self._settings.open_timeout_ms / 1000):
                    await self._finish(terminates=True)
            except TimeoutError:
                await self.abandon()
                raise Unavailable(
                    f"log {self.name!r} is not known to have ended after "
                    f"{self._settings.open_timeout_ms} ms: end it again when more bookies answer"
                ) from None
        return self.next_position

    async def close(self) -> None:
        """Waits for what is under way and closes the ledger; the log can be opened again.

        If bookies do not answer in time, the next writer's take-over recovers the ledger.
        """
        try:
            async with asyncio.timeout(self._settings.open_timeout_ms / 1000):
                if self._error is None and not self.is_terminated:
                    await self._finish(terminates=False)
                await self._driver.cleaned_up()
        except (RaftwoodError, TimeoutError) as error:
            _log.info("log not closed", log=self.name, reason=str(error) or "no answer in time")
        finally:
            await self.abandon()

    async def _finish(self, *, terminates: bool) -> None:
        self._check_open()
        self._is_ending = True
        self._end = self._loop.create_future()
        while (waiting := self._last_waiting()) is not None:
            await asyncio.wait([waiting.joined()])
            if self._error is not None:
                raise self._error
        self._driver.tell(on.EndAsked(terminates))
        await self._end

    def _last_waiting(self) -> PendingMessage | None:
        if self._queue:
            return self._queue[-1]
        groups = [group for _, _, group in self._held]
        if self._ledger is not None:
            groups += [group for _, group in self._ledger.under_way]
        return next((group[-1] for group in reversed(groups) if group), None)

    async def abandon(self) -> None:
        """Stops at once, like a crash: appends under way fail, and may or may not be stored."""
        self._fail(ShuttingDown(f"the writer of log {self.name!r} was closed"))
        await self._driver.close()

    # Appending.

    async def append(
        self, batch: Buffer | DlogMessage, *, producer: str = "", sequence: int = 0
    ) -> Position:
        """Appends a batch durably; repeating the same (producer, sequence) returns the first
        position.

        Raises `Fenced`, `LogSealed`, `SequenceForgotten`; `Overloaded` if too much is under way. An
        append without a producer is not deduplicated. It waits while too few bookies answer: set a
        deadline.
        """
        return await self.submit(batch, producer=producer, sequence=sequence)

    async def append_all(
        self, batches: Sequence[Buffer | DlogMessage], *, producer: str = "", sequence: int = 0
    ) -> list[Position]:
        """Appends several batches, with consecutive sequences from the given one."""
        futures = [
            self.submit(batch, producer=producer, sequence=sequence + number)
            for number, batch in enumerate(batches)
        ]
        return list(await asyncio.gather(*futures))

    def submit(
        self, batch: Buffer | DlogMessage, *, producer: str = "", sequence: int = 0
    ) -> "asyncio.Future[Position]":
        """Like `append`, but returns a future; raises at once what is wrong now."""
        parts = message_parts(batch) if isinstance(batch, DlogMessage) else payload_parts((batch,))
        return self.submit_parts(parts, producer=producer.encode(), sequence=sequence)

    def submit_parts(
        self, parts: list[Buffer], *, producer: bytes, sequence: int
    ) -> "asyncio.Future[Position]":
        """Like `submit`, for a message's bytes in parts, which must not change any more."""
        if producer:
            known = self._known(producer, sequence)
            if known is not None:
                return known
        self._check_open()
        size = sum(map(len, parts))
        self._check_room(size)
        pending = PendingMessage(parts, size, producer, sequence, self._loop.create_future())
        self._messages += 1
        self._bytes += size
        self._queue.append(pending)
        if producer:
            self._pending[producer, sequence] = pending
        self._flush_soon()
        return pending.future

    def _known(self, name: bytes, sequence: int) -> "asyncio.Future[Position] | None":
        if self._error is not None:
            raise self._error
        if len(name) > PRODUCER_BYTES_MAX or not 0 <= sequence <= SEQUENCE_MAX:
            raise InvalidInput(
                f"producer {name[:40]!r}, sequence {sequence}: give a name of at most "
                f"{PRODUCER_BYTES_MAX} bytes and a number from 0 on"
            )
        pending = self._pending.get((name, sequence))
        if pending is not None:
            return pending.joined()
        position = self._producers.find(name, sequence)
        if position is None:
            return None
        future: asyncio.Future[Position] = self._loop.create_future()
        future.set_result(position)
        return future

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self.is_terminated:
            raise LogSealed(f"log {self.name!r} has ended: nothing was stored, nor will be")
        if self._is_ending:
            raise ShuttingDown(f"the writer of log {self.name!r} is closing")

    def _check_room(self, size: int) -> None:
        settings = self._settings
        if size > settings.message_bytes_max:
            raise TooLarge(
                f"a message of {size} bytes: log {self.name!r} takes {settings.message_bytes_max}"
            )
        if (
            self._messages >= settings.messages_in_flight_max
            or self._bytes + size > settings.bytes_in_flight_max
        ):
            raise Overloaded(
                f"log {self.name!r}: {self._messages} messages of {self._bytes} bytes are under "
                "way: wait for acks, then append"
            )

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        ledger, queue = self._ledger, self._queue
        # Once the next ledger is in the meta, what was not sent yet goes there: a full ledger would
        # grow without a bound while appends keep coming.
        if ledger is None or ledger.has_failed or self._next or self._error is not None:
            return
        limit = self._settings.entries_in_flight_max
        while queue and len(ledger.under_way) < limit:
            now_ms = self._last_ms = max(self._last_ms, self._around.now_ms())
            try:
                for data, group in ledger.builder.build(queue, now_ms=now_ms):
                    ledger.append(data, group)
            except RaftwoodError as error:
                # No ledger of this store would take the entry: its callers must not wait for ever
                # (`test_an_entry_that_the_ledger_refuses_leaves_its_number_to_nobody`).
                self._fail(error)
                return
            ledger.first_ms = ledger.first_ms or now_ms
            ledger.last_ms = now_ms
        config = self.meta.config
        if not ledger.asks_rotation and (
            ledger.builder.entry >= config.entries_max
            or ledger.writer.length_bytes >= config.bytes_max
        ):
            self._ask_rotation()

    def _ask_rotation(self) -> None:
        ledger = self._ledger
        if ledger is not None and not ledger.asks_rotation and ledger.builder.entry:
            ledger.asks_rotation = True
            self._driver.tell(on.RotationAsked())

    def acked(self, ledger: WrittenLedger, entry: int, group: list[PendingMessage]) -> None:
        if self._error is not None:
            return
        self._settle(ledger.writer.ledger, entry, group)
        if self._next is not None and not ledger.under_way:
            self._switch()
        if self._queue:
            self._flush_soon()

    def _is_valid(self) -> bool:
        now_ns = self._around.environment.clock.monotonic_ns()
        return now_ns - self._driver.verified_ns < self.meta.config.grace_ms * 500_000

    def _settle(self, ledger: int, entry: int, group: list[PendingMessage]) -> None:
        """Acks a stored entry, or holds the ack until the record was looked at.

        A process may sleep for an hour. Meanwhile another took the log over, fenced this ledger,
        and retention deleted it, with its fence. Bookies that know nothing of the ledger take an
        append as the first one, and ack. So an ack needs a look at the record within half of the
        time for which fenced ledgers are kept (planted bug "deletes what was just fenced").
        """
        if self._held or self._closing is not None or not self._is_valid():
            self._held.append((ledger, entry, group))
            self._release()
        else:
            self._say_acked(ledger, entry, group)

    def _release(self) -> None:
        """Acks the held entries, unless they still must be held."""
        if self._closing is not None:
            return
        if not self._is_valid():
            self._driver.tell(on.ValidityEnded())
            return
        held, self._held = self._held, []
        for ledger, entry, group in held:
            self._say_acked(ledger, entry, group)

    def _say_acked(self, ledger: int, entry: int, group: list[PendingMessage]) -> None:
        self._acked_end = max(
            self._acked_end or Position(0), position_of_entry(ledger=ledger, entry=entry + 1)
        )
        base = position_of_entry(ledger=ledger, entry=entry)
        for number, pending in enumerate(group):
            self._messages -= 1
            self._bytes -= pending.size
            self.appended_bytes += pending.size - HEAD_BYTES
            if pending.producer:
                self._pending.pop((pending.producer, pending.sequence), None)
            pending.resolve(Position(base + number))

    # Called by the driver.

    def known_is(self, producers: DlogProducers, *, last_ms: int, appended_bytes: int) -> None:
        self._producers = producers
        self.appended_bytes = appended_bytes
        self._last_ms = max(self._last_ms, last_ms)

    def write_to(self, ledger: LedgerWriter) -> None:
        if self._error is not None:
            return
        self._next = ledger
        for done in self._rotated:
            if not done.done():
                done.set_result(None)
        self._rotated.clear()
        if self._ledger is None or not self._ledger.under_way:
            self._switch()

    def _switch(self) -> None:
        assert self._next is not None
        old = self._ledger
        if old is not None and not old.has_failed:
            self._times[old.writer.ledger] = old.first_ms, old.last_ms
            if not old.is_closed:
                self._closing = old.writer.ledger
        writer, self._next = self._next, None
        builder = EntryBuilder(
            writer.ledger,
            self._producers,
            appended_bytes=self.appended_bytes + self._held_bytes(),
            entry_bytes=self._settings.entry_bytes,
            compression=self.meta.config.compression,
        )
        self._ledger = WrittenLedger(self, writer, builder)
        self._acked_end = position_of_entry(ledger=writer.ledger, entry=0)
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = self._loop.call_later(self.meta.config.age_max_ms / 1000, self._grown_old)
        if not self._ready.done():
            self._ready.set_result(None)
        self._flush_soon()

    def _held_bytes(self) -> int:
        groups = (group for _, _, group in self._held)
        return sum(pending.size - HEAD_BYTES for group in groups for pending in group)

    def _grown_old(self) -> None:
        ledger = self._ledger
        self._ask_rotation()
        if ledger is not None and not ledger.asks_rotation:
            self._age_timer = self._loop.call_later(
                self.meta.config.age_max_ms / 1000, self._grown_old
            )

    def ledger_failed(self, ledger: int, error: BaseException | None) -> None:
        if self._error is None:
            is_fenced = isinstance(error, Fenced | NotFound)
            self.problem = str(error or "")
            self._driver.tell(on.LedgerFenced(ledger) if is_fenced else on.LedgerFailed(ledger))

    def settled(self, info: LedgerInfo) -> None:
        """Takes over a failed ledger's content: acks stored messages, sends the others again.

        The recovery's end decides, not the answers of bookies: an append that failed may be stored
        all the same, and would be in the log twice if it were sent to the next ledger
        (`test_what_failed_in_one_ledger_and_the_next_is_not_taken_for_stored`).
        """
        self._closed(info.ledger)
        ledger = self._ledger
        if ledger is None or ledger.writer.ledger != info.ledger:
            return
        ledger.has_failed = True
        again: list[PendingMessage] = []
        for entry, group in ledger.under_way:
            if entry <= info.last_entry:
                self._settle(info.ledger, entry, group)
            else:
                again += group
        ledger.under_way.clear()
        for pending in again:
            # The next entry carries a snapshot of the producers' positions. The place that this
            # message had in the failed ledger does not exist: a repeated append would be answered
            # with a position at which nothing stands.
            self._producers.remove(pending.producer, pending.sequence)
        self._queue.extendleft(reversed(again))
        if self._next is not None:
            self._switch()

    def closed(self, ledger: int) -> tuple[int, int]:
        self._closed(ledger)
        if self._ledger is not None and self._ledger.writer.ledger == ledger:
            self._ledger.is_closed = True
            return self._ledger.first_ms, self._ledger.last_ms
        return self._times.pop(ledger, (0, 0))

    def _closed(self, ledger: int) -> None:
        if self._closing == ledger:
            self._closing = None
            self._release()

    def verified(self) -> None:
        if self._error is not None:
            return
        if self._validity_timer is not None:
            self._validity_timer.cancel()
        self._validity_timer = self._loop.call_later(
            self.meta.config.grace_ms / 4000, self._driver.tell, on.ValidityEnded()
        )
        self._release()

    def gave_up(self, error: RaftwoodError) -> None:
        self._fail(error)

    def ended(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _fail(self, error: RaftwoodError) -> None:
        """Fails all that waits; acks nothing any more."""
        if self._error is not None:
            return
        self._error = error
        for timer in (self._age_timer, self._validity_timer):
            if timer is not None:
                timer.cancel()
        waiting: list[asyncio.Future[Any]] = [*self._rotated, self._ready]
        if self._end is not None:
            waiting.append(self._end)
        for future in waiting:
            fail(future, error)
        groups = [group for _, group in self._ledger.under_way] if self._ledger else []
        groups += [group for _, _, group in self._held]
        self._held.clear()
        for pending in [*(each for group in groups for each in group), *self._queue]:
            pending.fail(error)
        self._queue.clear()
        self._pending.clear()
