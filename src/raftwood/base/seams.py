"""The seams: small interfaces that one package needs and another provides.

A package takes what it needs of another as one of these, handed in by `server`; the systems never
import one another. Each seam has at least two implementations that one test suite runs alike.
`Files` and `Environment` stand in modules of their own; `StateMachine` stands in `raft`,
`LeaseStore` in `loghub.consumer`, `LedgerStore` in `dlog.ledgers`.
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
    is_sealed: bool = False
    """Nothing more will come."""
    appended_bytes: int = 0
    """Of all batches that were ever appended, those that were truncated too."""


class StoredBatch(msgspec.Struct, frozen=True):
    """One batch as it was appended, and where it stands."""

    position: Position
    data: Buffer


class Log(Protocol):
    """A log of opaque batches."""

    async def append(self, batch: Sequence[Buffer], *, producer: bytes, sequence: int) -> Position:
        """Durable when it returns; the same (producer, sequence) again stores nothing twice.

        The batch is given in pieces of bytes, so that nobody has to join them. They must not
        change before this returns, nor ever where the caller does not wait for the end. The
        producer's name is UTF-8; what it becomes on the disk is the same for ever.

        `LogSealed` where the log had ended before: nothing was stored, nor ever will be under this
        sequence. What was stored before the end is answered as ever.
        """
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

    async def seal(self) -> Position:
        """End the log for ever, for every writer; behind all that was stored. Again: the same."""
        ...


class Logs(Protocol):
    """Where logs are made, found and removed; each has a name of its own."""

    async def create(self, name: str) -> None:
        """A log without batches; nothing where it is there already."""
        ...

    async def open(self, name: str) -> Log:
        """`NotFound` where there is none."""
        ...

    async def remove(self, name: str) -> None:
        """The log and all its batches; nothing where it is gone already."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """Of all logs whose name begins so."""
        ...


class Versioned(msgspec.Struct, frozen=True):
    """A value and the version that a compare-and-set must name."""

    value: bytes
    version: int
    lease: int = 0
    """The lease that the key goes away with; 0 for none."""


class KeyChange(msgspec.Struct, frozen=True):
    """The latest step of a key; `value` is None where the key was removed."""

    key: str
    value: bytes | None
    version: int


class KeyEntry(msgspec.Struct, frozen=True):
    """One key of a range."""

    key: str
    value: bytes
    version: int
    lease: int = 0


class KeyRange(msgspec.Struct, frozen=True):
    """Keys in order. Every change up to `version` is in it: a watch after that misses nothing."""

    entries: tuple[KeyEntry, ...]
    version: int
    next_start: str | None = None
    """Where to read on, if the limit left something out."""


class Compare(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """True while the key's version is the one named; 0 stands for an absent key."""

    key: str
    version: int


class SetKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Set a key, under a lease if one is given."""

    key: str
    value: bytes
    lease: int = 0


class RemoveKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Remove a key, or nothing if there is none."""

    key: str


KeyOperation = SetKey | RemoveKey


class TransactionOutcome(msgspec.Struct, frozen=True):
    """Which branch of a transaction was taken, and the store's version after it."""

    held: bool
    version: int


class MetaStatus(msgspec.Struct, frozen=True):
    """Figures for people and tests."""

    version: int
    keys: int
    leases: int
    oldest_watch: int
    """A watch can begin after this version or any later one."""


class MetaStore(Protocol):
    """A small, consistent key-value store.

    The store counts one version up with each transaction that changes something; a key's version
    is the store's at its last change. So versions never go back, not even over a removal, and
    versions of different keys can be compared. Every answer is of durable state, and includes all
    that was answered to anybody before the call.
    """

    async def get(self, key: str) -> Versioned | None: ...

    async def range(
        self, *, prefix: str = "", start: str = "", end: str | None = None, limit: int = 1000
    ) -> KeyRange:
        """Keys below a prefix with start ≤ key < end, in order of their code points."""
        ...

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, lease: int = 0
    ) -> int | None:
        """Set (or with None, remove) the key if its version still is `version` (0: absent).

        Returns the store's new version, or None where somebody else was first.
        """
        ...

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[KeyOperation],
        otherwise: Sequence[KeyOperation] = (),
    ) -> TransactionOutcome:
        """Carry out `then` if all compares hold, else `otherwise`; all in one step, as one version.

        No branch names a key twice.
        """
        ...

    async def grant_lease(self, *, ttl_ms: int) -> int:
        """A lease that ends, with all keys under it in one step, once nobody renewed it for so
        long; perhaps somewhat later, never earlier. A key set under it renews it.
        """
        ...

    async def keep_alive(self, lease: int) -> None:
        """Begin the lease's time anew; `NotFound` where it has ended."""
        ...

    async def revoke_lease(self, lease: int) -> None:
        """End the lease and remove its keys; nothing where it has ended already."""
        ...

    def watch(self, prefix: str, *, after_version: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        """Later changes of keys below the prefix: one tuple per version, versions going up.

        Several changes of one key may be told as its latest alone; the last one is always told,
        and nothing is ever told out of order. Whoever resumes after the last version that it got
        misses nothing. `OutOfRange` where removals since `after_version` are no longer known, or
        the version is not this store's: read the range again, and watch after its version.
        """
        ...

    async def status(self) -> MetaStatus: ...

    async def close(self) -> None:
        """Watches end with `ShuttingDown`."""
        ...


class Put(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Set a key."""

    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Remove a key, or nothing if there is none."""

    key: bytes


class DeleteRange(msgspec.Struct, frozen=True, tag=True, gc=False):
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
    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        """Whether memory alone tells what the key has, and that; the disk is never read."""
        ...

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
