"""`LedgerStore`: bounded, replicated ledgers that are closed for ever; what a log is made of.

Implementations: the quorum client (`ledger_client`) over bookies of our own or Apache BookKeeper,
and one in memory for tests of what stands above it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from raftwood.base.files import Buffer
from raftwood.dlog.ledgers.model import BookieInfo, LedgerConfig, LedgerMetadata


class Entry(msgspec.Struct, frozen=True):
    """One entry as it was appended."""

    id: int
    data: Buffer


class LedgerWriter(Protocol):
    """The one writer of an open ledger."""

    @property
    def ledger(self) -> int: ...
    @property
    def last_confirmed(self) -> int:
        """The last entry that is stored for good, acked or about to be; −1: none."""
        ...

    @property
    def length_bytes(self) -> int:
        """Of all entries' data, those under way too."""
        ...

    def append(self, data: Buffer) -> "asyncio.Future[int]":
        """The entry's id, in order of the calls; acked in that order as well. Once it is acked,
        every reader that asks sees it.

        Fails with `Fenced` where another has taken over, `LedgerClosed` after `close`, or
        `NotEnoughBookies`. After the first failure none succeeds: whether what failed is stored is
        settled by the next one to recover the ledger. `Overloaded` where too much is under way.
        """
        ...

    async def close(self) -> None:
        """Wait for what is under way, then end the ledger behind the last acked entry. `Fenced`
        where another has closed it elsewhere. A second close does nothing.
        """
        ...

    async def abandon(self) -> None:
        """Stop at once without closing the ledger, as a crash would: appends under way fail."""
        ...


class LedgerReader(Protocol):
    """A view of a ledger, open or closed."""

    @property
    def ledger(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def last_confirmed(self) -> int:
        """The last entry that can be read, as far as this reader knows; −1: none."""
        ...

    @property
    def length_bytes(self) -> int:
        """Of all entries' data; exact once closed."""
        ...

    async def read(self, *, first: int, last: int) -> list[Entry]:
        """All of them, in order; `OutOfRange` beyond the last confirmed entry."""
        ...

    def confirm(self, entry: int) -> None:
        """Whoever writes the ledger has said that all up to this entry are acked: they can be read
        from now on, without waiting for the bookies to hear of it.
        """
        ...

    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:
        """Until the last confirmed entry is above `after`, or the ledger is closed, or the time is
        over: (last confirmed, is closed). All that was acked before the call is among it;
        `BookieUnavailable` where too few bookies answer to tell.
        """
        ...

    async def close(self) -> None: ...


class LedgerStore(Protocol):
    """Where ledgers are made, opened and deleted."""

    async def create(
        self, config: LedgerConfig, *, properties: Mapping[str, bytes] | None = None
    ) -> LedgerWriter:
        """A new ledger, with an id above all before it."""
        ...

    async def open(self, ledger: int, *, recover: bool, password: bytes = b"") -> LedgerReader:
        """With `recover`, fence the ledger's writer and close the ledger first.

        `NoSuchLedger`, `PermissionDenied` for a wrong password, `CannotRecover` while too few
        bookies answer.
        """
        ...

    async def info(self, ledger: int) -> LedgerMetadata:
        """`NoSuchLedger` where there is none."""
        ...

    async def delete(self, ledger: int) -> None:
        """Nothing where it is gone already."""
        ...

    def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        """All there are from a number on, in order."""
        ...

    async def bookies(self) -> list[BookieInfo]:
        """Those that run now, in order of their ids."""
        ...

    async def close(self) -> None: ...
