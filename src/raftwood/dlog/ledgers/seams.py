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
        """The last entry stored for good, acked or about to be; −1: none."""
        ...

    @property
    def length_bytes(self) -> int:
        """The length of all entries' data, also of those under way."""
        ...

    def append(self, data: Buffer) -> "asyncio.Future[int]":
        """Appends an entry; returns a future of its id. Ids and acks are in the order of the calls.
        Once an entry is acked, every reader that asks sees it.

        Fails with `Fenced` if another writer has taken over, `LedgerClosed` after `close`, or
        `NotEnoughBookies`. After the first failure none succeeds: the next recovery of the ledger
        settles whether the failed entries are stored. Raises `Overloaded` if too much is under
        way.
        """
        ...

    async def close(self) -> None:
        """Waits for what is under way, then ends the ledger behind the last acked entry. `Fenced`
        if another process has closed it elsewhere. A second close does nothing.
        """
        ...

    async def abandon(self) -> None:
        """Stops at once without closing the ledger, like a crash: appends under way fail."""
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
        """The length of all entries' data; exact once closed."""
        ...

    async def read(self, *, first: int, last: int) -> list[LedgerEntry]:
        """Returns the entries in order; `OutOfRange` beyond the last confirmed entry."""
        ...

    def confirm(self, entry: int) -> None:
        """Notes that the ledger's writer reports all entries up to this one as acked: they can be
        read from now on, without asking the bookies.
        """
        ...

    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:
        """Waits until the last confirmed entry is above `after`, the ledger is closed, or the time
        is over; returns (last confirmed, is closed). It includes all that was acked before the
        call; `BookieUnavailable` if too few bookies answer to know that.
        """
        ...

    async def close(self) -> None: ...


class LedgerStore(Protocol):
    """Creates, opens and deletes ledgers."""

    async def create(
        self, config: LedgerConfig, *, properties: Mapping[str, bytes] | None = None
    ) -> LedgerWriter:
        """Creates a ledger, with an id above all earlier ones."""
        ...

    async def open(self, ledger: int, *, recover: bool, password: bytes = b"") -> LedgerReader:
        """Opens a ledger; with `recover`, fences its writer and closes it first.

        `NoSuchLedger`, `PermissionDenied` for a wrong password, `CannotRecover` while too few
        bookies answer.
        """
        ...

    async def info(self, ledger: int) -> LedgerMetadata:
        """Returns a ledger's metadata; `NoSuchLedger` if there is none."""
        ...

    async def delete(self, ledger: int) -> None:
        """Deletes a ledger; does nothing if it is gone."""
        ...

    def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        """Yields all ledgers from a number on, in order."""
        ...

    async def bookies(self) -> list[BookieInfo]:
        """Returns the running bookies, in order of their ids."""
        ...

    async def close(self) -> None: ...


class AddSink(Protocol):
    """Receives the outcomes of adds; called from the loop, in any order."""

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:
        """The errors are `Fenced`, `BookieReadOnly`, `Overloaded` (try again), and others."""
        ...


class AddRequest(Protocol):
    """One entry to add, encoded once for all bookies."""

    @property
    def entry(self) -> int: ...


class Bookies(Protocol):
    """Connections to bookies by their ids, made when first needed.

    Every call ends, in a time bound by the implementation's settings. A bookie that is away or does
    not answer is `BookieUnavailable`. Returned entries are not checked yet; if the bookie itself
    says that its copy is damaged, or that it does not know whether it had one, that is `BadDigest`,
    and never `NoSuchEntry`.
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
        """Encodes once what is then sent to each bookie of the write quorum."""
        ...

    def add(self, bookie: BookieId, request: AddRequest, sink: AddSink) -> None:
        """Sends an add; the sink receives its outcome once, never within this call.

        Adds to one bookie arrive in the order in which they were made. With `is_recovery`, a fenced
        ledger takes the entry all the same.
        """
        ...

    async def read(
        self, bookie: BookieId, *, ledger: int, entry: int, fence_key: bytes | None = None
    ) -> Buffer:
        """Returns the packed entry; for entry −1 that with the highest number in the bookie.

        With a `fence_key` (the ledger's master key), the bookie durably refuses the ledger's writer
        before it answers. `NoSuchEntry`, `NoSuchLedger` where the bookie says so.
        """
        ...

    async def read_last_confirmed(self, bookie: BookieId, *, ledger: int) -> tuple[int, Buffer]:
        """Returns the explicitly published entry (−1: none), and the packed entry with the highest
        number (empty: none).
        """
        ...

    async def wait_last_confirmed(
        self, bookie: BookieId, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        """Waits until the bookie knows of a last confirmed entry above `after`, or the time is
        over; returns the highest that it knows. No digest protects it: only a hint for tailing
        readers.
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
        """Publishes how far readers may read; `digest` covers (ledger, last confirmed)."""
        ...

    async def close(self) -> None: ...


class VersionedMetadata(msgspec.Struct, frozen=True):
    """Metadata, and the version that a compare-and-set must name."""

    metadata: LedgerMetadata
    version: int


class BookieBeginning(msgspec.Struct, frozen=True, kw_only=True):
    """The data folder of a bookie, and since when it has it."""

    instance: str = ""
    """The folder's id, new whenever the bookie began anew; empty if unknown."""
    limbo_end: int | None = None
    """Set if the bookie began anew and was not repaired yet: of ledgers from this number on it has
    everything that it acked."""


class LedgerMetadataStore(Protocol):
    """Keeps ledgers' metadata, and the list of bookies."""

    async def new_ledger_id(self) -> int:
        """Returns an id above all given before."""
        ...

    async def create(self, ledger: int, metadata: LedgerMetadata) -> int:
        """Stores new metadata; returns their version; `AlreadyExists` if another process did."""
        ...

    async def get(self, ledger: int) -> VersionedMetadata:
        """Returns the metadata; `NoSuchLedger` if there are none."""
        ...

    async def compare_and_set(
        self, ledger: int, metadata: LedgerMetadata, *, version: int
    ) -> int | None:
        """Returns the new version, or None if the version has changed; `NoSuchLedger` if gone."""
        ...

    async def delete(self, ledger: int) -> None:
        """Deletes metadata; does nothing if gone. Bookies free the entries by themselves."""
        ...

    def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        """Yields all ledgers from a number on, in order."""
        ...

    async def wait_changed(self, ledger: int, *, version: int, timeout_ms: int) -> None:
        """Waits until the version changes, the ledger is gone, or the time is over."""
        ...

    async def bookies(self) -> list[BookieInfo]:
        """Returns the registered bookies, in order of their ids."""
        ...

    async def beginning(self, bookie: BookieId) -> BookieBeginning:
        """Returns which folder a bookie has."""
        ...

    async def close(self) -> None: ...
