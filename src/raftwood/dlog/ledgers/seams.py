"""Seams of the ledger layer: `LedgerStore` above it, `Bookies` and `LedgerMetadataStore` below it.

A `LedgerStore` has bounded, replicated ledgers that are closed for ever; logs are made of them.
Implementations: the quorum client (`client`) over our own bookies or Apache BookKeeper, and one in
memory for tests of the layers above.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.ledgers.metadata import BookieId, BookieInfo, LedgerConfig, LedgerMetadata


class LedgerEntry(msgspec.Struct, frozen=True):
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

    async def read(self, *, first: int, last: int) -> list[LedgerEntry]:
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


class AddSink(Protocol):
    """Who hears of what became of adds; called from the loop, in any order."""

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:
        """`Fenced`, `BookieReadOnly`, `Overloaded` (try again), or whatever else went wrong."""
        ...


class AddRequest(Protocol):
    """One entry on its way to bookies, encoded once for all of them."""

    @property
    def entry(self) -> int: ...


class Bookies(Protocol):
    """Connections to bookies by their ids; they are made when they are first needed.

    Every call ends, in a time bound by the implementation's settings. A bookie that is away or does
    not answer is `BookieUnavailable`. What comes back has not been checked yet; where the bookie
    itself says that its copy is damaged, or that it cannot tell whether it had one, that is
    `BadDigest`, and never `NoSuchEntry`.
    """

    def prepare_add(
        self,
        *,
        ledger: int,
        entry: int,
        packed: Sequence[Buffer],
        master_key: bytes,
        is_recovery: bool = False,
    ) -> AddRequest:
        """Encode once what is then sent to each bookie of the write quorum."""
        ...

    def add(self, bookie: BookieId, request: AddRequest, sink: AddSink) -> None:
        """Send it; the sink hears once of each add, never within this call.

        Adds to one bookie arrive in the order in which they were made. With `is_recovery`, a fenced
        ledger takes the entry all the same.
        """
        ...

    async def read(
        self, bookie: BookieId, *, ledger: int, entry: int, fence_key: bytes | None = None
    ) -> Buffer:
        """The packed entry; with entry −1 the one with the highest number that the bookie has.

        With a `fence_key` (the ledger's master key), the bookie durably refuses the ledger's writer
        before it answers. `NoSuchEntry`, `NoSuchLedger` where the bookie says so.
        """
        ...

    async def read_last_confirmed(self, bookie: BookieId, *, ledger: int) -> tuple[int, Buffer]:
        """What was published explicitly (−1: nothing), and the packed entry with the highest
        number (empty: none).
        """
        ...

    async def wait_last_confirmed(
        self, bookie: BookieId, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        """Until the bookie knows of a last confirmed entry above `after`, or the time is over: the
        highest that it knows of. Not protected by a digest: a hint for whoever tails.
        """
        ...

    async def write_last_confirmed(
        self,
        bookie: BookieId,
        *,
        ledger: int,
        last_confirmed: int,
        master_key: bytes,
        digest: bytes,
    ) -> None:
        """Publish how far readers may read; `digest` is over (ledger, last confirmed)."""
        ...

    async def close(self) -> None: ...


class VersionedMetadata(msgspec.Struct, frozen=True):
    """Metadata, and the version that a compare-and-set must name."""

    metadata: LedgerMetadata
    version: int


class BookieBeginning(msgspec.Struct, frozen=True, kw_only=True):
    """Since when a bookie has the folder that it has."""

    instance: str = ""
    """Another one whenever it began anew; empty where that is not known."""
    limbo_end: int | None = None
    """It began anew, and was not repaired yet: of ledgers from this number on it has everything
    that it acked."""


class LedgerMetadataStore(Protocol):
    """Where ledgers' metadata are kept, and which bookies there are."""

    async def new_ledger_id(self) -> int:
        """Higher than every one that was given before."""
        ...

    async def create(self, ledger: int, metadata: LedgerMetadata) -> int:
        """Its version; `AlreadyExists` where somebody else has made it."""
        ...

    async def get(self, ledger: int) -> VersionedMetadata:
        """`NoSuchLedger` where there is none."""
        ...

    async def compare_and_set(
        self, ledger: int, metadata: LedgerMetadata, *, version: int
    ) -> int | None:
        """The new version, or None where somebody was faster; `NoSuchLedger` where it is gone."""
        ...

    async def delete(self, ledger: int) -> None:
        """Nothing where it is gone already. Bookies free the entries by themselves."""
        ...

    def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        """All there are from a number on, in order."""
        ...

    async def wait_changed(self, ledger: int, *, version: int, timeout_ms: int) -> None:
        """Until its version is another one, it is gone, or the time is over."""
        ...

    async def bookies(self) -> list[BookieInfo]:
        """Those that are registered now, in order of their ids."""
        ...

    async def beginning(self, bookie: BookieId) -> BookieBeginning:
        """Which folder a bookie has."""
        ...

    async def close(self) -> None: ...
