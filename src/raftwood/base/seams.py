"""The seams: small interfaces that one package needs and another provides.

A package uses another through one of these, which `server` passes in; the systems never import one
another. Each seam has at least two implementations that one test suite runs alike. `Files` and
`Environment` have modules of their own; `StateMachine` is in `raft`, `LeaseStore` in
`loghub.consumer`, `LedgerStore` in `dlog.ledgers`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

import msgspec

from raftwood.base.files import Buffer
from raftwood.base.position import Position


class Bounds(msgspec.Struct, frozen=True):
    """The range of a log: first ≤ any readable position < next."""

    first: Position
    next: Position
    is_sealed: bool = False
    """Whether the log has ended: no batch will follow."""
    appended_bytes: int = 0
    """The size of all batches ever appended, truncated ones too."""


class StoredBatch(msgspec.Struct, frozen=True):
    """One batch as it was appended, and its position."""

    position: Position
    data: Buffer


class Log(Protocol):
    """A log of opaque batches."""

    async def append(self, batch: Sequence[Buffer], *, producer: bytes, sequence: int) -> Position:
        """Appends a batch durably; repeating the same (producer, sequence) stores nothing twice.

        The batch is given in pieces of bytes, which need not be joined. They must not change before
        this returns, nor later if the caller stops waiting earlier. The producer's name is UTF-8;
        its stored form is the same for ever.

        Raises `LogSealed` if the log ended before: nothing is stored, nor ever will be under this
        sequence. Repetitions of appends stored before the end return their position as always.
        """
        ...

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        """Returns batches from `start` on, and where to read next."""
        ...

    async def truncate(self, before: Position) -> None:
        """Allows everything below `before` to be freed."""
        ...

    async def bounds(self) -> Bounds: ...

    async def seal(self) -> Position:
        """Ends the log for ever, for every writer; returns its end, the same at each repetition."""
        ...


class Logs(Protocol):
    """Creates, finds and removes logs; each has a name of its own."""

    async def create(self, name: str) -> None:
        """Creates an empty log; does nothing if it exists."""
        ...

    async def open(self, name: str) -> Log:
        """Opens a log; `NotFound` if there is none."""
        ...

    async def remove(self, name: str) -> None:
        """Removes a log and all its batches; does nothing if it is gone."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """Returns the names of all logs that begin with `prefix`."""
        ...


class Versioned(msgspec.Struct, frozen=True):
    """A value, and the version that a compare-and-set must name."""

    value: bytes
    version: int
    lease: int = 0
    """The lease whose end removes the key; 0 for none."""


class KeyChange(msgspec.Struct, frozen=True):
    """The latest change of a key; `value` is None if the key was removed."""

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
    """Keys in order, with all changes up to `version`: a watch after it misses nothing."""

    entries: tuple[KeyEntry, ...]
    version: int
    next_start: str | None = None
    """Where to read on, if the limit cut the range."""


class Compare(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """True while the key has this version; 0 stands for an absent key."""

    key: str
    version: int


class SetKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Set a key, under a lease if one is given."""

    key: str
    value: bytes
    lease: int = 0


class RemoveKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Remove a key; does nothing if there is none."""

    key: str


KeyOperation = SetKey | RemoveKey


class TransactionOutcome(msgspec.Struct, frozen=True):
    """The branch that a transaction took, and the store's version after it."""

    held: bool
    version: int


class MetaStatus(msgspec.Struct, frozen=True):
    """Figures for operators and tests."""

    version: int
    keys: int
    leases: int
    oldest_watch: int
    """The earliest version after which a watch can begin."""


class MetaStore(Protocol):
    """A small, consistent key-value store.

    The store's version goes up by one with each transaction that changes something; a key's version
    is the store's at its last change. So versions never go back, not even over a removal, and
    versions of different keys can be compared. Every answer is of durable state, and includes all
    that was answered to any client before the call.
    """

    async def get(self, key: str) -> Versioned | None: ...

    async def range(
        self, *, prefix: str = "", start: str = "", end: str | None = None, limit: int = 1000
    ) -> KeyRange:
        """Returns keys below a prefix with start ≤ key < end, in order of their code points."""
        ...

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, lease: int = 0
    ) -> int | None:
        """Sets (or with None, removes) the key if its version still is `version` (0: absent).

        Returns the store's new version, or None if another change came first.
        """
        ...

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[KeyOperation],
        otherwise: Sequence[KeyOperation] = (),
    ) -> TransactionOutcome:
        """Does `then` if all compares hold, else `otherwise`; all in one step, as one version.

        No branch names a key twice.
        """
        ...

    async def grant_lease(self, *, ttl_ms: int) -> int:
        """Grants a lease that ends, with all keys under it in one step, if it is not renewed for
        `ttl_ms`; perhaps somewhat later, never earlier. Setting a key under it renews it.
        """
        ...

    async def keep_alive(self, lease: int) -> None:
        """Renews a lease for its full time; `NotFound` if it has ended."""
        ...

    async def revoke_lease(self, lease: int) -> None:
        """Ends the lease and removes its keys; does nothing if it has ended."""
        ...

    def watch(self, prefix: str, *, after_version: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        """Yields later changes of keys below the prefix: one tuple per version, versions going up.

        Several changes of one key may come as its latest alone; the last one always comes, and none
        comes out of order. A watch resumed after the last received version misses nothing. Raises
        `OutOfRange` if removals since `after_version` are no longer known, or the version is not
        this store's: read the range again, and watch after its version.
        """
        ...

    async def status(self) -> MetaStatus: ...

    async def close(self) -> None:
        """Closes the store; watches end with `ShuttingDown`."""
        ...


class Put(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Set a key."""

    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Remove a key; does nothing if there is none."""

    key: bytes


class DeleteRange(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Remove all keys with start ≤ key < end."""

    start: bytes
    end: bytes


Mutation = Put | Delete | DeleteRange


class KvEngine(Protocol):
    """An ordered key-value engine on one disk, without a log of its own.

    A written batch is atomic and readable at once, but durable only after `flush`. For more, the
    caller keeps a log, stores the applied index in the same batch, and replays from there.
    """

    def get(self, key: bytes) -> bytes | None: ...
    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        """Looks a key up in memory alone; returns whether that suffices, and the value."""
        ...

    async def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def write_batch(self, mutations: Sequence[Mutation]) -> None: ...
    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields pairs with start ≤ key < end, in key order, as they were when the scan began."""
        ...

    async def flush(self) -> None:
        """Makes everything written so far durable."""
        ...

    async def checkpoint(self, folder: str) -> None:
        """Makes a consistent copy in a new folder, sharing files where it can."""
        ...

    async def close(self) -> None: ...
