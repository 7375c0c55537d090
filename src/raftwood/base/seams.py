"""The seams: small interfaces that one package needs and another provides.

A package takes what it needs of another as one of these, handed in by `app`; the systems never
import one another. Each seam has at least two implementations that one test suite runs alike.
`Files` and `Environment` stand in modules of their own; `StateMachine` stands in `raft`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

import msgspec

from raftwood.base.files import Buffer
from raftwood.base.position import Position


class Bounds(msgspec.Struct, frozen=True):
    """What a log holds: first ≤ any readable position < next."""

    first: Position
    next: Position


class StoredBatch(msgspec.Struct, frozen=True):
    """One batch as it was appended, and where it stands."""

    position: Position
    data: Buffer


class Log(Protocol):
    """A log of opaque batches."""

    async def append(self, batch: Buffer, *, producer: str, sequence: int) -> Position:
        """Durable when it returns; the same (producer, sequence) again stores nothing twice."""
        ...

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        """Batches from `start` on, and where to read next."""
        ...

    async def truncate(self, before: Position) -> None:
        """Allow everything below `before` to be freed."""
        ...

    async def bounds(self) -> Bounds: ...


class Versioned(msgspec.Struct, frozen=True):
    """A value and the version that a compare-and-set must name."""

    value: bytes
    version: int


class Change(msgspec.Struct, frozen=True):
    """One step in a key's history; `value` is None where the key was removed."""

    key: str
    value: bytes | None
    version: int


class MetaStore(Protocol):
    """A small, consistent key-value store."""

    async def get(self, key: str) -> Versioned | None: ...

    async def compare_and_set(self, key: str, value: bytes | None, *, version: int) -> int | None:
        """Set (or with None, remove) the key if its version still is `version` (0: absent).

        Returns the new version, or None where somebody else was first.
        """
        ...

    def watch(self, prefix: str, *, after_version: int) -> AsyncIterator[Change]:
        """Every later change of keys below the prefix, in order, none left out."""
        ...


class LedgerWriter(Protocol):
    """The one writer of an open ledger."""

    @property
    def ledger(self) -> int: ...
    @property
    def last_confirmed(self) -> int: ...
    async def append(self, data: Buffer) -> int:
        """The entry's id, in order of the calls."""
        ...

    async def close(self) -> None: ...


class LedgerReader(Protocol):
    """A view of a ledger, open or closed."""

    @property
    def closed(self) -> bool: ...
    @property
    def last_confirmed(self) -> int: ...
    async def read(self, *, first: int, last: int) -> list[Buffer]: ...
    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:
        """Until the last confirmed entry is above `after`, or closed: (last confirmed, closed)."""
        ...


class LedgerStore(Protocol):
    """Bounded, replicated ledgers that are closed for ever."""

    async def create(self, *, properties: dict[str, bytes]) -> LedgerWriter: ...
    async def open(self, ledger: int, *, recover: bool) -> LedgerReader:
        """With `recover`, fence the ledger's writer and close it first."""
        ...

    async def delete(self, ledger: int) -> None: ...


class Lease(msgspec.Struct, frozen=True):
    """One row of the lease table; `lease_id` is the compare-and-set token."""

    shard: str
    lease_id: int
    lease_owner: str
    consumer_owner: str
    epoch: int
    checkpoint: str
    sequence: int


class LeaseStore(Protocol):
    """Where consumers keep who owns which shard, and how far it was read."""

    async def leases(self, group: str) -> list[Lease]: ...
    async def update(self, group: str, lease: Lease, *, expected_lease_id: int) -> bool: ...
    async def checkpoint(
        self, group: str, shard: str, value: str, *, owner: str, epoch: int, sequence: int
    ) -> bool:
        """False where the owner or epoch is stale: the caller has lost the shard."""
        ...


class Put(msgspec.Struct, frozen=True, tag=True):
    """Set a key."""

    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Remove a key, or nothing if there is none."""

    key: bytes


class DeleteRange(msgspec.Struct, frozen=True, tag=True):
    """Remove all keys with start ≤ key < end."""

    start: bytes
    end: bytes


Mutation = Put | Delete | DeleteRange


class KvEngine(Protocol):
    """An ordered key-value engine on one disk, without a log of its own.

    A written batch is atomic and readable at once, but durable only after `flush`: whoever needs
    more keeps a log, stores the applied index in the same batch, and replays from there.
    """

    def get(self, key: bytes) -> bytes | None: ...
    async def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def write_batch(self, mutations: Sequence[Mutation]) -> None: ...
    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start ≤ key < end, in key order, as they were when the scan began."""
        ...

    async def flush(self) -> None:
        """Everything written so far is durable."""
        ...

    async def checkpoint(self, folder: str) -> None:
        """A consistent copy in a new folder, sharing files where it can."""
        ...

    async def close(self) -> None: ...
