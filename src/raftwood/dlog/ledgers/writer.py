"""`QuorumWriter`: the one writer of an open ledger, and the adds that it shares with a recovery.

`rules` decides what may be acked; this module sends, and replaces bookies. One object receives all
answers, one timer watches all bookies, and an add allocates only the entry itself.
"""

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from raftwood.base.errors import Overloaded, PermissionDenied, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.dlog.errors import Fenced, LedgerClosed, NoSuchLedger, NotEnoughBookies
from raftwood.dlog.ledgers.context import ClientContext
from raftwood.dlog.ledgers.digests import EntryDigest, master_key
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    LedgerConfig,
    LedgerMetadata,
    closed_by_writer,
    with_ensemble,
)
from raftwood.dlog.ledgers.placement import choose_replacements
from raftwood.dlog.ledgers.rules import PendingAdd, PublishedWriteRules, WriteRules
from raftwood.dlog.ledgers.seams import VersionedMetadata

_WATCHES_IN_TIMEOUT = 4


RulesT = TypeVar("RulesT", bound=WriteRules)


class LedgerAdder(Generic[RulesT]):
    """The adds of one ledger, until they are acked or given up."""

    def __init__(
        self,
        context: ClientContext,
        rules: type[RulesT],
        *,
        ledger: int,
        config: LedgerConfig,
        ensemble: tuple[BookieId, ...],
        last_confirmed: int,
        is_recovery: bool,
    ) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._bookies = context.bookies
        self._ledger = ledger
        self._config = config
        self._is_recovery = is_recovery
        self._master_key = master_key(config.password)
        self._writing = rules(
            config,
            ensemble,
            last_confirmed=last_confirmed,
            add_timeout_ms=context.settings.add_timeout_ms,
            lag_bytes_max=context.settings.lag_bytes_max,
        )
        self._error: RaftwoodError | None = None
        self._bytes_under_way = 0
        self._watch_timer: asyncio.TimerHandle | None = None
        self._changing: asyncio.Task[None] | None = None
        self._may_return = False
        self._reconsider_at = 0.0
        self._stuck_at: tuple[int, int] | None = None
        self._stuck_since = 0.0
        self._refusal = ""
        """The message of the last bookie that failed."""
        self._overloaded: list[tuple[int, BookieId]] = []
        self._resend_timer: asyncio.TimerHandle | None = None

    def _add(
        self,
        packed: Sequence[Buffer],
        size: int,
        length_bytes: int,
        waiter: "asyncio.Future[int] | None",
        *,
        carried: int = -1,
    ) -> None:
        """Sends the next entry to its bookies."""
        writing = self._writing
        bookies = self._bookies
        entry = writing.next_entry
        request = bookies.prepare_add(
            ledger=self._ledger,
            entry=entry,
            packed=packed,
            master_key=self._master_key,
            is_recovery=self._is_recovery,
        )
        self._bytes_under_way += size
        pending = PendingAdd(entry, length_bytes, size, request, waiter, carried=carried)
        for bookie in writing.append(pending):
            bookies.add(bookie, request, self)
        if self._watch_timer is None:
            writing.rest_until(self._loop.time() * 1000)
            self._arm_watch()
        if writing.failed:
            self._change_if_wanted()

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:
        if error is None:
            if self._writing.stored(entry, bookie):
                self._ack()
        elif self._error is None:
            self._refused(entry, bookie, error)

    def _ack(self) -> None:
        next_acked = self._writing.next_acked
        while (pending := next_acked()) is not None:
            self._bytes_under_way -= pending.size
            waiter = pending.waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(pending.entry)
        self._confirmed()

    def _confirmed(self) -> None:
        """Called when the last confirmed entry may have changed."""
        raise NotImplementedError

    def _refused(self, entry: int, bookie: BookieId, error: RaftwoodError) -> None:
        if isinstance(error, Fenced | PermissionDenied):
            # One fenced bookie is enough to know that a recovery runs: DLOG's text lets the old
            # writer give up for ever. To replace that bookie and go on would only lose the race
            # later, with more entries under way.
            self._give_up(error)
        elif isinstance(error, Overloaded):
            # Back-pressure, and not death: the bookie gets the entry again, until it is slow for
            # too long. Replacing it would send the load to the next bookie, and overload that one
            # (`test_a_bookie_with_too_much_to_do_is_not_dead`).
            self._overloaded.append((entry, bookie))
            if self._resend_timer is None:
                pause_s = self._context.settings.overload_pause_ms / 1000
                self._resend_timer = self._loop.call_later(pause_s, self._resend)
        else:
            self._refusal = f" (bookie {bookie}: {error.message})"
            self._fail(bookie)

    def _resend(self) -> None:
        self._resend_timer = None
        overloaded, self._overloaded = self._overloaded, []
        for entry, bookie in overloaded:
            pending = self._writing.expects(entry, bookie)
            if pending is not None:
                self._bookies.add(bookie, pending.request, self)

    def _fail(self, bookie: BookieId) -> None:
        self._context.quarantine.add(bookie)
        self._writing.fail(bookie)
        self._change_if_wanted()

    # Bookies that hang.

    def _arm_watch(self) -> None:
        interval_s = self._context.settings.add_timeout_ms / _WATCHES_IN_TIMEOUT / 1000
        self._watch_timer = self._loop.call_later(interval_s, self._watch)

    def _watch(self) -> None:
        self._watch_timer = None
        if self._error is not None:
            return
        for bookie in self._writing.hanging(self._loop.time() * 1000):
            self._refusal = f" (bookie {bookie} answers nothing)"
            self._fail(bookie)
        if self._writing.failed and self._loop.time() >= self._reconsider_at:
            self._writing.reconsider()
            self._may_return = True
            self._change_if_wanted()
        if not self._writing.is_at_rest:
            self._arm_watch()

    # Changes of the ensemble.

    def _change_if_wanted(self) -> None:
        if self._writing.wants_change and self._error is None:
            # Before the task runs: nothing may be acked from here on.
            self._writing.begin_change()
            self._changing = self._loop.create_task(self._change())

    async def _change(self) -> None:
        settings = self._context.settings
        progress = self._progress()
        if self._stuck_at != progress:
            # The deadline counts from the last progress. A bookie that registers, takes its place
            # again and hangs again is none; if each return began a new deadline, an append would
            # wait for ever
            # (`test_bookies_that_hang_and_stay_registered_fail_appends_after_a_while`).
            self._stuck_at = progress
            self._stuck_since = self._loop.time()
        deadline = self._stuck_since + settings.change_timeout_ms / 1000
        try:
            while not self.has_ended():
                await self._replace_failed()
                if self.has_ended():
                    return
                if self._writing.is_enough:
                    self._writing.end_change()
                    self._reconsider_at = self._loop.time() + settings.change_retry_ms / 1000
                    self._ack()
                    if not self._writing.wants_change:
                        return
                elif self._loop.time() >= deadline:
                    raise NotEnoughBookies(
                        f"ledger {self._ledger}: fewer than {self._config.ack_quorum} bookies of a "
                        f"write quorum take entries, and there are no others: start more"
                        f"{self._refusal}"
                    )
                else:
                    await asyncio.sleep(settings.change_retry_ms / 1000)
                    self._may_return = True
        except RaftwoodError as error:
            self._give_up(error)

    def _progress(self) -> tuple[int, int]:
        """Numbers that grow with all that bookies do for the ledger."""
        return self._writing.last_confirmed, 0

    async def _replace_failed(self) -> None:
        writing = self._writing
        first, places = writing.begin_change()
        before = writing.ensemble
        may_return, self._may_return = self._may_return, False
        replaced = choose_replacements(
            await self._context.patiently(self._context.metadata.bookies),
            ensemble=before,
            places=places,
            may_return=may_return,
            chance=self._context.environment.random,
            is_avoided=self._context.quarantine.holds,
        )
        if not replaced or self._error is not None:
            return
        after = tuple(replaced.get(place, bookie) for place, bookie in enumerate(before))
        if after != before:
            await self._persist(before=before, first=first, after=after)
        if self._error is None:
            now_ms = self._loop.time() * 1000
            for pending, bookie in writing.changed(replaced, now_ms=now_ms):
                self._bookies.add(bookie, pending.request, self)

    async def _persist(
        self, *, before: tuple[BookieId, ...], first: int, after: tuple[BookieId, ...]
    ) -> None:
        """Writes down which bookies have the entries from `first` on.

        It returns before anything there is acked: after a crash, a recovery knows only the bookies
        that the metadata name (planted bug "a changed ensemble is told to nobody").
        """
        raise NotImplementedError

    # The end.

    def has_ended(self) -> bool:
        """Whether nothing more can be acked."""
        return self._error is not None

    def _give_up(self, error: RaftwoodError) -> None:
        """Stops all acks, for ever."""
        if self._error is not None:
            return
        self._error = error
        self._bytes_under_way = 0
        for pending in self._writing.give_up():
            if pending.waiter is not None:
                fail_apart(pending.waiter, error)
        self._stop_timers()
        self._confirmed()

    def _stop_timers(self) -> None:
        for timer in (self._watch_timer, self._resend_timer):
            if timer is not None:
                timer.cancel()
        self._overloaded.clear()

    async def _stop(self) -> None:
        """After giving up: nothing is left behind."""
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)


