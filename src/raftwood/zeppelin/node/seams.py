"""The seam between a partition's storage and those who use it: commands, and replication.

Everything runs on one event loop, and whatever changes a partition does so without awaiting: the
loop is the lock of every key and tag, and binlog order is the order of execution.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec


class Value(msgspec.Struct, frozen=True):
    """What a key has; `expires_ms` is absolute, 0 for never."""

    data: bytes
    expires_ms: int = 0


class Write(msgspec.Struct, frozen=True, array_like=True):
    """What one key has from now on; None: nothing.

    Always the outcome, never an operation: applied twice, it is the same as once.
    """

    key: bytes
    data: bytes | None
    expires_ms: int = 0


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a binlog: writes that happen together, or the end of all keys before them.

    Sequences go up by one, from 1 on. The epoch is that of the master that wrote it: of two records
    with the same sequence those of equal epochs are the same.
    """

    epoch: int
    sequence: int
    writes: tuple[Write, ...]
    flushes: bool = False
    """All keys that there were are gone; then come the writes."""
    origin: tuple[bytes, int] | None = None
    """Of a retried request: who sent it, and its number there. Known again until it is purged."""


class PartitionStore(Protocol):
    """The keys of one partition and its binlog.

    What is committed can be read at once. It is `written` when the operating system has its binlog
    and `synced` when the disk has; the storage engine gets it after that, so that it is never ahead
    of what a crash leaves of the binlog.
    """

    @property
    def epoch(self) -> int:
        """Of the last record; 0: there is none."""
        ...

    @property
    def first_sequence(self) -> int:
        """Of the oldest record that is still here; last + 1 where there is none."""
        ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def written_sequence(self) -> int: ...

    @property
    def synced_sequence(self) -> int: ...

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        """None where there is nothing, or it has expired."""
        ...

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        """As of the moment of the call; cold ones are fetched beside the loop."""
        ...

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        """Keys behind one in the store's own order; each that stays is told once."""
        ...

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        """All keys with the tag."""
        ...

    def commit(self, record: Record) -> None:
        """Make a record the last one, at once; it has to be the next, at this epoch or a later."""
        ...

    async def records(self, *, first: int, bytes_max: int) -> list[Record]:
        """Some from a sequence on; at least one where there is one. `OutOfRange` once purged."""
        ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Be told whenever one of the sequences has gone up; returns how to stop that."""
        ...

    async def truncate(self, *, after: int) -> list[bytes] | None:
        """Take the records behind a sequence out of the binlog; the keys that they touched, whose
        values are those of a past that did not happen. None where not only keys were touched: then
        all of it has to come anew.
        """
        ...

    async def purge(self, *, before: int) -> None:
        """Forget records below a sequence; those that the engine has not got stay."""
        ...

    async def checkpoint(self, folder: str) -> int:
        """A copy of the engine in a new folder, and the sequence of the last record in it."""
        ...

    async def close(self) -> None: ...
