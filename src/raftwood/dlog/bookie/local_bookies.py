"""`LocalBookies`: bookies that run in this process; passes other ids to another seam."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.wire import PackedAdd, prepare
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import AddRequest, AddSink, Bookies

_TIMEOUT_MS: Final = 5_000


class LocalBookies:
    """The `Bookies` seam without a network. Does not close the bookies."""

    def __init__(
        self,
        bookies: Mapping[BookieId, Bookie],
        others: Bookies | None = None,
        *,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> None:
        """`bookies` may change: a removed one counts as away. `others` are closed with this."""
        self._bookies = bookies
        self._others = others
        self._timeout_s = timeout_ms / 1000
        self._batches: dict[BookieId, _Batch] = {}
        self._loop = asyncio.get_running_loop()

    def prepare_add(
        self,
        *,
        ledger: int,
        entry: int,
        packed: Sequence[Buffer],
        master_key: bytes,
        is_recovery: bool = False,
    ) -> PackedAdd:
        return prepare(packed, master_key, ledger=ledger, entry=entry, is_recovery=is_recovery)

    def add(self, bookie: BookieId, request: AddRequest, sink: AddSink) -> None:
        assert isinstance(request, PackedAdd)
        local = self._bookies.get(bookie)
        if local is None:
            if self._others is not None:
                self._others.add(bookie, request, sink)
            else:
                self._loop.call_soon(sink.added, request.entry, bookie, _away(bookie))
            return
        error = local.add(
            request.packed, master_key=request.master_key, is_recovery=request.is_recovery
        )
        batch = self._batches.get(bookie)
        if batch is None:
            # One wait for the disk for all adds of this turn of the loop.
            batch = self._batches[bookie] = _Batch(bookie)
            self._loop.call_soon(self._close_batch, bookie, local)
        batch.adds.append((request.entry, sink, error))

    def _close_batch(self, bookie: BookieId, local: Bookie) -> None:
        batch = self._batches.pop(bookie)
        batch.timer = self._loop.call_later(self._timeout_s, batch.expire)
        local.when_durable(batch.durable)

    async def read(
        self, bookie: BookieId, *, ledger: int, entry: int, fence_key: bytes | None = None
    ) -> Buffer:
        local = self._bookies.get(bookie)
        if local is None:
            return await self._other(bookie).read(
                bookie, ledger=ledger, entry=entry, fence_key=fence_key
            )
        # Fenced first, and durably: an entry that comes between the read and the fence would be
        # acked, although the read has said that it is missing.
        if fence_key is not None:
            await local.fence(ledger, fence_key)
        return await local.read(ledger, entry)

    async def read_last_confirmed(self, bookie: BookieId, *, ledger: int) -> tuple[int, Buffer]:
        local = self._bookies.get(bookie)
        if local is None:
            return await self._other(bookie).read_last_confirmed(bookie, ledger=ledger)
        return await local.read_last_confirmed(ledger)

    async def wait_last_confirmed(
        self, bookie: BookieId, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        local = self._bookies.get(bookie)
        if local is None:
            return await self._other(bookie).wait_last_confirmed(
                bookie, ledger=ledger, after=after, timeout_ms=timeout_ms
            )
        return await local.wait_last_confirmed(ledger, after=after, timeout_ms=timeout_ms)

    async def write_last_confirmed(
        self,
        bookie: BookieId,
        *,
        ledger: int,
        last_confirmed: int,
        master_key: bytes,
        digest: bytes,
    ) -> None:
        local = self._bookies.get(bookie)
        if local is None:
            await self._other(bookie).write_last_confirmed(
                bookie,
                ledger=ledger,
                last_confirmed=last_confirmed,
                master_key=master_key,
                digest=digest,
            )
        else:
            await local.write_last_confirmed(ledger, last_confirmed, master_key)

    def _other(self, bookie: BookieId) -> Bookies:
        if self._others is None:
            raise _away(bookie)
        return self._others

    async def close(self) -> None:
        if self._others is not None:
            await self._others.close()


class _Batch:
    """Adds to one bookie that become durable together, or fail if the disk takes too long."""

    __slots__ = ("_bookie", "adds", "timer")

    def __init__(self, bookie: BookieId) -> None:
        self._bookie = bookie
        self.adds: list[tuple[int, AddSink, RaftwoodError | None]] = []
        self.timer: asyncio.TimerHandle | None = None

    def durable(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        adds, self.adds = self.adds, []
        for entry, sink, error in adds:
            sink.added(entry, self._bookie, error)

    def expire(self) -> None:
        late = BookieUnavailable(f"the disk of bookie {self._bookie} does not answer in time")
        adds, self.adds = self.adds, []
        for entry, sink, error in adds:
            sink.added(entry, self._bookie, error or late)


def _away(bookie: BookieId) -> BookieUnavailable:
    return BookieUnavailable(f"bookie {bookie} does not run in this process")
