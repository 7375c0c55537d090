"""Calls of a bookie as tests make them: packed entries, and a sink that remembers."""

import asyncio
from struct import Struct

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import Bookies

KEY = b"k" * 20
_HEAD = Struct(">qqqq")


def packed(ledger: int, entry: int, data: bytes = b"data", *, last_confirmed: int = -1) -> bytes:
    """As a bookie gets it; it never looks behind the head."""
    return _HEAD.pack(ledger, entry, last_confirmed, len(data)) + b"sums" + data


class Sink:
    """Futures by entry, in the order of the adds."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, BookieId], list[asyncio.Future[None]]] = {}
        self.heard: list[int] = []

    def expect(self, entry: int, bookie: BookieId) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((entry, bookie), []).append(future)
        return future

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:
        self.heard.append(entry)
        future = self._waiting[entry, bookie].pop(0)
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class Adding:
    """Adds entries to one bookie."""

    def __init__(self, bookies: Bookies, bookie: BookieId) -> None:
        self.bookies = bookies
        self.bookie = bookie
        self.sink = Sink()

    def begin(
        self,
        ledger: int,
        entry: int,
        data: bytes = b"data",
        *,
        key: bytes = KEY,
        is_recovery: bool = False,
        last_confirmed: int = -1,
    ) -> "asyncio.Future[None]":
        request = self.bookies.prepare_add(
            ledger=ledger,
            entry=entry,
            packed=[packed(ledger, entry, data, last_confirmed=last_confirmed)],
            master_key=key,
            is_recovery=is_recovery,
        )
        added = self.sink.expect(entry, self.bookie)
        self.bookies.add(self.bookie, request, self.sink)
        assert not added.done(), "a sink hears within the call"
        return added
