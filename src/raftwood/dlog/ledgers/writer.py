"""`QuorumWriter`: the one writer of an open ledger."""

import asyncio
from typing import Final

from raftwood.base.errors import Overloaded, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.errors import BookieUnavailable, Fenced, LedgerClosed, NoSuchLedger
from raftwood.dlog.ledgers.adding import Adding, fail_quietly
from raftwood.dlog.ledgers.context import ClientContext
from raftwood.dlog.ledgers.digests import EntryDigest
from raftwood.dlog.ledgers.model import BookieId, LedgerMetadata
from raftwood.dlog.ledgers.rules.changes import closed_by_writer, with_ensemble
from raftwood.dlog.ledgers.seams import VersionedMetadata

_PUBLISH_RETRIES: Final = 5
"""Then the next append, the next publication or the close tells readers."""


class QuorumWriter(Adding):
    """A `LedgerWriter` over bookies."""

    def __init__(self, context: ClientContext, ledger: int, created: VersionedMetadata) -> None:
        config = created.metadata.config
        super().__init__(
            context,
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
        self._carried = -1
        """What the last append told bookies to be confirmed."""
        self._carried_at_ack = -1
        self._publish_timer: asyncio.TimerHandle | None = None
        self._to_publish = -1
        self._published: dict[BookieId, int] = {}
        self._publishing: dict[BookieId, asyncio.Task[None]] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retries_left = 0

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
            fail_quietly(waiter, self._error or self._closed_error())
            return waiter
        if len(writing.pending) >= self._entries_max or (
            self._bytes_under_way + size > self._bytes_max and writing.pending
        ):
            fail_quietly(
                waiter,
                Overloaded(
                    f"ledger {self._ledger}: {len(writing.pending)} entries with "
                    f"{self._bytes_under_way} bytes are under way: wait for acks, then append"
                ),
            )
            return waiter
        length_bytes = self._length_bytes + size
        self._carried = last_confirmed = writing.last_confirmed
        packed = self._digest.pack(
            entry=writing.next_entry,
            last_confirmed=last_confirmed,
            length_bytes=length_bytes,
            data=data,
        )
        self._add(packed, size, length_bytes, waiter)
        self._length_bytes = length_bytes
        return waiter

    def _confirmed(self) -> None:
        if self._publish_timer is None and self._error is None:
            self._arm_publish()
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

    # How readers hear of acks.

    def _arm_publish(self) -> None:
        self._carried_at_ack = self._carried
        pause_s = self._context.settings.publish_ms / 1000
        self._publish_timer = self._loop.call_later(pause_s, self._publish_due)

    def _publish_due(self) -> None:
        self._publish_timer = None
        last = self._writing.last_confirmed
        if self._has_stopped() or last <= max(self._carried, self._to_publish):
            return
        if self._carried > self._carried_at_ack:
            self._arm_publish()  # Appends go on, and carry it.
        else:
            self._publish_to_all(last)

    def _has_stopped(self) -> bool:
        """What would begin now nobody would wait for at the end."""
        return self._is_closing or self._error is not None

    def _publish_to_all(self, last: int) -> None:
        if last > self._to_publish:
            self._to_publish = last
            self._retries_left = _PUBLISH_RETRIES
        for bookie in self._writing.ensemble:
            if bookie not in self._publishing:
                self._publishing[bookie] = self._loop.create_task(self._publish_to(bookie))

    async def _publish_to(self, bookie: BookieId) -> None:
        """Each bookie at its own pace: one that hangs holds nobody up."""
        try:
            while (last := self._to_publish) > self._published.get(bookie, -1):
                await self._bookies.write_last_confirmed(
                    bookie,
                    ledger=self._ledger,
                    last_confirmed=last,
                    master_key=self._master_key,
                    digest=self._digest.of_last_confirmed(last),
                )
                self._published[bookie] = last
        except RaftwoodError:
            self._publish_later()
        finally:
            del self._publishing[bookie]

    def _publish_later(self) -> None:
        """A writer that falls silent now has nothing else that would tell readers."""
        if self._retry_timer is None and self._retries_left and not self._has_stopped():
            self._retries_left -= 1
            pause_s = self._context.settings.change_retry_ms / 1000
            self._retry_timer = self._loop.call_later(pause_s, self._publish_again)

    def _publish_again(self) -> None:
        self._retry_timer = None
        if not self._has_stopped():
            self._publish_to_all(self._to_publish)

    async def publish(self) -> None:
        if self._has_stopped():
            raise self._error or self._closed_error()
        last = self._writing.last_confirmed
        self._publish_to_all(last)
        while True:
            heard = sum(self._published.get(each, -1) >= last for each in self._writing.ensemble)
            if heard >= self._config.ack_quorum:
                return
            under_way = list(self._publishing.values())
            if not under_way:
                raise BookieUnavailable(
                    f"ledger {self._ledger}: {heard} bookies heard that entry {last} is confirmed: "
                    "publish again"
                )
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)

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
        except (Fenced, NoSuchLedger) as error:
            self._give_up(error)
            raise
        self._give_up(self._closed_error())
        self._error = self._closed_error()

    async def abandon(self) -> None:
        self._give_up(LedgerClosed(f"the writer of ledger {self._ledger} was abandoned"))
        await self._stop()

    def _stop_timers(self) -> None:
        super()._stop_timers()
        for timer in (self._publish_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()

    async def _stop(self) -> None:
        await super()._stop()
        publishing = list(self._publishing.values())
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