def fail_apart(waiter: "asyncio.Future[int]", error: RaftwoodError) -> None:
    """Fails a waiter with an error of its own: one object, raised in many tasks, would collect all
    their tracebacks."""
    fail(waiter, type(error)(*error.args).with_traceback(None))


class QuorumWriter(LedgerAdder[PublishedWriteRules]):
    """A `LedgerWriter` over bookies."""

    def __init__(self, context: ClientContext, ledger: int, created: VersionedMetadata) -> None:
        config = created.metadata.config
        super().__init__(
            context,
            PublishedWriteRules,
            ledger=ledger,
            config=config,
            ensemble=created.metadata.segments[-1].bookies,
            last_confirmed=-1,
            is_recovery=False,
        )
        self._known = created
        self._digest = EntryDigest(ledger, config.digest, config.password)
        self._length_bytes = 0
        self._entries_max = context.settings.entries_under_way_max
        self._bytes_max = context.settings.bytes_under_way_max
        self._is_closing = False
        self._at_rest: asyncio.Future[None] | None = None
        self._publish_handle: asyncio.Handle | None = None
        self._to_publish = -1
        self._published: dict[BookieId, int] = {}
        self._publishing: dict[BookieId, asyncio.Task[None]] = {}

    @property
    def ledger(self) -> int:
        return self._ledger

    @property
    def last_confirmed(self) -> int:
        return self._writing.last_confirmed

    @property
    def length_bytes(self) -> int:
        return self._length_bytes

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last wrote them."""
        return self._known.metadata

    def append(self, data: Buffer) -> "asyncio.Future[int]":
        waiter: asyncio.Future[int] = self._loop.create_future()
        writing = self._writing
        size = len(data)
        if self._error is not None or self._is_closing:
            fail_apart(waiter, self._error or self._closed_error())
            return waiter
        under_way = len(writing.pending) + len(writing.unseen)
        if under_way >= self._entries_max or (
            self._bytes_under_way + size > self._bytes_max and under_way
        ):
            fail_apart(
                waiter,
                Overloaded(
                    f"ledger {self._ledger}: {under_way} entries with "
                    f"{self._bytes_under_way} bytes are under way: wait for acks, then append"
                ),
            )
            return waiter
        length_bytes = self._length_bytes + size
        last_confirmed = writing.last_confirmed
        packed = self._digest.pack(
            entry=writing.next_entry,
            last_confirmed=last_confirmed,
            length_bytes=length_bytes,
            data=data,
        )
        self._add(packed, size, length_bytes, waiter, carried=last_confirmed)
        self._length_bytes = length_bytes
        return waiter

    def _confirmed(self) -> None:
        if self._publish_handle is None and self._writing.is_to_publish:
            # The appends that this turn of the loop still brings carry it for nothing.
            self._publish_handle = self._loop.call_soon(self._publish)
        if self._at_rest is not None and not self._writing.pending and not self._at_rest.done():
            self._at_rest.set_result(None)

    async def _persist(
        self, *, before: tuple[BookieId, ...], first: int, after: tuple[BookieId, ...]
    ) -> None:
        self._known = await self._context.update(
            self._ledger,
            self._known,
            lambda metadata: with_ensemble(metadata, before=before, first=first, after=after),
        )

    def _progress(self) -> tuple[int, int]:
        return self._writing.last_confirmed, self._writing.seen

    # Publishing the last confirmed entry: acks wait until readers can see it (see `rules`).

    def _publish(self) -> None:
        self._publish_handle = None
        writing = self._writing
        if self._is_closing or self._error is not None or not writing.is_to_publish:
            return
        self._to_publish = writing.last_confirmed
        for place, bookie in enumerate(writing.ensemble):
            if bookie not in self._publishing and not writing.failed >> place & 1:
                self._publishing[bookie] = self._loop.create_task(self._publish_to(bookie))

    async def _publish_to(self, bookie: BookieId) -> None:
        """Publishes to each bookie at its own pace, one request at a time: entries confirmed
        meanwhile go with the next one.
        """
        try:
            while (last := self._to_publish) > self._published.get(bookie, -1):
                async with asyncio.timeout(self._context.settings.add_timeout_ms / 1000):
                    await self._tell(bookie, last)
                self._published[bookie] = last
                if self._writing.heard(bookie, last):
                    self._ack()
        except (RaftwoodError, TimeoutError) as error:
            reason = error.message if isinstance(error, RaftwoodError) else "answers nothing"
            self._refusal = f" (bookie {bookie}: {reason})"
            if self._error is None and not self._is_closing:
                self._fail(bookie)
        finally:
            del self._publishing[bookie]

    async def _tell(self, bookie: BookieId, last: int) -> None:
        while True:
            try:
                await self._bookies.write_last_confirmed(
                    bookie,
                    ledger=self._ledger,
                    last_confirmed=last,
                    master_key=self._master_key,
                    digest=self._digest.of_last_confirmed(last),
                )
            except Overloaded:
                # Back-pressure, as for adds: the bookie is asked again, until that takes too long.
                await asyncio.sleep(self._context.settings.overload_pause_ms / 1000)
            else:
                return

    # The end.

    def _closed_error(self) -> LedgerClosed:
        return LedgerClosed(f"ledger {self._ledger} is closed")

    async def close(self) -> None:
        if isinstance(self._error, LedgerClosed):
            return
        self._is_closing = True
        if self._writing.pending:
            if self._at_rest is None:
                self._at_rest = self._loop.create_future()
            await asyncio.shield(self._at_rest)  # Others may wait for it as well.
        if isinstance(self._error, Fenced | NoSuchLedger):
            await self._stop()
            raise self._error
        last_entry, length_bytes = self._writing.last_confirmed, self._writing.confirmed_bytes
        await self._stop()
        try:
            self._known = await self._context.update(
                self._ledger,
                self._known,
                lambda metadata: closed_by_writer(
                    metadata, last_entry=last_entry, length_bytes=length_bytes
                ),
            )
        except RaftwoodError as error:
            # Nothing is published any more, so that readers may never see the entries that wait for
            # it: they must not be acked, and their callers must not wait
            # (`test_a_close_that_fails_leaves_no_append_waiting_and_may_be_done_again`).
            self._give_up(error)
            raise
        for pending in self._writing.closed():
            if pending.waiter is not None and not pending.waiter.done():
                pending.waiter.set_result(pending.entry)
        self._give_up(self._closed_error())
        self._error = self._closed_error()

    async def abandon(self) -> None:
        self._give_up(LedgerClosed(f"the writer of ledger {self._ledger} was abandoned"))
        await self._stop()

    def _stop_timers(self) -> None:
        super()._stop_timers()
        if self._publish_handle is not None:
            self._publish_handle.cancel()

    async def _stop(self) -> None:
        await super()._stop()
        publishing = list(self._publishing.values())
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
