"""`QuorumWriter`: the one writer of an open ledger."""

import asyncio

from raftwood.base.errors import Overloaded, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.errors import Fenced, LedgerClosed, NoSuchLedger
from raftwood.dlog.ledgers.adding import Adding, fail_apart
from raftwood.dlog.ledgers.context import ClientContext
from raftwood.dlog.ledgers.digests import EntryDigest
from raftwood.dlog.ledgers.model import BookieId, LedgerMetadata
from raftwood.dlog.ledgers.rules.changes import closed_by_writer, with_ensemble
from raftwood.dlog.ledgers.rules.publishing import PublishedWriting
from raftwood.dlog.ledgers.seams import VersionedMetadata


class QuorumWriter(Adding[PublishedWriting]):
    """A `LedgerWriter` over bookies."""

    def __init__(self, context: ClientContext, ledger: int, created: VersionedMetadata) -> None:
        config = created.metadata.config
        super().__init__(
            context,
            PublishedWriting,
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
        """As this writer has last written them."""
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

    # What acks wait for: that readers see the entries.

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
        """Each bookie at its own pace, one request at a time: what is confirmed meanwhile goes with
        the next one.
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
                # Not dead: it is told again, until that takes too long.
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
            # Nothing is told to readers any more, so that what they do not see yet is never acked.
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
